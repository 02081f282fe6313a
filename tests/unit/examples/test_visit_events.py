from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

from examples.visit_events import SESSION_GAP_S, lines, visits

COUNT = 5000


def test_the_same_seed_gives_the_same_lines() -> None:
    assert list(lines(COUNT)) == list(lines(COUNT))
    assert list(lines(100, seed=1)) != list(lines(100, seed=2))


def test_what_happened_is_in_order_and_has_more_than_one_session_for_most() -> None:
    happened = list(visits(20_000))
    times = [visit["at"] for visit in happened]
    assert times == sorted(times)
    by_visitor: dict[str, list[float]] = {}
    for visit in happened:
        by_visitor.setdefault(visit["visitor"], []).append(visit["at"])
    sessions = [1 + sum(b - a > SESSION_GAP_S for a, b in pairwise(at)) for at in by_visitor.values()]
    assert sum(count > 1 for count in sessions) > len(sessions) / 2


def test_what_comes_in_has_all_the_faults_that_a_pipeline_has_to_cope_with() -> None:
    found, broken = [], 0
    for line in lines(COUNT):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            broken += 1
    events = Counter(document["event"] for document in found)
    times = [document["at"] for document in found]
    assert broken > 0
    assert max(events.values()) == 2
    assert any("visitor" not in document for document in found)
    assert times != sorted(times)
    # Nothing is lost but what is broken.
    assert len(events) + broken >= COUNT
