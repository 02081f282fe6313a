"""BucketStore: a BlobStore over any Bucket.

All that the stores have in common is here, once: rewriting of paths, deadlines, the mapping of errors, metrics.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from prometheus_client import Counter, Histogram

from fragment.stores.blob_store import Batch, BlobNotFoundError, Fault, StoreClosedError, StoreDeniedError, error_of
from fragment.stores.bucket import SIGNED_S_MAX, Bucket
from fragment.stores.file_range import FileRange
from protocol.errors import CorruptError, GazetteError, UnavailableError, ValidationError
from protocol.fragment_store import FragmentStore

_LABELS = ("store", "operation", "status")
OPERATIONS = Counter("gazette_store_operation_total", "Operations on fragment stores.", _LABELS)
DURATIONS = Histogram(
    "gazette_store_operation_duration_seconds",
    "Time that operations on fragment stores waited for the store.",
    _LABELS,
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300),
)
PUT_BYTES = Counter("gazette_store_put_bytes_total", "Bytes written to fragment stores.", ("store", "encoding"))
LISTED = Histogram(
    "gazette_store_list_items_count",
    "Objects found by one listing of a prefix.",
    ("store",),
    buckets=(1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
)


@dataclass(frozen=True, slots=True)
class Deadlines:
    request_s: float = 30
    """For one answer, one chunk, or one page."""
    put_s: float = 300
    """For an upload, or longer if that is what its size takes at `put_bytes_per_s`."""
    put_bytes_per_s: float = 4 * 1024 * 1024

    def of_put(self, size: int) -> float:
        return max(self.put_s, size / self.put_bytes_per_s)


class BucketStore:
    """Satisfies the port ``BlobStore``."""

    def __init__(self, store: FragmentStore, bucket: Bucket, deadlines: Deadlines | None = None) -> None:
        self.name = f"{store.scheme}://{store.host}{store.path}"
        """For people: without the query, which may hold secrets."""
        self.label = f"{store.scheme}://{store.bucket}"
        """For metrics: as few as there are buckets, whatever journals do with prefixes."""
        self.operations = 0
        """Those under way."""
        self.closed = False
        self._store = store
        self._bucket = bucket
        self._deadlines = deadlines or Deadlines()

    async def exists(self, path: str) -> bool:
        return await self._size("exists", path) is not None

    async def size(self, path: str) -> int:
        found = await self._size("size", path)
        if found is None:
            raise error_of(self.name, "size", path, Fault(404, ""))
        return found

    async def _size(self, name: str, path: str) -> int | None:
        with _Operation(self, name, path) as operation:
            async with operation.waiting(self._deadlines.request_s):
                return await self._bucket.size(self._store.object_key(path))

    async def get(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        if length == 0:
            return
        with _Operation(self, "get", path) as operation:
            async with aclosing(self._bucket.read(self._store.object_key(path), offset, length)) as chunks:
                while True:
                    # What the caller does with a chunk takes the time it takes.
                    async with operation.waiting(self._deadlines.request_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk

    async def put(self, path: str, source: Path | int, *, size: int, content_encoding: str | None = None) -> None:
        with _Operation(self, "put", path) as operation:
            descriptor = _opened(source)
            file = FileRange(descriptor, 0, size)
            try:
                async with operation.waiting(self._deadlines.of_put(size)):
                    await self._bucket.write(self._store.object_key(path), file, content_encoding)
            except GazetteError as error:
                if file.ended_at is None:
                    raise
                raise CorruptError(f"the file to put at {path[:200]!r} ends at {file.ended_at} of {size}") from error
            finally:
                os.close(descriptor)
        PUT_BYTES.labels(self.label, content_encoding or "").inc(size)

    async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        found = 0
        with _Operation(self, "list", prefix) as operation:
            async with aclosing(self._bucket.pages(self._store.object_key(prefix))) as pages:
                while True:
                    async with operation.waiting(self._deadlines.request_s):
                        page = await anext(pages, None)
                    if page is None:
                        break
                    # A key that ends in a slash is a folder, as made by consoles and some tools.
                    batch = [listed for listed in page if listed.path and not listed.path.endswith("/")]
                    found += len(batch)
                    yield batch
        LISTED.labels(self.label).observe(found)

    async def remove(self, path: str) -> None:
        with _Operation(self, "remove", path) as operation:
            async with operation.waiting(self._deadlines.request_s):
                await self._bucket.remove(self._store.object_key(path))

    async def sign_get(self, path: str, ttl_s: float) -> str:
        if not 0 < ttl_s <= SIGNED_S_MAX:
            raise ValidationError(f"expected a signature to be good for at most 7 days (got {ttl_s:.0f} s)")
        with _Operation(self, "sign", path) as operation:
            async with operation.waiting(self._deadlines.request_s):
                return await self._bucket.sign(self._store.object_key(path), ttl_s)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self._bucket.close()

    def error_of(self, error: Exception, operation: str, path: str) -> GazetteError | None:
        fault = self._bucket.fault(error)
        return None if fault is None else error_of(self.name, operation, path, fault)


def _opened(source: Path | int) -> int:
    """A descriptor of our own, so that a caller who gives up may close theirs.

    Not in a thread: spools are on a local disk, and what a thread opens after a cancellation nobody would close.
    """
    return os.dup(source) if isinstance(source, int) else os.open(source, os.O_RDONLY | os.O_CLOEXEC)


class _Operation:
    """Counts one operation, once, with the time it has waited for the store."""

    def __init__(self, store: BucketStore, name: str, path: str) -> None:
        self._store = store
        self._name = name
        self._path = path
        self._waited_s = 0.0

    def __enter__(self) -> _Operation:
        if self._store.closed:
            raise StoreClosedError(f"{self._store.name} was closed because nothing used it: open it again")
        self._store.operations += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._store.operations -= 1
        labels = (self._store.label, self._name, _status(kind))
        OPERATIONS.labels(*labels).inc()
        DURATIONS.labels(*labels).observe(self._waited_s)

    @asynccontextmanager
    async def waiting(self, limit_s: float) -> AsyncIterator[None]:
        """Wait for the store within a deadline, and raise our errors instead of its library's."""
        begun = time.perf_counter()
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                yield
        except Exception as error:
            if deadline.expired():
                raise UnavailableError(
                    f"{self._store.name} did not {self._name} within {limit_s:g} s: "
                    "try again; if it lasts, check the store and the network"
                ) from error
            # What no library is known to raise passes: it is a bug of ours.
            if ours := self._store.error_of(error, self._name, self._path):
                raise ours from error
            raise
        finally:
            self._waited_s += time.perf_counter() - begun


def _status(kind: type[BaseException] | None) -> str:
    """A reader who has read enough (GeneratorExit) was served well."""
    if kind is None or issubclass(kind, GeneratorExit):
        return "ok"
    for cause, status in (
        (BlobNotFoundError, "not_found"),
        (StoreDeniedError, "denied"),
        (asyncio.CancelledError, "cancelled"),
    ):
        if issubclass(kind, cause):
            return status
    return "error"
