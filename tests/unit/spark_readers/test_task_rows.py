from __future__ import annotations

import logging
import random
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from google.protobuf import descriptor_pb2

from consumer.message import csv_framing, fixed_framing
from consumer.message.message_uuid import build, clock_at
from fragment.zstd_frames import FRAME_BYTES_MAX
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, UnavailableError, ValidationError
from spark_readers.fragment_task import FragmentTask
from spark_readers.local_copy import local_folder
from spark_readers.message_batches import GARBAGE_BYTES_MAX
from spark_readers.packed_shape import checks_itself
from spark_readers.proto_columns import message_class, proto_schema
from spark_readers.row_buffer import BATCH_ROWS
from spark_readers.scan import inferred_schema, plan_tasks
from spark_readers.scan_plan import DataLossError
from spark_readers.summary_pool import SummaryPool
from spark_readers.task_rows import FILE_BYTES_MIN, task_rows
from tests.support.coding import CODECS, json_lines
from tests.support.fragment_bag import LINES, options_of, put, rows_of, rows_of_tasks

JOURNAL = "acme/orders"
NONE, GZIP, ZSTD = CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD
SNAPPY = CompressionCodec.SNAPPY
AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
RECORDS = [b'{"a":1,"b":"x"}\n', b"not json\n", b"\n", b'{"a":"zz","b":"y"}\n', b"[1]\n", b'{"b":{"c":1}}\n']


def values(store: Path, schema: pa.Schema = AB, **given: object) -> list[dict[str, Any]]:
    return rows_of(options_of(path=store, framing="json", **given), schema)


def test_permissive_keeps_what_it_can_and_shows_the_rest(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, RECORDS)
    schema = AB.append(pa.field("_corrupt_record", pa.string()))
    assert [tuple(row.values()) for row in values(tmp_path, schema)] == [
        (1, "x", None),
        (None, None, "not json"),
        (None, "y", '{"a":"zz","b":"y"}'),
        (None, None, "[1]"),
        (None, '{"c":1}', None),
    ]


def test_dropmalformed_drops_with_its_metadata(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, RECORDS)
    schema = AB.append(pa.field("_offset", pa.int64()))
    rows = values(tmp_path, schema, mode="DROPMALFORMED")
    assert [(row["b"], row["_offset"]) for row in rows] == [("x", 0), ('{"c":1}', len(b"".join(RECORDS[:5])))]


TYPED = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("n", pa.decimal128(10, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.int64())),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("m", pa.map_(pa.string(), pa.bool_())),
        ("_corrupt_record", pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (b'{"i":1.5,"f":1}', {"f": 1.0}),
        (b'{"i":"7"}', {}),
        (b'{"i":true,"b":true}', {"b": True}),
        (b'{"i":1e3}', {}),
        (b'{"f":"1e3"}', {}),
        (b'{"f":true}', {}),
        (b'{"b":1,"i":1}', {"i": 1}),
        (b'{"b":"true"}', {}),
        (b'{"n":true}', {}),
        (b'{"t":"soon"}', {}),
        (b'{"l":[1,2.5]}', {}),
        (b'{"l":{"x":1}}', {}),
        (b'{"s":{"x":"1","y":"z"}}', {"s": {"x": None, "y": "z"}}),
        (b'{"s":[]}', {}),
        (b'{"m":{"k":1}}', {}),
    ],
)
def test_a_value_of_another_json_type_makes_a_record_malformed(
    tmp_path: Path, record: bytes, kept: dict[str, Any]
) -> None:
    """DuckDB would cast them. Spark does not."""
    put(tmp_path, JOURNAL, 0, [record + b"\n"])
    (row,) = values(tmp_path, TYPED)
    assert {name: value for name, value in row.items() if value is not None} == {
        **kept,
        "_corrupt_record": record.decode(),
    }
    assert values(tmp_path, TYPED, mode="DROPMALFORMED") == []
    with pytest.raises(CorruptError, match="malformed record at offset 0"):
        values(tmp_path, TYPED.remove(len(TYPED) - 1), mode="FAILFAST")


