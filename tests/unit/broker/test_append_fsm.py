from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from broker.append_content import AppendContent
from broker.append_demands import UNFLUSHED_AGE_S
from broker.append_effect import (
    Abandon,
    Acknowledge,
    Advertise,
    AwaitReady,
    Begin,
    Commit,
    Effect,
    Effects,
    EpochOpened,
    Fail,
    Finish,
    GiveBack,
    NextChunk,
    Open,
    Prepare,
    Proxy,
    ReadHead,
    Release,
    Resolve,
    Seal,
    Send,
    SetSuspend,
    Show,
    ShutDown,
    Synchronise,
    TakePipeline,
    TakeSpool,
    Voided,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    AppendOutcome,
    Cancelled,
    Chunk,
    ContentSealed,
    End,
    Event,
    Failed,
    HeadRead,
    Intent,
    Invalidated,
    Opened,
    PipelineTaken,
    Prepared,
    Ready,
    Resolved,
    Shown,
    SpoolTaken,
    Transacted,
)
from broker.append_fsm import AppendFSM
from broker.append_state import State
from broker.durable_head import DurableHead, Epoch, EpochTerms
from broker.head_opening import SYNC_ROUNDS_MAX, HeadOpening
from broker.pipeline import Ask, Pipeline, Sealed
from broker.replication_message import Answer
from broker.resolution import Resolution
from fragment.index import Summary
from protocol.codec import CompressionCodec
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.fragment import HEAD_MAX
from protocol.journal import Flag, JournalSpec, SuspendLevel, SuspendMode
from protocol.label import LabelSet
from protocol.route import ProcessId
from protocol.selector import LabelSelector
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    OK,
    POLICY,
    SPEC,
    VOID_HEAD,
    A,
    B,
    Built,
    C,
    MemorySpool,
    RecordingStream,
    built,
    committed_spool,
    fragment,
    header_of,
    labels,
    resolution_of,
    route_of,
    spool_id_of,
    suspended,
)

NOW_S = NOW_NS // 1_000_000_000
EMPTY = Summary(0, 0, 0)
ROUTE = route_of(A, B, C)
ROUTE_ALONE = route_of(A)
BROKEN = UnavailableError("the stream broke")


def refused(verdict: Effect) -> AppendOutcome:
    assert isinstance(verdict, Finish), verdict
    return verdict.outcome


def failed(verdict: Effect) -> GazetteError:
    assert isinstance(verdict, Fail), verdict
    return verdict.error


class Driven:
    """An AppendFSM, what it is asked, and a pipeline in which its effects happen."""

    def __init__(
        self,
        opening: AppendOpening | None = None,
        *,
        spec: JournalSpec = SPEC,
        held: MemorySpool | None = None,
        is_consistent: bool = True,
    ) -> None:
        self.fsm = AppendFSM(opening or AppendOpening(JOURNAL))
        self.replica = object()
        self.spec = spec
        self.is_consistent = is_consistent
        self.held = held or MemorySpool()
        self.built: Built | None = None
        self.asks: list[Ask] = []
        # Where members keep epochs: none, unless a test says so.
        self.spool_ids: dict[ProcessId, bytes] = {}
        assert self.fsm.start() == (Resolve(self.fsm.opening.min_revision),)

    @property
    def pipe(self) -> Built:
        assert self.built is not None
        return self.built

    def resolution(self, **changes: Any) -> Resolution:
        known: dict[str, Any] = {
            "spec": self.spec,
            "is_consistent": self.is_consistent,
            "replica": self.replica,
            **changes,
        }
        route = known.pop("route", ROUTE)
        spool_ids = {member: known_id for member, known_id in self.spool_ids.items() if member in route.members}
        return replace(resolution_of(route, **known), spool_ids=spool_ids)

    def step(self, event: Event) -> Effects:
        effects = self.fsm.step(event, NOW_NS)
        for effect in effects:
            self._perform(effect)
        return effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Synchronise(pipeline, held, registers, is_first):
                ask = pipeline.synchronise if is_first else pipeline.ask
                ask(held, registers, NOW_NS, self.asks.append)
            case Begin(pipeline, held, registers):
                pipeline.begin(held, registers, NOW_NS)
            case Send(pipeline, data, delta):
                pipeline.content(data, delta)
            case Commit(pipeline, held, registers):
                pipeline.ask(held, registers, NOW_NS, self.asks.append)
            case Acknowledge(pipeline, through) | Show(pipeline, through):
                pipeline.acknowledge(through)
                pipeline.held.acked(through, lambda: pipeline.shown(through))
            case EpochOpened(pipeline, terms, _):
                pipeline.opened(terms)
            case ShutDown(pipeline):
                pipeline.close()
            case Prepare(held, fate):
                held.prepare(fate, lambda _: None)
            case Release(held):
                held.release()
            case _:
                pass

    def resolve(self, **changes: Any) -> Effects:
        return self.step(Resolved(self.resolution(**changes)))

    def open(self, held: MemorySpool | None = None) -> Effects:
        """Take the spool and build the pipeline for the latest Resolution."""
        held = held or self.held
        assert self.step(SpoolTaken(held)) == (ReadHead(),)
        assert self.step(HeadRead(VOID_HEAD, 1)) == (Open(held, self.resolution_held, None),)
        self.built = built(self.resolution_held.header.route, held=held, terms=None)
        return self.step(Opened(self.built.pipeline))

    def prepared(self) -> Effects:
        """As in epochs: the spool is ready, and the pipeline is built for the terms that go with the record."""
        (effect,) = self.step(Prepared())
        assert isinstance(effect, Open)
        assert effect.terms is not None
        return self.open_as_it_is(effect.terms)

    def open_as_it_is(self, terms: EpochTerms | None = None) -> Effects:
        """Build the pipeline over the spool that was taken."""
        header, kin = self.resolution_held.header, frozenset(ROUTE.members)
        pipeline = Pipeline(header, A, self.held, kin, terms, spool_id_of(A))
        streams = {peer: RecordingStream() for peer in pipeline.peers}
        pipeline.connect(streams)
        self.built = Built(pipeline, self.held, streams)
        return self.step(Opened(pipeline))

    @property
    def resolution_held(self) -> Resolution:
        assert self.fsm.resolution is not None
        return self.fsm.resolution

    def answered(self, answer: Answer = OK) -> Effects:
        """All peers answer alike what they were asked last."""
        self.pipe.answer_all(answer)
        return self.step(Answered(self.asks.pop()))

    def sealed(self) -> Effects:
        taken: list[Sealed | Exception] = []
        self.held.seal(taken.append)
        assert isinstance(taken[0], Sealed)
        return self.step(ContentSealed(taken[0]))


