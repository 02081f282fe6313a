"""Messages to columns: DuckDB reads JSON and casts CSV, in the worker, one connection a process."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

from consumer.message import csv_framing
from protocol.errors import CorruptError, ValidationError
from spark_readers.json_types import any_of, checked, literal, quoted
from spark_readers.message_batches import Garbage
from spark_readers.proto_columns import message_class, plain
from spark_readers.read_options import Framing, Mode, ReadOptions

CORRUPT_RECORD = "_corrupt_record"
MEMORY_LIMIT = "512MB"
"""DuckDB's own default is most of the machine, for each worker."""
READER_ROWS = 16_384


class MalformedRecordError(CorruptError):
    """A record that is not what the framing and the schema say, in a scan that was told to stop there."""


class Parsed(NamedTuple):
    """Columns by name, and which of the records they are of: None if all."""

    columns: dict[str, pa.Array]
    kept: pa.Array | None = None


def connection(time_zone: str) -> duckdb.DuckDBPyConnection:
    """That of this process. With one thread: Spark has as many workers as there are cores."""
    if not _OF_PROCESS or _OF_PROCESS[0][0] != os.getpid():
        opened = duckdb.connect(config={"threads": 1, "memory_limit": MEMORY_LIMIT})
        # Nobody looks at a worker's terminal: it would fill its log.
        opened.execute("SET enable_progress_bar = false")
        _OF_PROCESS[:] = [(os.getpid(), opened, "")]
    process, opened, zone = _OF_PROCESS[0]
    if zone != time_zone:
        # Java also has offsets without a name.
        name = "UTC" if time_zone in ("", "Z") else f"GMT{time_zone}" if time_zone[0] in "+-" else time_zone
        try:
            opened.execute(f"SET TimeZone = {literal(name)}")
        except duckdb.Error as error:
            raise ValidationError(
                f"{time_zone} is no time zone that is known here: expected one such as Europe/Berlin", "timeZone"
            ) from error
        _OF_PROCESS[:] = [(process, opened, time_zone)]
    return opened


# With the time zone that it is set to.
_OF_PROCESS: list[tuple[int, duckdb.DuckDBPyConnection, str]] = []


def parse(payloads: Sequence[bytes], schema: pa.Schema, options: ReadOptions) -> Parsed:
    """`schema` has the columns that come from messages, and perhaps ``_corrupt_record``."""
    match options.framing:
        case Framing.JSON:
            return _parse_json(payloads, schema, options)
        case Framing.CSV:
            return _parse_csv(payloads, schema, options)
        case Framing.FIXED if options.descriptor_file:
            return _parse_proto(payloads, schema, options)
        case Framing.FIXED:
            return _parse_frames(payloads, schema, options.mode)
        case _:
            return Parsed({field.name: _values(payloads, field) for field in schema})


def check_value_schema(schema: pa.Schema, framing: Framing) -> None:
    """Of framings whose messages are one value."""
    for field in schema:
        if framing is Framing.FIXED and field.name == CORRUPT_RECORD and field.type == pa.string():
            continue
        if field.name != "value" or field.type not in (pa.string(), pa.binary()):
            raise ValidationError(
                f"expected a column value of type string or binary, besides those of metadata (got {field.name}): "
                "set framing to json or csv to have messages parsed",
                "schema",
            )


def _values(payloads: Sequence[bytes], field: pa.Field) -> pa.Array:
    return pa.array(payloads, pa.binary()) if field.type == pa.binary() else texts(payloads)


def texts(payloads: Sequence[bytes]) -> pa.Array:
    """As Spark reads them: what is not UTF-8 becomes U+FFFD."""
    found = _utf8(payloads)
    if found is None:
        return pa.array([payload.decode(errors="replace") for payload in payloads], pa.string())
    return found


