"""The verified, decompressed bytes [begin, end) of one Fragment, from wherever its object is kept.

``read`` is for asyncio, ``read_blocking`` for a thread or a Spark executor. Both drive a ``FragmentContent``,
which decides and does no input or output.

What is read whole is verified by the fragment's SHA-1, and so is what has to be unpacked from the first byte to
the last on the way; frames of a zstandard fragment that are read on their own are verified by their own
checksums. Of raw bytes read in part there is nothing to verify but their number. A sum is known only at the end,
after most of the bytes were handed out: if the iteration ends with a ``CorruptError``, nothing that came before
is to be trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from fragment.decoder import UNIT_BYTES_MAX, decoder_of
from fragment.stores.blob_store import BlobStore
from fragment.zstd_frames import TAIL_BYTES, SeekTable, parse_tail, tail_bytes
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, ValidationError
from protocol.fragment import Fragment
from protocol.url import parse_url

SEEK_BYTES_MIN = 8 << 20
"""Less than this is unpacked and dropped sooner than a store answers the requests for a seek table."""
BATCH_BYTES = 1 << 20
"""How much of the object is collected before it goes to a thread, and how much is read ahead meanwhile."""
STEP_BYTES_MAX = 4 << 20
"""How much content is unpacked in one go, be it wanted or only stepped over: some 10 ms of a thread's time."""
BARREN_BYTES_MAX = 16 << 20
"""No codec needs so much input for no content at all, a seek table included."""


class ByteSource(Protocol):
    """The object of one fragment, as its store gives it."""

    async def size(self) -> int: ...
    def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        """The bytes from `offset` on, as many as asked for or to the object's end, in chunks of bounded size."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The ``ByteSource`` of an object in a BlobStore."""

    store: BlobStore
    path: str

    async def size(self) -> int:
        return await self.store.size(self.path)

    def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        return self.store.get(self.path, offset, length)


class BlockingSource(Protocol):
    """A ``ByteSource`` that blocks."""

    def size(self) -> int: ...
    def open(self, offset: int, length: int | None) -> Iterator[bytes]: ...


async def read(
    fragment: Fragment, source: ByteSource, begin: int, end: int, *, executor: Executor | None = None
) -> AsyncGenerator[bytes, None]:
    """The content [begin, end) in pieces of at most 1 MiB. The executor unpacks; by default it is the loop's own."""
    async with aclosing(_read(fragment, source, begin, end, executor, sums=True)) as pieces:
        async for piece in pieces:
            yield piece


async def read_unsummed(
    fragment: Fragment, source: ByteSource, begin: int, end: int, *, executor: Executor | None = None
) -> AsyncGenerator[bytes, None]:
    """The same without any sum of what is unpacked whole: for one who goes on elsewhere after a failure, and sums up
    all he was given."""
    async with aclosing(_read(fragment, source, begin, end, executor, sums=False)) as pieces:
        async for piece in pieces:
            yield piece


async def _read(
    fragment: Fragment, source: ByteSource, begin: int, end: int, executor: Executor | None, *, sums: bool
) -> AsyncGenerator[bytes, None]:
    if begin == end:
        return
    table = await seek_table(fragment, source) if _wants_table(fragment, begin, end) else None
    content = FragmentContent(fragment, begin, end, table, sums=sums, frame_sums=sums)
    async with (
        aclosing(source.open(content.extract.offset, content.extract.length)) as chunks,
        aclosing(_batches(chunks)) as batches,
        aclosing(_unpacked(content, batches, executor)) as pieces,
    ):
        async for piece in pieces:
            yield piece


def read_blocking(
    fragment: Fragment, source: BlockingSource, begin: int, end: int, piece_bytes: int = UNIT_BYTES_MAX
) -> Iterator[bytes]:
    """The content [begin, end) in pieces of at most so many bytes, for one who reads to the end: of a fragment that is
    read whole nothing is verified before, as the SHA-1 covers what checksums of frames do."""
    if begin == end:
        return
    table = seek_table_blocking(fragment, source) if _wants_table(fragment, begin, end) else None
    content = FragmentContent(fragment, begin, end, table, frame_sums=False, piece_bytes=piece_bytes)
    for chunk in source.open(content.extract.offset, content.extract.length):
        yield from content.advance((chunk,))
        while content.has_more:
            yield from content.advance(())
        if content.is_done:
            return
    yield from content.finish()