def acquiring(**changes: Any) -> Driven:
    driven = Driven(**changes)
    assert driven.resolve() == (TakePipeline(),)
    return driven


def starting(**changes: Any) -> Driven:
    driven = acquiring(**changes)
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    return driven


def reading_head(**changes: Any) -> Driven:
    driven = starting(**changes)
    assert driven.step(SpoolTaken(driven.held)) == (ReadHead(),)
    return driven


def synchronising(**changes: Any) -> Driven:
    driven = starting(**changes)
    driven.open()
    assert driven.fsm.state is State.SYNCHRONISE
    return driven


def validating(**changes: Any) -> Driven:
    driven = synchronising(**changes)
    assert isinstance(driven.answered()[-1], AwaitReady)
    return driven


def streaming(summary: Summary = EMPTY, **changes: Any) -> Driven:
    driven = validating(**changes)
    assert driven.step(Ready(summary))[-1] == NextChunk()
    return driven


def sealing(content: bytes = b"hello", **changes: Any) -> Driven:
    driven = streaming(**changes)
    driven.step(Chunk(content))
    driven.step(Intent())
    assert driven.step(End()) == (Seal(driven.pipe.pipeline),)
    return driven


def reading_acks(content: bytes = b"hello", **changes: Any) -> Driven:
    driven = sealing(content, **changes)
    driven.sealed()
    assert driven.fsm.state is State.READ_ACKS
    return driven


def rolling_back(**changes: Any) -> Driven:
    driven = streaming(**changes)
    driven.step(Chunk(b"hello"))
    driven.step(End())
    assert driven.fsm.state is State.READ_ROLLBACK_ACKS
    return driven


def opening_pipeline(**changes: Any) -> Driven:
    driven = reading_head(**changes)
    driven.step(HeadRead(VOID_HEAD, 1))
    assert driven.fsm.state is State.OPEN_PIPELINE
    return driven


def advertising(**changes: Any) -> Driven:
    driven = synchronising(is_consistent=False, **changes)
    driven.answered()
    assert driven.fsm.state is State.UPDATE_ASSIGNMENTS
    return driven


def resuming(**changes: Any) -> Driven:
    driven = Driven(**changes)
    driven.resolve(status=Status.SUSPENDED, spec=suspended(SuspendLevel.FULL, 7))
    assert driven.fsm.state is State.UPDATE_SUSPEND
    return driven


def showing(**changes: Any) -> Driven:
    driven = reading_acks(**changes)
    driven.answered()
    assert driven.fsm.state is State.SHOW
    return driven


def proxying(**changes: Any) -> Driven:
    driven = Driven(**changes)
    driven.resolve(route=route_of(A, B, C, primary=B))
    assert driven.fsm.state is State.PROXY
    return driven


def finished(**changes: Any) -> Driven:
    driven = showing(**changes)
    driven.step(Shown())
    assert driven.fsm.state is State.FINISHED
    return driven


OPEN_HEAD = DurableHead(4, (Epoch(1, 0, (b"elsewhere",)),))
"""Its only holder is no member."""


def preparing(**changes: Any) -> Driven:
    driven = Driven(**changes)
    driven.spool_ids = {member: spool_id_of(member) for member in ROUTE.members}
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    assert driven.step(HeadRead(OPEN_HEAD, 8)) == (Prepare(driven.held, None),)
    return driven


def confirming(**changes: Any) -> Driven:
    driven = preparing(opening=AppendOpening(JOURNAL, offset=5), **changes)
    driven.prepared()
    assert driven.answered() == (NextChunk(),)
    assert driven.fsm.state is State.CONFIRM_RESET
    return driven


def listing(**changes: Any) -> Driven:
    driven = confirming(**changes)
    assert driven.step(Intent()) == (NextChunk(),)
    assert driven.step(End()) == (AwaitReady(is_fresh=True),)
    assert driven.fsm.state is State.AWAIT_LISTING
    return driven


STATES: dict[State, Callable[[], Driven]] = {
    State.RESOLVE: Driven,
    State.ACQUIRE_PIPELINE: acquiring,
    State.START_PIPELINE: starting,
    State.READ_HEAD: reading_head,
    State.PREPARE_SPOOL: preparing,
    State.OPEN_PIPELINE: opening_pipeline,
    State.SYNCHRONISE: synchronising,
    State.CONFIRM_RESET: confirming,
    State.AWAIT_LISTING: listing,
    State.UPDATE_ASSIGNMENTS: advertising,
    State.UPDATE_SUSPEND: resuming,
    State.VALIDATE_PRECONDITIONS: validating,
    State.STREAM_CONTENT: streaming,
    State.SEAL_CONTENT: sealing,
    State.READ_ACKS: reading_acks,
    State.READ_ROLLBACK_ACKS: rolling_back,
    State.SHOW: showing,
    State.PROXY: proxying,
    State.FINISHED: finished,
}


def test_every_state_is_reached_by_a_builder_of_these_tests() -> None:
    assert set(STATES) == set(State)


# The common path.


def test_an_append_on_a_fresh_cluster_goes_from_resolution_to_ok() -> None:
    driven = Driven(AppendOpening(JOURNAL, min_revision=3))
    assert driven.resolve() == (TakePipeline(),)
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    (synchronise,) = driven.open()
    pipeline = driven.pipe.pipeline
    assert synchronise == Synchronise(pipeline, fragment(0), LabelSet(), True)
    assert driven.answered() == (Voided(), Acknowledge(pipeline, 0), AwaitReady())
    assert driven.step(Ready(EMPTY)) == (NextChunk(),)
    assert driven.step(Chunk(b"hel")) == (Send(pipeline, b"hel", 0), NextChunk())
    assert driven.step(Chunk(b"lo")) == (Send(pipeline, b"lo", 3), NextChunk())
    assert driven.step(Intent()) == (NextChunk(),)
    assert driven.step(End()) == (Seal(pipeline),)
    assert driven.sealed() == (Commit(pipeline, fragment(0, b"hello"), LabelSet()), GiveBack(pipeline))
    assert not pipeline.is_owned
    assert driven.answered() == (Show(pipeline, 5),)
    (verdict,) = driven.step(Shown())
    commit = fragment(0, b"hello")
    assert refused(verdict) == AppendOutcome(Status.OK, driven.resolution().header, commit, LabelSet())
    assert driven.fsm.is_over


def test_a_synchronised_pipeline_with_the_same_route_is_used_without_a_round_trip() -> None:
    driven = acquiring()
    driven.built = built(ROUTE, held=committed_spool(b"x" * 10, 5, labels(k="v"), acked=15))
    assert driven.step(PipelineTaken(driven.built.pipeline)) == (AwaitReady(),)
    assert driven.built.streams[B].sent == []


