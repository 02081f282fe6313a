from __future__ import annotations

import pytest

from broker.client.listing import ListedJournal
from gazctl.top import TITLES, Sample, append_rate, read_rate, rows_of
from protocol.journal import JournalSpec
from protocol.route import ProcessId, Route


def journal(name: str) -> ListedJournal:
    route = Route((ProcessId("local", "one"), ProcessId("local", "two")), 1, ("http://one:80", "http://two:80"))
    return ListedJournal(JournalSpec(name, replication=3), mod_revision=1, route=route, create_revision=1)


def sample(at_s: float, head: int = 0, **served: int) -> Sample:
    return Sample(at_s, head, 0, served)


@pytest.mark.parametrize(
    ("old", "new", "rate"),
    [
        (sample(0, one=10, two=0), sample(2, one=14, two=6), 5.0),
        # It was started again, and has counted from zero.
        (sample(0, one=1000, two=0), sample(2, one=8, two=0), 4.0),
        # What it had served before it was first asked is nobody's rate.
        (sample(0, one=10), sample(2, one=10, two=500), 0.0),
        (sample(0), sample(2), None),
        (None, sample(2, one=5), None),
    ],
)
def test_reads_are_counted_over_all_brokers(old: Sample | None, new: Sample, rate: float | None) -> None:
    assert read_rate(old, new) == rate


def test_an_unknown_end_has_no_rate() -> None:
    assert append_rate(sample(0, 10), sample(2, 30)) == 10
    assert append_rate(Sample(0, None, None, {}), sample(2, 30)) is None


def test_the_busiest_journal_comes_first_whether_it_is_written_or_read() -> None:
    before = {"my/idle": sample(0), "my/read": sample(0, one=0), "my/written": sample(0, 0, one=0)}
    now = {"my/idle": Sample(1, None, None, {}), "my/read": sample(1, one=5000), "my/written": sample(1, 2000, one=0)}
    rows = rows_of(tuple(map(journal, before)), before, now)
    assert [dict(zip(TITLES, row, strict=True))["Journal"] for row in rows] == ["my/read", "my/written", "my/idle"]
    read, written, idle = (dict(zip(TITLES, row, strict=True)) for row in rows)
    assert (read["Read rate"], read["Append rate"]) == ("4.9 KiB/s", "0 B/s")
    assert (written["Append rate"], written["Primary"], written["Replicas"]) == ("2.0 KiB/s", "two", "2/3")
    assert (idle["Head"], idle["Read rate"]) == ("no answer", "")
