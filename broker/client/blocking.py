"""BlockingClient: the client for scripts, threads and Spark executors.

All of a script::

    with BlockingClient("localhost:8080") as client:
        client.append("my/journal", b"hello\\n")
        for line in client.read_lines("my/journal", block=False):
            print(line)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

from broker.client.append_queue import PENDING_BYTES_MAX
from broker.client.append_request import Chunk
from broker.client.append_service import AppendService
from broker.client.client import Client
from broker.client.fragment_list import ListedFragment
from broker.client.journal_change import CHANGES_MAX, Change
from broker.client.listing import Listing
from broker.client.outcome import Appended
from broker.client.read_message import ReadMetadata
from broker.client.reader import LineReader, Reader
from broker.client.retry import RetryPolicy
from broker.client.retrying_read import OnJump, log_jump
from broker.client.settings import ClientSettings
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector

__all__ = ["BlockingClient"]

T = TypeVar("T")

_BATCH_BYTES = 1 << 20
"""How much a blocking reader fetches in one go, if there is so much: each go is a hand-over between two threads."""


class BlockingClient:
    """A ``Client`` on an event loop of its own, in a thread of its own. Any number of threads may share it.

    It starts with its first call. What is sent to another process, as Spark does with what a task needs, are the
    settings: there it starts anew.
    """

    def __init__(self, *addresses: str, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings.of(*addresses)
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.settings,)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread, and with it all calls. The next call would start another."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def append(  # noqa: PLR0913 -- what an append may ask for
        self,
        journal: str,
        content: Chunk | Iterable[Chunk] = b"",
        *,
        offset: int | None = None,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet = LabelSet(),
        subtract_registers: LabelSet = LabelSet(),
        suspend: SuspendMode = SuspendMode.RESUME,
        retry: RetryPolicy | None = None,
    ) -> Appended:
        """As ``Client.append``. Chunks are collected first, since to wait for them would hold up all other calls."""
        held = content if isinstance(content, bytes | bytearray | memoryview) else list(content)
        running = self._started()
        return running.result(
            running.client.append(
                journal,
                held,
                offset=offset,
                check_registers=check_registers,
                union_registers=union_registers,
                subtract_registers=subtract_registers,
                suspend=suspend,
                retry=retry,
            )
        )

    def append_service(
        self, *, retry: RetryPolicy | None = None, pending_bytes_max: int = PENDING_BYTES_MAX
    ) -> BlockingAppends:
        """As ``Client.append_service``. Appends go on in the client's thread while the caller makes the next."""
        running = self._started()
        service = running.call(running.client.append_service, retry=retry, pending_bytes_max=pending_bytes_max)
        return BlockingAppends(running, service)

    def read(
        self,
        journal: str,
        offset: int = 0,
        *,
        end: int | None = None,
        block: bool = True,
        on_jump: OnJump = log_jump,
        retry: RetryPolicy | None = None,
    ) -> BlockingReader:
        """As ``Client.read``: an iterator of chunks."""
        running = self._started()
        reader = running.call(running.client.read, journal, offset, end=end, block=block, on_jump=on_jump, retry=retry)
        return BlockingReader(running, reader)

    def read_lines(
        self,
        journal: str,
        offset: int = 0,
        *,
        end: int | None = None,
        block: bool = True,
        on_jump: OnJump = log_jump,
        retry: RetryPolicy | None = None,
    ) -> BlockingLines:
        """As ``Client.read_lines``: an iterator of lines without their newlines."""
        running = self._started()
        lines = running.call(
            running.client.read_lines, journal, offset, end=end, block=block, on_jump=on_jump, retry=retry
        )
        return BlockingLines(running, lines)

    def read_metadata(self, journal: str, offset: int = 0, *, retry: RetryPolicy | None = None) -> ReadMetadata:
        running = self._started()
        return running.result(running.client.read_metadata(journal, offset, retry=retry))

    def list(self, selector: LabelSelector | str = "", *, retry: RetryPolicy | None = None) -> Listing:
        running = self._started()
        return running.result(running.client.list(selector, retry=retry))

    def apply(self, *changes: Change, changes_max: int = CHANGES_MAX, retry: RetryPolicy | None = None) -> int:
        running = self._started()
        return running.result(running.client.apply(*changes, changes_max=changes_max, retry=retry))

    def fragments(
        self,
        journal: str,
        *,
        begin_mod_time_s: int = 0,
        end_mod_time_s: int = 0,
        signature_ttl_s: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> tuple[ListedFragment, ...]:
        """All of them at once."""
        running = self._started()
        listed = running.call(
            running.client.fragments,
            journal,
            begin_mod_time_s=begin_mod_time_s,
            end_mod_time_s=end_mod_time_s,
            signature_ttl_s=signature_ttl_s,
            retry=retry,
        )
        return running.result(_collected(listed))

    def store_health(self, store: str, *, retry: RetryPolicy | None = None) -> None:
        running = self._started()
        running.result(running.client.store_health(store, retry=retry))

    def _started(self) -> _Running:
        with self._lock:
            if self._running is None:
                self._running = _Running(self.settings)
            elif self._running.pid != os.getpid():
                # Neither gRPC nor a thread lives on in a forked process.
                self._running = _Running(self.settings)
            return self._running


def _unpickled(settings: ClientSettings) -> BlockingClient:
    return BlockingClient(settings=settings)


class BlockingAppends:
    """Many appends to many journals, in order for each of them and in few calls. Nothing is certain before `flush`."""

    def __init__(self, running: _Running, service: AppendService) -> None:
        self._running = running
        self._service = service

    def append(self, journal: str, data: bytes) -> None:
        """Begin an append, once there is room for it. Raises what an earlier one to this journal has failed with."""
        self._running.result(self._append(journal, data))

    async def _append(self, journal: str, data: bytes) -> None:
        pending = await self._service.append(journal, data)
        if pending.is_done:
            await pending

    def flush(self) -> None:
        """Until all that was begun is done. Raises the first error there is."""
        self._running.result(self._service.flush())


class BlockingReader:
    """Chunks of a journal. ``offset`` is where the next one begins."""

    def __init__(self, running: _Running, reader: Reader) -> None:
        self._running = running
        self._reader = reader

    @property
    def offset(self) -> int:
        return self._reader.offset

    @property
    def write_head(self) -> int | None:
        return self._reader.write_head

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._running.result(self._reader.close())

    def read(self, bytes_max: int = -1) -> bytes:
        """The next bytes, at most so many and as soon as there are any; none at the end. Without a number, all."""
        return self._running.result(self._reader.read(bytes_max))

    def seek(self, offset: int) -> None:
        self._running.result(self._reader.seek(offset))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if piece := self.read(_BATCH_BYTES):
            return piece
        raise StopIteration


class BlockingLines:
    """Lines of a journal without their newlines. ``offset`` is where the one after the latest begins."""

    def __init__(self, running: _Running, lines: LineReader) -> None:
        self._running = running
        self._lines = lines
        self._batch: list[bytes] = []
        self.offset = lines.offset

    def __enter__(self) -> BlockingLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._running.result(self._lines.close())

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._batch:
            self._batch = self._running.result(self._lines.next_lines())
            if not self._batch:
                raise StopIteration
            self.offset = self._lines.offset - sum(map(len, self._batch)) - len(self._batch)
            self._batch.reverse()
        line = self._batch.pop()
        self.offset += len(line) + 1
        return line


class _Running:
    """A thread with an event loop, and the client in it."""

    def __init__(self, settings: ClientSettings) -> None:
        self.pid = os.getpid()
        self.client = Client(settings=settings)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="gazette-client", daemon=True)
        self._thread.start()
        started.result()

    def _main(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self.client:
            started.set_result(None)
            await self._stop.wait()

    def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Of what runs on the loop. Whoever stops waiting, by Ctrl-C, stops it too."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a BlockingClient cannot be used by its own callbacks")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        async def called() -> Any:
            return function(*arguments, **options)

        return self.result(called())

    def stop(self) -> None:
        if self.pid == os.getpid():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


async def _collected(listed: AsyncGenerator[ListedFragment, None]) -> tuple[ListedFragment, ...]:
    async with aclosing(listed):
        return tuple([one async for one in listed])
