"""``make bench``: run every contest, or those whose name has one of the words given."""

from __future__ import annotations

import importlib
import pkgutil
import statistics
import sys

import tests.bench
from tests.bench.harness import Result, registered, run

COLUMNS = ("benchmark", "median", "spread", "rate", "peer", "its median", "ratio", "goal")


def main(words: list[str]) -> None:
    for module in pkgutil.iter_modules(tests.bench.__path__):
        if module.name.startswith("bench_"):
            importlib.import_module(f"tests.bench.{module.name}")
    chosen = registered(words)
    if not chosen:
        sys.exit(f"no benchmark has one of these words in its name: {' '.join(words)}")
    # Each is printed when it is over: all of them take hours, and whoever stops half way keeps that half.
    widths = (max(map(len, chosen)), 8, 6, 20, 24, 10, 5, 0)
    print(_line(COLUMNS, widths), flush=True)
    for at, (name, setup) in enumerate(chosen.items(), start=1):
        print(f"\r[{at}/{len(chosen)}] {name:<60}", end="", file=sys.stderr, flush=True)
        finished = row(name, run(setup))
        print(f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)
        print(_line(finished, widths), flush=True)


def _line(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def row(name: str, result: Result) -> tuple[str, ...]:
    ours = statistics.median(result.ours_s)
    return (
        name,
        duration(ours),
        f"{result.spread:.0%}",
        f"{result.contest.work / ours:,.0f} {result.contest.unit}/s",
        result.contest.peer_name,
        duration(statistics.median(result.peer_s)),
        f"{result.ratio:.2f}",
        result.verdict,
    )


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


if __name__ == "__main__":
    main(sys.argv[1:])
