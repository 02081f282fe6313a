"""SpoolChunks: the content of spools as messages to readers, each read once for all who want it.

Readers of a journal's fresh bytes all want the same at the same moment. So a file is cut at fixed places, a piece that
is being read is shared by those who come meanwhile, and the latest pieces are kept for those who come a little later.
Files are read on threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from weakref import ReferenceType, ref

from broker.read_message import content_message
from fragment.spool_file import SpoolFile
from protocol.errors import CorruptError, UnavailableError

CHUNK_BYTES_MIN = 64 << 10
CHUNK_BYTES_MAX = 1 << 20
"""Content of one message, of which gRPC takes 4 MiB. Over loopback, messages of 256 KiB reach what gRPC can do, and of
32 KiB, as of Gazette, a third of it. But to have a thread read a piece takes time, too: with 512 KiB a read had 0.6 to
1.0 of that speed in nine runs, with 1 MiB 0.8 to 1.0 in six."""
KEPT_BYTES_MAX = 16 << 20

_Key = tuple[ReferenceType[SpoolFile], int, int]


class Pace:
    """How much of the content goes into a message: more to a reader that takes them, so that others hold little."""

    __slots__ = ("chunk_bytes",)

    def __init__(self) -> None:
        self.chunk_bytes = CHUNK_BYTES_MIN

    def taken(self) -> None:
        self.chunk_bytes = min(2 * self.chunk_bytes, CHUNK_BYTES_MAX)


class SpoolChunks:
    """A reader costs two chunks at most, however slow it is: the one it is being sent, and the one after."""

    def __init__(self, executor: Executor | None = None, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        """The executor reads; by default it is the loop's own."""
        self._executor = executor
        self._kept_bytes_max = kept_bytes_max
        # The least recently used first. Its keys hold no file: one that is not needed any more is let go at once.
        self._kept: OrderedDict[_Key, asyncio.Future[bytes]] = OrderedDict()
        self.kept_bytes = 0

    async def messages(self, file: SpoolFile, begin: int, end: int, pace: Pace) -> AsyncGenerator[bytes, None]:
        """The bytes [begin, end) of the journal, all of which are visible and in this file."""
        ahead_end = chunk_end(file, begin, end, pace)
        ahead = self._chunk(file, begin, ahead_end)
        while begin < end:
            chunk, begin = ahead, ahead_end
            if begin < end:
                ahead_end = chunk_end(file, begin, end, pace)
                ahead = self._chunk(file, begin, ahead_end)
            # Shielded, since others may be waiting for it too.
            yield await asyncio.shield(chunk)
            pace.taken()

    def _chunk(self, file: SpoolFile, begin: int, end: int) -> asyncio.Future[bytes]:
        key = (ref(file), begin, end)
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            return known
        chunk = asyncio.get_running_loop().run_in_executor(self._executor, read_chunk, file, begin, end)
        self._kept[key] = chunk
        self.kept_bytes += end - begin
        chunk.add_done_callback(lambda done: self._settled(key, done))
        while self.kept_bytes > self._kept_bytes_max and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        return chunk

    def _settled(self, key: _Key, chunk: asyncio.Future[bytes]) -> None:
        """What failed is read anew the next time."""
        if (chunk.cancelled() or chunk.exception() is not None) and self._kept.get(key) is chunk:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        del self._kept[key]
        _, begin, end = key
        self.kept_bytes -= end - begin


def chunk_end(file: SpoolFile, begin: int, end: int, pace: Pace) -> int:
    """Where the message ends that begins at `begin`: at the next of the places where all readers cut, or at `end`."""
    position, size = begin - file.begin, pace.chunk_bytes
    return min(end, file.begin + (position // size + 1) * size)


def read_chunk(file: SpoolFile, begin: int, end: int) -> bytes:
    """The message of the bytes [begin, end). Blocks."""
    try:
        content = file.read(begin - file.begin, end - begin)
    except OSError as error:
        raise UnavailableError(
            f"could not read the spool {file.stem.name}: {error.strerror}; check the disk of {file.stem.parent}"
        ) from error
    if len(content) != end - begin:
        raise CorruptError(
            f"the spool {file.stem.name} ends after {begin - file.begin + len(content)} bytes, "
            f"and {end - file.begin} were committed to it"
        )
    return content_message(begin, content)
