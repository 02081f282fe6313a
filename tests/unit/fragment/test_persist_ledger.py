from __future__ import annotations

import random

import pytest

from fragment.persist_destination import CurrentSpec
from fragment.persist_item import CommitAt, Removal
from fragment.persist_ledger import PersistLedger
from fragment.persist_queue import INSURANCE_S
from fragment.spool import NO_EPOCH, EpochMark
from fragment.spool_recovery import Copy, Worth
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from protocol.journal import JournalSpec
from tests.support.completed_spools import (
    APPENDED_NS,
    EPOCH,
    JOURNAL,
    NO_STORES,
    Files,
    Handed,
    PersistItem,
    handed,
    left,
    reopened,
    spec,
)

REVISION = EPOCH.create_revision


class Broker:
    """A ledger, and what there is around it. Uploads succeed, in no time, when they are asked for."""

    def __init__(self, current: JournalSpec | None = None) -> None:
        self.now_s = 1000.0
        self.current: CurrentSpec | None = CurrentSpec(current or spec(), REVISION)
        self.is_etcd_known = True
        self.has_lease = True
        self.changes = 0
        self.ledger: PersistLedger[Files] = PersistLedger(
            self._spec_now, lambda: self.now_s, random.Random(3), may_upload=lambda: self.has_lease
        )
        self.ledger.listen(self._changed)

    def _spec_now(self, _: str) -> CurrentSpec | None:
        if not self.is_etcd_known:
            raise UnavailableError("the mirror of etcd is not loaded")
        return self.current

    def _changed(self) -> None:
        self.changes += 1

    def complete(self, completed: Handed, *, primary: bool = True, owner: object = None) -> Handed:
        self.ledger.complete(completed, REVISION, primary=primary, owner=owner)
        return completed

    def adopt(self, copy: Copy) -> Handed:
        completed = reopened(copy)
        self.ledger.adopt(completed, copy)
        return completed

    def is_idle(self) -> bool:
        return self.ledger.is_idle

    def start(self) -> list[PersistItem]:
        return self.ledger.start()

    def start_one(self) -> PersistItem:
        (item,) = self.start()
        return item

    def store(self, item: PersistItem) -> Removal:
        """As one that was started; returns what went of its files."""
        decided = item.decided()
        if item.stored is None and decided is not None:
            self.ledger.check_free(item)
            # Where it is cut there is a log to be asked.
            self.ledger.stored(item, decided if isinstance(decided, Fragment) else item.fragment)
        removal = item.removal()
        if removal is not Removal.NOTHING:
            self.ledger.removed(item, removal, item.file)
        self.ledger.done(item)
        return removal

    def keep(self, item: PersistItem) -> None:
        """As one of a journal without stores."""
        self.ledger.done(item, resident=item.fragment)

    def joined(self) -> list[PersistItem]:
        items = []
        while (item := self.ledger.next_to_join()) is not None:
            items.append(item)
        return items


def closed(ledger: PersistLedger[Files], end: int, mark: EpochMark = EPOCH) -> None:
    ledger.closed(JOURNAL, mark, end)


# What is there, and until when.


def test_what_is_complete_waits_until_it_is_stored() -> None:
    broker = Broker()
    completed = broker.complete(handed(b"hello ", b"world\n"))
    ledger = broker.ledger
    assert broker.changes > 0, "there is something to begin"
    assert ledger.waiting == [completed.fragment]
    assert ledger.waiting_bytes == 12
    assert ledger.oldest_append_ns() == APPENDED_NS
    item = broker.start_one()
    assert item.decided() == completed.fragment
    broker.store(item)
    assert (ledger.waiting, ledger.waiting_bytes, ledger.oldest_append_ns()) == ([], 0, None)


def test_the_log_of_what_is_stored_stays_until_its_epoch_is_closed() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    assert broker.store(broker.start_one()) is Removal.CONTENT
    assert broker.ledger.holds(JOURNAL)
    closed(broker.ledger, 5, EpochMark(6, 1))
    assert broker.start() == []
    closed(broker.ledger, 5)
    assert broker.store(broker.start_one()) is Removal.ALL
    assert not broker.ledger.holds(JOURNAL)


def test_what_was_superseded_or_is_of_no_epoch_leaves_nothing_behind() -> None:
    broker = Broker()
    superseded = handed(b"hello")
    broker.complete(Handed(superseded.spool, superseded.file, is_superseded=True))
    assert broker.store(broker.start_one()) is Removal.ALL
    broker.complete(handed(b"hello", mark=NO_EPOCH))
    assert broker.store(broker.start_one()) is Removal.ALL
    assert not broker.ledger.holds(JOURNAL)


