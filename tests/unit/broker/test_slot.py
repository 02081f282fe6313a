from __future__ import annotations

import pytest

from broker.slot import Slot, Wait
from tests.support.live_count import live_count


def test_who_comes_first_is_served_at_once_and_the_others_in_their_order() -> None:
    slot: Slot[str] = Slot("spool")
    served: list[tuple[int, str]] = []
    for turn in range(3):
        slot.take(lambda value, turn=turn: served.append((turn, value)))  # type: ignore[misc]
    assert served == [(0, "spool")]
    assert slot.is_taken
    slot.put("spool, used once")
    assert served[1:] == [(1, "spool, used once")]
    slot.put("spool, used twice")
    slot.put("spool")
    assert [turn for turn, _ in served] == [0, 1, 2]
    assert not slot.is_taken


def test_none_is_a_value_as_any_other() -> None:
    slot: Slot[str | None] = Slot(None)
    served: list[str | None] = []
    slot.take(served.append)
    slot.take(served.append)
    slot.put(None)
    assert served == [None, None]


def test_a_place_that_was_given_up_is_passed_over() -> None:
    slot: Slot[str] = Slot("it")
    served: list[str] = []
    slot.take(lambda _: served.append("first"))
    second = slot.take(lambda _: served.append("second"))
    slot.take(lambda _: served.append("third"))
    second.withdraw()
    assert second.is_over
    slot.put("it")
    assert served == ["first", "third"]


def test_to_give_up_a_place_that_was_served_does_nothing() -> None:
    slot: Slot[str] = Slot("it")
    wait = slot.take(lambda _: None)
    assert wait.is_over
    wait.withdraw()
    assert slot.is_taken


def test_a_value_whose_last_waiter_left_stays_for_the_next() -> None:
    slot: Slot[str] = Slot("it")
    served: list[str] = []
    slot.take(lambda _: None)
    slot.take(served.append).withdraw()
    slot.put("it")
    assert not slot.is_taken
    slot.take(served.append)
    assert served == ["it"]


def test_a_waiter_may_leave_while_the_one_before_it_is_served() -> None:
    slot: Slot[str] = Slot("it")
    waits: list[Wait[str]] = []
    served: list[int] = []
    slot.take(lambda _: None)

    def first(value: str) -> None:
        served.append(1)
        waits[1].withdraw()
        slot.put(value)

    waits.append(slot.take(first))
    waits.append(slot.take(lambda _: served.append(2)))
    waits.append(slot.take(lambda _: served.append(3)))
    slot.put("it")
    assert served == [1, 3]


def test_what_was_not_taken_cannot_be_put_back() -> None:
    slot: Slot[str] = Slot("it")
    with pytest.raises(AssertionError):
        slot.put("it")


def test_many_who_pass_it_on_at_once_do_not_nest() -> None:
    slot: Slot[int] = Slot(0)
    slot.take(lambda _: None)
    served: list[int] = []

    def pass_on(value: int) -> None:
        served.append(value)
        slot.put(value + 1)

    for _ in range(10_000):
        slot.take(pass_on)
    slot.put(0)
    assert served == list(range(10_000))


def test_who_asks_again_while_served_gets_it_after_those_who_wait() -> None:
    slot: Slot[str] = Slot("it")
    order: list[str] = []
    slot.take(lambda _: None)

    def again(value: str) -> None:
        order.append("first")
        slot.take(lambda _: order.append("again"))
        slot.put(value)

    def second(value: str) -> None:
        order.append("second")
        slot.put(value)

    slot.take(again)
    slot.take(second)
    slot.put("it")
    assert order == ["first", "second", "again"]


def test_places_that_were_given_up_are_not_kept_for_as_long_as_the_slot_is_taken() -> None:
    slot: Slot[str] = Slot("it")
    slot.take(lambda _: None)
    served: list[str] = []
    slot.take(served.append)
    before = live_count(Wait)
    for _ in range(10_000):
        slot.take(lambda _: None).withdraw()
    assert live_count(Wait) - before < 200
    slot.put("it")
    assert served == ["it"]
