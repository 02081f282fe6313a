"""Runs contests and tells how they went."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from pathlib import Path

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Contest:
    """Two ways to do the same `work`: ours, and one that shows how fast it could be done at all."""

    ours: Callable[[], object]
    peer: Callable[[], object]
    peer_name: str
    work: float
    unit: str
    # Whichever of these is set is compared with what was measured and printed beside it.
    seconds_max: float | None = None
    ratio_min: float | None = None
    memory_bytes_max: int | None = None
    rounds: int = ROUNDS
    # Done before either has its turn, and not timed.
    before: Callable[[], object] | None = None


Setup = Callable[[], Iterator[Contest]]

_REGISTERED: dict[str, Setup] = {}


def benchmark(name: str) -> Callable[[Setup], Setup]:
    """Register a generator that sets up, yields one Contest, and cleans up after it."""

    def register(setup: Setup) -> Setup:
        assert name not in _REGISTERED, f"two benchmarks are called {name!r}"
        _REGISTERED[name] = setup
        return setup

    return register


def registered(words: list[str]) -> dict[str, Setup]:
    """All benchmarks, or those whose name has one of `words`."""
    return {name: setup for name, setup in sorted(_REGISTERED.items()) if not words or any(w in name for w in words)}


@dataclass(frozen=True, slots=True)
class Result:
    ours_s: list[float]
    peer_s: list[float]
    contest: Contest
    # How far memory rose above where it was when ours began.
    memory_bytes: int

    @property
    def ratio(self) -> float:
        """Our speed as a share of the peer's, of the medians."""
        return statistics.median(self.peer_s) / statistics.median(self.ours_s)

    @property
    def spread(self) -> float:
        """How far apart our rounds were, as a share of their median."""
        return (max(self.ours_s) - min(self.ours_s)) / statistics.median(self.ours_s)

    @property
    def verdict(self) -> str:
        contest, median = self.contest, statistics.median(self.ours_s)
        goals = []
        if contest.seconds_max is not None:
            goals.append(f"{'met' if median <= contest.seconds_max else 'MISSED'}: at most {contest.seconds_max:g} s")
        if contest.ratio_min is not None:
            goals.append(f"{'met' if self.ratio >= contest.ratio_min else 'MISSED'}: at least {contest.ratio_min:.0%}")
        if contest.memory_bytes_max is not None:
            word = "met" if self.memory_bytes <= contest.memory_bytes_max else "MISSED"
            goals.append(f"{word}: {self.memory_bytes >> 20} MiB more memory, at most {contest.memory_bytes_max >> 20}")
        return "; ".join(goals)


def run(setup: Setup) -> Result:
    """The two take turns, so that what else the machine is doing hits both."""
    with contextmanager(setup)() as contest:
        ours, peer, memory = [], [], 0
        if contest.rounds > 1:
            contest.ours()
            contest.peer()
        for _ in range(contest.rounds):
            _get_ready(contest)
            before = begin_peak()
            ours.append(_timed(contest.ours))
            memory = max(memory, memory_figure("VmHWM") - before)
            _get_ready(contest)
            peer.append(_timed(contest.peer))
        return Result(ours, peer, contest, memory)


def _get_ready(contest: Contest) -> None:
    if contest.before is not None:
        contest.before()


def use_memory(byte_count: int) -> None:
    """Use so much of it, and give it back. On a virtual machine what was never used costs several times as much as what
    was, and of the two only who writes to files needs any."""
    with mmap(-1, byte_count) as pages:
        for begin in range(0, byte_count, PAGESIZE):
            pages[begin] = 1


def begin_peak() -> int:
    """Forget the peak of memory so far; returns how much is in use."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory_figure("VmRSS")


def memory_figure(name: str) -> int:
    """A figure of Linux about this process; zero elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def _timed(action: Callable[[], object]) -> float:
    gc.collect()
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
