"""Each framing, mode and loss in a real Spark, and where there is a reader of Spark's own, beside that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import spark_readers
from consumer.message import csv_framing, fixed_framing
from consumer.message.message_uuid import build, clock_at
from protocol.codec import CompressionCodec
from spark_readers.proto_columns import message_class
from tests.support.coding import json_lines
from tests.support.fragment_bag import put

JOURNAL = "acme/orders"
CLOCK = clock_at(1_700_000_000_000_000_000)


def uuid(number: int, flags: int = 0) -> Any:
    return build(b"\x01aaaaa", CLOCK + 16 * number, flags)


def read(spark: SparkSession, store: Path, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("gazette").options(path=str(store), **options)
    return (reader.schema(schema) if schema else reader).load()


def rows(table: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.collect()), key=str)


def test_csv_by_mode(spark: SparkSession, tmp_path: Path) -> None:
    records = [csv_framing.encode([str(uuid(0)), "7", "a\nb"]), b"u,seven,c\n", b"u,8\n"]
    put(tmp_path, JOURNAL, 0, records)
    # A repeated message is no row.
    put(tmp_path, JOURNAL, sum(map(len, records)), [records[0]])
    assert [tuple(row)[1:] for row in read(spark, tmp_path, framing="csv").limit(1).collect()] == [("7", "a\nb")]
    schema = "u string, n int, t string, _corrupt_record string"
    columns = ("n", "t", "_corrupt_record")
    assert rows(read(spark, tmp_path, schema, framing="csv").select(*columns)) == [
        (7, "a\nb", None),
        (8, None, "u,8"),
        (None, "c", "u,seven,c"),
    ]
    dropped = read(spark, tmp_path, schema, framing="csv", mode="DROPMALFORMED")
    assert rows(dropped.select(*columns)) == [(7, "a\nb", None)]
    with pytest.raises(PythonException, match=f"{JOURNAL} has a malformed record at offset {len(records[0])}"):
        read(spark, tmp_path, schema, framing="csv", mode="FAILFAST").collect()


def test_protobuf_by_mode(spark: SparkSession, tmp_path: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="order.proto", package="test", syntax="proto3").message_type.add(name="Order")
    for number, (name, of_type) in enumerate((("uuid", 12), ("amount", 1), ("note", 9)), 1):
        message.field.add(name=name, number=number, type=of_type, label=1)
    descriptor = tmp_path / "orders.pb"
    descriptor.write_bytes(files.SerializeToString())
    kind: Any = message_class(str(descriptor), "test.Order")
    # A transaction of two, and one that stays open.
    frames = [
        fixed_framing.encode(kind(uuid=uuid(at, flags).bytes, amount=at, note="hi").SerializeToString())
        for at, flags in enumerate((1, 1, 2, 1))
    ]
    store = tmp_path / "store"
    put(store, JOURNAL, 0, [frames[0], b"garbage!", *frames[1:3], fixed_framing.encode(b"\xff\xff"), frames[3]])
    given: dict[str, Any] = {
        "framing": "fixed",
        "descriptorFile": descriptor,
        "messageName": "test.Order",
        "uuidField": "uuid",
    }
    assert read(spark, store, **given).dtypes == [("uuid", "binary"), ("amount", "double"), ("note", "string")]
    assert rows(read(spark, store, **given).select("amount")) == [(0.0,), (1.0,), (None,), (None,)]
    schema = "amount double, _corrupt_record string, _offset long"
    assert {tuple(row)[:2] for row in read(spark, store, schema, **given).collect()} == {
        (0.0, None),
        (1.0, None),
        (None, b"garbage!".hex()),
        (None, "ffff"),
    }
    assert rows(read(spark, store, "amount double", **given, mode="DROPMALFORMED")) == [(0.0,), (1.0,)]
    with pytest.raises(PythonException, match=f"{JOURNAL} has a malformed record at offset {len(frames[0])}"):
        read(spark, store, "amount double", **given, mode="FAILFAST").collect()
    # Without a descriptor frames are binary.
    assert {row.value for row in read(spark, store, framing="fixed").collect()} >= {frames[0][8:], b"\xff\xff", None}


def test_json_types_by_mode_are_those_of_spark_s_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    records = [
        *('{"i":1}', '{"i":1.5}', '{"i":"7"}', '{"i":true}', '{"i":1e3}', '{"i":99999999999999999999}', '{"i":null}'),
        *('{"b":true}', '{"b":1}', '{"b":"true"}', '{"f":1}', '{"f":1.5}', '{"f":"1.5"}', '{"f":"-INF"}', '{"f":true}'),
        *('{"n":1.25}', '{"n":"1.25"}', '{"n":true}', '{"d":"2026-01-02"}', '{"d":"soon"}', '{"d":5}'),
        *('{"l":[1,2]}', '{"l":[1,"a"]}', '{"l":5}', '{"l":[]}', '{"s":{"x":1,"y":"z"}}', '{"s":{"x":"q","y":"z"}}'),
        *('{"s":5}', '{"m":{"k":1}}', '{"m":{"k":"v"}}', '{"m":[]}', '{"t":"2026-01-02 03:04:05"}', '{"t":"soon"}'),
        *('{"i":1,"b":7,"f":2.5}', "{oops", "17", "  ", "\t", ""),
    ]
    content = "".join(record + "\n" for record in records).encode()
    put(tmp_path / "store", JOURNAL, 0, [content])
    plain = tmp_path / "plain.json"
    plain.write_bytes(content)
    schema = (
        "i long, b boolean, f double, n decimal(10,2), d date, l array<long>, s struct<x:long,y:string>, "
        "m map<string,long>, t timestamp, _corrupt_record string"
    )
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        theirs = spark.read.schema(schema).option("mode", mode).json(str(plain)).cache()
        assert rows(read(spark, tmp_path / "store", schema, framing="json", mode=mode)) == rows(theirs), mode
        theirs.unpersist()


def test_inferred_columns_are_those_of_spark_s_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    for number, content in enumerate(
        (b'{"a":1}\n{oops\n', b'{"a":1}\n17\n', b'{"a":1}\n\n', b'{"Z":1,"a":{"b":[1.5]}}\n')
    ):
        put(tmp_path / f"store{number}", JOURNAL, 0, [content])
        plain = tmp_path / f"plain{number}.json"
        plain.write_bytes(content)
        for mode in ("PERMISSIVE", "DROPMALFORMED"):
            ours = read(spark, tmp_path / f"store{number}", framing="json", mode=mode)
            theirs = spark.read.option("mode", mode).json(str(plain))
            assert ours.schema == theirs.schema, (content, mode)


def test_times_without_a_zone_are_the_session_s(spark: SparkSession, tmp_path: Path) -> None:
    content = b'{"t":"2026-01-02 03:04:05"}\n{"t":"2026-01-02T03:04:05Z"}\n'
    put(tmp_path / "store", JOURNAL, 0, [content])
    plain = tmp_path / "plain.json"
    plain.write_bytes(content)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("America/New_York", "+05:30"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            tables = [
                spark.read.schema("t timestamp").json(str(plain)),
                read(spark, tmp_path / "store", "t timestamp", framing="json"),
                spark_readers.read_journals(spark, path=tmp_path / "store", framing="json", columns="t timestamp"),
            ]
            theirs, by_format, by_function = (rows(table.selectExpr("unix_micros(t)")) for table in tables)
            assert by_format == by_function == theirs
        named = read(spark, tmp_path / "store", "t timestamp", framing="json", timeZone="UTC")
        assert len(set(rows(named))) == 1
        spark.conf.unset("spark.sql.session.timeZone")
        # Then it is that of the machine, of which tasks are not told.
        table = spark_readers.read_journals(spark, path=tmp_path / "store", framing="json", columns="t timestamp")
        theirs = rows(spark.read.schema("t timestamp").json(str(plain)))
        assert rows(table) == theirs
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def test_times_choose_fragments(spark: SparkSession, tmp_path: Path) -> None:
    begin = 0
    for hour in range(3):
        of, _ = put(tmp_path, JOURNAL, begin, [b"%d\n" % hour], mod_time=1_700_000_000 + 3600 * hour)
        begin = of.end
    early, late = "2023-11-14T22:30:00Z", 1_700_000_000_000 + 2 * 3_600_000
    assert rows(read(spark, tmp_path, startingTimestamp=early)) == [("1",), ("2",)]
    assert rows(read(spark, tmp_path, endingTimestamp=early)) == [("0",)]
    assert rows(read(spark, tmp_path, startingTimestamp=early, endingTimestamp=late)) == [("1",)]
    # Spark's own reader is given the same files.
    assert rows(spark_readers.read_journals(spark, path=tmp_path, startingTimestamp=early)) == [("1",), ("2",)]


@pytest.mark.parametrize("harm", ["cut at a frame", "flipped", "vanished"])
def test_a_bad_fragment_fails_by_name_or_is_left_out(spark: SparkSession, tmp_path: Path, harm: str) -> None:
    content = json_lines(3 << 20).rpartition(b"\n")[0] + b"\n"
    half = content.index(b"\n", len(content) // 2) + 1
    put(tmp_path, JOURNAL, 0, [b'{"note":"good"}\n'])
    begin = len(b'{"note":"good"}\n')
    of, path = put(tmp_path, JOURNAL, begin, [content[:half], content[half:]], CompressionCodec.ZSTANDARD)
    packed = path.read_bytes()
    tables = [
        read(spark, tmp_path, "note string", framing="json", isolation=isolation, failOnDataLoss=fails)
        for fails in ("true", "false")
        for isolation in ("read_uncommitted", "read_committed")
    ]
    if harm == "cut at a frame":
        path.write_bytes(packed[: packed.index(b"\x28\xb5\x2f\xfd", 4)])
        # Spark's own reader would not notice.
        tables.insert(0, spark_readers.read_journals(spark, path=tmp_path))
        assert not tables[0].inputFiles()
    elif harm == "flipped":
        at = len(packed) // 2
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 0x11]) + packed[at + 1 :])
    else:
        # Not before it was planned to be read, which is done at the first action.
        for table in tables:
            assert len(table.limit(1).collect()) == 1
        path.unlink()
    for table in tables[:-2]:
        with pytest.raises(PythonException, match=of.content_name):
            table.collect()
    for table in tables[-2:]:
        assert rows(table) == [("good",)]
