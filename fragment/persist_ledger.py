"""PersistLedger: what completed spools there are here, which of them may go to a store, and what of them stays.

It is told what happens to spools: that they are complete, what is acknowledged, where epochs end. Whoever uploads takes
from it what to begin, asks where it goes and which files are of no more use, and tells it what came of that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Generic

from fragment.persist_destination import CurrentSpec, Destination, destination_of
from fragment.persist_item import Completed, FileT, Item, Removal
from fragment.persist_queue import PersistQueue
from fragment.spool import NO_EPOCH, EpochMark
from fragment.spool_recovery import Copy, Worth
from protocol.errors import UnavailableError
from protocol.fragment import Fragment

PARALLEL_MAX = 32


class PersistLedger(Generic[FileT]):
    def __init__(
        self,
        spec_now: Callable[[str], CurrentSpec | None],
        clock: Callable[[], float],
        chance: random.Random,
        *,
        may_upload: Callable[[], bool] = lambda: True,
        discard_deleted: bool = False,
    ) -> None:
        """`spec_now` raises an UnavailableError where nobody can tell. While `may_upload` is false, nothing is uploaded
        of an epoch that is not known to be closed: this broker may have lost its lease, and its journals be elsewhere.
        `discard_deleted` is the operator's word that bytes of deleted journals that are not uploaded yet may be thrown
        away."""
        self._spec_now = spec_now
        self._clock = clock
        self._may_upload = may_upload
        self._discard_deleted = discard_deleted
        self._changed: Callable[[], None] = lambda: None
        # All that are not done, by journal; and those that readers have yet to be told of.
        self._held: dict[str, dict[Item[FileT], None]] = {}
        self._to_join: list[Item[FileT]] = []
        self._queue: PersistQueue[Item[FileT]] = PersistQueue(PARALLEL_MAX, chance)
        # Spools with commits that are not known to be acknowledged, by journal.
        self._undecided: dict[str, list[Item[FileT]]] = {}
        # Spools that are stored, but whose log is the last word on an epoch that is not known to be closed.
        self._kept: dict[str, list[Item[FileT]]] = {}
        self._is_exiting = False
        # Of all that is not in a store yet.
        self.waiting_bytes = 0

    def listen(self, changed: Callable[[], None]) -> None:
        """`changed` is called when there may be something to begin."""
        self._changed = changed

    # What there is.

    @property
    def items(self) -> list[Item[FileT]]:
        """All that are under way or wait for it, oldest first."""
        return self._queue.items()

    @property
    def waiting(self) -> list[Fragment]:
        """What is not in a store yet, oldest first."""
        return [item.fragment for item in self._queue.items()]

    def oldest_append_ns(self) -> int | None:
        """When the oldest byte of them was appended, as Unix time; None if there is none. For those who measure: it
        looks at each of them."""
        spools = [item.spool for item in self._queue.items() if not item.is_counted_off]
        return min((spool.first_append_ns for spool in spools if spool.first_append_ns is not None), default=None)

    def local(self, journal: str, create_revision: int) -> list[tuple[Fragment, FileT]]:
        """What there is of a journal here that is decided and not in a store: for a replica that starts. What was cut
        is told later, by way of ``next_to_join``."""
        undecided = self._undecided.get(journal, ())
        return [
            (item.resident or item.fragment, item.file)
            for item in self._held.get(journal, ())
            if item.create_revision == create_revision and item not in undecided and item.is_shown
        ]

    def holds(self, journal: str) -> bool:
        """Whether anything of it is here that is not done with."""
        return journal in self._held or journal in self._kept

    # What happens to spools.

    def complete(
        self, completed: Completed[FileT], create_revision: int, *, primary: bool, owner: object = None
    ) -> None:
        """Take over a spool. `owner` is whoever may ``give_up`` what it has completed."""
        item = Item(completed.spool, completed.file, create_revision, completed.is_superseded, owner)
        acked_through = item.spool.acked_through
        is_decided = acked_through is None or acked_through >= item.fragment.end
        self._add(item, is_decided=is_decided, primary=primary)

    def adopt(self, completed: Completed[FileT], copy: Copy) -> None:
        """Take over what an earlier process left behind. What is to become of it is for its epoch to tell."""
        assert copy.last is not None, "nothing was ever committed to it"
        item = Item(completed.spool, completed.file, copy.last.create_revision, completed.is_superseded)
        item.sound_through = copy.sound_through
        if copy.worth is Worth.STORED:
            item.is_counted_off, item.stored, item.removed = True, item.fragment, Removal.CONTENT
            self._kept.setdefault(item.fragment.journal, []).append(item)
            return
        self._add(item, is_decided=False, primary=True)

    def _add(self, item: Item[FileT], *, is_decided: bool, primary: bool) -> None:
        journal = item.fragment.journal
        if not is_decided:
            self._undecided.setdefault(journal, []).append(item)
        self._held.setdefault(journal, {})[item] = None
        self._queue.add(item, self._clock(), primary=primary, is_open=is_decided, at=item.place)
        self.waiting_bytes += item.fragment.content_length
        self._changed()

    def revisit(self) -> None:
        """Journals without stores may have got some by now, or be deleted."""
        for item in [item for items in self._held.values() for item in items if item.resident is not None]:
            try:
                current = self._spec_now(item.fragment.journal)
            except UnavailableError:
                continue
            is_there = current is not None and current.create_revision == item.create_revision
            if (current is None or not is_there or current.spec.fragment.stores) and not self._queue.has(item):
                self._queue.add(item, self._clock(), primary=True, is_open=True, at=item.place)
        self._changed()

    def acked(self, journal: str, epoch: EpochMark, through: int) -> None:
        """All holders of that epoch have the bytes below `through`."""
        undecided = self._undecided.get(journal, ())
        self._decide(journal, [item for item in undecided if item.mark == epoch and item.fragment.end <= through])

    def closed(self, journal: str, epoch: EpochMark, end: int, owner: object = None) -> None:
        """An epoch was closed at `end`: what its spools hold beyond was never part of the journal. Those of `owner`
        alone, if there is one."""

        def is_meant(item: Item[FileT]) -> bool:
            return item.mark == epoch and (owner is None or item.owner is owner)

        items = [item for item in self._undecided.get(journal, ()) if is_meant(item)]
        for item in items:
            item.cut_at = end if end < item.fragment.end else None
        self._to_join.extend(items)
        self._decide(journal, items)
        self._release(journal, is_meant)
        if owner is None:
            self._hasten(journal, is_meant)

    def spared(self, journal: str, epoch: EpochMark) -> None:
        """The store has all that there was of an epoch."""
        items = [item for item in self._undecided.get(journal, ()) if item.mark == epoch]
        for item in items:
            item.is_spare = True
        self._decide(journal, items)
        self._release(journal, lambda item: item.mark == epoch)

    def acked_only(self, journal: str, epoch: EpochMark, through: int, *, is_over: bool = True) -> None:
        """What there is of an epoch counts as far as it is known to be acknowledged: below `through`. Unless the epoch
        is over, what is left stays on disk, for what it tells of it.

        Of what came without an epoch each spool knows but for itself. If it does not, because its primary did not tell,
        nobody knows whether it is part of the journal: it is set aside.
        """
        items = [item for item in self._undecided.get(journal, ()) if item.mark == epoch]
        for item in items:
            acked_through = item.spool.acked_through
            if epoch == NO_EPOCH and acked_through is None:
                item.is_aside = True
            else:
                known = (acked_through or 0) if epoch == NO_EPOCH else max(through, acked_through or 0)
                item.cut_at = known if known < item.fragment.end else None
        self._to_join.extend(item for item in items if not item.is_aside)
        self._decide(journal, items)
        if is_over:
            self._release(journal, lambda item: item.mark == epoch)
        self._hasten(journal, lambda item: item.mark == epoch)

    def give_up(self, journal: str, owner: object, through: int) -> None:
        """`owner` will hear of no more acknowledgements: what it holds beyond `through` is for others to tell.

        They have it if it was acknowledged. If it was not, it may be part of the journal or not, and a copy that says
        otherwise than theirs must not get into the store.
        """
        items = [item for item in self._undecided.get(journal, ()) if item.owner is owner and item.mark == NO_EPOCH]
        for item in items:
            item.cut_at = through if through < item.fragment.end else None
            item.is_left = item.cut_at is not None
        self._decide(journal, items)

    def _release(self, journal: str, is_over: Callable[[Item[FileT]], bool]) -> None:
        """The epoch of some spools is over: those under way need no last word, and those kept for it may go."""
        for item in self._held.get(journal, ()):
            item.is_closed = item.is_closed or is_over(item)
        kept = self._kept.pop(journal, [])
        for item in kept:
            if is_over(item):
                item.is_closed = True
                self._queue.add(item, self._clock(), primary=True, is_open=True, at=item.place)
        if others := [item for item in kept if not item.is_closed]:
            self._kept[journal] = others
        self._changed()

    def _hasten(self, journal: str, is_meant: Callable[[Item[FileT]], bool]) -> None:
        """What no replica has any more is not insurance: nobody else may be there to upload it."""
        undecided = self._undecided.get(journal, ())
        for item in self._held.get(journal, ()):
            if is_meant(item) and item not in undecided:
                self._queue.open(item, self._clock())

    def _decide(self, journal: str, items: Iterable[Item[FileT]]) -> None:
        for item in items:
            self._undecided[journal].remove(item)
            self._queue.open(item)
        if not self._undecided.get(journal, True):
            del self._undecided[journal]
        self._changed()

    def leave(self) -> None:
        """The process is about to end: what it holds goes now, as far as it may.

        From now on a store that turns us away is passed over for the journal's next one: this process will not be
        there when somebody has mended it. What is not acknowledged yet stays on disk, for the next start.
        """
        self._is_exiting = True
        self._queue.hurry()
        self._changed()

    # What is to be done.

    def next_to_join(self) -> Item[FileT] | None:
        """A spool that was decided after its replica was given up, so that readers are yet to be told of it: before it
        is uploaded, since a store may be long down."""
        return self._to_join.pop() if self._to_join else None

    def start(self) -> list[Item[FileT]]:
        """What to begin now. Each is to end with ``done``, ``spoiled`` or ``failed``."""
        return self._queue.start(self._clock())

    def due_in_s(self) -> float | None:
        """After how long ``start`` will have something that it does not have now; None: not by time alone."""
        due_s = self._queue.next_due_s()
        return None if due_s is None else max(0.0, due_s - self._clock())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left that goes by itself."""
        return len(self._queue) <= self._queue.shut_count + self._held_back

    @property
    def _held_back(self) -> int:
        """How many wait for a lease, which a process that is about to end does not get again."""
        if self._may_upload():
            return 0
        undecided = {item for items in self._undecided.values() for item in items}
        return sum(not self._is_free(item) and item not in undecided for item in self._queue.items())

    def _is_free(self, item: Item[FileT]) -> bool:
        """Whether it may be uploaded whoever has the journal."""
        return item.mark == NO_EPOCH or item.is_closed or item.is_spare or self._may_upload()

    def check_free(self, item: Item[FileT]) -> None:
        if not self._is_free(item):
            raise UnavailableError("this broker may have lost its lease of etcd: others may have the journal by now")

    def destination(self, item: Item[FileT], decided: Fragment) -> Destination:
        """Where what is decided of it is to go. Raises if there is no such place, for now."""
        current = self._spec_now(decided.journal)
        return destination_of(item, decided, current, discard_deleted=self._discard_deleted)

    def passes_over(self, destination: Destination, at: int) -> bool:
        """Whether the next store is tried after this one has turned us away."""
        return self._is_exiting and at + 1 < len(destination.stores)

    # What came of it.

    def stored(self, item: Item[FileT], fragment: Fragment) -> None:
        """A store shows that it has it. What is left of it are its files: see ``Item.removal``."""
        item.stored = fragment

    def removed(self, item: Item[FileT], removal: Removal, file: FileT) -> None:
        """Such of its files are gone; `file` is what is left."""
        item.removed, item.file = removal, file

    def done(self, item: Item[FileT], resident: Fragment | None = None) -> None:
        """Nothing more is to be done about it for now. `resident` stays on this disk: its journal has no store."""
        item.resident = resident
        if resident is None and not item.needs_no_log:
            self._kept.setdefault(item.fragment.journal, []).append(item)
        self._end(item)
        if not item.is_counted_off:
            item.is_counted_off = True
            self.waiting_bytes -= item.fragment.content_length

    def spoiled(self, item: Item[FileT]) -> None:
        """It is damaged, and will not get better. Its files stay, for whoever looks into it, or for a restart."""
        self._end(item)

    def failed(self, item: Item[FileT]) -> float:
        """It is to be tried again: after so many seconds."""
        return self._queue.failed(item, self._clock())

    def _end(self, item: Item[FileT]) -> None:
        self._queue.done(item)
        if item.resident is not None:
            return
        held = self._held.get(item.fragment.journal, {})
        held.pop(item, None)
        if not held:
            self._held.pop(item.fragment.journal, None)
