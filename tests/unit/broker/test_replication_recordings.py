"""What Gazette's brokers said to each other on Replicate, and what our replica answers to the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from broker.replica import Replica
from broker.replication import Replication
from broker.replication_message import Answer, Content, Propose
from broker.replication_wire import decode, decode_answer, encode_answer
from broker.resolution import MisdirectedError, Resolution, Wanted
from protocol.errors import GazetteError, Status, ValidationError
from protocol.route import Header, ProcessId, Route
from tests.support.broker_cores import MemorySpool, replica_of
from tests.support.driven_replication import Port
from tests.support.golden import GOLDEN
from tests.support.recording import Row


def conversations(name: str, method: str = "/protocol.Journal/Replicate") -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    with (GOLDEN / "live" / "wire" / f"{name}.jsonl").open(encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            if row["method"] == method:
                found.setdefault(row["conv"], []).append(row)
    return found


GO = ProcessId("zone-b", "go-1")
GO_CLUSTER = 12101053776118486841


class RecordedBroker:
    """The recorded replica: its replicas by journal, and how it resolves."""

    def __init__(self, own_id: ProcessId, journals: frozenset[str] | None) -> None:
        self.own_id = own_id
        self.journals = journals
        self.replicas: dict[str, Replica[bytearray]] = {}
        # What the recorded broker knew: the Route that most streams are opened with.
        self.route: Route | None = None

    def resolve(self, wanted: Wanted) -> Resolution | GazetteError:
        header = wanted.header
        assert header is not None
        if header.etcd.cluster_id != GO_CLUSTER:
            return MisdirectedError("another cluster")
        if header.process_id != self.own_id:
            return MisdirectedError("another broker")
        if self.route is None:
            self.route = header.route
        mine = Header(self.own_id, self.route, header.etcd)
        if self.journals is not None and wanted.journal not in self.journals:
            return Resolution(Status.JOURNAL_NOT_FOUND, replace(mine, route=Route()), self.own_id)
        if wanted.journal not in self.replicas:
            self.replicas[wanted.journal] = replica_of(MemorySpool(wanted.journal))
        return Resolution(Status.OK, mine, self.own_id, replica=self.replicas[wanted.journal])


@dataclass(slots=True)
class WirePort(Port):
    broker: RecordedBroker | None = None

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        assert self.broker is not None
        done(self.broker.resolve(wanted))
        return lambda: None


class Replay:
    """The `>` rows of one conversation, fed to our core.

    Where Go keeps a stream after a commit that does not fit, ours ends: the primary could not tell that later appends
    are lost. The replay then goes on with another stream, on which what was pending is sent again.
    """

    def __init__(self, broker: RecordedBroker) -> None:
        self.broker = broker
        self.answers: list[Answer] = []
        self.resumed = 0
        self._opening: Propose | None = None
        self._pending: list[Content] = []
        self._open()

    def _open(self) -> None:
        self.port = WirePort(broker=self.broker)
        self.replication = Replication(self.port)

    def feed(self, raw: bytes) -> None:
        message = decode(raw)
        if self._opening is None:
            assert isinstance(message, Propose)
            self._opening = message
            self.replication.open(message)
            self.collect()
            return
        if self.port.ends:
            self._resume()
        if isinstance(message, Content):
            self._pending.append(message)
        self.replication.message(message)
        self.collect()
        if isinstance(message, Propose) and self.answers and self.answers[-1].status is Status.OK:
            self._pending.clear()

    def _resume(self) -> None:
        assert self._opening is not None
        held = self.broker.replicas[self._opening.fragment.journal]
        spool: list[MemorySpool] = []
        held.spool.take(spool.append)  # type: ignore[arg-type]
        known = spool[0].spool
        held.spool.put(spool[0])
        self._open()
        self.resumed += 1
        self.replication.open(replace(self._opening, fragment=known.fragment, registers=known.registers))
        assert self.port.statuses == [Status.OK]
        self.port.answers.clear()
        for content in self._pending:
            self.replication.message(content)

    def collect(self) -> None:
        self.answers += self.port.answers
        self.port.answers.clear()


def wire_fields(answer: Answer) -> tuple[object, ...]:
    """What a primary sees of it: presence counts, and so does the Route; its endpoints are the recorder's."""
    read = decode_answer(encode_answer(answer))
    header = None if read.header is None else (read.header.process_id, read.header.route.members)
    return read.status, header, read.fragment, read.registers


RECORDED = conversations("replicate-to-go-replica")
# Refused by the reader of messages already; `test_messages_that_no_stream_takes` has them.
UNREADABLE = {
    "explicit empty content (22 00)",
    "completely empty message",
    "content with acknowledge",
    "deprecated_journal differs",
    "header without acknowledge",
}
SECOND = [name for name in RECORDED if name.startswith("second stream")]
# In the order of the recording, since they share their replica.
SEQUENTIAL = [name for name in RECORDED if name not in UNREADABLE and name not in SECOND]


def recorded_journals() -> frozenset[str]:
    return frozenset({"rep/group", "rep/other", "rep/second"})


