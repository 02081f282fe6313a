"""What Spark's users see: options, schemas, snapshots, errors, and Spark's own reader where it is right."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import spark_readers
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from spark_readers.source import GazetteReader, GazetteSource
from tests.support.fragment_bag import put
from tests.support.pushing_source import PushingSource

JOURNAL = "acme/orders"
RECORDS = [
    json.dumps({"country": "PT" if n % 2 else "JP", "amount": n / 2, "n": n}).encode() + b"\n" for n in range(40)
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    begin = 0
    for number, part in enumerate((RECORDS[:15], RECORDS[15:30], RECORDS[30:])):
        codec = (CompressionCodec.ZSTANDARD, CompressionCodec.SNAPPY, CompressionCodec.NONE)[number]
        of, _ = put(tmp_path, JOURNAL, begin, part, codec, postfix=f"date=2026-11-{16 + number}")
        begin = of.end
    return tmp_path


def read(spark: SparkSession, store: Path, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("gazette").options(path=str(store), framing="json", **options)
    return (reader.schema(schema) if schema else reader).load()


def test_a_table_is_queried_by_its_columns(spark: SparkSession, store: Path) -> None:
    table = read(spark, store, "country string, amount double")
    rows = table.groupBy("country").sum("amount").collect()
    assert {row["country"]: row["sum(amount)"] for row in rows} == {"PT": 200.0, "JP": 190.0}


def test_narrow_reads_are_the_easy_ones(spark: SparkSession, store: Path) -> None:
    table = spark_readers.read_journals(
        spark, path=store, framing="json", columns=["n", "_offset"], where={"date": ["2026-11-16", "2026-11-18"]}
    )
    assert table.dtypes == [("n", "bigint"), ("_offset", "bigint")]
    assert sorted(row["n"] for row in table.collect()) == [*range(15), *range(30, 40)]
    with pytest.raises(ValidationError, match="known are amount, country, n"):
        spark_readers.read_journals(spark, path=store, framing="json", columns=["who"])


def test_places_of_lines_are_the_same_many_to_a_row_or_each_in_its_own(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark takes over a row for many of them, and makes one of each again."""
    for schema in ("_offset long", "_path_keys map<string,string>, _offset long, _journal string", "_offset int"):
        each = spark.read.format("gazette").options(path=str(store), framing="lines").schema(schema).load()
        many = spark_readers.read_journals(spark, path=store, framing="lines", columns=schema)
        assert many.schema == each.schema
        many.explain()
        assert ("_offsets" in capsys.readouterr().out) == ("_offset long" in schema)
        assert sorted(map(str, many.collect())) == sorted(map(str, each.collect()))
        assert many.count() == len(RECORDS)
        assert many.where("_offset >= 100").count() == each.where("_offset >= 100").count() < len(RECORDS)


def test_columns_are_as_they_were_given(spark: SparkSession, store: Path) -> None:
    given = StructType([StructField("value", StringType(), False, {"comment": "as it is"})])
    lines = spark_readers.read_journals(spark, path=store, framing="lines", columns=given)
    assert lines.schema == given
    assert lines.schema["value"].metadata == {"comment": "as it is"}
    assert sorted(row["value"] for row in lines.collect()) == sorted(of.decode().rstrip() for of in RECORDS)


def test_a_snapshot_is_read_again_after_more_was_written(spark: SparkSession, store: Path) -> None:
    offsets = spark_readers.resolve_offsets(path=store)
    end = len(b"".join(RECORDS))
    assert offsets == {JOURNAL: (0, end)}
    put(store, JOURNAL, end, [b'{"n":99}\n'])
    # Another broker cut the same bytes elsewhere.
    put(store, JOURNAL, 0, RECORDS, CompressionCodec.GZIP)
    pinned = spark_readers.read_journals(spark, path=store, framing="json", columns="n long", offsets=offsets)
    assert sorted(row["n"] for row in pinned.collect()) == [*range(40)]
    assert read(spark, store, "n long").count() == 41
    with pytest.raises(ValidationError, match="says this already"):
        spark_readers.read_journals(spark, path=store, journal=JOURNAL, offsets=offsets)


def test_a_frame_keeps_its_snapshot_from_the_first_action_on(spark: SparkSession, store: Path) -> None:
    table = read(spark, store, "n long")
    assert table.count() == 40
    put(store, JOURNAL, len(b"".join(RECORDS)), [b'{"n":99}\n'])
    assert table.count() == 40


def test_nothing_to_read_is_an_empty_table(spark: SparkSession, store: Path) -> None:
    assert read(spark, store, "n long", startingOffsets="latest").collect() == []
    assert read(spark, store, "n long", journalPattern="nobody/.*").collect() == []


def test_a_mistake_in_an_option_shows_when_the_table_is_loaded(spark: SparkSession, store: Path) -> None:
    with pytest.raises(AnalysisException, match="did you mean splitSize"):
        read(spark, store, splitSise="1m")


def test_a_corrupt_fragment_fails_the_query_by_name(spark: SparkSession, store: Path) -> None:
    [path] = store.rglob("*.sz")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(PythonException, match=path.name):
        read(spark, store, "n long").collect()
    assert read(spark, store, "n long", failOnDataLoss="false").count() == 25


def test_malformed_records_follow_the_mode_as_in_spark_s_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    lines = [b'{"a":1,"b":"x"}\n', b"{oops\n", b"\n", b'{"a":"zz","b":"y"}\n', b"17\n", b'{"b":null}\n']
    put(tmp_path / "store", JOURNAL, 0, lines)
    plain = tmp_path / "plain.json"
    plain.write_bytes(b"".join(lines))
    schema = "a long, b string, _corrupt_record string"

    def rows(table: DataFrame) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in table.collect()), key=str)

    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        theirs = spark.read.schema(schema).option("mode", mode).json(str(plain)).cache()
        assert rows(read(spark, tmp_path / "store", schema, mode=mode)) == rows(theirs), mode
        theirs.unpersist()
    with pytest.raises(PythonException, match=r"malformed record at offset 16"):
        read(spark, tmp_path / "store", schema, mode="FAILFAST").collect()