async def seek_table(fragment: Fragment, source: ByteSource) -> SeekTable | None:
    """The frames at which a zstandard fragment can be entered, for whoever splits it; None if it tells none."""
    size = await source.size()

    async def fetch(length: int) -> bytes:
        async with aclosing(source.open(max(size - length, 0), min(size, length))) as chunks:
            return b"".join([chunk async for chunk in chunks])

    tail = await fetch(TAIL_BYTES)
    if tail_bytes(tail) > len(tail):
        tail = await fetch(tail_bytes(tail))
    return _checked_table(fragment, tail, size)


def seek_table_blocking(fragment: Fragment, source: BlockingSource) -> SeekTable | None:
    size = source.size()

    def fetch(length: int) -> bytes:
        return b"".join(source.open(max(size - length, 0), min(size, length)))

    tail = fetch(TAIL_BYTES)
    if tail_bytes(tail) > len(tail):
        tail = fetch(tail_bytes(tail))
    return _checked_table(fragment, tail, size)


@dataclass(frozen=True, slots=True)
class Extract:
    """What of an object to fetch, from `offset`, up to its end if `length` is None; and the content that is in it."""

    offset: int
    length: int | None
    begin: int
    end: int


class FragmentContent:
    """Chunks of an object in, the content [begin, end) out. Fetch `extract` and give it to `advance`."""

    def __init__(
        self,
        fragment: Fragment,
        begin: int,
        end: int,
        table: SeekTable | None = None,
        *,
        sums: bool = True,
        frame_sums: bool = True,
        piece_bytes: int = UNIT_BYTES_MAX,
    ) -> None:
        """In pieces of at most that many bytes. Of what is unpacked whole the SHA-1 is verified, if `sums`; and each
        frame's checksum, if `frame_sums`. Of what is unpacked in part the latter always is."""
        if not fragment.begin <= begin < end <= fragment.end:
            raise InvariantError(f"[{begin}, {end}) does not lie in {fragment.content_name}")
        self.extract = _extract(fragment, begin, end, table)
        # Nothing more of the object is needed.
        self.is_done = False
        # The chunks given so far hold more content: call `advance` again, without any, before giving more.
        self.has_more = False
        self._fragment = fragment
        self._begin = begin
        self._end = end
        self._piece_bytes = piece_bytes
        is_whole = (self.extract.begin, self.extract.end) == (fragment.begin, fragment.end)
        self._decoder = decoder_of(fragment.codec, verifies=frame_sums or not is_whole)
        self._at = self.extract.begin
        self._barren = 0
        self._sum = hashlib.sha1(usedforsecurity=False) if is_whole and sums else None

    def advance(self, chunks: Iterable[bytes]) -> list[bytes]:
        """Take in `chunks`, and unpack no more than one step of what there is."""
        try:
            return self._advance(chunks)
        except CorruptError as error:
            raise _corrupt(self._fragment, error) from error

    def finish(self) -> list[bytes]:
        """The object has ended: what was left, if it is as long as it should be and its sum is right."""
        pieces: list[bytes] = []
        try:
            self._take(self._decoder.finish(), pieces)
        except CorruptError as error:
            raise _corrupt(self._fragment, error) from error
        if self._at != self.extract.end:
            raise _corrupt(
                self._fragment,
                f"ends early: {self._at - self.extract.begin} bytes of content "
                f"where {self.extract.end - self.extract.begin} were expected",
            )
        if self._sum is not None and self._sum.digest() != self._fragment.sum:
            raise _corrupt(
                self._fragment, f"holds other content than its name says: its SHA-1 is {self._sum.hexdigest()}"
            )
        return pieces

    def _advance(self, chunks: Iterable[bytes]) -> list[bytes]:
        for chunk in chunks:
            self._decoder.feed(chunk)
            self._barren += len(chunk)
        pieces: list[bytes] = []
        stop = self._at + STEP_BYTES_MAX
        while self._at < stop and not self.is_done:
            # One byte beyond the end is enough to know that there is too much.
            piece = self._decoder.read(min(self._piece_bytes, self.extract.end - self._at + 1))
            if not piece:
                break
            self._barren = 0
            self._take(piece, pieces)
        self.has_more = self._at >= stop and not self.is_done
        if self._barren > BARREN_BYTES_MAX:
            raise CorruptError(f"goes on for more than {BARREN_BYTES_MAX} bytes without content")
        return pieces

    def _take(self, piece: bytes, pieces: list[bytes]) -> None:
        start = self._at
        self._at += len(piece)
        if self._at > self._fragment.end:
            raise CorruptError(f"holds more than the {self._fragment.content_length} bytes that its name says")
        if self._sum is not None:
            self._sum.update(piece)
        wanted = piece[max(self._begin - start, 0) : max(self._end - start, 0)]
        if wanted:
            pieces.append(wanted)
        # To the fragment's end one reads on, to see that the object ends as well.
        self.is_done = self._at >= self.extract.end and self.extract.end < self._fragment.end


