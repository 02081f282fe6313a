"""Waiting for something to happen to a replica: for its index to change, or for it to be given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.local_replica import LocalReplica


async def wait_change(replica: LocalReplica) -> None:
    """Until the index changes or the replica is stopped. Whoever looked at either without a pause misses nothing."""
    changed = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    forget = when_stopped(replica, wake)
    replica.index.subscribe(wake)
    try:
        await changed
    finally:
        replica.index.unsubscribe(wake)
        forget()


def when_stopped(replica: LocalReplica, told: Callable[[], None]) -> Callable[[], None]:
    """Call `told` when the replica is given up, or now if it is. What is returned takes that back.

    Its invalidation alone says less: assignments and stores may change, and what is held here stays as it is.
    """
    return _Listener(replica, told).forget


class _Listener:
    __slots__ = ("_forget", "_replica", "_told")

    def __init__(self, replica: LocalReplica, told: Callable[[], None]) -> None:
        self._replica = replica
        self._told = told
        self._forget: Callable[[], None] = lambda: None
        self._forget = replica.invalidation.listen(self._invalidated)

    def forget(self) -> None:
        self._forget()

    def _invalidated(self) -> None:
        if self._replica.is_stopped:
            self._told()
        else:
            self._forget = self._replica.invalidation.listen(self._invalidated)
