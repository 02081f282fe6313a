from __future__ import annotations

import pytest

from broker.client.listing import ListedJournal
from gazctl.journals.prune_command import aged
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from protocol.journal import FragmentPolicy, JournalSpec
from protocol.route import Route

NOW_S = 1_000_000.0


def fragment(begin: int, age_s: int | None) -> Fragment:
    mod_time = 0 if age_s is None else int(NOW_S) - age_s
    return Fragment("a/journal", begin, begin + 10, bytes(20), CompressionCodec.NONE, "file:///", mod_time)


def journal(retention_s: int) -> ListedJournal:
    spec = JournalSpec("a/journal", 1, fragment=FragmentPolicy(retention_ns=retention_s * 10**9))
    return ListedJournal(spec, 1, 1, Route((), None, None))


@pytest.mark.parametrize("retention_s", [0, -5])
def test_d1_a_journal_without_retention_keeps_everything(retention_s: int) -> None:
    expired = aged(journal(retention_s), [fragment(0, 9000), fragment(10, 8000), fragment(20, 10)], NOW_S)
    assert not expired.fragments
    assert "no retention" in expired.kept_because


def test_what_is_past_retention_goes_from_the_front_alone() -> None:
    listed = [fragment(0, 9000), fragment(10, 8000), fragment(20, 10), fragment(30, 9000), fragment(40, 10)]
    assert aged(journal(3600), listed, NOW_S).fragments == (listed[0], listed[1])


def test_what_is_only_on_a_brokers_disk_stays() -> None:
    assert not aged(journal(3600), [fragment(0, None), fragment(10, None)], NOW_S).fragments


def test_the_newest_stays_however_old_it_is() -> None:
    listed = [fragment(0, 9000), fragment(10, 9000)]
    assert aged(journal(3600), listed, NOW_S).fragments == (listed[0],)
