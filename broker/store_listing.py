"""StoreListing: what the stores of journals hold, of a few journals at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from allocator.keys import items_prefix
from allocator.keyspace_view import KeySpaceView
from broker.cluster_keys import BrokerEntity
from fragment.cover_set import CoverSet
from fragment.index_refresh import NamedStore, list_cover
from fragment.live_index import FIRST_REFRESH_S_MAX, LiveIndex
from fragment.persist_destination import CurrentSpec
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobStore
from fragment.stores.health import shown
from protocol.errors import UnavailableError

NS_PER_S = 1_000_000_000
INTERVAL_S = 300.0
LISTINGS_MAX = 64
"""A broker that starts may be given thousands of journals at once."""


class StoreListing:
    def __init__(
        self,
        root: str,
        view: Callable[[], KeySpaceView[BrokerEntity]],
        spec_now: Callable[[str], CurrentSpec | None],
        open_store: Callable[[str], Awaitable[BlobStore]],
    ) -> None:
        """`view` is of the cluster whose keys are below `root`."""
        self._root = root
        self._view = view
        self._spec_now = spec_now
        self._open_store = open_store
        self._listing = asyncio.Semaphore(LISTINGS_MAX)
        self._names: Sequence[str] = ()
        self._names_view: KeySpaceView[BrokerEntity] | None = None

    def urls(self, journal: str) -> Sequence[str]:
        """Of its stores, as its spec has them now."""
        current = self._spec_now(journal)
        return current.spec.fragment.stores if current is not None else ()

    def interval_s(self, journal: str) -> float:
        """After which the stores are to be listed again."""
        current = self._spec_now(journal)
        interval_ns = current.spec.fragment.refresh_interval_ns if current is not None else 0
        return max(1.0, interval_ns / NS_PER_S) if interval_ns else INTERVAL_S

    async def list(self, journal: str) -> CoverSet:
        async with self._listing:
            stores = {url: NamedStore(url, self._open_store) for url in self.urls(journal)}
            return await list_cover(journal, stores, self._journal_names)

    async def first_problem(self, live: LiveIndex[SpoolFile]) -> str | None:
        """Why the stores of a journal have never been listed, after some time was given to that; None as soon as they
        have. Raises an UnavailableError if nobody knows, since it still goes on."""
        try:
            async with asyncio.timeout(FIRST_REFRESH_S_MAX):
                await live.wait_first_refresh()
        except TimeoutError as error:
            if live.problem is None:
                stores = ", ".join(map(shown, self.urls(live.journal)))
                raise UnavailableError(f"the first listing of {stores} still goes on: try again") from error
            return live.problem
        return None

    def _journal_names(self) -> Sequence[str]:
        """Of all that exist: an object below a journal's name may belong to one whose name is longer."""
        view = self._view()
        if view is not self._names_view:
            prefix = items_prefix(self._root)
            self._names = [kv.key[len(prefix) :] for kv in view.prefixed(prefix)]
            self._names_view = view
        return self._names
