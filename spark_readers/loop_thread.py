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

    def stream(self, open_stream: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """What the generator yields, fetched ahead. Whoever stops early ends it."""
        # The last one is the error or the end.
        items: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()
        slots = asyncio.Semaphore(AHEAD_MAX)

        async def fetch() -> None:
            error: BaseException | None = StopIteration()
            try:
                async with aclosing(open_stream()) as stream:
                    async for item in stream:
                        await slots.acquire()
                        items.put((item, None))
            except BaseException as caught:
                error = caught
            items.put((None, error))

        fetching = asyncio.run_coroutine_threadsafe(fetch(), self._loop)
        try:
            while True:
                item, error = items.get()
                if error is not None:
                    if isinstance(error, StopIteration):
                        return
                    raise error
                self._loop.call_soon_threadsafe(slots.release)
                yield item  # type: ignore[misc]
        finally:
            fetching.cancel()

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
