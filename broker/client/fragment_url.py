"""The objects behind the URLs of fragments, as a ``fragment_reader`` wants them: over HTTP, or below a local folder.

A signed URL is a secret for as long as it is good: errors name its host and nothing else of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from fragment.fragment_reader import ByteSource
from fragment.stores.filesystem import Folder
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError, ValidationError

CHUNK_BYTES = 256 << 10

_FILE = "file://"
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)").fullmatch


class FragmentUrls:
    """Of one client: connections are shared by all that is read."""

    def __init__(self, file_root: Path | None, connect_s: float, stall_s: float) -> None:
        # What a store has listed is below the root, and `Folder` sees to it that nothing else is read.
        self._folder = None if file_root is None else Folder(file_root, "/")
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=stall_s)
        self._stall_s = stall_s
        self._session: aiohttp.ClientSession | None = None

    def source(self, url: str, codec: CompressionCodec) -> ByteSource | None:
        """None if such a URL cannot be read from here."""
        if url.startswith(_FILE):
            return None if self._folder is None else _File(self._folder, url.removeprefix(_FILE), self._stall_s)
        if url.startswith(("http://", "https://")):
            return _HttpObject(self._opened(), url, codec)
        return None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Bytes are wanted as they are stored: whatever is packed is unpacked, and verified, by the reader.
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._folder is not None:
            await self._folder.close()


@dataclass(frozen=True, slots=True)
class _File:
    folder: Folder
    key: str
    stall_s: float

    async def size(self) -> int:
        size = await self.folder.size(self.key)
        if size is None:
            raise UnavailableError("a fragment's file is not below the folder for file:// URLs")
        return size

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self.folder.read(self.key, offset, length)) as chunks:
                while True:
                    async with asyncio.timeout(self.stall_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
        except (OSError, TimeoutError, ValidationError) as error:
            raise UnavailableError(f"a fragment's file could not be read ({type(error).__name__})") from error


@dataclass(frozen=True, slots=True)
class _HttpObject:
    session: aiohttp.ClientSession
    url: str
    codec: CompressionCodec

    async def size(self) -> int:
        """By a GET of one byte: a URL that is signed for GET is good for nothing else."""
        async with self._get("bytes=0-0") as response:
            found = _RANGE(response.headers.get("Content-Range", ""))
            if found is not None:
                return int(found[3])
            if response.status == 200 and response.content_length is not None:
                return response.content_length
            raise UnavailableError(f"{self._host}: the store does not tell the size of an object")

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        wanted = None if not offset and length is None else _range(offset, length)
        async with self._get(wanted) as response:
            skipped = self._skipped(response, offset)
            left = length
            try:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    if skipped:
                        cut = min(skipped, len(chunk))
                        chunk, skipped = chunk[cut:], skipped - cut
                    if left is not None:
                        chunk = chunk[:left]
                        left -= len(chunk)
                    if chunk:
                        yield chunk
                    if left == 0:
                        return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._unavailable(error) from error

    def _skipped(self, response: aiohttp.ClientResponse, offset: int) -> int:
        """How much comes before what was asked for: all of it, from a server that knows nothing of ranges."""
        if response.status == 200:
            return offset
        found = _RANGE(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != offset:
            raise UnavailableError(f"{self._host}: the store sent another range than was asked for")
        return 0

    @asynccontextmanager
    async def _get(self, wanted: str | None) -> AsyncIterator[aiohttp.ClientResponse]:
        # Stores that unpack what was stored as gzip do so unless gzip is accepted. Of what is meant to be unpacked by
        # them, and was not, the decoder finds out by itself.
        headers = {"Accept-Encoding": "gzip" if self.codec is CompressionCodec.GZIP else "identity"}
        if wanted is not None:
            headers["Range"] = wanted
        try:
            # Encoded already: any change to it would break the signature. Nobody is followed elsewhere.
            opened = await self.session.get(URL(self.url, encoded=True), headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._unavailable(error) from error
        async with opened as response:
            if response.status not in (200, 206):
                raise UnavailableError(f"{self._host}: the store answered {response.status} when a fragment was read")
            yield response

    @property
    def _host(self) -> str:
        return urlsplit(self.url).hostname or "the store"

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self._host}: a fragment could not be read ({type(error).__name__})")


def _range(offset: int, length: int | None) -> str:
    return f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"
