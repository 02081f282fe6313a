"""What others wrote, read by us; and what must not happen on the way."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import tracemalloc
import zlib

import cramjam
import pytest
import zstandard

from fragment.decoder import GZIP_HEADER_BYTES_MAX, UNIT_BYTES_MAX, decoder_of
from fragment.encoder import encoder_of
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, ValidationError
from tests.support.coding import CODECS, decoded, json_lines

MIB = 1 << 20
TEXT = json_lines(150_000)
ZEROS = bytes(300_000)
ZSTD, GZIP, SNAPPY = CompressionCodec.ZSTANDARD, CompressionCodec.GZIP, CompressionCodec.SNAPPY
OFFLOAD = CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


def gzip_with_every_field(content: bytes) -> bytes:
    extra = b"XX\x04\x00abcd"
    header = b"\x1f\x8b\x08\x1e" + bytes(6) + struct.pack("<H", len(extra)) + extra + b"name\0comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    return header + zlib.compress(content)[2:-4] + struct.pack("<II", zlib.crc32(content), len(content))


def zstd_without_size(content: bytes, *, checksum: bool = False) -> bytes:
    """As Gazette writes it."""
    stream = zstandard.ZstdCompressor(level=5, write_checksum=checksum, write_content_size=False).compressobj()
    return stream.compress(content) + stream.flush()


def skippable(content: bytes, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


def snappy_chunk(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(3, "little") + content


SNAPPED = bytes(cramjam.snappy.compress(TEXT))[len(IDENTIFIER) :]
# Bytes that do not pack are stored as they are, with their sum.
UNPACKABLE = bytes(cramjam.snappy.compress(zlib.compress(TEXT)))

THEIRS = {
    "gzip, several members": (GZIP, gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]), TEXT),
    "gzip, an empty member": (GZIP, gzip.compress(b"") + gzip.compress(TEXT) + gzip.compress(b""), TEXT),
    "gzip, members that pack well": (GZIP, 3 * gzip.compress(bytes(100_000)) + gzip.compress(b"tail"), ZEROS + b"tail"),
    "gzip, every header field": (GZIP, gzip_with_every_field(TEXT) + gzip_with_every_field(b"tail"), TEXT + b"tail"),
    "offload, still packed": (OFFLOAD, gzip.compress(TEXT), TEXT),
    "offload, unpacked by its store": (OFFLOAD, TEXT, TEXT),
    "offload, one byte": (OFFLOAD, b"x", b"x"),
    "offload, one byte like gzip": (OFFLOAD, b"\x1f", b"\x1f"),
    "offload, two bytes like gzip": (OFFLOAD, b"\x1f\x8b", b"\x1f\x8b"),
    "zstandard, no size": (ZSTD, zstd_without_size(TEXT), TEXT),
    "zstandard, no size but a sum": (ZSTD, zstd_without_size(TEXT, checksum=True), TEXT),
    "zstandard, several frames": (ZSTD, zstd_without_size(TEXT[:7]) + zstandard.compress(TEXT[7:]), TEXT),
    "zstandard, frames that pack well": (ZSTD, 3 * zstandard.compress(bytes(100_000)), ZEROS),
    "zstandard, an empty frame": (ZSTD, zstandard.compress(b"") + zstandard.compress(TEXT), TEXT),
    "zstandard, things to skip": (
        ZSTD,
        skippable(b"") + skippable(bytes(100_000), 15) + zstandard.compress(TEXT) + skippable(b"abc") + skippable(b""),
        TEXT,
    ),
    "zstandard, unpackable": (ZSTD, zstandard.compress(zlib.compress(TEXT)), zlib.compress(TEXT)),
    "zstandard, one repeated byte": (ZSTD, zstandard.compress(bytes(MIB)), bytes(MIB)),
    "snappy, streams that pack well": (SNAPPY, 3 * bytes(cramjam.snappy.compress(bytes(100_000))), ZEROS),
    "snappy": (SNAPPY, IDENTIFIER + SNAPPED, TEXT),
    "snappy, unpackable": (SNAPPY, UNPACKABLE, zlib.compress(TEXT)),
    "snappy, two streams in one": (SNAPPY, IDENTIFIER + SNAPPED + IDENTIFIER + SNAPPED, TEXT + TEXT),
    "snappy, things to skip": (
        SNAPPY,
        IDENTIFIER + snappy_chunk(0xFE, bytes(70_000)) + SNAPPED + snappy_chunk(0x80, b"abc") + snappy_chunk(0xFD, b""),
        TEXT,
    ),
}


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize(("chunk_bytes", "limit"), [(1 << 20, 1 << 20), (1 << 20, 999), (1000, 4096), (1, 50_000)])
def test_what_others_write_is_read(name: str, chunk_bytes: int, limit: int) -> None:
    codec, packed, content = THEIRS[name]
    assert decoded(codec, packed, chunk_bytes, limit) == content


@pytest.mark.parametrize(
    "command",
    [["gzip", "-9"], ["zstd", "-12"], ["zstd", "-1", "--no-check"], ["zstd", "--long=27"]],
    ids=" ".join,
)
def test_what_tools_write_is_read(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} on PATH")
    packed = subprocess.run([*command, "-c"], input=TEXT, capture_output=True, check=True).stdout
    assert decoded(GZIP if command[0] == "gzip" else ZSTD, packed) == TEXT


@pytest.mark.parametrize("name", [name for name, (codec, *_) in THEIRS.items() if codec is not OFFLOAD])
def test_an_object_cut_anywhere_is_shorter_or_corrupt(name: str) -> None:
    codec, packed, content = THEIRS[name]
    cuts = {*range(1, 200), *range(200, len(packed), 4999), *range(len(packed) - 200, len(packed))}
    for cut in sorted(cut for cut in cuts if 0 < cut < len(packed)):
        try:
            found = decoded(codec, packed[:cut], 1 << 20)
        except CorruptError:
            continue
        # It ended between two frames. Whoever knows the length of the content sees the rest.
        assert content.startswith(found)
        rest = decoded(codec, (IDENTIFIER if codec is SNAPPY else b"") + packed[cut:], 1 << 20)
        assert found + rest == content


CORRUPT = {
    "gzip, garbage behind": (GZIP, gzip.compress(TEXT) + b"garbage"),
    "gzip, zeros behind": (GZIP, gzip.compress(TEXT) + bytes(100)),
    "gzip, unknown flags": (GZIP, b"\x1f\x8b\x08\x20" + gzip.compress(TEXT)[4:]),
    "gzip, another method": (GZIP, b"\x1f\x8b\x07" + gzip.compress(TEXT)[3:]),
    "gzip, wrong sum": (GZIP, gzip.compress(TEXT)[:-8] + bytes(8)),
    "gzip, wrong sum of a header": (GZIP, gzip_with_every_field(TEXT).replace(b"comment", b"cOmment")),
    "gzip, endless header": (GZIP, b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * GZIP_HEADER_BYTES_MAX),
    "gzip, not at all": (GZIP, TEXT),
    "zstandard, garbage behind": (ZSTD, zstandard.compress(TEXT) + b"garbage and more"),
    "zstandard, a few bytes behind": (ZSTD, zstandard.compress(TEXT) + b"gar"),
    "zstandard, wrong sum": (ZSTD, zstd_without_size(TEXT, checksum=True)[:-4] + bytes(4)),
    "zstandard, not at all": (ZSTD, TEXT),
    "zstandard, something to skip that is not there": (ZSTD, skippable(bytes(1000))[:-1]),
    "zstandard, unknown kind of block": (ZSTD, zstandard.compress(b"")[:-3] + b"\x07\x00\x00"),
    "zstandard, block too long": (ZSTD, struct.pack("<IBB", 0xFD2FB528, 0, 0x50) + b"\x02\x00\x11" + bytes(140_000)),
    "zstandard, window of 2 GiB": (ZSTD, struct.pack("<IBB", 0xFD2FB528, 0, 0xA8) + b"\x01\x00\x00"),
    "zstandard, dictionary": (ZSTD, struct.pack("<IBBI", 0xFD2FB528, 3, 0x50, 77) + b"\x01\x00\x00"),
    "snappy, not framed": (SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
    "snappy, no identifier": (SNAPPY, SNAPPED),
    "snappy, wrong sum": (SNAPPY, IDENTIFIER + SNAPPED[:4] + bytes(4) + SNAPPED[8:]),
    "snappy, unknown kind of chunk": (SNAPPY, IDENTIFIER + SNAPPED + snappy_chunk(0x02, bytes(10))),
    "snappy, chunk without sum": (SNAPPY, IDENTIFIER + snappy_chunk(0x00, bytes(3))),
    "snappy, chunk too long": (SNAPPY, IDENTIFIER + snappy_chunk(0x01, bytes(80_000))),
    "snappy, block too long": (
        SNAPPY,
        IDENTIFIER + snappy_chunk(0x00, bytes(4) + bytes(cramjam.snappy.compress_raw(bytes(70_000)))),
    ),
    "snappy, other identifier": (SNAPPY, IDENTIFIER + SNAPPED + b"\xff\x06\x00\x00SnApPy"),
    "snappy, something to skip that is not there": (SNAPPY, IDENTIFIER + snappy_chunk(0xFE, bytes(10))[:-1]),
}


@pytest.mark.parametrize("name", CORRUPT)
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1000])
def test_what_does_not_hold_up_is_corrupt(name: str, chunk_bytes: int) -> None:
    codec, packed = CORRUPT[name]
    with pytest.raises(CorruptError):
        decoded(codec, packed, chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1000, 1])
def test_sums_of_zstandard_are_stepped_over_where_they_are_not_wanted(chunk_bytes: int) -> None:
    packed = zstd_without_size(TEXT, checksum=True)[:-4] + bytes(4)
    packed += skippable(b"skip") + zstd_without_size(TEXT) + zstandard.compress(TEXT)
    assert decoded(ZSTD, packed, chunk_bytes, verifies=False) == 3 * TEXT
    with pytest.raises(CorruptError, match="ends in the middle"):
        decoded(ZSTD, zstd_without_size(TEXT, checksum=True)[:-1], chunk_bytes, verifies=False)


def zstd_frame(size: int, blocks: bytes) -> bytes:
    """One that says that it has `size` bytes of content."""
    return struct.pack("<IBI", 0xFD2FB528, 0xA0, size) + blocks


def zstd_block(content: bytes, *, last: bool = False) -> bytes:
    return (len(content) << 3 | last).to_bytes(3, "little") + content


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 7])
class TestAZstandardFrameThatTellsItsSize:
    def test_is_waited_for_however_many_blocks_it_has(self, chunk_bytes: int, verifies: bool) -> None:
        blocks = zstd_block(b"") * 20_000 + zstd_block(b"content") + zstd_block(b"", last=True)
        packed = zstd_frame(7, blocks) + zstandard.compress(TEXT)
        assert decoded(ZSTD, packed, chunk_bytes, verifies=verifies) == b"content" + TEXT

    @pytest.mark.parametrize("size", [6, 8, 100_000])
    def test_is_corrupt_if_that_is_not_so(self, chunk_bytes: int, verifies: bool, size: int) -> None:
        with pytest.raises(CorruptError, match="zstandard"):
            decoded(ZSTD, zstd_frame(size, zstd_block(b"content", last=True)), chunk_bytes, verifies=verifies)

    def test_is_corrupt_if_it_breaks_off(self, chunk_bytes: int, verifies: bool) -> None:
        packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
        with pytest.raises(CorruptError, match="ends in the middle"):
            decoded(ZSTD, packed[:-1], chunk_bytes, verifies=verifies)

    def test_has_its_sum_verified_if_that_is_wanted(self, chunk_bytes: int, verifies: bool) -> None:
        packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)[:-4] + bytes(4)
        if verifies:
            with pytest.raises(CorruptError, match="checksum"):
                decoded(ZSTD, packed, chunk_bytes)
        else:
            assert decoded(ZSTD, packed, chunk_bytes, verifies=False) == TEXT

    def test_is_unpacked_in_parts_if_less_is_asked_for(self, chunk_bytes: int, verifies: bool) -> None:
        """Also if it was waited for as a whole before."""
        packed = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
        decoder = decoder_of(ZSTD, verifies=verifies)
        decoder.feed(packed[:-5])
        assert decoder.read(len(TEXT)) == b""
        decoder.feed(packed[-5:])
        parts = iter(lambda: decoder.read(min(chunk_bytes, len(TEXT) // 2)), b"")
        assert b"".join(parts) == TEXT


def test_a_snappy_chunk_that_is_too_long_is_not_waited_for() -> None:
    decoder = decoder_of(SNAPPY)
    decoder.feed(IDENTIFIER + b"\x00\xff\xff\xff")
    with pytest.raises(CorruptError):
        decoder.read(1)


def test_nothing_is_read_without_a_codec() -> None:
    with pytest.raises(ValidationError):
        decoder_of(CompressionCodec.INVALID)


def bomb(codec: CompressionCodec, size: int) -> bytes:
    if codec is ZSTD:
        # One frame, as others write them: ours is told how large its frames may be.
        stream = zstandard.ZstdCompressor().compressobj()
        return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()
    encoder = encoder_of(codec)
    return b"".join(encoder.feed(bytes(MIB)) for _ in range(size // MIB)) + encoder.finish()


@pytest.mark.parametrize(
    ("codec", "size"), [(ZSTD, 1 << 30), (GZIP, 256 * MIB), (OFFLOAD, 64 * MIB), (SNAPPY, 64 * MIB)]
)
def test_a_bomb_gives_no_more_than_asked_for_and_fills_no_memory(codec: CompressionCodec, size: int) -> None:
    packed = bomb(codec, size)
    assert len(packed) < size / 20
    tracemalloc.start()
    try:
        decoder = decoder_of(codec)
        decoder.feed(packed)
        for limit in (1, 1000, 100 * MIB, 5):
            assert 0 < len(decoder.read(limit)) <= min(limit, UNIT_BYTES_MAX)
        assert tracemalloc.get_traced_memory()[1] < len(packed) + 6 * UNIT_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_content_of_any_length_passes_through_buffers_of_bounded_size(codec: CompressionCodec) -> None:
    """The short form of what ``test_compressor`` does with 2 GiB."""
    piece = json_lines(MIB)
    encoder, decoder = encoder_of(codec), decoder_of(codec)
    passed = 0
    tracemalloc.start()
    try:
        for _ in range(64):
            for at in range(0, MIB, 1 << 17):
                decoder.feed(encoder.feed(piece[at : at + (1 << 17)]))
                decoder.feed(encoder.cut())
                while unpacked := decoder.read(UNIT_BYTES_MAX):
                    passed += len(unpacked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 64 * MIB - passed <= 4 * MIB
    assert peak < 12 * MIB
