"""Durations: whole nanoseconds, and the text form of Go that people write and read.

A duration is an ``int`` of nanoseconds everywhere in this project. No float takes part on the way in or out,
so what is printed is what was meant.
"""

from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration

from protocol.errors import ValidationError

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

MIN, MAX = -(1 << 63), (1 << 63) - 1
"""What Go can hold, a little over 292 years either way."""

_UNITS = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,  # U+00B5, the micro sign, which is also the one we print
    "μs": MICROSECOND,  # U+03BC, the Greek letter, which many keyboards give
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_TERM = re.compile(rf"([0-9]*)(?:\.([0-9]*))?({'|'.join(sorted(_UNITS, key=len, reverse=True))})")

# Far more than a duration needs, and few enough digits that no text can keep us busy.
_CHARS_MAX = 256


def parse(text: str) -> int:
    """The nanoseconds of a text such as ``1h30m`` or ``-1.5s``. What is finer than a nanosecond is cut off.

    >>> parse("1m0.25s")
    60250000000
    """
    unsigned = text[1:] if text.startswith(("-", "+")) else text
    if unsigned == "0":
        return 0
    if not unsigned or len(text) > _CHARS_MAX:
        raise _refused(text)
    magnitude = at = 0
    while at < len(unsigned):
        term = _TERM.match(unsigned, at)
        if term is None or not (term[1] or term[2]):
            raise _refused(text)
        whole, fraction, unit = term[1] or "0", term[2] or "0", _UNITS[term[3]]
        magnitude += int(whole) * unit + int(fraction) * unit // 10 ** len(fraction)
        at = term.end()
    nanoseconds = -magnitude if text[0] == "-" else magnitude
    if not MIN <= nanoseconds <= MAX:
        raise ValidationError(f"{text[:40]!r} is longer than the 292 years a duration can be")
    return nanoseconds


def to_text(nanoseconds: int) -> str:
    """The canonical text: hours, minutes and seconds, or below a second the one unit that fits.

    >>> to_text(90 * MINUTE), to_text(1_500_000), to_text(0)
    ('1h30m0s', '1.5ms', '0s')
    """
    sign, magnitude = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if magnitude == 0:
        return "0s"
    if magnitude < MICROSECOND:
        return f"{sign}{magnitude}ns"
    if magnitude < MILLISECOND:
        return f"{sign}{_decimal(magnitude, MICROSECOND)}µs"
    if magnitude < SECOND:
        return f"{sign}{_decimal(magnitude, MILLISECOND)}ms"
    minutes, rest = divmod(magnitude, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, SECOND)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def from_proto(message: Duration) -> int:
    return message.seconds * SECOND + message.nanos


def to_proto(nanoseconds: int) -> Duration:
    """A message whose two parts have one sign, as protobuf demands."""
    seconds, nanos = divmod(abs(nanoseconds), SECOND)
    return Duration(seconds=seconds, nanos=nanos) if nanoseconds >= 0 else Duration(seconds=-seconds, nanos=-nanos)


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0")


def _refused(text: str) -> ValidationError:
    return ValidationError(f"expected a duration such as 30s, 5m or 1h30m (got {text[:40]!r})")
