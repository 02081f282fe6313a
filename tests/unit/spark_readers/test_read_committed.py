"""Gazette's own vectors of sequencing, as fragments that are read by many tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import spark_readers.task_rows
from consumer.message.message_uuid import Flags, MessageUUID, build, parse_text
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from protocol.fragment import Fragment
from spark_readers.clock_summary import ProducerCarry, Stretch
from spark_readers.fragment_access import FragmentAccess
from spark_readers.fragment_task import FragmentTask
from spark_readers.row_buffer import BATCH_BYTES, SLICE_BYTES
from spark_readers.scan import plan_tasks
from spark_readers.uuid_extract import JsonUuids, parsed_uuid
from tests.support.fragment_bag import options_of, put, rows_of, rows_of_tasks
from tests.support.golden import Case, case_id, cases
from tests.support.stretches import sieved

NUMBERS = pa.schema([("n", pa.int64())])
PLACES = pa.schema([("_journal", pa.string()), ("_offset", pa.int64())])


def delivered(case: Case) -> set[int]:
    """Without acknowledgements, which are no data."""
    acks = {of["n"] for of in case["messages"] if of["flags"] == Flags.ACK_TXN and of["clock"]}
    return {n for of in case["messages"] for n in of["delivered"]} - acks


def differs(case: Case) -> bool:
    """Whether a scan is to deliver something else, for one of two reasons.

    A checkpoint within the case drops producers that fell silent: a scan has none, and forgets nobody. Or Gazette, when
    it reads messages again, delivers those without a Clock a second time and others with them, which is its mistake.
    """
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


def test_all_vectors_apply_but_those_of_which_a_scan_differs() -> None:
    assert (len(SEQUENCES), len(cases("uuids", "sequence"))) == (103, 112)


@pytest.mark.parametrize("case", SEQUENCES, ids=case_id)
def test_vectors_of_gazette_go_through_the_sieve(case: Case) -> None:
    found: set[int] = set()
    for journal in {of["journal"] for of in case["messages"]}:
        carry = {
            bytes.fromhex(of["producer"]): ProducerCarry(of["last_ack"], of["last_ack"])
            for of in case["initial_producers"]
            if of["journal"] == journal
        }
        messages = [
            (of["n"], MessageUUID(bytes.fromhex(of["producer"]), of["clock"], of["flags"]))
            for of in case["messages"]
            if of["journal"] == journal
        ]
        found.update(sieved(messages, carry, {}))
    assert found == delivered(case)


def past_of(case: Case, journal: str) -> list[tuple[str, int | None]]:
    """Acknowledgements that leave producers where the case finds them: a scan takes no state, it has to read one."""
    found: list[tuple[str, int | None]] = []
    for of in case["initial_producers"]:
        if of["journal"] == journal:
            assert of["begin"] == -1, "a transaction that is open would have to be read as well"
            found.append((str(build(bytes.fromhex(of["producer"]), of["last_ack"], Flags.ACK_TXN)), None))
    return found


@pytest.mark.parametrize("case", SEQUENCES, ids=case_id)
def test_vectors_of_gazette_go_through_fragments_and_tasks(case: Case, tmp_path: Path) -> None:
    places: dict[tuple[str, int], int | None] = {}
    for journal in {of["journal"] for of in case["messages"]}:
        begin = case["initial_offsets"].get(journal, 0)
        messages = past_of(case, journal)
        messages += [(of["uuid"], of["n"]) for of in case["messages"] if of["journal"] == journal]
        for number, (uuid, n) in enumerate(messages):
            line = json.dumps({"_meta": {"uuid": uuid}, "n": n, "pad": "x" * 400}).encode() + b"\n"
            codec = list(CompressionCodec)[1 + number % 5]
            put(tmp_path, journal, begin, [line], codec)
            places[journal, begin] = n
            begin += len(line)
    given = {"path": tmp_path, "framing": "json", "uuidField": "_meta.uuid", "splitSize": "1k"}
    # Not their columns, which would take most of the time.
    rows = [(row["_journal"], row["_offset"]) for row in rows_of(options_of(**given), PLACES)]
    assert len(rows) == len(set(rows))
    assert {places[row] for row in rows} == delivered(case)
    uncommitted = rows_of(options_of(**given, isolation="read_uncommitted"), PLACES)
    assert [(row["_journal"], row["_offset"]) for row in uncommitted] == sorted(places)


def line(n: int, clock: int, flags: int, producer: str = "010000000001", pad: str = "") -> bytes:
    uuid = f"{clock >> 4 & 0xFFFFFFFF:08x}-0000-1000-8{clock & 0xF:x}{flags:02x}-{producer}"
    # The lower four bits of a Clock are six bits into the sequence: kept at zero here.
    assert clock & 0xF == 0
    return json.dumps({"UUID": uuid, "n": n, "pad": pad}).encode() + b"\n"


def test_what_waits_is_bounded_and_looked_for_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", 100)
    begin = 0
    for n, (clock, flags) in enumerate([(160, 1), (176, 1), (192, 1), (176, 2), (208, 1), (224, 1)]):
        content = [line(n, clock, flags)]
        put(tmp_path, "acme/orders", begin, content)
        begin += len(content[0])
    rows = rows_of(options_of(path=tmp_path, framing="json"), NUMBERS)
    assert sorted(row["n"] for row in rows) == [0, 1]


def test_a_run_is_looked_through_once_however_often_messages_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", 300_000)
    pad = "x" * 23_000
    messages, clock = [], 16
    for transaction in range(10):
        for n in range(100):
            clock += 16
            messages.append(line(100 * transaction + n, clock, 1, pad=pad))
            # Another producer, whose transactions are short.
            messages.append(line(-1, clock, n % 2 + 1, "030000000003"))
        clock += 16
        # Each second one is rolled back.
        messages.append(line(-2, clock if transaction % 2 else 16, 2))
    put(tmp_path, "acme/orders", 0, [b"".join(messages)], CompressionCodec.GZIP)
    reads: list[int] = []
    content = FragmentAccess.content

    def counted(self: FragmentAccess, of: Fragment, begin: int, end: int, piece_bytes: int) -> Iterator[bytes]:
        reads.append(begin)
        return content(self, of, begin, end, piece_bytes)

    monkeypatch.setattr(FragmentAccess, "content", counted)
    rows = rows_of(options_of(path=tmp_path, framing="json"), NUMBERS)
    numbers = sorted(row["n"] for row in rows if row["n"] >= 0)
    assert numbers == [n for n in range(1000) if n // 100 % 2]
    assert len(reads) == 2
    assert reads[1] > 0


def test_what_a_stream_owes_is_read_without_looking_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the transaction was committed is why it is read again."""
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", 1000)
    of, _ = put(tmp_path, "acme/orders", 0, [line(n, 16 * n + 160, 1, pad="x" * 200_000) for n in range(20)])
    options = options_of(path=tmp_path, framing="json")
    (run,) = FragmentTask.unpack(plan_tasks(options)[0]).runs
    producer = bytes.fromhex("010000000001")
    stretch = Stretch({producer: ProducerCarry(159, 16 * 19 + 160, 0)}, {producer: 16 * 9 + 160})
    opened: list[int] = []
    content = FragmentAccess.content

    def counted(self: FragmentAccess, of: Fragment, begin: int, end: int, piece_bytes: int) -> Iterator[bytes]:
        opened.append(begin)
        return content(self, of, begin, end, piece_bytes)

    monkeypatch.setattr(FragmentAccess, "content", counted)
    task = FragmentTask((replace(run, stretch=stretch, replays=True),))
    assert [row["n"] for row in rows_of_tasks([task], options, NUMBERS)] == [*range(10)]
    assert opened == [of.begin]