@pytest.mark.parametrize(
    "record",
    [
        *(b'{"i":1,"f":1,"b":false,"n":"1.25"}', b'{"f":"NaN"}', b'{"f":"-INF"}', b'{"n":1.25}', b"{}"),
        *(b'{"i":null,"l":null,"s":null}', b'{"l":[1,null,2]}', b'{"l":[]}', b'{"s":{}}', b'{"m":{"k":true,"j":null}}'),
        *(b'{"t":"2026-11-16 04:00:00"}', b'{"unknown":1}'),
    ],
)
def test_a_value_of_the_right_json_type_is_none(tmp_path: Path, record: bytes) -> None:
    put(tmp_path, JOURNAL, 0, [record + b"\n"])
    assert len(values(tmp_path, TYPED, mode="FAILFAST")) == 1


@pytest.mark.parametrize("framing", ["json", "csv"])
@pytest.mark.parametrize("count", [1, FILE_BYTES_MIN // 10])
@pytest.mark.parametrize(
    ("zone", "hour"), [("", 3), ("UTC", 3), ("America/New_York", 8), ("+01:00", 2), ("GMT-2", 5), ("Z", 3)]
)
def test_times_without_a_zone_are_of_the_one_that_was_named(
    tmp_path: Path, framing: str, count: int, zone: str, hour: int
) -> None:
    lines = {"json": b'{"t":"2026-01-02 03:00:00"}\n', "csv": b"2026-01-02 03:00:00\n"}
    put(tmp_path, JOURNAL, 0, [lines[framing] * count])
    given = {"timeZone": zone} if zone else {}
    options = options_of(path=tmp_path, framing=framing, isolation="read_uncommitted", **given)
    rows = rows_of(options, pa.schema([("t", pa.timestamp("us", "UTC"))]))
    assert len(rows) == count
    assert {row["t"] for row in rows} == {datetime(2026, 1, 2, hour, tzinfo=UTC)}


def test_times_within_others_have_a_zone_too(tmp_path: Path) -> None:
    put(
        tmp_path,
        JOURNAL,
        0,
        [b'{"l":["2026-01-02 03:00:00","soon"],"s":{"t":"2026-01-02 03:00:00"},"m":{"k":"2026-01-02 03:00:00"}}\n'],
    )
    time = pa.timestamp("us", "UTC")
    schema = pa.schema([("l", pa.list_(time)), ("s", pa.struct([("t", time)])), ("m", pa.map_(pa.string(), time))])
    moment = datetime(2026, 1, 2, 8, tzinfo=UTC)
    assert values(tmp_path, schema, timeZone="America/New_York") == [
        {"l": [moment, None], "s": {"t": moment}, "m": [("k", moment)]}
    ]


def test_a_zone_that_nobody_knows_is_named(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"{}\n"])
    with pytest.raises(ValidationError, match="timeZone: Mars/Olympus"):
        values(tmp_path, timeZone="Mars/Olympus")


@pytest.mark.parametrize(
    ("lines", "mode", "names"),
    [
        ([b'{"a":1}', b"{oops"], "PERMISSIVE", ["_corrupt_record", "a"]),
        ([b'{"a":1}', b"17"], "PERMISSIVE", ["_corrupt_record", "a"]),
        ([b'{"a":1}', b"{oops"], "DROPMALFORMED", ["a"]),
        ([b'{"a":1}', b"  ", b"null"], "PERMISSIVE", ["a"]),
    ],
)
def test_an_inferred_schema_has_room_for_malformed_records(
    tmp_path: Path, lines: list[bytes], mode: str, names: list[str]
) -> None:
    put(tmp_path, JOURNAL, 0, [line + b"\n" for line in lines])
    fields = inferred_schema(options_of(path=tmp_path, framing="json", mode=mode))["fields"]
    assert [field["name"] for field in fields] == names


def test_failfast_says_where(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 100, RECORDS)
    with pytest.raises(CorruptError, match=f"acme/orders has a malformed record at offset {100 + len(RECORDS[0])}"):
        values(tmp_path, mode="FAILFAST")


def test_types_of_spark_are_met_exactly(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.field("element", pa.string())))])),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.date32()),
            ("n", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("ok", pa.bool_()),
        ]
    )
    line = (
        b'{"s":{"x":1,"y":["a",null]},"m":{"k":1.5},"t":"2026-11-16T04:00:00Z","d":"2026-11-16","n":1.25,'
        b'"raw":"aGk=","ok":true}\n'
    )
    put(tmp_path, JOURNAL, 0, [line, b"{}\n"])
    first, second = values(tmp_path, schema)
    assert first == {
        "s": {"x": 1, "y": ["a", None]},
        "m": [("k", 1.5)],
        "t": datetime(2026, 11, 16, 4, tzinfo=UTC),
        "d": datetime(2026, 11, 16).date(),
        "n": Decimal("1.25"),
        "raw": b"hi",
        "ok": True,
    }
    assert set(second.values()) == {None}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_whole_fragments_are_the_same_by_file_and_by_line(tmp_path: Path, codec: CompressionCodec) -> None:
    """DuckDB reads the files of the first, our decoder those of the second."""
    content = json_lines(1 << 20).rpartition(b"\n")[0] + b"\n"
    put(
        tmp_path,
        JOURNAL,
        0,
        [content[: content.index(b"\n", 1 << 19) + 1], content[content.index(b"\n", 1 << 19) + 1 :]],
        codec,
    )
    schema = pa.schema([("at", pa.int64()), ("note", pa.string())])
    by_file = values(tmp_path, schema, isolation="read_uncommitted")
    by_line = values(tmp_path, schema, isolation="read_uncommitted", verifySha1="true")
    assert by_file == by_line
    assert len(by_file) == content.count(b"\n")


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_one_large_fragment_is_split_into_tasks_that_share_no_line(tmp_path: Path, codec: CompressionCodec) -> None:
    content = json_lines(3 * FRAME_BYTES_MAX).rpartition(b"\n")[0] + b"\n"
    cuts = [
        0,
        *(content.index(b"\n", at) + 1 for at in range(1 << 20, len(content) - (1 << 18), 1 << 20)),
        len(content),
    ]
    # One append is so long that frames begin within it, where messages do not.
    del cuts[4:10]
    appends = [content[begin:end] for begin, end in pairwise(cuts)]
    assert max(map(len, appends)) > FRAME_BYTES_MAX
    put(tmp_path, JOURNAL, 0, appends, codec)
    options = options_of(path=tmp_path, splitSize="2m")
    assert len(plan_tasks(options)) > 4
    rows = rows_of(options)
    assert len(rows) == content.count(b"\n")
    assert [row["_offset"] for row in rows] == sorted({row["_offset"] for row in rows})
    assert "".join(row["value"] + "\n" for row in rows).encode() == content


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("harm", ["truncated", "flipped", "vanished"])
@pytest.mark.parametrize(("framing", "verify"), [("lines", "false"), ("json", "false"), ("json", "true")])
def test_a_bad_fragment_fails_by_name_or_is_skipped_and_counted(
    tmp_path: Path, codec: CompressionCodec, harm: str, framing: str, verify: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = b'{"note":"good"}\n'
    content = json_lines(1 << 19).rpartition(b"\n")[0] + b"\n"
    put(tmp_path, JOURNAL, 0, [good])
    of, path = put(tmp_path, JOURNAL, len(good), [content], codec)
    packed = path.read_bytes()
    given: dict[str, object] = {"path": tmp_path, "framing": framing, "verifySha1": verify}
    given["isolation"] = "read_uncommitted"
    schema = pa.schema([("value" if framing == "lines" else "note", pa.string())])
    options, lenient = options_of(**given), options_of(**given, failOnDataLoss="false")
    tasks = plan_tasks(options)
    if harm == "vanished":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(packed[: len(packed) // 2])
    else:
        at = len(packed) // 2
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 0x11]) + packed[at + 1 :])

    def read(options: Any) -> list[dict[str, Any]]:
        return rows_of_tasks((FragmentTask.unpack(task) for task in tasks), options, schema)

    with pytest.raises(CorruptError, match=of.content_name):
        read(options)
    with caplog.at_level(logging.WARNING):
        assert len(read(lenient)) == 1
    assert "1 pieces of fragments were skipped" in caplog.text
    assert of.content_name in caplog.text


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_no_changed_byte_becomes_a_row(tmp_path: Path, codec: CompressionCodec, checksums: bool) -> None:
    """In files that DuckDB reads, too: it verifies zstandard frames if they have checksums, and nothing else."""
    content = json_lines(300 << 10).rpartition(b"\n")[0] + b"\n"
    of, path = put(tmp_path, JOURNAL, 0, [content], codec)
    if not checksums:
        path.write_bytes(zstandard.compress(content) if codec is ZSTD else path.read_bytes())
    options = options_of(path=tmp_path, framing="json", isolation="read_uncommitted")
    schema = pa.schema([("note", pa.string())])
    tasks = [FragmentTask.unpack(task) for task in plan_tasks(options)]
    assert len(rows_of_tasks(tasks, options, schema)) == content.count(b"\n")
    packed = path.read_bytes()
    chance = random.Random(0)
    for at in chance.sample(range(len(packed) // 20, len(packed) * 19 // 20), 20):
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 1 << chance.randrange(8)]) + packed[at + 1 :])
        with pytest.raises(CorruptError, match=of.content_name):
            rows_of_tasks(tasks, options, schema)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_fragment_that_is_cut_where_a_frame_ends_fails_by_name(tmp_path: Path, isolation: str) -> None:
    content = json_lines(3 << 20).rpartition(b"\n")[0] + b"\n"
    half = content.index(b"\n", len(content) // 2) + 1
    of, path = put(tmp_path, JOURNAL, 0, [content[:half], content[half:]], ZSTD)
    whole = path.read_bytes()
    frame = whole.index(b"\x28\xb5\x2f\xfd", 4)
    path.write_bytes(whole[:frame])
    with pytest.raises(CorruptError, match=f"{of.content_name}.* ends early"):
        values(tmp_path, pa.schema([("note", pa.string())]), isolation=isolation)


def test_frames_that_do_not_tell_their_size_are_read_all_the_same(tmp_path: Path) -> None:
    content = json_lines(1 << 20).rpartition(b"\n")[0] + b"\n"
    _, path = put(tmp_path, JOURNAL, 0, [content], ZSTD)
    path.write_bytes(zstandard.ZstdCompressor(write_content_size=False).compress(content))
    rows = values(tmp_path, pa.schema([("note", pa.string())]), isolation="read_uncommitted")
    assert len(rows) == content.count(b"\n")


def test_an_outage_is_never_passed_over(tmp_path: Path) -> None:
    """Neither in a task nor on the driver, which looks at UUIDs first."""
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    of, path = put(store, JOURNAL, 0, [b'{"a":1}\n'])
    given: dict[str, object] = {"path": store, "framing": "json", "failOnDataLoss": "false"}
    options = options_of(**given)
    tasks = [FragmentTask.unpack(task) for task in plan_tasks(options)]
    path.unlink()
    assert rows_of_tasks(tasks, options, AB) == []
    # Something is in its place that cannot be read.
    path.mkdir()
    with pytest.raises(UnavailableError, match=of.content_name):
        rows_of_tasks(tasks, options, AB)
    with SummaryPool(options) as pool, pytest.raises(UnavailableError, match=of.content_name):
        list(pool.in_order([(None, tasks[0].runs)]))
    # The whole store is gone, as if it were not mounted.
    store.rename(elsewhere)
    with pytest.raises(UnavailableError, match=of.content_name):
        rows_of_tasks(tasks, options, AB)


def test_what_the_driver_skips_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [b'{"a":%d,"b":"%s"}\n' % (at, b"x" * 900) for at in range(4)]
    begins = [0, *accumulate(map(len, lines))]
    paths = [put(tmp_path, JOURNAL, begin, [line])[1] for begin, line in zip(begins, lines, strict=False)]
    paths[-1].write_bytes(b"y" * len(lines[-1]))
    with caplog.at_level(logging.WARNING):
        rows = values(tmp_path, failOnDataLoss="false", splitSize="1k")
    assert [row["a"] for row in rows] == [0, 1, 2]
    assert f"1 pieces of fragments were skipped, with up to {len(lines[-1])} bytes" in caplog.text


def test_gaps_fail_or_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"one\n"])
    put(tmp_path, JOURNAL, 10, [b"two\n"])
    with pytest.raises(DataLossError, match=r"no fragment has \[4, 10\)"):
        rows_of(options_of(path=tmp_path))
    rows = rows_of(options_of(path=tmp_path, failOnDataLoss="false"))
    assert [row["value"] for row in rows] == ["one", "two"]


