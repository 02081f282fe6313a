"""The functions that a template may call: comparisons, measures and texts, with the semantics of Go's own.

``and`` and ``or`` are not here, because they do not evaluate all of their arguments; the evaluator has them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from protocol.errors import ValidationError
from protocol.label import LabelSet
from protocol.template.go_format import BeyondSubsetError, sprint, sprintf, sprintln

_HTML = str.maketrans({"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class Builtin:
    call: Callable[..., object]
    least: int
    most: int | None = None
    """None takes any number."""


def truth(value: object) -> bool:
    """Whether ``if`` takes the value for true: unless it is zero, empty or nil. Structs never are."""
    return isinstance(value, LabelSet) or bool(value)


def kind(value: object) -> str:
    """The family of Go types by which values may be compared."""
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case int():
            return "integer"
        case float():
            return "float"
        case str():
            return "string"
        case bytes():
            return "array"
        case _:
            return "slice" if type(value) is tuple else "struct"


_BASIC = frozenset({"bool", "integer", "float", "string"})
_ORDERED = _BASIC - {"bool"}


def equal(left: object, *others: object) -> bool:
    """Whether `left` equals any of the others."""
    if not others:
        raise ValidationError("eq needs two values to compare")
    return any(_same(left, other) for other in others)


def _same(left: object, right: object) -> bool:
    if kind(left) != kind(right) and left is not None and right is not None:
        raise ValidationError(f"cannot compare {kind(left)} with {kind(right)}")
    if kind(left) in _BASIC and kind(right) in _BASIC:
        return left == right
    if _is_nil(left) or _is_nil(right):
        return _is_nil(left) and _is_nil(right)
    if left is None or right is None:
        return False
    if kind(left) == "slice":
        raise ValidationError("lists cannot be compared")
    raise BeyondSubsetError("compares whole objects: compare their fields instead")


def _is_nil(value: object) -> bool:
    """Pointers are false only when nil. A slice may be empty and not nil, but none that we show is."""
    return kind(value) not in _BASIC and not truth(value)


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    def ordered(left: object, right: object) -> bool:
        if kind(left) not in _ORDERED or kind(left) != kind(right):
            raise ValidationError(f"cannot order {kind(left)} and {kind(right)}")
        return compare(left, right)

    return ordered


def length(value: object) -> int:
    match value:
        case str():
            return len(value.encode())
        case bytes():
            return len(value)
        case _ if type(value) is tuple:
            return len(value)
        case _:
            raise ValidationError(f"{kind(value)} has no length")


def index(value: object, *positions: object) -> object:
    """``index x 1 2`` is x[1][2]. Strings are indexed by bytes, as Go has it."""
    if value is None:
        raise ValidationError("nil cannot be indexed")
    for position in positions:
        items: tuple[object, ...] | bytes
        match value:
            case str():
                items = value.encode()
            case bytes():
                items = value
            case _ if type(value) is tuple:
                items = value
            case _:
                raise ValidationError(f"{kind(value)} cannot be indexed")
        value = items[_position(position, len(items) - 1)]
    return value


def slice_of(value: object, *positions: object) -> object:
    """``slice x 1 2`` is x[1:2]."""
    if isinstance(value, str) and len(positions) <= 2:
        data = value.encode()
        begin, end = _range(positions, len(data))
        try:
            return type(value)(data[begin:end].decode())
        except UnicodeDecodeError:
            raise BeyondSubsetError("cuts a character in two") from None
    if type(value) is tuple and len(positions) <= 3:
        # Go may reach beyond the length, into room that a slice happens to have.
        if any(isinstance(position, int) and position > len(value) for position in positions):
            raise BeyondSubsetError("slices beyond the length of a list")
        if len(positions) == 3:
            raise BeyondSubsetError("slices with three positions")
        begin, end = _range(positions, len(value))
        return value[begin:end]
    raise ValidationError(f"{kind(value)} cannot be sliced so")


def _range(positions: tuple[object, ...], size: int) -> tuple[int, int]:
    begin = _position(positions[0], size) if positions else 0
    end = _position(positions[1], size) if len(positions) > 1 else size
    if begin > end:
        raise ValidationError(f"slice from {begin} to {end}, which lies before")
    return begin, end


def _position(position: object, greatest: int) -> int:
    if isinstance(position, bool) or not isinstance(position, int):
        raise ValidationError(f"a position must be an integer, not {kind(position)}")
    if not 0 <= position <= greatest:
        raise ValidationError(f"position {int(position)} is out of range")
    return int(position)


def _joined(values: tuple[object, ...]) -> str:
    return sprint("<no value>" if value is None else value for value in values)


def _printf(form: object, *values: object) -> str:
    if type(form) is not str:
        raise ValidationError(f"printf needs a string for a format, not {kind(form)}")
    return sprintf(form, values)


def _call(*_: object) -> object:
    raise ValidationError("nothing that a template can see is a function to call")


def _js(*_: object) -> object:
    raise BeyondSubsetError("calls js")


BUILTINS = {
    "call": Builtin(_call, 1),
    "js": Builtin(_js, 0),
    "not": Builtin(lambda value: not truth(value), 1, 1),
    "eq": Builtin(equal, 1),
    "ne": Builtin(lambda left, right: not equal(left, right), 2, 2),
    "lt": Builtin(_ordering(operator.lt), 2, 2),
    "le": Builtin(_ordering(operator.le), 2, 2),
    "gt": Builtin(_ordering(operator.gt), 2, 2),
    "ge": Builtin(_ordering(operator.ge), 2, 2),
    "len": Builtin(length, 1, 1),
    "index": Builtin(index, 1),
    "slice": Builtin(slice_of, 1),
    "print": Builtin(lambda *values: sprint(values), 0),
    "println": Builtin(lambda *values: sprintln(values), 0),
    "printf": Builtin(_printf, 1),
    "html": Builtin(lambda *values: _joined(values).translate(_HTML), 0),
    "urlquery": Builtin(lambda *values: quote_plus(_joined(values)), 0),
}
