from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fragment import retention
from fragment.retention import Expired, plan
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from protocol.journal import FragmentPolicy, JournalSpec
from protocol.label import CONTENT_TYPE, LabelSet

NOW_S = 1_000_000
DAY_NS = 86_400 * 10**9


def spec(retention_ns: int = DAY_NS, labels: LabelSet | None = None) -> JournalSpec:
    return JournalSpec("a/b", 3, labels or LabelSet(), FragmentPolicy(retention_ns=retention_ns))


def fragment(begin: int, end: int, age_s: int, store: str = "s3://bucket/") -> Fragment:
    return Fragment("a/b", begin, end, bytes(20), CompressionCodec.NONE, store, NOW_S - age_s)


OLD, NEW = 90_000, 80_000


def spans(expired: Expired) -> list[tuple[int, int]]:
    return [(held.begin, held.end) for held in expired.fragments]


def test_only_a_prefix_goes() -> None:
    listed = [
        fragment(0, 10, OLD),
        fragment(10, 20, OLD),
        fragment(20, 30, NEW),
        fragment(30, 40, OLD),
        fragment(40, 50, OLD),
    ]
    expired = plan(spec(), listed, NOW_S)
    assert spans(expired) == [(0, 10), (10, 20)]
    assert "not past the retention" in expired.kept_because


def test_the_head_stays_however_old() -> None:
    listed = [fragment(0, 10, OLD), fragment(10, 20, OLD), fragment(15, 20, OLD)]
    assert spans(plan(spec(), listed, NOW_S)) == [(0, 10)]
    assert spans(plan(spec(), [fragment(0, 10, OLD)], NOW_S)) == []


@pytest.mark.parametrize("retention_ns", [0, -1])
def test_without_a_retention_nothing_goes(retention_ns: int) -> None:
    listed = [fragment(0, 10, 10**9), fragment(10, 20, 10**9)]
    assert spans(plan(spec(retention_ns), listed, NOW_S)) == []


def test_a_recovery_log_is_never_pruned_by_age() -> None:
    labels = LabelSet.of((CONTENT_TYPE, retention.RECOVERY_LOG))
    assert spans(plan(spec(labels=labels), [fragment(0, 10, OLD), fragment(10, 20, OLD)], NOW_S)) == []


def test_what_is_not_persisted_stops_the_removal() -> None:
    listed = [fragment(0, 10, OLD), Fragment("a/b", 10, 20, bytes(20), CompressionCodec.NONE), fragment(20, 30, OLD)]
    assert spans(plan(spec(), [*listed, fragment(30, 40, NEW)], NOW_S)) == [(0, 10)]


def test_overlaps_go_only_as_far_as_every_one_of_them_may() -> None:
    listed = [fragment(0, 10, OLD), fragment(5, 12, NEW), fragment(10, 20, OLD), fragment(20, 30, NEW)]
    assert spans(plan(spec(), listed, NOW_S)) == [(0, 10)]


def test_a_journal_without_fragments_has_nothing_to_remove() -> None:
    assert spans(plan(spec(), [], NOW_S)) == []


fragments = st.builds(
    lambda begin, length, age_s: fragment(begin, begin + length, age_s),
    st.integers(0, 30),
    st.integers(1, 10),
    st.sampled_from([OLD, NEW]),
)


@given(st.lists(fragments, max_size=12))
def test_whatever_remains_reads_on_without_a_new_hole(listed: list[Fragment]) -> None:
    gone = plan(spec(), listed, NOW_S).fragments
    kept = [held for held in listed if held not in gone]
    for held in gone:
        assert NOW_S - held.mod_time >= 86_400
        assert all(held.end <= other.end for other in kept), "something before it was kept, so it is no prefix"
    if listed:
        assert max(held.end for held in kept) == max(held.end for held in listed)


class Store:
    """Remembers what was removed; fails from the given one on."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.removed: list[str] = []
        self.announced: list[int] = []
        self.fails_at = fails_at

    async def remove(self, path: str) -> None:
        if len(self.removed) == self.fails_at:
            raise UnavailableError("the store is down")
        self.removed.append(path)


LISTED = [fragment(0, 10, OLD), fragment(10, 20, OLD, "s3://other/"), fragment(20, 30, NEW)]


async def enforced(
    store: Store, current: JournalSpec | None, listed: Sequence[Fragment] = LISTED, dry_run: bool = False
) -> Expired:
    asked: list[str] = []

    async def current_spec(journal: str) -> JournalSpec | None:
        return current

    async def open_store(url: str) -> Store:
        asked.append(url)
        return store

    async def announce(through: int) -> None:
        assert not dry_run
        assert not store.removed, "before anything goes"
        store.announced.append(through)

    expired = await retention.enforce(
        "a/b",
        listed,
        NOW_S,
        current_spec=current_spec,
        open_store=open_store,
        announce=announce,
        dry_run=dry_run,
    )
    if not dry_run:
        assert asked == [held.backing_store for held in expired.fragments]
    return expired


async def test_expired_fragments_are_removed_from_the_store_they_are_in() -> None:
    store = Store()
    await enforced(store, spec())
    assert store.removed == [held.content_path for held in LISTED[:2]]
    assert store.announced == [20]


async def test_only_reporting_removes_nothing() -> None:
    store = Store()
    assert spans(await enforced(store, spec(), dry_run=True)) == [(0, 10), (10, 20)]
    assert store.removed == []


async def test_the_spec_as_it_is_now_decides() -> None:
    store = Store()
    assert spans(await enforced(store, spec(retention_ns=10 * DAY_NS))) == []
    assert spans(await enforced(store, None)) == []
    assert (store.removed, store.announced) == ([], [])


async def test_a_failure_leaves_a_suffix() -> None:
    store = Store(fails_at=1)
    with pytest.raises(UnavailableError):
        await enforced(store, spec())
    assert store.removed == [LISTED[0].content_path]
