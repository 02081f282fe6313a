from __future__ import annotations

import random

import pytest

from fragment.persist_queue import INSURANCE_S, RETRY_S_MAX, PersistQueue


class Item:
    """Told apart by identity, as spools are."""


def queue(parallel_max: int = 32) -> PersistQueue[Item]:
    return PersistQueue(parallel_max, random.Random(7))


def test_the_primary_s_copy_goes_at_once_and_a_replica_s_later() -> None:
    held, primary, replica = queue(), Item(), Item()
    held.add(primary, 100.0, primary=True, is_open=True, at=("a", 1))
    held.add(replica, 100.0, primary=False, is_open=True, at=("a", 1))
    assert held.start(100.0) == [primary]
    due_s = held.next_due_s()
    assert due_s is not None
    assert INSURANCE_S[0] <= due_s - 100.0 <= INSURANCE_S[1]
    assert held.start(due_s - 0.001) == []
    assert held.start(due_s) == [replica]


def test_no_more_run_at_once_than_allowed() -> None:
    """A thousand journals whose flush interval ends at the same second."""
    held = queue(parallel_max=4)
    items = [Item() for _ in range(1000)]
    for item in items:
        held.add(item, 0.0, primary=True, is_open=True, at=("a", 1))
    assert held.start(0.0) == [items[0]], "the others are spread out"
    running = held.start(60.0)
    assert len(running) == 3
    assert held.start(60.0) == []
    assert held.next_due_s() is None, "nothing more starts by time alone"
    held.done(running[0])
    assert len(held.start(60.0)) == 1


def test_a_stampede_is_spread_out() -> None:
    held = queue(parallel_max=2000)
    for _ in range(1000):
        held.add(Item(), 0.0, primary=True, is_open=True, at=(object(), 1))
    started = [len(held.start(now_s)) for now_s in range(1, 31)]
    assert sum(started) == 1000
    assert max(started) < 300


def test_what_is_not_decided_does_not_start_however_late() -> None:
    held, item = queue(), Item()
    held.add(item, 0.0, primary=True, is_open=False, at=("a", 1))
    assert held.start(1e9) == []
    assert held.next_due_s() is None
    held.open(item)
    assert held.start(0.0) == [item]


def test_failures_return_after_pauses_that_grow_and_vary() -> None:
    held, item = queue(), Item()
    held.add(item, 0.0, primary=True, is_open=True, at=("a", 1))
    now, pauses = 0.0, []
    for _ in range(12):
        assert held.start(now) == [item]
        pauses.append(held.failed(item, now))
        assert held.start(now) == []
        now += pauses[-1]
    assert len(set(pauses)) == len(pauses)
    assert pauses[0] <= 1.0
    assert RETRY_S_MAX / 2 <= pauses[-1] <= RETRY_S_MAX


def test_failures_do_not_wait_for_each_other() -> None:
    held = queue()
    items = [Item() for _ in range(20)]
    for item in items:
        held.add(item, 0.0, primary=True, is_open=True, at=("a", 1))
    for item in held.start(10.0):
        held.failed(item, 10.0)
    assert set(held.start(11.0)) == set(items), "all of them are due within the first pause, and may run together"


def test_a_process_that_leaves_does_not_wait_for_insurance_but_minds_failures() -> None:
    held, item = queue(), Item()
    held.add(item, 0.0, primary=False, is_open=True, at=("a", 1))
    held.hurry()
    assert held.start(0.0) == [item]
    pause_s = held.failed(item, 0.0)
    assert held.start(pause_s / 2) == []
    assert held.start(pause_s) == [item]
    held.done(item)
    assert len(held) == 0


def test_items_are_told_oldest_first() -> None:
    held, items = queue(), [Item(), Item()]
    for item in items:
        held.add(item, 0.0, primary=False, is_open=True, at=("a", 1))
    assert held.items() == items
    with pytest.raises(KeyError):
        held.done(Item())


def test_nothing_of_a_journal_goes_before_its_first_fragment() -> None:
    """Its upload may fail, and be tried again later, while those of others succeed."""
    waiting: PersistQueue[str] = PersistQueue(8, random.Random(7))
    waiting.add("first", 0.0, primary=True, is_open=True, at=("a", 0))
    waiting.add("second", 0.0, primary=True, is_open=True, at=("a", 9))
    waiting.add("another journal's", 0.0, primary=True, is_open=True, at=("b", 9))
    assert waiting.start(100.0) == ["first", "another journal's"]
    assert waiting.next_due_s() is None, "it is not a matter of time"
    pause_s = waiting.failed("first", 100.0)
    assert waiting.start(100.0) == []
    assert waiting.next_due_s() == 100.0 + pause_s
    assert waiting.start(100.0 + pause_s) == ["first"]
    waiting.done("first")
    assert waiting.start(100.0 + pause_s) == ["second"]


def test_whoever_goes_on_as_primary_takes_along_what_it_has_of_earlier_bytes() -> None:
    waiting: PersistQueue[str] = PersistQueue(8, random.Random(7))
    waiting.add("insurance", 0.0, primary=False, is_open=True, at=("a", 5))
    waiting.add("another journal's", 0.0, primary=False, is_open=True, at=("b", 5))
    waiting.add("later", 1.0, primary=True, is_open=True, at=("a", 9))
    assert sorted(waiting.start(2.0)) == ["insurance", "later"]
