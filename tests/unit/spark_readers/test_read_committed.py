"""Gazette's own vectors of sequencing, as fragments that are read by many tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import spark_readers.task_rows
from consumer.message.message_uuid import Flags, MessageUUID, parse_text
from protocol.codec import CompressionCodec
from spark_readers.clock_summary import ProducerCarry
from spark_readers.commit_sieve import sieved
from spark_readers.uuid_extract import json_extractor, parsed_uuid
from tests.support.fragment_bag import options_of, put, rows_of
from tests.support.golden import Case, case_id, cases

NUMBERS = pa.schema([("n", pa.int64())])


def delivered(case: Case) -> set[int]:
    """Without acknowledgements, which are no data."""
    acks = {of["n"] for of in case["messages"] if of["flags"] == Flags.ACK_TXN and of["clock"]}
    return {n for of in case["messages"] for n in of["delivered"]} - acks


def differs(case: Case) -> bool:
    """Whether a checkpoint within the case drops producers that fell silent. A scan has none, and forgets nobody."""
    # Nor does it repeat Gazette's mistake of delivering messages without a Clock twice, and others with them.
    if any(message.get("zero_clock_in_replay") for message in case["messages"]):
        return True
    known = {(of["journal"], of["producer"]) for of in case["initial_producers"]}
    for message in case["messages"]:
        if message["clock"]:
            known.add((message["journal"], message["producer"]))
        kept = {(of["journal"], of["producer"]) for of in message.get("checkpoint", {}).get("producers", [])}
        if "checkpoint" in message and kept < known:
            return True
    return False


SEQUENCES = [case for case in cases("uuids", "sequence") if not differs(case)]


def test_most_vectors_apply() -> None:
    assert len(SEQUENCES) > 75


@pytest.mark.parametrize("case", SEQUENCES, ids=case_id)
def test_vectors_of_gazette_go_through_the_sieve(case: Case) -> None:
    found: set[int] = set()
    for journal in {of["journal"] for of in case["messages"]}:
        carry = {
            bytes.fromhex(of["producer"]): ProducerCarry(of["last_ack"], of["last_ack"])
            for of in case["initial_producers"]
            if of["journal"] == journal
        }
        messages: list[tuple[MessageUUID | None, int]] = [
            (MessageUUID(bytes.fromhex(of["producer"]), of["clock"], of["flags"]), of["n"])
            for of in case["messages"]
            if of["journal"] == journal
        ]
        found.update(sieved(messages, carry, {}))
    assert found == delivered(case)


WITHOUT_PAST = [case for case in SEQUENCES if not case["initial_producers"]]


@pytest.mark.parametrize("case", WITHOUT_PAST[:40], ids=case_id)
def test_vectors_of_gazette_go_through_fragments_and_tasks(case: Case, tmp_path: Path) -> None:
    for journal in {of["journal"] for of in case["messages"]}:
        begin = case["initial_offsets"].get(journal, 0)
        for number, of in enumerate(message for message in case["messages"] if message["journal"] == journal):
            line = json.dumps({"_meta": {"uuid": of["uuid"]}, "n": of["n"], "pad": "x" * 400}).encode() + b"\n"
            codec = list(CompressionCodec)[1 + number % 5]
            put(tmp_path, journal, begin, [line], codec)
            begin += len(line)
    given = {"path": tmp_path, "framing": "json", "uuidField": "_meta.uuid", "splitSize": "1k"}
    rows = [row["n"] for row in rows_of(options_of(**given), NUMBERS)]
    assert len(rows) == len(set(rows))
    assert set(rows) == delivered(case)
    uncommitted = rows_of(options_of(**given, isolation="read_uncommitted"), NUMBERS)
    assert len(uncommitted) == len(case["messages"])


def line(n: int, clock: int, flags: int, producer: str = "010000000001") -> bytes:
    uuid = f"{clock >> 4 & 0xFFFFFFFF:08x}-0000-1000-8{clock & 0xF:x}{flags:02x}-{producer}"
    # The lower four bits of a Clock are six bits into the sequence: kept at zero here.
    assert clock & 0xF == 0
    return json.dumps({"UUID": uuid, "n": n}).encode() + b"\n"


def test_what_waits_is_bounded_and_looked_for_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", 100)
    begin = 0
    for n, (clock, flags) in enumerate([(160, 1), (176, 1), (192, 1), (176, 2), (208, 1), (224, 1)]):
        content = [line(n, clock, flags)]
        put(tmp_path, "acme/orders", begin, content)
        begin += len(content[0])
    rows = rows_of(options_of(path=tmp_path, framing="json"), NUMBERS)
    assert sorted(row["n"] for row in rows) == [0, 1]


def test_records_without_a_uuid_are_delivered_as_they_are(tmp_path: Path) -> None:
    content = [b'{"n":1}\n', b'{"UUID":"what?","n":2}\n', b'{"UUID":7,"n":3}\n', line(4, 160, 1)]
    put(tmp_path, "acme/orders", 0, content)
    rows = rows_of(options_of(path=tmp_path, framing="json"), NUMBERS)
    assert [row["n"] for row in rows] == [1, 2, 3]


def test_where_narrows_rows_down_but_not_what_commits_them(tmp_path: Path) -> None:
    first = [line(0, 160, 1), line(1, 176, 1)]
    put(tmp_path, "acme/orders", 0, first, postfix="date=2026-11-16")
    second = [line(2, 192, 1), line(3, 208, 2)]
    put(tmp_path, "acme/orders", len(b"".join(first)), second, postfix="date=2026-11-17")
    where = json.dumps({"date": "2026-11-16"})
    rows = rows_of(options_of(path=tmp_path, framing="json", where=where), NUMBERS)
    assert [row["n"] for row in rows] == [0, 1]


def test_a_uuid_is_found_wherever_it_is_and_however_it_is_written() -> None:
    extract = json_extractor(("_meta", "uuid"))
    text = "83fc2f95-cc5f-11e9-8401-0b1122334455"
    known = parse_text(text)
    forms = [text, text.upper(), "{" + text + "}", text.replace("-", ""), text]
    assert extract([json.dumps({"a": [1], "_meta": {"uuid": form}}).encode() for form in forms]) == [known] * 5
    nothing = [
        b"{}",
        b"",
        b"[1]",
        b'{"_meta":null}',
        b'{"_meta":{"uuid":null}}',
        b'{"_meta":{"uuid":7}}',
        b'{"_meta":7}',
    ]
    assert extract(nothing) == [None] * len(nothing)
    for spoilt in (
        "83fc2f9 -cc5f-11e9-8401-0b1122334455",
        "83fc2f95-cc5f-11e9-8401-0b112233445",
        text[:-1] + "g",
        "x" * 18 + text[18:],
    ):
        assert parsed_uuid(spoilt) is None
    assert parsed_uuid(text) == known