@pytest.mark.parametrize("mib", [1, 40])
def test_batches_are_bounded_in_whatever_order_messages_are_delivered(tmp_path: Path, mib: int) -> None:
    """A transaction comes after what others wrote meanwhile, so that offsets go back: they do not measure anything."""
    pad = "x" * 4000
    clock = 160
    messages = [line(0, clock, 1, pad=pad)]
    for n in range(mib * 250):
        clock += 16
        messages.append(line(n, clock, 1, pad=pad))
        if n % 1000 == 999:
            messages.append(line(n, clock, 0, "030000000003"))
    messages.append(line(0, clock + 16, 2))
    put(tmp_path, "acme/orders", 0, [b"".join(messages)], CompressionCodec.GZIP)
    options = options_of(path=tmp_path, framing="json")
    (task,) = plan_tasks(options)
    sizes = [
        batch.nbytes
        for batch in spark_readers.task_rows.task_rows(
            FragmentTask.unpack(task), pa.schema([("pad", pa.string())]), options
        )
    ]
    assert sum(sizes) >= mib * 250 * 4000
    assert max(sizes) <= BATCH_BYTES + SLICE_BYTES + 10_000


@pytest.mark.parametrize("split", ["1m", "2m", "3m", "5m"])
def test_looking_ahead_reaches_the_end_of_an_append_that_a_piece_was_cut_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """A piece of a zstandard fragment goes on to where the next append begins, far beyond where it was cut."""
    chance = random.Random(0)
    messages = []
    for n in range(1, 1501):
        is_ack = n % 100 == 0
        messages.append(line(n, 16 * n, 2 if is_ack else 1, pad=chance.randbytes(3000).hex()))
    appends = [b"".join(messages[at : at + 500]) for at in range(0, len(messages), 500)]
    put(tmp_path, "acme/orders", 0, appends, CompressionCodec.ZSTANDARD)
    options = options_of(path=tmp_path, framing="json", splitSize=split)
    assert len(plan_tasks(options)) > 1
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", 200_000)
    rows = rows_of(options, NUMBERS)
    assert sorted(row["n"] for row in rows) == [n for n in range(1, 1501) if n % 100]


