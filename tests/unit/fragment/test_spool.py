from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from fragment.spool import (
    NO_EPOCH,
    Abandoned,
    Completed,
    ContentOrderError,
    CopyEnd,
    Effect,
    EpochMark,
    Proposal,
    Record,
    Reply,
    Spool,
    Sync,
    Visible,
    Write,
)
from protocol.codec import CompressionCodec
from protocol.errors import Status
from protocol.fragment import NO_SUM, Fragment
from protocol.label import LabelSet
from tests.support.golden import Case, case_id, cases

FIRST = EpochMark(create_revision=7, number=1)


def fragment_of(case: Case) -> Fragment:
    return Fragment(
        case["journal"], case["begin"], case["end"], bytes.fromhex(case["sum"]), CompressionCodec[case["codec"]]
    )


def registers_of(labels: list[dict[str, str]]) -> LabelSet:
    return LabelSet.of(*((label["name"], label.get("value", "")) for label in labels))


@pytest.mark.parametrize("case", cases("fragments", "spool"), ids=case_id)
def test_a_spool_answers_as_that_of_gazette(case: Case) -> None:
    spool = Spool.fresh(case["journal"])
    for step in case["steps"]:
        effects: tuple[Effect, ...] = ()
        if "content" in step:
            if step["result"] == "error":
                with pytest.raises(ContentOrderError):
                    spool.content(step["content"].encode(), step["content_delta"])
                return
            spool, _ = spool.content(step["content"].encode(), step["content_delta"])
        else:
            proposal = Proposal(fragment_of(step["proposal"]), registers_of(step["registers"]), now_ns=1)
            spool, effects = spool.propose(proposal)
            reply = effects[-1]
            assert isinstance(reply, Reply)
            assert reply.status.name == step["result"]
            if "answer_fragment" in step:
                assert reply.fragment == fragment_of(step["answer_fragment"])
                assert reply.registers == registers_of(step["answer_registers"])
        visible = [effect.fragment for effect in effects if isinstance(effect, Visible)]
        completed = [effect.spool.fragment for effect in effects if isinstance(effect, Completed)]
        assert visible == [fragment_of(held) for held in step.get("committed", [])]
        assert completed == [fragment_of(held) for held in step.get("completed", [])]
        assert spool.fragment == fragment_of(step["spool_after"])
        assert spool.pending == step["pending_after"]
        assert spool.registers == registers_of(step["registers_after"])


def kinds(effects: tuple[Effect, ...]) -> list[type]:
    return [type(effect) for effect in effects]


def committed(
    spool: Spool, data: bytes, epoch: EpochMark = FIRST, acked: int | None = None, now_ns: int = 5
) -> tuple[Spool, tuple[Effect, ...]]:
    spool, _ = spool.content(data, 0)
    return spool.propose(Proposal(spool.next(), spool.registers, now_ns, epoch, acked))


def rolled(spool: Spool, epoch: EpochMark, acked: int | None = None) -> tuple[Spool, tuple[Effect, ...]]:
    empty = replace(spool.fragment, begin=spool.fragment.end, sum=NO_SUM)
    return spool.propose(Proposal(empty, spool.registers, 6, epoch, acked))


def test_a_commit_is_recorded_after_its_content_is_safe_and_answered_last() -> None:
    _, effects = committed(Spool.fresh("a/b"), b"hello")
    assert kinds(effects) == [Sync, Record, Sync, Visible, Reply]


def test_content_is_written_over_what_was_rolled_back() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    spool, _ = spool.content(b"never", 0)
    spool, effects = spool.propose(Proposal(spool.fragment, spool.registers, 6))
    assert effects == (Reply(Status.OK),)
    spool, write = spool.content(b" world", 0)
    assert write == Write(5, b" world")
    assert spool.next().sum == hashlib.sha1(b"hello world").digest()


def test_a_step_leaves_the_spool_it_was_taken_from_as_it_was() -> None:
    """Whoever performs the effects keeps the old spool when one of them fails."""
    before, _ = committed(Spool.fresh("a/b"), b"hello")
    sum_before = before.next().sum
    after, _ = before.content(b"x" * 1000, 0)
    after.propose(Proposal(after.next(), LabelSet.of(("aa", "1")), 9))
    assert before.pending == 0
    assert before.next().sum == sum_before


