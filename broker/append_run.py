"""AppendRun: takes an AppendFSM from step to step, through the slots and the pipeline of its journal's Replica.

It still waits for nothing: what takes time is asked of its host, which says when it is done. That is a broker, with
gRPC, etcd and disks, or one of the simulator's, with none of them. Its caller is whoever appends: a client, or a pulse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from allocator.transaction import Transaction
from broker.append_effect import (
    Abandon,
    Acknowledge,
    Advertise,
    AwaitReady,
    Begin,
    Commit,
    Effect,
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
from broker.journal_transaction import advertise, set_suspend
from broker.notice import Notice, Withdraw
from broker.pipeline import Ask, PeerStream, Pipeline, Sealed
from broker.replica import Replica
from broker.resolution import EVERYTHING, REVISION_WAIT_S, Resolution, Wanted
from protocol.errors import GazetteError, UnavailableError
from protocol.route import ProcessId
from protocol.selector import LabelSelector


class AppendHost(Protocol):
    """What an append needs of the broker it runs in, whoever its caller is. `done` may be called at once."""

    def resolve_within(
        self, wanted: Wanted, timeout_s: float | None, done: Callable[[Resolution | GazetteError], None]
    ) -> Withdraw: ...

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        """`done` is given the revision of the transaction, or None if a comparison did not hold."""
        ...

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        """What is on record of the journal's head, as etcd has it now."""
        ...

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        """Until all stores of the journal were listed, and the first one is healthy or has long not been.

        If it is to be fresh, until they were listed anew, and with the spool directories of all members.
        """
        ...

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        """To each peer. What comes of them is told to the pipeline, from the next turn on."""
        ...

    def is_certain(self) -> bool:
        """Whether this broker is a member of its cluster beyond doubt."""
        ...

    def now_ns(self) -> int: ...


class AppendCaller(Protocol):
    """Whom an append is for."""

    def next_chunk(self) -> None:
        """Feed the run with the next message of the client, once there is room for what was sent."""
        ...

    def proxy(self, resolution: Resolution) -> None: ...

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        """None if there is nobody to tell."""
        ...


