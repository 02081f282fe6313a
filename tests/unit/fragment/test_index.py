from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

import pytest

from fragment.cover_set import CoverSet, Divergence
from fragment.index import JUMP_AGE_S, WRITE_HEAD, Found, Index, NotYetAvailable, Page, Summary
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from tests.support.golden import Case, case_id, cases

NOW = 1_700_000_000
STORE = "file:///store/"


def local(begin: int, end: int, tag: int = 0) -> Fragment:
    return Fragment("acme/orders", begin, end, bytes([tag] * 20), CompressionCodec.NONE)


def remote(begin: int, end: int, mod_time: int = NOW, tag: int = 0) -> Fragment:
    return replace(local(begin, end, tag), backing_store=STORE, mod_time=mod_time)


def indexed(remotes: list[Fragment], locals_: list[Fragment]) -> Index[str]:
    index: Index[str] = Index()
    index.replace_remote(CoverSet(remotes))
    for fragment in locals_:
        index.commit(fragment, f"file of {fragment.begin}")
    return index


def fragments(index: Index[str]) -> list[tuple[int, int, int]]:
    page = index.page(0, 1000)
    return [(each.begin, each.end, each.mod_time) for each in page.fragments]


@pytest.mark.parametrize("commits_first", [False, True], ids=["listing first", "commits first"])
@pytest.mark.parametrize("case", cases("fragments", "index-query"), ids=case_id)
def test_queries_are_answered_as_by_gazette(case: Case, commits_first: bool) -> None:
    locals_ = [local(each["begin"], each["end"]) for each in case["local"] or ()]
    listing = [remote(each["begin"], each["end"], each["mod_time"]) for each in case["remote"] or ()]
    if commits_first:
        index = indexed([], locals_)
        index.replace_remote(CoverSet(listing))
    else:
        index = indexed(listing, locals_)
        # The next listing of the same objects changes nothing but what it covers.
        index.replace_remote(CoverSet(listing))
    begin, end, mod_time = case["summary"]
    assert index.summary() == Summary(begin, end, mod_time)
    for query in case["queries"]:
        answer = index.query(query["offset"], query["begin_mod_time"], case["now"])
        assert (answer.offset, answer.write_head) == (query["got_offset"], query["write_head"])
        if query["status"] == "OFFSET_NOT_YET_AVAILABLE":
            assert isinstance(answer, NotYetAvailable)
            continue
        assert query["status"] == "OK"
        assert isinstance(answer, Found)
        found, wanted = answer.fragment, query["fragment"]
        assert (found.begin, found.end, found.mod_time) == (wanted["begin"], wanted["end"], wanted.get("mod_time", 0))
        # Gazette signs a URL for what is persisted, and that is what we have no file of.
        assert (answer.file is None) == bool(query.get("fragment_url"))


def test_an_empty_index_has_nothing_and_begins_and_ends_at_zero() -> None:
    index: Index[str] = Index()
    assert index.summary() == Summary(0, 0, 0)
    assert index.query(WRITE_HEAD, 0, NOW) == NotYetAvailable(0, 0)
    assert index.query(7, 0, NOW) == NotYetAvailable(7, 0)
    assert index.page(0, 10) == Page([], 0)


def test_the_write_head_is_an_offset_that_does_not_move_once_told() -> None:
    index = indexed([], [local(0, 10)])
    answer = index.query(WRITE_HEAD, 0, NOW)
    assert answer == NotYetAvailable(10, 10)
    index.commit(local(0, 15), "file")
    assert index.query(answer.offset, 0, NOW) == Found(10, 15, local(0, 15), "file")


class TestJumps:
    def test_below_a_persisted_first_fragment_at_once(self) -> None:
        first = remote(50, 60, NOW)
        assert indexed([first], []).query(0, 0, NOW) == Found(50, 60, first, None)

    def test_never_to_a_local_fragment(self) -> None:
        assert indexed([], [local(50, 60)]).query(0, 0, NOW) == NotYetAvailable(0, 60)

    def test_over_a_hole_only_when_what_follows_is_old(self) -> None:
        for age_s, jumps in ((JUMP_AGE_S + 1, True), (JUMP_AGE_S, False), (0, False)):
            after = remote(20, 30, NOW - age_s)
            answer = indexed([remote(0, 10), after], []).query(12, 0, NOW)
            assert answer == (Found(20, 30, after, None) if jumps else NotYetAvailable(12, 30))

    def test_and_passing_over_old_fragments_work_together(self) -> None:
        old = NOW - JUMP_AGE_S - 1
        index = indexed([remote(10, 20, old), remote(30, 40, old), remote(50, 60, NOW)], [])
        assert index.query(0, old, NOW) == Found(10, 60, remote(10, 20, old), None)
        # Over the hole to 30, past that fragment, and then there is a hole which may still be filled.
        assert index.query(25, NOW, NOW) == NotYetAvailable(40, 60)
        later = NOW + JUMP_AGE_S + 1
        assert index.query(25, NOW, later) == Found(50, 60, remote(50, 60, NOW), None)


def test_local_fragments_are_never_too_old() -> None:
    index = indexed([remote(0, 10, 5)], [local(10, 20)])
    assert index.query(0, NOW, NOW) == Found(10, 20, local(10, 20), "file of 10")


class _File:
    """Something a weak reference can point at."""


