"""SpoolBudget: how many bytes may wait on a broker's disk for their upload.

When a store is down or slow, spools pile up. The budget makes appends wait, and then fail with a reason, while
there is still room for what is already under way: a disk that runs full hits every journal at once.
"""

from __future__ import annotations

import asyncio
import threading

from protocol.errors import UnavailableError


class SpoolBudget:
    """Counts what spool files hold. Files grow and go on worker threads; appends wait on the event loop."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """Without a limit everything fits, and it is only counted."""
        self.limit_bytes = limit_bytes
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def held_bytes(self) -> int:
        return self._held

    @property
    def has_room(self) -> bool:
        return self.limit_bytes is None or self._held < self.limit_bytes

    def grow(self, count: int) -> None:
        with self._lock:
            self._held += count

    def shrink(self, count: int) -> None:
        with self._lock:
            self._held -= count
            waiting, self._waiting = (self._waiting, []) if self.has_room else ([], self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait_for_room(self, timeout_s: float) -> None:
        """Return once there is room; fail with the reason after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while (event := self._missing_room()) is not None:
                    await event.wait()
        except TimeoutError as error:
            raise UnavailableError(
                f"{self._held} bytes of spools wait for their upload and the budget is {self.limit_bytes}: check the "
                "health of the fragment stores, or raise --broker.spool-budget"
            ) from error

    def _missing_room(self) -> asyncio.Event | None:
        """None if there is room, else what will be set when there may be."""
        with self._lock:
            if self.has_room:
                return None
            event = asyncio.Event()
            self._waiting = [held for held in self._waiting if not held[1].is_set()]
            self._waiting.append((asyncio.get_running_loop(), event))
            return event
