"""EventStore: journals of JSON events as fragments in folders, the same content once for each codec.

Made by as many processes as there are cores, as it is gigabytes; and once for all benchmarks of a run.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path

from consumer.message.message_uuid import Flags, build, clock_at, ticked
from fragment.encoder import encoder_of
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

JOURNALS = 4
FRAGMENTS = 12
"""Of each journal."""
APPEND_EVENTS = 200
TRANSACTION_EVENTS = 1000
CODECS = (CompressionCodec.ZSTANDARD, CompressionCodec.GZIP)
COLUMNS = "country string, type string, amount double"

_COUNTRIES = ("AT", "BE", "CH", "DE", "DK", "ES", "FI", "FR", "GB", "IE", "IT", "NL", "NO", "PL", "PT", "SE")
_TYPES = ("view", "search", "cart_add", "cart_remove", "checkout", "purchase", "refund", "login")
_SHAPES = 4096
_BEGUN_NANOS = 1_790_000_000 * 10**9


@dataclass(frozen=True)
class EventStore:
    """`folder` has a store for each codec."""

    folder: Path

    def root(self, codec: CompressionCodec) -> Path:
        return self.folder / codec.name.lower()

    def files(self, codec: CompressionCodec) -> list[str]:
        return sorted(str(path) for path in self.root(codec).rglob("*") if path.is_file())

    @cached_property
    def content_bytes(self) -> int:
        names = [Path(name).name.split("-") for name in self.files(CODECS[0])]
        return sum(int(end, 16) - int(begin, 16) for begin, end, _ in names)


def make_events(folder: Path, content_bytes: int) -> EventStore:
    jobs = [(folder, at, content_bytes // JOURNALS) for at in range(JOURNALS)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
        list(processes.map(_make_journal, jobs))
    return EventStore(folder)


def _make_journal(job: tuple[Path, int, int]) -> None:
    folder, number, content_bytes = job
    journal = f"events/pivot={number:02}"
    fragment_bytes = content_bytes // FRAGMENTS
    appends = events_of(number)
    begin = 0
    for at in range(FRAGMENTS):
        postfix = f"date=2026-11-16/hour={at:02}"
        begin = put_fragment(folder, journal, begin, appends, fragment_bytes, CODECS, postfix)


def put_fragment(
    folder: Path,
    journal: str,
    begin: int,
    appends: Iterator[bytes],
    content_bytes: int,
    codecs: tuple[CompressionCodec, ...],
    postfix: str = "",
) -> int:
    """As many of the appends as have that many bytes. Returns where they end."""
    digest = hashlib.sha1(usedforsecurity=False)
    packed = {codec: (encoder_of(codec), bytearray()) for codec in codecs}
    end = begin
    while end - begin < content_bytes:
        append = next(appends)
        digest.update(append)
        end += len(append)
        for encoder, out in packed.values():
            out += encoder.feed(append)
            out += encoder.cut()
    for codec, (encoder, out) in packed.items():
        store = folder / codec.name.lower()
        of = Fragment(journal, begin, end, digest.digest(), codec, f"file://{store}/", _BEGUN_NANOS // 10**9, postfix)
        path = store / of.content_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out + encoder.finish())
    return end


def events_of(seed: int, one_transaction: bool = False) -> Iterator[bytes]:
    """Events of one producer in transactions, or in one that stays open. Without end, and never the same UUID twice."""
    shapes = _shapes(random.Random(seed))
    producer = bytes((1, 2, 3, 4, 5, seed))
    clock = clock_at(_BEGUN_NANOS)
    tail = str(build(producer, clock, Flags.CONTINUE_TXN))[18:]
    number = 0
    while True:
        lines = []
        for _ in range(APPEND_EVENTS):
            clock, number = ticked(clock), number + 1
            units = clock >> 4
            uuid = f"{units & 0xFFFFFFFF:08x}-{units >> 32 & 0xFFFF:04x}-1{units >> 48:03x}{tail}"
            lines.append(f'{{"_meta":{{"uuid":"{uuid}"}},"id":{number},{shapes[number % _SHAPES]}')
        if number % TRANSACTION_EVENTS == 0 and not one_transaction:
            clock = ticked(clock)
            lines.append(f'{{"_meta":{{"uuid":"{build(producer, clock, Flags.ACK_TXN)}"}}}}\n')
        yield "".join(lines).encode()


def interleaved(row_bytes: int, transaction_bytes: int) -> Iterator[bytes]:
    """Long transactions of large rows, each with a row that another producer commits by itself before their end.

    Read committed delivers that row first, and then goes back to the begin of the transaction.
    """
    clock = clock_at(_BEGUN_NANOS)
    pad = "x" * row_bytes

    def line(producer: int, flags: Flags, text: str) -> str:
        uuid = build(bytes((1, 2, 3, 4, 5, producer)), clock, flags)
        return f'{{"_meta":{{"uuid":"{uuid}"}},"country":"{text}"}}\n'

    while True:
        for _ in range(transaction_bytes // row_bytes):
            clock = ticked(clock)
            yield line(1, Flags.CONTINUE_TXN, pad).encode()
        clock = ticked(clock)
        yield (line(2, Flags.OUTSIDE_TXN, "PT") + line(1, Flags.ACK_TXN, "")).encode()


def _shapes(chance: random.Random) -> list[str]:
    """What comes after the number of an event."""
    shapes = []
    for _ in range(_SHAPES):
        items = ",".join(
            f'{{"sku":"SKU-{chance.randrange(10**5):05}","qty":{chance.randint(1, 5)}}}'
            for _ in range(chance.randint(1, 3))
        )
        shapes.append(
            f'"ts":"2026-11-16T{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}Z",'
            f'"type":"{chance.choice(_TYPES)}","country":"{chance.choice(_COUNTRIES)}",'
            f'"user":{chance.randrange(10**7)},"session":"{chance.getrandbits(64):016x}",'
            f'"amount":{chance.randrange(12000) / 100},"items":[{items}],'
            f'"path":"/shop/{chance.randrange(500)}/item","ok":{chance.choice(("true", "false"))}}}\n'
        )
    return shapes
