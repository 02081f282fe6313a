from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from protocol import duration
from protocol.duration import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND
from protocol.errors import ValidationError

CANONICAL = [
    ("0s", 0),
    ("1ns", 1),
    ("1.1µs", 1100),
    ("2.2ms", 2_200_000),
    ("3.3s", 3_300_000_000),
    ("100ms", 100 * MILLISECOND),
    ("1m0s", MINUTE),
    ("4m5.001s", 4 * MINUTE + 5001 * MILLISECOND),
    ("5h6m7.001s", 5 * HOUR + 6 * MINUTE + 7001 * MILLISECOND),
    ("8m0.000000001s", 8 * MINUTE + 1),
    ("24h0m0s", 24 * HOUR),
    ("-1.5s", -1_500_000_000),
    ("2562047h47m16.854775807s", (1 << 63) - 1),
    ("-2562047h47m16.854775808s", -(1 << 63)),
]


@pytest.mark.parametrize(("text", "nanoseconds"), CANONICAL, ids=[text for text, _ in CANONICAL])
def test_canonical_texts_read_and_print(text: str, nanoseconds: int) -> None:
    assert duration.parse(text) == nanoseconds
    assert duration.to_text(nanoseconds) == text


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("5m", 5 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("90s", 90 * SECOND),
        ("720h", 720 * HOUR),
        ("1s1h1s", HOUR + 2 * SECOND),
        ("+5s", 5 * SECOND),
        ("1.s", SECOND),
        (".5s", SECOND // 2),
        ("10us", 10 * MICROSECOND),
        ("10µs", 10 * MICROSECOND),
        ("10μs", 10 * MICROSECOND),
        ("1h1m1s1ms1us1ns", HOUR + MINUTE + SECOND + MILLISECOND + MICROSECOND + 1),
        ("52763797000ns", 52_763_797_000),
        ("0.9ns", 0),
        ("1.0000000019s", SECOND + 1),
        ("-1.0000000019s", -SECOND - 1),
    ],
)
def test_other_texts_read_without_rounding(text: str, nanoseconds: int) -> None:
    assert duration.parse(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "-", "+", "3", "00", "s", ".", "-.s", ".s", "1:30", "1 s", "5M", "1d", "1e3s", "1s ", "--1s", "1_0s", "٣s"],
)
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="expected a duration such as"):
        duration.parse(text)


@pytest.mark.parametrize("text", ["2562047h47m16.854775808s", "-2562047h47m16.854775809s", f"{'9' * 200}h"])
def test_a_duration_past_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="292 years"):
        duration.parse(text)


def test_a_text_of_any_length_is_refused_in_few_words() -> None:
    with pytest.raises(ValidationError) as refused:
        duration.parse("9" * 1_000_000 + "s")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("nanoseconds", "message"),
    [
        (0, Duration()),
        (1, Duration(nanos=1)),
        (-1, Duration(nanos=-1)),
        (90 * SECOND + 5, Duration(seconds=90, nanos=5)),
        (-1_500_000_000, Duration(seconds=-1, nanos=-500_000_000)),
    ],
)
def test_both_parts_of_a_message_have_one_sign(nanoseconds: int, message: Duration) -> None:
    assert duration.to_proto(nanoseconds) == message
    assert duration.from_proto(message) == nanoseconds
