"""RowBuffer: messages, collected until they are worth a batch of Arrow, and columns that tell where they are from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from consumer.message.message_uuid import MessageUUID, unix_nanos_of
from spark_readers.parse_columns import MalformedRecordError, Parsed, conformed, parse
from spark_readers.read_options import Framing, Mode, ReadOptions

BATCH_BYTES = 8 << 20
"""A query of DuckDB costs milliseconds before its first row, so a batch is worth some."""
BATCH_ROWS = 131_072
GATHERED_BYTES = 1 << 20
"""Of lines that are a batch: more in one are read no sooner."""
SLICE_BYTES = 1 << 20
"""Of messages that are added at once, so that a batch is not much larger than it should be."""

METADATA = {
    "_journal": "string",
    "_offset": "long",
    "_fragment": "string",
    "_labels": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
    "_path_keys": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
    "_timestamp": "timestamp",
}
"""Columns that are not in messages, by name, with their types as in the JSON of a Spark schema."""
MANY = {"_offset": "_offsets", "value": "_values"}
"""In the place of a column of lines, one with an array: a row of it has many lines, from one place."""


class Place(NamedTuple):
    """Where messages are from."""

    journal: str
    fragment: str
    labels: tuple[tuple[str, str], ...]
    path_keys: tuple[tuple[str, str], ...]
    # False if they are read for their acknowledgements only.
    emits: bool = True


Message = tuple[int, bytes, MessageUUID | None, Place]
"""Where it begins, its payload, its UUID, and where it is from. A plain tuple, as there is one for each message."""


class RowBuffer:
    """Gives a batch whenever there is enough for one."""

    def __init__(self, schema: pa.Schema, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._data = pa.schema([field for field in schema if field.name not in METADATA])
        # Whether a record is malformed shows in its payload, even if nothing else of it is asked for.
        self._needs_payloads = len(self._data) > 0 or (
            options.mode is not Mode.PERMISSIVE and options.framing in (Framing.JSON, Framing.FIXED)
        )
        self._skips_blanks = options.framing is Framing.JSON
        # Malformed records, by mode DROPMALFORMED.
        self.dropped = 0
        self._clear()

    def _clear(self) -> None:
        self._payloads: list[bytes] = []
        self._begins: list[int] = []
        self._uuids: list[MessageUUID | None] = []
        # How many rows in a row are from the same place.
        self._places: list[tuple[int, Place]] = []
        self._bytes = 0

    def add(
        self,
        payloads: Sequence[bytes],
        begins: Sequence[int],
        uuids: Sequence[MessageUUID | None],
        place: Place,
    ) -> None:
        """`uuids` may be empty if nobody asks for times."""
        # Spark makes no row of a blank line of JSON either.
        if self._skips_blanks and not all(payload.strip() for payload in payloads):
            kept = [at for at, payload in enumerate(payloads) if payload.strip()]
            payloads = [payloads[at] for at in kept]
            begins = [begins[at] for at in kept]
            uuids = [uuids[at] for at in kept] if uuids else uuids
        if not payloads:
            return
        self._payloads.extend(payloads)
        self._begins.extend(begins)
        self._uuids.extend(uuids)
        # Not by offsets: messages of a transaction come after others that were written later.
        self._bytes += sum(map(len, payloads))
        if self._places and self._places[-1][1] is place:
            self._places[-1] = (self._places[-1][0] + len(payloads), place)
        else:
            self._places.append((len(payloads), place))

    def placed(self, begins: pa.Array, values: pa.Array | None, place: Place) -> Iterator[pa.RecordBatch]:
        """Batches of messages without UUIDs, of which each is one value, if that is asked for."""
        for at in range(0, len(begins), BATCH_ROWS):
            part = None if values is None else values.slice(at, BATCH_ROWS)
            yield self._placed(begins.slice(at, BATCH_ROWS), part, place)

    def _placed(self, begins: pa.Array, values: pa.Array | None, place: Place) -> pa.RecordBatch:
        of_lines = {"_offset": begins, "value": values}
        of_many = {MANY[name]: column for name, column in of_lines.items()}
        count = 1 if any(name in of_many for name in self._schema.names) else len(begins)
        columns = []
        for field in self._schema:
            if field.name in of_lines:
                columns.append(conformed(of_lines[field.name], field.type))
            elif field.name in of_many:
                ends = pa.array([0, len(begins)], pa.int32())
                columns.append(pa.ListArray.from_arrays(ends, of_many[field.name], field.type))
            elif field.name == "_timestamp":
                columns.append(pa.nulls(count, field.type))
            else:
                columns.append(_repeated(_of_place(field.name), [(count, place)], field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @property
    def is_full(self) -> bool:
        return self._bytes >= BATCH_BYTES or len(self._begins) >= BATCH_ROWS

    def flush(self) -> pa.RecordBatch | None:
        """What was added, in Spark's own schema; None if that is nothing."""
        if not self._begins:
            return None
        try:
            parsed = parse(self._payloads, self._data, self._options) if self._needs_payloads else Parsed({})
        except MalformedRecordError as error:
            at, record = int(error.args[0]), error.args[1]
            raise MalformedRecordError(
                f"{self._place_of(at).journal} has a malformed record at offset {self._begins[at]}: {record!r}. "
                "Set mode to PERMISSIVE or DROPMALFORMED to read on"
            ) from None
        columns = []
        for field in self._schema:
            column = parsed.columns.get(field.name)
            if column is None:
                column = self._metadata(field)
                if parsed.kept is not None:
                    column = column.take(parsed.kept)
            columns.append(column)
        if parsed.kept is not None:
            self.dropped += len(self._begins) - len(parsed.kept)
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _place_of(self, at: int) -> Place:
        for count, place in self._places:
            if at < count:
                return place
            at -= count
        raise IndexError(at)

    def _metadata(self, field: pa.Field) -> pa.Array:
        match field.name:
            case "_offset":
                return conformed(pa.array(self._begins, pa.int64()), field.type)
            case "_timestamp":
                # A Clock may hold any time up to the year 5236, which microseconds have room for.
                micros = [unix_nanos_of(uuid.clock) // 1000 if uuid and uuid.clock else None for uuid in self._uuids]
                return conformed(pa.array(micros, pa.timestamp("us", "UTC")), field.type)
            case name:
                return _repeated(_of_place(name), self._places, field.type)


def slices(payloads: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where to cut, so that each slice has no more than some bytes, or is one message."""
    begin = held = 0
    for at, length in enumerate(map(len, payloads)):
        if held and held + length > SLICE_BYTES:
            yield begin, at
            begin, held = at, 0
        held += length
    yield begin, len(payloads)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: each costs Spark a good part of a millisecond."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= GATHERED_BYTES:
            yield pa.concat_batches(held) if len(held) > 1 else batch
            held = []
            rows = size = 0
    if held:
        yield pa.concat_batches(held)


def _of_place(name: str) -> Callable[[Place], Any]:
    match name:
        case "_journal":
            return lambda place: place.journal
        case "_fragment":
            return lambda place: place.fragment or None
        case "_labels":
            return lambda place: list(place.labels)
        case _:
            return lambda place: list(place.path_keys)


def _repeated(value: Callable[[Place], Any], places: Sequence[tuple[int, Place]], kind: pa.DataType) -> pa.Array:
    parts = []
    for count, place in places:
        one = value(place)
        parts.append(pa.repeat(pa.scalar(one, kind), count) if isinstance(one, str) else pa.array([one] * count, kind))
    return pa.concat_arrays(parts)
