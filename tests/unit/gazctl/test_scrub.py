from __future__ import annotations

from gazctl.journals.scrub_command import gaps, overlaps
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment


def fragment(begin: int, end: int, digit: int = 0) -> Fragment:
    return Fragment("a/journal", begin, end, bytes([digit]) * 20, CompressionCodec.NONE, "file:///", 1)


def test_fragments_that_follow_each_other_have_no_gaps() -> None:
    assert not list(gaps([fragment(100, 200), fragment(200, 300), fragment(250, 400)]))


def test_a_range_that_nobody_has_is_told() -> None:
    assert list(gaps([fragment(0, 10), fragment(20, 30)])) == ["no fragment has [10, 20)"]


def test_one_range_with_two_contents_is_told() -> None:
    (told,) = gaps([fragment(0, 10, digit=1), fragment(0, 10, digit=2)])
    assert "different sums" in told


def test_neighbours_share_what_both_have() -> None:
    left, middle, right = fragment(0, 10), fragment(5, 20), fragment(20, 30)
    assert overlaps([right, left, middle]) == {left: [(5, 10)], middle: [(5, 10)]}


def test_one_that_holds_several_others_is_compared_with_each() -> None:
    whole, first, second = fragment(0, 100), fragment(10, 20), fragment(30, 40)
    assert overlaps([second, whole, first]) == {whole: [(10, 20), (30, 40)], first: [(10, 20)], second: [(30, 40)]}
