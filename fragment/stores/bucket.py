"""Bucket: what a kind of store brings. ``BucketStore`` makes a BlobStore of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from fragment.stores.blob_store import Batch, Fault
from fragment.stores.file_range import FileRange

CHUNK_BYTES = 256 * 1024
PAGE_KEYS = 1000
"""Keys asked for at a time. It is also the most that S3 gives."""
SIGNED_S_MAX = 7 * 24 * 3600
"""S3, GCS and Azure honour no signature for longer."""


@dataclass(frozen=True, slots=True)
class TransferSizes:
    """How much goes over the wire at a time. Tests make it little."""

    single_put_bytes_max: int
    """Larger uploads go in parts."""
    part_bytes: int
    page_keys: int = PAGE_KEYS


class Bucket(Protocol):
    """Objects by their full key. May raise whatever its client library does, as long as ``fault`` knows it.

    Nothing here waits without end in a cleanup: deadlines work by cancellation.
    """

    async def size(self, key: str) -> int | None:
        """None if there is no such object."""
        ...

    def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        """Chunks, none of them empty."""
        ...

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None: ...

    def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        """Objects whose key begins with `prefix`, by what comes after it, in pages that are no work for the loop."""
        ...

    async def remove(self, key: str) -> None: ...

    async def sign(self, key: str, ttl_s: float) -> str: ...

    async def close(self) -> None: ...

    def fault(self, error: Exception) -> Fault | None:
        """What is known of an exception of the client library; None if it is not one of those."""
        ...
