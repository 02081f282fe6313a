"""Whether a stored file is as long as it should be, told from its outside.

Other programs' readers stop quietly where a zstandard file was cut short. Before one of them is given a file of ours,
its frames and blocks are walked by their headers, which costs a few reads for each megabyte and unpacks nothing.
Members of gzip are found by a search for their headers.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import unpack_from

from fragment.decoder import ZSTD_MAGIC
from fragment.zstd_frames import SKIPPABLE_MAGIC
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

_RLE_BLOCK = 1
_GZIP_HEADER_BYTES = 10
_GZIP_BYTES_MIN = 18


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
                return _ends_with_a_frame(data, size)
            case _:
                return False


def checks_itself(path: Path) -> bool:
    """Whether every frame of a zstandard file that looks whole has a checksum, which whoever unpacks it verifies."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at, size = 0, len(data)
        while at < size:
            (magic,) = unpack_from("<I", data, at)
            if magic != ZSTD_MAGIC:
                at += 8 + unpack_from("<I", data, at + 4)[0]
            elif not data[at + 4] >> 2 & 1:
                return False
            else:
                at = _frame_end(data, at, size)
    return True


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


def _ends_with_a_frame(data: mmap.mmap, size: int) -> bool:
    at = 0
    while at < size:
        if size - at < 8:
            return False
        (magic,) = unpack_from("<I", data, at)
        if SKIPPABLE_MAGIC <= magic < SKIPPABLE_MAGIC + 16:
            at += 8 + unpack_from("<I", data, at + 4)[0]
        elif magic == ZSTD_MAGIC:
            at = _frame_end(data, at, size)
        else:
            return False
    return at == size


def _frame_end(data: mmap.mmap, at: int, size: int) -> int:
    """Where the frame at `at` ends; beyond the file if it is cut short."""
    descriptor = data[at + 4]
    is_single = descriptor >> 5 & 1
    content_size = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    at += 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3] + content_size
    while at + 3 <= size:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        at += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
        if header & 1:
            return at + (4 if descriptor >> 2 & 1 else 0)
    return size + 1
