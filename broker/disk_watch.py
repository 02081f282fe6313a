"""DiskWatch: notices that the disk of a broker hangs, on behalf of all who wait for it.

A disk that fails says so. One that hangs says nothing, and keeps whoever waits for it: the append, those queued behind
it, and, as this process keeps its lease, every journal that it has a part in. So those who wait are told after a while,
and if it goes on the broker ends, for others to take over. What the disk does after all does no harm: it is part of a
copy that proves no more than what it holds, and whose epoch others close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from protocol.errors import UnavailableError

END_TIMES = 4
"""So many times as long as those who wait are patient, the broker is."""
LOOKS = 8
"""In the time after which those who wait are told."""
LATE_S = 0.5
"""A look that comes this much too late says nothing: the loop was busy, or stopped, and has yet to hear of the disk."""


class DiskWork(Protocol):
    """Something that a thread is to do on the disk."""

    @property
    def doing_since_s(self) -> float | None:
        """When a thread has got to it; None while all are busy with other things."""
        ...

    def stalled(self, failure: UnavailableError) -> None:
        """It takes too long. Called again and again while it does."""
        ...


class DiskWatch:
    """``run`` it for as long as anything is done on the disk."""

    def __init__(self, broker: str, hung_s: float, clock: Callable[[], float]) -> None:
        """`broker` is the name of the one whose disk it is, and `hung_s` how long something may take."""
        self.clock = clock
        self._broker = broker
        self._hung_s = hung_s
        # Since when it is asked for, the oldest first.
        self._since_s: dict[DiskWork, float] = {}

    def begun(self, work: DiskWork) -> None:
        self._since_s[work] = self.clock()

    def ended(self, work: DiskWork) -> None:
        del self._since_s[work]

    def look(self) -> None:
        """Tell those who have waited for too long. Raises if the broker has.

        A disk that is merely busy keeps those who wait just as long, and peers do not wait longer either. But it is no
        reason for the broker to go: what counts for that is how long a thread has been at one thing.
        """
        if not self._since_s:
            return
        now_s = self.clock()
        for work, since_s in list(self._since_s.items()):
            if now_s - since_s < self._hung_s:
                return
            doing_since_s = work.doing_since_s
            if doing_since_s is not None and now_s - doing_since_s >= self._hung_s * END_TIMES:
                raise UnavailableError(
                    f"the disk of broker {self._broker} hangs: it has not done within {now_s - doing_since_s:.0f} s "
                    "what it was asked for. The broker ends, so that others take over: check the disk of its spools"
                )
            work.stalled(
                UnavailableError(
                    f"the disk of broker {self._broker} hangs: nothing was written within {self._hung_s:g} s"
                )
            )

    async def run(self) -> None:
        """For ever, unless the disk hangs for too long, which raises."""
        look_s = self._hung_s / LOOKS
        while True:
            due_s = self.clock() + look_s
            await asyncio.sleep(look_s)
            if self.clock() < due_s + LATE_S:
                self.look()
