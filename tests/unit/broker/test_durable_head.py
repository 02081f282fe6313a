"""The rules of durable heads, each by example. The numbers are those of the design."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.durable_head import (
    AckedOnly,
    Claim,
    CutAt,
    DurableHead,
    Epoch,
    EpochTerms,
    Extents,
    Outdated,
    Start,
    Stored,
    Undecided,
    Unknown,
    Unproven,
    closed,
    damaged,
    fate,
    head_key,
    heads_prefix,
    is_stale,
    opened,
    pruned,
    reset_start,
    start_of,
    takes_part,
    terms,
    trimmed,
    voided,
)
from fragment.spool import NO_EPOCH, CopyEnd, EpochMark
from protocol.errors import ValidationError
from protocol.fragment import HEAD_MAX
from protocol.gen import head_pb2
from protocol.label import LabelSet
from tests.support.broker_cores import labels

A, B, C, D = (bytes([at]) * 16 for at in range(1, 5))
X, Y = labels(x="1"), labels(y="2")
CLOSED = Epoch(1, 0, (A, B), X, end=100)
OPEN = Epoch(2, 100, (B, C), X)
HEAD = DurableHead(7, (CLOSED, OPEN))
SHUT = DurableHead(7, (CLOSED, replace(OPEN, end=140, registers=Y)))
VOID = replace(HEAD, is_void=True)


def copy(end: int, number: int = 2, registers: LabelSet = Y, create_revision: int = 7) -> CopyEnd:
    return CopyEnd(EpochMark(create_revision, number), end, registers)


# The record.


def test_the_key_is_not_one_that_gazettes_brokers_watch() -> None:
    assert head_key("/gazette/cluster", "my/journal") == "pygazette/heads/gazette/cluster/my/journal"
    assert not heads_prefix("/gazette/cluster").startswith("/gazette/cluster")


@pytest.mark.parametrize(
    "head",
    [
        DurableHead(7),
        DurableHead(7, is_void=True),
        HEAD,
        SHUT,
        replace(HEAD, floor=120),
        DurableHead(
            7, (Epoch(1, 0, (), LabelSet(), 0), Epoch(5, 0, (A,), X, 9, True), Epoch(6, 9, (A,), X, 9, False, True))
        ),
    ],
)
def test_what_is_encoded_is_decoded(head: DurableHead) -> None:
    assert DurableHead.decoded(head.encoded()) == head


def test_an_epoch_that_was_closed_at_zero_is_not_an_open_one() -> None:
    assert DurableHead.decoded(DurableHead(7, (Epoch(1, 0, (A,), end=0),)).encoded()).open_epoch is None


@pytest.mark.parametrize("epochs", [(OPEN, CLOSED), (CLOSED, CLOSED), (replace(CLOSED, end=None), OPEN)])
def test_epochs_that_do_not_ascend_or_are_open_below_the_last_are_refused(epochs: tuple[Epoch, ...]) -> None:
    with pytest.raises(ValidationError, match="Epochs"):
        DurableHead.decoded(DurableHead(7, epochs).encoded())


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValidationError, match="not readable"):
        DurableHead.decoded(b"\xff\xff")


def test_a_field_that_a_later_release_has_added_does_not_matter() -> None:
    message = head_pb2.Head.FromString(HEAD.encoded())
    assert DurableHead.decoded(message.SerializeToString() + b"\xf8\x07\x01") == HEAD


def test_a_new_incarnation_ignores_the_old_record() -> None:
    """DH-13."""
    assert HEAD.of(7) is HEAD
    assert HEAD.of(8) is None


# Who takes part (DH-5).


def test_a_synchronisation_names_the_last_epoch_on_record() -> None:
    assert terms(HEAD, 7) == EpochTerms(EpochMark(7, 2), 100, oldest_begin=0)
    assert terms(SHUT, 7) == EpochTerms(EpochMark(7, 2), 100, is_closed=True, oldest_begin=0)
    assert terms(VOID, 7).is_void
    assert terms(None, 7) == EpochTerms(EpochMark(7, 0), is_closed=True)
    assert terms(DurableHead(7, is_void=True), 7) == EpochTerms(EpochMark(7, 0), is_closed=True, is_void=True)


@pytest.mark.parametrize(
    ("head", "held", "is_in"),
    [
        (HEAD, copy(120), True),
        (HEAD, copy(100, number=1), False),
        (HEAD, copy(120, number=3), False),
        (HEAD, copy(120, create_revision=6), False),
        (SHUT, copy(120), False),
        (None, copy(120), False),
        (VOID, copy(120, number=1), True),
    ],
)
def test_only_a_copy_of_the_last_open_epoch_takes_part(head: DurableHead | None, held: CopyEnd, is_in: bool) -> None:
    """DH-5; and while void, all do, as in Gazette."""
    assert takes_part(terms(head, 7), held) is is_in


def test_a_synchronisation_that_names_an_older_epoch_than_the_copys_is_stale() -> None:
    """DH-5: nothing is retired by it."""
    assert [is_stale(terms(HEAD, 7), copy(5, number=number)) for number in (1, 2, 3)] == [False, False, True]
    assert is_stale(terms(HEAD, 7), copy(5, number=1, create_revision=8))
    assert not is_stale(terms(HEAD, 7), copy(5, number=9, create_revision=6))


# Where a journal goes on (DH-5, DH-6).


def test_the_greatest_end_among_those_that_take_part_is_the_head_with_its_registers() -> None:
    """DH-5."""
    claims = [Claim(B, copy(120, registers=X)), Claim(C, copy(150)), Claim(D, None)]
    assert start_of(HEAD, 7, claims) == Start(150, Y)
    assert start_of(HEAD, 7, claims[::-1]) == Start(150, Y)


def test_a_copy_of_an_earlier_epoch_says_nothing_however_far_it_goes() -> None:
    """DH-5."""
    assert start_of(HEAD, 7, [Claim(B, copy(120)), Claim(A, copy(900, number=1))]) == Start(120, Y)
    assert start_of(HEAD, 7, [Claim(A, copy(900, number=1))]) == Unproven(OPEN)


def test_whoever_is_listed_without_a_commit_ends_where_the_epoch_begins() -> None:
    """DH-5: the opener may have died before its first proposal."""
    assert start_of(HEAD, 7, [Claim(D), Claim(B)]) == Start(100, X)
    assert start_of(HEAD, 7, [Claim(B), Claim(C, copy(130))]) == Start(130, Y)
    assert start_of(HEAD, 7, [Claim(B, copy(100, number=1))]) == Start(100, X)


def test_a_directory_with_commits_that_are_not_in_the_spool_does_not_speak_as_one_without_any() -> None:
    """DH-5, DH-7: it claims no id."""
    assert start_of(HEAD, 7, [Claim(b"")]) == Unproven(OPEN)


def test_none_takes_part() -> None:
    """DH-6."""
    assert start_of(SHUT, 7, [Claim(D)]) == Start(140, Y)
    assert start_of(SHUT, 7, [Claim(B, copy(900))]) == Start(140, Y), "not even a copy of the closed epoch"
    assert start_of(None, 7, [Claim(D)]) == Start(0)
    assert start_of(HEAD, 7, [Claim(A), Claim(D)]) == Unproven(OPEN)
    assert start_of(HEAD, 7, []) == Unproven(OPEN)


def test_a_peer_that_is_ahead_of_the_record_makes_it_be_read_again() -> None:
    """DH-1, DH-5."""
    assert start_of(HEAD, 7, [Claim(B, copy(120)), Claim(C, copy(160, number=3))]) == Outdated()
    assert start_of(None, 7, [Claim(C, copy(160, number=1))]) == Outdated()


# Opening and closing.


def test_an_epoch_is_opened_where_the_last_one_is_closed_with_it() -> None:
    """DH-1: in one change."""
    head = opened(HEAD, 7, Start(140, Y), [D, C, B])
    assert head.epochs == (CLOSED, replace(OPEN, end=140, registers=Y), Epoch(3, 140, (B, C, D), Y))
    assert not head.is_void
    assert head.open_epoch is head.last


def test_the_first_epoch_of_a_journal_and_of_an_incarnation_is_number_one() -> None:
    """DH-13."""
    assert opened(None, 9, Start(0), [A]) == DurableHead(9, (Epoch(1, 0, (A,)),))


def test_a_close_stays_as_it_is() -> None:
    assert opened(SHUT, 7, Start(140, Y), [A]).epochs[:2] == SHUT.epochs


def test_whoever_opens_an_epoch_has_no_floor_and_is_not_void() -> None:
    assert opened(replace(HEAD, floor=120), 7, Start(140), [A]).floor == 0


def test_an_epoch_that_was_open_while_void_has_no_end_that_anybody_knows() -> None:
    """Section 6."""
    head = opened(VOID, 7, Start(140, Y), [A])
    assert not head.is_void
    assert head.epochs[1] == replace(OPEN, end=100, is_voided=True)
    assert fate(head, EpochMark(7, 2)) == AckedOnly()


def test_an_epoch_of_which_nobody_knows_the_end_stays_until_the_store_has_what_the_next_one_begins_with() -> None:
    """DH-12, section 6."""
    assert fate(opened(VOID, 7, Start(140, Y), [A], [(0, 100)]), EpochMark(7, 2)) == AckedOnly()
    assert fate(opened(VOID, 7, Start(140, Y), [A], [(0, 140)]), EpochMark(7, 2)) == Stored()


@pytest.mark.parametrize(
    ("stored", "numbers"),
    [
        ([], [1, 2, 3]),
        ([(0, 99)], [1, 2, 3]),
        ([(0, 100)], [2, 3]),
        ([(0, 140)], [3]),
        ([(0, 999)], [3]),
        ([(1, 999)], [1, 2, 3]),
        ([(0, 120), (121, 999)], [2, 3]),
        ([(100, 140)], [1, 2, 3]),
    ],
)
def test_closed_epochs_go_only_once_the_store_has_them(stored: Extents, numbers: list[int]) -> None:
    """DH-12: oldest first, and never the open one. A copy of a later epoch may have bytes of an earlier one, too."""
    assert [epoch.number for epoch in opened(HEAD, 7, Start(140, Y), [A], stored).epochs] == numbers


def test_what_retention_has_removed_keeps_no_epoch_on_record() -> None:
    """DH-12: a store that lacks it had it, or it is past its time."""
    head = pruned(opened(HEAD, 7, Start(140, Y), [A]), 60)
    assert head is not None
    assert trimmed(head, [(70, 140)]) is None, "somebody may still bring [60, 70)"
    trim = trimmed(head, [(60, 140)])
    assert trim is not None
    assert [epoch.number for epoch in trim.epochs] == [3]
    assert opened(head, 7, Start(150), [A]).pruned_through == 60
    assert (head.oldest_begin, DurableHead.decoded(head.encoded())) == (60, head)
    assert pruned(head, 60) is None
    assert pruned(DurableHead(7), 60) is None


def test_an_epoch_that_an_operator_closed_beyond_its_bytes_does_not_keep_those_after_it() -> None:
    """DH-11, DH-12: it stays itself, since whoever brings its bytes has to know where they were cut."""
    start = reset_start(HEAD, 500, 0)
    assert start is not None
    head = opened(opened(opened(HEAD, 7, start, [A]), 7, Start(600), [A]), 7, Start(700), [A])
    trim = trimmed(head, [(0, 120), (500, 700)])
    assert trim is not None
    assert [epoch.number for epoch in trim.epochs] == [2, 5]
    assert fate(trim, EpochMark(7, 2)) == CutAt(500)
    assert fate(trim, EpochMark(7, 3)) == Stored()
    filled = trimmed(head, [(0, 700)])
    assert filled is not None
    assert [epoch.number for epoch in filled.epochs] == [5], "its bytes were brought"


def test_a_hundred_epochs_that_the_store_lacks_all_stay() -> None:
    """DH-12: never for another reason."""
    head = opened(None, 7, Start(0), [A])
    for at in range(1, 100):
        head = opened(head, 7, Start(at), [A])
    assert [epoch.number for epoch in head.epochs] == list(range(1, 101))


def test_a_holder_closes_where_its_copy_ends() -> None:
    """DH-7."""
    assert closed(HEAD, B, copy(150)) == DurableHead(7, (CLOSED, replace(OPEN, end=150, registers=Y)))


def test_a_holder_without_a_commit_closes_where_the_epoch_begins() -> None:
    """DH-7."""
    at_begin = DurableHead(7, (CLOSED, replace(OPEN, end=100)))
    assert closed(HEAD, B, None) == at_begin
    assert closed(HEAD, B, copy(900, number=1)) == at_begin, "a copy of another epoch is none of this"


def test_who_may_not_close() -> None:
    """DH-7."""
    assert closed(HEAD, A, copy(150)) is None, "not listed"
    assert closed(SHUT, B, copy(150)) is None, "closed already"
    assert closed(VOID, B, copy(150)) is None, "void"
    assert closed(DurableHead(7), B, None) is None


def test_nobody_closes_below_the_word_of_a_damaged_copy() -> None:
    """Section 3."""
    head = replace(HEAD, floor=130)
    assert closed(head, B, copy(129)) is None
    assert closed(head, B, None) is None
    ended = closed(head, B, copy(130))
    assert ended is not None
    assert ended.floor == 0


def test_a_damaged_holder_raises_the_floor_and_says_that_it_proves_nothing() -> None:
    """Section 3: the floor only rises, and only in an open epoch."""
    said = damaged(HEAD, B, 130)
    assert said == DurableHead(7, (CLOSED, replace(OPEN, damaged=(B,))), floor=130)
    assert damaged(said, B, 130) is None
    assert damaged(said, B, 120) is None
    unlisted = damaged(HEAD, A, 130)
    assert unlisted == replace(HEAD, floor=130), "its directory has another id by now"
    assert damaged(HEAD, A, 100) is None, "that is so anyhow"
    assert damaged(SHUT, B, 130) is None
    assert DurableHead.decoded(said.encoded()) == said


def test_a_holder_that_said_it_is_damaged_never_closes_nor_takes_part_as_one_without_commits() -> None:
    """Section 3: whatever has become of its files since."""
    said = damaged(HEAD, B, 0)
    assert said is not None
    assert closed(said, B, None) is None
    assert closed(said, B, copy(150)) is None
    assert start_of(said, 7, [Claim(B)]) == Unproven(said.epochs[-1])
    assert start_of(said, 7, [Claim(B), Claim(C)]) == Start(100, X)


def test_void_is_recorded_once() -> None:
    """Section 6."""
    assert voided(None, 7) == DurableHead(7, is_void=True)
    assert voided(HEAD, 7) == VOID
    assert voided(VOID, 7) is None


@pytest.mark.parametrize(
    ("offset", "listed", "floor", "may"),
    [
        (140, 0, 0, True),
        (100, 100, 0, True),
        (99, 0, 0, False),
        (140, 141, 0, False),
        (140, 0, 141, False),
        (140, 140, 140, True),
        (HEAD_MAX, 0, 0, True),
        (HEAD_MAX + 1, 0, 0, False),
    ],
)
def test_a_reset_is_not_below_what_is_known(offset: int, listed: int, floor: int, may: bool) -> None:
    """DH-11: the end of a fresh listing, the epoch's begin, or floor. Nor beyond where any journal ends."""
    start = reset_start(replace(HEAD, floor=floor), offset, listed)
    assert start == (Start(offset, X, is_forced=True) if may else None)


