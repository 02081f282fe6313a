"""Frames of one JSON document per line; ``LineDecoder`` finds them.

The decoder passes every line on, empty ones as well: only ``parse`` can tell a document from something else,
and its caller decides whether to stop at a bad line or to go on.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal

from protocol.errors import ValidationError

# Gazette escapes what would end a script or a line if the document were pasted into a web page.
_ESCAPES = [(symbol, f"\\u{ord(symbol):04x}") for symbol in "<>&\u2028\u2029"]


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# A number that Python and Go may spell differently; there may be one within a string, too.
_may_hold_odd_number = re.compile(r"[0-9](?:\.0\b|e[+-])").search
_STRING_OR_NUMBER = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.e+-]*+')


def encode(document: object) -> bytes:
    """The document in one line. Keys keep their order: put the UUID first where people read along.

    >>> encode({"UUID": "…", "who": "A & B"})
    b'{"UUID":"\\xe2\\x80\\xa6","who":"A \\\\u0026 B"}\\n'
    """
    return line_of(text_of(document))


def text_of(document: object) -> str:
    """The document in one line, with numbers as Python spells them."""
    try:
        text = _ENCODER.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"cannot be written as JSON: {str(error)[:128]}") from None
    # These can only be inside of strings, so the text may be treated as a whole.
    for symbol, escape in _ESCAPES:
        text = text.replace(symbol, escape)
    return text


def line_of(text: str) -> bytes:
    """As a frame: what ``text_of`` has made, or one document out of it, as many are made faster in one text."""
    if _may_hold_odd_number(text):
        text = _STRING_OR_NUMBER.sub(_spelled_as_go, text)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise ValidationError(f"cannot be written as JSON: {str(error)[:128]}") from None


def parse(line: bytes) -> object:
    """The document of one line, with or without its newline.

    As Gazette does, this reads invalid UTF-8 within strings as U+FFFD and refuses NaN, infinities and a byte
    order mark.
    """
    # One half of a surrogate pair could not be encoded again.
    may_hold_surrogates = b"\\ud" in line or b"\\uD" in line
    try:
        document: object = _DECODER.decode(line.decode(errors="replace"))
        return _without_surrogates(document) if may_hold_surrogates else document
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"expected one JSON document: {str(error)[:128]}") from None


def _spelled_as_go(found: re.Match[str]) -> str:
    """A float in Go's spelling: digits alone from a millionth up, no padding in exponents.

    From 2^53 to 1e21 Go writes digits as well. Python would read them as another number, an integer, so there
    the exponent stays.
    """
    text = found[0]
    if text[0] == '"' or not ("." in text or "e" in text):
        return text
    magnitude = abs(float(text))
    if magnitude and not 1e-6 <= magnitude < 1 << 53:
        return text.replace("e-0", "e-")
    return f"{Decimal(text):f}".removesuffix(".0")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _without_surrogates(document: object) -> object:
    match document:
        case str():
            return document.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case list():
            return [_without_surrogates(element) for element in document]
        case dict():
            return {_without_surrogates(key): _without_surrogates(value) for key, value in document.items()}
        case _:
            return document
