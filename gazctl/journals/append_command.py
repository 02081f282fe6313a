"""``gazctl journals append``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import random
import stat
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import click

from broker.client.append_request import Chunk, Content
from broker.client.append_service import PendingAppend
from broker.client.client import Client
from broker.client.outcome import Appended
from broker.client.retry import AtLeastOnce, RetryPolicy
from consumer.message import fixed_framing
from consumer.message.fixed_framing import FixedDecoder
from consumer.message.frame import Frame, Skipped
from consumer.message.line_framing import LineDecoder
from consumer.message.mapping import Partitions
from gazctl.command import Command
from gazctl.connection import broker_options, matched, patience, run, selector_option
from gazctl.progress import Advance, bar
from gazctl.table import size_text
from protocol.errors import CorruptError, GazetteError
from protocol.selector import LabelSelector

PIECE_BYTES = 1 << 20
HELD_BYTES_MAX = 32 << 20
"""So much of an input that can be read but once is held, so that it can be sent again."""
PENDING_MAX = 4096


@click.command(cls=Command)
@selector_option()
@click.option("-i", "--input", "input", default="-", show_default="stdin", help="File to append.")
@click.option(
    "-f",
    "--framing",
    type=click.Choice(["none", "lines", "fixed"]),
    default="none",
    show_default=True,
    help="none: the input is one append; lines or fixed: each line, or frame of a length and bytes, is one.",
)
@click.option(
    "-m",
    "--mapping",
    type=click.Choice(["random", "modulo", "rendezvous", "direct"]),
    default="random",
    show_default=True,
    help="Which journal a record goes to. But for random, each record comes after one that is its key; with direct "
    "that is the name of the journal.",
)
@click.option("--base64", "base64", is_flag=True, help="Keys are in base64.")
@click.option(
    "--at-least-once",
    is_flag=True,
    help="Append again where it is not known whether it was done: it may then be there twice.",
)
@broker_options
def append(selector: LabelSelector, at_least_once: bool, **given: Any) -> None:
    """Append to journals, and tell where that ended up.

    \b
    A line:
      echo hello | gazctl journals append -l name=my/journal
    A file, all of it or nothing:
      gazctl journals append -l name=my/journal -i file.json
    Lines, spread over the journals that match by a key on the line before each:
      gazctl journals append -l name:prefix=my/part- -f lines -m modulo < keys-and-lines
    """
    if given["framing"] == "none" and given["mapping"] != "random":
        raise click.UsageError(f"--mapping={given['mapping']} needs records: give --framing=lines or --framing=fixed")
    source = _open(given["input"])
    retry = AtLeastOnce() if at_least_once else None
    if given["framing"] == "none":
        run(given, lambda client: _append_whole(client, selector, source, retry))
    else:
        run(given, lambda client: _append_records(client, selector, source, given, retry))


def _open(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise click.ClickException(f"the input cannot be read: {error}") from error


def _size(source: BinaryIO) -> int | None:
    """None if that is not known before the end."""
    try:
        status = os.fstat(source.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size - source.tell() if stat.S_ISREG(status.st_mode) else None


@dataclass(slots=True)
class _Chunks:
    """The bytes of a file, as often as they are asked for."""

    source: BinaryIO
    advance: Advance

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        begin = await asyncio.to_thread(self.source.seek, 0)
        assert begin == 0
        while piece := await asyncio.to_thread(self.source.read, PIECE_BYTES):
            self.advance(len(piece))
            yield piece


async def _append_whole(client: Client, selector: LabelSelector, source: BinaryIO, retry: RetryPolicy | None) -> None:
    journals = (await matched(client, selector)).names
    journal = random.Random().choice(journals)
    with bar(f"Appending to {journal}", _size(source)) as advance:
        content = await _content(source, advance)
        async with patience(f"{journal} to take the append"):
            done = await client.append(journal, content, retry=retry)
    click.echo(f"{journal}: {size_text(done.end - done.begin)} at [{done.begin}, {done.end})")


async def _content(source: BinaryIO, advance: Advance) -> Content:
    """What comes slowly is gathered first: brokers give up on appends that are too slow."""
    if _size(source) is not None and source.tell() == 0:
        return _Chunks(source, advance)
    held = bytearray()
    while len(held) < HELD_BYTES_MAX:
        piece = await asyncio.to_thread(source.read, PIECE_BYTES)
        if not piece:
            return bytes(held)
        held += piece

    async def once() -> AsyncIterator[Chunk]:
        yield held
        while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
            advance(len(piece))
            yield piece

    return once()


@dataclass(slots=True)
class _Totals:
    records: int = 0
    bytes: int = 0
    end: int = 0


@dataclass(slots=True)
class Records:
    """Records of the input, each with the journal that it goes to."""

    framing: str
    map_key: Callable[[bytes], str]
    is_keyed: bool
    base64: bool = False
    _decoder: LineDecoder | FixedDecoder = field(init=False)
    _key: bytes | None = None

    def __post_init__(self) -> None:
        self._decoder = LineDecoder() if self.framing == "lines" else FixedDecoder()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        found = []
        for frame in self._decoder.feed(data):
            if isinstance(frame, Skipped):
                raise CorruptError(f"the input is not framed as {self.framing} at offset {frame.begin}: {frame.why}")
            if (placed := self._placed(frame)) is not None:
                found.append(placed)
        return found

    def end(self) -> None:
        try:
            self._decoder.end()
        except CorruptError as error:
            raise CorruptError(f"the input ends within a record: {error}") from error
        if self._key is not None:
            raise CorruptError("the input ends after a key: the record that belongs to it is missing")

    def _placed(self, frame: Frame) -> tuple[str, bytes] | None:
        if not self.is_keyed:
            return self.map_key(b""), self._written(frame)
        if self._key is None:
            self._key = self._decoded_key(frame)
            return None
        key, self._key = self._key, None
        return self.map_key(key), self._written(frame)

    def _decoded_key(self, frame: Frame) -> bytes:
        key = frame.payload.strip() if self.framing == "lines" else frame.payload
        if not self.base64:
            return key
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error as error:
            raise CorruptError(f"the key at offset {frame.begin} of the input is not base64: {error}") from error

    def _written(self, frame: Frame) -> bytes:
        return frame.payload + b"\n" if self.framing == "lines" else fixed_framing.encode(frame.payload)


def mapping_of(name: str, journals: list[str]) -> Callable[[bytes], str]:
    """From a record's key to its journal."""
    partitions = Partitions(journals)
    known = frozenset(journals)

    def direct(key: bytes) -> str:
        journal = key.decode(errors="replace")
        if journal not in known:
            raise CorruptError(f"{journal[:128]!r} is not among the {len(known)} journals that the selector matches")
        return journal

    chance = random.Random()
    mappings: dict[str, Callable[[bytes], str]] = {
        "random": lambda key: partitions.random(chance),
        "modulo": partitions.modulo,
        "rendezvous": partitions.rendezvous,
        "direct": direct,
    }
    return mappings[name]


