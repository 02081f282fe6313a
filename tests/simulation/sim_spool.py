"""The shipped SpoolWorker on a simulated disk: what it gives to a thread is done when the disk gets round to it.

Between the work of the thread and the moment at which the event loop hears of it, other things happen, as they do in
a real process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, cast

from broker.disk_watch import DiskWatch
from broker.spool_worker import SpoolObserver, SpoolWorker
from fragment.spool_writer import SpoolWriter
from tests.simulation.disk import SimulatedDisk
from tests.simulation.world import Node

_LEAST_S = 0.0001
_HUNG_S = 0.25
_NOBODY_LOOKS: Future[Any] = Future()


class _DiskThread(Executor):
    def __init__(self, node: Node, disk: SimulatedDisk) -> None:
        self._node = node
        self._disk = disk
        self.worker: SpoolWorker | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        self._node.after(_LEAST_S + self._disk.latency_s(), self._do, fn, args)
        return _NOBODY_LOOKS

    def _do(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._disk.faults.is_hung:
            if self.worker is not None and self.worker.doing_since_s is None:
                self.worker.picked_up()
            self._node.after(_HUNG_S, self._do, fn, args)
        else:
            fn(*args)


class _NodeLoop:
    """As much of an event loop as a SpoolWorker uses."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def call_soon_threadsafe(self, act: Callable[..., object], *args: Any) -> None:
        self._node.after(0.0, act, *args)


def spool_worker(
    node: Node,
    disk: SimulatedDisk,
    writer: SpoolWriter,
    observer: SpoolObserver,
    released: Callable[[SpoolWorker], None],
    watch: DiskWatch,
) -> SpoolWorker:
    loop = cast(asyncio.AbstractEventLoop, _NodeLoop(node))
    # A worker remembers the loop that runs when it is made.
    asyncio._set_running_loop(loop)  # noqa: SLF001 -- meant for those who implement event loops
    try:
        thread = _DiskThread(node, disk)
        thread.worker = SpoolWorker(writer, thread, observer, released, watch)
        return thread.worker
    finally:
        asyncio._set_running_loop(None)  # noqa: SLF001 -- as above
