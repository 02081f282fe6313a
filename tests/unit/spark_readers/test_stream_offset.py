from __future__ import annotations

import json

import pytest

from protocol.errors import ValidationError
from spark_readers import stream_offset
from spark_readers.clock_summary import ProducerCarry
from spark_readers.stream_offset import CLOSED_PRODUCERS_MAX, StreamOffset, batch_begin, remembered

FIRST, SECOND, THIRD = b"\x01aaaaa", b"\x01bbbbb", b"\x01ccccc"
DAY = 24 * 60 * 60 * (10_000_000 << 4)


def test_an_offset_is_the_same_text_however_it_came_about() -> None:
    carry = {SECOND: ProducerCarry(1 << 59, 1 << 60, 7), FIRST: ProducerCarry(4, 4)}
    one = StreamOffset({"b": 2, "a": 1}, {"b": {}, "a": carry}, {"b": 1}, "a")
    other = StreamOffset({"a": 1, "b": 2}, {"a": dict(reversed(carry.items()))}, {"b": 1}, "a")
    text = json.dumps(one.to_json())
    assert text == json.dumps(other.to_json())
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text
    assert StreamOffset.from_json(json.loads(text)).carry("a") == carry
    assert json.loads(text)["offsets"] == {"a": 1, "b": 2}


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(ValidationError, match="begin with a new checkpoint"):
        StreamOffset.from_json({"topic": {"0": 17}})


def test_a_journal_that_comes_anew_begins_where_the_batch_says() -> None:
    start = StreamOffset({"a": 5, "b": 9}, {"b": {FIRST: ProducerCarry(1, 1)}})
    end = StreamOffset({"a": 7, "b": 3, "c": 20}, {}, {"b": 0, "c": 15})
    assert batch_begin(start, end, "a") == (5, {})
    assert batch_begin(start, end, "b") == (0, {})
    assert batch_begin(start, end, "c") == (15, {})


def test_producers_that_fell_silent_a_day_before_others_are_forgotten() -> None:
    now = 3 * DAY
    carry = {
        FIRST: ProducerCarry(now, now),
        SECOND: ProducerCarry(now - DAY - 1, now - DAY - 1),
        THIRD: ProducerCarry(1, now - DAY, 3),
    }
    # Each journal has a time of its own.
    old = {FIRST: ProducerCarry(1, 1)}
    assert remembered({"a": carry, "b": old}) == {"a": {FIRST: carry[FIRST], THIRD: carry[THIRD]}, "b": old}


def test_of_many_producers_of_all_journals_those_heard_of_last_and_those_with_something_pending_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_offset, "CLOSED_PRODUCERS_MAX", 2)
    one = {FIRST: ProducerCarry(9, 9), SECOND: ProducerCarry(7, 7), THIRD: ProducerCarry(1, 2, 3)}
    other = {FIRST: ProducerCarry(6, 6), THIRD: ProducerCarry(8, 8)}
    kept = remembered({"a": one, "b": other})
    assert {name: {*carry} for name, carry in kept.items()} == {"a": {FIRST, THIRD}, "b": {THIRD}}


def test_an_offset_is_short_however_many_producers_there_are() -> None:
    many = {number.to_bytes(6, "big"): ProducerCarry(1 << 60, 1 << 60) for number in range(CLOSED_PRODUCERS_MAX)}
    carries = remembered({f"acme/j{at:03}": many for at in range(20)})
    text = json.dumps(StreamOffset(dict.fromkeys(carries, 1 << 40), carries).to_json())
    assert len(text) < 20 * CLOSED_PRODUCERS_MAX
    assert StreamOffset.from_json(json.loads(text)).carries == {name: of for name, of in carries.items() if of}


def test_an_offset_of_the_first_version_is_read() -> None:
    first = {
        "gazette": 1,
        "offsets": {"a": 7},
        "producers": {"a": {FIRST.hex(): [4, 4, None], SECOND.hex(): [1, 3, 2]}},
    }
    carry = {FIRST: ProducerCarry(4, 4), SECOND: ProducerCarry(1, 3, 2)}
    assert StreamOffset.from_json(first) == StreamOffset({"a": 7}, {"a": carry})
