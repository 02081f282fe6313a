"""Whether a stored zstandard file is as long as it should be, told from its outside.

Other programs' readers stop quietly where such a file was cut short. Before one of them is given a file of ours, its
frames and blocks are walked by their headers, which costs a few reads for each megabyte and unpacks nothing. As a file
may have been cut right where a frame ends, the sizes that frames tell must add up to what its name says.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import NamedTuple

import zstandard

from fragment.decoder import ZSTD_MAGIC
from fragment.zstd_frames import SKIPPABLE_MAGIC
from protocol.fragment import Fragment

LAST_FRAME_BYTES_MAX = 8 << 20
"""Of content that is unpacked to see its last byte. Our own frames are half as long."""

_RLE_BLOCK = 1


class _Frame(NamedTuple):
    begin: int
    # Beyond the file if it is cut short, or no frame at all.
    end: int
    # As its header tells, if it does. Whoever unpacks the frame holds it to that.
    content_bytes: int | None
    has_checksum: bool


def checks_itself(of: Fragment, path: Path) -> bool:
    """Whether whoever unpacks the file either gets all of its lines, and the right ones, or fails.

    Each frame has a checksum for that, and a newline ends the last one: of other lines readers make a row as well.
    False also for what cannot be told: our own decoder then finds out, and says what is wrong.
    """
    if not os.path.getsize(path):
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        content = 0
        last = None
        for frame in _frames(data, len(data)):
            if frame.end > len(data) or frame.content_bytes is None:
                return False
            if frame.content_bytes:
                if not frame.has_checksum:
                    return False
                content += frame.content_bytes
                last = frame
        if content != of.content_length or last is None or (last.content_bytes or 0) > LAST_FRAME_BYTES_MAX:
            return False
        try:
            return zstandard.ZstdDecompressor().decompress(data[last.begin : last.end]).endswith(b"\n")
        except zstandard.ZstdError:
            return False


def _frames(data: mmap.mmap, size: int) -> Iterator[_Frame]:
    """All of them, skippable ones as frames without content. The last one may end beyond the file."""
    at = 0
    while at < size:
        magic = unpack_from("<I", data, at)[0] if size - at >= 8 else 0
        if SKIPPABLE_MAGIC <= magic < SKIPPABLE_MAGIC + 16:
            frame = _Frame(at, at + 8 + unpack_from("<I", data, at + 4)[0], 0, True)
        elif magic == ZSTD_MAGIC:
            frame = _frame(data, at, size)
        else:
            frame = _Frame(at, size + 1, None, False)
        yield frame
        at = frame.end


def _frame(data: mmap.mmap, begin: int, size: int) -> _Frame:
    """By RFC 8878 §3.1.1. Block by block, as no frame tells its length."""
    descriptor = data[begin + 4]
    has_checksum = bool(descriptor >> 2 & 1)
    is_single = descriptor >> 5 & 1
    told_bytes = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    at = begin + 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3]
    content_bytes = None
    if told_bytes:
        content_bytes = int.from_bytes(data[at : at + told_bytes], "little") + (256 if told_bytes == 2 else 0)
    at += told_bytes
    while at + 3 <= size:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        at += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
        if header & 1:
            return _Frame(begin, at + (4 if has_checksum else 0), content_bytes, has_checksum)
    return _Frame(begin, size + 1, content_bytes, has_checksum)
