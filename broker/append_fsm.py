"""AppendFSM: what has to hold before a client's bytes are accepted, and until they are acknowledged.

Each step takes what happened and returns what is to be done about it, in order. The last of these is what the append
then waits for, and whatever comes of it is the next step. Nothing is waited for in here, and nothing is sent.

``Resolve`` who is primary; take the journal's pipeline, in turn; if the Route is another than the pipeline's, take the
spool, read what is on record of the journal's head, and synchronise a new pipeline; have an epoch opened for it, and
all assignments advertise the Route; check what the request and the journal demand; stream the content; propose the
commit, pass the pipeline on, and read the answers.
"""

from __future__ import annotations

from broker.append_effect import (
    Abandon,
    Begin,
    Commit,
    Effects,
    Fail,
    Finish,
    HeadChange,
    NextChunk,
    Resolve,
    Seal,
    Send,
    SetSuspend,
    Show,
)
from broker.append_event import (
    Answered,
    Cancelled,
    Chunk,
    ContentSealed,
    End,
    Event,
    Failed,
    Intent,
    Invalidated,
    PipelineTaken,
    Ready,
    Resolved,
    Shown,
    Transacted,
)
from broker.append_start import UNCERTAIN, AppendStart, State
from broker.durable_head import (
    Start,
    closed,
)
from broker.pipeline import Ask, HeldSpool, Pipeline, Sealed
from broker.proposal import extent, rolled
from fragment.index import Summary
from fragment.spool import CopyEnd
from protocol import registers
from protocol.errors import GazetteError, PreconditionError, Status, UnavailableError, ValidationError
from protocol.fragment import HEAD_MAX, Fragment
from protocol.journal import SuspendLevel, SuspendMode
from protocol.label import LabelSet

_REGISTERS_MAX = 64 << 10
"""They are sent with every proposal, and written with every commit."""

UNFLUSHED_AGE_S = 24 * 60 * 60
"""How old the last fragment of a journal without a flush interval has to be for the journal to count as idle."""


_BARRIERS_ONLY = frozenset((SuspendMode.IF_FLUSHED, SuspendMode.NOW, SuspendMode.KEEP))


_WAITS_WHILE_VALID = frozenset(
    (State.ACQUIRE_PIPELINE, State.START_PIPELINE, State.AWAIT_LISTING, State.VALIDATE_PRECONDITIONS)
)
_MAY_FAIL = frozenset(
    (
        State.RESOLVE,
        State.READ_HEAD,
        State.PREPARE_SPOOL,
        State.AWAIT_LISTING,
        State.UPDATE_ASSIGNMENTS,
        State.UPDATE_SUSPEND,
        State.VALIDATE_PRECONDITIONS,
        State.STREAM_CONTENT,
        State.SEAL_CONTENT,
    )
)
"""The others have a pipeline to tell them of failures, or something to wait for that cannot fail."""


