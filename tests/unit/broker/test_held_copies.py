"""What a spool directory does about copies that no live replica has (DH-7, DH-8)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pytest

from broker.durable_head import AckedOnly, CutAt, DurableHead, Epoch, Fate, Stored, Undecided, Unknown
from broker.held_copies import JOURNAL_HASH, HeldCopies, HeldCopy, Judgement, carry_out
from fragment.spool import CopyEnd, EpochMark
from fragment.spool_log import CommitRecord
from fragment.spool_recovery import Copy, Worth
from protocol.codec import CompressionCodec
from protocol.fragment import NO_SUM
from protocol.label import LabelSet
from tests.support.broker_cores import JOURNAL, labels

MINE, OTHER = b"m" * 16, b"o" * 16
HASH = hashlib.sha1(JOURNAL.encode()).hexdigest()[:JOURNAL_HASH]
X = labels(x="1")
FIRST, SECOND, THIRD = (EpochMark(7, number) for number in (1, 2, 3))
OPEN = Epoch(2, 100, (MINE, OTHER))
HEAD = DurableHead(7, (Epoch(1, 0, (MINE,), end=100), OPEN))


def recovered(end: int, mark: EpochMark = SECOND, worth: Worth = Worth.WHOLE, acked: int | None = None) -> Copy:
    last = CommitRecord(
        JOURNAL,
        mark.create_revision,
        mark,
        100,
        end,
        NO_SUM,
        CompressionCodec.NONE,
        X,
        acked,
        None,
        bytes(16),
        False,
        b"",
        False,
    )
    return Copy(worth, "", (last,), None)


@dataclass
class Done:
    """A CopyStore that keeps what it is told."""

    told: list[tuple[object, ...]] = field(default_factory=list)

    def closed(self, journal: str, epoch: EpochMark, end: int) -> None:
        self.told.append(("closed", epoch, end))

    def spared(self, journal: str, epoch: EpochMark) -> None:
        self.told.append(("spared", epoch))

    def acked_only(self, journal: str, epoch: EpochMark, through: int, *, is_over: bool = True) -> None:
        self.told.append(("acked only", epoch, through, is_over))


def held(*copies: Copy, on_record: DurableHead | None = None) -> HeldCopies:
    """What a process finds when it starts, with this on record."""
    made = HeldCopies(MINE)
    for at, copy in enumerate(copies):
        made.recover(f"{HASH}-{at}", copy)
    made.bound({JOURNAL: on_record or HEAD})
    return made


def closed_at(end: int, registers: LabelSet = X) -> DurableHead:
    return replace(HEAD, epochs=(HEAD.epochs[0], replace(OPEN, end=end, registers=registers)))


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (CutAt(5), [("closed", FIRST, 5)]),
        (Stored(), [("spared", FIRST)]),
        (AckedOnly(), [("acked only", FIRST, 3, True)]),
        (Undecided(), []),
        (Unknown(), []),
    ],
)
def test_each_fate_is_carried_out(fate: Fate, told: list[object]) -> None:
    store = Done()
    carry_out(store, JOURNAL, HeldCopy(FIRST, CopyEnd(FIRST, 5, X), 3), fate)
    assert store.told == told


def test_a_copy_of_the_open_epoch_closes_it_where_it_ends() -> None:
    """DH-7: be it recovered, or given up by a process that lives on."""
    assert held(recovered(150)).judged(JOURNAL, HEAD, has_replica=True) == Judgement(closed_at(150))
    given_up = held()
    given_up.give_up(JOURNAL, CopyEnd(SECOND, 150, X), 120)
    assert given_up.judged(JOURNAL, HEAD, has_replica=True) == Judgement(closed_at(150))


def test_all_that_there_is_of_an_epoch_is_one_copy_which_ends_where_the_furthest_does() -> None:
    copies = held(recovered(120), recovered(150), recovered(130))
    assert len(copies) == 1
    assert copies.judged(JOURNAL, HEAD, has_replica=True) == Judgement(closed_at(150))


def test_a_copy_of_a_closed_epoch_is_settled_and_then_forgotten() -> None:
    """DH-8."""
    copies, store = held(recovered(150)), Done()
    judgement = copies.judged(JOURNAL, closed_at(140), has_replica=True)
    assert judgement == Judgement(settled=((SECOND, CutAt(140)),))
    assert copies.has(JOURNAL, SECOND)
    copies.perform(JOURNAL, judgement, store)
    assert store.told == [("closed", SECOND, 140)]
    assert not copies.has(JOURNAL, SECOND)
    assert copies.journals == []


def test_copies_of_several_epochs_go_each_to_its_own_fate() -> None:
    copies = held(recovered(90, FIRST), recovered(150), recovered(190, THIRD))
    judgement = copies.judged(JOURNAL, HEAD, has_replica=True)
    assert judgement == Judgement(closed_at(150), ((FIRST, CutAt(100)),), unknown=(THIRD,))


def test_who_is_not_listed_closes_nothing() -> None:
    """DH-7."""
    copies = HeldCopies(b"another")
    copies.recover(f"{HASH}-0", recovered(150))
    assert copies.judged(JOURNAL, HEAD, has_replica=True) == Judgement()
    assert copies.judged(JOURNAL, HEAD, has_replica=False) == Judgement()


def test_only_without_a_live_replica_does_a_directory_without_commits_have_a_say() -> None:
    """DH-7: a live replica may be about to commit."""
    assert held().judged(JOURNAL, HEAD, has_replica=False) == Judgement(closed_at(100, LabelSet()))
    assert held().judged(JOURNAL, HEAD, has_replica=True) == Judgement()
    older = held(recovered(90, FIRST))
    assert older.judged(JOURNAL, HEAD, has_replica=False) == Judgement(
        closed_at(100, LabelSet()), ((FIRST, CutAt(100)),)
    )


def test_a_replica_that_is_given_up_without_a_commit_of_the_open_epoch_closes_it_where_it_began() -> None:
    """DH-7, DH-14: be there commits of an earlier one or none at all."""
    for copy in (None, CopyEnd(FIRST, 100, X)):
        copies = held()
        copies.give_up(JOURNAL, copy)
        assert copies.journals == [JOURNAL]
        assert copies.judged(JOURNAL, HEAD, has_replica=True).change is None, "another one has taken its place"
        assert copies.judged(JOURNAL, HEAD, has_replica=False).change == closed_at(100, LabelSet())
        copies.perform(JOURNAL, copies.judged(JOURNAL, closed_at(100), has_replica=False), Done())
        assert copies.journals == []


def test_a_damaged_copy_says_what_is_acknowledged_and_that_it_proves_no_end() -> None:
    """Section 3: the floor first, and only then is anything uploaded. Where it is known that it cannot tell where the
    epoch ends, an operator may."""
    copies, store = held(recovered(150, worth=Worth.DAMAGED, acked=120)), Done()
    assert copies.damaged_count == 1
    said = with_damage(floor=120)
    assert copies.judged(JOURNAL, HEAD, has_replica=False) == Judgement(said)
    on_record = copies.judged(JOURNAL, said, has_replica=False)
    assert on_record == Judgement(floored=(SECOND,))
    copies.perform(JOURNAL, on_record, store)
    assert store.told == [("acked only", SECOND, 120, False)]
    assert copies.has(JOURNAL, SECOND), "its log stays until its epoch is closed"


def with_damage(floor: int = 0) -> DurableHead:
    return replace(HEAD, epochs=(HEAD.epochs[0], replace(OPEN, damaged=(MINE,))), floor=floor)


def test_a_damaged_part_leaves_it_open_where_the_epoch_ends() -> None:
    for order in ((0, 1), (1, 0)):
        parts = [recovered(150), recovered(140, worth=Worth.DAMAGED, acked=130)]
        copies = held(*(parts[at] for at in order))
        assert copies.judged(JOURNAL, HEAD, has_replica=False) == Judgement(with_damage(130))


def test_what_any_part_of_a_copy_knows_to_be_acknowledged_holds_for_all_of_it() -> None:
    """Section 3: the record that completes a fragment does not know yet what became of it."""
    copies, store = held(recovered(150, acked=100), recovered(190, acked=170)), Done()
    void = replace(HEAD, is_void=True)
    copies.perform(JOURNAL, copies.judged(JOURNAL, void, has_replica=False), store)
    assert store.told == [("acked only", SECOND, 170, True)]


@pytest.mark.parametrize("shown", [recovered(90, FIRST, Worth.DAMAGED, 80), Copy(Worth.DAMAGED, "", (), None)])
def test_a_damaged_log_may_have_commits_of_later_epochs_than_it_shows(shown: Copy) -> None:
    """DH-5, DH-7: so the directory neither closes nor takes part as one without commits, and its log stays."""
    copies, store = held(shown), Done()
    assert copies.damaged_count == 1
    assert copies.has(JOURNAL, SECOND)
    assert copies.judged(JOURNAL, HEAD, has_replica=False) == Judgement(with_damage())
    copies.perform(JOURNAL, copies.judged(JOURNAL, with_damage(), has_replica=False), store)
    assert store.told == []
    assert copies.journals == [JOURNAL], "it is looked after until that epoch is closed"
    judgement = copies.judged(JOURNAL, closed_at(140), has_replica=False)
    assert judgement.over == (f"{HASH}-0",)
    copies.perform(JOURNAL, judgement, store)
    assert not copies.has(JOURNAL, SECOND)
    assert (copies.journals, copies.damaged_count) == ([], 0)


def test_an_epoch_that_does_not_list_a_directory_is_none_of_its_doubts() -> None:
    """It has no say in it, whatever it may have."""
    elsewhere = replace(HEAD, epochs=(HEAD.epochs[0], replace(OPEN, holders=(OTHER,))))
    copies = held(recovered(90, FIRST, Worth.DAMAGED, 80), on_record=elsewhere)
    judgement = copies.judged(JOURNAL, elsewhere, has_replica=False)
    assert judgement == Judgement(settled=((FIRST, CutAt(100)),), over=(f"{HASH}-0",))


def test_a_damaged_log_has_no_commits_of_epochs_that_began_after_it_was_found() -> None:
    """Else a directory that is sound in all that came since would never prove anything again."""
    lost = Copy(Worth.DAMAGED, "", (), None)
    copies = held(lost, on_record=closed_at(140))
    assert not copies.has(JOURNAL, THIRD)
    later = replace(closed_at(140), epochs=(*closed_at(140).epochs, Epoch(3, 140, (MINE,))))
    again = HeldCopies(MINE)
    again.recover(f"{HASH}-0", lost, doubted_through=SECOND)
    assert again.bound({JOURNAL: later}) == {}, "an earlier process has found it out"
    assert not again.has(JOURNAL, THIRD)
    ended = again.judged(JOURNAL, later, has_replica=False).change
    assert ended is not None
    assert ended.epochs[-1].end == 140


def test_through_which_epoch_a_damaged_log_may_have_commits_is_found_out_once() -> None:
    copies = HeldCopies(MINE)
    copies.recover(f"{HASH}-0", recovered(90, FIRST, Worth.DAMAGED))
    copies.recover(f"{HASH}-1", recovered(190, SECOND))
    assert copies.bound({JOURNAL: HEAD, "acme/others": DurableHead(9, (Epoch(8, 0, (MINE,)),))}) == {
        f"{HASH}-0": SECOND
    }
    unreadable = HeldCopies(MINE)
    unreadable.recover(f"{HASH}-0", recovered(90, FIRST, Worth.DAMAGED))
    assert unreadable.bound({JOURNAL: None}) == {}
    assert unreadable.has(JOURNAL, THIRD), "nobody knows what the record says"


def test_the_damaged_log_of_another_journal_raises_no_doubt() -> None:
    others = HeldCopies(MINE)
    others.recover(f"{'0' * JOURNAL_HASH}-0", Copy(Worth.DAMAGED, "", (), None))
    others.bound({JOURNAL: HEAD})
    assert others.judged(JOURNAL, HEAD, has_replica=False) == Judgement(closed_at(100, LabelSet()))


def test_what_the_record_does_not_know_is_kept_and_told_once() -> None:
    """DH-8."""
    copies, store = held(recovered(150)), Done()
    judgement = copies.judged(JOURNAL, None, has_replica=False)
    assert judgement == Judgement(unknown=(SECOND,))
    copies.perform(JOURNAL, judgement, store)
    assert store.told == []
    assert copies.has(JOURNAL, SECOND)
    assert copies.is_news(JOURNAL, SECOND)
    assert not copies.is_news(JOURNAL, SECOND)


def test_what_the_record_does_not_know_because_its_journal_is_gone_is_set_aside_as_far_as_it_is_acknowledged() -> None:
    """DH-13: beyond that, another copy may say otherwise."""
    copies = held(recovered(150))
    for item_revision in (0, 9):
        judgement = copies.judged(JOURNAL, None, has_replica=False, item_revision=item_revision)
        assert judgement == Judgement(settled=((SECOND, AckedOnly()),))
    assert copies.judged(JOURNAL, None, has_replica=False, item_revision=7) == Judgement(unknown=(SECOND,))


def test_a_copy_of_a_deleted_incarnation_counts_as_far_as_it_is_acknowledged() -> None:
    """DH-13."""
    old = EpochMark(6, 2)
    assert held(recovered(150, old)).judged(JOURNAL, HEAD, has_replica=True) == Judgement(settled=((old, AckedOnly()),))


def test_nothing_is_closed_while_void() -> None:
    """Section 6: it is uploaded up to its own word."""
    void = replace(HEAD, is_void=True)
    assert held(recovered(150)).judged(JOURNAL, void, has_replica=False) == Judgement(settled=((SECOND, AckedOnly()),))
