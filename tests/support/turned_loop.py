"""TurnedLoop: an event loop whose clock a test puts forward, instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TurnedLoop(asyncio.SelectorEventLoop):
    """What is due by its clock is done in its next turns, in order."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def forward(self, by_s: float) -> None:
        self._ahead_s += by_s

    async def pass_timers(self, by_s: float) -> None:
        """Forward, and return when all that was due by then has been done."""
        over = asyncio.Event()
        self.call_later(by_s, over.set)
        self.forward(by_s)
        await over.wait()


def run_turned(test: Callable[[TurnedLoop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=TurnedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TurnedLoop)
        runner.run(test(loop))
