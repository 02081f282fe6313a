"""AppendStart: the first half of an append, until it has a pipeline for which an epoch is open.

Who is primary; the journal's pipeline, in turn; if it is of another Route, the spool, what is on record of the
journal's head, and a synchronisation; then the transaction that opens an epoch and advertises the Route. What an append
does with it from there on is its AppendFSM's.
"""

from __future__ import annotations

import hashlib
from enum import Enum, auto

from broker.append_effect import (
    Abandon,
    Acknowledge,
    Advertise,
    AwaitReady,
    Effects,
    EpochOpened,
    Fail,
    Finish,
    GiveBack,
    HeadChange,
    NextChunk,
    Open,
    Prepare,
    Proxy,
    ReadHead,
    Release,
    Resolve,
    SetSuspend,
    ShutDown,
    Synchronise,
    TakePipeline,
    TakeSpool,
    Voided,
)
from broker.append_event import (
    AppendOpening,
    AppendOutcome,
    Chunk,
    End,
    Event,
    Failed,
    HeadRead,
    Intent,
    Opened,
    Prepared,
    SpoolTaken,
)
from broker.durable_head import (
    CutAt,
    DurableHead,
    EpochTerms,
    Fate,
    Outdated,
    Start,
    Unproven,
    fate,
    opened,
    reset_start,
    start_of,
    takes_part,
    terms,
    voided,
)
from broker.pipeline import Ask, HeldSpool, Pipeline
from broker.proposal import Agreed, Diverged, Overtaken, RollTo, Verdict, judged, judged_by, refusal, rolled
from broker.resolution import Resolution
from fragment.index import Summary
from fragment.spool import CopyEnd, EpochMark
from protocol import registers
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.fragment import Fragment
from protocol.journal import SuspendLevel, SuspendMode
from protocol.label import LabelSet

SYNC_ROUNDS_MAX = 8
"""Two are usual, and each further one needs a peer that is further still. Peers of which no two agree end here."""

RECORD_TRIES_MAX = 8
"""Each that fails tells of somebody else who changed the head, or of changes that etcd has yet to tell."""

_EMPTY_SUM = hashlib.sha1().digest()

UNCERTAIN = "this broker may have lost its lease of etcd: another one takes over"


class State(Enum):
    """What an append waits for, or how it ended."""

    RESOLVE = auto()
    ACQUIRE_PIPELINE = auto()
    START_PIPELINE = auto()
    READ_HEAD = auto()
    PREPARE_SPOOL = auto()
    OPEN_PIPELINE = auto()
    SYNCHRONISE = auto()
    CONFIRM_RESET = auto()
    AWAIT_LISTING = auto()
    UPDATE_ASSIGNMENTS = auto()
    UPDATE_SUSPEND = auto()
    VALIDATE_PRECONDITIONS = auto()
    STREAM_CONTENT = auto()
    SEAL_CONTENT = auto()
    READ_ACKS = auto()
    READ_ROLLBACK_ACKS = auto()
    SHOW = auto()
    PROXY = auto()
    FINISHED = auto()


