"""A BlobStore that fails when a test wants it to, over one that works."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from fragment.stores.blob_store import Batch, BlobStore
from protocol.errors import UnavailableError


def _out_of_reach() -> Exception:
    return UnavailableError("faulty store: out of reach, as the test wants it")


class FaultyStore:
    """Satisfies the port ``BlobStore``.

    Operations are named as the methods are; a fault that names none strikes whichever comes next.
    """

    def __init__(self, store: BlobStore) -> None:
        self.calls: Counter[str] = Counter()
        """How often each operation was called."""
        self.delay_s = 0.0
        """How long each operation takes to begin."""
        self.cut_reads_at: int | None = None
        """Reads end after so many bytes, without an error, as if the object were shorter."""
        self._store = store
        self._faults: deque[tuple[str | None, Callable[[], Exception], bool]] = deque()
        self._awake = asyncio.Event()
        self._awake.set()

    def fail_next(
        self, count: int = 1, operation: str | None = None, error: Callable[[], Exception] = _out_of_reach
    ) -> None:
        """The next `count` operations raise instead of doing anything."""
        self._faults.extend([(operation, error, False)] * count)

    def lose_next_answers(self, count: int = 1, operation: str | None = "put") -> None:
        """The next `count` operations take effect and then raise: the answer did not come through."""
        self._faults.extend([(operation, _out_of_reach, True)] * count)

    def hang(self) -> None:
        """Operations begin only after ``wake``."""
        self._awake.clear()

    def wake(self) -> None:
        self._awake.set()

    async def exists(self, path: str) -> bool:
        fault = await self._begin("exists")
        found = await self._store.exists(path)
        self._end(fault)
        return found

    async def size(self, path: str) -> int:
        fault = await self._begin("size")
        found = await self._store.size(path)
        self._end(fault)
        return found

    async def get(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        fault = await self._begin("get")
        left = self.cut_reads_at
        async with aclosing(self._store.get(path, offset, length)) as chunks:
            async for chunk in chunks:
                if left is None:
                    yield chunk
                    continue
                if left > 0:
                    yield chunk[:left]
                left -= len(chunk)
        self._end(fault)

    async def put(self, path: str, source: Path | int, *, size: int, content_encoding: str | None = None) -> None:
        fault = await self._begin("put")
        await self._store.put(path, source, size=size, content_encoding=content_encoding)
        self._end(fault)

    async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        fault = await self._begin("list")
        async with aclosing(self._store.list(prefix)) as batches:
            async for batch in batches:
                yield batch
        self._end(fault)

    async def remove(self, path: str) -> None:
        fault = await self._begin("remove")
        await self._store.remove(path)
        self._end(fault)

    async def sign_get(self, path: str, ttl_s: float) -> str:
        fault = await self._begin("sign_get")
        url = await self._store.sign_get(path, ttl_s)
        self._end(fault)
        return url

    async def close(self) -> None:
        await self._store.close()

    async def _begin(self, operation: str) -> Callable[[], Exception] | None:
        """Raises now, or returns the error to raise when the operation has taken effect."""
        self.calls[operation] += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._awake.wait()
        if not self._faults or self._faults[0][0] not in (None, operation):
            return None
        _, error, afterwards = self._faults.popleft()
        if afterwards:
            return error
        raise error()

    def _end(self, fault: Callable[[], Exception] | None) -> None:
        if fault is not None:
            raise fault()
