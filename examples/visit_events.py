"""Page views of a made-up shop as they come in from browsers: late, out of order, some twice, some broken.

The same ones for the same seed. A pipeline that cleans them and puts them together to sessions has something to do.

python -m examples.visit_events --count 10 | gazctl journals append -l name=acme/visits -f lines
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

PAGES = ("/", "/search", "/cart", "/checkout", "/thanks", *(f"/product/{number}" for number in range(20)))
COUNTRIES = ("at", "br", "de", "fr", "in", "jp", "ng", "us")
FIRST_S = 1_700_000_000
VISITORS = 200
SESSION_GAP_S = 30 * 60
"""A visitor who is away for longer begins another session."""

_LATE_S_MAX = 120.0
_TWICE, _BROKEN, _NAMELESS = 0.02, 0.01, 0.01


def visits(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """As they happen, in the order of their times."""
    chance = random.Random(seed)
    # When each visitor looks at the next page.
    due = [(FIRST_S + chance.uniform(0, 3600), number) for number in range(VISITORS)]
    due.sort()
    for event in range(count):
        at_s, number = heappop(due)
        leaves = chance.random() < 0.1
        pause_s = SESSION_GAP_S + chance.expovariate(1 / 14_400) if leaves else 1 + chance.expovariate(1 / 40)
        heappush(due, (at_s + pause_s, number))
        yield {
            "event": f"e{event:08}",
            "visitor": f"v{number:04}",
            "at": round(at_s, 3),
            "page": chance.choice(PAGES),
            "country": COUNTRIES[number % len(COUNTRIES)],
            "cents": chance.randrange(100, 20_000) if chance.random() < 0.05 else None,
        }


def lines(count: int, seed: int = 1) -> Iterator[str]:
    """As they come in, each up to two minutes late: `count` of them, and besides those that come a second time."""
    chance = random.Random(seed ^ 0x5EED)
    waiting: list[tuple[float, int, str]] = []
    for number, visit in enumerate(visits(count, seed)):
        while waiting and waiting[0][0] <= visit["at"]:
            yield heappop(waiting)[2]
        for _ in range(2 if chance.random() < _TWICE else 1):
            arrives_s = visit["at"] + chance.uniform(0, _LATE_S_MAX)
            # By number where two come at one time, so that the order is the same each time.
            heappush(waiting, (arrives_s, number, _sent(visit, chance)))
    while waiting:
        yield heappop(waiting)[2]


def _sent(visit: dict[str, Any], chance: random.Random) -> str:
    text = json.dumps({name: value for name, value in visit.items() if value is not None}, separators=(",", ":"))
    fate = chance.random()
    if fate < _BROKEN:
        return text[: len(text) // 2]
    if fate < _BROKEN + _NAMELESS:
        return text.replace(f'"visitor":"{visit["visitor"]}",', "")
    return text


def main() -> None:
    arguments = argparse.ArgumentParser(description="Print page views as JSON lines.")
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    for line in lines(given.count, given.seed):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