async def _append_records(
    client: Client, selector: LabelSelector, source: BinaryIO, given: dict[str, Any], retry: RetryPolicy | None
) -> None:
    journals = (await matched(client, selector)).names
    map_key = mapping_of(given["mapping"], journals)
    records = Records(given["framing"], map_key, given["mapping"] != "random", given["base64"])
    totals: dict[str, _Totals] = {}
    try:
        with bar("Appending", _size(source)) as advance:
            await _append_each(client, records, source, totals, advance, retry)
    finally:
        for journal, total in sorted(totals.items()):
            counted = f"{total.records} record{'s' * (total.records != 1)}, {size_text(total.bytes)}"
            click.echo(f"{journal}: {counted}, up to {total.end}")


async def _append_each(
    client: Client,
    records: Records,
    source: BinaryIO,
    totals: dict[str, _Totals],
    advance: Advance,
    retry: RetryPolicy | None,
) -> None:
    """In order, many at a time. What is wrong with the input is told after all before it is done."""
    service = client.append_service(retry=retry)
    pending: list[tuple[PendingAppend, int]] = []
    wrong: GazetteError | None = None
    while piece := await asyncio.to_thread(_read_some, source):
        advance(len(piece))
        try:
            found = records.feed(piece)
        except GazetteError as error:
            wrong = error
            break
        for journal, record in found:
            pending.append((await service.append(journal, record), len(record)))
        if len(pending) >= PENDING_MAX:
            await _settle(pending, totals)
    await _settle(pending, totals)
    if wrong is not None:
        raise wrong
    records.end()


async def _settle(pending: list[tuple[PendingAppend, int]], totals: dict[str, _Totals]) -> None:
    async with patience("appends to be done"):
        for append, length in pending:
            done: Appended = await append
            total = totals.setdefault(done.journal, _Totals())
            total.records += 1
            total.bytes += length
            total.end = max(total.end, done.end)
    pending.clear()


def _read_some(source: BinaryIO) -> bytes:
    """As soon as there is something: whoever types lines wants to see them go."""
    read1 = getattr(source, "read1", source.read)
    piece: bytes = read1(PIECE_BYTES)
    return piece
