"""Page views of a shop become sessions in Parquet, and what they add up to by day goes back into a journal.

Raw page views are in a journal as browsers sent them: late, out of order, some twice, some broken. Each run takes what
has come since the last one:

  1. It pins the offsets that it reads, in TABLE/state.json.
  2. It cleans the page views, and puts them together to sessions with those that were left open by the run before.
  3. Sessions that are over go to TABLE/visits/date=.../run=.../ as Parquet, those that may go on to TABLE/open/.
  4. What the sessions add up to, by day and country, is appended to a journal, once for each run.
  5. It notes in TABLE/state.json that the run is finished.

Run it as often as you like. If it dies, run it again: it does the same run on the same bytes, replaces what that run
had written to Parquet, and the journal takes the sums of a run only once (txnAppId, txnVersion). So nothing is lost and
nothing counts twice, and how the journal was cut into runs makes no difference to what comes out, as long as each page
view is committed on its own, as here. Of producers that append in transactions, one that is open where a run ends would
be in neither this run nor the next: read those with a stream and Trigger.AvailableNow (docs/spark.md, Snapshots).

Try it with `gazctl up` in another terminal, which prints where its fragments are:

  gazctl journals apply --specs examples/visits.yaml
  python -m examples.visit_events --count 20000 | gazctl journals append -l name=acme/visits -f lines
  python -m examples.visit_pipeline --table /tmp/visits --file-root DIR/fragments
  gazctl journals read -l name=acme/visit-days
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.functions import expr

import spark_readers
from examples.local_session import local_session
from examples.pipeline_state import PipelineState, Plan
from examples.visit_events import SESSION_GAP_S
from protocol.errors import PreconditionError

LATE_S = 600.0
"""Page views that come later than this after newer ones are left out, and counted."""
RAW_COLUMNS = "event string, visitor string, at double, page string, country string, cents long, _corrupt_record string"
EVENT_COLUMNS = ("event", "visitor", "at", "page", "country", "cents")
APP = "visit-pipeline"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Places:
    """Where things are."""

    broker: str
    table: Path
    raw: str = "acme/visits"
    days: str = "acme/visit-days"
    commits: str = "acme/visit-commits"
    # Where ``file:///`` stores of the brokers are, if theirs are such.
    file_root: str = ""

    @property
    def state(self) -> Path:
        return self.table / "state.json"

    @property
    def visits(self) -> str:
        return str(self.table / "visits")

    def left_open(self, run: int) -> Path:
        return self.table / "open" / f"run={run}"

    @property
    def reading(self) -> dict[str, Any]:
        root = {"fileRoot": self.file_root} if self.file_root else {}
        return {"broker": self.broker, "framing": "json", **root}


def run_once(spark: Any, places: Places, *, closes: bool = False, tell: Tell = print) -> bool:
    """Whether there was anything to do. `tell` hears of each step when it is done."""
    state = planned(places, closes, tell)
    plan, run = state.plan, state.run + 1
    if plan is None:
        return False
    events = cleaned(spark, places, state, plan).cache()
    try:
        watermark_s = watermark(events, state, tell)
        sessions = sessions_of(spark, places, events, state).cache()
        try:
            # A session is over when whatever may still come would begin another.
            over = "true" if plan.closes else f"session_end + {SESSION_GAP_S} < {watermark_s!r}"
            write_table(sessions.where(over), places, run)
            tell(f"run {run}: sessions that are over are in {places.visits}")
            still_open = sessions.where(f"not ({over})").select(*EVENT_COLUMNS)
            still_open.coalesce(1).write.mode("overwrite").parquet(str(places.left_open(run)))
            tell(f"run {run}: those that may go on are in {places.left_open(run)}")
            write_days(sessions.where(over), places, run)
            tell(f"run {run}: what they add up to is in the journal {places.days}")
        finally:
            sessions.unpersist()
    finally:
        events.unpersist()
    state.finished(watermark_s).save(places.state)
    shutil.rmtree(places.left_open(run - 1), ignore_errors=True)
    tell(f"run {run}: finished")
    return True


def planned(places: Places, closes: bool, tell: Tell) -> PipelineState:
    """With the plan of a run that died, or a new one, or none if nothing has come."""
    state = PipelineState.load(places.state)
    found = spark_readers.resolve_offsets(**places.reading, journal=places.raw)
    # Before anything is saved: a plan that cannot be read would be tried again by every run to come.
    state.check(found)
    if state.plan is not None:
        tell(f"run {state.run + 1}: was begun and not finished: it is done again on the same bytes")
        return state
    offsets = {journal: (state.ends.get(journal, begin), end) for journal, (begin, end) in found.items()}
    fresh = sum(end - begin for begin, end in offsets.values())
    if not fresh and not (closes and state.run):
        tell("nothing has come since the last run")
        return state
    state = replace(state, plan=Plan(offsets, closes))
    state.save(places.state)
    tell(f"run {state.run + 1}: reads {fresh:,} bytes of {places.raw}")
    return state


def cleaned(spark: Any, places: Places, state: PipelineState, plan: Plan) -> Any:
    """All that has come, each with what is wrong with it."""
    raw = spark_readers.read_journals(spark, columns=RAW_COLUMNS, offsets=plan.offsets, **places.reading)
    return raw.selectExpr(
        *EVENT_COLUMNS,
        f"""case when _corrupt_record is not null then 'broken'
                 when event is null or visitor is null or at is null then 'nameless'
                 when at < {state.watermark_s!r} then 'too late'
            end as fault""",
    )


def watermark(events: Any, state: PipelineState, tell: Tell) -> float:
    """From where on page views may still come, in Unix seconds."""
    counts = events.groupBy("fault").agg({"*": "count", "at": "max"}).collect()
    good = next((row for row in counts if row["fault"] is None), None)
    faults = ", ".join(f"{row['count(1)']:,} {row['fault']}" for row in counts if row["fault"])
    tell(f"run {state.run + 1}: {good['count(1)'] if good else 0:,} page views; left out: {faults or 'none'}")
    return max(state.watermark_s, good["max(at)"] - LATE_S) if good else state.watermark_s


def sessions_of(spark: Any, places: Places, events: Any, state: PipelineState) -> Any:
    """Page views, each once and with its session: a visitor who is away for too long begins another."""
    good = events.where("fault is null").select(*EVENT_COLUMNS)
    if state.run:
        good = good.unionByName(spark.read.schema(good.schema).parquet(str(places.left_open(state.run))))
    begun = good.dropDuplicates(["event"]).selectExpr(
        "*",
        f"""coalesce(at - lag(at) over (partition by visitor order by at, event) > {SESSION_GAP_S}, true)
            as is_first""",
    )
    numbered = begun.selectExpr("*", "sum(int(is_first)) over (partition by visitor order by at, event) as number")
    return numbered.selectExpr(
        *EVENT_COLUMNS,
        "min(at) over (partition by visitor, number) as session_begin",
        "max(at) over (partition by visitor, number) as session_end",
    ).selectExpr(
        "*",
        "concat(visitor, '@', cast(floor(session_begin) as string)) as session",
        # All of a session is in one partition, that of the day on which it began.
        "to_date(timestamp_seconds(session_begin)) as date",
    )


def write_table(sessions: Any, places: Places, run: int) -> None:
    """What this run has written before, if it died, is replaced."""
    rows = sessions.selectExpr("*", f"{run} as run")
    writing = rows.repartition("date").write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writing.partitionBy("date", "run").parquet(places.visits)


def write_days(sessions: Any, places: Places, run: int) -> None:
    """What this run adds: readers sum it up over all runs."""
    # Those of no known country are a group of their own, which a join by country would lose.
    sums = ("count(distinct session) as sessions", "count(*) as views", "sum(cents) as cents", f"{run} as run")
    days = sessions.groupBy("date", "country").agg(*map(expr, sums))
    options = {"broker": places.broker, "journal": places.days, "commitJournal": places.commits}
    options |= {"txnAppId": APP, "txnVersion": str(run)}
    days.coalesce(1).write.format("gazette").mode("append").options(**options).save()


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m examples.visit_pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--broker", default="localhost:8080", help="Any of them leads to all (localhost:8080).")
    arguments.add_argument("--table", type=Path, required=True, help="The folder of the table and of its state.")
    arguments.add_argument("--file-root", default="", help="Where file:/// stores of brokers are on this machine.")
    arguments.add_argument("--raw", default=Places.raw, help=f"The journal of page views ({Places.raw}).")
    arguments.add_argument("--days", default=Places.days, help=f"The journal that takes sums ({Places.days}).")
    arguments.add_argument("--commits", default=Places.commits, help=f"That of the commits ({Places.commits}).")
    arguments.add_argument("--close", action="store_true", help="Close all sessions: nothing more is going to come.")
    given = arguments.parse_args()
    places = Places(given.broker, given.table, given.raw, given.days, given.commits, given.file_root)
    with local_session(APP) as spark:
        spark_readers.register(spark)
        try:
            run_once(spark, places, closes=given.close)
        except PreconditionError as error:
            sys.exit(str(error))
        if PipelineState.load(places.state).run:
            table = spark.read.parquet(places.visits)
            table.groupBy("date").agg({"session": "count", "visitor": "count"}).orderBy("date").show()


if __name__ == "__main__":
    main()