def test_an_append_that_ends_within_a_line_is_an_error_unless_malformed_ones_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, JOURNAL, 0, [b"one\ntw"])
    with pytest.raises(CorruptError, match="no newline ends the line that begins at offset 4"):
        rows_of(options_of(path=tmp_path))
    rows = rows_of(options_of(path=tmp_path, mode="DROPMALFORMED"))
    assert [row["value"] for row in rows] == ["one"]
    assert "the rest of a piece of a fragment is dropped, as mode is DROPMALFORMED" in caplog.text
    assert "offset 4" in caplog.text


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_a_last_line_without_newline_is_an_error_in_large_fragments_too(
    tmp_path: Path, codec: CompressionCodec
) -> None:
    content = json_lines(1 << 20).rpartition(b"\n")[0] + b"\n"
    put(tmp_path, JOURNAL, 0, [content, b'{"a":1}'], codec)
    with pytest.raises(CorruptError, match=f"{JOURNAL}.*begins at offset {len(content)}"):
        values(tmp_path, isolation="read_uncommitted")
    rows = values(tmp_path, isolation="read_uncommitted", mode="DROPMALFORMED")
    assert len(rows) == content.count(b"\n")


def test_a_last_record_of_csv_without_newline_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"u,1\nu,2"])
    schema = pa.schema([("u", pa.string()), ("n", pa.int32())])
    with pytest.raises(CorruptError, match="no newline ends the record that begins at offset 4"):
        rows_of(options_of(path=tmp_path, framing="csv"), schema)
    rows = rows_of(options_of(path=tmp_path, framing="csv", mode="DROPMALFORMED"), schema)
    assert [row["n"] for row in rows] == [1]


