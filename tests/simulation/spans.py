"""Spans: sets of offsets as ascending, disjoint pairs, with what checkers ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    begin: int
    end: int

    def __str__(self) -> str:
        return f"[{self.begin},{self.end})"


def joined(spans: Iterable[tuple[int, int]]) -> list[Span]:
    """
    >>> joined([(5, 7), (0, 2), (2, 4), (6, 9), (3, 3)])
    [Span(begin=0, end=4), Span(begin=5, end=9)]
    """
    result: list[Span] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if result and begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(end, result[-1].end))
        else:
            result.append(Span(begin, end))
    return result


def without(spans: Iterable[tuple[int, int]], removed: Iterable[tuple[int, int]]) -> list[Span]:
    """
    >>> without([(0, 10), (20, 30)], [(2, 4), (8, 22)])
    [Span(begin=0, end=2), Span(begin=4, end=8), Span(begin=22, end=30)]
    """
    result: list[Span] = []
    cuts = joined(removed)
    at = 0
    for begin, end in joined(spans):
        while at < len(cuts) and cuts[at].end <= begin:
            at += 1
        look = at
        while look < len(cuts) and cuts[look].begin < end:
            if cuts[look].begin > begin:
                result.append(Span(begin, cuts[look].begin))
            begin = max(begin, cuts[look].end)
            look += 1
        if begin < end:
            result.append(Span(begin, end))
    return result


def common(spans: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> list[Span]:
    """
    >>> common([(0, 10), (20, 30)], [(8, 22)])
    [Span(begin=8, end=10), Span(begin=20, end=22)]
    """
    spans = joined(spans)
    return without(spans, without(spans, others))