def test_the_first_commit_of_a_fragment_sets_its_time() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello", now_ns=100)
    spool, _ = committed(spool, b"again", now_ns=200)
    assert spool.first_append_ns == 100
    spool, _ = rolled(spool, EpochMark(7, 2))
    assert spool.first_append_ns is None


def test_only_what_is_acknowledged_is_shown_where_the_primary_tells() -> None:
    spool, effects = committed(Spool.fresh("a/b"), b"hello", acked=0)
    assert Visible not in kinds(effects)
    spool, effects = committed(spool, b"world", acked=5)
    assert [effect.fragment.end for effect in effects if isinstance(effect, Visible)] == [5]
    assert isinstance(effects[-1], Reply)
    spool, shown = spool.acked(10)
    assert [effect.fragment.end for effect in shown] == [10]
    assert spool.acked(10) == (spool, ())
    assert spool.acked(3) == (spool, ()), "an older word takes nothing back"


@pytest.mark.parametrize("beyond", [1, 1 << 62])
def test_a_word_of_bytes_beyond_what_is_held_here_is_not_believed(beyond: int) -> None:
    """Whoever acknowledges has this spool's answer, too. What is recorded stays within what a record holds."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    assert spool.acked(5 + beyond) == (spool, ())
    spool, effects = committed(spool, b"world", acked=10 + beyond)
    assert Visible not in kinds(effects)
    assert spool.acked_through == 0


def test_nor_is_it_by_a_spool_that_was_told_nothing_yet() -> None:
    """None would say that this primary does not tell, and show each commit where it is applied."""
    spool, shown = Spool.fresh("a/b").acked(100)
    assert (spool.acked_through, shown) == (0, ())


def test_what_a_spool_holds_is_shown_wherever_a_synchronisation_has_moved_it() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    spool, _ = rolled(spool, EpochMark(7, 2), acked=0)
    spool, _ = spool.unplaced()
    assert spool.fragment.end == 0
    spool, shown = spool.acked(5)
    assert [(effect.fragment.begin, effect.fragment.end) for effect in shown] == [(0, 5)]


def test_commits_that_a_roll_left_behind_are_shown_when_they_are_acknowledged() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    spool, effects = rolled(spool, FIRST, acked=0)
    assert [effect.spool.unseen for effect in effects if isinstance(effect, Completed)] == [spool.unseen]
    spool, _ = committed(spool, b"world", acked=0)
    spool, shown = spool.acked(10)
    assert [(effect.fragment.begin, effect.fragment.end) for effect in shown] == [(0, 5), (5, 10)]


def test_a_roll_inside_an_epoch_records_the_new_fragment_before_the_old_one_is_handed_on() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    spool, effects = rolled(spool, FIRST)
    assert kinds(effects) == [Record, Sync, Completed, Reply]
    record = effects[0]
    assert isinstance(record, Record)
    assert (record.spool.fragment.begin, record.spool.fragment.end) == (5, 5)


def test_a_roll_by_another_synchronisation_records_nothing() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    _, effects = rolled(spool, EpochMark(7, 2))
    assert kinds(effects) == [Completed, Reply]


def test_a_fresh_spool_is_abandoned_when_it_rolls_forward() -> None:
    empty = Fragment("a/b", 64, 64, NO_SUM, CompressionCodec.GZIP)
    spool, effects = Spool.fresh("a/b").propose(Proposal(empty, LabelSet.of(("aa", "1")), 1))
    assert kinds(effects) == [Abandoned, Reply]
    assert spool.fragment == empty
    assert spool.registers == LabelSet.of(("aa", "1"))


def test_a_given_up_spool_is_handed_on_without_its_pending_content() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    spool, _ = spool.content(b"pending", 0)
    after, effects = spool.complete()
    assert [effect.spool.pending for effect in effects if isinstance(effect, Completed)] == [0]
    assert (after.fragment.begin, after.fragment.end, after.pending) == (5, 5, 0)


def test_a_primary_that_does_not_tell_makes_commits_visible_where_they_are_applied() -> None:
    """One of Go's, after one of ours: nothing may stay hidden for good."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    spool, effects = committed(spool, b"world", epoch=EpochMark(7, 2), acked=None)
    assert [effect.fragment.end for effect in effects if isinstance(effect, Visible)] == [10]
    assert (spool.unseen, spool.acked_through) == ((), None)
    spool, effects = committed(spool, b"again", epoch=EpochMark(7, 3), acked=10)
    assert Visible not in kinds(effects)
    assert spool.acked_through == 10


