from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from broker.durable_head import Claim, CutAt, DurableHead, Epoch, EpochTerms
from broker.replica import Replica
from broker.replication import Replication, ReplicationError
from broker.replication_message import Acked, Answer, Content, Message, Propose
from broker.replication_wire import decode, decode_answer, encode, encode_answer
from broker.resolution import MisdirectedError, Resolution, Wanted
from fragment.spool import CopyEnd, EpochMark, Proposal
from protocol.codec import CompressionCodec
from protocol.endpoint import check_endpoint
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.fragment import HEAD_MAX, Fragment
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from protocol.route import Header, ProcessId, Route
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    A,
    B,
    C,
    MemorySpool,
    Withdrawal,
    committed_spool,
    fragment,
    header_of,
    labels,
    replica_of,
    resolution_of,
    route_of,
    spool_id_of,
)
from tests.support.golden import GOLDEN
from tests.unit.broker.test_replica import Host

ROUTE = route_of(A, B, C)
X = labels(x="1")


@dataclass(slots=True)
class Port:
    """Resolves by itself if it is told what to; else the test does."""

    resolution: Resolution | GazetteError | None = None
    wanted: list[tuple[Wanted, Callable[[Resolution | GazetteError], None], Withdrawal]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    head: DurableHead | GazetteError | None = None
    heads_read: int = 0
    heads_voided: int = 0
    void_failure: GazetteError | None = None
    ends: list[GazetteError | None] = field(default_factory=list)

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        withdrawal = Withdrawal()
        self.wanted.append((wanted, done, withdrawal))
        if self.resolution is not None:
            done(self.resolution)
        return withdrawal

    def answer(self, answer: Answer) -> None:
        assert not self.ends, "nothing is answered after the end"
        self.answers.append(answer)

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        self.heads_read += 1
        done(self.head)

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        self.heads_voided += 1
        done(self.void_failure)

    def end(self, error: GazetteError | None) -> None:
        self.ends.append(error)

    def now_ns(self) -> int:
        return NOW_NS

    @property
    def statuses(self) -> list[Status]:
        return [answer.status for answer in self.answers]


def resolved(
    replica: Replica[bytearray] | None, route: Route = ROUTE, status: Status = Status.OK, *, is_kin: bool = True
) -> Resolution:
    """As a Replicate of a peer gets it, which may be any member."""
    found = resolution_of(route, local_id=B, status=status, replica=replica)
    kin = found.kin if is_kin else frozenset[ProcessId]()
    return replace(found, header=replace(found.header, process_id=B), kin=kin)


def opening(
    held: Fragment | None = None, registers: LabelSet = LabelSet(), revision: int = 10, *, is_kin: bool = True
) -> Propose:
    """By Gazette's rules, as all of these."""
    epoch = EpochTerms(EpochMark(4, 0), is_closed=True, is_void=True) if is_kin else None
    return Propose(held or fragment(0), registers, header=header_of(ROUTE, B, revision), epoch=epoch)


class Stream:
    """A Replication over a replica of its own, and what it says."""

    def __init__(self, held: MemorySpool | None = None, *, is_kin: bool = True) -> None:
        self.held = held or MemorySpool()
        self.replica = replica_of(self.held)
        self.port = Port(resolved(self.replica, is_kin=is_kin))
        self.is_kin = is_kin
        self.replication = Replication(self.port)

    def opened(self) -> Stream:
        self.replication.open(opening(self.held.spool.fragment, self.held.spool.registers, is_kin=self.is_kin))
        assert self.port.statuses == [Status.OK]
        return self

    def send(self, *messages: Message) -> list[Answer]:
        """What is answered to these."""
        before = len(self.port.answers)
        for message in messages:
            self.replication.message(message)
        return self.port.answers[before:]

    @property
    def is_free(self) -> bool:
        return not self.replica.spool.is_taken


def test_a_stream_takes_the_spool_and_its_first_answer_says_who_answers() -> None:
    stream = Stream()
    stream.replication.open(opening())
    (answer,) = stream.port.answers
    assert answer.status is Status.OK
    assert isinstance(stream.port.resolution, Resolution)
    assert answer.header == stream.port.resolution.header
    assert stream.replication.is_serving
    assert not stream.is_free
    (again,) = stream.send(Propose(fragment(0), LabelSet()))
    assert again == Answer(Status.OK)


def test_it_is_resolved_for_any_member_at_the_revision_of_the_header_and_never_elsewhere() -> None:
    stream = Stream()
    stream.replication.open(opening(revision=7))
    wanted = stream.port.wanted[0][0]
    assert (wanted.journal, wanted.may_proxy, wanted.require_primary) == (JOURNAL, False, False)
    assert wanted.revision == 7


@pytest.mark.parametrize(
    "first", [Propose(fragment(0), LabelSet()), Propose(fragment(0), LabelSet(), False, header_of(ROUTE, B))]
)
def test_a_first_message_without_header_or_question_is_refused(first: Propose) -> None:
    stream = Stream()
    stream.replication.open(first)
    assert isinstance(stream.port.ends[0], ValidationError)
    assert stream.port.wanted == []


@pytest.mark.parametrize(
    "status",
    [Status.JOURNAL_NOT_FOUND, Status.SUSPENDED, Status.INSUFFICIENT_JOURNAL_BROKERS, Status.NOT_JOURNAL_BROKER],
)
def test_who_cannot_be_served_is_told_once_with_a_header_and_the_stream_ends_in_good_order(status: Status) -> None:
    stream = Stream()
    stream.port.resolution = resolved(None, status=status)
    stream.replication.open(opening())
    assert stream.port.answers == [Answer(status, stream.port.resolution.header)]
    assert stream.port.ends == [None]
    assert stream.is_free


@pytest.mark.parametrize("route", [route_of(A, B), route_of(A, B, C, primary=B), route_of(A, B, C, primary=None)])
def test_another_route_is_refused_before_the_spool_is_waited_for(route: Route) -> None:
    stream = Stream()
    stream.replica.spool.take(lambda _: None)
    stream.port.resolution = resolved(stream.replica, route)
    stream.replication.open(opening())
    assert stream.port.answers == [Answer(Status.WRONG_ROUTE, stream.port.resolution.header)]
    assert stream.port.ends == [None]


def test_a_resolution_that_fails_ends_the_stream() -> None:
    stream = Stream()
    error = stream.port.resolution = MisdirectedError("another cluster")
    stream.replication.open(opening())
    assert stream.port.ends == [error]
    assert stream.port.answers == []


def test_a_first_proposal_that_does_not_fit_is_answered_with_what_is_held_and_the_stream_stays() -> None:
    stream = Stream(committed_spool(b"abc", registers=X))
    stream.replication.open(opening(fragment(0, b"xyz"), X))
    (answer,) = stream.port.answers
    assert (answer.status, answer.fragment, answer.registers) == (Status.PROPOSAL_MISMATCH, fragment(0, b"abc"), X)
    assert answer.header is not None
    assert stream.port.ends == []
    assert stream.send(Propose(fragment(3), X)) == [Answer(Status.OK)]
    assert stream.held.completed == [fragment(0, b"abc")]


def test_a_peer_that_just_joined_goes_to_the_primarys_end_and_takes_its_registers() -> None:
    stream = Stream()
    stream.replication.open(opening(fragment(300, b"x" * 200), X))
    (answer,) = stream.port.answers
    assert (answer.status, answer.fragment, answer.registers) == (Status.PROPOSAL_MISMATCH, fragment(500), X)
    assert stream.send(Propose(fragment(500), X)) == [Answer(Status.OK)]


def test_equal_fragments_with_other_registers_do_not_fit() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    (answer,) = stream.send(Propose(fragment(0, b"abc"), labels(x="2")))
    assert (answer.status, answer.registers) == (Status.PROPOSAL_MISMATCH, X)
    assert not stream.replication.is_over


def test_content_is_not_answered_and_a_proposal_over_all_of_it_commits() -> None:
    stream = Stream().opened()
    assert stream.send(Content(b"one ", 0), Content(b"two ", 4), Content(memoryview(b"three"), 8)) == []
    assert stream.held.spool.fragment == fragment(0)
    assert stream.send(Propose(fragment(0, b"one two three"), X)) == [Answer(Status.OK)]
    assert stream.held.spool.fragment == fragment(0, b"one two three")
    assert stream.held.spool.registers == X


def test_proposals_may_come_before_others_are_answered_and_answers_come_in_order() -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X), Content(b"b", 0), Propose(fragment(0, b"ab"), X))
    stream.send(Propose(fragment(0, b"zz"), X))
    assert stream.port.answers == []
    while held.has_work:
        held.work()
    assert stream.port.statuses == [Status.OK, Status.OK, Status.OK, Status.PROPOSAL_MISMATCH]
    assert stream.port.answers[0].header is not None
    assert [answer.header for answer in stream.port.answers[1:]] == [None, None, None]


