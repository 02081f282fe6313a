from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumer.message import csv_framing
from consumer.message.frame import Frame
from consumer.message.framing import Framing
from consumer.message.mapping import Partitions
from consumer.message.message_uuid import Flags, clock_at, parse_bytes, parse_text
from protocol.errors import ValidationError
from spark_readers.proto_stamp import ProtoStamp
from spark_readers.row_framing import HELD_BYTES_MAX, PIECE_BYTES, RowFraming, acknowledgement
from spark_readers.sink_options import SinkOptions
from spark_readers.uuid_extract import csv_uuids
from tests.support.order_messages import order_class

PRODUCER = bytes.fromhex("0b1122334455")
NOW = 1_800_000_000_000_000_000
ONE = {"journal": "acme/orders"}


def framing_of(batch: pa.RecordBatch, given: dict[str, str], stamp: ProtoStamp | None = None) -> RowFraming:
    columns = {field.name: _spark_type(field.type) for field in batch.schema}
    options = SinkOptions.of({"broker": "localhost:8080", **given}, columns)
    return RowFraming(options, options.journals, PRODUCER, stamp)


def _spark_type(kind: pa.DataType) -> str:
    return "struct" if pa.types.is_struct(kind) else str(kind)


def framed(rows: list[dict[str, Any]] | pa.RecordBatch, given: dict[str, str] = ONE) -> dict[str, bytes]:
    batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(rows)
    framing = framing_of(batch, given)
    written: dict[str, bytes] = {}
    for journal, piece in [*framing.feed(batch, NOW), *framing.end()]:
        written[journal] = written.get(journal, b"") + piece
    assert {journal: of.bytes for journal, of in framing.writes.items()} == {
        journal: len(content) for journal, content in written.items()
    }
    return written


def documents(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def test_a_row_is_a_document_with_a_uuid_of_the_transaction() -> None:
    first, second = documents(framed([{"order": 1, "who": "A & B"}, {"order": 2, "who": None}])["acme/orders"])
    assert list(first) == ["UUID", "order", "who"]
    assert first["who"] == "A & B"
    # As to_json has it: what is null is not there.
    assert list(second) == ["UUID", "order"]
    uuids = [parse_text(document["UUID"]) for document in (first, second)]
    assert [(uuid.producer, uuid.flags) for uuid in uuids] == [(PRODUCER, Flags.CONTINUE_TXN)] * 2
    assert clock_at(NOW) < uuids[0].clock < uuids[1].clock


def test_a_uuid_may_be_nested_and_replaces_the_one_a_row_brings_along() -> None:
    rows = [{"_meta": {"uuid": "old", "op": "c"}, "n": 1}, {"_meta": None, "n": 2}]
    for document in documents(framed(rows, {**ONE, "uuidField": "_meta.uuid"})["acme/orders"]):
        assert parse_text(document["_meta"]["uuid"]).producer == PRODUCER
    (flat,) = documents(framed([{"UUID": "old", "n": 1}])["acme/orders"])
    assert parse_text(flat["UUID"]).producer == PRODUCER


def test_values_are_spelled_as_sparks_to_json_spells_them() -> None:
    moment = datetime(2026, 11, 16, 22, 5, 6, 7, UTC)
    batch = pa.RecordBatch.from_pydict(
        {
            "at": pa.array([moment], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
            "day": pa.array([date(2026, 11, 16)]),
            "price": pa.array([Decimal("12345678901234567890.10")], pa.decimal128(38, 2)),
            "raw": pa.array([b"\x00\xff"]),
            "ratio": pa.array([float("nan")]),
            "nested": pa.array([{"at": [moment], "none": None}], pa.struct([
                ("at", pa.list_(pa.timestamp("us", "UTC"))), ("none", pa.int32())])),
            "map": pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())),
        }
    )  # fmt: skip
    (document,) = documents(framed(batch)["acme/orders"])
    del document["UUID"]
    assert document == {
        "at": "2026-11-16T22:05:06.000007Z",
        "local": "2026-11-16T22:05:06.000007",
        "day": "2026-11-16",
        "price": "12345678901234567890.10",
        "raw": "AP8=",
        "ratio": "NaN",
        "nested": {"at": ["2026-11-16T22:05:06.000007Z"]},
        "map": {"a": 1.5},
    }


def test_large_types_are_as_good_as_others() -> None:
    """Spark sends them where it is told to."""
    batch = pa.RecordBatch.from_pydict(
        {"t": pa.array(["a"], pa.large_string()), "b": pa.array([b"a"], pa.large_binary())}
    )
    (document,) = documents(framed(batch)["acme/orders"])
    assert (document["t"], document["b"]) == ("a", "YQ==")