ODD_LINES = [
    *(b"   ", b"\r", b"\t ", b'{"a":1,"b":"\xff\xfe"}', b"{oops", b"17", b"null", b'{"a":1.5}', b'{"a":"7"}'),
    *(b'{"a":7}\r', b' {"a":7} ', b'{"a":7} {"a":8}', b'{"b":"\\ud800"}', b"\x0b", b"\xef\xbb\xbf{}", b'{"a":7,"a":8}'),
]


@pytest.mark.parametrize("line", ODD_LINES)
@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_rows_do_not_depend_on_the_size_of_fragments(tmp_path: Path, line: bytes, codec: CompressionCodec) -> None:
    """Our decoder reads small ones, and DuckDB itself the files of large ones."""
    found = []
    for count in (2, FILE_BYTES_MIN // 100):
        filler = b'{"a":-1,"b":"%s"}\n' % (b"x" * 100)
        put(tmp_path / str(count), JOURNAL, 0, [filler * count, line + b"\n", filler], codec)
        rows = values(tmp_path / str(count), isolation="read_uncommitted")
        found.append([row for row in rows if row["a"] != -1])
    assert found[0] == found[1]
    assert len(found[0]) == bool(line.strip())


def test_a_journal_that_was_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"one\n"])
    with pytest.raises(ValidationError, match="acme/order'"):
        rows_of(options_of(path=tmp_path, journal="acme/order"))


