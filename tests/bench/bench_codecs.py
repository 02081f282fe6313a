"""Packing and unpacking, against the codecs' own speed in one call; and why it is isal that packs gzip."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cramjam
import zstandard
from isal import igzip, isal_zlib

from fragment.compressor import Compressor
from fragment.decoder import UNIT_BYTES_MAX, decoder_of
from fragment.encoder import GZIP_LEVEL, GZIP_WINDOW_BITS, ZSTD_LEVEL
from fragment.fragment_reader import BATCH_BYTES, read, read_blocking
from protocol.codec import CompressionCodec
from tests.bench.harness import Contest, benchmark
from tests.support.coding import MemoryBlockingSource, MemorySource, encoded, fragment_of, json_lines

MIB = 1 << 20
CONTENT = json_lines(32 * MIB)
APPEND_BYTES = 64 << 10
APPENDS = [memoryview(CONTENT)[at : at + APPEND_BYTES] for at in range(0, len(CONTENT), APPEND_BYTES)]


def zstd_at_once(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(content)


def zstd_unpacked_at_once(packed: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed), read_across_frames=True).read()


@dataclass(frozen=True)
class AtOnce:
    """A codec's own speed, which it has if it is given everything in one call."""

    codec: CompressionCodec
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]


PEERS = [
    AtOnce(CompressionCodec.ZSTANDARD, zstd_at_once, zstd_unpacked_at_once),
    AtOnce(
        CompressionCodec.GZIP,
        lambda content: isal_zlib.compress(content, GZIP_LEVEL, GZIP_WINDOW_BITS),
        igzip.decompress,
    ),
    AtOnce(
        CompressionCodec.SNAPPY,
        lambda content: bytes(cramjam.snappy.compress(content)),
        lambda packed: bytes(cramjam.snappy.decompress(packed)),
    ),
]


def packing(peer: AtOnce) -> Iterator[Contest]:
    def ours() -> bytes:
        return encoded(peer.codec, APPENDS)

    assert peer.unpack(ours()) == CONTENT
    yield Contest(ours, lambda: peer.pack(CONTENT), "in one call", 32, "MiB", ratio_min=0.8)


def unpacking(peer: AtOnce) -> Iterator[Contest]:
    """Ours passes on what it has unpacked, as it is made to do; it does not gather it."""
    packed = encoded(peer.codec, APPENDS)

    def ours() -> int:
        decoder, unpacked = decoder_of(peer.codec), 0
        for at in range(0, len(packed), BATCH_BYTES):
            decoder.feed(packed[at : at + BATCH_BYTES])
            while piece := decoder.read(UNIT_BYTES_MAX):
                unpacked += len(piece)
        return unpacked + len(decoder.finish())

    assert ours() == len(CONTENT)
    yield Contest(ours, lambda: peer.unpack(packed), "in one call", 32, "MiB", ratio_min=0.8)


def compressing(peer: AtOnce) -> Iterator[Contest]:
    ends = [(at + 1) * APPEND_BYTES for at in range(len(APPENDS))]
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:

        def ours() -> int:
            making = Compressor(peer.codec, _Spool(), 0, Path(folder, "object"))
            return runner.run(making.finish(len(CONTENT), ends))

        yield Contest(ours, lambda: peer.pack(CONTENT), "in one call, in memory", 32, "MiB", ratio_min=0.8)


class _Spool:
    def read(self, position: int, length: int) -> bytes:
        return CONTENT[position : position + length]


def reading(peer: AtOnce) -> Iterator[Contest]:
    fragment, packed = fragment_of(CONTENT, peer.codec), encoded(peer.codec, APPENDS)

    def ours() -> None:
        for _ in read_blocking(fragment, MemoryBlockingSource(packed, 1 << 18), 0, fragment.end):
            pass

    def floor() -> bytes:
        return hashlib.sha1(peer.unpack(packed)).digest()

    assert floor() == fragment.sum
    yield Contest(ours, floor, "in one call, and SHA-1", 32, "MiB", ratio_min=0.8)


def reading_in_threads(peer: AtOnce) -> Iterator[Contest]:
    """What it costs to hand every batch to a thread."""
    fragment, packed = fragment_of(CONTENT, peer.codec), encoded(peer.codec, APPENDS)

    async def ours() -> None:
        async for _ in read(fragment, MemorySource(packed, 1 << 18), 0, fragment.end):
            pass

    def blocking() -> None:
        for _ in read_blocking(fragment, MemoryBlockingSource(packed, 1 << 18), 0, fragment.end):
            pass

    with asyncio.Runner() as runner:
        yield Contest(lambda: runner.run(ours()), blocking, "without threads", 32, "MiB")


KINDS: dict[str, Callable[[AtOnce], Iterator[Contest]]] = {
    "pack 32 MiB in appends of 64 KiB": packing,
    "unpack 32 MiB": unpacking,
    "compress a spool of 32 MiB into a file": compressing,
    "read a fragment of 32 MiB, verified": reading,
    "read a fragment of 32 MiB by asyncio": reading_in_threads,
}
for _peer in PEERS:
    for _kind, _contest in KINDS.items():
        benchmark(f"codec {_peer.codec.name.lower()}: {_kind}")(partial(_contest, _peer))


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
