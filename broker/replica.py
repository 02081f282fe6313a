"""Replica: what a broker has of one journal that is assigned to it.

Its spool and, if this broker is the primary, its pipeline, each in a Slot; its index; and a Notice that tells whoever
waits for either that what they know of the journal's assignments is out of date. A replica is never demoted: a primary
that becomes something else is given up for a new one, and so is a journal that was deleted and created again.
"""

from __future__ import annotations

from typing import Generic

from broker.notice import Notice
from broker.pipeline import HeldSpool, Pipeline
from broker.slot import Slot
from fragment.index import FileT, Index


class Replica(Generic[FileT]):
    __slots__ = (
        "_spool",
        "create_revision",
        "given_up",
        "index",
        "invalidation",
        "is_primary",
        "is_stopped",
        "journal",
        "pipeline",
        "stopped",
    )

    def __init__(self, journal: str, create_revision: int, index: Index[FileT]) -> None:
        self.journal = journal
        # Tells one incarnation of the journal from another.
        self.create_revision = create_revision
        self.index = index
        self.is_primary = False
        self.is_stopped = False
        self._spool: Slot[HeldSpool] | None = None
        self.pipeline: Slot[Pipeline | None] = Slot(None)
        # Fired, and replaced by another, when the assignments or the stores of the journal change.
        self.invalidation = Notice()
        # Fired when it is to be given up, and when all is given back and handed on.
        self.stopped = Notice()
        self.given_up = Notice()

    def start(self, held: HeldSpool) -> None:
        """With the spool, which has to know the replica that it is given back to."""
        self._spool = Slot(held)

    def spool_released(self, held: HeldSpool) -> None:
        """Whoever had the spool is done with it."""
        self.spool.put(held)

    @property
    def spool(self) -> Slot[HeldSpool]:
        assert self._spool is not None
        return self._spool

    def invalidate(self) -> None:
        invalidation, self.invalidation = self.invalidation, Notice()
        if self.is_stopped:
            self.invalidation.fire()
        invalidation.fire()

    def stop(self) -> None:
        """Give the replica up, once the append and the stream that are under way have ended. Nobody else gets in."""
        if not self.is_stopped:
            self.is_stopped = True
            self.invalidate()
            self.stopped.fire()
            self.pipeline.take(self._close)

    def _close(self, pipeline: Pipeline | None) -> None:
        if pipeline is not None:
            pipeline.close()
        self.spool.take(self._hand_on)

    def _hand_on(self, held: HeldSpool) -> None:
        held.hand_on(self.given_up.fire)
