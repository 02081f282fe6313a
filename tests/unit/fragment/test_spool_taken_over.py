"""What becomes of commits that nobody has acknowledged yet when another primary, or the same one anew, takes over."""

from __future__ import annotations

from dataclasses import replace

from fragment.spool import Completed, Proposal, Reply, Spool, Visible
from protocol.codec import CompressionCodec
from protocol.errors import Status
from protocol.fragment import NO_SUM, Fragment
from protocol.label import LabelSet

NOW_NS = 1_700_000_000 * 1_000_000_000


def held(acked: int = 0) -> Spool:
    """Two commits, [0, 3) and [0, 5), of which bytes below `acked` are known to be with all."""
    spool = Spool.fresh("acme/orders")
    for content in (b"abc", b"de"):
        spool, _ = spool.content(content, 0)
        spool, _ = spool.propose(Proposal(spool.next(), LabelSet(), NOW_NS, acked_through=acked, asks=True))
    return spool


def empty_at(offset: int) -> Fragment:
    return Fragment("acme/orders", offset, offset, NO_SUM, CompressionCodec.NONE)


def opening(fragment: Fragment, acked: int = 0) -> Proposal:
    return Proposal(fragment, LabelSet(), NOW_NS, acked_through=acked, opens=True, asks=True)


def shown(spool: Spool, through: int) -> list[int]:
    return [visible.fragment.end for visible in spool.acked(through)[1]]


def test_what_all_hold_alike_is_shown_once_that_is_known() -> None:
    spool, effects = held().propose(opening(held().fragment))
    assert effects == (Reply(Status.OK),)
    assert shown(spool, 5) == [5]


def test_what_is_rolled_over_to_synchronise_is_never_shown_from_here() -> None:
    spool, effects = held().propose(opening(empty_at(5)))
    assert [type(effect) for effect in effects] == [Completed, Reply]
    assert shown(spool, 5) == []


def test_nor_is_it_if_the_roll_comes_with_a_second_round() -> None:
    spool, _ = held().propose(opening(held().fragment))
    spool, _ = spool.propose(replace(opening(empty_at(9)), opens=False))
    assert shown(spool, 9) == []


def test_what_is_acknowledged_by_then_is_shown_first() -> None:
    spool, effects = held().propose(opening(empty_at(5), acked=3))
    assert [effect.fragment.end for effect in effects if isinstance(effect, Visible)] == [3]
    assert shown(spool, 5) == []


def test_a_fragment_that_a_stream_begins_hides_nothing() -> None:
    spool, _ = held().propose(Proposal(empty_at(5), LabelSet(), NOW_NS, acked_through=0))
    assert shown(spool, 5) == [5]


def test_a_barrier_hides_nothing() -> None:
    spool, _ = held().propose(Proposal(empty_at(5), LabelSet(), NOW_NS, acked_through=0))
    spool, effects = spool.propose(replace(opening(empty_at(5)), opens=False))
    assert effects == (Reply(Status.OK),)
    assert shown(spool, 5) == [5]


def test_an_empty_fragment_that_all_agree_on_proves_nothing_of_what_lies_before_it() -> None:
    spool, _ = held().propose(Proposal(empty_at(5), LabelSet(), NOW_NS, acked_through=0))
    spool, _ = spool.propose(opening(empty_at(5)))
    assert shown(spool, 5) == []


def test_a_primary_that_does_not_tell_shows_everything_as_gazette_does() -> None:
    proposal = replace(opening(empty_at(5)), acked_through=None)
    _, effects = held().propose(proposal)
    assert [effect.fragment.end for effect in effects if isinstance(effect, Visible)] == [5]
