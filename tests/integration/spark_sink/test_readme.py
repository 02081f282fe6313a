"""The screen of the README that is for Spark runs as it is printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from broker.client.blocking import BlockingClient
from tests.support.read_committed import committed

README = Path(__file__).parents[3] / "README.md"
RECORDS = b'{"country":"PT","amount":2.5}\n{"country":"JP","amount":1}\n{"country":"PT","amount":2}\n'


def test_journals_are_summed_up_and_the_sums_are_in_a_journal(
    spark: SparkSession, broker: str, client: BlockingClient, create: Callable[..., list[str]]
) -> None:
    orders, totals = create("orders", "totals")
    client.append(orders, RECORDS)
    _, code = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    for printed, real in (("localhost:8080", broker), ("my/orders", orders), ("my/totals", totals)):
        assert printed in code
        code = code.replace(printed, real)
    exec(code, {"spark": spark})
    found = {document["country"]: document["total"] for document in committed(client, totals)}
    assert found == {"PT": 4.5, "JP": 1.0}
