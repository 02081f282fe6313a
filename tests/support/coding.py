"""Objects encoded and decoded in one go, and the sources that tests read them from."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from fragment.decoder import UNIT_BYTES_MAX, decoder_of
from fragment.encoder import encoder_of
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

CODECS = [codec for codec in CompressionCodec if codec is not CompressionCodec.INVALID]


def json_lines(length: int) -> bytes:
    """Content such as users have: it packs to about a third."""
    block = _json_block()
    return (block * (length // len(block) + 1))[:length]


@cache
def _json_block() -> bytes:
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(500)]
    return b"".join(
        f'{{"at":{at},"amount":{chance.randint(0, 99999)},"note":"{" ".join(chance.choices(words, k=20))}"}}\n'.encode()
        for at in range(5000)
    )


def encoded(codec: CompressionCodec, appends: Sequence[bytes | memoryview]) -> bytes:
    encoder = encoder_of(codec)
    return b"".join([encoder.feed(append) + encoder.cut() for append in appends]) + encoder.finish()


def decoded(
    codec: CompressionCodec,
    packed: bytes,
    chunk_bytes: int = 1 << 16,
    limit: int = UNIT_BYTES_MAX,
    *,
    verifies: bool = True,
) -> bytes:
    decoder = decoder_of(codec, verifies=verifies)
    pieces = []
    for at in range(0, len(packed), chunk_bytes):
        decoder.feed(packed[at : at + chunk_bytes])
        while piece := decoder.read(limit):
            assert len(piece) <= limit
            pieces.append(piece)
    return b"".join(pieces) + decoder.finish()


def fragment_of(content: bytes, codec: CompressionCodec, begin: int = 0) -> Fragment:
    digest = hashlib.sha1(content).digest()
    return Fragment("acme/orders", begin, begin + len(content), digest, codec, backing_store="s3://bucket/prefix/")


@dataclass
class MemorySource:
    """An object in memory, read by asyncio. It remembers what was asked of it."""

    packed: bytes
    chunk_bytes: int = 1 << 16
    opened: list[tuple[int, int | None]] = field(default_factory=list)
    sent_bytes: int = 0
    closed: int = 0

    async def size(self) -> int:
        return len(self.packed)

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        self.opened.append((offset, length))
        try:
            for chunk in _chunks(self.packed, offset, length, self.chunk_bytes):
                self.sent_bytes += len(chunk)
                yield chunk
        finally:
            self.closed += 1


@dataclass
class MemoryBlockingSource:
    packed: bytes
    chunk_bytes: int = 1 << 16

    def size(self) -> int:
        return len(self.packed)

    def open(self, offset: int, length: int | None) -> Iterator[bytes]:
        return _chunks(self.packed, offset, length, self.chunk_bytes)


def _chunks(packed: bytes, offset: int, length: int | None, chunk_bytes: int) -> Iterator[bytes]:
    end = len(packed) if length is None else min(len(packed), offset + length)
    return (packed[at : min(at + chunk_bytes, end)] for at in range(offset, end, chunk_bytes))
