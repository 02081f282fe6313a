from __future__ import annotations

from broker.pipeline import Pipeline
from broker.slot import Slot
from tests.support.broker_cores import A, B, C, built, committed_spool, fragment, replica_of, route_of


def test_who_waits_is_told_of_an_invalidation_once_and_may_ask_for_the_next() -> None:
    replica, told = replica_of(), list[str]()
    replica.invalidation.listen(lambda: told.append("first"))
    old = replica.invalidation
    replica.invalidate()
    assert told == ["first"]
    assert old.is_fired
    assert not replica.invalidation.is_fired
    replica.invalidation.listen(lambda: told.append("second"))
    replica.invalidate()
    assert told == ["first", "second"]


def test_a_listener_that_asks_again_while_it_is_told_hears_of_the_next_one_only() -> None:
    replica, told = replica_of(), list[int]()

    def listen() -> None:
        told.append(len(told))
        replica.invalidation.listen(listen)

    replica.invalidation.listen(listen)
    replica.invalidate()
    assert told == [0]
    replica.invalidate()
    assert told == [0, 1]


def test_a_replica_that_nobody_uses_is_given_up_at_once_and_its_spool_handed_on() -> None:
    held = committed_spool(b"abc")
    replica = replica_of(held)
    replica.stop()
    assert replica.is_stopped
    assert replica.stopped.is_fired
    assert held.is_handed_on
    assert held.completed == [fragment(0, b"abc")]
    assert replica.given_up.is_fired
    replica.stop()
    assert replica.pipeline.is_taken
    assert replica.spool.is_taken


def test_the_append_and_then_the_stream_that_are_under_way_are_waited_for() -> None:
    held = committed_spool(b"abc")
    replica = replica_of(held)
    taken: list[Pipeline | None] = []
    replica.pipeline.take(taken.append)
    replica.spool.take(lambda _: None)
    made = built(route_of(A, B, C), held=held)
    replica.stop()
    assert held.completed == []
    replica.pipeline.put(made.pipeline)
    assert made.pipeline.is_closed
    assert all(stream.is_half_closed for stream in made.streams.values())
    assert held.is_handed_on, "the pipeline gave its spool back"
    assert replica.given_up.is_fired


def test_a_stream_of_another_primary_keeps_a_replica_that_is_given_up() -> None:
    held = committed_spool(b"abc")
    replica = replica_of(held)
    replica.spool.take(lambda _: None)
    replica.stop()
    assert held.completed == []
    held.release()
    assert replica.given_up.is_fired
    assert held.completed == [fragment(0, b"abc")]


def test_who_waits_for_a_replica_that_is_given_up_is_told_and_nobody_gets_in_behind() -> None:
    replica, told, served = replica_of(), list[str](), list[object]()
    slot: Slot[Pipeline | None] = replica.pipeline
    slot.take(lambda _: None)
    waiting = slot.take(served.append)

    def leave() -> None:
        told.append("told")
        waiting.withdraw()

    replica.invalidation.listen(leave)
    replica.stop()
    assert told == ["told"]
    slot.put(None)
    assert served == []
    late = slot.take(served.append)
    assert not late.is_over
    assert served == []


def test_who_comes_after_it_was_given_up_is_told_at_once() -> None:
    replica, told = replica_of(), list[str]()
    replica.stop()
    replica.invalidation.listen(lambda: told.append("late"))
    replica.invalidate()
    replica.invalidation.listen(lambda: told.append("later"))
    assert told == ["late", "later"]
