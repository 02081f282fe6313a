from __future__ import annotations

from dataclasses import replace

from broker.durable_head import EpochTerms
from broker.pipeline import HeldSpool, Pipeline
from broker.replica import TAKE_WAIT_S, Replica
from broker.slot import Slot
from fragment.cover_set import CoverSet
from fragment.index import Found, NotYetAvailable
from fragment.spool import EpochMark
from protocol.route import Header, ProcessId
from tests.support.broker_cores import A, B, C, Host, built, committed_spool, fragment, header_of, replica_of, route_of


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


# Taking the spool from a stream that has it (DH-4).


class Holding:
    """A stream that has the spool, and gives it back when it is told to."""

    def __init__(self, replica: Replica[bytearray], header: Header) -> None:
        self.header = header
        self.is_deposed = False
        self._replica = replica
        self._taken: list[HeldSpool] = []
        replica.take_spool(header, self._taken.append)
        assert self._taken
        replica.held_by(self)

    def depose(self) -> None:
        self.is_deposed = True
        self.end()

    def end(self) -> None:
        self._replica.held_by(None)
        self._taken.pop().release()


def held_under(revision: int, primary: ProcessId = A) -> tuple[Replica[bytearray], Host, Holding]:
    replica, host = replica_of(), Host()
    replica.host = host
    return replica, host, Holding(replica, header_of(route_of(A, B, C, primary=primary), B, revision))


def later_header(revision: int, primary: ProcessId = B) -> Header:
    return header_of(route_of(A, B, C, primary=primary), B, revision)


def test_a_later_synchronisation_takes_the_spool_at_once_from_a_primary_that_is_no_member() -> None:
    """DH-4."""
    for members in ({B: 1}, {A: 11, B: 1}):
        replica, host, holder = held_under(10)
        host.members = members
        taken: list[HeldSpool] = []
        replica.take_spool(later_header(12), taken.append)
        assert holder.is_deposed
        assert len(taken) == 1
        assert host.timers == []
        assert replica.taken_revision == 12


def test_a_primary_that_is_a_member_has_a_while_to_end_what_it_has_under_way() -> None:
    """DH-4."""
    replica, host, holder = held_under(10)
    taken: list[HeldSpool] = []
    replica.take_spool(later_header(12), taken.append)
    assert (holder.is_deposed, taken) == (False, [])
    ((delay_s, act),) = host.timers
    assert delay_s == TAKE_WAIT_S
    act()
    assert holder.is_deposed
    assert len(taken) == 1


def test_a_stream_that_ends_in_time_is_not_deposed() -> None:
    replica, host, holder = held_under(10)
    taken: list[HeldSpool] = []
    replica.take_spool(later_header(12), taken.append)
    (_, act) = host.timers[0]
    holder.end()
    assert len(taken) == 1
    assert host.timers == [], "nobody waits any more"
    act()
    assert not holder.is_deposed


def test_whoever_took_its_place_is_not_deposed_for_it() -> None:
    replica, host, holder = held_under(10)
    replica.take_spool(later_header(12), lambda _: None)
    (_, act) = host.timers[0]
    holder.is_deposed = False
    other = Holding.__new__(Holding)
    other.header, other.is_deposed = later_header(12), False
    replica.held_by(other)
    act()
    assert not holder.is_deposed
    assert not other.is_deposed


def test_an_earlier_synchronisation_takes_it_from_nobody() -> None:
    """DH-4: at a lower revision, none."""
    replica, host, holder = held_under(10)
    host.members = {}
    taken: list[HeldSpool] = []
    replica.take_spool(later_header(9), taken.append)
    assert (holder.is_deposed, taken, host.timers) == (False, [], [])
    holder.end()
    assert len(taken) == 1
    assert replica.taken_revision == 10


def test_at_the_same_revision_only_the_same_primary_takes_it() -> None:
    """DH-4."""
    replica, host, holder = held_under(10)
    host.members = {}
    replica.take_spool(later_header(10, primary=B), lambda _: None)
    assert not holder.is_deposed
    replica, host, holder = held_under(10)
    host.members = {}
    replica.take_spool(later_header(10, primary=A), lambda _: None)
    assert holder.is_deposed


def test_who_does_not_wait_any_more_deposes_nobody() -> None:
    replica, host, holder = held_under(10)
    taken: list[HeldSpool] = []
    withdraw = replica.take_spool(later_header(12), taken.append)
    withdraw()
    assert host.timers == []
    holder.end()
    assert taken == []


def test_a_directory_that_has_more_of_an_epoch_than_the_spool_claims_no_id() -> None:
    """DH-5, DH-7."""
    replica, host, _ = held_under(10)
    host.copies = {EpochMark(4, 2)}
    assert replica.claimed_id(EpochMark(4, 1)) == b"here"
    assert replica.claimed_id(EpochMark(4, 2)) == b""
    assert replica.claimed_id(None) == b"here"


def test_an_epoch_that_is_opened_is_told_with_where_the_oldest_begins() -> None:
    replica, host, _ = held_under(10)
    told = EpochTerms(EpochMark(4, 3), 50, oldest_begin=20)
    replica.epoch_opened(told, EpochMark(4, 2))
    assert host.epochs == [(told, EpochMark(4, 2))]
    # What an earlier epoch has may still be on its way: nobody is sent past it, but to what has long been there.
    stored = replace(fragment(50, b"later"), mod_time=1_700_000_000, backing_store="file:///store/")
    replica.index.replace_remote(CoverSet([stored]))
    assert isinstance(replica.index.query(0, 0, 1_700_000_100), NotYetAvailable)
    assert isinstance(replica.index.query(0, 0, 1_700_000_000 + 7 * 3600), Found)