def test_a_commit_is_recorded_with_what_its_own_proposal_told() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    _, effects = committed(spool, b"world", acked=5)
    (record,) = [effect for effect in effects if isinstance(effect, Record)]
    assert record.spool.acked_through == 5


def test_a_completed_spool_knows_whether_a_later_record_stands_in_for_it() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    for roll, superseded in (
        (rolled(spool, FIRST), True),
        # A later epoch is open only once this one is closed.
        (rolled(spool, EpochMark(7, 2)), True),
        (rolled(spool, EpochMark(7, 0)), False),
        (spool.complete(), False),
    ):
        assert [effect.is_superseded for effect in roll[1] if isinstance(effect, Completed)] == [superseded]


# What a spool says of its epoch (DH-2, DH-5).


def moved(spool: Spool, to: int) -> Spool:
    """By a synchronisation that goes on elsewhere."""
    empty = replace(spool.fragment, begin=to, end=to, sum=NO_SUM)
    return spool.propose(Proposal(empty, spool.registers, 6, EpochMark(7, 2), 0))[0]


def test_a_copy_ends_at_its_last_commit_wherever_the_spool_was_moved() -> None:
    """DH-5: a roll forward without content does not count."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    assert spool.copy == CopyEnd(FIRST, 5, LabelSet())
    for later in (moved(spool, 70), rolled(spool, FIRST)[0], spool.complete()[0], spool.rolled_back()):
        assert later.copy == spool.copy
    assert moved(spool, 70).fragment.end == 70


def test_a_commit_without_an_epoch_leaves_no_copy() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello")
    spool, _ = committed(spool, b"world", NO_EPOCH)
    assert spool.copy is None
    assert spool.epoch == NO_EPOCH


def test_a_roll_to_where_the_epochs_commits_do_not_reach_records_nothing() -> None:
    """A record there would say that the bytes up to there are held."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    empty = replace(spool.fragment, begin=70, end=70, sum=NO_SUM)
    _, effects = spool.propose(Proposal(empty, spool.registers, 6, FIRST, 0))
    assert kinds(effects) == [Completed, Reply]


def test_a_spool_with_content_takes_part_as_it_is_without_what_is_pending() -> None:
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    pending, _ = spool.content(b"never", 0)
    assert pending.unplaced() == (spool, ())


def test_an_empty_spool_that_was_moved_has_no_place_but_keeps_its_copy() -> None:
    """DH-5: an earlier synchronisation may have moved it and failed, to where nobody has any bytes."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    away = moved(spool, 70)
    unplaced, effects = away.unplaced()
    assert unplaced.fragment == Spool.fresh("a/b").fragment
    assert (unplaced.copy, unplaced.unseen, unplaced.acked_through) == (spool.copy, spool.unseen, 0)
    assert kinds(effects) == [Completed], "whatever record it has of the epoch stays"
    fresh = Spool.fresh("a/b")
    assert fresh.unplaced() == (fresh, ())
    assert kinds(moved(fresh, 70).unplaced()[1]) == [Abandoned]


def test_a_retired_spool_is_handed_on_and_goes_on_as_one_that_knows_nothing() -> None:
    """DH-8."""
    spool, _ = committed(Spool.fresh("a/b"), b"hello", acked=0)
    pending, _ = spool.content(b"never", 0)
    after, effects = pending.retired()
    assert after == Spool.fresh("a/b")
    assert after.copy is None
    assert [effect.spool for effect in effects if isinstance(effect, Completed)] == [spool]
