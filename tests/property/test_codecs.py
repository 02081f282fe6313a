from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
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
    st.builds(bytes, st.one_of(st.integers(0, 300_000), st.integers(FRAME_BYTES_MIN, 2 * FRAME_BYTES_MIN))),
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


@given(
    codecs,
    appends,
    st.lists(st.one_of(st.integers(1, 1000), st.integers(1, 1 << 21)), min_size=1, max_size=4),
    st.one_of(st.integers(1, 1000), st.integers(1, 1 << 21)),
)
@settings(max_examples=150)
def test_what_is_encoded_is_decoded_however_it_comes_and_goes(
    codec: CompressionCodec, appends: list[bytes], chunkings: list[int], limit: int
) -> None:
    # Pieces of a few bytes are tried too, but not hundreds of thousands of them.
    smallest = sum(map(len, appends)) // 500
    chunkings = [max(size, smallest) for size in chunkings]
    limit = max(limit, smallest)
    encoder = encoder_of(codec)
    packed = b""
    for append in appends:
        packed += b"".join(encoder.feed(piece) for piece in slices(append, chunkings)) + encoder.cut()
    packed += encoder.finish()
    decoder, found = decoder_of(codec), []
    for chunk in slices(packed, chunkings):
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
@settings(max_examples=100)
def test_any_part_is_read_as_it_was_written(codec: CompressionCodec, appends: list[bytes], data: st.DataObject) -> None:
    content = b"".join(appends)
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    source = MemoryBlockingSource(encoded(codec, appends), data.draw(st.integers(1000, 100_000)))
    found = read_blocking(fragment_of(content, codec, begin=77), source, 77 + begin, 77 + end)
    assert b"".join(found) == content[begin:end]


@dataclass(frozen=True)
class Damage:
    """`removed` bytes at `at` give way to `inserted`, and then single bits are flipped, each told by its number."""

    at: int
    removed: int
    inserted: bytes
    flipped: tuple[int, ...]

    def __call__(self, packed: bytes) -> bytes:
        damaged = bytearray(packed[: self.at] + self.inserted + packed[self.at + self.removed :])
        for bit in self.flipped:
            if bit // 8 < len(damaged):
                damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)


@st.composite
def damages(draw: st.DrawFn, length: int) -> Damage:
    # Headers and trailers are short, so they are hit on purpose.
    places = st.one_of(
        st.integers(0, length - 1),
        st.integers(0, min(40, length - 1)),
        st.integers(max(0, length - 60), length - 1),
    )
    bits = st.lists(st.builds(lambda at, bit: 8 * at + bit, places, st.integers(0, 7)), max_size=3)
    removals = st.one_of(st.just(0), st.integers(0, 1000), st.just(length))
    return Damage(draw(places), draw(removals), draw(st.binary(max_size=20)), tuple(draw(bits)))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@given(st.data())
@settings(max_examples=80)
def test_a_damaged_object_gives_its_content_or_is_corrupt(codec: CompressionCodec, data: st.DataObject) -> None:
    appended = data.draw(appends.filter(any))
    content = b"".join(appended)
    packed = encoded(codec, appended)
    damaged = data.draw(damages(len(packed)).filter(lambda damage: damage(packed) != packed))(packed)
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
