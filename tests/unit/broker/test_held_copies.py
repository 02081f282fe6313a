"""What a spool directory does about copies that no live replica has (DH-7, DH-8)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import pytest

from broker.durable_head import AckedOnly, CutAt, DurableHead, Epoch, Fate, Stored, Undecided, Unknown
from broker.held_copies import JOURNAL_HASH, HeldCopies, Judgement, carry_out
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
        JOURNAL, mark, 100, end, NO_SUM, CompressionCodec.NONE, X, acked, None, bytes(16), False, b"", False
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

    def acked_only(self, journal: str, epoch: EpochMark, *, is_over: bool = True) -> None:
        self.told.append(("acked only", epoch, is_over))


def held(*copies: Copy) -> HeldCopies:
    made = HeldCopies(MINE)
    for copy in copies:
        made.recover(HASH, copy)
    return made


def closed_at(end: int, registers: LabelSet = X) -> DurableHead:
    return replace(HEAD, epochs=(HEAD.epochs[0], replace(OPEN, end=end, registers=registers)))


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (CutAt(5), [("closed", FIRST, 5)]),
        (Stored(), [("spared", FIRST)]),
        (AckedOnly(), [("acked only", FIRST, True)]),
        (Undecided(), []),
        (Unknown(), []),
    ],
)
def test_each_fate_is_carried_out(fate: Fate, told: list[object]) -> None:
    store = Done()
    carry_out(store, JOURNAL, FIRST, fate)
    assert store.told == told


def test_a_copy_of_the_open_epoch_closes_it_where_it_ends() -> None:
    """DH-7: be it recovered, or given up by a process that lives on."""
    assert held(recovered(150)).judged(JOURNAL, HEAD) == Judgement(closed_at(150))
    given_up = held()
    given_up.give_up(JOURNAL, CopyEnd(SECOND, 150, X))
    assert given_up.judged(JOURNAL, HEAD) == Judgement(closed_at(150))


def test_all_that_there_is_of_an_epoch_is_one_copy_which_ends_where_the_furthest_does() -> None:
    copies = held(recovered(120), recovered(150), recovered(130))
    assert len(copies) == 1
    assert copies.judged(JOURNAL, HEAD) == Judgement(closed_at(150))


def test_a_copy_of_a_closed_epoch_is_settled_and_then_forgotten() -> None:
    """DH-8."""
    copies, store = held(recovered(150)), Done()
    judgement = copies.judged(JOURNAL, closed_at(140))
    assert judgement == Judgement(settled=((SECOND, CutAt(140)),))
    assert copies.has(JOURNAL, SECOND)
    copies.perform(JOURNAL, judgement, store)
    assert store.told == [("closed", SECOND, 140)]
    assert not copies.has(JOURNAL, SECOND)
    assert copies.journals == []


def test_copies_of_several_epochs_go_each_to_its_own_fate() -> None:
    copies = held(recovered(90, FIRST), recovered(150), recovered(190, THIRD))
    judgement = copies.judged(JOURNAL, HEAD)
    assert judgement == Judgement(closed_at(150), ((FIRST, CutAt(100)),), unknown=(THIRD,))


def test_who_is_not_listed_closes_nothing() -> None:
    """DH-7."""
    copies = HeldCopies(b"another")
    copies.recover(HASH, recovered(150))
    assert copies.judged(JOURNAL, HEAD) == Judgement()
    assert copies.judged(JOURNAL, HEAD, is_starting=True) == Judgement()


def test_only_while_it_starts_does_a_directory_without_commits_have_a_say() -> None:
    """DH-7: later, a live replica may be about to commit."""
    assert held().judged(JOURNAL, HEAD, is_starting=True) == Judgement(closed_at(100, LabelSet()))
    assert held().judged(JOURNAL, HEAD) == Judgement()
    older = held(recovered(90, FIRST))
    assert older.judged(JOURNAL, HEAD, is_starting=True) == Judgement(
        closed_at(100, LabelSet()), ((FIRST, CutAt(100)),)
    )


def test_a_damaged_copy_says_what_is_acknowledged_and_closes_nothing() -> None:
    """Section 3: the floor first, and only then is anything uploaded."""
    copies, store = held(recovered(150, worth=Worth.DAMAGED, acked=120)), Done()
    assert copies.damaged_count == 1
    judgement = copies.judged(JOURNAL, HEAD, is_starting=True)
    assert judgement == Judgement(replace(HEAD, floor=120))
    on_record = copies.judged(JOURNAL, replace(HEAD, floor=120), is_starting=True)
    assert on_record == Judgement(floored=(SECOND,))
    copies.perform(JOURNAL, on_record, store)
    assert store.told == [("acked only", SECOND, False)]
    assert copies.has(JOURNAL, SECOND), "its log stays until its epoch is closed"


def test_a_damaged_part_leaves_it_open_where_the_epoch_ends() -> None:
    for order in ((0, 1), (1, 0)):
        parts = [recovered(150), recovered(140, worth=Worth.DAMAGED, acked=130)]
        copies = held(*(parts[at] for at in order))
        assert copies.judged(JOURNAL, HEAD, is_starting=True) == Judgement(replace(HEAD, floor=130))


def test_a_damaged_copy_of_another_epoch_makes_the_absence_of_commits_prove_nothing() -> None:
    """DH-7: no damaged copy of that journal."""
    copies = held(recovered(90, FIRST, Worth.DAMAGED, 80))
    judgement = copies.judged(JOURNAL, HEAD, is_starting=True)
    assert judgement == Judgement(settled=((FIRST, CutAt(100)),))


def test_a_log_of_which_nothing_can_be_read_may_be_of_any_epoch_of_its_journal() -> None:
    lost = Copy(Worth.DAMAGED, "", (), None)
    copies = held(lost)
    assert copies.damaged_count == 1
    assert copies.judged(JOURNAL, HEAD, is_starting=True) == Judgement()
    others = HeldCopies(MINE)
    others.recover("0" * JOURNAL_HASH, lost)
    assert others.judged(JOURNAL, HEAD, is_starting=True) == Judgement(closed_at(100, LabelSet()))


def test_what_the_record_does_not_know_is_kept_and_told_once() -> None:
    """DH-8."""
    copies, store = held(recovered(150)), Done()
    judgement = copies.judged(JOURNAL, None, is_starting=True)
    assert judgement == Judgement(unknown=(SECOND,))
    copies.perform(JOURNAL, judgement, store)
    assert store.told == []
    assert copies.has(JOURNAL, SECOND)
    assert copies.is_news(JOURNAL, SECOND)
    assert not copies.is_news(JOURNAL, SECOND)


def test_a_copy_of_a_deleted_incarnation_counts_as_far_as_it_is_acknowledged() -> None:
    """DH-13."""
    old = EpochMark(6, 2)
    assert held(recovered(150, old)).judged(JOURNAL, HEAD) == Judgement(settled=((old, AckedOnly()),))


def test_nothing_is_closed_while_void() -> None:
    """Section 6: it is uploaded up to its own word."""
    void = replace(HEAD, is_void=True)
    assert held(recovered(150)).judged(JOURNAL, void, is_starting=True) == Judgement(settled=((SECOND, AckedOnly()),))
