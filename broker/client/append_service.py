"""AppendService: many appends to many journals, in order for each of them, and in as few calls as may be.

While one call for a journal is under way, what is appended meanwhile is collected for the next. Journals do not wait
for each other, except where an append is to come after others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from broker.client import appender
from broker.client.append_queue import AppendQueue, Batch
from broker.client.append_request import AppendRequest
from broker.client.brokers import Brokers
from broker.client.outcome import Appended, UnknownOutcomeError
from broker.client.retry import RetryPolicy
from protocol.errors import GazetteError, UnavailableError
from protocol.identifier import strip_meta
from protocol.label import LabelSet
from protocol.selector import LabelSelector


@dataclass(frozen=True, slots=True, eq=False)
class PendingAppend:
    """Await it to know where the bytes are, or why they are not. It goes on whether or not anybody does."""

    journal: str
    batch: Batch
    begin: int
    length: int
    _done: asyncio.Future[Appended]

    def __await__(self) -> Generator[Any, None, Appended]:
        return self._result().__await__()

    async def _result(self) -> Appended:
        # Whoever no longer waits does not take the append with them.
        whole = await asyncio.shield(self._done)
        begin = whole.begin + self.begin
        return replace(whole, begin=begin, end=begin + self.length)

    @property
    def is_done(self) -> bool:
        return self._done.done()


@dataclass(slots=True)
class _Journal:
    # What nearly all appends ask for, made and judged once.
    plain: AppendRequest
    queue: AppendQueue = field(default_factory=AppendQueue)
    tail: PendingAppend | None = None


class AppendService:
    """
    An append that fails ends the service for its journal: all later ones fail with the same error, since what was to
    come before them is not there. So do those that were to come after it in other journals.

    Memory is bounded: `append` waits while too much is pending. A journal without pending appends costs nothing.
    """

    def __init__(self, brokers: Brokers, policy: RetryPolicy | None, pending_bytes_max: int) -> None:
        self._brokers = brokers
        self._policy = policy
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0
        self._room = asyncio.Condition()
        self._journals: dict[str, _Journal] = {}
        self._done: dict[Batch, asyncio.Future[Appended]] = {}
        self._errors: dict[str, GazetteError] = {}

    async def __aenter__(self) -> AppendService:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.flush()

    async def append(
        self,
        journal: str,
        data: bytes = b"",
        *,
        after: Iterable[PendingAppend] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet = LabelSet(),
        subtract_registers: LabelSet = LabelSet(),
    ) -> PendingAppend:
        """Begin an append, once there is room for it. It is sent when all of `after` are done, and only then.

        Without data it is a barrier, which has a call of its own kind: it succeeds when all before it have.
        """
        await self.wait_room(len(data))
        return self.append_nowait(
            journal,
            data,
            after=after,
            check_registers=check_registers,
            union_registers=union_registers,
            subtract_registers=subtract_registers,
        )

    async def wait_room(self, length: int) -> None:
        """Until so many bytes can be appended without waiting."""
        if not self._has_room(length):
            async with self._room:
                await self._room.wait_for(lambda: self._has_room(length))

    def append_nowait(
        self,
        journal: str,
        data: bytes = b"",
        *,
        after: Iterable[PendingAppend] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet = LabelSet(),
        subtract_registers: LabelSet = LabelSet(),
    ) -> PendingAppend:
        """As `append`, for those whose data depends on the order of appends: it is added before this returns.

        Raises ``asyncio.QueueFull`` if there is no room: see `wait_room`.
        """
        if not self._has_room(len(data)):
            raise asyncio.QueueFull
        name = strip_meta(journal)
        if error := self._errors.get(name) or self._error_of(after):
            self._errors.setdefault(name, error)
            return self._failed(name, error)
        held = self._journals.get(name)
        if held is None:
            held = self._journals[name] = _Journal(AppendRequest(name))
            self._brokers.tasks.create_task(self._run(name, held))
        request = held.plain
        if check_registers is not None or union_registers or subtract_registers:
            request = AppendRequest(name, None, check_registers, union_registers, subtract_registers)
        # What is done already need not be waited for.
        waited = frozenset(pending.batch for pending in after if not pending.is_done)
        batch, begin = held.queue.add(request, bytes(data), waited)
        if batch not in self._done:
            self._done[batch] = _future()
        self._pending_bytes += len(data)
        held.tail = PendingAppend(name, batch, begin, len(data), self._done[batch])
        return held.tail

    def pending_except(self, journal: str = "") -> list[PendingAppend]:
        """The last append of every other journal that is not done. When they are, all before them are as well.

        A journal that has failed is represented by an append that has failed.
        """
        name = strip_meta(journal)
        pending = [held.tail for other, held in self._journals.items() if other != name and held.tail is not None]
        failed = [self._failed(other, error) for other, error in self._errors.items() if other != name]
        return pending + failed

    async def flush(self) -> None:
        """Until all that was begun before is done. Raises the first error there is, even one from before."""
        for pending in self.pending_except():
            await pending

    def _has_room(self, length: int) -> bool:
        return not self._pending_bytes or self._pending_bytes + length <= self._pending_bytes_max

    def _error_of(self, after: Iterable[PendingAppend]) -> GazetteError | None:
        return next((error for pending in after if (error := self._errors.get(pending.journal)) is not None), None)

    def _failed(self, name: str, error: GazetteError) -> PendingAppend:
        done = _future()
        done.set_exception(error)
        return PendingAppend(name, Batch(AppendRequest(name), frozenset()), 0, 0, done)

    async def _run(self, name: str, held: _Journal) -> None:
        """Sends what waits for one journal, until nothing does."""
        try:
            while (batch := held.queue.take()) is not None:
                error = await self._sent(batch)
                if error is not None:
                    self._errors[name] = error
                await self._let_go(batch)
                if error is not None:
                    break
        finally:
            del self._journals[name]
            error = self._errors.get(name)
            while (left := held.queue.take()) is not None:
                self._done[left].set_exception(error or UnavailableError("the client was closed before this was sent"))
                await self._let_go(left)

    async def _sent(self, batch: Batch) -> GazetteError | None:
        """What went wrong, if anything did."""
        done = self._done[batch]
        try:
            for before in batch.after:
                if (waited := self._done.get(before)) is not None:
                    await asyncio.shield(waited)
            done.set_result(await appender.append(self._brokers, batch.request, batch.parts, self._policy))
        except GazetteError as error:
            done.set_exception(error)
            return error
        except asyncio.CancelledError:
            done.set_exception(UnknownOutcomeError("the client was closed while this was being appended"))
            raise
        return None

    async def _let_go(self, batch: Batch) -> None:
        del self._done[batch]
        self._pending_bytes -= batch.length
        async with self._room:
            self._room.notify_all()


def _future() -> asyncio.Future[Appended]:
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    # An error that nobody waits for is found by the next append.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
