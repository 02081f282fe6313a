"""CopySettling: takes a journal's copies from step to step, until the record has nothing to be changed about.

It waits for nothing. Whoever drives it reads the record in etcd, does what it is told, and comes back with what is on
record then: an answer that was lost, or somebody who was faster, is found by reading again.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.held_copies import CopyStore, HeldCopies
from fragment.spool import EpochMark

TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class AskItem:
    """The record knows nothing of a copy. Of which incarnation is the journal that there is, if there is any?"""


@dataclass(frozen=True, slots=True)
class Settled:
    """The copies have gone to their fates, as far as these are known."""

    # Names of damaged spools that are of no more use.
    over: tuple[str, ...] = ()
    # Copies that are ahead of the record, of which nobody was told yet.
    ahead: tuple[EpochMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The record could not be changed, time and again."""


class CopySettling:
    def __init__(self, copies: HeldCopies, journal: str, store: CopyStore) -> None:
        self._copies = copies
        self._journal = journal
        self._store = store
        self._tries = 0

    def step(
        self, known: HeadRead, *, has_replica: bool, item_revision: int | None = None
    ) -> AskItem | HeadChange | Settled | Unsettled:
        """By what is on record now. `item_revision` is the answer to ``AskItem``: zero if there is no such journal."""
        copies, journal = self._copies, self._journal
        judgement = copies.judged(journal, known.head, has_replica=has_replica, item_revision=item_revision)
        if judgement.unknown and item_revision is None:
            return AskItem()
        if judgement.change is None:
            copies.perform(journal, judgement, self._store)
            ahead = tuple(mark for mark in judgement.unknown if copies.is_news(journal, mark))
            return Settled(judgement.over, ahead)
        self._tries += 1
        return Unsettled() if self._tries > TRIES_MAX else HeadChange(judgement.change, known.mod_revision)