def test_an_equivalent_route_with_other_endpoints_is_the_same_route() -> None:
    driven = acquiring()
    driven.built = built(replace(ROUTE, endpoints=("http://x", "http://y", "http://z")))
    assert driven.step(PipelineTaken(driven.built.pipeline)) == (AwaitReady(),)


def test_a_pipeline_with_another_route_is_shut_down_and_rebuilt() -> None:
    driven = acquiring()
    old = built(route_of(A, B))
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())
    assert old.streams[B].is_half_closed
    assert old.held.releases == 1
    (synchronise,) = driven.open(old.held)
    assert isinstance(synchronise, Synchronise)
    assert synchronise.is_first


@pytest.mark.parametrize("member", [A, B])
def test_a_broken_pipeline_is_rebuilt_by_the_next_append_and_not_used(member: object) -> None:
    driven = acquiring()
    old = built(ROUTE)
    old.pipeline.failed(B if member == B else A, BROKEN)
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())


def test_the_first_proposal_of_a_pipeline_has_the_codec_of_the_spec() -> None:
    gzip = replace(SPEC, fragment=replace(POLICY, compression_codec=CompressionCodec.GZIP))
    driven = starting(spec=gzip)
    (synchronise,) = driven.open()
    assert isinstance(synchronise, Synchronise)
    assert synchronise.fragment == fragment(0, codec=CompressionCodec.GZIP)


# Resolution.


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_refused_resolution_is_the_answer(status: Status) -> None:
    driven = Driven(AppendOpening(JOURNAL, suspend=SuspendMode.NO_RESUME))
    (verdict,) = driven.resolve(status=status)
    outcome = refused(verdict)
    assert outcome == AppendOutcome(status, driven.resolution_held.header)
    assert outcome.header.process_id == A
    assert outcome.registers is None
    assert outcome.commit is None


def test_a_resolution_that_fails_ends_the_append() -> None:
    driven = Driven()
    assert driven.step(Failed(BROKEN)) == (Fail(BROKEN),)


def test_a_fully_suspended_journal_is_resumed_at_its_stored_offset_and_resolved_again() -> None:
    driven = Driven()
    full = suspended(SuspendLevel.FULL, 77)
    (effect,) = driven.resolve(status=Status.SUSPENDED, spec=full)
    assert effect == SetSuspend(driven.resolution_held, SuspendLevel.NONE, 77)
    assert driven.step(Transacted(20)) == (Resolve(20),)
    (verdict,) = driven.resolve(status=Status.NO_JOURNAL_PRIMARY_BROKER)
    assert refused(verdict).status is Status.NO_JOURNAL_PRIMARY_BROKER


@pytest.mark.parametrize("mode", [mode for mode in SuspendMode if mode is not SuspendMode.RESUME])
def test_a_fully_suspended_journal_refuses_all_who_do_not_resume_it(mode: SuspendMode) -> None:
    driven = Driven(AppendOpening(JOURNAL, suspend=mode))
    (verdict,) = driven.resolve(status=Status.SUSPENDED, spec=suspended(SuspendLevel.FULL, 77))
    assert refused(verdict).status is Status.SUSPENDED


def test_an_append_whose_primary_is_elsewhere_is_proxied() -> None:
    driven = Driven()
    (effect,) = driven.resolve(route=route_of(A, B, C, primary=B))
    assert effect == Proxy(driven.resolution_held)
    assert driven.fsm.is_over


def test_replicas_are_counted_before_an_append_is_proxied_and_the_answer_names_the_primary() -> None:
    driven = Driven()
    (verdict,) = driven.resolve(route=route_of(A, B, primary=B))
    outcome = refused(verdict)
    assert outcome.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert outcome.header.process_id == B


def test_an_append_to_be_proxied_waits_while_there_are_too_many_members() -> None:
    driven = Driven(spec=replace(SPEC, replication=2))
    assert driven.resolve(route=route_of(A, B, C, primary=B), revision=30) == (Resolve(31),)
    (effect,) = driven.resolve(route=route_of(B, C, primary=B), revision=31)
    assert isinstance(effect, Proxy)


def test_who_is_primary_no_more_gives_the_pipeline_back_shut_down_before_it_is_proxied() -> None:
    driven = advertising()
    driven.step(Transacted(12))
    effects = driven.resolve(route=route_of(A, B, C, primary=B), is_consistent=True, revision=12)
    pipeline = driven.pipe.pipeline
    assert effects == (ShutDown(pipeline), GiveBack(None), Proxy(driven.resolution_held))


def test_an_append_that_holds_the_pipeline_keeps_it_when_it_resolves_again() -> None:
    driven = advertising()
    driven.is_consistent = True
    assert driven.step(Transacted(12)) == (Resolve(12),)
    assert driven.resolve(revision=12) == (AwaitReady(),)


def test_the_pipeline_of_a_replica_that_is_no_more_is_given_back_and_that_of_the_new_one_taken() -> None:
    driven = advertising()
    driven.step(Transacted(12))
    old = driven.pipe.pipeline
    driven.replica = object()
    driven.is_consistent = True
    assert driven.resolve(revision=12) == (ShutDown(old), GiveBack(None), TakePipeline())
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    driven.open(MemorySpool())
    assert driven.pipe.pipeline is not old
    assert isinstance(driven.answered()[-1], AwaitReady)


def test_an_empty_slot_of_a_replica_that_is_no_more_is_given_back_too() -> None:
    driven = starting()
    assert driven.step(Invalidated()) == (Resolve(0),)
    driven.replica = object()
    assert driven.resolve() == (GiveBack(None), TakePipeline())


# Waiting.


def test_an_append_that_waits_for_the_pipeline_resolves_again_when_it_is_invalidated() -> None:
    driven = acquiring()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (TakePipeline(),)


def test_an_append_that_waits_for_the_spool_resolves_again_and_keeps_the_pipeline() -> None:
    driven = starting()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (TakeSpool(),)


def test_an_append_that_waits_for_stores_resolves_again_and_keeps_the_pipeline() -> None:
    driven = validating()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (AwaitReady(),)


def test_the_pipeline_is_rebuilt_if_the_route_changed_while_an_append_waited_for_stores() -> None:
    driven = validating()
    two = replace(SPEC, replication=2)
    assert driven.step(Invalidated()) == (Resolve(0),)
    old = driven.pipe.pipeline
    assert driven.resolve(route=route_of(A, B), spec=two) == (ShutDown(old), TakeSpool())


