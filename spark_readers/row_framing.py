"""RowFraming: rows in, whole framed messages out, each for the journal it belongs to.

Messages of a framing with UUIDs are those of one producer and one transaction, which only an acknowledgement makes
visible to read-committed readers. Their Clocks ascend in the order of rows, in each journal and over all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import pyarrow as pa

from consumer.message import csv_framing, fixed_framing, json_framing
from consumer.message.mapping import Partitions
from consumer.message.message_uuid import Flags, build, ticked, updated
from protocol.errors import ValidationError, checked
from protocol.identifier import check_journal
from spark_readers.arrow_values import csv_values, json_values, key_values
from spark_readers.sink_options import KeyMapping, SinkFraming, SinkOptions

PIECE_BYTES = 1 << 20
"""So much for one journal is handed out at once."""
HELD_BYTES_MAX = 16 << 20
"""Of all journals together."""
JOURNALS_MAX = 10_000
"""That one task writes to: of each a line is kept, and a line is in what the driver commits."""

_SLICE_ROWS = 1024
_UUID_TIME_DIGITS = len("83fc2f81-cc5f-11e9")
_KEYS_REMEMBERED = 1 << 16


@dataclass(slots=True)
class JournalWrites:
    """What a task wrote to one journal."""

    first_clock: int
    last_clock: int
    rows: int = 0
    bytes: int = 0


class Stamp(Protocol):
    """Puts UUIDs into messages of one type."""

    def stamped(self, message: bytes, uuid: str) -> bytes:
        """The message with this UUID, whichever it had."""


class RowFraming:
    """Feed it batches, and `end` it: both yield what is to be appended, in order."""

    def __init__(
        self, options: SinkOptions, journals: Sequence[str], producer: bytes, stamp: Stamp | None = None
    ) -> None:
        """`journals` are those that a key chooses from, or the only one; none if a column names them. `stamp` is for
        messages of a descriptor set."""
        self._options = options
        self._producer = producer
        self._stamp = stamp
        self._clock = 0
        self._journal_of = None if options.journal_column else _mapping(options, journals)
        self._only = journals[0] if len(journals) == 1 and not options.key_column else ""
        self._encode = self._encoding()
        self._held: dict[str, list[bytes]] = {}
        self._held_bytes: dict[str, int] = {}
        self.writes: dict[str, JournalWrites] = {}

    def feed(self, batch: pa.RecordBatch, unix_nanos: int) -> Iterator[tuple[str, bytes]]:
        self._clock = updated(self._clock, unix_nanos)
        for at in range(0, batch.num_rows, _SLICE_ROWS):
            rows = batch.slice(at, _SLICE_ROWS)
            for journal, message in zip(self._journals(rows), self._encode(rows), strict=True):
                self._hold(journal, message)
            yield from self._pieces()

    def end(self) -> Iterator[tuple[str, bytes]]:
        for journal, messages in self._held.items():
            if messages:
                yield journal, b"".join(messages)
        self._held, self._held_bytes = {}, {}

    def _pieces(self) -> Iterator[tuple[str, bytes]]:
        if sum(self._held_bytes.values()) >= HELD_BYTES_MAX:
            yield from self.end()
            return
        full = [journal for journal, held in self._held_bytes.items() if held >= PIECE_BYTES]
        for journal in full:
            del self._held_bytes[journal]
            yield journal, b"".join(self._held.pop(journal))

    def _hold(self, journal: str, message: bytes) -> None:
        """`self._clock` is that of the message."""
        writes = self.writes.get(journal)
        if writes is None:
            self._check_apart(journal)
            if len(self.writes) >= JOURNALS_MAX:
                raise ValidationError(f"a task writes to at most {JOURNALS_MAX} journals: repartition by the column")
            writes = self.writes[journal] = JournalWrites(self._clock, self._clock)
        writes.last_clock = self._clock
        writes.rows += 1
        writes.bytes += len(message)
        self._held.setdefault(journal, []).append(message)
        self._held_bytes[journal] = self._held_bytes.get(journal, 0) + len(message)

    def _check_apart(self, journal: str) -> None:
        """Journals that a column names are not known before."""
        transaction = self._options.transaction
        if transaction is not None and journal == transaction.commit_journal:
            raise ValidationError(
                f"a row goes to {journal}, where commits are kept: filter such rows, or give another commitJournal",
                self._options.journal_column,
            )

    def _journals(self, rows: pa.RecordBatch) -> Sequence[str]:
        if self._only:
            return [self._only] * rows.num_rows
        column = self._options.journal_column or self._options.key_column
        keys = key_values(rows.column(column))
        if None in keys:
            raise ValidationError("a row has none: fill it by coalesce, or filter such rows", column)
        journal_of = self._journal_of or _named
        return [journal_of(key) for key in keys if key is not None]

    def _encoding(self) -> Callable[[pa.RecordBatch], Iterator[bytes]]:
        match self._options.framing:
            case SinkFraming.JSON:
                return self._json_texts if self._options.content_column else self._json_rows
            case SinkFraming.CSV:
                return self._csv_rows
            case SinkFraming.LINES:
                return lambda rows: (_line(value) for value in self._values(rows))
            case SinkFraming.FIXED if self._stamp is not None:
                return partial(self._stamped, self._stamp)
            case SinkFraming.FIXED:
                return lambda rows: (fixed_framing.encode(value) for value in self._values(rows))
            case SinkFraming.BYTES:
                return self._values

    def _uuids(self, count: int) -> list[str]:
        """Of the next messages; the Clock stays at the first."""
        clock = self._clock
        # All but the time is the same in each of them: a third of what it takes to build them one by one.
        rest = str(build(self._producer, clock, Flags.CONTINUE_TXN))[_UUID_TIME_DIGITS:]
        texts = []
        for _ in range(count):
            clock = ticked(clock)
            units = clock >> 4
            texts.append(f"{units & 0xFFFF_FFFF:08x}-{units >> 32 & 0xFFFF:04x}-1{units >> 48:03x}{rest}")
        return texts

    def _json_rows(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        path = self._options.uuid_path
        names, columns = self._columns(rows, json_values)
        uuids = self._uuids(rows.num_rows)
        documents = [
            with_uuid({name: value for name, value in zip(names, row, strict=True) if value is not None}, path, uuid)
            for uuid, row in zip(uuids, zip(*columns, strict=True), strict=True)
        ]
        # Encoded all at once, which is faster, and cut where their UUIDs are: there is no other place that has them, as
        # they were not known before.
        text = json_framing.text_of(documents)
        lead = json_framing.text_of(_nested(path, "?")).rindex('?"')
        cuts, at = [], 0
        for uuid in uuids:
            at = text.index(uuid, at) + len(uuid)
            cuts.append(at - len(uuid) - lead)
        for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
            self._clock = ticked(self._clock)
            # Without the comma that follows, or the bracket.
            yield json_framing.line_of(text[begin : end - 1])

    def _json_texts(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        path = self._options.uuid_path
        names = [json.dumps(name, ensure_ascii=False) for name in path]
        begin = "".join(f"{{{name}:" for name in names).encode() + b'"'
        end = b'"' + b"}" * (len(path) - 1)
        uuids = self._uuids(rows.num_rows)
        for uuid, text in zip(uuids, self._values(rows, as_bytes=False), strict=True):
            inner = text.strip()
            if inner[:1] != "{" or inner[-1:] != "}" or "\n" in inner:
                raise ValidationError(
                    f"expected a JSON object in one line, as to_json makes it (got {text[:48]!r})",
                    self._options.content_column,
                )
            self._clock = ticked(self._clock)
            # A document that has the field already, or seems to, is taken apart; of all others the text is kept.
            if names[0] in inner:
                yield json_framing.encode(with_uuid(_object(inner), path, uuid))
                continue
            rest = inner[1:].lstrip()
            yield b"".join((begin, uuid.encode(), end, b"" if rest == "}" else b",", rest.encode(), b"\n"))

    def _csv_rows(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        _, columns = self._columns(rows, csv_values)
        for uuid, row in zip(self._uuids(rows.num_rows), zip(*columns, strict=True), strict=True):
            self._clock = ticked(self._clock)
            yield csv_framing.encode((uuid, *row))

    def _stamped(self, stamp: Stamp, rows: pa.RecordBatch) -> Iterator[bytes]:
        for uuid, value in zip(self._uuids(rows.num_rows), self._values(rows), strict=True):
            self._clock = ticked(self._clock)
            try:
                message = stamp.stamped(value, uuid)
            except ValidationError as error:
                raise error.within(self._options.content_column) from None
            yield fixed_framing.encode(message)

    def _columns(
        self, rows: pa.RecordBatch, spelled: Callable[[pa.Array], list[Any]]
    ) -> tuple[list[str], list[list[Any]]]:
        """All but the one that says where a row goes."""
        names = [name for name in rows.schema.names if name != self._options.journal_column]
        columns = []
        for name in names:
            try:
                columns.append(spelled(rows.column(name)))
            except ValidationError as error:
                raise error.within(name) from None
        return names, columns

    def _values(self, rows: pa.RecordBatch, *, as_bytes: bool = True) -> Iterator[Any]:
        """Of the one column that is written."""
        column = self._options.content_column
        for value in rows.column(column).to_pylist():
            if value is None:
                raise ValidationError("a row has none: filter such rows", column)
            yield value.encode() if as_bytes and isinstance(value, str) else value


def acknowledgement(options: SinkOptions, producer: bytes, clock: int, stamp: Stamp | None = None) -> bytes:
    """The message by which a producer's messages up to this Clock count; or none since, if it is before them."""
    uuid = str(build(producer, clock, Flags.ACK_TXN))
    if stamp is not None:
        return fixed_framing.encode(stamp.stamped(b"", uuid))
    if options.framing is SinkFraming.CSV:
        # All records of a journal have the same number of fields.
        return csv_framing.encode((uuid, *[""] * options.column_count))
    return json_framing.encode(_nested(options.uuid_path, uuid))


