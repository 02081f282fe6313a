"""Where a zstandard fragment may be entered: its frames, and the seek table that lists them.

A fragment is written as independent frames so that a reader can begin in the middle of it and a Spark scan can
split it. The table stands in the last frame of the object, a *skippable* one, in zstandard's own seekable
format: programs that know the format can seek, all others skip it. It is never the first frame, because some
readers take a leading skippable frame for the end of the data.

The format has no place for one thing that a split must know: whether a frame begins where an append does, as a
split anywhere else begins inside a message. So a second skippable frame, just before the table and listed in
it, has one bit for each frame. Without it only the first frame is known to begin at an append.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import CorruptError

FRAME_BYTES_MIN = 1 << 20
"""A frame is closed at the first append boundary at or past this."""
FRAME_BYTES_MAX = 4 << 20
"""A frame is closed here even in the middle of an append, which only one longer than this can cause."""
FRAMES_MAX = 1 << 18
"""Frames of 64 KiB in a fragment of the greatest length; a table that claims more is not worth its memory."""
TAIL_BYTES = 1 << 16
"""What to fetch of an object's end in the first attempt: the table of a fragment of about 8 GiB."""

SKIPPABLE_MAGIC = 0x184D2A50
"""Of the first of sixteen; the others follow it."""
_TABLE_MAGIC = 0x184D2A5E
_APPENDS_MAGIC = 0x184D2A5B
_APPENDS_TAG = b"pygazette.appends\0"
_FOOTER_MAGIC = 0x8F92EAB1
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_HAS_CHECKSUMS = 0x80
_RESERVED = 0x7C


@dataclass(frozen=True, slots=True)
class Frame:
    """One independent frame: its place in the object, and that of its content in the fragment, both from zero."""

    packed_begin: int
    packed_end: int
    begin: int
    end: int
    begins_append: bool


@dataclass(frozen=True, slots=True)
class SeekTable:
    """The frames of one object, in order and without gaps."""

    frames: tuple[Frame, ...]

    @property
    def content_length(self) -> int:
        return self.frames[-1].end if self.frames else 0

    def covering(self, begin: int, end: int) -> tuple[Frame, ...]:
        """The frames that hold any of [begin, end), which is not empty."""
        first = bisect_right(self.frames, begin, key=lambda frame: frame.begin) - 1
        past = bisect_right(self.frames, end - 1, key=lambda frame: frame.begin)
        return self.frames[first:past]


def seek_tail(frames: Sequence[Frame]) -> bytes:
    """What follows the frames of an object: which begin appends, and the seek table."""
    appends = _appends_frame(frames)
    sizes = [(frame.packed_end - frame.packed_begin, frame.end - frame.begin) for frame in frames]
    sizes.append((len(appends), 0))
    entries = b"".join(_HEADER.pack(packed, plain) for packed, plain in sizes)
    footer = _FOOTER.pack(len(sizes), 0, _FOOTER_MAGIC)
    return appends + _HEADER.pack(_TABLE_MAGIC, len(entries) + len(footer)) + entries + footer


def tail_bytes(end: bytes) -> int:
    """How much of an object's end has to be at hand to parse its tail, judged by the last bytes in `end`.

    Zero if there is no seek table.
    """
    footer = _footer(end)
    if footer is None:
        return 0
    count, entry_bytes = footer
    return _table_bytes(count, entry_bytes) + _appends_bytes(count)


def parse_tail(tail: bytes, object_bytes: int) -> SeekTable | None:
    """The seek table at the end of `tail`, which is the end of an object of `object_bytes`; None if it has none.

    Raises a ``CorruptError`` for a table that contradicts the object it stands in.
    """
    footer = _footer(tail)
    if footer is None:
        return None
    count, entry_bytes = footer
    begin = len(tail) - _table_bytes(count, entry_bytes)
    if begin < 0 or _HEADER.unpack_from(tail, begin) != (_TABLE_MAGIC, count * entry_bytes + _FOOTER.size):
        # The magic number stood there by chance, or the object is shorter than its table.
        return None
    entries = [_HEADER.unpack_from(tail, begin + _HEADER.size + at * entry_bytes) for at in range(count)]
    packed_bytes = sum(packed for packed, _ in entries)
    if packed_bytes + len(tail) - begin != object_bytes:
        raise CorruptError(
            f"has a seek table that lists frames of {packed_bytes} bytes, "
            f"but {object_bytes - len(tail) + begin} bytes before it"
        )
    return SeekTable(_frames(entries, _appends_of(tail[:begin], entries)))


def _footer(end: bytes) -> tuple[int, int] | None:
    """How many entries the table has and how long each is."""
    if len(end) < _FOOTER.size:
        return None
    count, descriptor, magic = _FOOTER.unpack_from(end, len(end) - _FOOTER.size)
    if magic != _FOOTER_MAGIC or descriptor & _RESERVED or count > FRAMES_MAX:
        return None
    return count, _HEADER.size + 4 * bool(descriptor & _HAS_CHECKSUMS)


def _frames(entries: Sequence[tuple[int, int]], appends: bytes) -> tuple[Frame, ...]:
    frames = []
    packed_at = at = 0
    for number, (packed, plain) in enumerate(entries):
        if plain:
            begins_append = at == 0 or (number // 8 < len(appends) and bool(appends[number // 8] >> number % 8 & 1))
            frames.append(Frame(packed_at, packed_at + packed, at, at + plain, begins_append))
        packed_at, at = packed_at + packed, at + plain
    return tuple(frames)


def _table_bytes(count: int, entry_bytes: int) -> int:
    return _HEADER.size + count * entry_bytes + _FOOTER.size


def _appends_bytes(count: int) -> int:
    """At most, for a table of `count` entries."""
    return _HEADER.size + len(_APPENDS_TAG) + (count + 7) // 8


def _appends_frame(frames: Sequence[Frame]) -> bytes:
    bits = bytearray((len(frames) + 7) // 8)
    for number, frame in enumerate(frames):
        bits[number // 8] |= frame.begins_append << number % 8
    payload = _APPENDS_TAG + bits
    return _HEADER.pack(_APPENDS_MAGIC, len(payload)) + payload


def _appends_of(before_table: bytes, entries: Sequence[tuple[int, int]]) -> bytes:
    """A bit for each entry, set if it is known to begin an append; the lowest bit of a byte is the first."""
    packed, plain = entries[-1] if entries else (0, 0)
    frame = before_table[-packed:] if packed else b""
    head = _HEADER.pack(_APPENDS_MAGIC, max(packed - _HEADER.size, 0)) + _APPENDS_TAG
    if plain or len(frame) != packed or not frame.startswith(head):
        return b""
    return frame[len(head) :]
