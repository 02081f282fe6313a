"""Patience: ends the waits of a task that take too long, with one timer for all of them.

``asyncio.timeout`` sets a timer and takes it back for every wait, of which an append has one for each of its chunks.
And it blames whoever is waited for when the event loop was busy: what came meanwhile has yet to be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

LATE_S = 0.05
"""A look that comes this much too late says nothing: the loop was busy, and what it did not hear of comes first."""

T = TypeVar("T")


class Patience:
    """Of the task that makes it, from where it is entered to where it is left."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        # When the wait under way is to end; None between waits.
        self._until_s: float | None = None
        # When it goes off is kept here: of one that is due at once, uvloop has none.
        self._timer: asyncio.TimerHandle | None = None
        self._timed_s = 0.0
        self._has_ended_it = False

    async def wait(self, work: Coroutine[Any, Any, T], within_s: float | None) -> T:
        """What comes of `work`; a TimeoutError if that takes longer. None is for ever."""
        if within_s is None:
            return await work
        until_s = self._until_s = self._loop.time() + within_s
        if self._timer is None or self._timed_s > until_s:
            self._set(until_s)
        cancelling = self._task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            if self._has_ended_it and self._task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._until_s = None
            self._has_ended_it = False

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, when_s: float) -> None:
        self._cancel()
        self._timer, self._timed_s = self._loop.call_at(when_s, self._look), when_s

    def _look(self) -> None:
        now_s, until_s, self._timer = self._loop.time(), self._until_s, None
        if until_s is None:
            # The next wait sets another.
            return
        if now_s - self._timed_s > LATE_S:
            self._set(now_s + LATE_S)
        elif now_s < until_s:
            self._set(until_s)
        else:
            self._has_ended_it = True
            self._task.cancel()