def test_an_ended_spool_keeps_its_content_as_long_as_its_log() -> None:
    """It takes no record that would stand in for it."""
    broker = Broker()
    broker.complete(handed(b"hello", has_ended=True))
    assert broker.store(broker.start_one()) is Removal.NOTHING
    closed(broker.ledger, 5)
    assert broker.store(broker.start_one()) is Removal.ALL


@pytest.mark.parametrize("over", ["closed", "acked only"])
def test_an_epoch_that_ends_during_the_upload_leaves_nothing_behind(over: str) -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    item = broker.start_one()
    if over == "closed":
        closed(broker.ledger, 5)
    else:
        broker.ledger.acked_only(JOURNAL, EPOCH, 5)
    assert broker.store(item) is Removal.ALL
    assert not broker.ledger.holds(JOURNAL)


def test_an_epoch_that_ends_while_the_content_is_removed_takes_the_log_along() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    item = broker.start_one()
    broker.ledger.stored(item, item.fragment)
    assert item.removal() is Removal.CONTENT
    closed(broker.ledger, 5)
    broker.ledger.removed(item, Removal.CONTENT, item.file)
    assert item.removal() is Removal.ALL
    broker.ledger.removed(item, Removal.ALL, item.file)
    assert item.removal() is Removal.NOTHING
    broker.ledger.done(item)
    assert not broker.ledger.holds(JOURNAL)


def test_a_failure_is_retried_after_a_pause_and_nothing_is_lost() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    item = broker.start_one()
    pause_s = broker.ledger.failed(item)
    assert broker.start() == []
    assert broker.ledger.due_in_s() == pytest.approx(pause_s)
    assert broker.ledger.waiting == [item.fragment]
    broker.now_s += pause_s
    assert broker.start() == [item]


def test_what_is_stored_is_not_stored_again_if_its_files_cannot_be_removed() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    item = broker.start_one()
    broker.ledger.stored(item, item.fragment)
    broker.now_s += broker.ledger.failed(item)
    assert broker.start_one().stored == item.fragment


def test_what_is_spoiled_is_not_tried_again() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"))
    broker.ledger.spoiled(broker.start_one())
    assert broker.is_idle()
    assert broker.ledger.waiting == []
    assert not broker.ledger.holds(JOURNAL)


def test_only_an_exiting_broker_passes_a_store_over_that_turns_it_away() -> None:
    broker = Broker(spec("file:///one/", "file:///two/"))
    broker.complete(handed(b"hello"))
    item = broker.start_one()
    there = broker.ledger.destination(item, item.fragment)
    assert not broker.ledger.passes_over(there, 0)
    broker.ledger.leave()
    assert broker.ledger.passes_over(there, 0)
    assert not broker.ledger.passes_over(there, 1), "there is no further one"


def test_an_exiting_broker_does_not_wait_for_insurance() -> None:
    broker = Broker()
    broker.complete(handed(b"hello"), primary=False)
    assert broker.start() == []
    assert not broker.is_idle()
    broker.ledger.leave()
    broker.store(broker.start_one())
    assert broker.is_idle()


# Journals without stores.


def test_a_journal_without_stores_keeps_its_files() -> None:
    broker = Broker(NO_STORES)
    completed = broker.complete(handed(b"hello"))
    item = broker.start_one()
    assert broker.ledger.destination(item, item.fragment).is_resident
    broker.keep(item)
    assert broker.is_idle()
    assert broker.ledger.waiting_bytes == 0, "it is where it is to be"
    known = broker.ledger.local(JOURNAL, REVISION)
    assert known == [(completed.fragment, completed.file)], "for a replica that starts"
    broker.ledger.revisit()
    assert broker.start() == []
    assert broker.ledger.local(JOURNAL, REVISION) == known


def test_a_journal_that_gets_a_store_has_its_files_uploaded() -> None:
    broker = Broker(NO_STORES)
    broker.complete(handed(b"hello"))
    broker.keep(broker.start_one())
    broker.current = CurrentSpec(spec(), REVISION)
    broker.is_etcd_known = False
    broker.ledger.revisit()
    assert broker.start() == [], "nobody can tell"
    broker.is_etcd_known = True
    broker.ledger.revisit()
    broker.ledger.revisit()
    assert broker.store(broker.start_one()) is Removal.CONTENT, "its epoch is still open"
    assert broker.ledger.local(JOURNAL, REVISION) == []


