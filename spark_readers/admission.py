"""Admission: how much of each journal a micro-batch takes when it cannot take everything.

Journals are cut only where fragments or frames end. Each is given its share of the limit, in proportion to what waits,
rounded down to a cut. What is left by rounding goes round: one more cut each, first to those that got nothing, from
where the last batch stopped. So the limit is passed by less than one cut, whatever the number of journals, each
batch makes progress, and no journal waits for longer than all others have had a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    # An offset up to which a batch may read.
    end: int
    # What it takes of the limit to come here from the cut before.
    cost: int


Waiting = Mapping[str, Sequence[Cut]]
"""By journal, in the order of offsets. None is empty."""


class Admitted(NamedTuple):
    # By journal that has any part in the batch.
    ends: dict[str, int]
    turn: str


def shares(waiting: Waiting, limit: int) -> dict[str, int]:
    """Of a limit, in proportion to what waits."""
    sizes = {journal: _size(cuts) for journal, cuts in waiting.items()}
    total = max(1, sum(sizes.values()))
    return {journal: limit * size // total for journal, size in sizes.items()}


def admit(waiting: Waiting, limit: int | None, turn: str) -> Admitted:
    if limit is None or sum(map(_size, waiting.values())) <= limit:
        return Admitted({journal: cuts[-1].end for journal, cuts in waiting.items()}, turn)
    left = limit
    taken = dict.fromkeys(waiting, 0)
    for journal, share in shares(waiting, limit).items():
        for cut in waiting[journal]:
            share -= cut.cost
            if share < 0:
                break
            taken[journal] += 1
            left -= cut.cost
    order = [*sorted(name for name in waiting if name > turn), *sorted(name for name in waiting if name <= turn)]
    starved = [journal for journal in order if not taken[journal]]
    order = [*starved, *(journal for journal in order if taken[journal])]
    # There is more than the limit, so this ends.
    while left > 0:
        for journal in order:
            if left > 0 and taken[journal] < len(waiting[journal]):
                left -= waiting[journal][taken[journal]].cost
                taken[journal] += 1
                if not starved or journal in starved:
                    turn = journal
    return Admitted({journal: waiting[journal][count - 1].end for journal, count in taken.items() if count}, turn)


def straddled(cuts: Sequence[Cut], share: int) -> int:
    """Which cut is the first beyond a share: finer ones before it make a better use of the share."""
    for at, cut in enumerate(cuts):
        share -= cut.cost
        if share < 0:
            return at
    return len(cuts)


def refined(cuts: Sequence[Cut], at: int, ends: Sequence[int]) -> list[Cut]:
    """With cuts at `ends` within the one at `at`, which cost what they have in bytes."""
    coarse = cuts[at]
    begin = coarse.end - coarse.cost
    finer = []
    for end in (*(end for end in sorted(ends) if begin < end < coarse.end), coarse.end):
        finer.append(Cut(end, end - begin))
        begin = end
    return [*cuts[:at], *finer, *cuts[at + 1 :]]


def _size(cuts: Sequence[Cut]) -> int:
    return sum(cut.cost for cut in cuts)
