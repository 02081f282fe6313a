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

from consumer.message.csv_framing import CsvDecoder
from consumer.message.fixed_framing import FixedDecoder
from consumer.message.frame import FRAME_BYTES_MAX, Frame
from protocol.errors import CorruptError

BATCH_BYTES = 1 << 20
"""Of content before a batch is made. Larger ones leave the processor's cache."""


_NEWLINE = ord("\n")


class MessageBatch(NamedTuple):
    # Without newlines or headers.
    payloads: Sequence[bytes]
    # Where each begins.
    begins: Sequence[int]
    # Where the last one ends.
    end: int


class PartialMessageError(CorruptError):
    """Bytes end within a message: appends of this journal do not hold whole messages, or an offset cuts one."""


def line_batches(content: Iterable[bytes], at: int, end: int, *, aligned: bool = True) -> Iterator[MessageBatch]:
    """Lines that begin before `end`. The content begins at `at`; unless it is `aligned`, one byte before that is given
    as well, and what comes before the first newline is skipped."""
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
            yield _lines(data[:last], at, end)
            at += last
        elif len(data) > FRAME_BYTES_MAX:
            raise PartialMessageError(f"a line that begins at {at} is over the limit of {FRAME_BYTES_MAX} bytes")
    last = rest.rfind(b"\n") + 1
    if last and at < end:
        yield _lines(rest[:last], at, end)
    if last < len(rest) and at + last < end:
        raise PartialMessageError(f"no newline ends the line that begins at offset {at + last}")


def line_begins(content: Iterable[bytes], at: int, end: int, *, aligned: bool = True) -> Iterator[pa.Array]:
    """Where the lines of ``line_batches`` begin, without a look at the lines, nor an object for each."""
    if not aligned:
        at, content = _next_line(content, at - 1)
    # Of the line under way.
    begin = at
    is_newline = np.empty(BATCH_BYTES, np.bool_)
    for chunk in content:
        if begin >= end:
            return
        if len(chunk) > len(is_newline):
            is_newline = np.empty(len(chunk), np.bool_)
        np.equal(np.frombuffer(chunk, np.uint8), _NEWLINE, out=is_newline[: len(chunk)])
        begins = np.flatnonzero(is_newline[: len(chunk)])
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


def _next_line(content: Iterable[bytes], at: int) -> tuple[int, Iterable[bytes]]:
    """Where the first line after a newline begins, and the content from there."""
    chunks = iter(content)
    for chunk in chunks:
        newline = chunk.find(b"\n")
        if newline >= 0:
            return at + newline + 1, chain((chunk[newline + 1 :],), chunks)
        at += len(chunk)
    return at, ()


def _lines(data: bytes, at: int, end: int) -> MessageBatch:
    """Of whole lines. Those that begin at `end` or later are left out."""
    if at + len(data) > end:
        # Up to the newline that ends the last line which begins before `end`.
        data = data[: data.find(b"\n", end - at - 1) + 1]
    lines = data.split(b"\n")
    lines.pop()
    begins = list(accumulate(map(_one_more, map(len, lines)), initial=at))
    begins.pop()
    return MessageBatch(lines, begins, at + len(data))


_one_more = (1).__add__


def frame_batches(content: Iterable[bytes], at: int, decoder: CsvDecoder | FixedDecoder) -> Iterator[MessageBatch]:
    """Frames of content that begins where a message does. What is no frame at all is an error."""
    payloads: list[bytes] = []
    begins: list[int] = []
    held = end = 0
    for chunk in content:
        for found in decoder.feed(chunk):
            if not isinstance(found, Frame):
                raise CorruptError(f"[{found.begin}, {found.end}) holds no frame: {found.why}")
            payloads.append(found.payload)
            begins.append(found.begin)
            held, end = held + len(found.payload), found.end
        if held >= BATCH_BYTES:
            yield MessageBatch(payloads, begins, end)
            payloads, begins, held = [], [], 0
    try:
        decoder.end()
    except CorruptError as error:
        if payloads:
            yield MessageBatch(payloads, begins, end)
        raise PartialMessageError(str(error)) from error
    if payloads:
        yield MessageBatch(payloads, begins, end)
