"""Which JSON a column takes, as Spark's own reader has it, in DuckDB's SQL.

DuckDB casts where it can: to it 1.5 is a fine integer. Spark takes a value only if its JSON type is the column's, and
calls the record malformed otherwise. Wherever that matters, what was cast is held against what is written there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

_INTEGERS = ("BIGINT", "UBIGINT")
_NUMBERS = (*_INTEGERS, "DOUBLE")
# The texts that Spark takes for a number.
_NAMED_NUMBERS = ("NaN", "+INF", "INF", "+Infinity", "Infinity", "-INF", "-Infinity")


class Checked(NamedTuple):
    """SQL: the value, NULL wherever it does not fit, and the conditions under which it does not."""

    value: str
    misfits: Sequence[str]


def checked(record: str, name: str, kind: pa.DataType, value: str) -> Checked:
    """`value` is what DuckDB made of the field `name` of `record`, a column with JSON objects, or NULL."""
    return _checked(record, _pointer(name), kind, value)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def any_of(conditions: Sequence[str]) -> str:
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _checked(record: str, pointer: str, kind: pa.DataType, value: str) -> Checked:
    found = f"coalesce(json_type({record}, {literal(pointer)}), 'NULL')"
    if pa.types.is_struct(kind):
        # What fits of it is kept.
        parts = {
            field.name: _checked(record, pointer + _pointer(field.name), field.type, f"{value}.{quoted(field.name)}")
            for field in kind
        }
        packed = ", ".join(f"{quoted(name)} := {part.value}" for name, part in parts.items())
        misfits = [f"{found} NOT IN ('OBJECT', 'NULL')", *(one for part in parts.values() for one in part.misfits)]
        return Checked(f"CASE WHEN {found} = 'OBJECT' THEN struct_pack({packed}) END", misfits)
    misfits = [f"{value} IS NULL AND {found} <> 'NULL'", *_elements(record, pointer, kind)]
    taken = _taken(kind)
    if taken is not None:
        misfits.append(f"{found} NOT IN ({_list((*taken, 'NULL'))})")
    if pa.types.is_floating(kind):
        text = f"json_extract_string({record}, {literal(pointer)})"
        misfits[-1] = f"{misfits[-1]} AND NOT ({found} = 'VARCHAR' AND {text} IN ({_list(_NAMED_NUMBERS)}))"
    return Checked(f"CASE WHEN {any_of(misfits)} THEN NULL ELSE {value} END", misfits)


def _elements(record: str, pointer: str, kind: pa.DataType) -> Iterator[str]:
    """Of lists and maps: all their elements at once, by a path with a wildcard."""
    steps = pointer.removeprefix("/").replace("~1", "/").replace("~0", "~")
    # Paths have no way to write a quote, and a name with a slash in it is not told from two.
    if '"' in steps or "~1" in pointer:
        return
    path = "$" + "".join(f'."{step}"' for step in steps.split("/"))
    for wildcards, element in _inner(kind):
        taken = _taken(element)
        if taken is not None:
            types = f"json_type({record}, {literal(path + wildcards)})"
            yield f"NOT list_has_all([{_list((*taken, 'NULL'))}], {types})"


def _inner(kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_map(kind):
        inner, step = kind.item_type, ".*"
    elif pa.types.is_list(kind):
        inner, step = kind.value_type, "[*]"
    elif pa.types.is_struct(kind):
        for field in kind:
            if '"' not in field.name:
                yield f'."{field.name}"', field.type
                yield from ((f'."{field.name}"' + deeper, of) for deeper, of in _inner(field.type))
        return
    else:
        return
    yield step, inner
    yield from ((step + deeper, of) for deeper, of in _inner(inner))


def _taken(kind: pa.DataType) -> Sequence[str] | None:
    """The JSON types that a column takes; None if it takes any."""
    if pa.types.is_boolean(kind):
        return ("BOOLEAN",)
    if pa.types.is_integer(kind):
        return _INTEGERS
    if pa.types.is_floating(kind):
        return _NUMBERS
    if pa.types.is_decimal(kind):
        return (*_NUMBERS, "VARCHAR")
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return ("OBJECT",)
    if pa.types.is_list(kind):
        return ("ARRAY",)
    return None if pa.types.is_string(kind) else ("VARCHAR",)


def _list(words: Sequence[str]) -> str:
    return ", ".join(map(literal, words))
