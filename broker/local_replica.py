"""LocalReplica: a Replica with an index that can be waited for, and a spool on this broker's disk."""

from __future__ import annotations

from broker.replica import Replica
from broker.spool_worker import SpoolWorker
from fragment.live_index import LiveIndex
from fragment.spool_file import SpoolFile


class LocalReplica(Replica[SpoolFile]):
    __slots__ = ("live", "worker")

    def __init__(self, journal: str, create_revision: int, live: LiveIndex[SpoolFile]) -> None:
        super().__init__(journal, create_revision, live.index)
        self.live = live
        self.worker: SpoolWorker | None = None

    @property
    def applied_end(self) -> int:
        """The end of what is committed here. Readers are shown it once it is known to be with all members."""
        return self.worker.spool.fragment.end if self.worker is not None else 0