def test_whole_raw_lines_are_handed_to_spark_s_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    def is_native(table: DataFrame) -> bool:
        return bool(table.inputFiles())

    lines = [b"one\rstill one\n", b"\n", b"two\n"]
    expected = sorted(line.rstrip(b"\n").decode() for line in lines)
    of, _ = put(tmp_path, JOURNAL, 0, lines, CompressionCodec.NONE)
    of, _ = put(tmp_path, JOURNAL, of.end, lines, CompressionCodec.NONE)
    native = spark_readers.read_journals(spark, path=tmp_path)
    assert is_native(native)
    assert sorted(row["value"] for row in native.collect()) == sorted(2 * expected)
    own = [
        spark_readers.read_journals(spark, path=tmp_path, verifySha1=True),
        spark_readers.read_journals(spark, path=tmp_path, columns=["value", "_offset"]),
    ]
    # Trimmed: by an offset, or by another fragment.
    trimmed = spark_readers.read_journals(spark, path=tmp_path, startingOffsets={JOURNAL: len(lines[0])})
    assert not is_native(trimmed)
    assert trimmed.count() == 5
    assert not any(map(is_native, own))
    for table in own:
        assert sorted(row["value"] for row in table.collect()) == sorted(2 * expected)
    # Packed ones we read ourselves: Spark takes longer, and takes snappy for text without a word.
    for number, codec in enumerate((CompressionCodec.GZIP, CompressionCodec.ZSTANDARD, CompressionCodec.SNAPPY)):
        of, _ = put(tmp_path, JOURNAL, of.end, lines, codec)
        table = spark_readers.read_journals(spark, path=tmp_path)
        assert not is_native(table)
        assert table.schema == native.schema
        assert sorted(row["value"] for row in table.collect()) == sorted((3 + number) * expected)
        assert table.where("value = 'two'").count() == 3 + number


def test_a_file_cut_short_is_never_handed_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    _, path = put(tmp_path, JOURNAL, 0, [b"one\n", b"two\n"])
    path.write_bytes(b"one\n")
    table = spark_readers.read_journals(spark, path=tmp_path)
    with pytest.raises(PythonException, match="ends early"):
        table.collect()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def filtered(spark: SparkSession, table: Callable[[], DataFrame]) -> dict[str, Any]:
    """What comes out of queries that share a table of forty rows, of which some have a filter."""
    found: dict[str, Any] = {}
    shared = table()
    found["one row"] = shared.filter("n = 5").count()
    found["all after one row"] = shared.count()
    shared = table()
    shared.filter("n < 5").explain()
    found["all after a plan"] = shared.count()
    shared = table()
    found["some and all"] = shared.filter("n < 10").union(shared).count()
    shared = table()
    both = shared.filter("n < 10").union(shared.filter("n >= 30"))
    found["both ends"] = sorted(row["n"] for row in both.collect())
    table().createOrReplaceTempView("orders")
    counts = "(SELECT count(*) FROM orders WHERE n < 10), (SELECT count(*) FROM orders WHERE n >= 30 AND n < 35)"
    found["in SQL"] = tuple(spark.sql(f"SELECT {counts}").collect()[0])
    return found


RIGHT = {
    "one row": 1,
    "all after one row": 40,
    "all after a plan": 40,
    "some and all": 50,
    "both ends": [*range(10), *range(30, 40)],
    "in SQL": (10, 5),
}
# Scans of one table share what was pushed last, as of Spark 4.3.
WRONG = RIGHT | {
    "all after one row": 1,
    "all after a plan": 5,
    "some and all": 20,
    "both ends": sorted([*range(30, 40)] * 2),
    "in SQL": (5, 5),
}


@pytest.mark.usefixtures("pushdown")
def test_filters_are_not_pushed_down(spark: SparkSession, store: Path) -> None:
    """Whoever adds ``pushFilters`` sees these fail."""
    assert "pushFilters" not in vars(GazetteReader)
    assert "pushFilters" not in vars(GazetteSource)
    assert filtered(spark, lambda: read(spark, store, "n long")) == RIGHT


@pytest.mark.usefixtures("pushdown")
def test_spark_still_returns_wrong_rows_to_those_who_push_filters(spark: SparkSession) -> None:
    """A canary, which dies once Spark is mended: that is why journals are narrowed down by options alone."""
    spark.dataSource.register(PushingSource)
    assert filtered(spark, lambda: spark.read.format("pushing").load()) == WRONG, (
        "Spark answers otherwise than it did in 4.3 where a source has pushFilters. If all of it is right now, pruning "
        "by filters can be reconsidered (docs/spark.md tells why it is not done); if not, say here what is wrong now."
    )


def test_sql_reads_journals_too(spark: SparkSession, store: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW journal (n BIGINT) USING gazette OPTIONS (path '{store}', framing 'json')"
    )
    assert spark.sql("SELECT sum(n) AS total FROM journal").collect()[0]["total"] == sum(range(40))


def test_gzip_of_several_members_is_read_whole(spark: SparkSession, tmp_path: Path) -> None:
    _, path = put(tmp_path, JOURNAL, 0, RECORDS, CompressionCodec.GZIP)
    path.write_bytes(gzip.compress(b"".join(RECORDS[:7])) + gzip.compress(b"".join(RECORDS[7:])))
    assert read(spark, tmp_path, "n long", isolation="read_uncommitted").count() == 40
