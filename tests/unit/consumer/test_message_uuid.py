from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from consumer.message.message_uuid import (
    CLOCK_MAX,
    Flags,
    build,
    clock_at,
    parse,
    parse_bytes,
    parse_text,
    producer_id,
    ticked,
    unix_nanos_of,
    updated,
)
from protocol.errors import ValidationError
from tests.support.golden import Case, case_id, cases

PRODUCER = bytes.fromhex("0b1122334455")


def as_time(unix_nanos: int) -> str:
    """As the vectors print times: RFC 3339 with as many decimals as are needed."""
    seconds, nanos = divmod(unix_nanos, 1_000_000_000)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}" + f".{nanos:09d}".rstrip("0").rstrip(".") + "Z"


@pytest.mark.parametrize("case", cases("uuids", "clock"), ids=case_id)
def test_clocks_are_those_of_gazette(case: Case) -> None:
    true_nanos = case["unix_seconds"] * 1_000_000_000 + case["nanos"]
    if case["unix_nanos_in_range"]:
        assert clock_at(true_nanos) == case["clock"]
        assert as_time(unix_nanos_of(case["clock"])) == case["as_time"]
        return
    # Gazette wraps these times around to another century. Ours keeps those that fit, and refuses the others.
    try:
        clock = clock_at(true_nanos)
    except ValidationError:
        return
    assert abs(unix_nanos_of(clock) - true_nanos) < 100


@pytest.mark.parametrize("case", cases("uuids", "clock-steps"), ids=case_id)
def test_clocks_tick_and_follow_the_time_as_in_gazette(case: Case) -> None:
    clock = case["start"]
    for step in case["steps"]:
        clock = ticked(clock) if step["op"] == "tick" else updated(clock, step["unix_nanos"])
        assert clock == step["clock"]
        assert clock == step.get("returns", clock)


@pytest.mark.parametrize("case", cases("uuids", "build"), ids=case_id)
def test_uuids_are_built_as_in_gazette(case: Case) -> None:
    producer = bytes.fromhex(case["producer"])
    if case.get("panics"):
        with pytest.raises(ValidationError, match="ten bits"):
            build(producer, case["clock"], case["flags"])
        return
    uuid = build(producer, case["clock"], case["flags"])
    assert str(uuid) == case["result"]["uuid"]
    assert parse(uuid) == (producer, case["clock"], case["flags"])


READABLE = [case for case in cases("uuids", "build", "inspect") if not case.get("panics")]


@pytest.mark.parametrize("case", READABLE, ids=case_id)
def test_uuids_are_read_as_in_gazette(case: Case) -> None:
    expected = case["result"]
    parts = parse_bytes(bytes.fromhex(expected["hex"]))
    assert parts == (bytes.fromhex(expected["producer"]), expected["clock"], expected["flags"])
    assert parts == parse(UUID(expected["uuid"])) == parse_text(expected["uuid"])
    assert as_time(unix_nanos_of(parts.clock)) == expected["as_time"]
    if parts.flags in list(Flags):
        assert Flags(parts.flags).name == expected["flags_name"]


@pytest.mark.parametrize(
    ("flags", "sequence", "expected"),
    [
        (Flags.OUTSIDE_TXN, 0, "83fc2f95-cc5f-11e9-8000-0b1122334455"),
        (Flags.CONTINUE_TXN, 0, "83fc2f95-cc5f-11e9-8001-0b1122334455"),
        (Flags.ACK_TXN, 0, "83fc2f95-cc5f-11e9-8002-0b1122334455"),
        (682, 0, "83fc2f95-cc5f-11e9-82aa-0b1122334455"),
        (Flags.CONTINUE_TXN, 9, "83fc2f95-cc5f-11e9-a401-0b1122334455"),
    ],
)
def test_vectors_of_the_wire_format(flags: int, sequence: int, expected: str) -> None:
    clock = clock_at(1_567_304_621_981_273_734)
    assert clock == 0x1E9CC5F83FC2F810 == 2205855587517003792
    assert str(build(PRODUCER, ticked(ticked(clock)) + sequence, flags)) == expected


def test_a_clock_does_not_follow_a_time_that_runs_backwards() -> None:
    clock = clock_at(1_700_000_000_000_000_000)
    assert updated(clock, 1_600_000_000_000_000_000) == clock
    assert ticked(clock) > updated(clock, 1_700_000_000_000_000_000 + 900)


def test_times_before_1970_round_towards_it() -> None:
    assert clock_at(-99) == clock_at(0) == clock_at(99)
    assert clock_at(-100) == clock_at(0) - 16


@pytest.mark.parametrize("unix_nanos", [-12_219_292_800_000_000_100, 1 << 80])
def test_times_that_no_clock_holds_are_refused(unix_nanos: int) -> None:
    with pytest.raises(ValidationError, match="1582 to 5236"):
        clock_at(unix_nanos)


def test_a_producer_has_the_multicast_bit() -> None:
    assert producer_id(bytes(6)) == b"\x01\0\0\0\0\0"
    assert producer_id(b"\xff" * 6) == b"\xff" * 6
    with pytest.raises(ValidationError, match="Producer: a producer has 6 bytes"):
        producer_id(bytes(7))


@pytest.mark.parametrize(
    ("producer", "clock", "flags", "field"),
    [
        (b"", 1, 0, "Producer"),
        (bytes(7), 1, 0, "Producer"),
        (PRODUCER, -1, 0, "Clock"),
        (PRODUCER, CLOCK_MAX + 1, 0, "Clock"),
        (PRODUCER, 1, -1, "Flags"),
        (PRODUCER, 1, 1024, "Flags"),
    ],
)
def test_parts_that_do_not_fit_are_refused(producer: bytes, clock: int, flags: int, field: str) -> None:
    with pytest.raises(ValidationError, match=f"^{field}: "):
        build(producer, clock, flags)


@pytest.mark.parametrize(
    "text",
    [
        "{83fc2f95-cc5f-11e9-8000-0b1122334455}",
        "urn:uuid:83fc2f95-cc5f-11e9-8000-0b1122334455",
        "URN:UUID:83fc2f95-cc5f-11e9-8000-0b1122334455",
        "83fc2f95cc5f11e980000b1122334455",
        "83FC2F95-CC5F-11E9-8000-0B1122334455",
    ],
)
def test_texts_may_have_several_forms(text: str) -> None:
    assert parse_text(text) == parse_text("83fc2f95-cc5f-11e9-8000-0b1122334455")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "83fc2f95",
        " 83fc2f95-cc5f-11e9-8000-0b1122334455",
        "83fc2f95-cc5f-11e9-8000-0b1122334455\n",
        "{83fc2f95-cc5f-11e9-8000-0b1122334455",
        "83fc2f95-cc5f11e9-8000-0b1122334455-",
        "83fc2f95cc5f11e9-8000-0b1122334455",
        "83fc2f95_cc5f_11e9_8000_0b1122334455",
        "٨3fc2f95-cc5f-11e9-8000-0b1122334455",
        "x" * 100_000,
    ],
)
def test_other_texts_are_refused_in_few_words(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_text(text)
    assert len(str(caught.value)) < 200


def test_other_lengths_than_16_bytes_are_refused() -> None:
    with pytest.raises(ValidationError, match="16 bytes"):
        parse_bytes(bytes(15))