def test_the_fragment_as_it_is_drops_what_is_pending() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Content(b"undo", 0), Propose(fragment(0, b"abc"), X)) == [Answer(Status.OK)]
    assert stream.held.spool.next() == fragment(0, b"abc")
    assert stream.send(Content(b"d", 0), Propose(fragment(0, b"abcd"), X)) == [Answer(Status.OK)]


def test_a_new_fragment_drops_what_is_pending() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Content(b"gone", 0), Propose(fragment(3), X)) == [Answer(Status.OK)]
    assert stream.held.spool.next() == fragment(3)
    assert stream.held.completed == [fragment(0, b"abc")]


@pytest.mark.parametrize(
    "proposed",
    [fragment(0, b"one"), fragment(0, b"one tw0"), fragment(1, b"one two")],
    ids=["a part", "another sum", "another begin"],
)
def test_a_commit_that_does_not_fit_is_answered_and_ends_the_stream(proposed: Fragment) -> None:
    stream = Stream().opened()
    (answer,) = stream.send(Content(b"one ", 0), Content(b"two", 4), Propose(proposed, X))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.fragment is not None
    assert isinstance(stream.port.ends[0], ReplicationError)
    assert stream.is_free
    assert stream.held.releases == 1
    assert stream.held.spool.pending == 0


