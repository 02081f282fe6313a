"""LoopThread: stores and brokers speak asyncio; Spark's workers are plain threads. One loop a process bridges them."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")

AHEAD_MAX = 4
"""How many pieces are fetched before they are asked for."""


class OpenedStream(Iterator[T]):
    """What a generator on the loop yields, for a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_stream: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._loop = loop
        self._open_stream = open_stream
        # The last one is the error or the end.
        self._items: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()
        self._slots = asyncio.Semaphore(AHEAD_MAX)
        self._fetching = asyncio.run_coroutine_threadsafe(self._fetch(), loop)

    def __next__(self) -> T:
        item, error = self._items.get()
        if error is not None:
            # There is nothing to come after it.
            self._items.put((None, StopIteration()))
            raise error
        self._loop.call_soon_threadsafe(self._slots.release)
        return item  # type: ignore[return-value]

    def close(self) -> None:
        self._fetching.cancel()

    async def _fetch(self) -> None:
        error: BaseException = StopIteration()
        try:
            async with aclosing(self._open_stream()) as stream:
                async for item in stream:
                    await self._slots.acquire()
                    self._items.put((item, None))
        except BaseException as caught:
            error = caught
        self._items.put((None, error))


class LoopThread:
    def __init__(self) -> None:
        self.pid = os.getpid()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="spark-readers", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def opened(self, open_stream: Callable[[], AsyncGenerator[T, None]]) -> OpenedStream[T]:
        """What the generator yields, fetched ahead from now on. Whoever asks for it has to close it."""
        return OpenedStream(self._loop, open_stream)

    def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def serve() -> None:
            started.set_result(asyncio.get_running_loop())
            await asyncio.Event().wait()

        asyncio.run(serve())


_OF_PROCESS: list[LoopThread] = []


def loop_thread() -> LoopThread:
    """That of this process. A forked process has none of its parent's threads."""
    if not _OF_PROCESS or _OF_PROCESS[0].pid != os.getpid():
        _OF_PROCESS[:] = [LoopThread()]
    return _OF_PROCESS[0]