def test_a_journal_without_stores_that_is_deleted_leaves_no_files() -> None:
    broker = Broker(NO_STORES)
    broker.complete(handed(b"hello", written_under=NO_STORES))
    broker.keep(broker.start_one())
    closed(broker.ledger, 5)
    assert broker.start() == []
    broker.current = None
    broker.ledger.revisit()
    item = broker.start_one()
    assert broker.ledger.destination(item, item.fragment).stores == ()
    # Files that cannot be removed at once are gone for later.
    broker.now_s += broker.ledger.failed(item)
    assert broker.start() == [item]
    assert broker.ledger.destination(item, item.fragment).stores == ()
    assert item.removal() is Removal.ALL
    broker.ledger.done(item)
    assert not broker.ledger.holds(JOURNAL)


def test_what_may_not_be_part_of_a_journal_without_stores_is_shown_to_nobody() -> None:
    broker = Broker(NO_STORES)
    broker.complete(handed(b"hello", mark=NO_EPOCH))
    broker.keep(broker.start_one())
    assert len(broker.ledger.local(JOURNAL, REVISION)) == 1
    broker.adopt(left(Worth.WHOLE, b"world", acked=None, mark=NO_EPOCH, begin=10))
    broker.ledger.acked_only(JOURNAL, NO_EPOCH, 20)
    broker.keep(broker.start_one())
    assert len(broker.ledger.local(JOURNAL, REVISION)) == 1


# What becomes of spools whose epochs are decided by others (DH-8, DH-9).


def test_what_is_not_acknowledged_waits_and_is_left_for_the_next_start() -> None:
    broker = Broker()
    broker.complete(handed(b"hello", b"world", acked=0))
    ledger = broker.ledger
    ledger.acked(JOURNAL, EPOCH, 5)
    assert broker.start() == []
    assert broker.is_idle()
    ledger.acked(JOURNAL, EpochMark(5, 2), 40)
    ledger.acked(JOURNAL, EpochMark(6, 1), 40)
    assert broker.start() == [], "the word of another epoch, or of another journal of that name, decides nothing"
    ledger.acked(JOURNAL, EPOCH, 10)
    assert not broker.is_idle()
    item = broker.start_one()
    assert item.decided() == item.fragment


def test_a_closed_epoch_cuts_what_is_beyond_its_end() -> None:
    broker = Broker()
    broker.complete(handed(b"hello", b"world", acked=0))
    closed(broker.ledger, 10, EpochMark(6, 1))
    assert broker.start() == []
    closed(broker.ledger, 7)
    item = broker.start_one()
    assert item.decided() == CommitAt(7), "an append counts as a whole: the log tells"
    assert item.dropped_from(handed(b"hello").fragment) == 5
    assert broker.joined() == [item]
    assert broker.store(item) is Removal.ALL


def test_a_spool_that_begins_where_its_epoch_was_closed_goes_without_a_trace_in_the_store() -> None:
    broker = Broker()
    broker.complete(handed(b"hello", acked=0))
    closed(broker.ledger, 0)
    item = broker.start_one()
    assert item.decided() is None
    assert item.dropped_from(None) == 0
    assert broker.store(item) is Removal.ALL
    assert item.stored is None


def test_one_replica_may_know_of_a_close_that_says_nothing_of_others_spools() -> None:
    """An epoch was opened by a primary: it closed what its own peers had when it took them."""
    broker, mine, other = Broker(), object(), object()
    for owner, content in ((mine, b"mine"), (other, b"other")):
        broker.complete(handed(content, acked=0, begin=100), owner=owner)
    broker.ledger.closed(JOURNAL, EPOCH, 105, owner=mine)
    broker.now_s += 1.0
    item = broker.start_one()
    assert item.owner is mine
    broker.store(item)
    closed(broker.ledger, 105)
    assert broker.start_one().owner is other


def test_what_waits_behind_a_first_fragment_that_nobody_can_decide_does_not_keep_a_process_from_its_end() -> None:
    """DH-8: of a number above the record's last, it is kept untouched."""
    broker = Broker()
    broker.complete(handed(b"first", acked=0))
    broker.complete(handed(b"later", acked=10, begin=5))
    broker.ledger.leave()
    assert broker.start() == []
    assert broker.is_idle()


