from __future__ import annotations

from collections.abc import Callable

from broker.notice import Notice


def test_who_asked_is_told_once_and_in_order() -> None:
    notice, told = Notice(), list[str]()
    notice.listen(lambda: told.append("first"))
    notice.listen(lambda: told.append("second"))
    assert not notice.is_fired
    notice.fire()
    notice.fire()
    assert told == ["first", "second"]
    assert notice.is_fired


def test_who_asks_after_it_happened_is_told_at_once() -> None:
    notice, told = Notice(), list[str]()
    notice.fire()
    withdraw = notice.listen(lambda: told.append("late"))
    assert told == ["late"]
    withdraw()


def test_who_takes_it_back_is_not_told() -> None:
    notice, told = Notice(), list[str]()
    withdraw = notice.listen(lambda: told.append("told"))
    withdraw()
    withdraw()
    notice.fire()
    assert told == []


def test_who_takes_it_back_while_others_are_told_is_not_told() -> None:
    notice, told = Notice(), list[str]()
    withdrawals: list[Callable[[], None]] = []

    def first() -> None:
        told.append("first")
        withdrawals[1]()

    withdrawals.append(notice.listen(first))
    withdrawals.append(notice.listen(lambda: told.append("second")))
    withdrawals.append(notice.listen(lambda: told.append("third")))
    notice.fire()
    assert told == ["first", "third"]


def test_who_asks_while_others_are_told_is_told_too() -> None:
    notice, told = Notice(), list[str]()

    def ask_again() -> None:
        notice.listen(lambda: told.append("inner"))

    notice.listen(ask_again)
    notice.listen(lambda: told.append("outer"))
    notice.fire()
    assert sorted(told) == ["inner", "outer"]


def test_the_same_callable_may_be_given_twice_and_taken_back_once() -> None:
    notice, told = Notice(), list[str]()

    def tell() -> None:
        told.append("told")

    first = notice.listen(tell)
    notice.listen(tell)
    first()
    notice.fire()
    assert told == ["told"]
