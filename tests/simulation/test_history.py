from __future__ import annotations

import pytest

from tests.simulation.history import VALUE_END, Fence, History, Outcome, begins_at, next_beginning, value


@pytest.mark.parametrize("number", [1, 9, 10, 99, 12345])
@pytest.mark.parametrize("length", [0, 18, 19, 99, 100, 101, 1000])
def test_a_value_is_known_by_either_end(number: int, length: int) -> None:
    made = value(number, length)
    assert len(made) >= length
    assert begins_at(b"x" + made, 1) == (number, len(made))
    assert made.endswith(b"|%d]" % number)
    assert made.count(VALUE_END) == 1
    assert next_beginning(made + made, 0) == len(made)


def test_an_append_has_one_outcome() -> None:
    history = History(lambda: 1.5)
    append = history.append("c1", "acme/orders", 50)
    assert (append.outcome, append.content) == (Outcome.PENDING, value(1, 50))
    history.ok(append, 0, 50)
    with pytest.raises(AssertionError, match="one outcome"):
        history.unknown(append)


def test_a_repetition_has_the_content_of_the_first() -> None:
    history = History(lambda: 0.0)
    first = history.append("c1", "acme/orders", fence=Fence(None, "a"))
    history.unknown(first)
    second = history.repeat(first)
    history.unknown(second)
    third = history.repeat(second, client="c2")
    assert third.content == second.content == first.content
    assert (third.repeats, third.fence, third.number) == (first, first.fence, 3)


def test_the_share_of_unknown_outcomes_is_told() -> None:
    history = History(lambda: 0.0)
    for settle in (history.unknown, history.failed, history.failed, history.unknown):
        settle(history.append("c1", "acme/orders"))
    history.append("c1", "acme/orders")
    assert history.unknown_share == 0.5
    assert History(lambda: 0.0).unknown_share == 0.0


def test_everything_is_told_in_its_order() -> None:
    history = History(lambda: 0.25)
    first, second = history.append("c1", "acme/orders"), history.append("c2", "acme/orders")
    history.chunk("r1", "acme/orders", 4, b"abc", "b1", is_jump=True)
    history.failed(second, "REGISTER_MISMATCH")
    history.ok(first, 0, 18)
    history.head_is(history.head("b1/0/2", "acme/orders"), 18)
    assert [line.split(maxsplit=1)[1] for line in history.lines()] == [
        "c1 invoke append 1 to acme/orders",
        "c2 invoke append 2 to acme/orders",
        "r1 read [4,7) of b1 by a jump",
        "c2 fail append 2 REGISTER_MISMATCH",
        "c1 ok append 1 [0,18)",
        "b1/0/2 has its head at 18",
    ]