@pytest.mark.parametrize("state", [State.RESOLVE, State.ACQUIRE_PIPELINE])
def test_a_cancelled_append_that_has_nothing_leaves_without_a_trace(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == (Abandon(),)
    assert driven.fsm.is_over


def test_a_cancelled_append_that_waits_for_the_spool_gives_the_empty_slot_back() -> None:
    assert starting().step(Cancelled()) == (GiveBack(None), Abandon())


def test_a_cancelled_append_that_waits_for_stores_gives_the_pipeline_back_whole() -> None:
    driven = validating()
    pipeline = driven.pipe.pipeline
    assert driven.step(Cancelled()) == (GiveBack(pipeline), Abandon())
    assert not pipeline.is_broken
    assert not pipeline.is_owned


@pytest.mark.parametrize(
    "state",
    [State.OPEN_PIPELINE, State.SYNCHRONISE, State.UPDATE_ASSIGNMENTS, State.UPDATE_SUSPEND, State.SEAL_CONTENT],
)
def test_what_is_under_way_is_seen_through_and_then_nothing_more_is_done(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    assert driven.fsm.state is state
    match state:
        case State.OPEN_PIPELINE:
            driven.built = built(ROUTE, held=driven.held, terms=None)
            driven.step(Opened(driven.built.pipeline))
            effects = driven.answered()
        case State.SYNCHRONISE:
            effects = driven.answered()
        case State.SEAL_CONTENT:
            effects = driven.sealed()
            assert effects == (
                Commit(driven.pipe.pipeline, fragment(0), LabelSet()),
                GiveBack(driven.pipe.pipeline),
            )
            assert driven.answered() == (Abandon(),)
            assert driven.held.spool.fragment.end == 0
            return
        case _:
            effects = driven.step(Transacted(12))
    given = () if driven.built is None else (GiveBack(driven.built.pipeline),)
    assert effects[-1 - len(given) :] == (*given, Abandon())
    assert driven.fsm.is_over


@pytest.mark.parametrize("state", [State.READ_ACKS, State.SHOW])
def test_a_commit_that_is_proposed_is_seen_through_though_nobody_waits_for_it(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    if state is State.READ_ACKS:
        assert driven.answered() == (Show(driven.pipe.pipeline, 5),)
    (verdict,) = driven.step(Shown())
    assert refused(verdict).status is Status.OK


def test_a_cancelled_append_rolls_back_what_it_has_sent_and_gives_the_pipeline_back() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    pipeline = driven.pipe.pipeline
    assert driven.step(Cancelled()) == (Commit(pipeline, fragment(0), LabelSet()), GiveBack(pipeline))
    assert driven.answered() == (Abandon(),)
    assert driven.held.spool.next() == fragment(0)


def test_a_cancelled_append_that_has_sent_nothing_needs_no_roll_back() -> None:
    driven = streaming()
    assert driven.step(Cancelled()) == (GiveBack(driven.pipe.pipeline), Abandon())


@pytest.mark.parametrize("state", [State.PROXY, State.FINISHED, State.READ_ROLLBACK_ACKS])
def test_a_cancellation_comes_too_late_for_what_is_over(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    assert driven.fsm.state is state


def test_a_cancelled_append_that_is_resolved_again_ends_there() -> None:
    driven = advertising()
    driven.step(Cancelled())
    effects = driven.step(Transacted(None))
    assert effects == (GiveBack(driven.pipe.pipeline), Abandon())


# Synchronisation.


def test_a_stream_that_breaks_while_synchronising_fails_the_append_and_empties_the_slot() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.answered(C, OK)
    pipeline.failed(B, BROKEN)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert "zone/broker-b" in str(failed(effects[2]))
    assert driven.held.releases == 1


def test_an_own_spool_that_fails_while_synchronising_fails_the_append() -> None:
    driven = starting()
    driven.held.fault = OSError("disk full")
    driven.open()
    driven.pipe.answer_all(OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), UnavailableError)


def test_a_peer_that_is_further_is_followed_with_its_registers() -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"y" * 15), registers=labels(k="v")))
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(15), labels(k="v"), False),)
    assert driven.pipe.streams[B].proposals[-1].header is None
    assert driven.answered() == (Voided(), Acknowledge(pipeline, 15), AwaitReady())
    assert driven.held.spool.registers == labels(k="v")


def test_a_peer_that_just_joined_makes_all_begin_a_fragment() -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10, registers=labels(k="v")))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(10), registers=labels(k="v")))
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(10), labels(k="v"), False),)
    assert driven.held.completed == [fragment(0, b"x" * 10)]


def test_peers_of_which_no_two_agree_end_the_append() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    effects: Effects = ()
    for round_ in range(SYNC_ROUNDS_MAX):
        pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(10 * (round_ + 1))))
        pipeline.answered(C, OK)
        effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert "no agreement" in str(failed(effects[2]))


def test_a_later_route_of_a_peer_is_waited_for() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    later = header_of(route_of(A, B), B, revision=44)
    pipeline.answered(B, Answer(Status.WRONG_ROUTE, later))
    pipeline.ended(B)
    pipeline.answered(C, OK)
    assert driven.step(Answered(driven.asks.pop())) == (ShutDown(pipeline), Resolve(44))
    two = replace(SPEC, replication=2)
    assert driven.resolve(route=route_of(A, B), spec=two, revision=44) == (TakeSpool(),)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(Status.WRONG_ROUTE, header_of(route_of(A, B), B, revision=10)),
        Answer(Status.WRONG_ROUTE, header_of(ROUTE, B, revision=99)),
        Answer(Status.WRONG_ROUTE),
        Answer(Status.JOURNAL_NOT_FOUND, header_of(ROUTE, B)),
        Answer(Status.PROPOSAL_MISMATCH),
        Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"z" * 10)),
        Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"z")),
    ],
    ids=["older", "same route", "no header", "not found", "no fragment", "other content", "behind"],
)
def test_a_peer_that_cannot_be_synchronised_with_ends_the_append(answer: Answer) -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, answer)
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert "zone/broker-b" in str(failed(effects[2]))


def test_a_peer_that_is_further_outweighs_a_later_route_and_then_the_stream_has_ended() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.WRONG_ROUTE, header_of(route_of(A, B), B, revision=44)))
    pipeline.ended(B)
    pipeline.answered(C, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"yy")))
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(2), LabelSet(), False),)
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert isinstance(effects[-1], Fail)


@pytest.mark.parametrize("answer", [OK, Answer(Status.WRONG_ROUTE), BROKEN])
def test_a_pipeline_whose_replica_is_given_up_while_it_synchronises_is_left_and_resolved_again(
    answer: Answer | UnavailableError,
) -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.close()
    for peer in (B, C):
        if isinstance(answer, Answer):
            pipeline.answered(peer, answer)
        else:
            pipeline.failed(peer, answer)
    assert driven.step(Answered(driven.asks.pop())) == (ShutDown(pipeline), Resolve(0))
    driven.replica = object()
    assert driven.resolve() == (GiveBack(None), TakePipeline())


