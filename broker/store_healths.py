"""StoreHealths: which stores are healthy, each checked for as long as anybody asks about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from broker.background import Background
from fragment.stores.blob_store import BlobStore
from fragment.stores.health import Health, StoreHealth, shown

SWEEP_S = 3600.0
_WAKE_UPS_MAX = 7
WAIT_S = 30.0
"""After so many checks in vain, or so long, an append is told, and does not wait any longer."""


@dataclass(slots=True)
class _Checked:
    health: StoreHealth
    task: asyncio.Task[None]
    was_used: bool = True


class StoreHealths:
    def __init__(self, tasks: Background, open_store: Callable[[str], Awaitable[BlobStore]], chance: Random) -> None:
        self._tasks = tasks
        self._open_store = open_store
        self._chance = chance
        self._checked: dict[str, _Checked] = {}

    def of(self, url: str) -> StoreHealth:
        checked = self._checked.get(url)
        if checked is None or checked.task.done():
            health = StoreHealth(shown(url), partial(self._open_store, url), self._chance)
            checked = self._checked[url] = _Checked(health, self._tasks.create_task(health.run()))
        checked.was_used = True
        return checked.health

    def is_healthy(self, url: str) -> bool:
        return self.of(url).current.is_healthy

    def watched(self, url: str) -> Awaitable[Health] | None:
        """What is known of a store that is checked anyway, once it is; None of others."""
        checked = self._checked.get(url)
        return checked.health.wait_first() if checked is not None and not checked.task.done() else None

    async def problem(self, url: str) -> str | None:
        """Why a store cannot be used, after it was given some time to recover; None as soon as it can be."""
        health = self.of(url)
        current = await health.wait_first()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                for _ in range(_WAKE_UPS_MAX - 1):
                    if current.is_healthy or current.is_final:
                        break
                    current = await health.wait_next()
        return None if current.is_healthy else f"fragment store {shown(url)} unhealthy: {current.problem}"

    async def sweep_forever(self) -> None:
        """Stores that nobody asks about any more are not checked any more."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for url in [url for url, checked in self._checked.items() if not checked.was_used]:
                self._checked.pop(url).task.cancel()
            for checked in self._checked.values():
                checked.was_used = False