def _wants_table(fragment: Fragment, begin: int, end: int) -> bool:
    """To step over a lot, or to stop where a frame's checksum is known."""
    return (
        fragment.codec is CompressionCodec.ZSTANDARD
        and fragment.content_length >= SEEK_BYTES_MIN
        and (begin - fragment.begin >= SEEK_BYTES_MIN or end < fragment.end)
    )


def _extract(fragment: Fragment, begin: int, end: int, table: SeekTable | None) -> Extract:
    if fragment.codec is CompressionCodec.NONE:
        length = end - begin if end < fragment.end else None
        return Extract(begin - fragment.begin, length, begin, end)
    if table is None:
        return Extract(0, None, fragment.begin, end)
    frames = table.covering(begin - fragment.begin, end - fragment.begin)
    first, last = frames[0], frames[-1]
    # That nothing follows the last frame is known from the table, which accounts for the whole object.
    length = last.packed_end - first.packed_begin
    return Extract(first.packed_begin, length, fragment.begin + first.begin, fragment.begin + last.end)


def _checked_table(fragment: Fragment, tail: bytes, size: int) -> SeekTable | None:
    try:
        table = parse_tail(tail, size)
    except CorruptError as error:
        raise _corrupt(fragment, error) from error
    if table is not None and table.content_length != fragment.content_length:
        raise _corrupt(
            fragment,
            f"has a seek table for {table.content_length} bytes of content "
            f"where its name says {fragment.content_length}",
        )
    return table


def _corrupt(fragment: Fragment, what: object) -> CorruptError:
    """Names the object, and its store without the arguments in the URL, which are nobody's business."""
    try:
        store = parse_url(fragment.backing_store)
    except ValidationError:
        return CorruptError(f"fragment {fragment.content_path} {what}")
    place = f" in {store.scheme}://{store.host}{store.path}" if store.scheme else ""
    return CorruptError(f"fragment {fragment.content_path}{place} {what}")


async def _batches(chunks: AsyncIterator[bytes]) -> AsyncGenerator[list[bytes], None]:
    """Chunks, so many at a time that handing them to a thread is worth it."""
    batch: list[bytes] = []
    length = 0
    async for chunk in chunks:
        batch.append(chunk)
        length += len(chunk)
        if length >= BATCH_BYTES:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


async def _unpacked(
    content: FragmentContent, batches: AsyncGenerator[list[bytes], None], executor: Executor | None
) -> AsyncGenerator[bytes, None]:
    """While a thread unpacks one batch, the caller works on the one before it and the store sends the one after."""
    loop = asyncio.get_running_loop()
    pieces: list[bytes] = []
    batch = await anext(batches, None)
    while batch is not None and not content.is_done:
        step = loop.run_in_executor(executor, content.advance, batch)
        try:
            for piece in pieces:
                yield piece
            batch = await anext(batches, None)
            pieces = await step
        finally:
            # If the caller or the store gave up, what the thread still makes of this is of no interest.
            step.cancel()
        while content.has_more:
            for piece in pieces:
                yield piece
            pieces = await loop.run_in_executor(executor, content.advance, ())
    for piece in pieces:
        yield piece
    if not content.is_done:
        for piece in content.finish():
            yield piece
