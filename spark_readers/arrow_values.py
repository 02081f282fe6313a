"""Values of Arrow columns as JSON and CSV have them.

They are spelled as Spark's ``to_json`` spells them, but for decimals: those become texts, as most readers of JSON
would take a number for a float, and lose digits.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from protocol.errors import ValidationError

Spelling = Callable[[Any], Any]


def json_values(column: pa.Array) -> list[Any]:
    """What ``json_framing`` can encode, None where there is nothing."""
    spelling = json_spelling(column.type)
    values: list[Any] = column.to_pylist()
    if spelling is None:
        return values
    return [None if value is None else spelling(value) for value in values]


def csv_values(column: pa.Array) -> list[str]:
    """Texts, empty where there is nothing."""
    if pa.types.is_nested(column.type):
        raise ValidationError(f"CSV has no place for {column.type}: make a text of it by to_json, or write json")
    return ["" if value is None else _text(value) for value in json_values(column)]


def key_values(column: pa.Array) -> list[bytes | None]:
    """What a row is mapped by: a text as UTF-8, bytes as they are, anything else as CSV has it."""
    if _is_binary(column.type):
        raw: list[bytes | None] = column.to_pylist()
        return raw
    return [None if value is None else _text(value).encode() for value in json_values(column)]


def json_spelling(kind: pa.DataType) -> Spelling | None:
    """How a value of this type is put; None if it goes as it is."""
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind) or _is_text(kind) or types.is_null(kind):
        return None
    if types.is_floating(kind):
        return _float
    if types.is_decimal(kind):
        return _decimal
    if types.is_timestamp(kind):
        return _timestamp
    if types.is_date(kind):
        return date.isoformat
    if _is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(json_spelling(kind.value_type))
    if types.is_map(kind):
        return _map(json_spelling(kind.item_type))
    if types.is_struct(kind):
        return _struct({field.name: json_spelling(field.type) for field in kind})
    raise ValidationError(f"values of type {kind} cannot be written: cast the column to string")


def _is_text(kind: pa.DataType) -> bool:
    # Large where spark.sql.execution.arrow.useLargeVarTypes is set.
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return f"{value:f}"


def _timestamp(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _list(element: Spelling | None) -> Spelling | None:
    if element is None:
        return None
    return lambda values: [None if value is None else element(value) for value in values]


def _map(item: Spelling | None) -> Spelling:
    def spelled(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        return {_text(key): item(value) if item and value is not None else value for key, value in pairs}

    return spelled


def _struct(fields: dict[str, Spelling | None]) -> Spelling:
    def spelled(values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: spelling(values[name]) if spelling else values[name]
            for name, spelling in fields.items()
            if values[name] is not None
        }

    return spelled


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return _timestamp(value) if isinstance(value, datetime) else value.isoformat()
    return str(value)
