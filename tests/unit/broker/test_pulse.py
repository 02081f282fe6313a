"""Pulse: when it beats and when it does not, on a clock that a test turns."""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import pytest

from allocator.keys import assignment_key, item_key
from allocator.transaction import Put, Transaction
from broker.append_event import HeadRead, Ready
from broker.durable_head import DurableHead, Epoch
from broker.local_replica import LocalReplica
from broker.notice import Withdraw
from broker.pipeline import PeerStream, Pipeline
from broker.pulse import PULSE_S, QUIET_PULSES, UNPROVEN_PULSE_S, Pulse
from broker.replica import Replica
from broker.replication_message import Propose
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from broker.resolver import Resolver
from broker.resolving import resolve_within
from fragment.index import Summary
from fragment.live_index import LiveIndex
from fragment.spool_file import SpoolFile
from protocol.errors import GazetteError, UnavailableError
from protocol.journal import JournalSpec, Suspend, SuspendLevel
from protocol.route import ProcessId
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    OK,
    POLICY,
    ROOT,
    A,
    B,
    C,
    MemorySpool,
    RecordingStream,
    committed_spool,
)
from tests.support.metrics import metric
from tests.support.mini_cluster import ClusterKeys

NS_PER_S = 1_000_000_000
ALONE = JournalSpec(JOURNAL, 1, fragment=POLICY)
PAIR = JournalSpec(JOURNAL, 2, fragment=POLICY)


@dataclass(slots=True, eq=False)
class Timer:
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(slots=True)
class Clock:
    """What a Pulse uses of an event loop."""

    now_s: float = 0.0
    _timers: list[tuple[float, int, Timer]] = field(default_factory=list)
    _count: count[int] = field(default_factory=count)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._count), timer))
        return timer

    @property
    def pending(self) -> list[float]:
        """When something is due."""
        return sorted(due_s for due_s, _, timer in self._timers if not timer.is_cancelled)

    def advance(self, by_s: float = 0.0) -> None:
        until_s = self.now_s + by_s
        while self._timers and self._timers[0][0] <= until_s:
            due_s, _, timer = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, due_s)
            if not timer.is_cancelled:
                timer.callback()
        self.now_s = until_s


class FakeBroker:
    """A PulseBroker over keys in memory. It starts replicas with a Pulse, as the real one does."""

    def __init__(
        self, clock: Clock, spec: JournalSpec, *members: ProcessId, content: bytes = b"", keeps_epochs: bool = False
    ) -> None:
        """That of A; the first member is the primary. `content` is what its spools begin with."""
        self.clock = clock
        self.etcd = ClusterKeys()
        self.content = content
        for member in members:
            self.etcd.add_member(member, keeps_epochs=keeps_epochs)
        self.etcd.apply(spec)
        self.etcd.assign(*((member, slot) for slot, member in enumerate(members[: spec.replication])))
        self.auto_suspend = False
        # What is on record; void if there is nothing.
        self.epochs: tuple[Epoch, ...] = ()
        self.chance = 0.5
        self.summary: Summary | None = None
        self.unready: list[Callable[[], None]] | None = None
        # When each beat came as far as to be validated, and what was written to etcd.
        self.beats: list[float] = []
        self.transactions: list[Transaction] = []
        self.opened: list[tuple[Pipeline, dict[ProcessId, RecordingStream]]] = []
        self.spools: list[MemorySpool] = []
        self.resolver: Resolver[SpoolFile] = Resolver(ROOT, A, self.etcd.view(), self._start)

    def _start(self, journal: str, create_revision: int) -> LocalReplica:
        live: LiveIndex[SpoolFile] = LiveIndex(journal, lambda: self.clock.now_s, random.Random(1))
        replica = LocalReplica(journal, create_revision, live)
        held = committed_spool(self.content)
        held.released = replica.spool_released
        self.spools.append(held)
        replica.start(held)
        Pulse(self, replica, self.auto_suspend, lambda: self.chance).start()
        return replica

    @property
    def replica(self) -> LocalReplica:
        replica = self.resolver.replicas[JOURNAL]
        assert isinstance(replica, LocalReplica)
        return replica

    def now_ns(self) -> int:
        return NOW_NS + int(self.clock.now_s * NS_PER_S)

    def is_certain(self) -> bool:
        return True

    def resolve_within(
        self, wanted: Wanted, timeout_s: float | None, done: Callable[[Resolution | GazetteError], None]
    ) -> Withdraw:
        return resolve_within(self.resolver, wanted, timeout_s, done)

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        self.transactions.append(transaction)
        done(self.etcd.keys.revision if self.etcd.keys.apply(transaction) else None)

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        create_revision = self.etcd.keys[item_key(ROOT, journal)].create_revision
        head = DurableHead(create_revision, self.epochs, is_void=not self.epochs)
        done(HeadRead(head, self.etcd.head(journal).mod_revision))

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        self.beats.append(self.clock.now_s)
        if self.unready is None:
            done(Ready(self.summary or replica.index.summary()))
            return lambda: None
        serve = lambda: done(Ready(replica.index.summary()))  # noqa: E731
        waiting = self.unready
        waiting.append(serve)
        return lambda: waiting.remove(serve)

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        streams = {peer: RecordingStream() for peer in pipeline.peers}
        self.opened.append((pipeline, streams))
        return streams

    def observe(self) -> None:
        """See what is in etcd."""
        while self.resolver.view.revision < self.etcd.keys.revision:
            self.resolver.observe(self.etcd.update_from(self.resolver.view))

    def settle(self) -> None:
        """Let happen what happens now: what was written to etcd is seen, and timers of this moment run."""
        for _ in range(20):
            self.clock.advance()
            self.observe()

    def pass_time(self, by_s: float) -> None:
        until_s = self.clock.now_s + by_s
        while (pending := self.clock.pending) and pending[0] <= until_s:
            self.clock.advance(pending[0] - self.clock.now_s)
            self.settle()
        self.clock.advance(until_s - self.clock.now_s)

    def answer_all(self) -> None:
        """Each peer answers what it was asked by the latest pipeline."""
        pipeline, streams = self.opened[-1]
        for peer, stream in streams.items():
            for message in stream.take():
                if isinstance(message, Propose) and message.acknowledge:
                    pipeline.answered(peer, OK)

    @property
    def spec(self) -> JournalSpec:
        return next(kv.value.value.spec for kv in self.etcd.keys.key_values if kv.key.startswith(f"{ROOT}/items/"))  # type: ignore[union-attr]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def settled(clock: Clock, spec: JournalSpec = ALONE, *members: ProcessId) -> FakeBroker:
    """A journal that was synchronised and advertised."""
    broker = FakeBroker(clock, spec, *(members or (A,)))
    broker.settle()
    while broker.opened[-1][1] and any(stream.sent for stream in broker.opened[-1][1].values()):
        broker.answer_all()
        broker.settle()
    assert broker.etcd.keys.revision == broker.resolver.view.revision
    broker.beats.clear()
    broker.transactions.clear()
    return broker


