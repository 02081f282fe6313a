"""Packing and unpacking, against the codecs' own speed in one call; and why it is isal that packs gzip."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import zstandard
from isal import isal_zlib

from fragment.compressor import Compressor
from fragment.encoder import GZIP_LEVEL, GZIP_WINDOW_BITS, ZSTD_LEVEL
from fragment.fragment_reader import read, read_blocking
from protocol.codec import CompressionCodec
from tests.bench.harness import Contest, benchmark
from tests.support.coding import MemoryBlockingSource, MemorySource, decoded, encoded, fragment_of, json_lines

MIB = 1 << 20
CONTENT = json_lines(32 * MIB)
APPEND_BYTES = 64 << 10
APPENDS = [memoryview(CONTENT)[at : at + APPEND_BYTES] for at in range(0, len(CONTENT), APPEND_BYTES)]

Codec = Callable[[bytes], bytes]


def zstd_at_once(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(content)


def zstd_unpacked_at_once(packed: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed), read_across_frames=True).read()


AT_ONCE: dict[CompressionCodec, tuple[Codec, Codec]] = {
    CompressionCodec.ZSTANDARD: (zstd_at_once, zstd_unpacked_at_once),
    CompressionCodec.GZIP: (
        lambda content: isal_zlib.compress(content, GZIP_LEVEL, GZIP_WINDOW_BITS),
        lambda packed: isal_zlib.decompress(packed, GZIP_WINDOW_BITS),
    ),
    CompressionCodec.SNAPPY: (
        lambda content: bytes(cramjam.snappy.compress(content)),
        lambda packed: bytes(cramjam.snappy.decompress(packed)),
    ),
}


def register(codec: CompressionCodec, pack: Codec, unpack: Codec) -> None:
    name = codec.name.lower()

    @benchmark(f"codec {name}: pack 32 MiB in appends of 64 KiB")
    def packing() -> Iterator[Contest]:
        assert decoded(codec, encoded(codec, APPENDS)) == CONTENT
        yield Contest(lambda: encoded(codec, APPENDS), lambda: pack(CONTENT), "in one call", 32, "MiB", ratio_min=0.8)

    @benchmark(f"codec {name}: unpack 32 MiB")
    def unpacking() -> Iterator[Contest]:
        packed = pack(CONTENT)
        yield Contest(lambda: decoded(codec, packed), lambda: unpack(packed), "in one call", 32, "MiB", ratio_min=0.8)

    @benchmark(f"codec {name}: compress a spool of 32 MiB into a file")
    def compressing() -> Iterator[Contest]:
        ends = [(at + 1) * APPEND_BYTES for at in range(len(APPENDS))]
        with tempfile.TemporaryDirectory() as folder:

            def ours() -> None:
                asyncio.run(Compressor(codec, _Spool(), 0, Path(folder, "object")).finish(len(CONTENT), ends))

            yield Contest(ours, lambda: pack(CONTENT), "in one call, in memory", 32, "MiB", ratio_min=0.8)

    @benchmark(f"codec {name}: read a fragment of 32 MiB, verified")
    def reading() -> Iterator[Contest]:
        fragment, packed = fragment_of(CONTENT, codec), encoded(codec, APPENDS)

        def ours() -> None:
            for _ in read_blocking(fragment, MemoryBlockingSource(packed, 1 << 18), 0, fragment.end):
                pass

        def floor() -> bytes:
            return hashlib.sha1(unpack(packed)).digest()

        yield Contest(ours, floor, "in one call, and SHA-1", 32, "MiB", ratio_min=0.8)

    @benchmark(f"codec {name}: read a fragment of 32 MiB, verified, by asyncio")
    def hopping() -> Iterator[Contest]:
        """What handing every batch to a thread costs."""
        fragment, packed = fragment_of(CONTENT, codec), encoded(codec, APPENDS)

        async def all_of_it() -> None:
            async for _ in read(fragment, MemorySource(packed, 1 << 18), 0, fragment.end):
                pass

        def blocking() -> None:
            for _ in read_blocking(fragment, MemoryBlockingSource(packed, 1 << 18), 0, fragment.end):
                pass

        with asyncio.Runner() as runner:
            yield Contest(lambda: runner.run(all_of_it()), blocking, "without threads", 32, "MiB")


class _Spool:
    def read(self, position: int, length: int) -> bytes:
        return CONTENT[position : position + length]


for _codec, (_pack, _unpack) in AT_ONCE.items():
    register(_codec, _pack, _unpack)


@benchmark("codec gzip: isal at our level against zlib at 1")
def isal_against_zlib() -> Iterator[Contest]:
    """isal's object is no larger, or the comparison would be unfair."""

    def ours() -> bytes:
        return isal_zlib.compress(CONTENT, GZIP_LEVEL, GZIP_WINDOW_BITS)

    def theirs() -> bytes:
        return zlib.compress(CONTENT, 1, GZIP_WINDOW_BITS)

    assert len(ours()) <= len(theirs())
    yield Contest(ours, theirs, "zlib, level 1", 32, "MiB", ratio_min=2.0)


@benchmark("codec gzip: isal unpacks against zlib")
def isal_unpacks_against_zlib() -> Iterator[Contest]:
    packed = zlib.compress(CONTENT, 6, GZIP_WINDOW_BITS)
    yield Contest(
        lambda: isal_zlib.decompress(packed, GZIP_WINDOW_BITS),
        lambda: zlib.decompress(packed, GZIP_WINDOW_BITS),
        "zlib",
        32,
        "MiB",
        ratio_min=1.5,
    )
