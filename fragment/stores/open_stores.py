"""OpenStores: one BlobStore per distinct URL, opened when it is first used and closed when nobody uses it.

What a URL of a spec stands for is decided here: its scheme, the broker's file root, and whether all stores are to be
served from files. Libraries of object stores are loaded only for stores that need them, and in a thread: that takes
seconds.
"""

from __future__ import annotations

import asyncio
import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import Gauge

from fragment.stores.bucket import Bucket
from fragment.stores.bucket_store import BucketStore, Deadlines
from fragment.stores.filesystem import Folder
from protocol.errors import UnavailableError, ValidationError
from protocol.fragment_store import FragmentStore

ACTIVE = Gauge("gazette_store_active", "Fragment stores that are open.")

OPEN_S_MAX = 60
IDLE_SWEEPS_MAX = 2


@dataclass(frozen=True, slots=True)
class StoreSettings:
    file_root: Path | None = None
    """Where ``file:///`` is. Without it, file stores do not open."""
    file_only: bool = False
    """Serve every store from the file root, whatever its URL says. For development and tests."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The process's environment, for credentials. (The libraries of AWS and Google look at it themselves.)"""


class OpenStores:
    def __init__(
        self,
        settings: StoreSettings,
        *,
        open_bucket: Callable[[FragmentStore, StoreSettings], Bucket] | None = None,
        deadlines: Deadlines | None = None,
        stores_max: int = 256,
    ) -> None:
        self._settings = settings
        self._open_bucket = open_bucket or open_bucket_of
        self._deadlines = deadlines
        self._stores_max = stores_max
        # The least recently used first.
        self._stores: OrderedDict[str, _Entry] = OrderedDict()
        self._opening: dict[str, asyncio.Lock] = {}
        self._loaded: set[str] = set()
        """Schemes of which the library is in memory by now."""

    async def open(self, url: str) -> BucketStore:
        """The store of a URL. Ask anew for each use: that is how it is known to be in use.

        A store that cannot be opened raises, and is tried anew the next time.
        """
        if entry := self._used(url):
            return entry.store
        lock = self._opening.setdefault(url, asyncio.Lock())
        try:
            async with lock:
                if entry := self._used(url):
                    return entry.store
                return await self._opened(url)
        finally:
            if not lock.locked():
                self._opening.pop(url, None)

    async def sweep(self) -> None:
        """Close what was not used since the sweep before the last. To be called once an hour, say."""
        for entry in self._stores.values():
            entry.idle_sweeps += 1
        for url in [url for url, entry in self._stores.items() if entry.idle_sweeps >= IDLE_SWEEPS_MAX]:
            if not self._stores[url].store.operations:
                await self._close(url)

    async def close(self) -> None:
        while self._stores:
            await self._close(next(iter(self._stores)))

    def _used(self, url: str) -> _Entry | None:
        entry = self._stores.get(url)
        if entry is not None:
            entry.idle_sweeps = 0
            self._stores.move_to_end(url)
        return entry

    async def _opened(self, url: str) -> BucketStore:
        # Whatever is wrong with the URL shows even if it is not looked at further.
        store = FragmentStore.parse(url)
        if self._settings.file_only:
            store = FragmentStore.parse("file:///")
        # Judged now and not by Apply, as Gazette does it: a store with unknown arguments does not open.
        store.arguments()
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                bucket = await asyncio.to_thread(self._open_bucket, store, self._settings)
        except TimeoutError as error:
            raise UnavailableError(
                f"{store.scheme}://{store.host}{store.path} could not be opened within {OPEN_S_MAX} s: try again"
            ) from error
        except ValueError as error:
            raise ValidationError(
                f"{store.scheme}://{store.host}{store.path} cannot be opened: check its arguments", "FragmentStore"
            ) from error
        if store.scheme != "file" and store.scheme not in self._loaded:
            # The library has left a hundred thousand objects that stay for good. Told so, the garbage collector looks
            # through them no more, which held up the event loop for 70 ms at a time.
            self._loaded.add(store.scheme)
            gc.freeze()
        opened = BucketStore(store, bucket, self._deadlines)
        await self._make_room()
        self._stores[url] = _Entry(opened)
        ACTIVE.inc()
        return opened

    async def _make_room(self) -> None:
        idle = [url for url, entry in self._stores.items() if not entry.store.operations]
        for url in idle[: max(0, len(self._stores) + 1 - self._stores_max)]:
            await self._close(url)

    async def _close(self, url: str) -> None:
        entry = self._stores.pop(url)
        ACTIVE.dec()
        await entry.store.close()


@dataclass(slots=True)
class _Entry:
    store: BucketStore
    idle_sweeps: int = 0


def open_bucket_of(store: FragmentStore, settings: StoreSettings) -> Bucket:
    """The bucket of a store, by its scheme. Blocks, so it is to be called in a thread."""
    match store.scheme:
        case "s3":
            from fragment.stores.s3 import open_s3

            return open_s3(store)
        case "gs":
            from fragment.stores.gcs import open_gcs

            return open_gcs(store, settings.environ)
        case "azure" | "azure-ad":
            return _open_azure(store, settings)
        case _:
            if settings.file_root is None:
                raise ValidationError("this process serves no file stores: give it --broker.file-root to do so")
            return Folder(settings.file_root, store.prefix)


def _open_azure(store: FragmentStore, settings: StoreSettings) -> Bucket:
    try:
        from fragment.stores.azure import open_azure, open_azure_ad
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "azure stores need the client library of Azure: install pygazette with its extra `azure`, and start again"
        ) from error
    opener = open_azure_ad if store.scheme == "azure-ad" else open_azure
    return opener(store, settings.environ)