def test_what_the_store_has_from_others_is_not_uploaded_again() -> None:
    """DH-8: of an epoch older than the oldest on record."""
    broker = Broker()
    broker.complete(handed(b"hello", acked=0))
    broker.ledger.spared(JOURNAL, EpochMark(5, 2))
    assert broker.start() == []
    broker.ledger.spared(JOURNAL, EPOCH)
    item = broker.start_one()
    assert item.decided() is None
    assert item.dropped_from(None) is None, "nothing is lost"
    assert broker.joined() == []
    assert broker.store(item) is Removal.ALL


def test_what_counts_by_its_own_word_alone_is_cut_there() -> None:
    """DH-13, section 6."""
    broker = Broker()
    broker.complete(handed(b"hello", b"world", acked=5))
    broker.ledger.acked_only(JOURNAL, EPOCH, 0)
    item = broker.start_one()
    assert item.decided() == CommitAt(5)
    assert broker.store(item) is Removal.ALL


def test_what_a_deleted_journal_had_acknowledged_is_set_aside_and_no_more() -> None:
    broker = Broker()
    broker.current = None
    broker.complete(handed(b"hello", b"world", acked=5))
    broker.ledger.acked_only(JOURNAL, EPOCH, 0)
    item = broker.start_one()
    assert item.decided() == CommitAt(5)
    there = broker.ledger.destination(item, handed(b"hello").fragment)
    assert (there.fragment.journal, there.fragment.end) == (".deleted/5/a/b", 5)
    assert broker.store(item) is Removal.ALL


def test_what_a_later_part_knows_to_be_acknowledged_counts_for_the_earlier_ones() -> None:
    """Section 3: the record that completes a fragment does not know yet what became of it."""
    broker = Broker()
    broker.complete(handed(b"hello", acked=0))
    broker.complete(handed(b"world", b"again", acked=10, begin=5))
    broker.ledger.acked_only(JOURNAL, EPOCH, 10)
    first = broker.start_one()
    assert first.decided() == first.fragment
    broker.store(first)
    broker.now_s += 1.0
    assert broker.start_one().decided() == CommitAt(10)


def test_what_came_without_an_epoch_counts_by_its_own_word_or_is_set_aside() -> None:
    """Section 6: one of the two was told by its primary what is acknowledged, the other was not."""
    broker = Broker()
    for begin, acked in ((0, 5), (10, None)):
        broker.adopt(left(Worth.WHOLE, b"hello", b"world", acked=acked, mark=NO_EPOCH, begin=begin))
    broker.ledger.acked_only(JOURNAL, NO_EPOCH, 20)
    told = broker.start_one()
    assert told.decided() == CommitAt(5)
    assert broker.joined() == [told], "nobody reads what may not be part of the journal"
    broker.store(told)
    broker.now_s += 1.0
    untold = broker.start_one()
    assert untold.decided() == untold.fragment
    assert broker.ledger.destination(untold, untold.fragment).fragment.journal == ".undecided/5/a/b"
    assert broker.store(untold) is Removal.ALL


def test_what_its_owner_gives_up_without_an_epoch_counts_as_far_as_it_is_acknowledged() -> None:
    """Others may have the rest, and know: its files stay."""
    broker, owner = Broker(), object()
    broker.complete(handed(b"hello", b"world", acked=0, mark=NO_EPOCH), owner=owner)
    broker.complete(handed(b"other", acked=0, mark=NO_EPOCH, begin=20), owner=object())
    broker.ledger.give_up(JOURNAL, owner, 5)
    item = broker.start_one()
    assert item.decided() == CommitAt(5)
    assert broker.store(item) is Removal.NOTHING
    broker.now_s += 1.0
    assert broker.start() == []
    assert broker.joined() == []


def test_what_nobody_else_may_upload_does_not_wait_as_insurance_does() -> None:
    """DH-8: at once."""
    broker = Broker()
    broker.complete(handed(b"hello", acked=0), primary=False)
    closed(broker.ledger, 5)
    assert len(broker.start()) == 1


def test_what_is_known_to_be_acknowledged_waits_as_insurance_does() -> None:
    broker = Broker()
    broker.complete(handed(b"hello", acked=0), primary=False)
    broker.ledger.acked(JOURNAL, EPOCH, 5)
    due_in_s = broker.ledger.due_in_s()
    assert due_in_s is not None
    assert INSURANCE_S[0] <= due_in_s <= INSURANCE_S[1]