def test_csv_records_are_cast_and_follow_the_mode(tmp_path: Path) -> None:
    uuid = str(build(b"\x01aaaaa", clock_at(1_700_000_000_000_000_000), 0))
    records = [csv_framing.encode([uuid, "7", "a\nb"]), b"u,seven,c\n", b"u,8\n"]
    put(tmp_path, JOURNAL, 0, records)
    schema = pa.schema([("u", pa.string()), ("n", pa.int32()), ("t", pa.string())])
    permissive = rows_of(options_of(path=tmp_path, framing="csv"), schema)
    assert [(row["n"], row["t"]) for row in permissive] == [(7, "a\nb"), (None, "c"), (8, None)]
    dropped = rows_of(options_of(path=tmp_path, framing="csv", mode="DROPMALFORMED"), schema)
    assert [row["n"] for row in dropped] == [7]


def test_protobuf_messages_are_columns_and_sequenced_by_their_uuid(tmp_path: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="order.proto", package="test", syntax="proto3").message_type.add(name="Order")
    for number, (name, of_type) in enumerate((("uuid", 12), ("amount", 1), ("note", 9), ("count", 4)), 1):
        message.field.add(name=name, number=number, type=of_type, label=1)
    descriptor = tmp_path / "orders.pb"
    descriptor.write_bytes(files.SerializeToString())
    kind: Any = message_class(str(descriptor), "test.Order")
    uuids = [
        build(b"\x01aaaaa", clock_at(1_700_000_000_000_000_000) + 16 * at, flags).bytes
        for at, flags in enumerate((0, 1, 1, 2, 1))
    ]
    payloads = [kind(uuid=uuid, amount=at, note="hi", count=1).SerializeToString() for at, uuid in enumerate(uuids)]
    put(tmp_path / "store", JOURNAL, 0, [fixed_framing.encode(payload) for payload in payloads])
    options = options_of(
        path=tmp_path / "store", framing="fixed", descriptorFile=descriptor, messageName="test.Order", uuidField="uuid"
    )
    assert [field["type"] for field in proto_schema(kind)["fields"]] == ["binary", "double", "string", "decimal(20,0)"]
    schema = pa.schema(
        [("amount", pa.float64()), ("count", pa.decimal128(20, 0)), ("_timestamp", pa.timestamp("us", "UTC"))]
    )
    rows = rows_of(options, schema)
    assert [row["amount"] for row in rows] == [0, 1, 2]
    assert rows[0]["_timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    with pytest.raises(ValidationError, match=r"it has test\.Order"):
        message_class(str(descriptor), "test.Nothing")


@pytest.mark.parametrize("cut", [None, 3, 19, 26])
def test_bytes_between_frames_are_a_malformed_record(
    tmp_path: Path, cut: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    content = fixed_framing.encode(b"one") + b"garbage!garbage!" + fixed_framing.encode(b"two") + b"!" * 20
    appends = [content] if cut is None else [content[:cut], content[cut:]]
    put(tmp_path, JOURNAL, 100, appends, SNAPPY)
    schema = pa.schema([("value", pa.binary()), ("_corrupt_record", pa.string()), ("_offset", pa.int64())])

    def read(mode: str, schema: pa.Schema = schema) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in rows_of(options_of(path=tmp_path, framing="fixed", mode=mode), schema)]

    assert read("PERMISSIVE") == [
        (b"one", None, 100),
        (None, b"garbage!garbage!".hex(), 111),
        (b"two", None, 127),
        (None, (b"!" * 20).hex(), 138),
    ]
    assert read("PERMISSIVE", pa.schema([("value", pa.string())])) == [("one",), (None,), ("two",), (None,)]
    with caplog.at_level(logging.WARNING):
        assert read("DROPMALFORMED") == [(b"one", None, 100), (b"two", None, 127)]
    assert "2 malformed records were dropped" in caplog.text
    assert read("DROPMALFORMED", schema.remove(0).remove(0)) == [(100,), (127,)]
    for failing in (schema, schema.remove(0).remove(0)):
        with pytest.raises(CorruptError, match=f"{JOURNAL} has a malformed record at offset 111"):
            read("FAILFAST", failing)


def test_long_garbage_is_one_record_of_which_the_first_bytes_are_shown(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"!" * (3 << 20), fixed_framing.encode(b"one")])
    schema = pa.schema([("value", pa.binary()), ("_corrupt_record", pa.string())])
    rows = rows_of(options_of(path=tmp_path, framing="fixed"), schema)
    assert [row["value"] for row in rows] == [None, b"one"]
    assert rows[0]["_corrupt_record"] == (b"!" * GARBAGE_BYTES_MAX).hex()