class TestHandOver:
    def test_reads_are_local_until_a_listing_covers_them(self) -> None:
        index = indexed([], [local(0, 10), local(10, 20)])
        index.replace_remote(CoverSet([remote(0, 10)]))
        assert index.query(0, 0, NOW) == Found(0, 20, remote(0, 10), None)
        assert index.query(10, 0, NOW) == Found(10, 20, local(10, 20), "file of 10")
        assert index.summary() == Summary(0, 20, 0)
        index.replace_remote(CoverSet([remote(0, 10), remote(10, 15), remote(12, 20, NOW + 1)]))
        assert index.summary() == Summary(0, 20, NOW + 1)
        assert fragments(index) == [(0, 10, NOW), (10, 15, NOW), (12, 20, NOW + 1)]

    def test_a_file_is_let_go_with_its_fragment(self) -> None:
        index: Index[_File] = Index()
        files = [_File(), _File()]
        alive = WeakSet(files)
        index.commit(local(0, 10), files[0])
        index.commit(local(10, 20), files[1])
        files.clear()
        assert len(alive) == 2
        index.replace_remote(CoverSet([remote(0, 12)]))
        assert len(alive) == 1
        index.commit(local(5, 30), _File())
        assert len(alive) == 0

    def test_a_remote_fragment_that_vanishes_uncovers_a_local_one(self) -> None:
        index = indexed([remote(0, 30)], [local(10, 20)])
        assert fragments(index) == [(0, 30, NOW)]
        index.replace_remote(CoverSet([remote(0, 10)]))
        assert fragments(index) == [(0, 10, NOW), (10, 20, 0)]
        assert index.query(10, 0, NOW) == Found(10, 20, local(10, 20), "file of 10")

    def test_a_local_fragment_that_reaches_further_wins_and_then_loses(self) -> None:
        index = indexed([remote(0, 10)], [local(0, 12)])
        assert index.query(3, 0, NOW) == Found(3, 12, local(0, 12), "file of 0")
        index.replace_remote(CoverSet([remote(0, 14)]))
        assert index.query(3, 0, NOW) == Found(3, 14, remote(0, 14), None)


class TestDivergence:
    def test_between_a_local_fragment_and_a_listing_is_told_although_the_local_one_goes(self) -> None:
        index = indexed([], [local(0, 10, 1)])
        index.replace_remote(CoverSet([remote(0, 10, tag=2)]))
        assert index.divergences == [Divergence(kept=remote(0, 10, tag=2), other=local(0, 10, 1))]
        assert fragments(index) == [(0, 10, NOW)]

    def test_between_a_listing_and_a_later_commit_is_told(self) -> None:
        index = indexed([remote(0, 10, tag=2)], [local(0, 10, 1)])
        assert index.divergences == [Divergence(kept=local(0, 10, 1), other=remote(0, 10, tag=2))]

    def test_is_not_a_matter_of_where_the_bytes_are(self) -> None:
        index = indexed([remote(0, 10)], [local(0, 10)])
        index.replace_remote(CoverSet([remote(0, 10)]))
        assert not index.divergences


class TestPages:
    INDEX = indexed([remote(0, 8, 100), remote(8, 90, 200), remote(90, 180, 300)], [local(180, 200)])

    def spans(self, page: Page) -> list[int]:
        return [each.begin for each in page.fragments]

    def test_follow_each_other_by_their_tokens(self) -> None:
        page = self.INDEX.page(0, 3)
        assert (self.spans(page), page.next_token) == ([0, 8, 90], 180)
        page = self.INDEX.page(page.next_token, 3)
        assert (self.spans(page), page.next_token) == ([180], 0)

    def test_that_end_with_the_index_have_no_next(self) -> None:
        assert self.INDEX.page(90, 2).next_token == 0

    def test_begin_at_the_next_fragment_for_any_token(self) -> None:
        assert self.spans(self.INDEX.page(7, 10)) == [8, 90, 180]
        assert self.spans(self.INDEX.page(181, 10)) == []

    def test_leave_out_what_is_too_old_but_no_local_fragment(self) -> None:
        assert self.spans(self.INDEX.page(0, 10, begin_mod_time=200)) == [8, 90, 180]
        assert self.spans(self.INDEX.page(0, 10, begin_mod_time=301)) == [180]

    def test_leave_out_what_is_too_new_and_every_local_fragment(self) -> None:
        assert self.spans(self.INDEX.page(0, 10, end_mod_time=200)) == [0, 8]
        assert self.spans(self.INDEX.page(0, 10, begin_mod_time=101, end_mod_time=299)) == [8]


class TestSubscribers:
    def test_are_told_of_commits_and_listings_until_they_leave(self) -> None:
        index: Index[str] = Index()
        told: list[Summary] = []

        def changed() -> None:
            told.append(index.summary())

        index.subscribe(changed)
        index.commit(local(0, 10), "file")
        index.replace_remote(CoverSet([remote(0, 10)]))
        index.unsubscribe(changed)
        index.commit(local(10, 20), "file")
        assert told == [Summary(0, 10, 0), Summary(0, 10, NOW)]

    def test_hear_nothing_of_a_commit_that_shows_nothing_new(self) -> None:
        index = indexed([], [local(0, 10)])
        index.subscribe(pytest.fail)
        index.commit(local(0, 8), "file")
        index.commit(local(3, 3), "file")

    def test_may_leave_while_they_are_told(self) -> None:
        index: Index[str] = Index()
        told: list[int] = []

        def once(who: int) -> None:
            def leave() -> None:
                told.append(who)
                index.unsubscribe(leave)

            index.subscribe(leave)

        once(1)
        once(2)
        index.commit(local(0, 10), "file")
        index.commit(local(0, 20), "file")
        assert sorted(told) == [1, 2]
