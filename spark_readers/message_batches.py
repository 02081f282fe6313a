"""Content of a piece in, batches of whole messages out, with their offsets.

A piece has the messages that *begin* within it. Where it was cut out of a fragment it does not know where a message
begins: it looks at the byte before, and skips to the first newline. The piece before it reads its last message to the
end, and so neither has it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from consumer.message.csv_framing import CsvDecoder
from consumer.message.fixed_framing import HEADER_BYTES, MAGIC, FixedDecoder
from consumer.message.frame import FRAME_BYTES_MAX, Frame, Skipped
from protocol.errors import CorruptError

BATCH_BYTES = 1 << 20
"""Of content before a batch is made."""


GARBAGE_BYTES_MAX = 64 << 10
"""Of what is shown of bytes that are no message."""

_NEWLINE = ord("\n")
_WORD_BYTES = np.uint64().itemsize


class MessageBatch(NamedTuple):
    # Without newlines or headers.
    payloads: Sequence[bytes]
    # Where each begins.
    begins: Sequence[int]
    # Where the last one ends.
    end: int


class Garbage(bytes):
    """In the place of a payload: the first of the bytes between two frames, which are no message."""


class LineBlock(NamedTuple):
    """Lines that have not been taken apart."""

    # Whole lines, each with its newline.
    data: bytes
    begin: int


class PartialMessageError(CorruptError):
    """Bytes end within a message: appends of this journal do not hold whole messages, or an offset cuts one."""


def line_batches(content: Iterable[bytes], at: int, end: int, *, aligned: bool = True) -> Iterator[MessageBatch]:
    """Lines that begin before `end`. The content begins at `at`; unless it is `aligned`, one byte before that is given
    as well, and what comes before the first newline is skipped."""
    return map(_lines, line_blocks(content, at, end, aligned=aligned))


def line_blocks(content: Iterable[bytes], at: int, end: int, *, aligned: bool = True) -> Iterator[LineBlock]:
    """The same lines, many at once."""
    if not aligned:
        at, content = _next_line(content, at - 1)
    rest = b""
    for chunk in content:
        if at >= end:
            return
        data = rest + chunk if rest else chunk
        last = data.rfind(b"\n") + 1 if len(data) >= BATCH_BYTES else 0
        rest = data[last:]
        if last:
            yield _block(data[:last], at, end)
            at += last
        elif len(data) > FRAME_BYTES_MAX:
            raise PartialMessageError(f"a line that begins at {at} is over the limit of {FRAME_BYTES_MAX} bytes")
    last = rest.rfind(b"\n") + 1
    if last and at < end:
        yield _block(rest[:last], at, end)
    if last < len(rest) and at + last < end:
        raise PartialMessageError(f"no newline ends the line that begins at offset {at + last}")


def line_begins(content: Iterable[bytes], at: int, end: int, *, aligned: bool = True) -> Iterator[pa.Array]:
    """Where the lines of ``line_batches`` begin, without a look at the lines, nor an object for each."""
    if not aligned:
        at, content = _next_line(content, at - 1)
    # Of the line under way.
    begin = at
    for chunk in content:
        if begin >= end:
            return
        begins = newlines(chunk)
        at += len(chunk)
        if len(begins):
            # The line that ends at a newline begins after the one before it.
            begins += at - len(chunk) + 1
            begin, begins[1:], begins[0] = int(begins[-1]), begins[:-1], begin
            yield pa.array(begins if at <= end else begins[begins < end])
        if at - begin > FRAME_BYTES_MAX:
            raise PartialMessageError(f"a line that begins at {begin} is over the limit of {FRAME_BYTES_MAX} bytes")
    if begin < min(at, end):
        raise PartialMessageError(f"no newline ends the line that begins at offset {begin}")


def newlines(data: bytes) -> NDArray[np.int64]:
    """Where they are.

    First which words have any, then where in those: few bytes are newlines, and to look for them word by word takes
    half as long.
    """
    is_newline = np.empty(-(-len(data) // _WORD_BYTES) * _WORD_BYTES, np.bool_)
    np.equal(np.frombuffer(data, np.uint8), _NEWLINE, out=is_newline[: len(data)])
    is_newline[len(data) :] = False
    words = is_newline.view(np.uint64)
    having = np.flatnonzero(words != 0)
    within = np.flatnonzero(words[having].view(np.bool_))
    at: NDArray[np.int64] = having[within >> 3]
    # Numpy divides slowly.
    at <<= 3
    within &= 7
    at |= within
    return at


def _next_line(content: Iterable[bytes], at: int) -> tuple[int, Iterable[bytes]]:
    """Where the first line after a newline begins, and the content from there."""
    chunks = iter(content)
    for chunk in chunks:
        newline = chunk.find(b"\n")
        if newline >= 0:
            return at + newline + 1, chain((chunk[newline + 1 :],), chunks)
        at += len(chunk)
    return at, ()


def _block(data: bytes, at: int, end: int) -> LineBlock:
    """Of whole lines. Those that begin at `end` or later are left out."""
    if at + len(data) > end:
        # Up to the newline that ends the last line which begins before `end`.
        data = data[: data.find(b"\n", end - at - 1) + 1]
    return LineBlock(data, at)


def _lines(block: LineBlock) -> MessageBatch:
    data, at = block
    lines = data.split(b"\n")
    lines.pop()
    begins = list(accumulate(map(_one_more, map(len, lines)), initial=at))
    begins.pop()
    return MessageBatch(lines, begins, at + len(data))


_one_more = (1).__add__


def frame_batches(content: Iterable[bytes], at: int, decoder: CsvDecoder | FixedDecoder) -> Iterator[MessageBatch]:
    """Frames of content that begins where a message does. What lies between them is ``Garbage``, each stretch one."""
    payloads: list[bytes] = []
    begins: list[int] = []
    held = end = 0
    lost: _Lost | None = None
    before = b""
    for chunk in content:
        for found in decoder.feed(chunk):
            if not isinstance(found, Frame):
                lost = lost or _Lost(found.begin)
                lost.take(found, before + chunk, at - len(before))
                continue
            if lost is not None:
                payloads.append(Garbage(lost.head))
                begins.append(lost.begin)
                lost = None
            payloads.append(found.payload)
            begins.append(found.begin)
            held, end = held + len(found.payload), found.end
        at += len(chunk)
        before = (before + chunk[-HEADER_BYTES:])[-HEADER_BYTES:]
        if held >= BATCH_BYTES:
            yield MessageBatch(payloads, begins, end)
            payloads, begins, held = [], [], 0
    partial = _partial(decoder)
    if lost is not None:
        # What may have been the first bytes of a frame's header is none.
        if partial is not None and at - lost.end < len(MAGIC):
            lost.take(Skipped(lost.end, at, ""), before, at - len(before))
            partial = None
        payloads.append(Garbage(lost.head))
        begins.append(lost.begin)
        end = lost.end
    if payloads:
        yield MessageBatch(payloads, begins, end)
    if partial is not None:
        raise partial


class _Lost:
    """Bytes that are no frame, as a decoder tells of them bit by bit."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.end = begin
        self.head = bytearray()

    def take(self, skipped: Skipped, window: bytes, window_begin: int) -> None:
        """`window` has the last bytes that the decoder was given. What it gave up on may have begun long before."""
        if skipped.begin >= window_begin and self.end == skipped.begin:
            room = GARBAGE_BYTES_MAX - len(self.head)
            self.head += window[skipped.begin - window_begin : skipped.end - window_begin][:room]
        self.end = skipped.end


def _partial(decoder: CsvDecoder | FixedDecoder) -> PartialMessageError | None:
    """What is left when the content has ended."""
    try:
        rest = decoder.end()
    except CorruptError as error:
        return PartialMessageError(str(error))
    return PartialMessageError(f"no newline ends the record that begins at offset {rest[0].begin}") if rest else None
