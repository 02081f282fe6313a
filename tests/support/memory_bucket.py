"""A bucket in this process's memory: behind any valid URL, never opened by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from fragment.stores.blob_store import Batch, Fault, ListedObject
from fragment.stores.bucket import CHUNK_BYTES, PAGE_KEYS
from fragment.stores.file_range import FileRange, ShortFileError


class MemoryBucket:
    def __init__(self, now: Callable[[], float] | None = None, page_keys: int = PAGE_KEYS) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        """Content and modification time by key."""
        self._now = now or time.time  # noqa: TID251 -- the clock, unless a test brings one
        self._page_keys = page_keys

    async def size(self, key: str) -> int | None:
        return len(self.objects[key][0]) if key in self.objects else None

    async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        content, _ = self.objects[key]
        end = len(content) if length is None else min(len(content), offset + length)
        for begin in range(offset, end, CHUNK_BYTES):
            yield content[begin : min(begin + CHUNK_BYTES, end)]

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None:
        self.objects[key] = (await asyncio.to_thread(source.read_all), int(self._now()))

    async def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        found = [
            ListedObject(key[len(prefix) :], mod_time, len(content))
            for key, (content, mod_time) in self.objects.items()
            if key.startswith(prefix)
        ]
        for begin in range(0, len(found), self._page_keys):
            yield found[begin : begin + self._page_keys]

    async def remove(self, key: str) -> None:
        self.objects.pop(key, None)

    async def sign(self, key: str, ttl_s: float) -> str:
        return f"memory://{key}"

    async def close(self) -> None:
        """The objects stay, so that a test may open them again."""

    def fault(self, error: Exception) -> Fault | None:
        match error:
            case KeyError():
                return Fault(404, "KeyError")
            case ShortFileError():
                return Fault(None, "ShortFileError")
            case _:
                return None
