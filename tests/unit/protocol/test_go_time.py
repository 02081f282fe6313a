from __future__ import annotations

import pytest

from protocol.duration import HOUR, MICROSECOND, MILLISECOND, SECOND
from protocol.errors import ValidationError
from protocol.template.go_time import ZERO_NS, Duration, UtcTime

MORNING = UtcTime(1_772_587_965_678_901_230)
"""Wednesday, the 4th of March 2026, 01:32:45.67890123."""
EVENING = UtcTime(1_767_225_599 * 10**9)
"""Wednesday, the 31st of December 2025, 23:59:59."""


@pytest.mark.parametrize(
    ("layout", "morning", "evening"),
    [
        ("2006-01-02T15:04:05", "2026-03-04T01:32:45", "2025-12-31T23:59:59"),
        ("06/1/2 3:4:5", "26/3/4 1:32:45", "25/12/31 11:59:59"),
        ("03:04 PM pm", "01:32 AM am", "11:59 PM pm"),
        ("Mon Jan _2", "Wed Mar  4", "Wed Dec 31"),
        ("Monday, January 02", "Wednesday, March 04", "Wednesday, December 31"),
        ("002|__2", "063| 63", "365|365"),
        ("MST Z07:00 Z0700 Z07", "UTC Z Z Z", "UTC Z Z Z"),
        (
            "-0700 -07:00 -07 -070000 -07:00:00",
            "+0000 +00:00 +00 +000000 +00:00:00",
            "+0000 +00:00 +00 +000000 +00:00:00",
        ),
        ("5.000|5,000000000|5.0", "45.678|45,678901230|45.6", "59.000|59,000000000|59.0"),
        ("5.999|5.999999999|5,9", "45.678|45.67890123|45,6", "59|59|59"),
        (".0000000000000", ".678901230", ".000000000"),
        # No elements: a lower-case letter or another digit follows.
        ("Janet Monkey .0001 .99x", "Janet Monkey .0003 .67x", "Janet Monkey .0012 x"),
        ("_2006 __2006", "_2026  63026", "_2025 365025"),
    ],
)
def test_layouts_are_written_as_go_writes_them(layout: str, morning: str, evening: str) -> None:
    assert MORNING.format(layout) == morning
    assert EVENING.format(layout) == evening


def test_the_zero_time_of_go_is_the_first_day_of_year_one() -> None:
    zero = UtcTime(ZERO_NS)
    assert zero.text() == "0001-01-01 00:00:00 +0000 UTC"
    assert zero.weekday().text() == "Monday"
    assert zero.unix_s() == -62_135_596_800
    # Go's own overflow: 64 bits of nanoseconds reach back to 1677 only.
    assert zero.unix_ns_wrapped() == -6_795_364_578_871_345_152


def test_a_time_tells_its_parts() -> None:
    assert (MORNING.year(), MORNING.month(), MORNING.day()) == (2026, 3, 4)
    assert (MORNING.hour(), MORNING.minute(), MORNING.second()) == (1, 32, 45)
    assert (MORNING.nanosecond(), MORNING.year_day(), MORNING.weekday()) == (678_901_230, 63, 3)
    assert MORNING.month().text() == "March"


@pytest.mark.parametrize("unix_ns", [ZERO_NS - 1, 253_402_300_800 * 10**9, 10**40, -(10**40)])
def test_years_beyond_four_digits_are_refused(unix_ns: int) -> None:
    with pytest.raises(ValidationError, match="between the years"):
        UtcTime(unix_ns).format("2006")


def test_a_duration_divides_as_go_divides() -> None:
    interval = Duration(HOUR + HOUR // 2)
    assert (interval.text(), interval.hours(), interval.minutes(), interval.seconds()) == ("1h30m0s", 1.5, 90.0, 5400.0)
    late = Duration(-(SECOND + MILLISECOND // 2))
    assert (late.text(), late.seconds()) == ("-1.0005s", -1.0005)
    assert (late.whole(MILLISECOND), late.whole(MICROSECOND)) == (-1000, -1_000_500)