@pytest.mark.parametrize("names", [("value", "_fragment"), ("_offset", "_fragment")])
def test_however_short_lines_are_a_batch_has_not_many_more_than_another(tmp_path: Path, names: tuple[str, ...]) -> None:
    put(tmp_path, JOURNAL, 0, [b"\n" * (3 << 20)], ZSTD)
    options = options_of(path=tmp_path)
    kinds = {"value": pa.string(), "_offset": pa.int64(), "_fragment": pa.string()}
    schema = pa.schema([(name, kinds[name]) for name in names])
    counts = [
        batch.num_rows
        for task in plan_tasks(options)
        for batch in task_rows(FragmentTask.unpack(task), schema, options)
    ]
    assert sum(counts) == 3 << 20
    assert max(counts) < 2 * BATCH_ROWS


def test_a_column_that_lines_do_not_have_is_refused(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"one\n"])
    with pytest.raises(ValidationError, match="framing to json"):
        rows_of(options_of(path=tmp_path), pa.schema([("a", pa.int64())]))
    with pytest.raises(ValidationError, match="column value of type string or binary"):
        rows_of(options_of(path=tmp_path), pa.schema([("_values", pa.string())]))
    assert rows_of(options_of(path=tmp_path), LINES) == [{"value": "one", "_offset": 0}]