def test_a_recorded_primary_is_answered_as_by_a_go_replica() -> None:
    broker = RecordedBroker(GO, recorded_journals())
    for name in SEQUENTIAL:
        rows = RECORDED[name]
        if name == "third stream after a cancel":
            # What the streams before it had committed is replayed by the test of second streams.
            continue
        replay = Replay(broker)
        if name == "group commit and unknown fields":
            # The 2 MiB of content before the last proposal were not recorded, so that it and its answer are left out.
            *rows, _, _, half_close, ended_so = rows
            rows += [half_close, ended_so]
        expected = [decode_answer(bytes.fromhex(row["hex"])) for row in rows if row["dir"] == "<" and "hex" in row]
        error: GazetteError | None = None
        for row in rows:
            if row["dir"] == ">" and "hex" in row:
                try:
                    replay.feed(bytes.fromhex(row["hex"]))
                except ValidationError as invalid:
                    error = invalid
                    break
        assert [*map(wire_fields, replay.answers)] == [*map(wire_fields, expected)], name
        ended = replay.port.ends
        replay.replication.close()
        status = next(row for row in rows if row.get("event") == "status")
        if status["code"] == 0:
            assert ended in ([], [None]), name
            assert error is None
        else:
            assert error is not None or isinstance(ended[0], GazetteError), name
        assert replay.resumed == (2 if name == "group commit and unknown fields" else 0), name
    held = broker.replicas["rep/group"].spool
    assert not held.is_taken


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_messages_that_no_stream_takes(name: str) -> None:
    *taken, bad = (bytes.fromhex(row["hex"]) for row in RECORDED[name] if row["dir"] == ">" and "hex" in row)
    replay = Replay(RecordedBroker(GO, recorded_journals()))
    for raw in taken:
        replay.feed(raw)
    with pytest.raises(ValidationError):
        replay.feed(bad)


def test_a_recorded_second_stream_waits_as_at_a_go_replica() -> None:
    broker = RecordedBroker(GO, recorded_journals())
    first_name, at_same, at_higher = SECOND
    first, second = Replay(broker), Replay(broker)

    def fed(replay: Replay, name: str, at: int) -> None:
        raws = [bytes.fromhex(row["hex"]) for row in RECORDED[name] if row["dir"] == ">" and "hex" in row]
        replay.feed(raws[at])

    fed(first, first_name, 0)
    fed(first, first_name, 1)
    fed(second, at_same, 0)
    assert second.answers == []
    second.replication.close()
    fed(first, first_name, 2)
    assert [answer.status for answer in first.answers] == [Status.OK, Status.OK]
    third = Replay(broker)
    fed(third, at_higher, 0)
    fed(first, first_name, 3)
    assert third.port.answers == []
    first.replication.finish()
    third.collect()
    assert [answer.status for answer in third.answers] == [Status.OK]
    third.replication.close()
    last = Replay(broker)
    name = "third stream after a cancel"
    for at in range(sum(row["dir"] == ">" and "hex" in row for row in RECORDED[name])):
        fed(last, name, at)
    assert [answer.status for answer in last.answers] == [Status.OK] * 3


FROM_GO = {
    name: rows
    for name, rows in conversations("replicate-from-go-primary").items()
    if name.rsplit("-", 1)[-1] in ("normal", "header", "fields")
}


@pytest.mark.parametrize("source", ["peer", "replicate-from-go-primary"])
def test_what_go_primaries_sent_is_taken_and_answered_as_recorded(source: str) -> None:
    """Between Go brokers, and to a replica that was written by hand: each stream to spools as it found them."""
    streams = conversations("peer") if source == "peer" else FROM_GO
    assert streams
    brokers: dict[ProcessId, RecordedBroker] = {}
    for name, rows in streams.items():
        messages = [decode(bytes.fromhex(row["hex"])) for row in rows if row["dir"] == ">" and "hex" in row]
        first = messages[0]
        assert isinstance(first, Propose)
        assert first.header is not None
        assert first.header.process_id is not None
        broker = brokers.setdefault(first.header.process_id, RecordedBroker(first.header.process_id, None))
        broker.route = first.header.route
        expected = [decode_answer(bytes.fromhex(row["hex"])) for row in rows if row["dir"] == "<" and "hex" in row]
        replica = broker.replicas.get(first.fragment.journal)
        if expected[0].status is Status.OK and replica is None:
            # The recording began in the middle: the replica held what it was asked for.
            held = MemorySpool(first.fragment.journal)
            held.spool = replace(held.spool, fragment=replace(first.fragment, sum=bytes(20), begin=first.fragment.end))
            held.spool = replace(held.spool, registers=first.registers)
            broker.replicas[first.fragment.journal] = replica_of(held)
            if first.fragment.content_length:
                continue
        replay = Replay(broker)
        for row in rows:
            if row["dir"] == ">" and "hex" in row:
                replay.feed(bytes.fromhex(row["hex"]))
        statuses = [answer.status for answer in replay.answers]
        assert statuses[: len(expected)] == [answer.status for answer in expected], name
        replay.replication.close()
        assert replay.resumed == 0
