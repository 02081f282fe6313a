"""SpoolWorker: does what the holder of a spool asks for on a thread, in order, and says what came of it.

Steps that come while others are being done are done together, in the next go: under load a thread is woken once for
many of them. Content does not even wait for that: a thread that is at content goes on with what has come meanwhile.
What is committed, acknowledged or complete is told to observers on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from broker.content_sum import ContentSum
from broker.disk_watch import DiskWatch
from broker.durable_head import Fate
from broker.metrics import COMMIT_BYTES, COMMITS, ROLLBACK_BYTES, ROLLBACKS
from broker.pipeline import Sealed
from fragment.spool import CopyEnd, Proposal, Reply, Spool
from fragment.spool_writer import CompletedSpool, LocalFragment, Performed, SpoolWriter
from protocol.errors import UnavailableError

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 4 << 20
"""Content that waits to be written. Who has more to send waits until it is less."""
FOLLOWED_BYTES_MAX = QUEUED_BYTES_MAX // 2
"""Content that a thread goes on with before it says how far it is. Who has more to send is not held up by that."""
STEP_BYTES = 512
"""What a step costs beside its content."""


class SpoolObserver(Protocol):
    """Hears of what a spool has come to, on the event loop."""

    def visible(self, local: LocalFragment) -> None: ...

    def completed(self, completed: CompletedSpool) -> None: ...

    def acked(self, through: int) -> None: ...

    def retired(self, copy: CopyEnd, fate: Fate) -> None:
        """What was completed of this copy goes to this fate."""
        ...

    def given_up(self, copy: CopyEnd | None) -> None:
        """The spool is handed on, and nobody will acknowledge any more of it."""
        ...

    def stalled(self, failure: UnavailableError | None) -> None:
        """The disk hangs: nobody gets the spool before it goes on, of which None tells."""
        ...


@dataclass(slots=True)
class _Content:
    data: bytes | memoryview
    delta: int


@dataclass(slots=True)
class _Seal:
    done: Callable[[Sealed | Exception], None]


@dataclass(slots=True)
class _Prepare:
    fate: Fate | None
    done: Callable[[Exception | None], None]
    # That of the spool as it was.
    copy: CopyEnd | None = None


@dataclass(slots=True)
class _Propose:
    proposal: Proposal
    done: Callable[[Reply | Exception], None]


@dataclass(slots=True)
class _Acked:
    through: int
    done: Callable[[], None]


@dataclass(slots=True)
class _Release:
    pass


@dataclass(slots=True)
class _HandOn:
    done: Callable[[], None]


_Step = _Content | _Seal | _Prepare | _Propose | _Acked | _Release | _HandOn


class SpoolWorker:
    """A HeldSpool. It is one and the same for all who hold it, one after the other. Its steps run on `executor`.

    ``stalled`` is for the DiskWatch, which knows of all that is under way there.
    """

    def __init__(
        self,
        writer: SpoolWriter,
        executor: Executor,
        observer: SpoolObserver,
        released: Callable[[SpoolWorker], None],
        disk: DiskWatch,
    ) -> None:
        self._writer = writer
        self._executor = executor
        self._disk = disk
        self._observer = observer
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._steps: list[_Step] = []
        self._queued_bytes = 0
        # What a thread has; and whether it has any, or what came of one is being told.
        self._under_way: list[_Step] = []
        # What the thread is to go on with, before the steps: the one thing that both it and the loop change.
        self._following: deque[_Content | _Seal] = deque()
        self._is_followed = False
        self._is_working = False
        self.doing_since_s: float | None = None
        self._is_stalled = False
        # Set when there is room again; None while there is, as nearly always.
        self._room: asyncio.Event | None = None
        self.sums_content = False
        self._failed: Callable[[Exception], None] | None = None
        # The first step that could not be done for the present holder: none that follows is.
        self._failure: Exception | None = None
        # Of the content since the last proposal; None while it is the same as the spool's own.
        self._content_sum: ContentSum | None = None

    @property
    def spool(self) -> Spool:
        return self._writer.spool

    def watch(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed

    async def wait_room(self) -> None:
        """Until there is room for more content, or the disk is known to hang: the holder is told of that."""
        if self._room is not None:
            await self._room.wait()

    @property
    def has_room(self) -> bool:
        return self._room is None

    def content(self, data: bytes | memoryview, delta: int) -> None:
        self._queue(len(data))
        self._add(_Content(data, delta))

    def seal(self, done: Callable[[Sealed | Exception], None]) -> None:
        self._add(_Seal(done))

    def prepare(self, fate: Fate | None, done: Callable[[Exception | None], None]) -> None:
        self._add(_Prepare(fate, done))

    def propose(self, proposal: Proposal, done: Callable[[Reply | Exception], None]) -> None:
        self._queue(0)
        self._add(_Propose(proposal, done))

    def acked(self, through: int, done: Callable[[], None] | None = None) -> None:
        known = self.spool.acked_through
        last = self._steps[-1] if self._steps else None
        if not self._is_working and known is not None and through <= known:
            (done or _nothing)()
        elif done is None and isinstance(last, _Acked):
            # A primary may say so any number of times while our disk is busy. The later word says it all.
            last.through = max(last.through, through)
        else:
            self._add(_Acked(through, done or _nothing))

    def release(self) -> None:
        self._failed = None
        self._add(_Release())

    def hand_on(self, done: Callable[[], None]) -> None:
        self._failed = None
        self._add(_HandOn(done))

    def stalled(self, failure: UnavailableError) -> None:
        """The disk hangs. Whoever waits is told, and lets go; nobody gets the spool before the thread is done with it.

        What the thread still does is done, and told to observers. What it has not begun is not: it finds a failure.
        """
        if self._is_stalled:
            return
        self._is_stalled = True
        if self._room is not None:
            self._room.set()
        self._observer.stalled(failure)
        # In this order: the thread puts a step under way before it takes it from those that follow.
        following = list(self._following)
        for step in (*self._under_way, *following, *self._steps):
            if isinstance(step, _Seal | _Prepare):
                done, step.done = step.done, _told_already
                done(failure)
        if self._failed is not None:
            self._failure = failure
            self._failed(failure)

    def _queue(self, count: int) -> None:
        self._queued_bytes += count + STEP_BYTES
        if self._queued_bytes > QUEUED_BYTES_MAX and self._room is None:
            self._room = asyncio.Event()

    def _unqueue(self, count: int) -> None:
        self._queued_bytes -= count + STEP_BYTES
        if self._queued_bytes <= QUEUED_BYTES_MAX and self._room is not None:
            self._room.set()
            self._room = None

    def _add(self, step: _Step) -> None:
        if self._is_followed and not self._steps and isinstance(step, _Content | _Seal):
            self._following.append(step)
            return
        self._steps.append(step)
        if not self._is_working:
            self._work()

    def _work(self) -> None:
        """What waits for nothing is done here; the rest goes to a thread, all of it together.

        What is asked for by those who are told what came of a step waits: others are to be told before it is done.
        """
        while self._steps:
            self._is_working = True
            if self._needs_thread(self._steps[0]):
                steps, self._steps = self._steps, []
                self._under_way = steps.copy()
                # What came of a commit is told before anything else is done.
                self._is_followed = all(isinstance(step, _Content) for step in steps)
                self._disk.begun(self)
                self._executor.submit(self._do_all, steps)
                return
            step = self._steps.pop(0)
            try:
                self._settle(step, self._do(step))
            finally:
                # Whoever was told may fail, and others wait.
                self._is_working = False

    def _needs_thread(self, step: _Step) -> bool:
        match step:
            case _Release():
                # To give back a spool whose file has ended is to hand it on.
                return self._writer.has_ended
            case _Seal():
                return self._content_sum is not None and self._content_sum.is_behind
            case _:
                return not isinstance(step, _Acked)

    def picked_up(self) -> None:
        """A thread has got to what is under way."""
        self.doing_since_s = self._disk.clock()

    def _do_all(self, steps: list[_Step]) -> None:
        """On a thread."""
        self.picked_up()
        results = [(step, self._do(step)) for step in steps]
        followed_bytes = 0
        while followed_bytes < FOLLOWED_BYTES_MAX and self._following:
            step = self._following[0]
            self._under_way.append(step)
            self._following.popleft()
            results.append((step, self._do(step)))
            followed_bytes += len(step.data) if isinstance(step, _Content) else 0
        self._loop.call_soon_threadsafe(self._settle_all, results)

    def _settle_all(self, results: list[tuple[_Step, Performed | Sealed | Exception | None]]) -> None:
        """Whoever is told may fail, and others wait: of a batch, each is told. The first error is raised after that."""
        failure: Exception | None = None
        self._under_way, self.doing_since_s = [], None
        # The thread is done: what has come since its last look is the next.
        self._is_followed = False
        self._steps[:0] = self._following
        self._following.clear()
        self._disk.ended(self)
        if self._is_stalled:
            self._is_stalled = False
            self._observer.stalled(None)
        for step, result in results:
            try:
                self._settle(step, result)
            except Exception as error:
                failure = failure or error
        self._is_working = False
        try:
            self._work()
        finally:
            if failure is not None:
                raise failure

    def _do(self, step: _Step) -> Performed | Sealed | Exception | None:
        """What came of a step. Nothing is done for a holder after a failure, but to give the spool back."""
        writer = self._writer
        try:
            match step:
                case _Release():
                    self._failure = None
                    self._count_rolled_back()
                    return writer.roll_back()
                case _HandOn():
                    self._failure = None
                    return writer.complete()
                case _ if self._failure is not None:
                    return self._failure
                case _Content(data, delta):
                    self._take_in(data, delta)
                    return None
                case _Seal():
                    fragment = writer.spool.next()
                    content_sum = fragment.sum if self._content_sum is None else self._content_sum.digest()
                    return Sealed(fragment, content_sum)
                case _Prepare(fate, _):
                    step.copy = writer.spool.copy
                    return writer.unplace() if fate is None else writer.retire()
                case _Propose(proposal, _):
                    return self._propose(proposal)
                case _Acked(through, _):
                    return writer.acked(through)
        except Exception as error:
            # Whatever it is, whoever holds the spool has to hear of it and let go.
            self._failure = error
            return error

    def _propose(self, proposal: Proposal) -> Performed:
        before = self._writer.spool
        performed = self._writer.propose(proposal)
        committed = self._writer.spool.fragment.end - before.fragment.end
        if before.pending and committed == before.pending:
            COMMITS.inc()
            COMMIT_BYTES.inc(committed)
        elif before.pending and not self._writer.spool.pending:
            ROLLBACKS.inc()
            ROLLBACK_BYTES.inc(before.pending)
        return performed

    def _count_rolled_back(self) -> None:
        if pending := self._writer.spool.pending:
            ROLLBACKS.inc()
            ROLLBACK_BYTES.inc(pending)

    def _take_in(self, data: bytes | memoryview, delta: int) -> None:
        """Write, and hash twice: for the fragment, and for the append alone."""
        if delta == 0:
            # The first bytes of a fragment have the fragment's own sum.
            is_summed = self.sums_content and self._writer.spool.fragment.content_length
            self._content_sum = ContentSum(self._executor) if is_summed else None
        if self._content_sum is not None:
            self._content_sum.update(data)
        self._writer.content(data, delta)

    def _settle(self, step: _Step, result: Performed | Sealed | Exception | None) -> None:
        if isinstance(result, Performed):
            self._tell(result)
        match step:
            case _Content(data, _):
                self._unqueue(len(data))
            case _Seal(sealed):
                assert isinstance(result, Sealed | Exception)
                sealed(result)
            case _Prepare():
                assert isinstance(result, Performed | Exception)
                self._settle_prepared(step, result)
            case _Propose(_, replied):
                self._unqueue(0)
                reply = result.reply if isinstance(result, Performed) else result
                assert isinstance(reply, Reply | Exception)
                replied(reply)
            case _Acked(_, told):
                told()
            case _Release():
                self.sums_content = False
                self._released(self)
            case _HandOn(handed_on):
                self._observer.given_up(self.spool.copy)
                handed_on()
        if isinstance(result, Exception):
            self._settle_failed(step, result)

    def _settle_failed(self, step: _Step, failure: Exception) -> None:
        if self._failed is not None:
            self._failed(failure)
        elif isinstance(step, _Release | _HandOn):
            extra = {"journal": self.spool.fragment.journal, "error": str(failure)}
            log.error("a spool could not be given back or handed on (its files stay)", extra=extra)

    def _settle_prepared(self, step: _Prepare, result: Performed | Exception) -> None:
        if isinstance(result, Exception):
            step.done(result)
            return
        if step.fate is not None and step.copy is not None:
            self._observer.retired(step.copy, step.fate)
        step.done(None)

    def _tell(self, performed: Performed) -> None:
        for local in performed.visible:
            self._observer.visible(local)
        if performed.completed is not None:
            self._observer.completed(performed.completed)
        acked = self.spool.acked_through
        if acked is not None:
            self._observer.acked(acked)


def _nothing() -> None:
    """Nobody asked to be told."""


def _told_already(_: object) -> None:
    """When the disk was found to hang."""
