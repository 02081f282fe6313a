"""Asking again until something holds: for what nobody announces, such as a metric or what another process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

WAIT_S = 60.0
# What is asked of this process costs nothing; what is awaited asks another one.
_HERE_S = 0.002
_ELSEWHERE_S = 0.05

What = str | Callable[[], str]


async def eventually(condition: Callable[[], Awaitable[bool] | bool], what: What, within_s: float = WAIT_S) -> None:
    """`what` is named if it is waited for in vain."""
    until_s = time.monotonic() + within_s
    while True:
        held = condition()
        pause_s = _HERE_S if isinstance(held, bool) else _ELSEWHERE_S
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < until_s, _vain(what)
        await asyncio.sleep(pause_s)


def eventually_blocking(condition: Callable[[], bool], what: What, within_s: float = WAIT_S) -> None:
    """The same without an event loop."""
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s, _vain(what)
        time.sleep(_ELSEWHERE_S)


def _vain(what: What) -> str:
    return f"waited in vain for {what() if callable(what) else what}"
