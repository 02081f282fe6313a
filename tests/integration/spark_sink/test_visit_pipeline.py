"""The pipeline of examples/: however runs are cut and wherever they die, its results are those of one pass over all."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.client.blocking import BlockingClient
from examples.pipeline_state import PipelineState, Plan
from examples.visit_events import SESSION_GAP_S, lines
from examples.visit_pipeline import Places, planned, run_once
from protocol.errors import PreconditionError
from tests.support.broker_cluster import BrokerCluster
from tests.support.read_committed import committed
from tests.support.spark_driver import driver_process

Create = Callable[..., list[str]]
COUNT = 4000
UNKNOWN = re.compile(r'"visitor":"v\d+[13579]"').search


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


# For each part of the page views, after which steps its run is killed, one time after the other.
DEATHS = [
    (("over are in", "add up to"),),
    pytest.param((("over are in",), ("may go on",), ("add up to",), ("reads",)), marks=pytest.mark.slow),
]


def killed(places: Places, words: str, folder: Path) -> None:
    """A process of its own, which stops where it tells of a step that has these words, and is killed there."""
    given = {name: str(value) for name, value in vars(places).items()}
    with driver_process("pipeline", str(folder), repr(given), words, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert b"stopped\n" in driver.stdout, "the run came to its end"


@pytest.mark.parametrize("deaths", DEATHS)
def test_runs_that_are_killed_and_run_again_lose_nothing_and_double_nothing(
    deaths: tuple[tuple[str, ...], ...], spark: SparkSession, client: BlockingClient, places: Places, tmp_path: Path
) -> None:
    raw = with_unknown_countries(list(lines(COUNT)))
    size = -(-len(raw) // len(deaths))
    for number, steps in enumerate(deaths):
        part = raw[number * size : (number + 1) * size]
        append(client, places.raw, part)
        for step in steps:
            killed(places, step, tmp_path / "spark")
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
    # By the end of a short first part no session is over.
    assert {row["run"] for row in rows} | {1} == {*range(1, len(deaths) + 2)}
    assert all(row["date"].isoformat() == day(row["session_begin"]) for row in rows)
    sums: Counter[tuple[str, str]] = Counter()
    for document in committed(client, places.days):
        for name in ("views", "sessions"):
            sums[document["date"], name] += document[name]
    assert sums == expected_days(raw)


@pytest.mark.parametrize("has_plan", [False, True])
def test_a_raw_journal_that_was_made_anew_is_noticed_before_anything_is_written(
    has_plan: bool, client: BlockingClient, places: Places
) -> None:
    append(client, places.raw, list(lines(10)))
    end = client.append(places.raw).end
    plan = Plan({places.raw: (end, end + 2)}, closes=False) if has_plan else None
    PipelineState(3, {places.raw: end + 1}, 0.0, plan).save(places.state)
    kept = places.state.read_bytes()
    # Every run to come says the same.
    for _ in range(2):
        with pytest.raises(PreconditionError, match=r"was made anew since.*another --table and --commits"):
            planned(places, False, print)
    assert places.state.read_bytes() == kept
    assert [path.name for path in places.table.iterdir()] == ["state.json"]