def test_nothing_is_done_about_messages_behind_the_one_that_ended_the_stream() -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"z"), X), Content(b"a", 1), Propose(fragment(0, b"aa"), X))
    while held.has_work:
        held.work()
    assert stream.port.statuses == [Status.OK, Status.PROPOSAL_MISMATCH]
    assert len(stream.port.ends) == 1
    assert held.releases == 1
    stream.send(Propose(fragment(0), X))
    assert len(stream.port.answers) == 2


def test_a_proposal_without_a_question_is_not_answered_if_it_fits() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Propose(fragment(3), X, acknowledge=False)) == []
    assert stream.held.spool.fragment == fragment(3)
    assert stream.send(Content(b"silent", 0), Propose(fragment(3, b"silent"), X, acknowledge=False)) == []
    assert stream.held.spool.fragment == fragment(3, b"silent")


def test_a_proposal_without_a_question_that_does_not_fit_ends_the_stream() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Propose(fragment(0, b"a"), X, acknowledge=False)) == []
    assert isinstance(stream.port.ends[0], ReplicationError)
    assert stream.is_free


def test_content_out_of_order_ends_the_stream() -> None:
    stream = Stream().opened()
    stream.send(Content(b"abc", 0), Content(b"def", 5))
    assert isinstance(stream.port.ends[0], GazetteError)
    assert stream.is_free
    assert stream.held.spool.pending == 0


def test_a_spool_that_cannot_be_written_ends_the_stream_and_is_given_back_rolled_back() -> None:
    stream = Stream(committed_spool(b"abc")).opened()
    stream.send(Content(b"def", 0))
    stream.held.fault = OSError("disk full")
    assert stream.send(Propose(fragment(0, b"abcdef"), LabelSet())) == []
    assert "disk full" in str(stream.port.ends[0])
    assert stream.is_free
    assert stream.held.spool.next() == fragment(0, b"abc")


# Waiting for the spool.


