"""Whether a stored file is as long as it should be, told from its outside.

Other programs' readers stop quietly where a zstandard file was cut short. Before one of them is given a file of ours,
its frames and blocks are walked by their headers, which costs a few reads for each megabyte and unpacks nothing. As
a file may have been cut right where a frame ends, the sizes that frames tell must add up to what its name says.
Members of gzip are found by a search for their headers.
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
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

LAST_FRAME_BYTES_MAX = 8 << 20
"""Of content that is unpacked to see its last byte. Our own frames are half as long."""

_RLE_BLOCK = 1
_GZIP_HEADER_BYTES = 10
_GZIP_BYTES_MIN = 18


class _Frame(NamedTuple):
    begin: int
    # Beyond the file if it is cut short, or no frame at all.
    end: int
    # As its header tells, if it does. Whoever unpacks the frame holds it to that.
    content_bytes: int | None
    has_checksum: bool


def looks_whole(of: Fragment, path: Path) -> bool:
    """False also for what cannot be told: our own decoder then finds out, and says what is wrong."""
    size = os.path.getsize(path)
    if not size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        match of.codec:
            case CompressionCodec.NONE:
                return size == of.content_length
            case CompressionCodec.GZIP:
                return _gzip_content_bytes(data, size) == of.content_length & 0xFFFF_FFFF
            case CompressionCodec.ZSTANDARD:
                return _zstd_content_bytes(data, size) == of.content_length
            case _:
                return False


def checks_itself(path: Path) -> bool:
    """Whether every frame of a zstandard file that looks whole has a checksum, which whoever unpacks it verifies."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return all(frame.has_checksum for frame in _frames(data, len(data)) if frame.content_bytes != 0)


def last_byte(of: Fragment, path: Path) -> bytes:
    """The last one of the content of a file that looks whole; none if it takes more than a frame to tell."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if of.codec is CompressionCodec.NONE:
            return data[-1:]
        if of.codec is not CompressionCodec.ZSTANDARD:
            return b""
        last = None
        for frame in _frames(data, len(data)):
            last = frame if frame.content_bytes != 0 else last
        if last is None or last.content_bytes is None or last.content_bytes > LAST_FRAME_BYTES_MAX:
            return b""
        try:
            return zstandard.ZstdDecompressor().decompress(data[last.begin : last.end])[-1:]
        except zstandard.ZstdError:
            return b""


def _gzip_content_bytes(data: mmap.mmap, size: int) -> int:
    """As the members say, each in its last four bytes, as 32 bits.

    Where members begin is told by their headers, which are all the same if one program wrote them at one go. If they
    are not, or content looks like one by chance, the sum is wrong: then our own decoder has to find out.
    """
    if size < _GZIP_BYTES_MIN:
        return -1
    header = data[:_GZIP_HEADER_BYTES]
    (content,) = unpack_from("<I", data, size - 4)
    at = data.find(header, _GZIP_BYTES_MIN)
    while at >= 0:
        content += unpack_from("<I", data, at - 4)[0]
        at = data.find(header, at + _GZIP_BYTES_MIN)
    return int(content) & 0xFFFF_FFFF


def _zstd_content_bytes(data: mmap.mmap, size: int) -> int | None:
    """As the headers of frames say; None if one does not, or the file does not end where a frame does."""
    content = end = 0
    for frame in _frames(data, size):
        if frame.content_bytes is None:
            return None
        content += frame.content_bytes
        end = frame.end
    return content if end == size else None


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
