"""Fragments of a real Gazette cluster, read by path alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_readers

FRAGMENTS = Path(__file__).parent.parent.parent / "golden/live/fragments"
EXPECTED = json.loads((FRAGMENTS / "expected.json").read_text())
STORES = {
    "golden/offload": f"{FRAGMENTS}/store-offload",
    "golden/rewritten": f"{FRAGMENTS}/store?find=golden/rewritten&replace=moved/written",
}


def test_every_journal_that_gazette_wrote_is_read_byte_for_byte(spark: SparkSession) -> None:
    found: dict[str, list[tuple[int, bytes]]] = {}
    for journals in ([name for name in EXPECTED if name not in STORES], *([name] for name in STORES)):
        rows = (
            spark.read.format("gazette")
            .option("path", STORES.get(journals[0], f"{FRAGMENTS}/store"))
            .option("journals", ",".join(journals))
            .option("framing", "bytes")
            .option("includeMetadata", "true")
            .load()
            .select("_journal", "_offset", "value")
            .collect()
        )
        for row in rows:
            found.setdefault(row["_journal"], []).append((row["_offset"], row.value))
    assert found.keys() == EXPECTED.keys()
    for journal, parts in found.items():
        content = b"".join(value for _, value in sorted(parts))
        assert len(content) == EXPECTED[journal]["length"]
        assert hashlib.sha256(content).hexdigest() == EXPECTED[journal]["sha256"]


@pytest.mark.parametrize("split", ["64k", "128m"])
def test_lines_are_the_same_however_they_are_split(spark: SparkSession, split: str) -> None:
    lines = (
        spark.read.format("gazette")
        .options(path=f"{FRAGMENTS}/store", journalPattern="golden/(none|zstd|gzip|hive)", splitSize=split)
        .schema("value string, _journal string")
        .load()
        .groupBy("_journal")
        .count()
        .collect()
    )
    expected = {f"golden/{name}": EXPECTED[f"golden/{name}"]["lines"] for name in ("none", "zstd", "gzip", "hive")}
    assert {row["_journal"]: row["count"] for row in lines} == expected


def test_json_is_inferred_and_hive_keys_are_columns(spark: SparkSession) -> None:
    table = spark_readers.read_journals(
        spark, path=f"{FRAGMENTS}/store", journal="golden/hive", framing="json", includeMetadata=True
    )
    assert [field.simpleString() for field in table.schema][:3] == ["i:bigint", "k:string", "v:string"]
    rows = table.selectExpr("i", "_path_keys['date'] as date", "_path_keys['hour'] as hour").collect()
    assert len(rows) == EXPECTED["golden/hive"]["lines"]
    assert {(row.date, row.hour) for row in rows} == {("2026-11-16", "04")}
    assert len({row.i for row in rows}) == len(rows)
