from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from fragment.cover_set import CoverSet, Gap, difference
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

OFFSET_MAX = 40

fragments = st.builds(
    lambda begin, length, tag: Fragment("acme/orders", begin, begin + length, bytes([tag] * 20), CompressionCodec.NONE),
    st.integers(0, OFFSET_MAX),
    st.sampled_from([0, *range(1, 9), OFFSET_MAX // 2]),
    st.integers(0, 2),
)
# Enough to crowd the range, so that many are equal, nested or adjacent.
bags = st.lists(fragments, max_size=30)


def spans(bag: object) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in bag]  # type: ignore[attr-defined]


def offsets(bag: list[Fragment]) -> set[int]:
    return {offset for each in bag for offset in range(each.begin, each.end)}


def covers(one: Fragment, other: Fragment) -> bool:
    return one.begin <= other.begin and other.end <= one.end


def model(bag: list[Fragment]) -> list[Fragment]:
    """The rule as it is written: no empty ones, none wholly within another, the later of equals."""
    kept = []
    for at, each in enumerate(bag):
        if each.begin == each.end:
            continue
        larger = any(covers(other, each) and not covers(each, other) for other in bag)
        later = any((other.begin, other.end) == (each.begin, each.end) for other in bag[at + 1 :])
        if not larger and not later:
            kept.append(each)
    return sorted(kept, key=lambda each: each.begin)


@given(bags)
def test_a_bag_gives_what_the_rule_says(bag: list[Fragment]) -> None:
    cover = CoverSet(bag)
    assert list(cover) == model(bag)
    assert all(one.begin < other.begin and one.end < other.end for one, other in pairwise(cover))


@given(bags, bags)
def test_adding_one_by_one_gives_the_same_as_all_at_once(bag: list[Fragment], more: list[Fragment]) -> None:
    cover = CoverSet(bag)
    for at, each in enumerate(more):
        before = list(cover)
        added = cover.add(each)
        assert list(cover) == model(bag + more[: at + 1])
        assert any(kept is each for kept in cover) if added else list(cover) == before


@given(bags)
def test_every_divergence_of_a_bag_is_told(bag: list[Fragment]) -> None:
    bag = [each for each in bag if each.begin < each.end]
    diverging = {
        (one.begin, one.end)
        for one, other in combinations(bag, 2)
        if (one.begin, one.end) == (other.begin, other.end) and one.sum != other.sum
    }
    reports = CoverSet(bag).divergences
    assert {(report.kept.begin, report.kept.end) for report in reports} == diverging
    for report in reports:
        assert (report.kept.begin, report.kept.end) == (report.other.begin, report.other.end)
        assert report.kept.sum != report.other.sum


@given(bags, st.integers(0, 2 * OFFSET_MAX))
def test_a_lookup_finds_what_reaches_furthest_or_what_comes_next(bag: list[Fragment], offset: int) -> None:
    cover = CoverSet(bag)
    at, found = cover.lookup(offset)
    holding = [each for each in bag if each.begin <= offset < each.end]
    assert found == bool(holding)
    if found:
        assert cover[at].begin <= offset < cover[at].end == max(each.end for each in holding)
    else:
        after = [each for each in cover if each.begin > offset]
        assert list(cover)[at:] == after


@given(bags, st.integers(0, 2 * OFFSET_MAX), st.none() | st.integers(0, 2 * OFFSET_MAX))
def test_a_walk_reads_each_offset_once_and_skips_only_gaps(bag: list[Fragment], begin: int, end: int | None) -> None:
    cover = CoverSet(bag)
    parts = list(cover.walk(begin, end))
    wanted = list(range(begin, cover.end if end is None else end))
    assert [offset for part in parts for offset in range(part.begin, part.end)] == wanted
    have = offsets(bag)
    for part in parts:
        assert part.begin < part.end
        if isinstance(part, Gap):
            assert have.isdisjoint(range(part.begin, part.end))
        else:
            assert part.fragment.begin <= part.begin < part.end <= part.fragment.end
    # Greedy: as few slices and gaps as the fragments allow, so no gap follows a gap and no slice falls short.
    for one, other in pairwise(parts):
        assert not (isinstance(one, Gap) and isinstance(other, Gap))
        if not isinstance(one, Gap):
            reach = max(each.end for each in bag if each.begin <= one.begin < each.end)
            assert one.end == reach


@given(bags, bags)
def test_a_difference_keeps_what_has_a_byte_that_nobody_else_has(local: list[Fragment], remote: list[Fragment]) -> None:
    have = offsets(remote)
    kept = difference(CoverSet(local), CoverSet(remote))
    assert spans(kept) == [
        (each.begin, each.end) for each in model(local) if not set(range(each.begin, each.end)) <= have
    ]


@given(bags, st.integers(0, 2 * OFFSET_MAX), st.integers(0, 2 * OFFSET_MAX))
def test_a_range_is_covered_if_each_offset_is(bag: list[Fragment], begin: int, end: int) -> None:
    assert CoverSet(bag).covers(begin, end) == (set(range(begin, end)) <= offsets(bag))