def test_a_pipeline_that_is_older_than_an_assignment_is_rebuilt_though_the_route_is_the_same() -> None:
    """The member has been assigned anew since, and so has a replica to which the stream does not lead."""
    driven = acquiring()
    old = built(ROUTE, revision=4)
    assert [kv.create_revision for kv in driven.resolution_held.assignments] == [5, 5, 5]
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())


# Assignments and replicas.


def test_the_route_is_advertised_until_all_assignments_have_it() -> None:
    driven = synchronising(is_consistent=False)
    assert driven.answered()[-1] == Advertise(driven.resolution_held)
    assert driven.step(Transacted(12)) == (Resolve(12),)
    assert driven.resolve(revision=12) == (Advertise(driven.resolution_held),)


def test_an_advertisement_that_lost_its_race_waits_for_the_next_revision_and_not_for_etcds_own() -> None:
    driven = advertising()
    assert driven.step(Transacted(None)) == (Resolve(11),)


def test_an_etcd_that_fails_ends_the_append_but_not_the_pipeline() -> None:
    driven = advertising()
    pipeline = driven.pipe.pipeline
    assert driven.step(Failed(BROKEN)) == (GiveBack(pipeline), Fail(BROKEN))
    assert not pipeline.is_broken


def test_with_too_many_replicas_the_pipeline_is_held_and_no_content_sent() -> None:
    driven = synchronising(spec=replace(SPEC, replication=2))
    effects = driven.answered()
    assert effects[-1] == Resolve(11)
    assert not any(isinstance(effect, GiveBack) for effect in effects)
    assert driven.pipe.streams[B].contents == []
    old = driven.pipe.pipeline
    assert driven.resolve(route=route_of(A, B), revision=11) == (ShutDown(old), TakeSpool())


def test_a_cancelled_append_that_waits_for_fewer_replicas_gives_the_pipeline_back() -> None:
    driven = synchronising(spec=replace(SPEC, replication=2))
    driven.answered()
    assert driven.step(Cancelled()) == (GiveBack(driven.pipe.pipeline), Abandon())


def test_with_too_few_replicas_nothing_is_written_and_the_pipeline_given_back() -> None:
    driven = synchronising(spec=replace(SPEC, replication=4))
    effects = driven.answered()
    assert effects[-2] == GiveBack(driven.pipe.pipeline)
    assert refused(effects[-1]).status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert refused(effects[-1]).header.process_id == A
    assert driven.pipe.streams[B].contents == []


# Preconditions, in their order.

BAD = AppendOpening(JOURNAL, check_registers=LabelSelector(labels(k="other")), offset=3)


def test_an_unhealthy_store_comes_before_everything_else() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    effects = driven.step(Ready(Summary(0, 50, 1), "store unhealthy"))
    outcome = refused(effects[-1])
    assert outcome.status is Status.FRAGMENT_STORE_UNHEALTHY
    assert outcome.store_health_error == "store unhealthy"
    assert effects[0] == GiveBack(driven.pipe.pipeline)


def test_registers_come_before_the_suspended_offset() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    outcome = refused(driven.step(Ready(Summary(0, 50, 1)))[-1])
    assert outcome.status is Status.REGISTER_MISMATCH
    assert outcome.registers == labels(k="v")


def test_the_suspended_offset_comes_before_what_the_index_holds() -> None:
    held = committed_spool(b"x" * 10, acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    effects = driven.step(Ready(Summary(0, 600, 1)))
    assert effects == (Synchronise(driven.pipe.pipeline, fragment(500), LabelSet(), False),)
    assert driven.answered() == (AwaitReady(),)
    assert refused(driven.step(Ready(Summary(0, 600, 1)))[-1]).status is Status.WRONG_APPEND_OFFSET


def test_a_spec_that_is_suspended_where_no_journal_ends_fails_appends_and_nothing_else() -> None:
    """Gazette takes such a spec for valid: with one more append, offsets would not fit the wire."""
    driven = validating(spec=suspended(SuspendLevel.NONE, HEAD_MAX + 1))
    given_back, failed = driven.step(Ready(EMPTY))
    assert given_back == GiveBack(driven.pipe.pipeline)
    assert isinstance(failed, Fail)
    assert "suspended beyond" in str(failed.error)


def test_an_index_that_is_further_refuses_an_append_that_names_no_offset() -> None:
    driven = validating()
    assert refused(driven.step(Ready(Summary(0, 600, 1)))[-1]).status is Status.INDEX_HAS_GREATER_OFFSET


def test_a_journal_that_is_only_read_takes_barriers_below_what_the_index_holds() -> None:
    driven = validating(spec=replace(SPEC, flags=Flag.O_RDONLY))
    assert driven.step(Ready(Summary(0, 600, 1)))[-1] == NextChunk()


@pytest.mark.parametrize("offset", [1, 9, 11, 600])
def test_an_offset_that_is_not_the_greatest_known_is_refused(offset: int) -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=offset), held=committed_spool(b"x" * 10, acked=10))
    assert refused(driven.step(Ready(Summary(0, 10, 0)))[-1]).status is Status.WRONG_APPEND_OFFSET


def test_an_offset_at_the_head_passes() -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=10), held=committed_spool(b"x" * 10, acked=10))
    assert driven.step(Ready(Summary(0, 10, 0)))[-1] == NextChunk()


def test_an_offset_at_the_head_passes_before_readers_were_shown_it() -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=10), held=committed_spool(b"x" * 10, acked=0))
    assert driven.step(Ready(EMPTY))[-1] == NextChunk()


def test_an_offset_at_the_end_of_the_index_moves_the_head_there() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=AppendOpening(JOURNAL, offset=600), held=held)
    effects = driven.step(Ready(Summary(0, 600, 1)))
    assert effects == (Synchronise(driven.pipe.pipeline, fragment(600), labels(k="v"), False),)
    driven.answered()
    assert driven.step(Ready(Summary(0, 600, 1)))[-1] == NextChunk()
    driven.step(Intent())
    assert driven.step(End())[0] == Commit(driven.pipe.pipeline, fragment(600), labels(k="v"))


@pytest.mark.parametrize(
    ("held", "check", "passes"),
    [
        (LabelSet(), labels(k="v"), True),
        (labels(k="v"), labels(k="v"), True),
        (labels(k="w"), labels(k="v"), False),
        (labels(j="v"), labels(k="v"), False),
    ],
)
def test_registers_are_checked_unless_there_are_none(held: LabelSet, check: LabelSet, passes: bool) -> None:
    opening = AppendOpening(JOURNAL, check_registers=LabelSelector(check))
    driven = validating(opening=opening, held=committed_spool(b"x", registers=held, acked=1))
    last = driven.step(Ready(Summary(0, 1, 0)))[-1]
    assert last == NextChunk() if passes else refused(last).status is Status.REGISTER_MISMATCH