def test_an_operator_may_change_the_registers_with_a_reset() -> None:
    """DH-11."""
    assert reset_start(HEAD, 500, 0, lambda held: Y) == Start(500, Y, is_forced=True)


def test_only_an_open_epoch_is_reset_and_that_is_told() -> None:
    """DH-11."""
    assert reset_start(SHUT, 500, 0) is None
    start = reset_start(HEAD, 500, 0)
    assert start is not None
    assert opened(HEAD, 7, start, [A]).epochs[1] == replace(OPEN, end=500, is_forced=True)


# What becomes of copies (DH-8, DH-13).


@pytest.mark.parametrize(
    ("head", "number", "expected"),
    [
        (HEAD, 1, CutAt(100)),
        (HEAD, 2, Undecided()),
        (SHUT, 2, CutAt(140)),
        (HEAD, 3, Unknown()),
        (replace(SHUT, epochs=SHUT.epochs[1:]), 1, Stored()),
        (None, 1, Unknown()),
        (DurableHead(7), 1, Unknown()),
        (VOID, 1, CutAt(100)),
        (VOID, 2, AckedOnly()),
        (VOID, 3, AckedOnly()),
    ],
)
def test_a_copy_goes_by_its_own_epoch(head: DurableHead | None, number: int, expected: object) -> None:
    """DH-8: cut at that epoch's own end, and not where the latest begins."""
    assert fate(head, EpochMark(7, number)) == expected


def test_incarnations_do_not_mix() -> None:
    """DH-13."""
    assert fate(HEAD, EpochMark(6, 2)) == AckedOnly()
    assert fate(HEAD, EpochMark(8, 1)) == Unknown()
    assert fate(HEAD, NO_EPOCH) == AckedOnly()
    assert fate(None, NO_EPOCH) == AckedOnly()
