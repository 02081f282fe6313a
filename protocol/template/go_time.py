"""Times, durations and their texts as Go has them: a layout shows how the reference time would be written.

That time is Mon Jan 2 15:04:05 MST 2006. Only UTC is here, because the time that a template sees, that of a
spool's first append, is in UTC always.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from protocol import duration
from protocol.errors import ValidationError
from protocol.template.go_format import Enumerated, Stringer

ZERO_NS = -62_135_596_800 * 10**9
"""Go's zero time, the first instant of year 1, in nanoseconds since 1970."""

_DAY_S = 86_400
_UNIX_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()

# At one position, the first alternative that fits. An abbreviation does not count if a lower-case letter
# follows ("Janet"), and a fraction of a second not if another digit does.
_TOKEN = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|PM|pm"
    r"|2006|002|__2|_2(?!006)|15|0[1-6]|[1-5]"
    r"|[-Z]07(?::00:00|0000|:00|00|)"
    r"|[.,](?:0+|9+)(?![0-9])"
)


class Month(Enumerated):
    names: ClassVar = dict(
        enumerate(
            (
                *("January", "February", "March", "April", "May", "June"),
                *("July", "August", "September", "October", "November", "December"),
            ),
            start=1,
        )
    )


class Weekday(Enumerated):
    names: ClassVar = dict(enumerate(("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")))


@dataclass(frozen=True, slots=True)
class UtcTime(Stringer):
    """An instant between the years 1 and 9999.

    >>> UtcTime(1_767_323_045_678_901_234).format("date=2006-01-02/hour=15")
    'date=2026-01-02/hour=03'
    """

    unix_ns: int

    def text(self) -> str:
        return self.format("2006-01-02 15:04:05.999999999 -0700 MST")

    def format(self, layout: str) -> str:
        return _TOKEN.sub(lambda found: self._written(found[0]), layout)

    def _date(self) -> date:
        try:
            return date.fromordinal(_UNIX_EPOCH_ORDINAL + self.unix_s() // _DAY_S)
        except (ValueError, OverflowError):
            raise ValidationError("a time must lie between the years 1 and 9999") from None

    def year(self) -> int:
        return self._date().year

    def month(self) -> Month:
        return Month(self._date().month)

    def day(self) -> int:
        return self._date().day

    def year_day(self) -> int:
        return self._date().timetuple().tm_yday

    def weekday(self) -> Weekday:
        return Weekday(self._date().isoweekday() % 7)

    def hour(self) -> int:
        return self.unix_s() % _DAY_S // 3600

    def minute(self) -> int:
        return self.unix_s() % 3600 // 60

    def second(self) -> int:
        return self.unix_s() % 60

    def nanosecond(self) -> int:
        return self.unix_ns % 10**9

    def unix_s(self) -> int:
        return self.unix_ns // 10**9

    def unix_ns_wrapped(self) -> int:
        """As Go has it for a time that 64 bits of nanoseconds cannot hold, such as the zero time."""
        return (self.unix_ns + 2**63) % 2**64 - 2**63

    def _written(self, token: str) -> str:  # noqa: C901, one line for each element of a layout
        match token:
            case "2006":
                return f"{self.year():04d}"
            case "06":
                return f"{self.year() % 100:02d}"
            case "January":
                return self.month().text()
            case "Jan":
                return self.month().text()[:3]
            case "1" | "01":
                return _digits(self.month(), token)
            case "2" | "02" | "_2":
                return _digits(self.day(), token)
            case "002" | "__2":
                return _digits(self.year_day(), token)
            case "Monday":
                return self.weekday().text()
            case "Mon":
                return self.weekday().text()[:3]
            case "15":
                return f"{self.hour():02d}"
            case "3" | "03":
                return _digits(self.hour() % 12 or 12, token)
            case "4" | "04":
                return _digits(self.minute(), token)
            case "5" | "05":
                return _digits(self.second(), token)
            case "PM":
                return "PM" if self.hour() >= 12 else "AM"
            case "pm":
                return "pm" if self.hour() >= 12 else "am"
            case "MST":
                return "UTC"
            case _ if token[0] == "Z":
                return "Z"
            case _ if token[0] == "-":
                return "+" + token[1:].replace("7", "0")
            case _:
                return self._fraction(token)

    def _fraction(self, token: str) -> str:
        """``.000`` keeps as many digits as it has; ``.999`` drops zeros at the end, and the point with them."""
        digits = f"{self.nanosecond():09d}"[: len(token) - 1]
        if token[1] == "9":
            digits = digits.rstrip("0")
        return token[0] + digits if digits else ""


class Duration(int, Stringer):
    """Nanoseconds.

    >>> Duration(5_400_000_000_000).text()
    '1h30m0s'
    """

    def text(self) -> str:
        return duration.to_text(self)

    def seconds(self) -> float:
        return _quotient(self, duration.SECOND)

    def minutes(self) -> float:
        return _quotient(self, duration.MINUTE)

    def hours(self) -> float:
        return _quotient(self, duration.HOUR)

    def whole(self, unit_ns: int) -> int:
        """In units, cut towards zero."""
        return -(-self // unit_ns) if self < 0 else self // unit_ns


def _digits(value: int, token: str) -> str:
    """`value` as wide as its token, which shows the padding."""
    return str(int(value)).rjust(len(token), " " if token[0] == "_" else "0")


def _quotient(value: int, unit_ns: int) -> float:
    """As Go divides: the whole units and the rest apart, then added."""
    sign, size = (-1, -int(value)) if value < 0 else (1, int(value))
    whole, rest = divmod(size, unit_ns)
    return sign * (float(whole) + float(rest) / unit_ns)
