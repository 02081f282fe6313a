"""Waiting for something to happen to a replica: for its index to change, or for it to be stopped."""

from __future__ import annotations

import asyncio

from broker.local_replica import LocalReplica


async def wait_change(replica: LocalReplica) -> None:
    """Until the index changes or the replica is stopped. Whoever looked at either without a pause misses nothing.

    Its invalidation is no such change: assignments and stores may be others, and what is held here is still the same.
    """
    changed = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    forget = replica.stopped.listen(wake)
    replica.index.subscribe(wake)
    try:
        await changed
    finally:
        replica.index.unsubscribe(wake)
        forget()
