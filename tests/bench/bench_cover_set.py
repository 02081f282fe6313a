from __future__ import annotations

import random
from collections.abc import Iterator

from fragment.cover_set import CoverSet, Slice
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from tests.bench.harness import Contest, benchmark

COUNT = 1_000_000


def stored(count: int) -> list[Fragment]:
    """As a listing shows them: in order, one in ten overlapping the next, one in twenty twice."""
    fragments = []
    for at in range(count):
        begin, end = at * 1000, at * 1000 + (1500 if at % 10 == 0 else 1000)
        digest = at.to_bytes(20, "big")
        fragment = Fragment("acme/orders", begin, end, digest, CompressionCodec.GZIP, "s3://bucket/", 1 + at)
        fragments += [fragment] * (2 if at % 20 == 0 else 1)
    return fragments


@benchmark("cover: build from 1,000,000 fragments, as listed")
def build_as_listed() -> Iterator[Contest]:
    bag = stored(COUNT)

    def floor() -> list[Fragment]:
        return sorted(bag, key=lambda fragment: fragment.begin)

    assert len(CoverSet(bag)) == COUNT
    yield Contest(lambda: CoverSet(bag), floor, "sort by begin", len(bag), "fragments", ratio_min=0.25)


@benchmark("cover: build from 1,000,000 fragments, shuffled")
def build_shuffled() -> Iterator[Contest]:
    bag = stored(COUNT)
    random.Random(1).shuffle(bag)

    def floor() -> list[Fragment]:
        return sorted(bag, key=lambda fragment: fragment.begin)

    yield Contest(lambda: CoverSet(bag), floor, "sort by begin", len(bag), "fragments", ratio_min=0.4)


@benchmark("cover: plan over 1,000,000 fragments")
def plan() -> Iterator[Contest]:
    bag = stored(COUNT)
    cover = CoverSet(bag)

    def ours() -> int:
        return len(list(cover.walk()))

    def floor() -> int:
        return len([Slice(fragment, fragment.begin, fragment.end) for fragment in bag])

    assert ours() == COUNT
    yield Contest(ours, floor, "a slice of each", COUNT, "fragments", ratio_min=0.4)


@benchmark("cover: 10,000 commits that grow the last of 100,000 fragments")
def commits() -> Iterator[Contest]:
    cover = CoverSet(stored(100_000))
    begin = cover.end
    growing = [
        Fragment("acme/orders", begin, begin + length, bytes(20), CompressionCodec.GZIP) for length in range(1, 10_001)
    ]
    tail: list[Fragment] = [growing[0]]

    def ours() -> None:
        cover.add(Fragment("acme/orders", begin - 1, begin, bytes(20), CompressionCodec.GZIP))
        for fragment in growing:
            cover.add(fragment)

    def floor() -> None:
        for fragment in growing:
            tail[-1] = fragment

    yield Contest(ours, floor, "replace the last item of a list", len(growing), "commits", seconds_max=0.1)


@benchmark("cover: 10,000 lookups among 1,000,000 fragments")
def lookups() -> Iterator[Contest]:
    cover = CoverSet(stored(COUNT))
    chance = random.Random(1)
    offsets = [chance.randrange(cover.end) for _ in range(10_000)]
    at_hand: dict[int, bool] = dict.fromkeys(offsets, True)

    def ours() -> bool:
        return all(cover.lookup(offset)[1] for offset in offsets)

    def floor() -> bool:
        return all(at_hand[offset] for offset in offsets)

    assert ours()
    yield Contest(ours, floor, "a dict that has the answer", len(offsets), "lookups", seconds_max=0.2)
