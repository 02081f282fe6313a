"""A SpoolWorker over real files that a test drives, what its observers are told, and a thread that a test holds up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from broker.disk_watch import DiskWatch
from broker.durable_head import Fate
from broker.pipeline import Sealed
from broker.spool_worker import SpoolWorker
from fragment.spool import CopyEnd, EpochMark, Proposal, Reply, Spool
from fragment.spool_directory import SpoolDirectory
from fragment.spool_writer import CompletedSpool, LocalFragment, SpoolWriter
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from protocol.label import LabelSet
from tests.support.broker_cores import JOURNAL, NOW_NS, fragment, labels

X = labels(x="1")
MARK = EpochMark(4, 1)
TIMEOUT_S = 10.0
HUNG_S = 15.0


class Observed:
    """What observers are told, and in which order."""

    def __init__(self) -> None:
        self.shown: list[Fragment] = []
        self.contents: list[bytes] = []
        self.handed: list[Fragment] = []
        self.told: list[int] = []
        self.given_ups = 0
        self.given_up_copy: CopyEnd | None = None
        self.retirements: list[tuple[CopyEnd, Fate]] = []
        self.threads: set[int] = set()
        self.stalls: list[UnavailableError | None] = []

    def visible(self, local: LocalFragment) -> None:
        self.threads.add(threading.get_ident())
        self.shown.append(local.fragment)
        self.contents.append(local.file.read(0, local.fragment.content_length))

    def completed(self, completed: CompletedSpool) -> None:
        self.handed.append(completed.spool.fragment)

    def acked(self, through: int) -> None:
        self.told.append(through)

    def retired(self, copy: CopyEnd, fate: Fate) -> None:
        self.retirements.append((copy, fate))

    def given_up(self, copy: CopyEnd | None) -> None:
        self.given_ups += 1
        self.given_up_copy = copy

    def stalled(self, failure: UnavailableError | None) -> None:
        self.stalls.append(failure)


def _nothing() -> None:
    pass


T = TypeVar("T")


def awaited(_: type[T]) -> asyncio.Future[T]:
    """A future that fails if nothing is heard of it for long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    timer = loop.call_later(TIMEOUT_S, done.cancel)
    done.add_done_callback(lambda _: timer.cancel())
    return done


class Held:
    """A SpoolWorker over real files, and futures for what it says."""

    def __init__(self, directory: SpoolDirectory, executor: ThreadPoolExecutor) -> None:
        self.observed = Observed()
        self.releases: list[Spool] = []
        self.failures: list[Exception] = []
        self.order: list[object] = []
        self.on_release: Callable[[], None] = _nothing
        self.writer = SpoolWriter(JOURNAL, directory, lambda: b"")
        self.now_s = 0.0
        self.disk = DiskWatch("local/broker", HUNG_S, lambda: self.now_s)
        self.worker = SpoolWorker(self.writer, executor, self.observed, self._released, self.disk)
        self.worker.watch(self.failures.append)

    def _released(self, worker: SpoolWorker) -> None:
        assert worker is self.worker
        self.releases.append(worker.spool)
        self.on_release()

    def propose(self, held: Fragment, registers: LabelSet = X, acked: int | None = 0) -> asyncio.Future[Reply]:
        done = awaited(Reply)

        def reply(result: Reply | Exception) -> None:
            self.order.append(held)
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        self.worker.propose(Proposal(held, registers, NOW_NS, acked_through=acked), reply)
        return done

    def seal(self) -> asyncio.Future[Sealed]:
        done = awaited(Sealed)
        self.worker.seal(
            lambda sealed: done.set_exception(sealed) if isinstance(sealed, Exception) else done.set_result(sealed)
        )
        return done

    def acked(self, through: int) -> asyncio.Future[int]:
        done = awaited(int)
        self.worker.acked(through, lambda: done.set_result(through))
        return done

    def look(self, after_s: float = HUNG_S) -> None:
        """So much later."""
        self.now_s += after_s
        self.disk.look()

    async def released(self) -> None:
        done = asyncio.Event()
        self.on_release = done.set
        self.worker.release()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)


class Stalled(ThreadPoolExecutor):
    """Begins nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__(1)
        self.go = threading.Event()
        self.submit(self.go.wait)

    def __exit__(self, *failure: Any) -> None:
        """Whoever fails does not wait for what was never told to begin."""
        self.go.set()
        super().__exit__(*failure)


async def committed(held: Held) -> CopyEnd:
    held.worker.content(b"hello", 0)
    done = awaited(Reply)
    held.worker.propose(Proposal(fragment(0, b"hello"), X, NOW_NS, MARK, 0), lambda reply: _done(done, reply))
    await done
    return CopyEnd(MARK, 5, X)


def _done(done: asyncio.Future[Reply], reply: Reply | Exception) -> None:
    assert isinstance(reply, Reply)
    done.set_result(reply)
