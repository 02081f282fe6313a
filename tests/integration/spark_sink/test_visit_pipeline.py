"""The pipeline of examples/: however runs are cut and wherever they die, its results are those of one pass over all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.client.blocking import BlockingClient
from examples.pipeline_state import PipelineState
from examples.visit_events import SESSION_GAP_S, lines
from examples.visit_pipeline import Places, run_once
from tests.support.broker_cluster import BrokerCluster
from tests.support.read_committed import committed

Create = Callable[..., list[str]]
COUNT = 4000
UNKNOWN = re.compile(r'"visitor":"v\d+[13579]"').search


class DeathError(Exception):
    """As if the driver had been killed: nothing but what is stored is left."""


def dying(words: str) -> Callable[[str], None]:
    """Once a step is told of that has these words."""

    def tell(step: str) -> None:
        if words in step:
            raise DeathError(step)

    return tell


def expected_sessions(raw: list[str]) -> dict[str, tuple[str, float, float]]:
    """By event, its session: visitor, begin and end. In one pass over all, without Spark."""
    events: dict[str, dict[str, Any]] = {}
    for line in raw:
        try:
            document = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "visitor" in document:
            events[document["event"]] = document
    sessions: dict[str, tuple[str, float, float]] = {}
    by_visitor: dict[str, list[list[dict[str, Any]]]] = {}
    for event in sorted(events.values(), key=lambda event: (event["at"], event["event"])):
        of_visitor = by_visitor.setdefault(event["visitor"], [])
        if not of_visitor or event["at"] - of_visitor[-1][-1]["at"] > SESSION_GAP_S:
            of_visitor.append([])
        of_visitor[-1].append(event)
    for visitor, found in by_visitor.items():
        for session in found:
            for event in session:
                sessions[event["event"]] = (visitor, session[0]["at"], session[-1]["at"])
    return sessions


def expected_days(raw: list[str]) -> Counter[tuple[str, str]]:
    """By day and what is counted."""
    sessions = expected_sessions(raw)
    days: Counter[tuple[str, str]] = Counter()
    for _, begin, _ in sessions.values():
        days[day(begin), "views"] += 1
    for _, begin, _ in set(sessions.values()):
        days[day(begin), "sessions"] += 1
    return days


def with_unknown_countries(raw: list[str]) -> list[str]:
    """Every other visitor's browser tells none."""
    return [re.sub(r',"country":"[^"]*"', "", line) if UNKNOWN(line) else line for line in raw]


def day(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()


def append(client: BlockingClient, journal: str, part: list[str]) -> None:
    client.append(journal, "".join(f"{line}\n" for line in part).encode())


@pytest.fixture
def places(broker: str, cluster: BrokerCluster, create: Create, tmp_path: Path) -> Places:
    raw, days, commits = create("visits", "visit-days", "visit-commits")
    return Places(broker, tmp_path / "table", raw, days, commits, str(cluster.fragments))


# After which steps runs die, one after the other.
DEATHS = [
    ("add up to",),
    pytest.param(("over are in", "may go on", "add up to", "reads"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("deaths", DEATHS)
def test_runs_that_die_and_are_run_again_lose_nothing_and_double_nothing(
    deaths: tuple[str, ...], spark: SparkSession, client: BlockingClient, places: Places
) -> None:
    raw = with_unknown_countries(list(lines(COUNT)))
    size = -(-len(raw) // len(deaths))
    for number, words in enumerate(deaths):
        part = raw[number * size : (number + 1) * size]
        append(client, places.raw, part)
        with pytest.raises(DeathError):
            run_once(spark, places, tell=dying(words))
        # What comes between a death and the next run is for the run after it, and was there before.
        append(client, places.raw, part[-10:])
        assert run_once(spark, places)
    assert PipelineState.load(places.state).run == len(deaths)
    assert run_once(spark, places, closes=True)
    assert not run_once(spark, places)
    rows = spark.read.parquet(places.visits).collect()
    found = {row["event"]: (row["visitor"], row["session_begin"], row["session_end"]) for row in rows}
    assert len(rows) == len(found)
    assert found == expected_sessions(raw)
    assert {row["run"] for row in rows} == {*range(1, len(deaths) + 2)}
    assert all(row["date"].isoformat() == day(row["session_begin"]) for row in rows)
    sums: Counter[tuple[str, str]] = Counter()
    for document in committed(client, places.days):
        for name in ("views", "sessions"):
            sums[document["date"], name] += document[name]
    assert sums == expected_days(raw)