def test_who_may_have_lost_its_lease_uploads_only_what_is_closed() -> None:
    """DH-11."""
    broker = Broker()
    broker.has_lease = False
    broker.complete(handed(b"hello", acked=5))
    item = broker.start_one()
    with pytest.raises(UnavailableError, match="lost its lease"):
        broker.ledger.check_free(item)
    assert broker.is_idle(), "it is not waited for"
    broker.now_s += broker.ledger.failed(item)
    closed(broker.ledger, 5)
    assert not broker.is_idle()
    assert broker.start() == [item]
    assert broker.store(item) is Removal.ALL


def test_who_may_have_lost_its_lease_still_waits_for_what_is_closed() -> None:
    broker = Broker()
    broker.has_lease = False
    broker.complete(handed(b"hello", acked=5, begin=10))
    broker.complete(handed(b"world", acked=0, begin=20, mark=EpochMark(REVISION, 2)))
    closed(broker.ledger, 15)
    assert not broker.is_idle()
    broker.store(broker.start_one())
    assert broker.is_idle()


# What an earlier process left.


def test_what_an_earlier_process_left_waits_for_its_epoch_and_is_shown_before_it_is_stored() -> None:
    """DH-7, DH-8: though all of it was acknowledged, by its own word."""
    broker = Broker()
    completed = broker.adopt(left(Worth.WHOLE, b"hello", b"world", acked=10))
    assert broker.start() == []
    assert broker.joined() == []
    assert broker.ledger.local(JOURNAL, REVISION) == []
    closed(broker.ledger, 10)
    assert broker.ledger.local(JOURNAL, REVISION) == [(completed.fragment, completed.file)]
    assert broker.ledger.local(JOURNAL, 99) == []
    item = broker.start_one()
    assert broker.joined() == [item]
    assert (item.decided(), item.create_revision) == (completed.fragment, REVISION)
    assert broker.store(item) is Removal.ALL


def test_what_was_removed_is_shown_no_more_though_more_of_it_is_to_go() -> None:
    broker = Broker()
    completed = broker.complete(handed(b"hello"))
    item = broker.start_one()
    assert broker.ledger.local(JOURNAL, REVISION) == [(completed.fragment, completed.file)]
    broker.ledger.removed(item, Removal.CONTENT, item.file)
    assert broker.ledger.local(JOURNAL, REVISION) == []


def test_what_was_cut_is_not_shown_without_a_look_at_its_log() -> None:
    broker = Broker()
    broker.adopt(left(Worth.WHOLE, b"hello", b"world", acked=5))
    closed(broker.ledger, 5)
    assert broker.ledger.local(JOURNAL, REVISION) == []
    (item,) = broker.joined()
    assert item.decided() == CommitAt(5)


def test_of_what_was_stored_by_an_earlier_process_only_the_log_is_left_to_go() -> None:
    broker = Broker()
    broker.adopt(left(Worth.STORED, b"hello", acked=5))
    assert (broker.ledger.waiting, broker.ledger.waiting_bytes) == ([], 0)
    assert broker.ledger.holds(JOURNAL)
    closed(broker.ledger, 5)
    item = broker.start_one()
    assert item.stored is not None, "the store is not asked"
    assert broker.store(item) is Removal.ALL
    assert broker.ledger.waiting_bytes == 0


def test_a_damaged_copy_gives_what_is_acknowledged_and_sound_and_its_log_stays() -> None:
    """Section 3."""
    broker = Broker()
    broker.adopt(left(Worth.DAMAGED, b"hello", b"world", b"again", acked=12))
    broker.ledger.acked_only(JOURNAL, EPOCH, 0, is_over=False)
    item = broker.start_one()
    assert item.decided() == item.fragment
    assert item.fragment.end == 10
    assert broker.store(item) is Removal.NOTHING
    closed(broker.ledger, 15)
    assert broker.store(broker.start_one()) is Removal.ALL


def test_of_a_damaged_copy_without_a_sound_commit_nothing_is_uploaded_and_its_files_stay() -> None:
    broker = Broker()
    broker.adopt(left(Worth.DAMAGED, b"hello", acked=5))
    broker.ledger.acked_only(JOURNAL, EPOCH, 0, is_over=False)
    item = broker.start_one()
    assert item.decided() is None
    assert broker.store(item) is Removal.NOTHING
