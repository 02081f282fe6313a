"""An AppendFSM that a test drives from state to state, with the pipeline in which its effects happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker.append_effect import (
    Acknowledge,
    AwaitReady,
    Begin,
    Commit,
    Effect,
    Effects,
    EpochOpened,
    Fail,
    Finish,
    NextChunk,
    Open,
    Prepare,
    ReadHead,
    Release,
    Resolve,
    Seal,
    Send,
    Show,
    ShutDown,
    Synchronise,
    TakePipeline,
    TakeSpool,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    AppendOutcome,
    Chunk,
    ContentSealed,
    End,
    Event,
    HeadRead,
    Intent,
    Opened,
    PipelineTaken,
    Prepared,
    Ready,
    Resolved,
    Shown,
    SpoolTaken,
)
from broker.append_fsm import AppendFSM
from broker.append_state import State
from broker.durable_head import DurableHead, Epoch, EpochTerms
from broker.pipeline import Ask, Pipeline, Sealed
from broker.replication_message import Answer
from broker.resolution import Resolution
from fragment.index import Summary
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.journal import JournalSpec, SuspendLevel
from protocol.route import ProcessId
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    OK,
    SPEC,
    VOID_HEAD,
    A,
    B,
    Built,
    C,
    MemorySpool,
    RecordingStream,
    built,
    resolution_of,
    route_of,
    spool_id_of,
    suspended,
)

NOW_S = NOW_NS // 1_000_000_000
EMPTY = Summary(0, 0, 0)
LOCAL = Summary(0, 10, 0)
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
