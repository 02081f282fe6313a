from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fragment.decoder import decoder_of
from fragment.encoder import encoder_of
from fragment.fragment_reader import FragmentContent, read_blocking
from fragment.zstd_frames import FRAME_BYTES_MAX, FRAME_BYTES_MIN, parse_tail
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from tests.support.coding import CODECS, MemoryBlockingSource, decoded, encoded, fragment_of, json_lines

ZSTD = CompressionCodec.ZSTANDARD

codecs = st.sampled_from(CODECS)
# Text, noise and repetition pack in different ways, and snappy and zstandard store noise as it is.
pieces = st.one_of(
    st.binary(max_size=100),
    st.builds(json_lines, st.integers(0, 200_000)),
    st.builds(bytes, st.integers(0, 300_000)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 9), st.integers(0, 200_000)),
)
appends = st.lists(pieces, max_size=6)
long_appends = st.lists(
    st.one_of(st.integers(0, 1000), st.integers(0, 2 * FRAME_BYTES_MIN), st.integers(0, 9 << 20)),
    min_size=1,
    max_size=8,
)


def slices(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """`data` in pieces whose sizes are the given ones, over and over."""
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


@given(codecs, appends, st.lists(st.integers(1, 100_000), min_size=1, max_size=4), st.integers(1, 1 << 21))
@settings(max_examples=150)
def test_what_is_encoded_is_decoded_however_it_comes_and_goes(
    codec: CompressionCodec, appends: list[bytes], chunkings: list[int], limit: int
) -> None:
    encoder = encoder_of(codec)
    packed = b""
    for append in appends:
        packed += b"".join(encoder.feed(piece) for piece in slices(append, chunkings)) + encoder.cut()
    packed += encoder.finish()
    decoder, found = decoder_of(codec), []
    # A limit of a few bytes is tried too, but not for hundreds of thousands of them.
    limit = max(limit, len(packed) // 1000)
    for chunk in slices(packed, [max(size, len(packed) // 1000) for size in chunkings]):
        decoder.feed(chunk)
        while piece := decoder.read(limit):
            assert len(piece) <= limit
            found.append(piece)
    assert b"".join(found) + decoder.finish() == b"".join(appends)


@given(long_appends)
@settings(max_examples=25)
def test_zstandard_frames_are_of_the_agreed_size_and_end_with_appends(sizes: list[int]) -> None:
    content = json_lines(sum(sizes))
    bounds = [0, *accumulate(sizes)]
    packed = encoded(ZSTD, [memoryview(content)[begin:end] for begin, end in pairwise(bounds)])
    table = parse_tail(packed, len(packed))
    assert table is not None
    assert table.content_length == len(content)
    for frame in table.frames:
        assert decoded(ZSTD, packed[frame.packed_begin : frame.packed_end]) == content[frame.begin : frame.end]
        assert frame.begins_append <= (frame.begin in bounds)
        if not frame.begins_append:
            # Only the rest of an append that is too long for one frame begins elsewhere.
            assert max(end - begin for begin, end in pairwise(bounds) if begin < frame.begin) > FRAME_BYTES_MAX
    for frame, after in pairwise(table.frames):
        length = frame.end - frame.begin
        assert length <= FRAME_BYTES_MAX
        next_append_end = min(end for end in bounds if end > frame.end)
        assert length >= FRAME_BYTES_MIN or next_append_end - frame.begin > FRAME_BYTES_MAX
        assert after.begins_append or length == FRAME_BYTES_MAX


@given(codecs, appends.filter(any), st.data())
@settings(max_examples=150)
def test_any_part_is_read_as_it_was_written(codec: CompressionCodec, appends: list[bytes], data: st.DataObject) -> None:
    content = b"".join(appends)
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    source = MemoryBlockingSource(encoded(codec, appends), data.draw(st.integers(1000, 100_000)))
    found = read_blocking(fragment_of(content, codec, begin=77), source, 77 + begin, 77 + end)
    assert b"".join(found) == content[begin:end]


@st.composite
def damages(draw: st.DrawFn, packed: bytes) -> bytes:
    """The same object, cut, or with bits flipped, or with something put in or after it."""
    match draw(st.sampled_from(["cut", "flip", "flip", "flip", "insert", "remove"])):
        case "cut":
            return packed[: draw(st.integers(0, len(packed) - 1))]
        case "flip":
            damaged = bytearray(packed)
            # Headers and trailers are short, so they are hit on purpose.
            near = st.one_of(
                st.integers(0, len(packed) - 1),
                st.integers(0, min(40, len(packed) - 1)),
                st.integers(max(0, len(packed) - 60), len(packed) - 1),
            )
            for at in draw(st.lists(near, min_size=1, max_size=3)):
                damaged[at] ^= 1 << draw(st.integers(0, 7))
            return bytes(damaged)
        case "insert":
            at = draw(st.integers(0, len(packed)))
            return packed[:at] + draw(st.binary(min_size=1, max_size=20)) + packed[at:]
        case _:
            at = draw(st.integers(0, len(packed) - 1))
            return packed[:at] + packed[at + draw(st.integers(1, 1000)) :]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@given(st.data())
@settings(max_examples=120)
def test_a_damaged_object_gives_its_content_or_is_corrupt(codec: CompressionCodec, data: st.DataObject) -> None:
    appended = data.draw(appends.filter(any))
    content = b"".join(appended)
    damaged = data.draw(damages(encoded(codec, appended)))
    reading = FragmentContent(fragment_of(content, codec), 0, len(content))
    found = []
    try:
        for chunk in slices(damaged, [data.draw(st.integers(1000, 100_000))]):
            found += reading.advance([chunk])
            while reading.has_more:
                found += reading.advance(())
        found += reading.finish()
    except CorruptError:
        assert len(b"".join(found)) <= len(content)
        return
    assert b"".join(found) == content
