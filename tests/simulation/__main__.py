"""Runs of seeds, one after the other.

    python -m tests.simulation --seed 17

runs a seed again, exactly as it was, and prints what failed; ``--count 1000`` runs as many seeds from there on.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from tests.simulation.cluster import Run, run, swarm
from tests.simulation.faults import FaultKind, shrunk


def smallest(ran: Run) -> Run:
    """The same run with as few of its faults as still make it fail."""
    return run(ran.options, shrunk(ran.faults, lambda faults: run(ran.options, faults).is_failed))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Of a seed, as one process tells another."""

    seed: int
    report: str
    is_over_budget: bool
    events: int


def _begin() -> None:
    """In each process. What there is by now stays, and need not be looked at whenever garbage is collected."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()


def _judge(seed: int, kinds: Sequence[FaultKind] | None) -> _Verdict:
    verdict = _verdict(run(swarm(seed, kinds)))
    # Now that nobody has the run any more: its cycles are looked at once, and while they are in the processor's caches.
    gc.collect()
    return verdict


def _verdict(ran: Run) -> _Verdict:
    return _Verdict(ran.options.seed, ran.report if ran.is_failed else "", ran.over_budget, ran.world.events)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed to run")
    parser.add_argument("--count", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes to run them in")
    parser.add_argument("--kinds", help="faults that there may be, by name, with commas between; all by default")
    parser.add_argument("--shrink", action="store_true", help="leave out the faults that a failure does not need")
    parsed = parser.parse_args(arguments)
    kinds = None if parsed.kinds is None else [FaultKind[name] for name in parsed.kinds.split(",") if name]
    seeds = range(parsed.seed, parsed.seed + parsed.count)
    begun_s = perf_counter()
    with ProcessPoolExecutor(parsed.jobs, initializer=_begin) as processes:
        verdicts = []
        for verdict in processes.map(partial(_judge, kinds=kinds), seeds, chunksize=8):
            verdicts.append(verdict)
            if verdict.report:
                print(smallest(run(swarm(verdict.seed, kinds))).report if parsed.shrink else verdict.report, flush=True)
    failed = [verdict.seed for verdict in verdicts if verdict.report]
    over = sum(verdict.is_over_budget for verdict in verdicts)
    rate = len(seeds) / (perf_counter() - begun_s) * 60
    events = sum(verdict.events for verdict in verdicts)
    print(f"{len(seeds)} runs, {over} over budget, {events} events, {rate:.0f} runs a minute; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
