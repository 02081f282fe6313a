from __future__ import annotations

import struct

import pytest

from fragment.zstd_frames import FRAMES_MAX, Frame, SeekTable, parse_tail, seek_tail, tail_bytes
from protocol.errors import CorruptError

FRAMES = (
    Frame(0, 100, 0, 1000, begins_append=True),
    Frame(100, 250, 1000, 2000, begins_append=False),
    Frame(250, 300, 2000, 2001, begins_append=True),
)
PACKED_BYTES = 300

# By pyzstd 0.20: three frames, and a table with neither checksums nor anything of ours.
FOREIGN = bytes.fromhex(
    "28b52ffd0058a1000054686520717569636b2062726f776e20666f7820"
    "28b52ffd0058a100006a756d7073206f76657220746865206c617a7920"
    "28b52ffd0058610000646f672c2074776963652e0a"
    "5e2a4d18210000001d000000140000001d00000014000000150000000c0000000300000000b1ea928f"
)


def table(entries: list[tuple[int, ...]], descriptor: int = 0, count: int | None = None) -> bytes:
    body = b"".join(struct.pack(f"<{len(entry)}I", *entry) for entry in entries)
    footer = struct.pack("<IBI", len(entries) if count is None else count, descriptor, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(body) + len(footer)) + body + footer


def test_what_is_written_is_read_again() -> None:
    tail = seek_tail(FRAMES)
    assert tail_bytes(tail) >= len(tail)
    assert parse_tail(tail, PACKED_BYTES + len(tail)) == SeekTable(FRAMES)
    assert parse_tail(bytes(50) + tail, PACKED_BYTES + len(tail)) == SeekTable(FRAMES)


def test_the_tail_begins_with_a_skippable_frame_and_ends_with_the_table_of_the_seekable_format() -> None:
    tail = seek_tail(FRAMES)
    magic, length = struct.unpack_from("<II", tail)
    assert magic & ~0xF == 0x184D2A50
    assert struct.unpack_from("<I", tail, 8 + length) == (0x184D2A5E,)
    assert tail[-9:] == struct.pack("<IBI", 4, 0, 0x8F92EAB1)


def test_a_table_by_another_program_tells_the_frames_but_only_that_the_first_begins_an_append() -> None:
    found = parse_tail(FOREIGN, len(FOREIGN))
    assert found is not None
    assert [(frame.packed_begin, frame.packed_end, frame.begin, frame.end) for frame in found.frames] == [
        (0, 29, 0, 20),
        (29, 58, 20, 40),
        (58, 79, 40, 52),
    ]
    assert [frame.begins_append for frame in found.frames] == [True, False, False]


def test_checksums_in_a_table_are_stepped_over() -> None:
    tail = table([(10, 5, 0xDEAD), (20, 7, 0xBEEF)], descriptor=0x80)
    found = parse_tail(tail, 30 + len(tail))
    assert found is not None
    assert [(frame.packed_end, frame.end) for frame in found.frames] == [(10, 5), (30, 12)]


def test_frames_without_content_take_up_space_only() -> None:
    tail = table([(10, 0), (20, 7), (8, 0), (5, 1)])
    found = parse_tail(tail, 43 + len(tail))
    assert found is not None
    assert [(frame.packed_begin, frame.packed_end, frame.begin) for frame in found.frames] == [(10, 30, 0), (38, 43, 7)]
    assert found.frames[0].begins_append


def test_a_frame_to_skip_that_is_not_ours_says_nothing_of_appends() -> None:
    theirs = struct.pack("<II", 0x184D2A5B, 20) + b"\xff" * 20
    tail = theirs + table([(10, 5), (20, 7), (len(theirs), 0)])
    found = parse_tail(tail, 30 + len(tail))
    assert found is not None
    assert [frame.begins_append for frame in found.frames] == [True, False]


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"short",
        bytes(100),
        FOREIGN[:-1],
        FOREIGN[-20:],
        table([(10, 5)], descriptor=0x04),
        table([(10, 5)], count=2),
        table([], count=FRAMES_MAX + 1),
        struct.pack("<IBI", 0, 0, 0x8F92EAB1),
    ],
    ids=[
        *("empty", "too short", "no magic number", "cut", "not all there", "reserved bits", "wrong count", "too many"),
        "no header",
    ],
)
def test_what_is_no_table_is_taken_for_none(tail: bytes) -> None:
    assert parse_tail(tail, len(tail) + 10) is None


def test_how_much_of_the_end_is_needed_is_known_from_the_footer() -> None:
    tail = table([(10, 5)] * 10_000)
    assert tail_bytes(tail[-9:]) >= len(tail)
    assert tail_bytes(b"no table here") == 0


def test_a_table_that_does_not_fit_its_object_is_corrupt() -> None:
    tail = seek_tail(FRAMES)
    with pytest.raises(CorruptError, match="seek table"):
        parse_tail(tail, PACKED_BYTES + len(tail) + 1)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 1, 1), (0, 1000, 1), (999, 1001, 2), (1000, 1001, 1), (0, 2001, 3), (2000, 2001, 1)],
)
def test_a_range_is_covered_by_the_frames_it_touches(begin: int, end: int, expected: int) -> None:
    covering = SeekTable(FRAMES).covering(begin, end)
    assert len(covering) == expected
    assert covering[0].begin <= begin
    assert covering[-1].end >= end
    assert covering[0].end > begin
    assert covering[-1].begin < end