class AppendStart:
    def __init__(self, opening: AppendOpening) -> None:
        self.opening = opening
        self.state = State.RESOLVE
        self.resolution: Resolution | None = None
        # Whether it waits for members to go, which may take any time.
        self.is_patient = False
        self.pipeline: Pipeline | None = None
        # Whether the journal's pipeline is ours to give back, be there one or not, and of which replica it is.
        self._owns = False
        self._owner: object = None
        self._is_cancelled = False
        self._read_through = opening.min_revision
        self._is_first_sync = False
        self._sync_rounds = 0
        # The spool, while there is no pipeline that has it.
        self._taken: HeldSpool | None = None
        # What is on record, as of when, and what the store has.
        self._read = HeadRead(None, 0)
        # Where all are to go on, once that is known; and the change of the record that is under way.
        self._start: Start | None = None
        self._change: HeadChange | None = None
        self._record_tries = 0
        # The record as it was when it could not be changed, and what was known of etcd then.
        self._failed_at: tuple[int, int] | None = None
        # Of this append's content: where it begins, how much of it was sent, and whether the client wants it committed.
        self._begin = 0
        self._sent = 0
        self._has_intent = False
        # Whether the client's word that there is no content came before it was asked for any.
        self._is_confirmed = False
        self._content_sum = _EMPTY_SUM
        self._registers = LabelSet()
        # How an append ends whose content is being rolled back.
        self._verdict: Finish | Fail | Abandon = Abandon()
        self._now_ns = 0

    @property
    def _resolution(self) -> Resolution:
        assert self.resolution is not None
        return self.resolution

    @property
    def _held(self) -> Pipeline:
        assert self.pipeline is not None
        return self.pipeline

    def _on_built(self, event: Event) -> Effects:
        """One more step towards a pipeline is done."""
        match self.state, event:
            case State.START_PIPELINE, SpoolTaken(held):
                self._taken, self.state = held, State.READ_HEAD
                return (ReadHead(),)
            case State.READ_HEAD, HeadRead():
                return self._on_head(event)
            case State.PREPARE_SPOOL, Prepared():
                return self._open(self._terms)
            case State.OPEN_PIPELINE, Opened(pipeline):
                return self._on_opened(pipeline)
            case _:
                raise AssertionError(f"{type(event).__name__} in {self.state.name}")

    # Who is to take the append, and through which pipeline.

    def _resolve(self, min_revision: int) -> Effects:
        if self._is_cancelled:
            return self._finish(Abandon())
        self._read_through = min_revision
        self.state = State.RESOLVE
        return (Resolve(min_revision),)

    def _on_resolved(self, resolution: Resolution) -> Effects:
        self.resolution, self.is_patient = resolution, False
        if self._is_cancelled:
            return self._finish(Abandon())
        if resolution.status is Status.SUSPENDED and self.opening.suspend is SuspendMode.RESUME:
            self.state = State.UPDATE_SUSPEND
            return (SetSuspend(resolution, SuspendLevel.NONE, resolution.suspend.offset),)
        if resolution.status is not Status.OK:
            return self._refuse(resolution.status)
        if not resolution.is_local:
            return (*self._given_back(), *self._await_desired_replicas())
        if self._owns and self._owner is resolution.replica:
            return self._start_pipeline()
        # Of a replica that is no more, as when the journal was deleted and created again, nothing may be used.
        given_back, self._owner = self._given_back(), resolution.replica
        self.state = State.ACQUIRE_PIPELINE
        return (*given_back, TakePipeline())

    def _on_pipeline(self, pipeline: Pipeline | None) -> Effects:
        self._owns, self.pipeline = True, pipeline
        if pipeline is not None:
            pipeline.is_owned = True
        return self._start_pipeline()

    def _start_pipeline(self) -> Effects:
        if self._is_cancelled:
            return self._finish(Abandon())
        pipeline = self.pipeline
        if pipeline is not None and pipeline.is_open and not pipeline.is_broken and self._is_routed(pipeline):
            return self._update_assignments()
        self.state = State.START_PIPELINE
        return (*self._shut_down(), TakeSpool())

    def _is_routed(self, pipeline: Pipeline) -> bool:
        """Whether the pipeline leads to the replicas of the Route.

        A member that was assigned anew since has made a new replica, to which our stream to its old one does not lead:
        even if the Route is the same again, as it is for those who see several changes as one.
        """
        resolution, built = self._resolution, pipeline.header
        is_anew = any(kv.create_revision > built.etcd.revision for kv in resolution.assignments)
        return built.route.equivalent(resolution.header.route) and not is_anew

    # What is on record of the journal's head.

    @property
    def _head(self) -> DurableHead | None:
        """Of this incarnation."""
        head = self._read.head
        return None if head is None else head.of(self._resolution.create_revision)

    @property
    def _terms(self) -> EpochTerms | None:
        resolution = self._resolution
        return terms(self._head, resolution.create_revision) if resolution.keeps_epochs else None

    def _on_head(self, read: HeadRead) -> Effects:
        self._read = read
        held, told = self._taken, self._terms
        assert held is not None
        failed_at, self._failed_at = self._failed_at, None
        if failed_at == (read.mod_revision, self._resolution.revision):
            # It was not the record that had changed, so it is something that etcd has yet to tell.
            return (*self._released(), *self._resolve(self._resolution.revision + 1))
        copy = held.spool.copy
        retired = self._fate_of(told, copy) if copy is not None else None
        is_placed = told is None or told.is_void
        if is_placed and retired is None:
            return self._open(told)
        self.state = State.PREPARE_SPOOL
        return (Prepare(held, retired),)

    def _fate_of(self, told: EpochTerms | None, copy: CopyEnd) -> Fate | None:
        """Of our own copy, if it does not take part."""
        if told is not None and takes_part(told, copy):
            return None
        known = fate(self._head, copy.epoch)
        # By Gazette's rules every live spool takes part, unless it is known to have been overtaken.
        is_overtaken = isinstance(known, CutAt) and known.end < copy.end
        return known if told is not None or is_overtaken else None

    def _released(self) -> Effects:
        held, self._taken = self._taken, None
        return () if held is None else (Release(held),)

    def _open(self, told: EpochTerms | None) -> Effects:
        assert self._taken is not None
        self.state = State.OPEN_PIPELINE
        return (Open(self._taken, self._resolution, told),)

    def _on_opened(self, pipeline: Pipeline) -> Effects:
        self.pipeline, self._is_first_sync, self._sync_rounds = pipeline, True, 0
        self._taken, self._start = None, None
        pipeline.record, pipeline.record_revision = self._head, self._read.mod_revision
        pipeline.is_owned = True
        return self._synchronise(None, pipeline.head.registers)

    def _synchronise(self, roll_to: int | None, labels: LabelSet) -> Effects:
        pipeline = self._held
        fragment = rolled(pipeline.head, roll_to, self._resolution.spec.fragment, self._now_ns)
        is_first, self._is_first_sync = self._is_first_sync, False
        self.state = State.SYNCHRONISE
        return (Synchronise(pipeline, fragment, labels, is_first),)

    def _on_synchronised(self, ask: Ask, is_certain: bool) -> Effects:
        pipeline = self._held
        if pipeline.is_closed:
            # Its replica is given up, and there may be another. Whatever the peers said, it was about the old one.
            return (*self._shut_down(), *self._resolve(self._read_through))
        failure = ask.failure or (None if is_certain else UnavailableError(UNCERTAIN))
        if failure is not None:
            return self._fail(failure)
        verdict = self._judged(pipeline, ask)
        match verdict:
            case Agreed():
                return self._on_agreed(pipeline)
            case Unproven():
                return self._on_unproven()
            case Outdated():
                return self._read_again()
            case RollTo(offset, labels):
                self._sync_rounds += 1
                if self._sync_rounds < SYNC_ROUNDS_MAX:
                    return self._synchronise(offset, labels)
                return self._fail(UnavailableError(f"no agreement with all peers after {self._sync_rounds} rounds"))
            case Overtaken(revision):
                return (*self._shut_down(), *self._resolve(revision))
            case Diverged(peer, reason):
                return self._fail(UnavailableError(f"{peer.zone}/{peer.suffix} cannot be synchronised with: {reason}"))

    def _judged(self, pipeline: Pipeline, ask: Ask) -> Verdict | Unproven | Outdated:
        head, route, revision = pipeline.head, pipeline.header.route, pipeline.header.etcd.revision
        told = pipeline.terms
        if self._start is None and (told is None or told.is_void or pipeline.is_open):
            return judged(head, route, revision, ask.answers)
        if (refused := refusal(head, route, revision, ask.answers)) is not None:
            return refused
        if self._start is None:
            claims = [answer.claim for answer in ask.answers.values() if answer.claim is not None]
            start = start_of(self._head, self._resolution.create_revision, [pipeline.claim, *claims])
            if not isinstance(start, Start):
                return start
            self._start = start
        return judged_by(head, self._start, route, revision, ask.answers)

    def _on_agreed(self, pipeline: Pipeline) -> Effects:
        """All hold the same. Before anything is acknowledged, that has to be on record (DH-1)."""
        resolution, start = self._resolution, self._start
        self._start = None
        is_opening = resolution.keeps_epochs and (start is not None or not pipeline.is_open)
        if is_opening and len(resolution.header.route.members) < resolution.desired_replication:
            # Nothing can be acknowledged by so few. An epoch of theirs would be lost with fewer directories than the
            # journal is to survive, and the one before it is with more of them.
            return self._unopened(Status.INSUFFICIENT_JOURNAL_BROKERS)
        if is_opening:
            begun = start or Start(pipeline.head.end, pipeline.head.registers)
            holders = list(resolution.spool_ids.values())
            head = opened(pipeline.record, resolution.create_revision, begun, holders, self._read.stored)
            return self._record(HeadChange(head, pipeline.record_revision))
        if pipeline.is_open:
            return self._update_assignments()
        head_without = voided(pipeline.record, resolution.create_revision)
        if head_without is not None:
            return self._record(HeadChange(head_without, pipeline.record_revision))
        pipeline.opened(None)
        return (Voided(), *self._decided(pipeline), *self._update_assignments())

    def _decided(self, pipeline: Pipeline) -> Effects:
        """Without epochs, what all hold is decided if there are as many of them as there should be: before, it could be
        lost with fewer brokers than the journal is to survive."""
        if len(self._resolution.header.route.members) < self._resolution.desired_replication:
            return ()
        return (Acknowledge(pipeline, pipeline.head.end),)

    def _record(self, change: HeadChange) -> Effects:
        self._change, self.state = change, State.UPDATE_ASSIGNMENTS
        return (Advertise(self._resolution, change),)

    def _update_assignments(self) -> Effects:
        if self._resolution.is_consistent:
            return self._await_desired_replicas()
        self.state = State.UPDATE_ASSIGNMENTS
        return (Advertise(self._resolution),)

    def _on_transacted(self, revision: int | None) -> Effects:
        change, self._change = self._change, None
        resolution, pipeline = self._resolution, self.pipeline
        if revision is None and change is not None:
            self._failed_at = change.mod_revision, resolution.revision
            return self._read_again()
        if change is not None and self.state is State.UPDATE_SUSPEND:
            # Its epoch is closed, so that nothing may be acknowledged by it any more.
            assert revision is not None
            return (*self._shut_down(), *self._resolve(revision))
        if revision is None or change is None or pipeline is None:
            # An answer of etcd to a transaction that did not hold names a revision that may not be one of the key
            # space: to wait for the next one there is to be is certain to end.
            return self._resolve(resolution.revision + 1 if revision is None else revision)
        effects = self._recorded(pipeline, change.head, revision)
        # A change of the head alone is not seen in the key space: its revision would be waited for in vain.
        if resolution.is_consistent:
            return (*effects, *self._await_desired_replicas())
        return (*effects, *self._resolve(revision))

    def _recorded(self, pipeline: Pipeline, head: DurableHead, revision: int) -> Effects:
        before = pipeline.record.open_epoch if pipeline.record is not None else None
        is_void = pipeline.record is not None and pipeline.record.is_void
        pipeline.record, pipeline.record_revision = head, revision
        last = head.open_epoch
        if not self._resolution.keeps_epochs or last is None:
            pipeline.opened(None)
            return (Voided(), *self._decided(pipeline))
        mark = EpochMark(head.create_revision, before.number) if before is not None and not is_void else None
        told = EpochTerms(head.mark(last), last.begin, oldest_begin=head.oldest_begin)
        # What lies below was decided with it, and may be read.
        return (EpochOpened(pipeline, told, mark), Acknowledge(pipeline, last.begin))

    def _read_again(self) -> Effects:
        """Somebody else has changed the record, or something of the journal: nothing of what was agreed on counts."""
        self._record_tries += 1
        if self._record_tries >= RECORD_TRIES_MAX:
            return self._fail(UnavailableError("the head of the journal is being changed by others: try again"))
        return (*self._shut_down(), *self._start_pipeline())

    def _on_unproven(self) -> Effects:
        """Nobody who is there knows where the journal ends: only a holder can tell, or an operator (DH-6, DH-11)."""
        if self.opening.offset is not None:
            self.state = State.CONFIRM_RESET
            return (NextChunk(),)
        return self._unopened(Status.INDEX_HAS_GREATER_OFFSET)

    def _unopened(self, status: Status) -> Effects:
        """There can be no epoch for now, and so no appends. All are in step all the same: let the allocator go on."""
        resolution, shut_down = self._resolution, self._shut_down()
        if resolution.is_consistent:
            return (*shut_down, *self._refuse(status))
        self.state = State.UPDATE_ASSIGNMENTS
        return (*shut_down, Advertise(resolution))

    def _on_confirming(self, event: Chunk | Intent | End | Failed) -> Effects:
        """Only an append without content is an operator's word. Others may name an offset because they know one."""
        match event:
            case Intent() if not self._has_intent:
                self._has_intent = True
                return (NextChunk(),)
            case End() if self._has_intent:
                self._is_confirmed = True
                self.state = State.AWAIT_LISTING
                return (AwaitReady(is_fresh=True),)
            case Failed(error):
                return self._finish(Fail(error))
            case _:
                return self._refuse(Status.INDEX_HAS_GREATER_OFFSET)

    def _on_listed(self, summary: Summary, spool_ids: frozenset[bytes]) -> Effects:
        pipeline, offset = self._held, self.opening.offset
        head = pipeline.record
        assert offset is not None
        assert head is not None
        if pipeline.is_broken:
            return self._start_pipeline()
        last = head.open_epoch
        assert last is not None
        # One that is there closes the epoch by itself, unless it has said that it cannot.
        if spool_ids & last.witnesses:
            return (*self._shut_down(), *self._refuse(Status.INDEX_HAS_GREATER_OFFSET))
        opening = self.opening

        def changed(held: LabelSet) -> LabelSet:
            return registers.changed(held, opening.subtract_registers, opening.union_registers)

        start = reset_start(head, offset, summary.end, changed)
        if start is None:
            return (*self._shut_down(), *self._refuse(Status.WRONG_APPEND_OFFSET))
        return self._resynchronise(start)

    def _await_desired_replicas(self) -> Effects:
        """Nothing is written while there are more members than wanted: the pipeline is held, so that others queue."""
        resolution = self._resolution
        members = len(resolution.header.route.members)
        if members > resolution.desired_replication:
            self.is_patient = True
            return self._resolve(resolution.revision + 1)
        if members < resolution.desired_replication:
            return self._refuse(Status.INSUFFICIENT_JOURNAL_BROKERS)
        if not resolution.is_local:
            self.state = State.PROXY
            return (Proxy(resolution),)
        if self._is_cancelled:
            return self._finish(Abandon())
        self.state = State.VALIDATE_PRECONDITIONS
        return (AwaitReady(),)

    def _resynchronise(self, start: Start) -> Effects:
        """Go on somewhere else. That ends the epoch, unless it is where all are anyhow."""
        self._sync_rounds = 0
        is_elsewhere = start.offset != self._held.head.end or not self._held.is_open
        self._start = start if is_elsewhere and self._resolution.keeps_epochs else None
        return self._synchronise(start.offset, start.registers)

    # How it ends.

    def _refuse(self, status: Status, *, registers: LabelSet | None = None, store_health_error: str = "") -> Effects:
        return self._finish(Finish(self._outcome(status, registers=registers, store_health_error=store_health_error)))

    def _outcome(
        self,
        status: Status,
        *,
        commit: Fragment | None = None,
        registers: LabelSet | None = None,
        store_health_error: str = "",
    ) -> AppendOutcome:
        return AppendOutcome(status, self._resolution.header, commit, registers, store_health_error)

    def _fail(self, error: GazetteError) -> Effects:
        return (*self._shut_down(), *self._finish(Fail(error)))

    def _fail_with(self, pipeline: Pipeline) -> Effects:
        if not pipeline.failures:
            return self._fail(UnavailableError("the journal is being given up by this broker: another one takes over"))
        peer = min(pipeline.failures)
        return self._fail(
            UnavailableError(f"replication to {peer.zone}/{peer.suffix} failed: {pipeline.failures[peer]}")
        )

    def _finish(self, verdict: Finish | Fail | Abandon) -> Effects:
        self.state = State.FINISHED
        # Without an epoch it is of no use to anybody.
        kept = self.pipeline if self.pipeline is not None and self.pipeline.is_open else None
        return (*self._given_back(kept), verdict)

    def _shut_down(self) -> Effects:
        pipeline, self.pipeline = self.pipeline, None
        return () if pipeline is None else (ShutDown(pipeline),)

    def _given_back(self, pipeline: Pipeline | None = None) -> Effects:
        if not self._owns:
            return ()
        self._owns = False
        if pipeline is None:
            return (*self._shut_down(), GiveBack(None))
        pipeline.is_owned = False
        return (GiveBack(pipeline),)