def test_a_second_stream_waits_until_the_first_has_ended() -> None:
    first = Stream().opened()
    first.send(Content(b"pending", 0))
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    assert port.answers == []
    first.send(Propose(fragment(0, b"pending"), LabelSet()), Content(b"tail", 0))
    first.replication.close()
    assert second.is_serving
    (answer,) = port.answers
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.fragment == fragment(0, b"pending")
    second.close()
    assert first.held.releases == 2


def test_a_stream_that_waits_is_told_when_its_route_is_out_of_date() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    port.resolution = resolved(first.replica, route_of(A, B))
    first.replica.invalidate()
    assert port.statuses == [Status.WRONG_ROUTE]
    first.replication.close()
    assert first.is_free, "who was refused does not get the spool"


def test_a_stream_that_waits_goes_on_waiting_if_its_route_is_still_the_same() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    for _ in range(3):
        first.replica.invalidate()
    assert len(port.wanted) == 4
    first.replication.close()
    assert second.is_serving
    second.close()
    assert first.is_free


def test_a_stream_that_waits_for_a_spool_whose_disk_hangs_ends_and_so_does_one_that_comes_later() -> None:
    hung = UnavailableError("the disk hangs")
    first = Stream().opened()
    waits = [Port(first.port.resolution), Port(first.port.resolution)]
    Replication(waits[0]).open(opening())
    first.replica.stalled(hung)
    Replication(waits[1]).open(opening())
    assert [port.ends for port in waits] == [[hung], [hung]]
    first.replica.stalled(None)
    first.replication.close()
    assert first.is_free, "who was told does not get the spool"


def test_a_stream_that_has_the_spool_is_not_bothered_by_a_later_route() -> None:
    stream = Stream().opened()
    stream.port.resolution = resolved(None, status=Status.JOURNAL_NOT_FOUND)
    stream.replica.invalidate()
    assert stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X)) == [Answer(Status.OK)]


def test_a_stream_that_waited_for_a_replica_that_stops_goes_to_the_new_one() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    fresh = replica_of()
    port.resolution = resolved(fresh)
    first.replica.stop()
    assert second.is_serving
    assert fresh.spool.is_taken
    first.replication.close()
    assert first.held.is_handed_on
    second.close()
    assert not fresh.spool.is_taken


def test_a_resolution_that_is_out_of_date_when_it_comes_is_asked_for_again() -> None:
    """Of a replica that has stopped, nothing may be taken."""
    stopped, fresh = replica_of(), replica_of()
    port = Port()
    replication = Replication(port)
    replication.open(opening())
    stopped.stop()
    port.resolution = resolved(fresh)
    port.wanted[0][1](resolved(stopped))
    assert replication.is_serving
    assert fresh.spool.is_taken
    replication.close()
    assert not fresh.spool.is_taken


def test_a_stream_that_ends_while_it_is_resolved_or_waits_leaves_nothing_behind() -> None:
    port = Port()
    replication = Replication(port)
    replication.open(opening())
    replication.close()
    assert port.wanted[0][2].is_withdrawn
    first = Stream().opened()
    waiting = Replication(Port(first.port.resolution))
    waiting.open(opening())
    waiting.close()
    first.replication.close()
    assert first.is_free
    assert first.held.releases == 1


def test_to_end_twice_gives_the_spool_back_once() -> None:
    stream = Stream().opened()
    stream.replication.close()
    stream.replication.close()
    assert stream.held.releases == 1
    assert stream.port.ends == []


# The primary has said that nothing more will come.


def test_a_stream_that_is_finished_ends_at_once_if_nothing_is_to_be_answered() -> None:
    stream = Stream().opened()
    stream.send(Content(b"pending", 0))
    stream.replication.finish()
    assert stream.port.ends == [None]
    assert stream.is_free
    assert stream.held.spool.pending == 0


@pytest.mark.parametrize("last", [Propose(fragment(0, b"a"), LabelSet()), Propose(fragment(0), X)])
def test_a_stream_that_is_finished_answers_what_it_was_asked_whatever_the_answer(last: Propose) -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    held.work()
    if last.fragment.content_length:
        stream.send(Content(b"a", 0))
    stream.send(last)
    stream.replication.finish()
    assert stream.port.ends == []
    while held.has_work:
        held.work()
    assert len(stream.port.answers) == 2
    assert stream.port.ends == [None]
    assert stream.is_free


