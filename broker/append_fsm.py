"""AppendFSM: what has to hold before a client's bytes are accepted, and until they are acknowledged.

Each step takes what happened and returns what is to be done about it, in order. The last of these is what the append
then waits for, and whatever comes of it is the next step. Nothing is waited for in here, and nothing is sent.

``Resolve`` who is primary; take the journal's pipeline, in turn; if the Route is another than the pipeline's, take the
spool, read what is on record of the journal's head, and synchronise a new pipeline; have an epoch opened for it, and
all assignments advertise the Route; check what the request and the journal demand; stream the content; propose the
commit, pass the pipeline on, and read the answers.

It has the transitions. Where the journal goes on, and what of that is on record, is decided by its ``HeadOpening``;
what stands in the way of content, by ``append_demands``; and what there is of content is its ``AppendContent``.
"""

from __future__ import annotations

from broker.append_content import AppendContent
from broker.append_demands import Confirm, Demand, GoOnAt, Rebuild, Refuse, Stream, Suspend, demanded, reset_demanded
from broker.append_effect import (
    Abandon,
    Advertise,
    AwaitReady,
    Begin,
    Commit,
    Effects,
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
    Seal,
    Send,
    SetSuspend,
    Show,
    ShutDown,
    TakePipeline,
    TakeSpool,
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
from broker.append_state import State
from broker.durable_head import Outdated, Start, Unproven
from broker.head_opening import LOOK_THERE, HeadOpening, closing, recorded, without_epoch
from broker.pipeline import Ask, HeldSpool, Pipeline, Sealed
from broker.proposal import Agreed, Overtaken, RollTo, rolled
from broker.resolution import Resolution
from fragment.index import Summary
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.journal import SuspendLevel, SuspendMode
from protocol.label import LabelSet

UNCERTAIN = "this broker may have lost its lease of etcd: another one takes over"


class AppendFSM:
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
        # The spool, while there is no pipeline that has it.
        self._taken: HeldSpool | None = None
        self._head = HeadOpening()
        self._content = AppendContent(opening)
        self._is_cancelled = False
        self._read_through = opening.min_revision
        # How an append ends whose content is being rolled back.
        self._verdict: Finish | Fail | Abandon = Abandon()
        self._now_ns = 0

    def start(self) -> Effects:
        return (Resolve(self._read_through),)

    def step(self, event: Event, now_ns: int) -> Effects:
        """What to do about `event`, which has to be one that the append waits for; or ``Cancelled``, at any time."""
        self._now_ns = now_ns
        if isinstance(event, Cancelled):
            return self._on_cancelled()
        match event:
            case Invalidated():
                assert self.state.waits_while_valid, self.state
                return self._resolve(self._read_through)
            case Chunk() | Intent() | End() | Failed() if self.state is State.CONFIRM_RESET:
                return self._on_confirming(event)
            case Failed(error) if self.state is not State.STREAM_CONTENT:
                assert self.state.may_fail, self.state
                return self._on_failed(error)
            case Chunk() | Intent() | End() | Failed():
                assert self.state is State.STREAM_CONTENT, self.state
                return self._on_client(event)
            case Answered(ask, is_certain):
                return self._on_answered(ask, is_certain)
            case _:
                return self._on_progress(event)

    def _on_progress(self, event: Event) -> Effects:
        """What was waited for is there."""
        match self.state, event:
            case State.RESOLVE, Resolved(resolution):
                return self._on_resolved(resolution)
            case State.ACQUIRE_PIPELINE, PipelineTaken(pipeline):
                return self._on_pipeline(pipeline)
            case State.AWAIT_LISTING, Ready():
                return self._meet(reset_demanded(self.opening, self._held, event))
            case ((State.UPDATE_ASSIGNMENTS | State.UPDATE_SUSPEND), Transacted(revision)):
                return self._on_transacted(revision)
            case State.VALIDATE_PRECONDITIONS, Ready():
                return self._meet(demanded(self.opening, self._resolution, self._held, event, self._now_ns))
            case State.SEAL_CONTENT, ContentSealed(sealed):
                return self._on_sealed(sealed)
            case State.SHOW, Shown(is_certain):
                return self._finish(self._verdict if is_certain else Fail(UnavailableError(UNCERTAIN)))
            case _:
                return self._on_built(event)

    def _on_built(self, event: Event) -> Effects:
        """One more step towards a pipeline is done."""
        match self.state, event:
            case State.START_PIPELINE, SpoolTaken(held):
                self._taken, self.state = held, State.READ_HEAD
                return (ReadHead(),)
            case State.READ_HEAD, HeadRead():
                return self._on_head(event)
            case State.PREPARE_SPOOL, Prepared():
                return self._open()
            case State.OPEN_PIPELINE, Opened(pipeline):
                return self._on_opened(pipeline)
            case _:
                raise AssertionError(f"{type(event).__name__} in {self.state.name}")

    def _on_answered(self, ask: Ask, is_certain: bool) -> Effects:
        if self.state is State.SYNCHRONISE:
            return self._on_synchronised(ask, is_certain)
        if self.state is State.READ_ACKS:
            return self._on_acks(ask, is_certain)
        assert self.state is State.READ_ROLLBACK_ACKS, self.state
        return self._on_rollback_acks(ask)

    def _on_failed(self, error: GazetteError) -> Effects:
        pipeline = self.pipeline
        if self._taken is not None:
            return (*self._released(), *self._finish(Fail(error)))
        # Content that is not in our own spool is nowhere that counts; and whether an epoch was opened whose answer did
        # not come, only the record can tell. Such a pipeline is of no use any more.
        is_lost = self.state is State.SEAL_CONTENT or (pipeline is not None and not pipeline.is_open)
        return self._fail(error) if is_lost or self._head.change is not None else self._finish(Fail(error))

    def break_off(self) -> tuple[bool, HeldSpool | None]:
        """Nothing more comes of it, whatever it was doing. Returns whether it had the journal's pipeline, or was to
        build it, and the spool if it had that alone."""
        had = self._owns, self._taken
        self.state, self.pipeline, self._owns, self._taken = State.FINISHED, None, False, None
        return had

    @property
    def is_over(self) -> bool:
        return self.state in (State.FINISHED, State.PROXY)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its turn, which may be given up."""
        return self.state is State.RESOLVE or self.state.waits_while_valid

    @property
    def _resolution(self) -> Resolution:
        assert self.resolution is not None
        return self.resolution

    @property
    def _held(self) -> Pipeline:
        assert self.pipeline is not None
        return self.pipeline

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

    # A new pipeline: the spool, what is on record, and an agreement of all members.

    def _on_head(self, read: HeadRead) -> Effects:
        held, resolution = self._taken, self._resolution
        assert held is not None
        if not self._head.read(read, resolution):
            return (*self._released(), *self._resolve(resolution.revision + 1))
        told, copy = self._head.terms(resolution), held.spool.copy
        retired = self._head.fate_of(copy, resolution) if copy is not None else None
        is_placed = told is None or told.is_void
        if is_placed and retired is None:
            return self._open()
        self.state = State.PREPARE_SPOOL
        return (Prepare(held, retired),)

    def _released(self) -> Effects:
        held, self._taken = self._taken, None
        return () if held is None else (Release(held),)

    def _open(self) -> Effects:
        assert self._taken is not None
        self.state = State.OPEN_PIPELINE
        return (Open(self._taken, self._resolution, self._head.terms(self._resolution)),)

    def _on_opened(self, pipeline: Pipeline) -> Effects:
        self.pipeline, self._taken = pipeline, None
        pipeline.is_owned = True
        self._head.begin(pipeline, self._resolution)
        return self._synchronise(None, pipeline.head.registers)

    def _synchronise(self, roll_to: int | None, labels: LabelSet) -> Effects:
        self.state = State.SYNCHRONISE
        return (self._head.proposal(self._held, self._resolution, roll_to, labels, self._now_ns),)

    def _resynchronise(self, start: Start) -> Effects:
        self._head.go_on_at(start, self._held, self._resolution)
        return self._synchronise(start.offset, start.registers)

    def _on_synchronised(self, ask: Ask, is_certain: bool) -> Effects:
        pipeline = self._held
        if pipeline.is_closed:
            # Its replica is given up, and there may be another. Whatever the peers said, it was about the old one.
            return (*self._shut_down(), *self._resolve(self._read_through))
        failure = ask.failure or (None if is_certain else UnavailableError(UNCERTAIN))
        if failure is not None:
            return self._fail(failure)
        verdict = self._head.judged(pipeline, self._resolution, ask)
        match verdict:
            case Agreed():
                return self._on_agreed(pipeline)
            case Unproven():
                return self._on_unproven()
            case Outdated():
                return self._read_again()
            case RollTo(offset, labels):
                return self._synchronise(offset, labels)
            case Overtaken(revision):
                return (*self._shut_down(), *self._resolve(revision))
            case UnavailableError():
                return self._fail(verdict)

    def _on_agreed(self, pipeline: Pipeline) -> Effects:
        verdict = self._head.agreed(pipeline, self._resolution)
        if isinstance(verdict, Status):
            return self._unopened(verdict)
        if verdict is not None:
            return self._record(verdict)
        opened = () if pipeline.is_open else without_epoch(pipeline, self._resolution)
        return (*opened, *self._update_assignments())

    def _on_unproven(self) -> Effects:
        """Nobody who is there knows where the journal ends: only a holder can tell, or an operator (DH-6, DH-11)."""
        if self.opening.offset is not None:
            return self._confirm()
        return self._unopened(Status.INDEX_HAS_GREATER_OFFSET)

    def _confirm(self) -> Effects:
        self.state = State.CONFIRM_RESET
        return (NextChunk(),)

    def _unopened(self, status: Status) -> Effects:
        """There can be no epoch for now, and so no appends. All are in step all the same: let the allocator go on."""
        resolution, shut_down = self._resolution, self._shut_down()
        if resolution.is_consistent:
            return (*shut_down, *self._refuse(status))
        self.state = State.UPDATE_ASSIGNMENTS
        return (*shut_down, Advertise(resolution))

    def _on_confirming(self, event: Chunk | Intent | End | Failed) -> Effects:
        """Only an append without content is an operator's word. Others may name an offset because they know one."""
        content = self._content
        match event:
            case Intent() if not content.has_intent:
                content.has_intent = True
                return (NextChunk(),)
            case End() if content.has_intent:
                content.is_confirmed = True
                self.state = State.AWAIT_LISTING
                return (AwaitReady(is_fresh=True),)
            case Failed(error):
                return self._finish(Fail(error))
            case _:
                return self._refuse(Status.INDEX_HAS_GREATER_OFFSET)

    # What is to be in etcd.

    def _record(self, change: HeadChange) -> Effects:
        self._head.change, self.state = change, State.UPDATE_ASSIGNMENTS
        return (Advertise(self._resolution, change),)

    def _update_assignments(self) -> Effects:
        if self._resolution.is_consistent:
            return self._await_desired_replicas()
        self.state = State.UPDATE_ASSIGNMENTS
        return (Advertise(self._resolution),)

    def _set_suspend(self, level: SuspendLevel) -> Effects:
        pipeline = self._held
        self._head.change = closing(pipeline) if level == SuspendLevel.FULL else None
        self.state = State.UPDATE_SUSPEND
        return (SetSuspend(self._resolution, level, pipeline.head.end, self._head.change),)

    def _on_transacted(self, revision: int | None) -> Effects:
        resolution, pipeline = self._resolution, self.pipeline
        change = self._head.transacted(revision, resolution)
        if revision is None and change is not None:
            return self._read_again()
        if change is not None and self.state is State.UPDATE_SUSPEND:
            # Its epoch is closed, so that nothing may be acknowledged by it any more.
            assert revision is not None
            return (*self._shut_down(), *self._resolve(revision))
        if revision is None or change is None or pipeline is None:
            # An answer of etcd to a transaction that did not hold names a revision that may not be one of the key
            # space: to wait for the next one there is to be is certain to end.
            return self._resolve(resolution.revision + 1 if revision is None else revision)
        effects = recorded(pipeline, resolution, change.head, revision)
        # A change of the head alone is not seen in the key space: its revision would be waited for in vain.
        if resolution.is_consistent:
            return (*effects, *self._await_desired_replicas())
        return (*effects, *self._resolve(revision))

    def _read_again(self) -> Effects:
        """Somebody else has changed the record, or something of the journal: nothing of what was agreed on counts."""
        if not self._head.may_read_again():
            return self._fail(UnavailableError("the head of the journal is being changed by others: try again"))
        return (*self._shut_down(), *self._start_pipeline())

    # What has to hold before there is content.

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

    def _meet(self, demand: Demand) -> Effects:
        match demand:
            case Rebuild():
                return self._start_pipeline()
            case Refuse():
                return self._finish(self._refusal(demand))
            case Fail():
                return self._finish(demand)
            case GoOnAt(start):
                return self._resynchronise(start)
            case Confirm():
                return self._confirm()
            case Suspend(level):
                return self._set_suspend(level)
            case Stream(extent):
                return self._stream(extent)

    # The content.

    def _stream(self, extent: Summary) -> Effects:
        pipeline, spec = self._held, self._resolution.spec
        head = pipeline.head
        # The first bytes of a journal go to the store as soon as there are others: were all brokers lost before,
        # it could not be told from a journal to which nothing was ever written.
        roll_to = head.end if head.begin == extent.begin else None
        fragment = rolled(head, roll_to, spec.fragment, self._now_ns)
        self._content.begin(head)
        self.state = State.STREAM_CONTENT
        first = self._on_end() if self._content.is_confirmed else (NextChunk(),)
        if fragment == head.fragment:
            return first
        return (Begin(pipeline, fragment, head.registers), *first)

    def _on_client(self, event: Chunk | Intent | End | Failed) -> Effects:
        match event:
            case Failed(error):
                return self._roll_back(Fail(error))
            case End():
                return self._on_end()
            case _ if self._content.has_intent:
                return self._roll_back(Fail(ValidationError("expected EOF after empty Content chunk")))
            case Intent():
                self._content.has_intent = True
                return (NextChunk(),)
            case Chunk(data):
                return self._on_chunk(data)

    def _on_chunk(self, data: bytes | memoryview) -> Effects:
        pipeline = self._held
        if not self._content.is_allowed(self._resolution.spec):
            return self._roll_back(self._refusal(Refuse(Status.NOT_ALLOWED)))
        if (failure := pipeline.failure) is not None:
            return self._fail(failure)
        return (Send(pipeline, data, self._content.sent(data)), NextChunk())

    def _on_end(self) -> Effects:
        pipeline = self._held
        if (fault := self._content.ended()) is not None:
            return self._roll_back(Fail(fault))
        if (failure := pipeline.failure) is not None:
            return self._fail(failure)
        if self._content.is_empty:
            return self._commit(pipeline.head.fragment)
        self.state = State.SEAL_CONTENT
        return (Seal(pipeline),)

    def _on_sealed(self, sealed: Sealed) -> Effects:
        pipeline = self._held
        if self._is_cancelled:
            # It said that it wants the commit, but will never hear of it: better not to.
            return self._roll_back(Abandon())
        if (failure := pipeline.failure) is not None:
            return self._fail(failure)
        self._content.sealed(sealed.content_sum)
        return self._commit(sealed.fragment)

    def _commit(self, fragment: Fragment) -> Effects:
        pipeline = self._held
        self.state = State.READ_ACKS
        # Passed on once the proposal is sent: the next append sends while we read.
        return (Commit(pipeline, fragment, self._content.registers), *self._given_back(pipeline))

    def _roll_back(self, verdict: Finish | Fail | Abandon) -> Effects:
        pipeline = self._held
        if pipeline.is_broken:
            return (*self._shut_down(), *self._finish(verdict))
        if self._content.is_empty:
            return self._finish(verdict)
        self._verdict = verdict
        self.state = State.READ_ROLLBACK_ACKS
        return (Commit(pipeline, pipeline.head.fragment, pipeline.head.registers), *self._given_back(pipeline))

    def _on_acks(self, ask: Ask, is_certain: bool) -> Effects:
        pipeline, content = self._held, self._content
        failure = ask.failure or self._refused(pipeline, ask)
        if failure is None and not is_certain:
            failure = UnavailableError(UNCERTAIN)
        if failure is not None:
            return self._finish(Fail(failure))
        header, commit = self._resolution.header, content.commit(ask.fragment)
        self._verdict = Finish(AppendOutcome(Status.OK, header, commit, content.registers))
        self.state = State.SHOW
        return (Show(pipeline, content.end),)

    def _on_rollback_acks(self, ask: Ask) -> Effects:
        if ask.failure is None:
            self._refused(self._held, ask)
        return self._finish(self._verdict)

    def _refused(self, pipeline: Pipeline, ask: Ask) -> UnavailableError | None:
        """A synchronised peer that disagrees is not synchronised: nothing more is to be sent to it."""
        peer = ask.refusal
        if peer is None:
            return None
        answer = ask.answers[peer].status.name
        failure = UnavailableError(f"{peer.zone}/{peer.suffix} answered {answer} to a commit. {LOOK_THERE}")
        pipeline.failed(peer, failure)
        return failure

    # How it ends.

    def _on_cancelled(self) -> Effects:
        self._is_cancelled = True
        if self.is_waiting:
            return self._finish(Abandon())
        if self.state is State.STREAM_CONTENT:
            return self._roll_back(Abandon())
        if self.state is State.CONFIRM_RESET:
            return self._finish(Abandon())
        # What is under way is seen through: others wait for it too.
        return ()

    def _refuse(self, status: Status) -> Effects:
        return self._finish(self._refusal(Refuse(status)))

    def _refusal(self, refuse: Refuse) -> Finish:
        header, health_error = self._resolution.header, refuse.store_health_error
        return Finish(AppendOutcome(refuse.status, header, registers=refuse.registers, store_health_error=health_error))

    def _fail(self, error: GazetteError) -> Effects:
        return (*self._shut_down(), *self._finish(Fail(error)))

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