def test_a_type_that_has_no_spelling_is_refused_by_its_column() -> None:
    with pytest.raises(ValidationError, match=r"^took: .*cast the column to string"):
        framed([{"took": timedelta(seconds=1)}])


@pytest.mark.parametrize("field", ["UUID", "_meta.uuid"])
def test_documents_that_are_texts_already_get_a_uuid_and_stay_as_they_are(field: str) -> None:
    texts = ['{"price": 1.10}', " {} ", '{"UUID":"old","_meta":{"uuid":"old","k":1},"n":2}']
    content = framed([{"doc": text} for text in texts], {**ONE, "jsonColumn": "doc", "uuidField": field})["acme/orders"]
    assert b'"price": 1.10}\n' in content
    path = field.split(".")
    for document in documents(content):
        found: Any = document
        for name in path:
            found = found[name]
        assert parse_text(found).producer == PRODUCER
    assert documents(content)[2]["n"] == 2


@pytest.mark.parametrize("text", ["[1]", '{"a":\n1}', "", "{", None])
def test_a_text_that_is_no_object_in_one_line_is_refused(text: str | None) -> None:
    batch = pa.RecordBatch.from_pydict({"doc": pa.array([text], pa.string())})
    with pytest.raises(ValidationError, match="doc"):
        framed(batch, {**ONE, "jsonColumn": "doc"})


def test_framings_without_uuids_write_values_as_they_are() -> None:
    assert framed([{"value": "a"}, {"value": "b"}], {**ONE, "framing": "lines"}) == {"acme/orders": b"a\nb\n"}
    assert framed([{"value": b"a"}, {"value": b"b\n"}], {**ONE, "framing": "bytes"}) == {"acme/orders": b"ab\n"}
    fixed = framed([{"value": bytes.fromhex("089601")}], {**ONE, "framing": "fixed"})
    assert fixed["acme/orders"].hex() == "6633933603000000089601"
    with pytest.raises(ValidationError, match="newline"):
        framed([{"value": "a\nb"}], {**ONE, "framing": "lines"})


def test_a_csv_record_begins_with_its_uuid() -> None:
    rows = [{"n": 1, "t": "a,b", "ok": True}, {"n": None, "t": None, "ok": False}]
    records = framed(rows, {**ONE, "framing": "csv"})["acme/orders"].splitlines()
    assert [record.partition(b",")[2] for record in records] == [b'1,"a,b",true', b",,false"]
    uuids = csv_uuids(records).to_list()
    assert uuids == [parse_text(record[:36].decode()) for record in records]
    assert [(uuid.producer, uuid.flags) for uuid in uuids if uuid] == [(PRODUCER, Flags.CONTINUE_TXN)] * 2
    # Also where nothing else is in it.
    (record,) = framed([{"t": ""}], {**ONE, "framing": "csv"})["acme/orders"].splitlines()
    assert len(csv_framing.parse(record, None)) == 2
    with pytest.raises(ValidationError, match=r"^l: .*to_json"):
        framed([{"l": [1]}], {**ONE, "framing": "csv"})


def test_a_protobuf_message_gets_its_uuid_and_keeps_the_rest(tmp_path: Path) -> None:
    kind = order_class(tmp_path)
    rows = [{"value": kind(uuid=b"old", key="hi").SerializeToString()}, {"value": b""}]
    batch = pa.RecordBatch.from_pylist(rows)
    given = {**ONE, "framing": "fixed", "descriptorFile": "unused", "messageName": "test.Order", "uuidField": "uuid"}
    framing = framing_of(batch, given, ProtoStamp(kind, ("uuid",)))
    content = b"".join(piece for pieces in (framing.feed(batch, NOW), framing.end()) for _, piece in pieces)
    frames = [frame for frame in Framing.FIXED.decoder().feed(content) if isinstance(frame, Frame)]
    messages = [kind.FromString(frame.payload) for frame in frames]
    uuids = [parse_bytes(message.uuid) for message in messages]
    assert [message.key for message in messages] == ["hi", ""]
    assert [(uuid.producer, uuid.flags) for uuid in uuids] == [(PRODUCER, Flags.CONTINUE_TXN)] * 2
    writes = framing.writes["acme/orders"]
    assert (writes.first_clock, writes.last_clock) == (uuids[0].clock, uuids[1].clock)
    # Readers would take it for a message without a UUID, which counts at once.
    spoilt = pa.RecordBatch.from_pylist([{"value": b"\xff"}])
    with pytest.raises(ValidationError, match=r"^value: .*no test\.Order"):
        list(framing.feed(spoilt, NOW))