class AppendFSM(AppendStart):
    def start(self) -> Effects:
        return (Resolve(self._read_through),)

    def step(self, event: Event, now_ns: int) -> Effects:
        """What to do about `event`, which has to be one that the append waits for; or ``Cancelled``, at any time."""
        self._now_ns = now_ns
        if isinstance(event, Cancelled):
            return self._on_cancelled()
        match event:
            case Invalidated():
                assert self.state in _WAITS_WHILE_VALID
                return self._resolve(self._read_through)
            case Chunk() | Intent() | End() | Failed() if self.state is State.CONFIRM_RESET:
                return self._on_confirming(event)
            case Failed(error) if self.state is not State.STREAM_CONTENT:
                assert self.state in _MAY_FAIL, self.state
                return self._on_failed(error)
            case Chunk() | Intent() | End() | Failed():
                assert self.state is State.STREAM_CONTENT
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
            case State.AWAIT_LISTING, Ready(summary, _, spool_ids):
                return self._on_listed(summary, spool_ids)
            case ((State.UPDATE_ASSIGNMENTS | State.UPDATE_SUSPEND), Transacted(revision)):
                return self._on_transacted(revision)
            case State.VALIDATE_PRECONDITIONS, Ready(summary, unhealthy):
                return self._validate(summary, unhealthy)
            case State.SEAL_CONTENT, ContentSealed(sealed):
                return self._on_sealed(sealed)
            case State.SHOW, Shown(is_certain):
                return self._finish(self._verdict if is_certain else Fail(UnavailableError(UNCERTAIN)))
            case _:
                return self._on_built(event)

    def _on_answered(self, ask: Ask, is_certain: bool) -> Effects:
        if self.state is State.SYNCHRONISE:
            return self._on_synchronised(ask, is_certain)
        if self.state is State.READ_ACKS:
            return self._on_acks(ask, is_certain)
        assert self.state is State.READ_ROLLBACK_ACKS
        return self._on_rollback_acks(ask)

    def _on_failed(self, error: GazetteError) -> Effects:
        pipeline = self.pipeline
        if self._taken is not None:
            return (*self._released(), *self._finish(Fail(error)))
        # Content that is not in our own spool is nowhere that counts; and whether an epoch was opened whose answer did
        # not come, only the record can tell. Such a pipeline is of no use any more.
        is_lost = self.state is State.SEAL_CONTENT or (pipeline is not None and not pipeline.is_open)
        return self._fail(error) if is_lost or self._change is not None else self._finish(Fail(error))

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
        return self.state is State.RESOLVE or self.state in _WAITS_WHILE_VALID

    # What the request and the journal demand, in the order in which clients are told of it.

    def _validate(self, summary: Summary, unhealthy: str | None) -> Effects:
        opening, resolution, head = self.opening, self._resolution, self._held.head
        if self._held.is_broken:
            # It broke while we waited. Nothing was sent, so that there is no need to tell the client.
            return self._start_pipeline()
        if unhealthy is not None:
            return self._refuse(Status.FRAGMENT_STORE_UNHEALTHY, store_health_error=unhealthy)
        if opening.check_registers and not registers.passes(head.registers, opening.check_registers):
            return self._refuse(Status.REGISTER_MISMATCH, registers=head.registers)
        if (
            _size(registers.changed(head.registers, opening.subtract_registers, opening.union_registers))
            > _REGISTERS_MAX
        ):
            rule = f"the registers of a journal may have {_REGISTERS_MAX} bytes in all"
            return self._finish(Fail(ValidationError(rule, "UnionRegisters")))
        if head.end < resolution.suspend.offset:
            return self._to_suspended(resolution.suspend.offset)
        known = extent(summary, head.fragment)
        if opening.offset is None:
            # A journal that is only read has barriers alone, which need no place to go.
            if head.end != max(head.end, known.end) and resolution.spec.may_write:
                return self._refuse(Status.INDEX_HAS_GREATER_OFFSET)
        elif opening.offset != max(head.end, known.end):
            return self._refuse(Status.WRONG_APPEND_OFFSET)
        elif opening.offset != head.end:
            # An operator's word that the bytes in between are in the store, or lost.
            return self._resynchronise(Start(opening.offset, head.registers, is_forced=True))
        return self._suspend(known) or self._stream(known)

    def _to_suspended(self, offset: int) -> Effects:
        """Where the journal was suspended, which Gazette lets a spec say as it likes."""
        if offset > HEAD_MAX:
            rule = f"the spec of the journal has it suspended beyond {HEAD_MAX}: apply one that does not"
            return self._finish(Fail(PreconditionError(rule)))
        return self._resynchronise(Start(offset, self._held.head.registers, is_forced=True))

    def _suspend(self, known: Summary) -> Effects:
        """What is to be done about suspension first; nothing if the append may go on."""
        mode, level, head = self.opening.suspend, self._resolution.suspend.level, self._held.head
        if mode is SuspendMode.RESUME and level != SuspendLevel.NONE:
            return self._set_suspend(SuspendLevel.NONE)
        if mode is SuspendMode.NO_RESUME and level != SuspendLevel.NONE:
            return self._refuse(Status.SUSPENDED)
        if mode not in (SuspendMode.IF_FLUSHED, SuspendMode.NOW):
            return ()
        # An index is not empty that has yet to be told of bytes, be they in a fragment that is closed already.
        if known.begin == known.end and self._held.shown_through >= head.end:
            return self._set_suspend(SuspendLevel.FULL)
        if level != SuspendLevel.NONE:
            return self._refuse(Status.SUSPENDED)
        if mode is SuspendMode.IF_FLUSHED and not self._is_flushed(known):
            return ()
        if head.fragment.content_length:
            # What the spool holds goes to the store now: nobody will append, and so close the fragment, for long.
            return self._resynchronise(Start(head.end, head.registers))
        return self._set_suspend(SuspendLevel.PARTIAL)

    def _set_suspend(self, level: SuspendLevel) -> Effects:
        pipeline = self._held
        if level == SuspendLevel.FULL and pipeline.record is not None:
            # Nobody will have the journal: where it ends has to be on record.
            last, claim = pipeline.record.open_epoch, pipeline.claim
            if last is not None and (head := closed(pipeline.record, claim.spool_id, _end_of(pipeline))) is not None:
                self._change = HeadChange(head, pipeline.record_revision)
        self.state = State.UPDATE_SUSPEND
        return (SetSuspend(self._resolution, level, pipeline.head.end, self._change),)

    def _is_flushed(self, known: Summary) -> bool:
        interval_s = self._resolution.spec.fragment.flush_interval_ns // 1_000_000_000 or UNFLUSHED_AGE_S
        return 0 < known.mod_time <= self._now_ns // 1_000_000_000 - interval_s

    # The content.

    def _stream(self, known: Summary) -> Effects:
        pipeline, spec = self._held, self._resolution.spec
        head = pipeline.head
        # The first bytes of a journal go to the store as soon as there are others: were all brokers lost before,
        # it could not be told from a journal to which nothing was ever written.
        roll_to = head.end if head.begin == known.begin else None
        fragment = rolled(head, roll_to, spec.fragment, self._now_ns)
        self._begin, self._registers = head.end, head.registers
        self.state = State.STREAM_CONTENT
        first = self._on_end() if self._is_confirmed else (NextChunk(),)
        if fragment == head.fragment:
            return first
        return (Begin(pipeline, fragment, head.registers), *first)

    def _on_client(self, event: Chunk | Intent | End | Failed) -> Effects:
        match event:
            case Failed(error):
                return self._roll_back(Fail(error))
            case End():
                return self._on_end()
            case _ if self._has_intent:
                return self._roll_back(Fail(ValidationError("expected EOF after empty Content chunk")))
            case Intent():
                self._has_intent = True
                return (NextChunk(),)
            case Chunk(data):
                return self._on_chunk(data)

    def _on_chunk(self, data: bytes | memoryview) -> Effects:
        pipeline = self._held
        if not self._resolution.spec.may_write or self.opening.suspend in _BARRIERS_ONLY:
            return self._roll_back(Finish(self._outcome(Status.NOT_ALLOWED)))
        if pipeline.is_broken:
            return self._fail_with(pipeline)
        delta, self._sent = self._sent, self._sent + len(data)
        return (Send(pipeline, data, delta), NextChunk())

    def _on_end(self) -> Effects:
        """An end without the client's word proves nothing: a killed client's stream ends just so."""
        opening, pipeline = self.opening, self._held
        if not self._has_intent:
            return self._roll_back(Fail(ValidationError("unexpected EOF: an append ends with an empty Content chunk")))
        changes_registers = bool(opening.union_registers or opening.subtract_registers)
        # An operator who has just said where the journal goes on has said with which registers, too.
        if not self._sent and changes_registers and not self._is_confirmed:
            return self._roll_back(Fail(ValidationError("register modification requires non-empty Append")))
        if pipeline.is_broken:
            return self._fail_with(pipeline)
        if not self._sent:
            return self._commit(pipeline.head.fragment)
        self.state = State.SEAL_CONTENT
        return (Seal(pipeline),)

    def _on_sealed(self, sealed: Sealed) -> Effects:
        opening, pipeline = self.opening, self._held
        self._content_sum = sealed.content_sum
        if self._is_cancelled:
            # It said that it wants the commit, but will never hear of it: better not to.
            return self._roll_back(Abandon())
        if pipeline.is_broken:
            return self._fail_with(pipeline)
        self._registers = registers.changed(self._registers, opening.subtract_registers, opening.union_registers)
        return self._commit(sealed.fragment)

    def _commit(self, fragment: Fragment) -> Effects:
        pipeline = self._held
        self.state = State.READ_ACKS
        # Passed on once the proposal is sent: the next append sends while we read.
        return (Commit(pipeline, fragment, self._registers), *self._given_back(pipeline))

    def _roll_back(self, verdict: Finish | Fail | Abandon) -> Effects:
        pipeline = self._held
        if pipeline.is_broken:
            return (*self._shut_down(), *self._finish(verdict))
        if not self._sent:
            return self._finish(verdict)
        self._verdict = verdict
        self.state = State.READ_ROLLBACK_ACKS
        return (Commit(pipeline, pipeline.head.fragment, pipeline.head.registers), *self._given_back(pipeline))

    def _on_acks(self, ask: Ask, is_certain: bool) -> Effects:
        pipeline = self._held
        failure = ask.failure or self._refused(pipeline, ask)
        if failure is None and not is_certain:
            failure = UnavailableError(UNCERTAIN)
        if failure is not None:
            return self._finish(Fail(failure))
        end = self._begin + self._sent
        journal, codec = ask.fragment.journal, ask.fragment.codec
        commit = Fragment(journal, self._begin, end, self._content_sum, codec)
        self._verdict = Finish(self._outcome(Status.OK, commit=commit, registers=self._registers))
        self.state = State.SHOW
        return (Show(pipeline, end),)

    def _on_rollback_acks(self, ask: Ask) -> Effects:
        if ask.failure is None:
            self._refused(self._held, ask)
        return self._finish(self._verdict)

    def _refused(self, pipeline: Pipeline, ask: Ask) -> UnavailableError | None:
        """A synchronised peer that disagrees is not synchronised: nothing more is to be sent to it."""
        peer = ask.refusal
        if peer is None:
            return None
        failure = UnavailableError(f"{peer.zone}/{peer.suffix} answered {ask.answers[peer].status.name} to a commit")
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


def _size(labels: LabelSet) -> int:
    return sum(len(label.name) + len(label.value) for label in labels)


def _end_of(pipeline: Pipeline) -> CopyEnd | None:
    """As a copy that is closed where the pipeline is."""
    record, head = pipeline.record, pipeline.head
    last = record.open_epoch if record is not None else None
    return None if record is None or last is None else CopyEnd(record.mark(last), head.end, head.registers)