def test_a_stream_that_is_finished_before_it_got_the_spool_gives_its_place_up() -> None:
    """What it proposes would be out of date by then."""
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    second.finish()
    assert port.ends == [None]
    first.replication.close()
    assert port.answers == []
    assert first.is_free
    assert first.held.releases == 1


def test_a_primary_of_the_journal_that_was_deleted_is_refused_by_the_one_that_was_created_again() -> None:
    stream = Stream()
    assert stream.replica.create_revision == 4
    stream.replication.open(opening(fragment(0, b"old"), X, revision=3))
    assert stream.port.statuses == [Status.WRONG_ROUTE]
    assert stream.port.answers[0].header is not None
    assert stream.port.ends == [None]
    assert stream.is_free
    assert stream.held.spool.fragment == fragment(0)


# What is acknowledged, and so may be shown.


def test_of_a_primary_of_our_kind_nothing_is_shown_before_all_have_it() -> None:
    stream = Stream()
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0))
    assert stream.held.visible == []
    stream.send(Acked(1))
    assert stream.held.visible == [fragment(0, b"a")]
    stream.send(Content(b"b", 0, 1), Propose(fragment(0, b"ab"), X, acked_through=1), Content(b"c", 0, 2))
    assert stream.held.visible == [fragment(0, b"a"), fragment(0, b"ab")]


def test_an_older_word_takes_nothing_back() -> None:
    stream = Stream()
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0), Acked(1), Acked(0))
    assert stream.held.spool.acked_through == 1


@pytest.mark.parametrize("through", [HEAD_MAX + 1, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("message", [Content(b"x", 0), Content(b"x", 7), Acked(0)], ids=["first", "more", "alone"])
def test_bytes_beyond_where_journals_end_are_acknowledged_by_no_message(message: Content | Acked, through: int) -> None:
    forged = Acked(through) if isinstance(message, Acked) else replace(message, acked_through=through)
    with pytest.raises(ValidationError, match="AckedThrough"):
        decode(encode(forged))
    known = Acked(HEAD_MAX) if isinstance(message, Acked) else replace(message, acked_through=HEAD_MAX)
    assert decode(encode(known)) == known


def test_what_a_forged_acknowledgement_says_is_not_shown_and_the_journal_stays_writable() -> None:
    it = Stream().opened()
    it.replication.message(Content(b"one", 0, 1000))
    it.replication.message(Propose(fragment(0, b"one"), X, acked_through=1000))
    it.replication.message(Acked(HEAD_MAX))
    assert (it.held.visible, it.held.spool.acked_through) == ([], 0)
    it.replication.message(Content(b"two", 0, 3))
    it.replication.message(Propose(fragment(0, b"onetwo"), X, acked_through=3))
    assert it.port.statuses == [Status.OK] * 3


def test_of_another_primary_everything_is_shown_where_it_is_committed() -> None:
    stream = Stream(is_kin=False)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X))
    assert stream.held.visible == [fragment(0, b"a")]


def test_what_a_primary_that_is_not_of_our_kind_says_of_it_is_not_believed() -> None:
    stream = Stream(is_kin=False)
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0), Acked(0))
    assert stream.held.visible == [fragment(0, b"a")]


# Recorded conversations.

Row = dict[str, Any]


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


@pytest.mark.parametrize("endpoints", [("http://a:80", "", "http://c:80"), ("", "", ""), None])
@pytest.mark.parametrize("status", [Status.OK, Status.WRONG_ROUTE, Status.JOURNAL_NOT_FOUND])
def test_an_answer_has_an_endpoint_for_each_member_and_leaves_none_of_them_out(
    status: Status, endpoints: tuple[str, ...] | None
) -> None:
    """Whoever finds a member without one may exit, and whoever misses a member takes the Route for another."""
    told = header_of(route_of(A, B, C))
    told = replace(told, route=replace(told.route, endpoints=endpoints))
    raw = encode_answer(Answer(status, told))
    header = pb.ReplicateResponse.FromString(raw).header
    assert len(header.route.endpoints) == 3
    for endpoint, known in zip(header.route.endpoints, endpoints or ("", "", ""), strict=True):
        check_endpoint(endpoint)
        assert endpoint == (known or "http://unreachable.invalid")
    read = decode_answer(raw)
    assert read.header is not None
    assert read.header.route.equivalent(told.route)


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


