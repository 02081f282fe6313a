"""Lists what the stores of a journal hold, in steps short enough for an event loop that serves others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from fragment.cover_set import CoverSet
from fragment.remote_listing import RemoteListing
from fragment.stores.blob_store import ListedObject
from fragment.stores.health import said, shown
from protocol.errors import InvariantError, UnavailableError

log = logging.getLogger(__name__)

CHUNK_OBJECTS = 500
"""Parsed in one go, which takes about five milliseconds."""


class ListableStore(Protocol):
    """A store as an index needs it."""

    def list(self, prefix: str) -> AsyncGenerator[Sequence[ListedObject], None]:
        """Every object below `prefix`, in batches, with paths relative to it."""
        ...


class NamedStore:
    """A ListableStore that is opened when it is listed, and whose errors say which one it is."""

    def __init__(self, url: str, open_store: Callable[[str], Awaitable[ListableStore]]) -> None:
        self._url = url
        self._open_store = open_store

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ListedObject], None]:
        try:
            store = await self._open_store(self._url)
            async with aclosing(store.list(prefix)) as batches:
                async for batch in batches:
                    yield batch
        except InvariantError:
            raise
        except Exception as error:
            # The libraries of stores raise all sorts of things.
            raise UnavailableError(f"fragment store {shown(self._url)} cannot be listed: {said(error)}") from error


Stores = Mapping[str, ListableStore]
"""Opened, by their URLs, in the order of the spec. Fragments name their store by this very URL."""

JournalNames = Callable[[], Sequence[str]]
"""The existing journals, sorted. Asked anew for each batch, since names come into being while we list."""


async def list_journal(journal: str, stores: Stores, journals: JournalNames) -> RemoteListing:
    """All fragments of `journal`, those of later stores last. If one store fails, so does this.

    Where nobody can tell which journals exist (Spark without a broker), `journals` are those the caller knows.
    """
    listing = RemoteListing(journal)
    for url, store in stores.items():
        async with aclosing(store.list(f"{journal}/")) as batches:
            async for batch in batches:
                for at in range(0, len(batch), CHUNK_OBJECTS):
                    listing.take(url, batch[at : at + CHUNK_OBJECTS], journals())
                    await asyncio.sleep(0)
    return listing


async def list_cover(journal: str, stores: Stores, journals: JournalNames) -> CoverSet:
    """The cover set of all fragments in the stores, for an index."""
    listing = await list_journal(journal, stores, journals)
    if listing.foreign_count:
        log.info(
            "objects that are no fragments were ignored",
            extra={"journal": journal, "objects": listing.foreign_count, "sample": listing.foreign_sample},
        )
    return await asyncio.to_thread(CoverSet, listing.fragments)
