"""SummaryPool: the runs of a plan, summarised ahead and several at once.

What is little is read by threads of this process, while others wait for their stores. With more to read, as many
processes do it as there are cores. All of them end with the plan.
"""

from __future__ import annotations

import logging
import os
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import TypeVar

from spark_readers.fragment_access import fragment_access
from spark_readers.fragment_task import Run
from spark_readers.piece_messages import extractor_of
from spark_readers.read_options import ReadOptions
from spark_readers.run_summaries import RunSummaries, run_summaries, tell_skipped
from spark_readers.summary_cache import SummaryCache, run_key
from spark_readers.summary_process import ProcessEndedError, SummaryProcess
from spark_readers.uuid_extract import Extractor

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS_MIN = 4
PROCESSES_MAX = 8
"""Each takes a hundred megabytes."""
PROCESSES_BYTES_MIN = 512 << 20
"""Of content in a plan before processes are started: to start one takes as long as to read a fifth of it."""
AHEAD_RUNS_MAX = 64
"""Of journals after the one that is waited for."""

_OF_PROCESS = SummaryCache()


class SummaryPool:
    """Used by one thread, as a context."""

    def __init__(self, options: ReadOptions, cache: SummaryCache = _OF_PROCESS) -> None:
        self._options = options
        self._cache = cache
        self._processes_max = min(_cores(), PROCESSES_MAX) if _cores() > 1 else 0
        self._threads_max = max(THREADS_MIN, self._processes_max)
        self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="summaries")
        self._content_bytes = 0
        # Of what the threads share.
        self._lock = Lock()
        self._is_over = False
        self._started: list[SummaryProcess] = []
        # None tells whoever waits that there is none to wait for.
        self._idle: queue.SimpleQueue[SummaryProcess | None] = queue.SimpleQueue()

    def __enter__(self) -> SummaryPool:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        for process in self._started:
            process.end()
        for _waiting in range(self._threads_max):
            self._idle.put(None)
        self._threads.shutdown(cancel_futures=True)

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started."""
        return [process.pid for process in self._started]

    def in_order(self, journals: Iterable[tuple[T, Sequence[Run]]]) -> Iterator[tuple[T, list[RunSummaries]]]:
        """For each journal, known to the caller by whatever it likes, its runs with their summaries, without those of
        which nothing can be read. Journals that follow are read meanwhile."""
        ahead: deque[tuple[T, list[Future[RunSummaries]]]] = deque()
        count = 0
        for known, runs in journals:
            ahead.append((known, [self._submitted(run) for run in runs]))
            count += len(runs)
            # Those that nothing is read of are not kept either.
            while ahead and (count > AHEAD_RUNS_MAX or len(ahead) > AHEAD_RUNS_MAX or not ahead[0][1]):
                first, found = ahead.popleft()
                count -= len(found)
                yield first, self._taken(found)
        for known, found in ahead:
            yield known, self._taken(found)

    def _submitted(self, run: Run) -> Future[RunSummaries]:
        known = self._cache.get(run_key(run, self._options))
        if known is not None:
            done: Future[RunSummaries] = Future()
            done.set_result(RunSummaries(run, known))
            return done
        self._content_bytes += run.content_bytes
        return self._threads.submit(self._summarised, run)

    def _taken(self, found: Sequence[Future[RunSummaries]]) -> list[RunSummaries]:
        taken = [future.result() for future in found]
        for of in taken:
            self._cache.put(run_key(of.run, self._options), of.summaries)
        tell_skipped([piece for of in taken for piece in of.skipped])
        return [of for of in taken if of.run.pieces]

    def _summarised(self, run: Run) -> RunSummaries:
        process = self._process() if self._content_bytes >= PROCESSES_BYTES_MIN else None
        if process is not None:
            try:
                found = process.summaries(run)
            except ProcessEndedError as error:
                self._give_up(error)
            except Exception:
                self._idle.put(process)
                raise
            else:
                self._idle.put(process)
                return found
        return run_summaries(fragment_access(self._options), run, self._options, self._extract)

    @cached_property
    def _extract(self) -> Extractor:
        return extractor_of(self._options)

    def _process(self) -> SummaryProcess | None:
        """One that is idle, a new one, or the next to become idle. None if this process has to do it."""
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            with self._lock:
                if self._is_over or not self._processes_max:
                    return None
                if len(self._started) < self._processes_max:
                    try:
                        self._started.append(SummaryProcess(self._options))
                    except ProcessEndedError as error:
                        log.warning("no process could be started to read UUIDs: %s", error)
                        self._processes_max = 0
                        return None
                    return self._started[-1]
        return self._idle.get()

    def _give_up(self, error: ProcessEndedError) -> None:
        """On processes altogether: what ended one will end others."""
        with self._lock:
            if self._is_over:
                raise error
            self._processes_max = 0
        log.warning("a process that read UUIDs has ended, so the rest is read without: %s", error)
        for _ in range(self._threads_max):
            self._idle.put(None)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
