"""SimulatedReplica: a Replica with what a LocalReplica has around it: its worker, its first listing, and those who wait
for its index to change."""

from __future__ import annotations

from collections.abc import Callable

from broker.replica import Replica
from broker.spool_worker import SpoolWorker
from fragment.index import Found, Index, NotYetAvailable
from fragment.spool_file import SpoolFile
from tests.simulation.world import Node


class SimulatedReplica(Replica[SpoolFile]):
    __slots__ = ("_changed", "_node", "_ready", "_worker", "is_refreshed", "name", "started_s")

    def __init__(self, node: Node, name: str, journal: str, create_revision: int) -> None:
        super().__init__(journal, create_revision, Index())
        self.name = name
        self.started_s = node.world.now_s
        self._node = node
        self._worker: SpoolWorker | None = None
        self.is_refreshed = False
        self._ready: list[Callable[[], None]] = []
        # In the order in which they came: those of the index are a set, whose order is another in each process.
        self._changed: dict[object, Callable[[], None]] = {}
        self.index.subscribe(self._wake)
        self.stopped.listen(self._wake)

    def equip(self, worker: SpoolWorker) -> None:
        self._worker = worker
        self.start(worker)

    @property
    def worker(self) -> SpoolWorker:
        assert self._worker is not None
        return self._worker

    def query(self, offset: int, begin_mod_time: int) -> Found[SpoolFile] | NotYetAvailable:
        return self.index.query(offset, begin_mod_time, self._node.world.unix_ns // 1_000_000_000)

    @property
    def applied_end(self) -> int:
        unseen = self.worker.spool.unseen
        return unseen[-1].end if unseen else 0

    def wait_change(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call it once, a moment after the index has changed or the replica was stopped. What is returned takes that
        back."""
        key = object()
        self._changed[key] = changed
        return lambda: _nothing(self._changed.pop(key, None))

    def wait_refreshed(self, ready: Callable[[], None]) -> Callable[[], None]:
        self._ready.append(ready)
        return lambda: self._ready.remove(ready) if ready in self._ready else None

    def refreshed(self) -> None:
        self.is_refreshed = True
        ready, self._ready = self._ready, []
        for told in ready:
            told()

    def _wake(self) -> None:
        changed, self._changed = self._changed, {}
        for told in changed.values():
            self._node.after(0.0, told)


def _nothing(_: object) -> None:
    """There is nothing to say."""