def test_it_beats_at_the_start_and_advertises_the_route(clock: Clock) -> None:
    broker = FakeBroker(clock, ALONE, A)
    assert not broker.beats, "not before the turn of the event loop in which the replica is made is over"
    broker.settle()
    assert broker.beats == [0.0]
    assert len(broker.transactions) == 1
    assert broker.etcd.is_consistent()
    assert broker.replica.pipeline.peek() is not None


def test_it_synchronises_with_all_peers_at_the_start(clock: Clock) -> None:
    broker = FakeBroker(clock, PAIR, A, B)
    broker.settle()
    ((_, streams),) = broker.opened
    assert [len(stream.proposals) for stream in streams.values()] == [1]
    broker.answer_all()
    broker.settle()
    assert len(broker.transactions) == 1
    assert broker.etcd.is_consistent()


def test_while_all_is_in_step_nothing_is_done(clock: Clock) -> None:
    broker = settled(clock)
    proposed = broker.spools[0].releases, list(broker.spools[0].committed)
    broker.pass_time(100 * PULSE_S)
    assert (broker.beats, broker.transactions) == ([], [])
    assert proposed == (broker.spools[0].releases, broker.spools[0].committed)
    assert len(clock.pending) == 1, "a replica costs one timer"


def test_it_looks_again_about_once_a_minute_and_not_all_at_the_same_time(clock: Clock) -> None:
    broker = settled(clock)
    for chance, rest_s in ((0.0, 0.9 * PULSE_S), (0.5, PULSE_S), (1.0, 1.1 * PULSE_S)):
        # The next rest is drawn when the present one is over.
        broker.chance = chance
        broker.clock.advance(clock.pending[0] - clock.now_s)
        assert clock.pending == [pytest.approx(clock.now_s + rest_s)]