class AppendRun:
    def __init__(
        self, opening: AppendOpening, host: AppendHost, caller: AppendCaller, selector: LabelSelector = EVERYTHING
    ) -> None:
        """`selector` is what the caller may see."""
        self.fsm = AppendFSM(opening)
        self._host = host
        self._caller = caller
        self._selector = selector
        self._replica: Replica[object] | None = None
        # From which the pipeline was taken, which is not always that of the latest Resolution.
        self._owner: Replica[object] | None = None
        self._waits: list[Withdraw] = []
        self._invalidation: Notice | None = None
        self._events: deque[Event] = deque()
        self._is_running = False
        self._is_cancelled = False
        # Whether members were asked to commit it, or an operator's reset was begun: from then on, a failure does not
        # mean that it was not done.
        self.may_be_done = False

    def start(self) -> None:
        self._is_running = True
        for effect in self.fsm.start():
            self._perform(effect)
        self._is_running = False
        self._run()

    def feed(self, event: Chunk | Intent | End | Failed) -> None:
        """What the client sent, one at a time, each after it was asked for. One that is gone is not heard."""
        if not self._is_cancelled:
            self.may_be_done |= isinstance(event, End) and self.fsm.state is State.CONFIRM_RESET
            self._on(event)

    @property
    def replica(self) -> Replica[object]:
        """Of the Resolution that the append goes by."""
        assert self._replica is not None
        return self._replica

    @property
    def invalidation(self) -> Notice:
        """Of the Resolution that the append goes by."""
        assert self._invalidation is not None
        return self._invalidation

    def cancel(self) -> None:
        """The client is gone."""
        if not self.fsm.is_over and not self._is_cancelled:
            self._is_cancelled = True
            if self.fsm.is_waiting:
                self._stop_waiting()
            self._on(Cancelled())

    def _on(self, event: Event) -> None:
        self._events.append(event)
        self._run()

    def _run(self) -> None:
        """All effects of one step are done before the next: what they bring about waits its turn."""
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events:
                event = self._events.popleft()
                if self.fsm.is_over:
                    continue
                for effect in self.fsm.step(event, self._host.now_ns()):
                    self._perform(effect)
        except Exception:
            self._break_off()
            raise
        finally:
            self._is_running = False

    def _break_off(self) -> None:
        """Something is wrong with us. It must not cost the journal its pipeline, for which others wait."""
        pipeline, owner, self._owner = self.fsm.pipeline, self._owner, None
        owns, spool = self.fsm.break_off()
        self._events.clear()
        self._stop_waiting()
        if spool is not None:
            spool.release()
        if owns and owner is not None:
            if pipeline is not None:
                pipeline.close()
            owner.pipeline.put(None)
        self._caller.finish(UnavailableError("the append was broken off by a fault of this broker: its log says more"))

    def _perform(self, effect: Effect) -> None:  # noqa: C901 - one line for each
        match effect:
            case Resolve(min_revision):
                self._resolve(min_revision)
            case TakePipeline():
                self._take_pipeline()
            case GiveBack(pipeline):
                self._give_back(pipeline)
            case TakeSpool():
                self._take_spool()
            case ReadHead():
                self._host.read_head(self.fsm.opening.journal, self._on_head)
            case Prepare(held, fate):
                held.prepare(fate, self._on_prepared)
            case Release(held):
                held.release()
            case Open(held, resolution, terms):
                spool_id = self.replica.claimed_id(None if terms is None else terms.mark)
                pipeline = Pipeline(resolution.header, resolution.local_id, held, resolution.kin, terms, spool_id)
                pipeline.connect(self._host.open_streams(self.replica, pipeline))
                self._on(Opened(pipeline))
            case Synchronise(pipeline, fragment, registers, is_first):
                ask = pipeline.synchronise if is_first else pipeline.ask
                ask(fragment, registers, self._host.now_ns(), self._on_answered)
                self._close_when_stopped(pipeline)
            case ShutDown(pipeline):
                pipeline.close()
            case Advertise(resolution, change):
                self._host.transact(advertise(resolution, change), self._on_transacted)
            case EpochOpened(pipeline, terms, closed):
                pipeline.opened(terms)
                self.replica.epoch_opened(terms, closed)
            case Voided():
                self.replica.voided()
            case SetSuspend(resolution, level, offset, change):
                self._host.transact(set_suspend(resolution, level, offset, change), self._on_transacted)
            case AwaitReady(is_fresh):
                self._await_ready(is_fresh)
            case Begin(pipeline, fragment, registers):
                pipeline.begin(fragment, registers, self._host.now_ns())
            case NextChunk():
                self._caller.next_chunk()
            case Send(pipeline, data, delta):
                pipeline.content(data, delta)
            case Seal(pipeline):
                pipeline.held.seal(self._on_sealed)
            case Commit(pipeline, fragment, registers):
                # To roll back, members are asked the same.
                self.may_be_done |= self.fsm.state is State.READ_ACKS
                pipeline.ask(fragment, registers, self._host.now_ns(), self._on_answered)
            case Acknowledge(pipeline, through):
                pipeline.acknowledge(through)
                pipeline.held.acked(through, partial(pipeline.shown, through))
            case Show(pipeline, through):
                pipeline.acknowledge(through)
                pipeline.held.acked(through, partial(self._on_shown, pipeline, through))
            case Proxy(resolution):
                self._caller.proxy(resolution)
            case Finish(outcome):
                self._caller.finish(outcome)
            case Fail(error):
                self._caller.finish(error)
            case Abandon():
                self._caller.finish(None)
            case _:
                assert_never(effect)

    def _resolve(self, min_revision: int) -> None:
        opening = self.fsm.opening
        wanted = Wanted(opening.journal, not opening.do_not_proxy, True, min_revision, opening.header, self._selector)
        # Members take as long to go as they take. Everything else etcd has told others already.
        timeout_s = None if self.fsm.is_patient else REVISION_WAIT_S
        self._wait(self._host.resolve_within(wanted, timeout_s, self._on_resolved))

    def _on_resolved(self, resolution: Resolution | GazetteError) -> None:
        self._stop_waiting()
        if isinstance(resolution, GazetteError):
            self._on(Failed(resolution))
            return
        replica = resolution.replica
        assert replica is None or isinstance(replica, Replica)
        self._replica = replica
        self._invalidation = None if replica is None else replica.invalidation
        self._on(Resolved(resolution))

    def _take_pipeline(self) -> None:
        self._owner = self.replica
        self._wait_valid()
        if not self._events:
            self._wait(self._owner.pipeline.take(self._on_pipeline).withdraw)

    def _on_pipeline(self, pipeline: Pipeline | None) -> None:
        self._stop_waiting()
        self._on(PipelineTaken(pipeline))

    def _give_back(self, pipeline: Pipeline | None) -> None:
        owner, self._owner = self._owner, None
        assert owner is not None
        if pipeline is not None:
            # Nobody else may say it, for as long as nobody appends.
            pipeline.tell_acked()
        owner.pipeline.put(pipeline)

    def _take_spool(self) -> None:
        if (stall := self.replica.stall) is not None:
            self._on(Failed(stall))
            return
        self._wait_valid()
        if not self._events:
            header = self.fsm.resolution.header if self.fsm.resolution is not None else None
            assert header is not None
            self._wait(self.replica.take_spool(header, lambda held: self._on_taken(SpoolTaken(held))))

    def _on_taken(self, event: SpoolTaken) -> None:
        self._stop_waiting()
        self._on(event)

    def _on_head(self, read: HeadRead | GazetteError) -> None:
        if isinstance(read, GazetteError):
            self._on(Failed(read))
            return
        if read.head is not None and read.head.epochs:
            read = replace(read, stored=self.replica.index.stored_extents())
        self._on(read)

    def _on_prepared(self, failure: Exception | None) -> None:
        if failure is None:
            self._on(Prepared())
        else:
            self._on(Failed(UnavailableError(f"the spool of {self.fsm.opening.journal} cannot be used: {failure}")))

    def _await_ready(self, is_fresh: bool) -> None:
        self._wait_valid()
        if not self._events:
            self._wait(self._host.await_ready(self.replica, is_fresh, self._on_ready))

    def _on_ready(self, ready: Ready | GazetteError) -> None:
        self._stop_waiting()
        self._on(Failed(ready) if isinstance(ready, GazetteError) else ready)

    def _close_when_stopped(self, pipeline: Pipeline) -> None:
        """Not to wait for peers on behalf of a replica that is given up.

        They may be waiting for the one that came instead of it, whose streams and ours each have the spool of a peer.
        """
        assert self._owner is not None
        if not any(isinstance(event, Answered) for event in self._events):
            self._wait(self._owner.stopped.listen(pipeline.close))

    def _on_answered(self, ask: Ask) -> None:
        self._stop_waiting()
        self._on(Answered(ask, self._host.is_certain()))

    def _on_shown(self, pipeline: Pipeline, through: int) -> None:
        pipeline.shown(through)
        self._on(Shown(self._host.is_certain()))

    def _on_transacted(self, revision: int | GazetteError | None) -> None:
        self._on(Failed(revision) if isinstance(revision, GazetteError) else Transacted(revision))

    def _on_sealed(self, sealed: Sealed | Exception) -> None:
        if isinstance(sealed, Exception):
            self._on(Failed(UnavailableError(f"the spool of {self.fsm.opening.journal} cannot be written: {sealed}")))
        else:
            self._on(ContentSealed(sealed))

    def _wait_valid(self) -> None:
        """Be told when the latest Resolution does not hold any more, beside what is waited for."""
        assert self._invalidation is not None
        self._wait(self._invalidation.listen(self._on_invalidated))

    def _on_invalidated(self) -> None:
        self._stop_waiting()
        self._on(Invalidated())

    def _wait(self, withdraw: Withdraw) -> None:
        self._waits.append(withdraw)

    def _stop_waiting(self) -> None:
        waits, self._waits = self._waits, []
        for withdraw in waits:
            withdraw()