@pytest.mark.parametrize("split", ["1k", "128m"])
@pytest.mark.parametrize("waiting_max", [100, 1 << 20])
def test_a_bad_fragment_is_left_out_however_many_tasks_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, waiting_max: int
) -> None:
    """By the driver that plans, by the task that reads, and by the task that looks ahead: they agree on the rest."""
    monkeypatch.setattr(spark_readers.task_rows, "WAITING_BYTES_MAX", waiting_max)
    begin = 0
    paths = []
    for n, flags in enumerate([1, 1, 1, 2, 1]):
        content = [line(n, 160 + 16 * n, flags, pad="x" * 900)]
        of, path = put(tmp_path, "acme/orders", begin, content, CompressionCodec.GZIP)
        begin = of.end
        paths.append(path)
    bad = paths[1]
    bad.write_bytes(bad.read_bytes()[:-5])
    given = {"path": tmp_path, "framing": "json", "splitSize": split}
    with pytest.raises(CorruptError, match=bad.name):
        rows_of(options_of(**given), NUMBERS)
    assert [row["n"] for row in rows_of(options_of(**given, failOnDataLoss="false"), NUMBERS)] == [0, 2]


def test_a_task_is_told_of_the_producers_it_reads_and_of_no_others(tmp_path: Path) -> None:
    """Every task of a job that writes is a producer: told of all before it, tasks would outgrow the journal."""
    begin = 0
    for n in range(40):
        # One of its own that leaves its transaction open, one that commits, and one that is in every fragment.
        content = [
            line(n, 160, 1, f"01{n:010x}", pad="x" * 900),
            line(n, 160, 0, f"03{n:010x}"),
            line(n, 160 + 16 * n, 1, "050000000001"),
        ]
        of, _ = put(tmp_path, "acme/orders", begin, content)
        begin = of.end
    put(tmp_path, "acme/orders", begin, [line(40, 1600, 2, "050000000001"), line(41, 176, 2, "010000000000")])
    options = options_of(path=tmp_path, framing="json", splitSize="1k")
    runs = [run for task in plan_tasks(options) for run in FragmentTask.unpack(task).runs]
    assert len(runs) > 40
    assert max(len(run.stretch.carry) for run in runs) <= 3
    assert max(len(run.stretch.settlement) for run in runs) <= 2
    rows = rows_of(options, NUMBERS)
    assert sorted(row["n"] for row in rows) == sorted([*range(40), *range(40), 0])


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
    extract = JsonUuids(("_meta", "uuid"))
    text = "83fc2f95-cc5f-11e9-8401-0b1122334455"
    known = parse_text(text)
    forms = [text, text.upper(), "{" + text + "}", text.replace("-", ""), text]
    lines = [json.dumps({"a": [1], "_meta": {"uuid": form}}).encode() for form in forms]
    assert extract(lines).to_list() == [known] * 5
    assert extract(lines[:2]).to_list() == [known] * 2
    nothing = [
        b"{}",
        b"",
        b"[1]",
        b'{"_meta":null}',
        b'{"_meta":{"uuid":null}}',
        b'{"_meta":{"uuid":7}}',
        b'{"_meta":7}',
    ]
    assert extract(nothing).to_list() == [None] * len(nothing)
    assert extract([lines[0], b"{}", lines[0]]).to_list() == [known, None, known]
    assert extract([]).to_list() == []
    for spoilt in (
        "83fc2f9 -cc5f-11e9-8401-0b1122334455",
        "83fc2f95-cc5f-11e9-8401-0b112233445",
        text[:-1] + "g",
        "x" * 18 + text[18:],
    ):
        assert parsed_uuid(spoilt) is None
        assert extract([lines[0], json.dumps({"_meta": {"uuid": spoilt}}).encode()]).to_list() == [known, None]
    assert parsed_uuid(text) == known


def test_as_many_records_as_lines_are_not_always_one_each() -> None:
    """Two in one line and a blank one, or a record that goes on in the next line, must not lend UUIDs to others."""
    extract = JsonUuids(("UUID",))
    whole = [line(n, 16 * n, 1)[:-1] for n in range(1, 6)]
    known = extract(whole).to_list()
    assert None not in known
    assert extract([whole[0] + whole[1], whole[2], b"", whole[3]]).to_list() == [None, known[2], None, known[3]]
    broken = whole[0].replace(b', "n"', b',\n"n"').split(b"\n")
    assert len(broken) == 2
    lines = [*broken, whole[1] + whole[2], whole[3]]
    assert extract(lines).to_list() == [None, None, None, known[3]]
