"""ReplicaObserver: tells index and ledger what has come of a replica's spool."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter

from broker.durable_head import Fate, Unknown
from broker.held_copies import HeldCopy, carry_out
from broker.replica import Replica
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd, EpochMark
from fragment.spool_file import SpoolFile
from fragment.spool_writer import CompletedSpool, LocalFragment
from protocol.errors import UnavailableError

COMPLETED = Counter("gazette_spool_completed", "Spools that were completed and are to be persisted")

GiveUp = Callable[[str, CopyEnd | None, int], None]
"""Looks after a copy of a journal from now on, of which so much is acknowledged."""


class ReplicaObserver:
    """A SpoolObserver."""

    def __init__(
        self,
        replica: Replica[SpoolFile],
        epoch: Callable[[], EpochMark],
        ledger: PersistLedger[SpoolFile],
        give_up: GiveUp,
        shown: Callable[[LocalFragment], None],
    ) -> None:
        """`epoch` is that of the replica's spool, and `shown` hears of what readers may have."""
        self._replica = replica
        self._epoch = epoch
        self._ledger = ledger
        self._give_up = give_up
        self.visible = shown
        self._acked_through: int | None = None

    def completed(self, completed: CompletedSpool) -> None:
        replica = self._replica
        is_primary = replica.is_primary and not replica.is_stopped
        self._ledger.complete(completed, replica.create_revision, primary=is_primary, owner=replica)
        COMPLETED.inc()

    def acked(self, through: int) -> None:
        if through != self._acked_through:
            self._acked_through = through
            self._replica.acked_end = max(self._replica.acked_end, through)
            self._ledger.acked(self._replica.journal, self._epoch(), through)

    def retired(self, copy: CopyEnd, fate: Fate) -> None:
        if isinstance(fate, Unknown):
            self._give_up(self._replica.journal, copy, self._acked_through or 0)
        else:
            held = HeldCopy(copy.epoch, copy, self._acked_through or 0)
            carry_out(self._ledger, self._replica.journal, held, fate)

    def given_up(self, copy: CopyEnd | None) -> None:
        self._give_up(self._replica.journal, copy, self._acked_through or 0)
        if self._acked_through is not None:
            self._ledger.give_up(self._replica.journal, self._replica, self._acked_through)

    def stalled(self, failure: UnavailableError | None) -> None:
        self._replica.stalled(failure)