def _utf8(payloads: Sequence[bytes]) -> pa.Array | None:
    """None if one of them is none."""
    try:
        return pa.array(payloads, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return None


def is_utf8(data: bytes) -> bool:
    """Told without a string of it, which takes four bytes for each if one letter needs them."""
    ends = pa.py_buffer(struct.pack("=2i", 0, len(data)))
    try:
        pa.StringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def duckdb_type(of: pa.DataType, zoned: str = "TIMESTAMPTZ") -> str:
    """`zoned` is what becomes of times with a zone."""
    for kind, name in _DUCKDB_TYPES:
        if of == kind:
            return name
    if pa.types.is_timestamp(of):
        return "TIMESTAMP" if of.tz is None else zoned
    if pa.types.is_decimal(of):
        return f"DECIMAL({of.precision},{of.scale})"
    if pa.types.is_map(of):
        return f"MAP({duckdb_type(of.key_type, zoned)},{duckdb_type(of.item_type, zoned)})"
    if pa.types.is_list(of):
        return f"{duckdb_type(of.value_type, zoned)}[]"
    if pa.types.is_struct(of):
        return f"STRUCT({', '.join(f'{quoted(field.name)} {duckdb_type(field.type, zoned)}' for field in of)})"
    raise ValidationError(f"no message can be read into a column of type {of}: choose another", "schema")


def _json_type(of: pa.DataType) -> str:
    """As which DuckDB reads it from JSON: times as texts, as its reader of JSON takes those without a zone for UTC."""
    return duckdb_type(of, "VARCHAR")


def _cast(value: str, of: pa.DataType) -> str:
    return value if _json_type(of) == duckdb_type(of) else f"TRY_CAST({value} AS {duckdb_type(of)})"


_DUCKDB_TYPES = (
    (pa.string(), "VARCHAR"),
    (pa.int64(), "BIGINT"),
    (pa.int32(), "INTEGER"),
    (pa.int16(), "SMALLINT"),
    (pa.int8(), "TINYINT"),
    (pa.float64(), "DOUBLE"),
    (pa.float32(), "FLOAT"),
    (pa.bool_(), "BOOLEAN"),
    (pa.date32(), "DATE"),
    # In JSON as base64, as Spark has it.
    (pa.binary(), "VARCHAR"),
)


def _parse_json(payloads: Sequence[bytes], schema: pa.Schema, options: ReadOptions) -> Parsed:
    data = [field for field in schema if field.name != CORRUPT_RECORD]
    wants_record = len(data) < len(schema)
    structure = json.dumps({field.name: _json_type(field.type) for field in data})
    checks = wants_record or options.mode is not Mode.PERMISSIVE
    values = [_cast(f"s.{quoted(field.name)}", field.type) for field in data]
    query = "SELECT line, shown, n, line AS record FROM lines"
    misfits: list[str] = []
    if checks:
        # What has no type is no JSON at all; and only what is an object can be asked for its fields.
        query = (
            "SELECT line, shown, n, CASE WHEN coalesce(try(json_type(line)), '') = 'OBJECT' THEN line END AS record "
            "FROM lines"
        )
        found = [checked("record", field.name, field.type, value) for field, value in zip(data, values, strict=True)]
        values = [of.value for of in found]
        misfits = ["record IS NULL", *(one for of in found for one in of.misfits)]
    transformed = f"try(json_transform(record, {literal(structure)}))" if data else "NULL"
    columns = [
        f"{'from_base64' if field.type == pa.binary() else ''}({value}) AS c{at}"
        for at, (field, value) in enumerate(zip(data, values, strict=True))
    ]
    if checks:
        columns += [f"{any_of(misfits)} AS malformed", "n", "shown AS line"]
    table = _json_lines(payloads)
    queried = _queried(
        f"SELECT {', '.join(columns)} FROM (SELECT *, {transformed} AS s FROM ({query}))", table, options
    )
    return _by_mode(queried, data, schema, options.mode, checks, wants_record)


def _json_lines(payloads: Sequence[bytes]) -> pa.Table:
    """What is not UTF-8 is no JSON, as DuckDB's reader of files has it: there is something to show of it, and NULL to
    read."""
    lines = shown = _utf8(payloads)
    if lines is None:
        shown = texts(payloads)
        lines = pa.array([payload.decode() if is_utf8(payload) else None for payload in payloads], pa.string())
    return pa.table({"line": lines, "shown": shown, "n": pa.array(range(len(payloads)), pa.int64())})


def _by_mode(
    found: pa.Table, data: Sequence[pa.Field], schema: pa.Schema, mode: Mode, checks: bool, wants_record: bool
) -> Parsed:
    kept = None
    record = None
    if checks:
        malformed = found["malformed"].combine_chunks()
        if mode is Mode.FAILFAST and malformed.true_count:
            at = malformed.index(True).as_py()
            raise MalformedRecordError(str(found["n"][at]), found["line"][at].as_py()[:200])
        if mode is Mode.DROPMALFORMED and malformed.true_count:
            found = found.filter(pa.compute.invert(malformed))
            malformed = found["malformed"].combine_chunks()
            kept = found["n"].combine_chunks()
        if wants_record:
            record = pa.compute.if_else(malformed, found["line"].combine_chunks(), pa.scalar(None, pa.string()))
    columns = {field.name: conformed(found[f"c{at}"].combine_chunks(), field.type) for at, field in enumerate(data)}
    if record is not None:
        columns[CORRUPT_RECORD] = record
    return Parsed({field.name: columns[field.name] for field in schema}, kept)


def _queried(query: str, lines: pa.Table, options: ReadOptions) -> pa.Table:
    opened = connection(options.time_zone)
    opened.register("lines", lines)
    try:
        return opened.sql(query).to_arrow_table()
    finally:
        opened.unregister("lines")


def conformed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Exactly of the type that Spark expects."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == wanted else column.cast(wanted)


def _parse_csv(payloads: Sequence[bytes], schema: pa.Schema, options: ReadOptions) -> Parsed:
    data = [field for field in schema if field.name != CORRUPT_RECORD]
    wants_record = len(data) < len(schema)
    rows: list[list[str | None]] = []
    wrong: list[bool] = []
    for payload in payloads:
        try:
            fields = csv_framing.parse(payload, None)
            bad = len(fields) != len(data) or type(payload) is Garbage
        except ValidationError:
            fields, bad = [], True
        # As Spark does: an empty field is no value, a record with too few or too many fields is malformed.
        padded: list[str | None] = [field or None for field in fields[: len(data)]]
        rows.append(padded + [None] * (len(data) - len(padded)))
        wrong.append(bad)
    table = {f"r{at}": pa.array([row[at] for row in rows], pa.string()) for at in range(len(data))}
    table |= {
        "line": texts(payloads),
        "n": pa.array(range(len(payloads)), pa.int64()),
        "bad": pa.array(wrong, pa.bool_()),
    }
    casts = [f"TRY_CAST(r{at} AS {duckdb_type(field.type)}) AS c{at}" for at, field in enumerate(data)]
    mismatches = [f"c{at} IS NULL AND r{at} IS NOT NULL" for at in range(len(data))]
    query = f"SELECT *, bad OR {any_of(mismatches)} AS malformed FROM (SELECT {', '.join([*casts, '*'])} FROM lines)"
    return _by_mode(_queried(query, pa.table(table), options), data, schema, options.mode, True, wants_record)


def _parse_proto(payloads: Sequence[bytes], schema: pa.Schema, options: ReadOptions) -> Parsed:
    kind = message_class(options.descriptor_file, options.message_name)
    names = {field.name for field in schema if field.name != CORRUPT_RECORD}
    unknown = names - set(kind.DESCRIPTOR.fields_by_name)
    if unknown:
        raise ValidationError(f"{options.message_name} has no field {min(unknown)}", "schema")
    return _frame_by_frame(payloads, schema, options.mode, lambda payload: plain(kind.FromString(payload), names))


def _parse_frames(payloads: Sequence[bytes], schema: pa.Schema, mode: Mode) -> Parsed:
    if not any(type(payload) is Garbage for payload in payloads) and CORRUPT_RECORD not in schema.names:
        return Parsed({field.name: _values(payloads, field) for field in schema})
    as_text = any(field.name == "value" and field.type == pa.string() for field in schema)
    return _frame_by_frame(
        payloads, schema, mode, lambda payload: {"value": payload.decode(errors="replace") if as_text else payload}
    )


def _frame_by_frame(
    payloads: Sequence[bytes], schema: pa.Schema, mode: Mode, row_of: Callable[[bytes], Mapping[str, object]]
) -> Parsed:
    rows: list[Mapping[str, object]] = []
    kept: list[int] = []
    for at, payload in enumerate(payloads):
        try:
            if type(payload) is Garbage:
                raise CorruptError("no frame begins here")
            rows.append(row_of(payload))
        except Exception as error:
            if mode is Mode.FAILFAST:
                raise MalformedRecordError(str(at), f"{payload[:64].hex()} ({error})") from error
            if mode is Mode.DROPMALFORMED:
                continue
            # Arrow has no text for bytes that are none, so what is told of them is their digits.
            rows.append({CORRUPT_RECORD: payload.hex()})
        kept.append(at)
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    return Parsed(columns, pa.array(kept, pa.int64()) if len(kept) < len(payloads) else None)


_COMPRESSION = {".raw": "none", ".gz": "gzip", ".zst": "zstd"}


def read_json_file(path: str, suffix: str, schema: pa.Schema, time_zone: str) -> Iterator[pa.RecordBatch]:
    """A whole file of JSON lines by DuckDB's own reader, the fastest there is. Malformed lines are rows of NULLs."""
    columns = ", ".join(f"{literal(field.name)}: {literal(_json_type(field.type))}" for field in schema)
    values = ", ".join(_cast(quoted(field.name), field.type) for field in schema)
    query = (
        f"SELECT {values} FROM read_json({literal(_unglobbed(path))}, "
        f"columns={{{columns}}}, format='newline_delimited', compression='{_COMPRESSION[suffix]}', ignore_errors=true, "
        "maximum_object_size=67108864)"
    )
    for batch in connection(time_zone).sql(query).to_arrow_reader(READER_ROWS):
        arrays = [conformed(batch.column(at), field.type) for at, field in enumerate(schema)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _unglobbed(path: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
