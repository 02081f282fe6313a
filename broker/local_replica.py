"""LocalReplica: a Replica with an index that can be waited for, and a spool on this broker's disk."""

from __future__ import annotations

from broker.flow_control import FlowControl
from broker.replica import Replica
from broker.spool_worker import SpoolWorker
from fragment.index import Found, NotYetAvailable
from fragment.live_index import LiveIndex
from fragment.spool_file import SpoolFile


class LocalReplica(Replica[SpoolFile]):
    __slots__ = ("_worker", "flow", "live")

    def __init__(self, journal: str, create_revision: int, live: LiveIndex[SpoolFile]) -> None:
        super().__init__(journal, create_revision, live.index)
        self.live = live
        self.flow = FlowControl()
        self._worker: SpoolWorker | None = None

    def equip(self, worker: SpoolWorker) -> None:
        """With the spool, which has to know the replica that it is given back to."""
        self._worker = worker
        self.start(worker)

    @property
    def worker(self) -> SpoolWorker:
        assert self._worker is not None
        return self._worker

    def query(self, offset: int, begin_mod_time: int) -> Found[SpoolFile] | NotYetAvailable:
        return self.live.look(offset, begin_mod_time)

    @property
    def applied_end(self) -> int:
        """The end of what is committed here and not shown to readers yet; zero if there is nothing of the kind."""
        unseen = self.worker.spool.unseen
        return unseen[-1].end if unseen else 0