def test_an_excluding_check_of_registers_refuses_too() -> None:
    opening = AppendOpening(JOURNAL, check_registers=LabelSelector(exclude=labels(k="")))
    driven = validating(opening=opening, held=committed_spool(b"x", registers=labels(k="v"), acked=1))
    assert refused(driven.step(Ready(Summary(0, 1, 0)))[-1]).status is Status.REGISTER_MISMATCH


def test_a_pipeline_that_breaks_while_stores_are_listed_is_rebuilt_and_nobody_is_told() -> None:
    driven = validating()
    old = driven.pipe.pipeline
    old.failed(B, BROKEN)
    assert driven.step(Ready(EMPTY)) == (ShutDown(old), TakeSpool())
    driven.open()
    assert isinstance(driven.answered()[-1], AwaitReady)


def test_stores_that_cannot_be_waited_for_end_the_append_and_not_the_pipeline() -> None:
    driven = validating()
    assert driven.step(Failed(BROKEN)) == (GiveBack(driven.pipe.pipeline), Fail(BROKEN))


# Suspension: each mode at each level.

LEVELS = (SuspendLevel.NONE, SuspendLevel.PARTIAL)
LOCAL = Summary(0, 10, 0)
OLD = Summary(0, 10, NOW_S - UNFLUSHED_AGE_S)
RECENT = Summary(0, 10, NOW_S - UNFLUSHED_AGE_S + 1)


def judged_suspend(mode: SuspendMode, level: SuspendLevel, summary: Summary, end: int = 10) -> tuple[Driven, Effect]:
    """An append to a journal whose spool is empty at `end`, with all replicas that its level demands."""
    spec = suspended(level, 0)
    driven = Driven(AppendOpening(JOURNAL, suspend=mode), spec=spec, held=committed_spool(begin=end, acked=end))
    route = ROUTE_ALONE if level is SuspendLevel.PARTIAL else ROUTE
    driven.resolve(route=route)
    driven.step(PipelineTaken(None))
    driven.open()
    driven.answered()
    return driven, driven.step(Ready(summary))[-1]


@pytest.mark.parametrize(
    ("mode", "level", "summary", "expected"),
    [
        (SuspendMode.RESUME, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.RESUME, SuspendLevel.PARTIAL, OLD, SuspendLevel.NONE),
        (SuspendMode.RESUME, SuspendLevel.NONE, EMPTY, "proceed"),
        (SuspendMode.NO_RESUME, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.NO_RESUME, SuspendLevel.PARTIAL, OLD, Status.SUSPENDED),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, EMPTY, SuspendLevel.FULL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, OLD, SuspendLevel.PARTIAL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, RECENT, "proceed"),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, LOCAL, "proceed"),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, EMPTY, SuspendLevel.FULL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, OLD, Status.SUSPENDED),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, LOCAL, Status.SUSPENDED),
        (SuspendMode.NOW, SuspendLevel.NONE, EMPTY, SuspendLevel.FULL),
        (SuspendMode.NOW, SuspendLevel.NONE, LOCAL, SuspendLevel.PARTIAL),
        (SuspendMode.NOW, SuspendLevel.NONE, OLD, SuspendLevel.PARTIAL),
        (SuspendMode.NOW, SuspendLevel.PARTIAL, EMPTY, SuspendLevel.FULL),
        (SuspendMode.NOW, SuspendLevel.PARTIAL, RECENT, Status.SUSPENDED),
        (SuspendMode.KEEP, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.KEEP, SuspendLevel.PARTIAL, OLD, "proceed"),
        (SuspendMode.KEEP, SuspendLevel.PARTIAL, EMPTY, "proceed"),
    ],
)
def test_each_mode_at_each_level_of_suspension(
    mode: SuspendMode, level: SuspendLevel, summary: Summary, expected: object
) -> None:
    driven, effect = judged_suspend(mode, level, summary)
    if expected == "proceed":
        assert effect == NextChunk()
    elif isinstance(expected, Status):
        assert refused(effect).status is expected
        assert not driven.pipe.pipeline.is_owned
    else:
        assert effect == SetSuspend(driven.resolution_held, expected, 10)  # type: ignore[arg-type]
        assert driven.step(Transacted(33)) == (Resolve(33),)


def test_a_flush_interval_says_when_a_journal_is_idle() -> None:
    flushed = replace(SPEC, fragment=replace(POLICY, flush_interval_ns=60_000_000_000))
    for age_s, is_idle in ((59, False), (60, True)):
        opening = AppendOpening(JOURNAL, suspend=SuspendMode.IF_FLUSHED)
        driven = validating(opening=opening, spec=flushed, held=committed_spool(begin=10, acked=10))
        (effect,) = driven.step(Ready(Summary(0, 10, NOW_S - age_s)))
        assert isinstance(effect, SetSuspend) == is_idle


def test_to_suspend_now_what_the_spool_holds_is_handed_on_first() -> None:
    opening = AppendOpening(JOURNAL, suspend=SuspendMode.NOW)
    driven = validating(opening=opening, held=committed_spool(b"x" * 10, registers=labels(k="v"), acked=10))
    pipeline = driven.pipe.pipeline
    assert driven.step(Ready(LOCAL)) == (Synchronise(pipeline, fragment(10), labels(k="v"), False),)
    assert driven.held.completed == [fragment(0, b"x" * 10)]
    driven.answered()
    assert driven.step(Ready(LOCAL)) == (SetSuspend(driven.resolution_held, SuspendLevel.PARTIAL, 10),)


def test_a_journal_with_bytes_that_no_reader_was_shown_is_not_empty() -> None:
    opening = AppendOpening(JOURNAL, suspend=SuspendMode.IF_FLUSHED)
    driven = validating(opening=opening, held=committed_spool(b"x" * 10, acked=0))
    assert driven.step(Ready(EMPTY))[-1] == NextChunk()


def test_a_journal_whose_closed_fragment_no_reader_was_shown_is_not_empty() -> None:
    for mode in (SuspendMode.IF_FLUSHED, SuspendMode.NOW):
        driven = validating(opening=AppendOpening(JOURNAL, suspend=mode), held=committed_spool(begin=10, acked=10))
        driven.pipe.pipeline.shown_through = 5
        last = driven.step(Ready(EMPTY))[-1]
        if mode is SuspendMode.IF_FLUSHED:
            assert last == NextChunk()
        else:
            assert last == SetSuspend(driven.resolution_held, SuspendLevel.PARTIAL, 10)