def test_a_codec_change_begins_a_fragment_with_it() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    gzip = fragment(3, codec=CompressionCodec.GZIP)
    assert stream.send(Propose(gzip, X, acknowledge=False), Propose(gzip, X)) == [Answer(Status.OK)]
    (answer,) = stream.send(Content(b"d", 0), Propose(fragment(3, b"d"), X))
    assert answer.status is Status.PROPOSAL_MISMATCH


def test_a_failure_of_the_spool_while_another_stream_waits_does_not_reach_that_one() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    first.held.fault = UnavailableError("disk full")
    first.send(Content(b"abc", 0))
    assert str(first.port.ends[0]) == "disk full"
    assert second.is_serving
    assert port.statuses == [Status.OK]
    assert port.ends == []


# In epochs: what takes part in a synchronisation, and what is retired first (DH-5, DH-8).

E1, E2 = EpochMark(4, 1), EpochMark(4, 2)
X = labels(x="1")
CLOSED_AT_3 = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),), end=3), Epoch(2, 3, (spool_id_of(B),))))


def in_epoch(mark: EpochMark, content: bytes = b"hello") -> MemorySpool:
    held = MemorySpool()
    held.content(content, 0)
    held.propose(Proposal(fragment(0, content), X, NOW_NS, mark, 0), lambda _: None)
    return held


def work_off(held: MemorySpool) -> None:
    while held.has_work:
        held.work()


class EpochStream(Stream):
    def __init__(self, held: MemorySpool | None = None) -> None:
        super().__init__(held)
        self.host = Host(spool_id=spool_id_of(B))
        self.replica.host = self.host

    def open(self, told: EpochTerms, held: Fragment | None = None, revision: int = 10) -> list[Answer]:
        first = Propose(held or fragment(0), X, header=header_of(ROUTE, B, revision), epoch=told, acked_through=0)
        self.replication.open(first)
        return self.port.answers


def test_a_live_copy_of_the_last_open_epoch_takes_part_as_it_is() -> None:
    """DH-5."""
    stream = EpochStream(in_epoch(E1))
    (answer,) = stream.open(EpochTerms(E1), fragment(0, b"hello"))
    assert answer.status is Status.OK
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))
    assert stream.held.fates == []
    assert stream.port.heads_read == 0


def test_a_copy_of_an_earlier_epoch_is_retired_before_its_owner_joins_empty() -> None:
    """DH-5, DH-8."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = CLOSED_AT_3
    (answer,) = stream.open(EpochTerms(E2, 3), fragment(3))
    assert stream.held.fates == [CutAt(3)]
    assert stream.held.completed == [fragment(0, b"hello")]
    assert answer.status is Status.OK
    assert answer.claim == Claim(spool_id_of(B), None)
    assert stream.held.spool.fragment == fragment(3)


def test_a_copy_of_the_last_epoch_is_retired_once_that_is_closed() -> None:
    """DH-5: only of the open one."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),), end=3),))
    stream.open(EpochTerms(E1, is_closed=True), fragment(3))
    assert stream.held.fates == [CutAt(3)]


def test_a_synchronisation_that_names_an_older_epoch_is_refused_and_nothing_is_retired() -> None:
    """DH-5."""
    stream = EpochStream(in_epoch(E2))
    (answer,) = stream.open(EpochTerms(E1), fragment(90))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E2, 5, X))
    assert answer.fragment == fragment(0, b"hello")
    assert stream.held.fates == []
    assert stream.held.spool.fragment == fragment(0, b"hello")