def test_what_was_cut_short_is_told_from_the_outside(tmp_path: Path) -> None:
    content = json_lines((1 << 20) + 1000)
    content = content[: content.rindex(b"\n") + 1]
    of, path = put(tmp_path, JOURNAL, 0, [content], ZSTD)
    assert checks_itself(of, path)
    whole = path.read_bytes()
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert not checks_itself(of, path), length
    # So does each frame: one may be the last that is left.
    of, path = put(tmp_path, JOURNAL, 0, [content] * 5, ZSTD)
    whole = path.read_bytes()
    frames = [at for at in range(len(whole)) if whole.startswith(b"\x28\xb5\x2f\xfd", at)]
    assert len(frames) == 5
    assert checks_itself(of, path)
    for length in frames[1:]:
        path.write_bytes(whole[:length])
        assert not checks_itself(of, path), length
    # One that does not tell its size, has no checksum or ends within a line is for our own decoder.
    for sized, summed in ((False, True), (True, False)):
        packer = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=summed)
        path.write_bytes(packer.compress(content * 5))
        assert not checks_itself(of, path), (sized, summed)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content * 5))
    assert checks_itself(of, path)
    of, path = put(tmp_path, JOURNAL, 0, [content, b"no newline"], ZSTD)
    assert not checks_itself(of, path)


def test_lines_are_columns_as_they_are_messages(tmp_path: Path) -> None:
    """Many at once, or, where some are no text, one by one; from fragments that share batches, or fill several."""
    part = [b"\n", "sch\u00f6n\n".encode(), b"two\rparts\n", b"\xc3\n", b"\xa9\n", b"x" * 3000 + b"\n"]
    large = [*part[:3] * 80_000, *part, *[b"\n"] * 300_000]
    begin = 0
    for number in range(8):
        of, _ = put(tmp_path, JOURNAL, begin, part if number < 5 else large, (NONE, GZIP, ZSTD)[number % 3])
        begin = of.end
    content = b"".join(5 * part + 3 * large)
    lines = content.split(b"\n")[:-1]
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))[:-1]
    expected = [{"value": line.decode(errors="replace"), "_offset": at} for line, at in zip(lines, begins, strict=True)]
    options = options_of(path=tmp_path)
    assert rows_of(options, LINES) == expected
    raw = rows_of(options, pa.schema([("value", pa.binary()), ("_timestamp", pa.timestamp("us", "UTC"))]))
    assert raw == [{"value": line, "_timestamp": None} for line in lines]
    assert [row["_offset"] for row in rows_of(options, pa.schema([("_offset", pa.int64())]))] == begins
    for name, kind, of_lines in (
        ("_offsets", pa.int64(), begins),
        ("_values", pa.string(), [row["value"] for row in expected]),
        ("_values", pa.binary(), lines),
    ):
        many = rows_of(options, pa.schema([(name, pa.list_(kind)), ("_journal", pa.string())]))
        assert [line for row in many for line in row[name]] == of_lines
        assert {row["_journal"] for row in many} == {JOURNAL}


def test_copies_of_objects_are_on_a_disk() -> None:
    assert local_folder({"SPARK_LOCAL_DIRS": "/tmp"}, "tmpfs /tmp tmpfs rw 0 0\n") == "/var/tmp"
    assert local_folder({"SPARK_LOCAL_DIRS": "/tmp"}, "/dev/vda / ext4 rw 0 0\n") == "/tmp"


def test_offsets_of_a_journal_that_is_not_read_are_a_mistake(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [b"one\n"])
    with pytest.raises(ValidationError, match="startingOffsets"):
        rows_of(options_of(path=tmp_path, startingOffsets='{"acme/order": 0}'))
