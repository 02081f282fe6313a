"""HeldCopies: what a spool directory has of epochs beside the spools of live replicas.

A copy is given up when its replica is, and all that an earlier process left are copies of that kind. None of them is
ever offered to a primary again. Each either closes its epoch, if that is still open, or goes to the fate that the
record has for it: what is decided is uploaded, and the rest is cut.

A directory that is listed in an epoch and has no commit of it closes that too, where it began: nothing was acknowledged
in it. But what a damaged log does not show, it may still have had. Until all epochs that it may be about are over, such
a directory proves nothing of its journal, and says so on record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
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
    damaged,
    fate,
)
from fragment.spool import NO_EPOCH, CopyEnd, EpochMark
from fragment.spool_recovery import Copy, Worth

JOURNAL_HASH = 12
"""So many digits of a journal's SHA-1 begin the names of its spools."""


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """All that the directory has of one epoch."""

    mark: EpochMark
    # The undamaged part that goes furthest; None if what there is proves no end.
    end: CopyEnd | None
    # Bytes below are acknowledged, by its own word: by that of any of its parts, which do not all know the latest.
    acked_through: int = 0

    @property
    def is_damaged(self) -> bool:
        return self.end is None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Of which epochs a damaged log may have commits that it does not show."""

    since: EpochMark
    # The last one that was on record when it was found; None while that is not known. Later ones began after it.
    through: EpochMark | None

    def covers(self, mark: EpochMark) -> bool:
        return self.since <= mark and (self.through is None or mark <= self.through)


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
    # Names of damaged spools, which nothing that is still open may be in.
    over: tuple[str, ...] = ()


class CopyStore(Protocol):
    """What keeps the bytes of copies: a PersistLedger."""

    def closed(self, journal: str, epoch: EpochMark, end: int) -> None: ...

    def spared(self, journal: str, epoch: EpochMark) -> None: ...

    def acked_only(self, journal: str, epoch: EpochMark, through: int, *, is_over: bool = True) -> None: ...


def carry_out(store: CopyStore, journal: str, copy: HeldCopy, known: Fate) -> None:
    """Apply the fate on record to a copy. What has none stays as it is."""
    match known:
        case CutAt(end):
            store.closed(journal, copy.mark, end)
        case Stored():
            store.spared(journal, copy.mark)
        case AckedOnly():
            store.acked_only(journal, copy.mark, copy.acked_through)
        case Undecided() | Unknown():
            pass


class HeldCopies:
    def __init__(self, spool_id: bytes) -> None:
        self.spool_id = spool_id
        self._copies: dict[str, dict[EpochMark, HeldCopy]] = {}
        # Journals of which a replica was given up, by this process or an earlier one: an epoch without any commit may
        # have to be closed.
        self._given_up: set[str] = set()
        # By the name of the damaged spool, which begins with a hash of its journal's.
        self._doubts: dict[str, _Doubt] = {}
        # Journals that there are doubts about, of those on record at the start.
        self._doubtful: set[str] = set()
        self._told: set[tuple[str, EpochMark]] = set()

    def give_up(self, journal: str, copy: CopyEnd | None, acked_through: int = 0) -> None:
        """A replica is given up, and all of its streams have ended."""
        self._given_up.add(journal)
        if copy is not None:
            self._add(journal, HeldCopy(copy.epoch, copy, acked_through))

    def recover(self, name: str, copy: Copy, doubted_through: EpochMark | None = None) -> None:
        """An earlier process has left the spool of that name. Of a damaged one, one before this may have found out
        through which epoch it may have commits."""
        last = copy.last
        is_damaged = copy.worth is Worth.DAMAGED
        if is_damaged:
            self._doubts[name] = _Doubt(NO_EPOCH if last is None else last.epoch, doubted_through)
        if last is not None:
            end = None if is_damaged else CopyEnd(last.epoch, last.end, last.registers)
            self._add(last.journal, HeldCopy(last.epoch, end, last.acked_through or 0))

    def bound(self, heads: Mapping[str, DurableHead | None]) -> dict[str, EpochMark]:
        """All that is on record, before this process has replicas: None is what cannot be read. Returns through which
        epoch each damaged spool may have commits, for those of which it was not known.

        An open epoch that lists this directory is looked after from now on, whether or not there is a commit of it.
        """
        for journal, head in heads.items():
            if head is not None and head.open_epoch is not None and self.spool_id in head.open_epoch.holders:
                self._given_up.add(journal)
        hashes = {name[:JOURNAL_HASH] for name in self._doubts}
        about = {journal: head for journal, head in heads.items() if hashes and _hash(journal) in hashes}
        self._doubtful = set(about)
        found: dict[str, EpochMark] = {}
        for name, doubt in self._doubts.items():
            known = [head for journal, head in about.items() if _hash(journal) == name[:JOURNAL_HASH]]
            if doubt.through is None and None not in known:
                marks = [head.mark(head.last) for head in known if head is not None and head.last is not None]
                found[name] = max(marks, default=NO_EPOCH)
        self._doubts.update({name: replace(self._doubts[name], through=through) for name, through in found.items()})
        return found

    def _add(self, journal: str, copy: HeldCopy) -> None:
        held = self._copies.setdefault(journal, {})
        known = held.get(copy.mark)
        held[copy.mark] = copy if known is None else _merged(known, copy)

    def has(self, journal: str, mark: EpochMark) -> bool:
        """Whether there are commits of that epoch here, or may be."""
        return mark in self._copies.get(journal, ()) or self._is_doubted(journal, mark)

    @property
    def journals(self) -> list[str]:
        """Those that have to be looked after."""
        return list(dict.fromkeys((*self._copies, *sorted(self._given_up), *sorted(self._doubtful))))

    @property
    def damaged_count(self) -> int:
        return len(self._doubts)

    def __len__(self) -> int:
        return sum(map(len, self._copies.values()))

    def judged(
        self, journal: str, head: DurableHead | None, *, has_replica: bool, item_revision: int | None = None
    ) -> Judgement:
        """What the record says of a journal's copies, and what they have to say to it.

        While there is no live replica, a directory without any commit of an epoch that it is listed in has a say too.
        `item_revision` is the incarnation of the journal that there is, zero if there is none, as far as it is known.
        """
        held = self._copies.get(journal, {})
        last = head.open_epoch if head is not None and not head.is_void else None
        open_mark = None if head is None or last is None else head.mark(last)
        # Who is not listed has no say in it, whatever it may have.
        is_listed = last is not None and self.spool_id in last.holders
        is_doubted = is_listed and open_mark is not None and self._is_doubted(journal, open_mark)
        settled: list[tuple[EpochMark, Fate]] = []
        unknown: list[EpochMark] = []
        for mark, copy in held.items():
            known = fate(head, mark)
            if isinstance(known, Unknown) and item_revision not in (None, mark.create_revision):
                # Its journal is gone, and so is the record: where it ended, nobody can tell any more (DH-13).
                known = AckedOnly()
            if isinstance(known, Unknown):
                unknown.append(mark)
            elif not isinstance(known, Undecided) and not (is_doubted and copy.is_damaged):
                settled.append((mark, known))
        over = () if is_doubted or head is None else tuple(self._doubts_about(journal))
        change: DurableHead | None = None
        floored: tuple[EpochMark, ...] = ()
        if head is not None and open_mark is not None:
            change, floored = self._said(head, held.get(open_mark), is_doubted, has_replica)
        return Judgement(change, tuple(settled), floored, tuple(unknown), over)

    def _said(
        self, head: DurableHead, copy: HeldCopy | None, is_doubted: bool, has_replica: bool
    ) -> tuple[DurableHead | None, tuple[EpochMark, ...]]:
        """What this directory has to say of the open epoch, and what may be uploaded once that is on record."""
        if is_doubted or (copy is not None and copy.is_damaged):
            change = damaged(head, self.spool_id, 0 if copy is None else copy.acked_through)
            return change, () if change is not None or copy is None else (copy.mark,)
        if copy is None and has_replica:
            return None, ()
        return closed(head, self.spool_id, None if copy is None else copy.end), ()

    def _is_doubted(self, journal: str, mark: EpochMark) -> bool:
        return any(self._doubts[name].covers(mark) for name in self._doubts_about(journal))

    def _doubts_about(self, journal: str) -> Iterator[str]:
        if self._doubts:
            begin = _hash(journal)
            yield from (name for name in self._doubts if name.startswith(begin))

    def perform(self, journal: str, judgement: Judgement, store: CopyStore) -> None:
        """All of it but the change of the record, of which there is none any more."""
        held = self._copies.get(journal, {})
        for mark, known in judgement.settled:
            carry_out(store, journal, held.pop(mark), known)
        for mark in judgement.floored:
            store.acked_only(journal, mark, held[mark].acked_through, is_over=False)
        if not held:
            self._copies.pop(journal, None)
        for name in judgement.over:
            self._doubts.pop(name, None)
        if judgement.over:
            self._doubtful.discard(journal)
        # What could be closed would have been; and if there is a replica again, it will be given up in its turn.
        self._given_up.discard(journal)

    def is_news(self, journal: str, mark: EpochMark) -> bool:
        """Whether nobody was told yet of a copy that the record knows nothing of."""
        news = (journal, mark) not in self._told
        self._told.add((journal, mark))
        return news


def _hash(journal: str) -> str:
    return hashlib.sha1(journal.encode()).hexdigest()[:JOURNAL_HASH]


def _merged(one: HeldCopy, other: HeldCopy) -> HeldCopy:
    """A part that is damaged leaves it open where the epoch ends."""
    acked_through = max(one.acked_through, other.acked_through)
    if one.end is None or other.end is None:
        return HeldCopy(one.mark, None, acked_through)
    return replace(one, end=max(one.end, other.end, key=lambda copy: copy.end), acked_through=acked_through)
