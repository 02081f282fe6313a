"""HeldCopies: what a spool directory has of epochs beside the spools of live replicas.

A copy is given up when its replica is, and all that an earlier process left are copies of that kind. None of them is
ever offered to a primary again. Each either closes its epoch, if that is still open, or goes to the fate that the
record has for it: what is decided is uploaded, and the rest is cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from broker.durable_head import (
    AckedOnly,
    CutAt,
    DurableHead,
    Fate,
    Stored,
    Undecided,
    Unknown,
    closed,
    fate,
    floored,
)
from fragment.spool import CopyEnd, EpochMark
from fragment.spool_recovery import Copy, Worth

JOURNAL_HASH = 12
"""So many digits of a journal's SHA-1 begin the names of its spools."""


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """All that the directory has of one epoch."""

    mark: EpochMark
    # The undamaged part that goes furthest; None if what there is proves no end.
    end: CopyEnd | None
    # Of a damaged one: bytes below are acknowledged, by its own word.
    acked_through: int = 0

    @property
    def is_damaged(self) -> bool:
        return self.end is None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be done about a journal's copies."""

    # The record as it should be: the rest follows once that was done, or has failed.
    change: DurableHead | None = None
    settled: tuple[tuple[EpochMark, Fate], ...] = ()
    # Damaged copies of an open epoch, whose word is on record: what is acknowledged of them may be uploaded.
    floored: tuple[EpochMark, ...] = ()
    # Those that the record knows nothing of.
    unknown: tuple[EpochMark, ...] = ()


class CopyStore(Protocol):
    """What keeps the bytes of copies: a Persister."""

    def closed(self, journal: str, epoch: EpochMark, end: int) -> None: ...

    def spared(self, journal: str, epoch: EpochMark) -> None: ...

    def acked_only(self, journal: str, epoch: EpochMark, *, is_over: bool = True) -> None: ...


def carry_out(store: CopyStore, journal: str, mark: EpochMark, known: Fate) -> None:
    """Have what there is of a copy go to its fate. What has none stays as it is."""
    match known:
        case CutAt(end):
            store.closed(journal, mark, end)
        case Stored():
            store.spared(journal, mark)
        case AckedOnly():
            store.acked_only(journal, mark)
        case Undecided() | Unknown():
            pass


class HeldCopies:
    def __init__(self, spool_id: bytes) -> None:
        self.spool_id = spool_id
        self._copies: dict[str, dict[EpochMark, HeldCopy]] = {}
        # Of journals that have a log which cannot be read at all.
        self._lost_hashes: set[str] = set()
        self._told: set[tuple[str, EpochMark]] = set()

    def give_up(self, journal: str, copy: CopyEnd) -> None:
        """A replica is given up, and all of its streams have ended."""
        self._add(journal, HeldCopy(copy.epoch, copy))

    def recover(self, journal_hash: str, copy: Copy) -> None:
        """An earlier process has left it."""
        last = copy.last
        if last is None:
            if copy.worth is Worth.DAMAGED:
                self._lost_hashes.add(journal_hash)
            return
        is_damaged = copy.worth is Worth.DAMAGED
        end = None if is_damaged else CopyEnd(last.epoch, last.end, last.registers)
        self._add(last.journal, HeldCopy(last.epoch, end, (last.acked_through or 0) if is_damaged else 0))

    def _add(self, journal: str, copy: HeldCopy) -> None:
        held = self._copies.setdefault(journal, {})
        known = held.get(copy.mark)
        held[copy.mark] = copy if known is None else _merged(known, copy)

    def has(self, journal: str, mark: EpochMark) -> bool:
        """Whether there are commits of that epoch here, or may be."""
        return mark in self._copies.get(journal, ()) or self._is_doubtful(journal)

    @property
    def journals(self) -> list[str]:
        return list(self._copies)

    @property
    def damaged_count(self) -> int:
        return len(self._lost_hashes) + sum(copy.is_damaged for copy in self._all())

    def __len__(self) -> int:
        return sum(map(len, self._copies.values()))

    def _all(self) -> Iterator[HeldCopy]:
        return (copy for held in self._copies.values() for copy in held.values())

    def judged(self, journal: str, head: DurableHead | None, *, is_starting: bool = False) -> Judgement:
        """What the record says of a journal's copies, and what they have to say to it.

        While the process is starting no replica is live, so that a directory without any commit of an epoch that it is
        listed in has a say too.
        """
        held = self._copies.get(journal, {})
        fates = {mark: fate(head, mark) for mark in held}
        undecided = [mark for mark, known in fates.items() if isinstance(known, Undecided)]
        unknown = tuple(mark for mark, known in fates.items() if isinstance(known, Unknown))
        settled = tuple((mark, known) for mark, known in fates.items() if not isinstance(known, Undecided | Unknown))
        if head is None:
            return Judgement(settled=settled, unknown=unknown)
        if not undecided:
            change = self._closed_unseen(journal, head) if is_starting else None
            return Judgement(change, settled, unknown=unknown)
        # Only one epoch is ever open.
        (mark,) = undecided
        copy = held[mark]
        if copy.is_damaged:
            change = floored(head, copy.acked_through)
            return Judgement(change, settled, () if change else (mark,), unknown)
        change = None if self._is_doubtful(journal) else closed(head, self.spool_id, copy.end)
        return Judgement(change, settled, unknown=unknown)

    def _closed_unseen(self, journal: str, head: DurableHead) -> DurableHead | None:
        return None if self._is_doubtful(journal) else closed(head, self.spool_id, None)

    def _is_doubtful(self, journal: str) -> bool:
        """Whether there may be more of it here than can be read."""
        if any(copy.is_damaged for copy in self._copies.get(journal, {}).values()):
            return True
        return hashlib.sha1(journal.encode()).hexdigest()[:JOURNAL_HASH] in self._lost_hashes

    def perform(self, journal: str, judgement: Judgement, store: CopyStore) -> None:
        """All of it but the change of the record."""
        for mark, known in judgement.settled:
            carry_out(store, journal, mark, known)
            self._settle(journal, mark)
        for mark in judgement.floored:
            store.acked_only(journal, mark, is_over=False)

    def _settle(self, journal: str, mark: EpochMark) -> None:
        held = self._copies.get(journal, {})
        held.pop(mark, None)
        if not held:
            self._copies.pop(journal, None)

    def is_news(self, journal: str, mark: EpochMark) -> bool:
        """Whether nobody was told yet of a copy that the record knows nothing of."""
        news = (journal, mark) not in self._told
        self._told.add((journal, mark))
        return news


def _merged(one: HeldCopy, other: HeldCopy) -> HeldCopy:
    """A part that is damaged leaves it open where the epoch ends."""
    acked_through = max(one.acked_through, other.acked_through)
    if one.end is None or other.end is None:
        return HeldCopy(one.mark, None, acked_through)
    return replace(one, end=max(one.end, other.end, key=lambda copy: copy.end), acked_through=acked_through)
