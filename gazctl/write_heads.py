"""Where journals end, as their primaries know it.

Another member that has just been started again knows of what is stored, and not yet of what is only on the disks of the
others: a read that ends where such a member ends would miss what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.retrying_read import WRITE_HEAD, read_metadata
from gazctl.raw_calls import brokers_of
from protocol.errors import GazetteError

AT_ONCE_MAX = 16


async def write_heads(client: Client, journals: Iterable[ListedJournal]) -> dict[str, int]:
    """Of those whose primary answers."""
    by_primary: dict[str, list[str]] = defaultdict(list)
    for journal in journals:
        route = journal.route
        if route.primary is not None and route.endpoints:
            by_primary[route.endpoints[route.primary]].append(journal.spec.name)
    found: dict[str, int] = {}
    for endpoint, names in by_primary.items():
        await _ask(client, endpoint, names, found)
    return found


async def _ask(client: Client, endpoint: str, names: list[str], found: dict[str, int]) -> None:
    at_once = asyncio.Semaphore(AT_ONCE_MAX)
    # To a client that knows no routes there is but this one.
    async with brokers_of(replace(client.settings, addresses=(endpoint,))) as primary:

        async def one(name: str) -> None:
            async with at_once:
                try:
                    found[name] = (await read_metadata(primary, name, WRITE_HEAD)).write_head
                except GazetteError:
                    # Who reads the journal will be told why.
                    return

        await asyncio.gather(*(one(name) for name in names))