@pytest.mark.parametrize("mapping", ["modulo", "rendezvous"])
def test_keys_go_where_gazette_sends_them(mapping: str) -> None:
    journals = ["acme/part-0", "acme/part-1", "acme/part-2"]
    rows = [{"key": f"k{n}", "n": n} for n in range(50)]
    given = {"journals": ",".join(journals), "keyColumn": "key", "mapping": mapping}
    written = framed(rows, given)
    assert set(written) == set(journals)
    for journal, content in written.items():
        for document in documents(content):
            assert getattr(Partitions(journals), mapping)(document["key"].encode()) == journal
    numbers = framed([{"key": n} for n in range(9)], given)
    assert all(
        getattr(Partitions(journals), mapping)(str(document["key"]).encode()) == journal
        for journal, content in numbers.items()
        for document in documents(content)
    )


def test_a_column_may_name_the_journal_and_is_not_written_itself() -> None:
    rows = [{"to": "acme/a", "n": 1}, {"to": "acme/b", "n": 2}, {"to": "acme/a", "n": 3}]
    written = framed(rows, {"journalColumn": "to"})
    found = {journal: [set(d) - {"UUID"} for d in documents(content)] for journal, content in written.items()}
    assert found == {"acme/a": [{"n"}, {"n"}], "acme/b": [{"n"}]}
    with pytest.raises(ValidationError, match="journalColumn"):
        framed([{"to": "no such//name", "n": 1}], {"journalColumn": "to"})
    with pytest.raises(ValidationError, match=r"^to: .*coalesce"):
        framed([{"to": "acme/a", "n": 1}, {"to": None, "n": 1}], {"journalColumn": "to"})


def test_a_row_must_not_name_the_journal_of_commits() -> None:
    """It is not known before the row comes."""
    transaction = {"txnAppId": "daily", "txnVersion": "1", "commitJournal": "acme/commits"}
    rows = [{"to": "acme/a", "n": 1}, {"to": "acme/commits", "n": 2}]
    with pytest.raises(ValidationError, match=r"^to: a row goes to acme/commits, .*another commitJournal"):
        framed(rows, {"journalColumn": "to", **transaction})
    assert set(framed(rows, {"journalColumn": "to"})) == {"acme/a", "acme/commits"}


def test_clocks_ascend_over_batches_even_if_the_time_does_not() -> None:
    batch = pa.RecordBatch.from_pylist([{"n": n} for n in range(3)])
    framing = framing_of(batch, ONE)
    content = b"".join(
        piece
        for pieces in (framing.feed(batch, NOW), framing.feed(batch, NOW - 10**9), framing.end())
        for _, piece in pieces
    )
    clocks = [parse_text(document["UUID"]).clock for document in documents(content)]
    assert len(clocks) == 6
    assert clocks == sorted(set(clocks))
    writes = framing.writes["acme/orders"]
    assert (writes.first_clock, writes.last_clock, writes.rows) == (clocks[0], clocks[-1], 6)


def test_no_more_is_held_than_is_allowed_and_pieces_are_whole_messages() -> None:
    journals = [f"acme/part-{n:02}" for n in range(40)]
    rows = [{"key": f"k{n}", "fill": "x" * 5000} for n in range(8000)]
    batch = pa.RecordBatch.from_pylist(rows)
    framing = framing_of(batch, {"journals": ",".join(journals), "keyColumn": "key"})
    handed_out = held_max = 0
    for _, piece in framing.feed(batch, NOW):
        assert piece.endswith(b"}\n")
        handed_out += len(piece)
        held_max = max(held_max, sum(of.bytes for of in framing.writes.values()) - handed_out)
    assert held_max < HELD_BYTES_MAX + 2 * 1024 * 5200
    assert held_max > PIECE_BYTES


def test_an_acknowledgement_is_a_message_of_nothing_but_its_uuid(tmp_path: Path) -> None:
    uuid = (PRODUCER, clock_at(NOW), Flags.ACK_TXN)

    def ack(stamp: ProtoStamp | None = None, **given: str) -> bytes:
        options = SinkOptions.of({"broker": "localhost:8080", **ONE, **given}, {"value": "binary", "t": "string"})
        return acknowledgement(options, PRODUCER, clock_at(NOW), stamp)

    document = json.loads(ack(uuidField="_meta.uuid"))
    assert parse_text(document["_meta"]["uuid"]) == uuid
    assert list(document) == ["_meta"]
    first, *others = csv_framing.parse(ack(framing="csv"), None)
    assert (parse_text(first), others) == (uuid, ["", ""])
    kind = order_class(tmp_path)
    frame = ack(ProtoStamp(kind, ("uuid",)), framing="fixed", descriptorFile="unused", messageName="test.Order")
    (found,) = Framing.FIXED.decoder().feed(frame)
    assert isinstance(found, Frame)
    assert [(of.name, parse_bytes(value)) for of, value in kind.FromString(found.payload).ListFields()] == [
        ("uuid", uuid)
    ]
