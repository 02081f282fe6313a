"""A schema from a sample of JSON records, in the JSON form of Spark's own.

The types are those that ``spark.read.json`` finds: numbers without a point are long, others double, what differs from
record to record is string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from consumer.message import json_framing
from protocol.errors import ValidationError

_DEPTH_MAX = 32
_NULL = "void"


def infer(lines: Iterable[bytes], malformed_column: str = "") -> dict[str, Any]:
    """Malformed records do not take part, but may be shown in a column of their own. Without any record there are no
    columns."""
    kind: Any = {"type": "struct", "fields": {}}
    malformed = {"type": "struct", "fields": {malformed_column: "string"} if malformed_column else {}}
    for line in lines:
        if not line.strip():
            continue
        try:
            document = json_framing.parse(line)
        except ValidationError:
            document = ()
        if isinstance(document, dict):
            kind = _merged(kind, _kind(document, 0))
        elif document is not None:
            kind = _merged(kind, malformed)
    closed: dict[str, Any] = _closed(kind)
    return closed


def _kind(value: object, depth: int) -> Any:
    match value:
        case None:
            return _NULL
        case bool():
            return "boolean"
        case int():
            return "long" if -(1 << 63) <= value < 1 << 63 else "double"
        case float():
            return "double"
        case dict() if depth < _DEPTH_MAX:
            return {"type": "struct", "fields": {name: _kind(of, depth + 1) for name, of in value.items()}}
        case list() if depth < _DEPTH_MAX:
            kind: Any = _NULL
            for element in value:
                kind = _merged(kind, _kind(element, depth + 1))
            return {"type": "array", "elementType": kind}
        case _:
            return "string"


def _merged(one: Any, other: Any) -> Any:
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    if isinstance(one, dict) and isinstance(other, dict) and one["type"] == other["type"]:
        if one["type"] == "array":
            return {"type": "array", "elementType": _merged(one["elementType"], other["elementType"])}
        fields = dict(one["fields"])
        for name, kind in other["fields"].items():
            fields[name] = _merged(fields.get(name, _NULL), kind)
        return {"type": "struct", "fields": fields}
    return "double" if {str(one), str(other)} == {"long", "double"} else "string"


def _closed(kind: Any) -> Any:
    """As Spark reads it: fields by name, and text where nothing but null was seen."""
    if not isinstance(kind, dict):
        return "string" if kind == _NULL else kind
    if kind["type"] == "array":
        return {"type": "array", "elementType": _closed(kind["elementType"]), "containsNull": True}
    fields = [
        {"name": name, "type": _closed(of), "nullable": True, "metadata": {}}
        for name, of in sorted(kind["fields"].items())
        # A struct without fields is no type of Spark's.
        if not (isinstance(of, dict) and of["type"] == "struct" and not of["fields"])
    ]
    return {"type": "struct", "fields": fields}
