"""Background: what runs beside the calls of a process, for as long as the process lives.

A task that fails is told of at once and brings the process down, but not the others with it: what is under way is
still to be uploaded, and streams are to end in good order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class Background:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[BaseException] = self._loop.create_future()

    def create_task(self, running: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    @property
    def has_failed(self) -> bool:
        return self._failure.done()

    def fail(self, error: BaseException) -> None:
        """Something went wrong that must not: here, or in a callback that nobody waits for."""
        log.error("the process cannot go on", exc_info=error)
        if not self._failure.done():
            self._failure.set_result(error)

    async def wait_failed(self) -> None:
        """Raises what a task failed with, as soon as one has."""
        raise await asyncio.shield(self._failure)

    async def close(self) -> None:
        """Cancel what still runs, and wait for it to end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