def test_the_append_that_suspended_waits_until_the_other_replicas_are_gone_and_then_says_so() -> None:
    driven, effect = judged_suspend(SuspendMode.NOW, SuspendLevel.NONE, LOCAL)
    assert isinstance(effect, SetSuspend)
    driven.step(Transacted(33))
    partial = suspended(SuspendLevel.PARTIAL, 10)
    driven.is_consistent = False
    assert driven.resolve(spec=partial, revision=33, is_consistent=True) == (Resolve(34),)
    old = driven.pipe.pipeline
    assert driven.resolve(spec=partial, revision=34, route=ROUTE_ALONE, is_consistent=True) == (
        ShutDown(old),
        TakeSpool(),
    )
    driven.open()
    driven.step(Answered(driven.asks.pop()))
    assert refused(driven.step(Ready(LOCAL))[-1]).status is Status.SUSPENDED


@pytest.mark.parametrize("mode", [SuspendMode.IF_FLUSHED, SuspendMode.NOW, SuspendMode.KEEP])
def test_what_is_about_suspension_takes_no_content(mode: SuspendMode) -> None:
    # Of the three only KEEP gets so far with every index; the other two do while there is something unflushed.
    held = committed_spool(b"x" * 10, acked=10)
    level = SuspendLevel.NONE
    opening = AppendOpening(JOURNAL, suspend=mode)
    driven = validating(opening=opening, held=held, spec=suspended(level))
    if mode is SuspendMode.NOW:
        # It suspends whatever comes, so that content never gets here.
        assert isinstance(driven.step(Ready(LOCAL))[0], Synchronise)
        return
    driven.step(Ready(LOCAL))
    before = driven.held.spool.fragment
    effects = driven.step(Chunk(b"no"))
    assert effects[0] == GiveBack(driven.pipe.pipeline)
    assert refused(effects[1]).status is Status.NOT_ALLOWED
    assert driven.held.spool.fragment == before


def test_a_journal_that_is_only_read_takes_no_content() -> None:
    driven = streaming(spec=replace(SPEC, flags=Flag.O_RDONLY))
    effects = driven.step(Chunk(b"no"))
    assert refused(effects[-1]).status is Status.NOT_ALLOWED
    assert driven.pipe.streams[B].contents == []


# Content.


def test_the_first_fragment_of_a_journal_is_closed_by_the_second_append() -> None:
    driven = validating(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    effects = driven.step(Ready(LOCAL))
    assert effects == (Begin(pipeline, fragment(10), LabelSet()), NextChunk())
    assert [proposal.acknowledge for proposal in driven.pipe.streams[B].proposals] == [True, False]


def test_a_fragment_that_is_not_the_first_is_gone_on_with() -> None:
    held = committed_spool(b"x" * 10, 5, acked=15)
    driven = validating(held=held)
    assert driven.step(Ready(Summary(0, 15, 0))) == (NextChunk(),)


def test_a_fragment_that_is_longer_than_wanted_is_closed_before_content() -> None:
    short = replace(SPEC, fragment=replace(POLICY, length=1))
    driven = acquiring(spec=short)
    driven.built = built(ROUTE, held=committed_spool(b"x" * 10, 5, acked=15))
    driven.held = driven.built.held
    driven.step(PipelineTaken(driven.built.pipeline))
    effects = driven.step(Ready(Summary(0, 15, 0)))
    assert effects == (Begin(driven.built.pipeline, fragment(15), LabelSet()), NextChunk())
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    assert driven.sealed()[0] == Commit(driven.built.pipeline, fragment(15, b"abc"), LabelSet())


def test_the_answer_has_the_sum_of_this_append_alone_and_the_fragments_codec() -> None:
    held = committed_spool(b"x" * 10, 5, acked=15)
    driven = validating(held=held)
    driven.step(Ready(Summary(0, 15, 0)))
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    assert driven.sealed()[0] == Commit(driven.pipe.pipeline, fragment(5, b"x" * 10 + b"abc"), LabelSet())
    driven.answered()
    commit = refused(driven.step(Shown())[0]).commit
    assert commit is not None
    assert (commit.begin, commit.end, commit.sum) == (15, 18, hashlib.sha1(b"abc").digest())


def test_a_barrier_is_answered_with_the_head_and_the_sum_of_nothing() -> None:
    held = committed_spool(b"x" * 10, 5, labels(k="v"), acked=15)
    driven = validating(held=held)
    driven.step(Ready(Summary(0, 15, 0)))
    driven.step(Intent())
    pipeline = driven.pipe.pipeline
    assert driven.step(End()) == (Commit(pipeline, fragment(5, b"x" * 10), labels(k="v")), GiveBack(pipeline))
    assert driven.answered() == (Show(pipeline, 15),)
    outcome = refused(driven.step(Shown())[0])
    assert outcome.registers == labels(k="v")
    assert outcome.commit is not None
    assert (outcome.commit.begin, outcome.commit.end) == (15, 15)
    assert outcome.commit.sum == hashlib.sha1(b"").digest()


def test_registers_are_subtracted_and_then_united() -> None:
    opening = AppendOpening(
        JOURNAL, union_registers=labels(a="2", d="4"), subtract_registers=LabelSet.of(("b", "1"), ("c", "9"))
    )
    before = labels(a="1", b="1", c="1")
    driven = validating(opening=opening, held=committed_spool(b"x", 5, before, acked=6))
    driven.step(Ready(Summary(0, 6, 0)))
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    after = labels(a="2", c="1", d="4")
    commit = driven.sealed()[0]
    assert isinstance(commit, Commit)
    assert commit.registers == after
    driven.answered()
    assert refused(driven.step(Shown())[0]).registers == after
    assert driven.held.spool.registers == after


@pytest.mark.parametrize(
    "opening",
    [AppendOpening(JOURNAL, union_registers=labels(a="1")), AppendOpening(JOURNAL, subtract_registers=labels(a="1"))],
)
def test_registers_do_not_change_without_content(opening: AppendOpening) -> None:
    driven = streaming(opening=opening)
    driven.step(Intent())
    effects = driven.step(End())
    assert effects[0] == GiveBack(driven.pipe.pipeline)
    assert isinstance(failed(effects[1]), ValidationError)


def test_an_end_without_the_clients_word_rolls_back() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    pipeline = driven.pipe.pipeline
    assert driven.step(End()) == (Commit(pipeline, fragment(0), LabelSet()), GiveBack(pipeline))
    (verdict,) = driven.answered()
    assert isinstance(failed(verdict), ValidationError)
    assert not pipeline.is_broken


@pytest.mark.parametrize("event", [Chunk(b"more"), Intent()])
def test_whatever_follows_the_clients_word_rolls_back(event: Event) -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.step(Intent())
    assert driven.step(event)[0] == Commit(driven.pipe.pipeline, fragment(0), LabelSet())
    assert isinstance(failed(driven.answered()[0]), ValidationError)


@pytest.mark.parametrize("has_intent", [False, True])
def test_a_client_that_fails_is_rolled_back_and_hears_why(has_intent: bool) -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    if has_intent:
        driven.step(Intent())
    driven.step(Failed(BROKEN))
    assert driven.answered() == (Fail(BROKEN),)
    assert driven.held.spool.next() == fragment(0)


def test_a_refusal_of_a_roll_back_breaks_the_pipeline_but_the_client_hears_of_its_own_error() -> None:
    driven = rolling_back()
    (verdict,) = driven.answered(Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0)))
    assert isinstance(failed(verdict), ValidationError)
    assert driven.pipe.pipeline.is_broken


