"""HttpObjects: what is behind signed URLs, as a ``fragment_reader`` wants it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from fragment.stores.blob_store import NO_BUCKET, BlobNotFoundError
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError

CHUNK_BYTES = 256 << 10
Sized = Callable[[int], None]
"""Is told the size of an object that is opened, as it is stored."""
ANSWER_BYTES_MAX = 4 << 10
"""Of what a store says about a refusal."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)").fullmatch
_PAST_END = 416


class HttpObjects:
    """Of one client: they share connections."""

    def __init__(self, connect_s: float, stall_s: float) -> None:
        # Bytes are wanted as they are stored: whatever is packed is unpacked, and verified, by the reader.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=stall_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def source(self, url: str, codec: CompressionCodec, sized: Sized | None = None) -> _HttpObject:
        return _HttpObject(self._session, url, codec, sized)

    async def close(self) -> None:
        await self._session.close()


@dataclass(frozen=True, slots=True)
class _HttpObject:
    session: aiohttp.ClientSession
    url: str
    codec: CompressionCodec
    sized: Sized | None

    async def size(self) -> int:
        """By a GET of one byte: a URL that is signed for GET is good for nothing else."""
        async with self._get("bytes=0-0") as response:
            if response.status == _PAST_END:
                return 0
            size = _size(response)
            if size is None:
                raise UnavailableError(
                    f"{self._host}: the store tells the size of an object neither by Content-Range nor by "
                    "Content-Length: look at caches and proxies on the way"
                )
            return size

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        wanted = None if not offset and length is None else _range(offset, length)
        async with self._get(wanted) as response:
            if response.status == _PAST_END:
                return
            skipped = self._skipped(response, offset)
            if self.sized is not None and (size := _size(response)) is not None:
                self.sized(size)
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
            raise UnavailableError(
                f"{self._host}: the store sent another range than was asked for: look at caches and proxies on the way"
            )
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
            if response.status in (404, 410) and not await self._lacks_bucket(response):
                raise BlobNotFoundError(f"{self._host}: the store has no such object ({response.status})")
            # A range that begins past the end is empty, as of other stores: the object is shorter than was thought.
            if response.status not in (200, 206, _PAST_END):
                raise UnavailableError(f"{self._host}: the store answered {response.status} when a fragment was read")
            yield response

    async def _lacks_bucket(self, response: aiohttp.ClientResponse) -> bool:
        """Then nothing is known of the object."""
        try:
            told = await response.content.read(ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from error
        words = told.decode(errors="replace") + response.headers.get("x-ms-error-code", "")
        return any(code in words for code in NO_BUCKET)

    @property
    def _host(self) -> str:
        return urlsplit(self.url).hostname or "the store"

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self._host}: a fragment could not be read ({type(error).__name__})")


def _size(response: aiohttp.ClientResponse) -> int | None:
    """Of the whole object, if the store tells."""
    found = _RANGE(response.headers.get("Content-Range", ""))
    if found is not None:
        return int(found[3])
    return response.content_length if response.status == 200 else None


def _range(offset: int, length: int | None) -> str:
    return f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"
