"""The objects behind the URLs of fragments, as a ``fragment_reader`` wants them: over HTTP, or below a local folder.

A signed URL is a secret for as long as it is good: errors name its host and nothing else of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fragment.fragment_reader import ByteSource
from fragment.stores.blob_store import BlobNotFoundError
from fragment.stores.filesystem import Folder
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError, ValidationError

_FILE = "file://"


Sized = Callable[[int], None]


class _HttpObjects(Protocol):
    def source(self, url: str, codec: CompressionCodec, sized: Sized | None = None) -> ByteSource: ...

    async def close(self) -> None: ...


class FragmentUrls:
    """Of one client: connections are shared by all that is read."""

    def __init__(self, file_root: Path | None, connect_s: float, stall_s: float) -> None:
        # What a store has listed is below the root, and `Folder` sees to it that nothing else is read.
        self._folder = None if file_root is None else Folder(file_root, "/")
        self._connect_s = connect_s
        self._stall_s = stall_s
        self._http: _HttpObjects | None = None

    def source(self, url: str, codec: CompressionCodec, sized: Sized | None = None) -> ByteSource | None:
        """None if such a URL cannot be read from here. `sized` is told how long an object is, whenever it is opened."""
        if url.startswith(_FILE):
            return None if self._folder is None else _File(self._folder, url.removeprefix(_FILE), self._stall_s, sized)
        if url.startswith(("http://", "https://")):
            return self._opened().source(url, codec, sized)
        return None

    def _opened(self) -> _HttpObjects:
        if self._http is None:
            # Loaded when the first URL is read: a command that reads none starts sooner.
            from broker.client.http_object import HttpObjects

            self._http = HttpObjects(self._connect_s, self._stall_s)
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        if self._folder is not None:
            await self._folder.close()


@dataclass(frozen=True, slots=True)
class _File:
    folder: Folder
    key: str
    stall_s: float
    sized: Sized | None

    async def size(self) -> int:
        size = await self.folder.size(self.key)
        if size is None:
            raise BlobNotFoundError("a fragment's file is not below the folder for file:// URLs")
        return size

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        try:
            if self.sized is not None:
                self.sized(await self.size())
            async with aclosing(self.folder.read(self.key, offset, length)) as chunks:
                while True:
                    async with asyncio.timeout(self.stall_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
        except FileNotFoundError as error:
            raise BlobNotFoundError("a fragment's file is not below the folder for file:// URLs") from error
        except (OSError, TimeoutError, ValidationError) as error:
            raise UnavailableError(f"a fragment's file could not be read ({type(error).__name__})") from error
