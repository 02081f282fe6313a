"""The examples of docs/spark.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.fragment_bag import put

DOCUMENT = Path(__file__).parent.parent.parent.parent / "docs/spark.md"
RECORD = b'{"country":"PT","amount":2.5}\n'


def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "fragments"
    of, _ = put(store, "acme/orders", 0, [RECORD] * 3, postfix="date=2026-11-15")
    put(store, "acme/orders", of.end, [RECORD], postfix="date=2026-11-16")
    scope: dict[str, object] = {"spark": spark}
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) >= 4
    for example in examples:
        exec(example.replace("/data/fragments", str(store)), scope)
    counts = {name: scope[name].count() for name in ("orders", "by_name", "one_day", "today")}  # type: ignore[attr-defined]
    assert counts == {"orders": 4, "by_name": 4, "one_day": 1, "today": 4}
    assert spark.read.parquet(f"{store}.parquet").count() == 4
