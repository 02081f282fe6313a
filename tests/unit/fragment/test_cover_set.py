from __future__ import annotations

from dataclasses import replace

import pytest

from fragment.cover_set import DIVERGENCES_MAX, CoverSet, Divergence, Gap, Slice, difference
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from tests.support.golden import Case, case_id, cases


def fragment(begin: int, end: int, tag: int = 0) -> Fragment:
    return Fragment("acme/orders", begin, end, tag.to_bytes(20, "big"), CompressionCodec.NONE)


def spans(cover: CoverSet) -> list[tuple[int, int]]:
    return [(kept.begin, kept.end) for kept in cover]


def tagged(cover: CoverSet) -> list[tuple[int, int, int]]:
    return [(kept.begin, kept.end, int.from_bytes(kept.sum, "big")) for kept in cover]


def plain_rule(bag: list[Fragment]) -> list[tuple[int, int, int]]:
    """Straight from the definition, without any order to exploit."""
    last = {(each.begin, each.end): each for each in bag if each.begin < each.end}
    kept = [
        each
        for (begin, end), each in last.items()
        if not any(b <= begin and end <= e and (b, e) != (begin, end) for b, e in last)
    ]
    return sorted((each.begin, each.end, int.from_bytes(each.sum, "big")) for each in kept)


@pytest.mark.parametrize("case", cases("fragments", "cover"), ids=case_id)
def test_cover_sets_are_those_of_gazette(case: Case) -> None:
    bag = [fragment(add["begin"], add["end"], add["tag"]) for add in case["adds"] or ()]
    cover = CoverSet()
    changed = [cover.add(each) for each in bag]
    assert tagged(cover) == tagged(CoverSet(bag)) == plain_rule(bag)
    if case["kept_spanned_fragment"]:
        return  # Gazette's short-cut went wrong here; the plain rule is what we go by.
    assert changed == [add["added"] for add in case["adds"] or ()]
    assert tagged(cover) == [(kept["begin"], kept["end"], kept["tag"]) for kept in case["cover"] or ()]
    assert (cover.begin, cover.end) == (case["begin_offset"], case["end_offset"])
    for lookup in case["lookups"] or ():
        assert cover.lookup(lookup["offset"]) == (lookup["index"], lookup["found"])


@pytest.mark.parametrize("case", cases("fragments", "cover-difference"), ids=case_id)
def test_local_fragments_that_remote_ones_cover_go_as_in_gazette(case: Case) -> None:
    local, remote = (
        CoverSet(fragment(each["begin"], each["end"]) for each in case[key] or ()) for key in ("local", "remote")
    )
    assert spans(difference(local, remote)) == [(each["begin"], each["end"]) for each in case["kept_local"] or ()]


def test_a_late_large_fragment_replaces_all_it_covers_in_the_middle_of_the_set() -> None:
    """Gazette compares with the last one only, and ends up out of order."""
    cover = CoverSet([fragment(0, 10), fragment(10, 20), fragment(20, 30), fragment(30, 40)])
    assert cover.add(fragment(10, 50))
    assert spans(cover) == [(0, 10), (10, 50)]


def test_a_growing_fragment_replaces_itself() -> None:
    cover = CoverSet([fragment(0, 10)])
    for end in range(11, 20):
        assert cover.add(fragment(10, end, end))
    assert tagged(cover) == [(0, 10, 0), (10, 19, 19)]
    assert not cover.add(fragment(10, 18, 18))
    assert not cover.divergences


def test_an_empty_set_has_nothing_anywhere() -> None:
    cover = CoverSet([fragment(5, 5)])
    assert (len(cover), cover.begin, cover.end) == (0, 0, 0)
    assert cover.lookup(0) == (0, False)
    assert list(cover.walk()) == []
    assert list(cover.walk(3, 7)) == [Gap(3, 7)]


def test_a_walk_takes_what_reaches_furthest_and_shows_gaps() -> None:
    short, longer, lone = fragment(0, 10), fragment(4, 20), fragment(30, 40)
    cover = CoverSet([lone, longer, short])
    assert list(cover.walk()) == [Slice(short, 0, 10), Slice(longer, 10, 20), Gap(20, 30), Slice(lone, 30, 40)]
    assert list(cover.walk(6, 35)) == [Slice(longer, 6, 20), Gap(20, 30), Slice(lone, 30, 35)]
    assert list(cover.walk(25, 28)) == [Gap(25, 28)]
    assert list(cover.walk(38, 50)) == [Slice(lone, 38, 40), Gap(40, 50)]
    assert list(cover.walk(50)) == []


def test_a_walk_leaves_a_fragment_out_where_the_next_one_reaches_further() -> None:
    first, between, last = fragment(0, 10), fragment(5, 12), fragment(10, 20)
    assert list(CoverSet([first, between, last]).walk()) == [Slice(first, 0, 10), Slice(last, 10, 20)]


def test_covering_is_a_matter_of_all_fragments_together() -> None:
    cover = CoverSet([fragment(0, 10), fragment(8, 20), fragment(21, 30)])
    assert cover.covers(2, 20)
    assert cover.covers(7, 7)
    assert not cover.covers(2, 22)
    assert not cover.covers(20, 21)


class TestDivergence:
    ONE, OTHER = fragment(0, 10, 1), fragment(0, 10, 2)

    def test_of_a_bag_is_reported_and_the_later_stays(self) -> None:
        cover = CoverSet([self.ONE, self.OTHER])
        assert list(cover) == [self.OTHER]
        assert cover.divergences == [Divergence(kept=self.OTHER, other=self.ONE)]

    def test_of_an_addition_is_reported_and_the_later_stays(self) -> None:
        cover = CoverSet([self.OTHER])
        assert cover.add(self.ONE)
        assert list(cover) == [self.ONE]
        assert cover.divergences == [Divergence(kept=self.ONE, other=self.OTHER)]

    def test_shows_under_a_fragment_that_covers_both(self) -> None:
        cover = CoverSet([self.ONE, fragment(0, 20, 3), self.OTHER])
        assert spans(cover) == [(0, 20)]
        assert cover.divergences == [Divergence(kept=self.OTHER, other=self.ONE)]

    def test_is_none_when_copies_differ_only_in_where_and_how_they_are_kept(self) -> None:
        copy = replace(self.ONE, codec=CompressionCodec.GZIP, backing_store="s3://bucket/", mod_time=7)
        cover = CoverSet([self.ONE, copy])
        assert cover.add(self.ONE)
        assert not cover.divergences

    def test_can_be_looked_for_without_adding(self) -> None:
        cover = CoverSet([self.ONE])
        cover.compare(fragment(0, 9, 5))
        cover.compare(fragment(3, 10, 5))
        cover.compare(fragment(11, 12, 5))
        assert not cover.divergences
        cover.compare(self.OTHER)
        assert cover.divergences == [Divergence(kept=self.ONE, other=self.OTHER)]
        assert list(cover) == [self.ONE]

    def test_reports_are_bounded(self) -> None:
        cover = CoverSet(fragment(0, 10, tag) for tag in range(2 * DIVERGENCES_MAX))
        cover.add(self.OTHER)
        assert len(cover.divergences) == DIVERGENCES_MAX


def test_the_caller_prefers_a_copy_by_putting_it_last() -> None:
    copies = [replace(fragment(0, 10), codec=codec) for codec in (CompressionCodec.GZIP, CompressionCodec.NONE)]
    cheapest_last = sorted(copies, key=lambda copy: copy.codec is CompressionCodec.NONE)
    assert [kept.codec for kept in CoverSet(cheapest_last)] == [CompressionCodec.NONE]
