from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from consumer.message.message_uuid import (
    CLOCK_MAX,
    FLAGS_MAX,
    build,
    clock_at,
    parse,
    parse_bytes,
    parse_text,
    ticked,
    unix_nanos_of,
    updated,
)
from protocol.errors import ValidationError

PRODUCERS = st.binary(min_size=6, max_size=6)
CLOCKS = st.integers(0, CLOCK_MAX)
NANOS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(PRODUCERS, CLOCKS, st.integers(0, FLAGS_MAX))
def test_building_and_parsing_a_uuid_is_identity(producer: bytes, clock: int, flags: int) -> None:
    uuid = build(producer, clock, flags)
    assert parse(uuid) == parse_bytes(uuid.bytes) == parse_text(str(uuid)) == (producer, clock, flags)
    assert (uuid.version, uuid.variant, uuid.node) == (1, "specified in RFC 4122", int.from_bytes(producer, "big"))


@given(PRODUCERS, CLOCKS, CLOCKS)
def test_uuids_of_one_producer_are_ordered_by_time_as_their_clocks_are(producer: bytes, one: int, other: int) -> None:
    first, second = build(producer, min(one, other), 0), build(producer, max(one, other), 0)
    assert first.time <= second.time


@given(st.uuids(allow_nil=True))
def test_any_uuid_can_be_parsed(uuid: UUID) -> None:
    parts = parse(uuid)
    rebuilt = build(*parts)
    assert parse(rebuilt) == parts
    # All but version and variant is kept.
    assert (rebuilt.int ^ uuid.int) & ~(0xF << 76 | 0b11 << 62) == 0


@given(NANOS)
def test_a_clock_tells_the_time_to_100_ns(unix_nanos: int) -> None:
    assert abs(unix_nanos_of(clock_at(unix_nanos)) - unix_nanos) < 100


@given(st.lists(st.one_of(st.none(), NANOS), max_size=20))
def test_a_clock_never_runs_backwards(steps: list[int | None]) -> None:
    clock = 0
    for unix_nanos in steps:
        after = ticked(clock) if unix_nanos is None else updated(clock, unix_nanos)
        assert after > clock or (unix_nanos is not None and after == clock)
        assert unix_nanos is None or after >= clock_at(unix_nanos)
        clock = after


@given(st.text("0123456789abcdefABCDEF-{}urn:uid ", max_size=50) | st.text(max_size=50))
def test_any_text_is_a_uuid_or_is_refused(text: str) -> None:
    try:
        parts = parse_text(text)
    except ValidationError:
        return
    assert parts == parse(UUID(text))