def test_a_copy_whose_epoch_is_open_after_all_is_answered_for_as_it_is() -> None:
    """The record has changed since the primary read it."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),)),))
    (answer,) = stream.open(EpochTerms(E2, 5), fragment(5))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))
    assert stream.held.fates == []


def test_a_record_that_cannot_be_read_ends_the_stream_and_nothing_is_retired() -> None:
    stream = EpochStream(in_epoch(E1))
    stream.port.head = UnavailableError("etcd did not answer")
    assert stream.open(EpochTerms(E2, 5), fragment(5)) == []
    assert stream.port.ends == [stream.port.head]
    assert stream.held.fates == []
    assert stream.is_free


def test_whoever_is_listed_and_has_committed_nothing_says_who_it_is() -> None:
    """DH-5."""
    stream = EpochStream()
    (answer,) = stream.open(EpochTerms(E1))
    assert answer.claim == Claim(spool_id_of(B), None)


def test_who_has_commits_of_the_epoch_that_are_not_in_the_spool_does_not() -> None:
    """DH-5, DH-7."""
    stream = EpochStream()
    stream.host.copies = {E1}
    (answer,) = stream.open(EpochTerms(E1))
    assert answer.claim == Claim(b"", None)


def test_a_spool_that_a_failed_synchronisation_has_moved_has_no_place() -> None:
    """DH-5: a roll forward without content does not count."""
    held = in_epoch(E1)
    held.propose(Proposal(fragment(70), X, NOW_NS, E2, 0), lambda _: None)
    stream = EpochStream(held)
    (answer,) = stream.open(EpochTerms(E1), fragment(5))
    assert answer.status is Status.OK, "it goes on where the others are, below where it was"
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))


def test_an_epoch_is_adopted_from_the_first_proposal_that_names_it_and_commits_carry_it() -> None:
    """DH-2."""
    stream = EpochStream(in_epoch(E1))
    stream.open(EpochTerms(E1), fragment(0, b"hello"))
    assert stream.host.epochs == []
    told = EpochTerms(E2, 5)
    (rolled,) = stream.send(Propose(fragment(5), X, epoch=told, acked_through=5))
    assert stream.host.epochs == [(told, E1)]
    assert rolled == Answer(Status.OK), "no claim, once it is synchronised"
    stream.send(Content(b"abc", 0, 5), Propose(fragment(5, b"abc"), X, epoch=told, acked_through=5))
    assert stream.held.spool.copy == CopyEnd(E2, 8, X)
    assert len(stream.host.epochs) == 1


def test_a_synchronisation_alone_moves_no_copy_into_another_epoch() -> None:
    """DH-2."""
    stream = EpochStream(in_epoch(E1))
    stream.open(EpochTerms(E1), fragment(9))
    assert stream.held.spool.copy == CopyEnd(E1, 5, X)


def test_who_synchronises_without_an_epoch_makes_the_head_void_before_it_is_answered() -> None:
    """Section 6."""
    stream = EpochStream()
    stream.replication.open(opening(is_kin=False))
    assert stream.port.heads_voided == 1
    assert stream.port.statuses == [Status.OK]
    refusing = EpochStream()
    failure = UnavailableError("etcd did not answer")
    refusing.port.void_failure = failure
    refusing.replication.open(opening(is_kin=False))
    assert refusing.port.answers == []
    assert refusing.port.ends == [failure]
    assert refusing.is_free


def test_a_primary_that_was_overtaken_gets_the_spool_no_more() -> None:
    """DH-4."""
    stream = EpochStream()
    stream.replica.taken_revision = 11
    (answer,) = stream.open(EpochTerms(E1), revision=10)
    assert answer.status is Status.WRONG_ROUTE
    assert stream.is_free


def test_a_stream_whose_spool_was_taken_gets_no_more_answers() -> None:
    """DH-4: not even to what it asked before."""
    held = MemorySpool(deferred=True)
    stream = EpochStream(held)
    stream.open(EpochTerms(E1))
    work_off(held)
    assert len(stream.port.answers) == 1
    stream.replication.message(Content(b"abc", 0, 0))
    stream.replication.message(Propose(fragment(0, b"abc"), X, epoch=EpochTerms(E1), acked_through=0))
    later = Replication(Port(stream.port.resolution))
    stream.host.members = {}
    later.open(Propose(fragment(0), X, header=header_of(ROUTE, B, 12), epoch=EpochTerms(E1)))
    work_off(held)
    assert len(stream.port.answers) == 1
    assert isinstance(stream.port.ends[0], UnavailableError)
    assert later.is_serving