# Broken pipelines, in each phase.


def test_a_chunk_for_a_broken_pipeline_fails_the_append_and_empties_the_slot() -> None:
    driven = streaming()
    driven.step(Chunk(b"hel"))
    pipeline = driven.pipe.pipeline
    pipeline.failed(B, BROKEN)
    effects = driven.step(Chunk(b"lo"))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), UnavailableError)
    assert driven.held.spool.next() == fragment(0)
    assert driven.pipe.streams[C].is_half_closed


def test_an_end_over_a_broken_pipeline_fails_the_append() -> None:
    for sent in (True, False):
        driven = streaming()
        if sent:
            driven.step(Chunk(b"hello"))
        driven.step(Intent())
        driven.pipe.pipeline.failed(B, BROKEN)
        effects = driven.step(End())
        assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
        assert isinstance(effects[2], Fail)


def test_a_roll_back_over_a_broken_pipeline_needs_no_answers() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.pipe.pipeline.failed(B, BROKEN)
    effects = driven.step(End())
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), ValidationError)


def test_a_cancellation_over_a_broken_pipeline_empties_the_slot() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.pipe.pipeline.failed(B, BROKEN)
    assert driven.step(Cancelled()) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Abandon())


def test_a_pipeline_that_breaks_while_content_is_sealed_fails_the_append() -> None:
    driven = sealing()
    driven.pipe.pipeline.failed(B, BROKEN)
    effects = driven.sealed()
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(effects[2], Fail)


def test_content_that_cannot_be_sealed_fails_the_append_and_empties_the_slot() -> None:
    driven = sealing()
    assert driven.step(Failed(BROKEN)) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Fail(BROKEN))


def test_a_stream_that_breaks_before_it_acknowledged_fails_the_append() -> None:
    driven = reading_acks()
    driven.pipe.pipeline.answered(C, OK)
    driven.pipe.pipeline.failed(B, BROKEN)
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert isinstance(failed(verdict), UnavailableError)
    assert driven.pipe.pipeline.is_broken


def test_a_peer_that_refuses_a_commit_fails_the_append_and_breaks_the_pipeline() -> None:
    driven = reading_acks()
    driven.pipe.pipeline.answered(C, OK)
    driven.pipe.pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0)))
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert "PROPOSAL_MISMATCH" in str(failed(verdict))
    assert driven.pipe.pipeline.is_broken


def test_an_own_spool_that_cannot_commit_fails_the_append() -> None:
    driven = sealing()
    sealed: list[Sealed | Exception] = []
    driven.held.seal(sealed.append)
    driven.held.fault = OSError("disk full")
    assert isinstance(sealed[0], Sealed)
    driven.step(ContentSealed(sealed[0]))
    driven.pipe.answer_all(OK)
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert isinstance(failed(verdict), UnavailableError)
    assert A in driven.pipe.pipeline.failures


# What cannot happen.

EVENTS: tuple[Event, ...] = (
    Resolved(resolution_of(ROUTE)),
    PipelineTaken(None),
    SpoolTaken(MemorySpool()),
    HeadRead(VOID_HEAD, 1),
    Prepared(),
    Opened(built().pipeline),
    Invalidated(),
    Answered(Ask(fragment(0), set(), lambda _: None)),
    Transacted(3),
    Ready(EMPTY),
    Chunk(b"x"),
    Intent(),
    End(),
    ContentSealed(Sealed(fragment(0), b"")),
    Shown(),
    Failed(BROKEN),
)
CLIENT = {Chunk, Intent, End, Failed}
AWAITED: dict[State, set[type]] = {
    State.RESOLVE: {Resolved, Failed},
    State.ACQUIRE_PIPELINE: {PipelineTaken, Invalidated},
    State.START_PIPELINE: {SpoolTaken, Invalidated},
    State.READ_HEAD: {HeadRead, Failed},
    State.PREPARE_SPOOL: {Prepared, Failed},
    State.OPEN_PIPELINE: {Opened},
    State.SYNCHRONISE: {Answered},
    State.CONFIRM_RESET: CLIENT,
    State.AWAIT_LISTING: {Ready, Invalidated, Failed},
    State.UPDATE_ASSIGNMENTS: {Transacted, Failed},
    State.UPDATE_SUSPEND: {Transacted, Failed},
    State.VALIDATE_PRECONDITIONS: {Ready, Invalidated, Failed},
    State.STREAM_CONTENT: CLIENT,
    State.SEAL_CONTENT: {ContentSealed, Failed},
    State.READ_ACKS: {Answered},
    State.READ_ROLLBACK_ACKS: {Answered},
    State.SHOW: {Shown},
    State.PROXY: set(),
    State.FINISHED: set(),
}


def remembered(fsm: AppendFSM) -> dict[str, object]:
    """All that it knows but the time, in itself and in its parts."""
    parts = HeadOpening | AppendContent
    known = {name: dict(vars(value)) if isinstance(value, parts) else value for name, value in vars(fsm).items()}
    assert sum(isinstance(value, dict) for value in known.values()) == len(get_args(parts))
    del known["_now_ns"]
    return known


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_an_event_that_is_not_waited_for_raises_and_changes_nothing(state: State) -> None:
    for event in EVENTS:
        if type(event) in AWAITED[state]:
            continue
        driven = STATES[state]()
        before = remembered(driven.fsm)
        with pytest.raises(AssertionError):
            driven.fsm.step(event, NOW_NS)
        assert remembered(driven.fsm) == before, type(event).__name__


def test_what_too_few_members_hold_is_not_decided() -> None:
    """They could all be lost, fewer of them than the journal is to survive, after somebody had read it."""
    driven = synchronising(spec=replace(SPEC, replication=4))
    effects = driven.answered()
    assert not [effect for effect in effects if isinstance(effect, Acknowledge)]
    assert refused(effects[-1]).status is Status.INSUFFICIENT_JOURNAL_BROKERS