def with_uuid(document: dict[str, Any], path: Sequence[str], uuid: str) -> dict[str, Any]:
    """
    >>> with_uuid({"a": 1, "_meta": {"b": 2, "uuid": "old"}}, ("_meta", "uuid"), "new")
    {'_meta': {'uuid': 'new', 'b': 2}, 'a': 1}
    """
    name, *inner = path
    value: Any = uuid
    if inner:
        held = document.get(name, {})
        if not isinstance(held, dict):
            raise ValidationError("no field can be put into what is no object: choose another uuidField", name)
        value = with_uuid(held, inner, uuid)
    # It comes first, where people who read along look for it.
    return {name: value} | document | {name: value}


def _nested(path: Sequence[str], uuid: str) -> dict[str, Any]:
    return with_uuid({}, path, uuid)


def _object(text: str) -> dict[str, Any]:
    document = json_framing.parse(text.encode())
    assert isinstance(document, dict)
    return document


def _mapping(options: SinkOptions, journals: Sequence[str]) -> Callable[[bytes], str]:
    partitions = Partitions(journals)
    chosen = partitions.modulo if options.mapping is KeyMapping.MODULO else partitions.rendezvous
    return lru_cache(_KEYS_REMEMBERED)(chosen)


@lru_cache(JOURNALS_MAX)
def _named(key: bytes) -> str:
    name = key.decode()
    checked("journalColumn", check_journal, name)
    return name


def _line(value: bytes) -> bytes:
    if b"\n" in value:
        raise ValidationError("a value has a newline, so it would be read as two: replace it, or write json", "value")
    return value + b"\n"