def test_a_journal_whose_end_nobody_can_prove_is_looked_at_more_often_and_told_of_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A holder that returns says so on record, and nobody is told of that."""
    broker = FakeBroker(clock, ALONE, A, keeps_epochs=True)
    broker.epochs = (Epoch(1, 0, (b"lost" * 4,)),)
    before = metric("gazette_unproven_heads_total")
    broker.settle()
    broker.opened.clear()
    broker.pass_time(4.5 * UNPROVEN_PULSE_S)
    assert len(broker.opened) == 4
    assert caplog.text.count("pulse of a journal was refused") == 1
    assert metric("gazette_unproven_heads_total") == before + 1
    broker.epochs = ()
    broker.pass_time(PULSE_S)
    broker.beats.clear()
    broker.pass_time(10 * PULSE_S)
    assert broker.beats == [], "it goes on, and all is in step"


def test_it_beats_at_once_when_the_assignments_have_changed(clock: Clock) -> None:
    broker = settled(clock, ALONE, A, B)
    broker.pass_time(10.0)
    broker.etcd.apply(PAIR)
    broker.etcd.assign((A, 0), (B, 1))
    broker.observe()
    assert not broker.transactions, "others are being told of it in the same turn"
    broker.settle()
    pipeline, streams = broker.opened[-1]
    assert pipeline.header.route.members == (A, B)
    assert [proposal.header is not None for proposal in streams[B].proposals] == [True]
    broker.answer_all()
    broker.settle()
    assert len(broker.transactions) == 1
    assert broker.clock.now_s == 10.0


def test_a_change_that_comes_while_it_beats_is_followed_by_another_beat(clock: Clock) -> None:
    broker = settled(clock, PAIR, A, B, C)
    broker.etcd.assign((A, 0), (C, 1))
    broker.settle()
    before = len(broker.opened)
    assert broker.opened[-1][0].peers == [C]
    # Nobody has answered yet.
    broker.etcd.assign((A, 0), (B, 1))
    broker.settle()
    assert len(broker.opened) == before
    broker.answer_all()
    broker.settle()
    assert broker.opened[-1][0].peers == [B]
    broker.answer_all()
    broker.settle()
    assert broker.etcd.slots() == {A: 0, B: 1}
    pipeline = broker.replica.pipeline.peek()
    assert pipeline is not None
    assert pipeline.peers == [B]


def test_a_route_that_is_no_longer_advertised_is_advertised_again(clock: Clock) -> None:
    broker = settled(clock)
    broker.etcd.keys.put(Put(assignment_key(ROOT, JOURNAL, *A, 0), b"", 70))
    assert not broker.etcd.is_consistent()
    broker.settle()
    assert broker.etcd.is_consistent()
    assert len(broker.opened) == 1, "the pipeline is as good as it was"


def test_a_broken_pipeline_is_built_anew_at_the_next_beat(clock: Clock) -> None:
    broker = settled(clock, PAIR, A, B)
    pipeline, _ = broker.opened[-1]
    pipeline.failed(B, UnavailableError("gone"))
    broker.settle()
    assert len(broker.opened) == 1
    broker.pass_time(PULSE_S)
    assert len(broker.opened) == 2


def test_one_that_is_not_primary_does_nothing_but_wait(clock: Clock) -> None:
    broker = FakeBroker(clock, PAIR, B, A)
    assert not broker.replica.is_primary
    broker.pass_time(30 * PULSE_S)
    assert (broker.beats, broker.opened) == ([], [])
    assert len(clock.pending) == 1


def test_one_that_becomes_primary_beats_at_once(clock: Clock) -> None:
    broker = FakeBroker(clock, PAIR, B, A)
    broker.pass_time(5.0)
    broker.etcd.assign((A, 0), (B, 1))
    broker.settle()
    assert [pipeline.peers for pipeline, _ in broker.opened] == [[B]]
    assert clock.now_s == 5.0


# Suspension of idle journals.


def suspending(clock: Clock, content: bytes = b"") -> FakeBroker:
    broker = FakeBroker(clock, ALONE, content=content)
    broker.etcd.add_member(A)
    broker.auto_suspend = True
    broker.etcd.assign((A, 0))
    broker.observe()
    broker.settle()
    broker.beats.clear()
    broker.transactions.clear()
    return broker


def test_an_empty_journal_is_suspended_after_fifteen_quiet_beats(clock: Clock) -> None:
    broker = suspending(clock)
    broker.pass_time((QUIET_PULSES - 1) * PULSE_S)
    assert (broker.beats, broker.spec.suspend) == ([], None)
    broker.pass_time(PULSE_S)
    assert broker.beats
    assert broker.spec.suspend is not None
    assert broker.spec.suspend.level == SuspendLevel.FULL


def test_a_journal_that_is_flushed_is_suspended_in_part(clock: Clock) -> None:
    broker = suspending(clock, b"content")
    # It was uploaded long ago.
    broker.summary = Summary(0, 7, mod_time=1)
    broker.pass_time(QUIET_PULSES * PULSE_S)
    assert broker.spec.suspend == Suspend(SuspendLevel.PARTIAL, 7)
    written = len(broker.transactions)
    broker.pass_time(5 * PULSE_S)
    assert len(broker.transactions) == written, "what is suspended is left alone"


def test_a_journal_that_is_not_flushed_is_asked_again(clock: Clock) -> None:
    broker = suspending(clock, b"content")
    broker.summary = Summary(0, 7, NOW_NS // NS_PER_S + 10**6)
    broker.pass_time((QUIET_PULSES + 3) * PULSE_S)
    assert broker.spec.suspend is None
    assert broker.beats == [at * PULSE_S for at in range(QUIET_PULSES, QUIET_PULSES + 4)]


def test_a_change_of_the_assignments_begins_the_count_anew(clock: Clock) -> None:
    broker = suspending(clock)
    broker.pass_time((QUIET_PULSES - 1) * PULSE_S)
    broker.replica.invalidate()
    broker.settle()
    broker.pass_time((QUIET_PULSES - 1) * PULSE_S)
    assert broker.spec.suspend is None
    broker.pass_time(PULSE_S)
    assert broker.spec.suspend is not None


def test_no_journal_is_suspended_where_the_broker_is_not_to(clock: Clock) -> None:
    broker = settled(clock)
    broker.pass_time(10 * QUIET_PULSES * PULSE_S)
    assert broker.spec.suspend is None


# When it takes too long, and when it is over.


def test_a_beat_that_waits_in_vain_is_given_up_and_tried_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker(clock, ALONE, A)
    broker.unready = []
    broker.settle()
    assert len(broker.unready) == 1
    with caplog.at_level(logging.WARNING):
        broker.pass_time(PULSE_S)
    assert "took too long" in caplog.text
    assert broker.unready == []
    pipeline = broker.replica.pipeline.peek()
    assert pipeline is not None, "others can append in between"
    # A pipeline that is in step with all that is known is not in need of a beat.
    broker.unready = None
    pipeline.failed(A, UnavailableError("gone"))
    broker.pass_time(PULSE_S)
    assert len(broker.beats) == 2


def test_a_beat_that_waits_in_vain_for_a_revision_is_over_sooner(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """As every append is: the pipeline is not to be held for a change that this broker does not hear of."""
    broker = FakeBroker(clock, ALONE, A)
    clock.advance()
    assert len(broker.transactions) == 1
    assert broker.replica.pipeline.is_taken, "until what was written is seen"
    with caplog.at_level(logging.WARNING):
        clock.advance(REVISION_WAIT_S)
    assert REVISION_WAIT_S < PULSE_S
    assert "pulse of a journal failed" in caplog.text
    assert not broker.replica.pipeline.is_taken


def test_a_beat_of_which_the_peers_say_nothing_is_over_when_they_are_given_up(clock: Clock) -> None:
    broker = FakeBroker(clock, PAIR, A, B)
    broker.settle()
    broker.pass_time(10 * PULSE_S)
    assert len(broker.opened) == 1, "no second beat while the first one is under way"
    pipeline, _ = broker.opened[0]
    pipeline.failed(B, UnavailableError("it does not answer"))
    broker.settle()
    broker.pass_time(PULSE_S)
    assert len(broker.opened) == 2


def test_a_beat_that_fails_is_told_and_tried_again(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker(clock, PAIR, A, B)
    broker.settle()
    with caplog.at_level(logging.WARNING):
        broker.opened[0][0].failed(B, UnavailableError("connection reset"))
        broker.settle()
    assert "pulse of a journal failed" in caplog.text
    assert len(clock.pending) == 1
    broker.pass_time(PULSE_S)
    assert len(broker.opened) == 2


def test_too_few_members_are_nothing_to_be_told(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker(clock, PAIR, A)
    with caplog.at_level(logging.WARNING):
        broker.pass_time(3 * PULSE_S)
    assert not caplog.records
    assert len(broker.transactions) == 1, "the Route is advertised once, short as it is"


def test_it_ends_with_its_replica(clock: Clock) -> None:
    broker = settled(clock)
    broker.resolver.stop()
    broker.settle()
    assert clock.pending == []
    broker.pass_time(10 * PULSE_S)
    assert broker.beats == []


def test_a_beat_that_is_under_way_when_its_replica_is_given_up_is_the_last(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker(clock, PAIR, A, B)
    broker.settle()
    replica = broker.replica
    with caplog.at_level(logging.WARNING):
        broker.resolver.stop()
        broker.settle()
        broker.answer_all()
        broker.settle()
    assert replica.given_up.is_fired
    assert clock.pending == []
    assert not caplog.records, "a broker that goes away is no failure"


def test_a_replica_that_takes_the_place_of_another_beats_by_itself(clock: Clock) -> None:
    broker = settled(clock, PAIR, A, B)
    # A is demoted, and primary again: each time it is another replica.
    broker.etcd.assign((B, 0), (A, 1))
    broker.settle()
    broker.etcd.assign((A, 0), (B, 1))
    broker.settle()
    assert len(broker.spools) == 2
    assert len(broker.opened) == 2
    assert len(clock.pending) == 1
