"""``read_journals``: a DataFrame of journals, narrowed down before anything is read.

It has what a data source cannot have. It is called in the driver's own process, so it can pin offsets and choose
columns there, and it may hand whole fragments to Spark's own reader where that is right and faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's users know it
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from spark_readers.fragment_access import fragment_access
from spark_readers.read_options import Framing, ReadOptions
from spark_readers.row_buffer import MANY, METADATA
from spark_readers.scan import journal_scans, resolve
from spark_readers.session_zone import ZONE
from spark_readers.source import FORMAT, register, schema_of

OffsetMap = Mapping[str, tuple[int, int]]
Columns = str | StructType | Sequence[str]

NATIVE_FILES_MAX = 10_000
# Spark would take these for patterns.
_GLOB = re.compile(r"[*?\[\]{}\\,]").search


def resolve_offsets(**options: object) -> dict[str, tuple[int, int]]:
    """The offsets [begin, end) of each journal that a scan with these options would read if it were planned now.

    The map determines the bytes, whatever is appended, stored or compacted later. Keep it to read them again. Over
    several journals it is no cut that a writer to all of them would recognise: each has its own end.
    """
    return resolve(ReadOptions.parse(_texts(options)))


def read_journals(
    spark: SparkSession,
    *,
    columns: Columns | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    offsets: OffsetMap | None = None,
    **options: object,
) -> DataFrame:
    """Journals as a DataFrame. `options` are those of the data source.

    `columns` are what is read: names, or names with types as in ``"country string, amount double"``. `where` maps path
    keys, such as ``date``, to the values of which fragments are read. `offsets` is what ``resolve_offsets`` returned.
    """
    given = _texts(options)
    if where is not None:
        given["where"] = json.dumps({key: of if isinstance(of, str) else list(of) for key, of in where.items()})
    if offsets is not None:
        given = _pinned(given, offsets)
    parsed = ReadOptions.parse(given)
    if not parsed.time_zone:
        given["timeZone"] = spark.conf.get(ZONE) or "UTC"
    register(spark)
    if _may_be_native(parsed, columns):
        paths = _native_paths(parsed)
        if paths is not None:
            # By default Spark also ends lines at a carriage return.
            return spark.read.option("lineSep", "\n").text(paths)
    reader = spark.read.format(FORMAT).options(**given)
    schema = _schema(parsed, columns)
    if schema is None:
        return reader.load()
    each = _gathered_column(parsed, schema)
    if each is None:
        return reader.schema(schema).load()
    many = reader.schema(_gathered(schema, each)).load()
    spread = F.explode(MANY[each]).alias(each)
    # An alias of what is spread keeps none.
    lines = many.select(*(spread if name == each else name for name in schema.names))
    return lines.withMetadata(each, schema[each].metadata)


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """As Spark would hand them over."""
    texts = {}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif isinstance(value, str):
            texts[name] = value
        elif isinstance(value, Mapping | list | tuple):
            texts[name] = json.dumps(value)
        else:
            texts[name] = str(value)
    return texts


def _pinned(given: dict[str, str], offsets: OffsetMap) -> dict[str, str]:
    taken = {"journal", "journals", "journalpattern", "selector", "startingoffsets", "endingoffsets"}
    taken |= {"startingtimestamp", "endingtimestamp"}
    clash = [name for name in given if name.lower() in taken]
    if clash:
        raise ValidationError("an offset map says this already: leave one of them out", clash[0])
    if not offsets:
        raise ValidationError("expected at least one journal, as of resolve_offsets", "offsets")
    return given | {
        "journals": json.dumps(sorted(offsets)),
        "startingOffsets": json.dumps({journal: begin for journal, (begin, _) in offsets.items()}),
        "endingOffsets": json.dumps({journal: end for journal, (_, end) in offsets.items()}),
    }


def _schema(options: ReadOptions, columns: Columns | None) -> StructType | None:
    """None if the source is to find it out."""
    if columns is None:
        return StructType.fromJson(schema_of(options)) if options.framing is Framing.LINES else None
    if isinstance(columns, StructType):
        return columns
    if isinstance(columns, str):
        columns = [columns]
    if any(re.search(r"\s", column.strip()) for column in columns):
        return cast(StructType, StructType.fromDDL(", ".join(columns)))
    known = {field["name"]: field for field in schema_of(replace(options, include_metadata=True))["fields"]}
    for column in columns:
        if column not in known:
            raise ValidationError(f"no record has a field {column!r}: known are {', '.join(known)}", "columns")
    return StructType.fromJson({"type": "struct", "fields": [known[column] for column in columns]})


def _gathered_column(options: ReadOptions, schema: StructType) -> str | None:
    """The one column with something else for each line, if there is just one: all others tell where lines are from."""
    if options.framing is not Framing.LINES:
        return None
    kinds = {"_offset": (LongType,), "value": (StringType, BinaryType)}
    each = [field for field in schema if field.name in kinds]
    if len(each) != 1 or not isinstance(each[0].dataType, kinds[each[0].name]):
        return None
    others = all(field.name in METADATA and field.name != "_timestamp" for field in schema if field is not each[0])
    return each[0].name if others else None


def _gathered(schema: StructType, each: str) -> StructType:
    """Many lines to a row: to take over a row costs Spark more than to find a line."""
    return StructType(
        [
            StructField(MANY[each], ArrayType(field.dataType, field.nullable)) if field.name == each else field
            for field in schema
        ]
    )


def _may_be_native(options: ReadOptions, columns: Columns | None) -> bool:
    return (
        options.framing is Framing.LINES
        and (columns is None or columns == "value" or list(columns) == ["value"])
        and not options.include_metadata
        and not options.verify_sha1
        and options.fail_on_data_loss
        and (options.path.startswith("file:") or bool(options.file_root))
    )


def _native_paths(options: ReadOptions) -> list[str] | None:
    """The files of a scan, if it is made of whole raw ones; None if any is not.

    Of packed ones Spark's reader takes longer than ours, which verifies their SHA-1 besides: where nothing but a
    newline is to end a line, it looks at each byte twice as long. And those of snappy it takes for text.
    """
    access = fragment_access(options)
    paths: list[str] = []
    for scan in journal_scans(options):
        for piece in scan.pieces:
            of = piece.fragment
            # Whole is what is read, not what one piece of a cut fragment has.
            if of is None or (piece.first, piece.last) != (of.begin, of.end) or of.codec is not CompressionCodec.NONE:
                return None
            if not piece.emits or piece.begin != piece.first:
                continue
            path = access.local_path(of)
            if path is None or _GLOB(str(path)) or len(paths) >= NATIVE_FILES_MAX or not _is_as_long_as_told(of, path):
                return None
            paths.append(f"file://{path}")
    return paths or None


def _is_as_long_as_told(of: Fragment, path: Path) -> bool:
    try:
        return path.stat().st_size == of.content_length
    except OSError:
        return False
