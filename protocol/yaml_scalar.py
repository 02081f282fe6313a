"""What a plain YAML scalar reads as: the rules of the YAML library that Gazette's tools are built with.

They are those of YAML 1.1 without base-60 numbers, and as long as ours are the same, a file means the same to
both programs: ``yes`` is true, ``0x1F`` and ``010`` are numbers, ``1.0`` will do for an integer.
"""

from __future__ import annotations

import re
from calendar import monthrange
from math import inf, isinf, nan

Resolved = None | bool | int | float | str

_WORDS: dict[str, Resolved] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -inf),
}

# A leading zero makes a number octal, or, with an 8 or 9 in it, a float.
_INTEGER = re.compile(
    r"([-+]?)(?:0[xX](?P<hexadecimal>[0-9a-fA-F]{1,16})|0[bB](?P<binary>[01]{1,64})|0[oO]?(?P<octal>[0-7]{1,22})"
    r"|(?P<decimal>0|[1-9][0-9]{0,19}))"
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}
_DIGITS = "[0-9]+(?:_[0-9]+)*"
_FLOAT = re.compile(rf"[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?{_DIGITS})?")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:(?:[Tt]| +)([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


def resolve(text: str) -> Resolved:
    """The null, truth value or number that the plain scalar `text` stands for, or else `text` itself."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        return _float(text, text)
    if text[0] not in "+-0123456789":
        return text
    digits = text.replace("_", "")
    found = _INTEGER.fullmatch(digits)
    if found is None:
        return _float(digits, text)
    base = found.lastgroup or "decimal"
    number = int(found[1] + found[base], _BASES[base])
    return number if -(1 << 63) <= number < 1 << 64 else _float(digits, text)


def reads_as_text(text: str) -> bool:
    """Whether a plain `text` is read back as itself, here and by other programs: if not, it wants quotes."""
    return isinstance(resolve(text), str) and not _is_timestamp(text) and not _BASE_60.fullmatch(text)


def _float(digits: str, text: str) -> float | str:
    """Too large a number is no number but a text."""
    if not _FLOAT.fullmatch(digits) or isinf(number := float(digits)):
        return text
    return number


def _is_timestamp(text: str) -> bool:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return False
    year, month, day, hour, minute, second = (int(found[group] or 0) for group in range(1, 7))
    # The form with a T has a zone, the one with a blank has none.
    if found[4] and (text[found.end(3)] == " ") is (found[7] is not None):
        return False
    # Years recur every 400; the calendar module knows none before the first.
    return (
        1 <= month <= 12
        and 1 <= day <= monthrange(year % 400 + 400, month)[1]
        and hour < 24
        and max(minute, second) < 60
    )
