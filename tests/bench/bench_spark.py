"""Scans by a real Spark on two cores, against Spark's own readers, DuckDB alone and bare unpacking, on the same files.

``SPARK_BENCH_MIB`` says how much content there is: 2048 unless told otherwise, which takes a while.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import duckdb
import zstandard
from isal import igzip
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as Spark's users know it

import spark_readers
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from spark_readers.fragment_task import FragmentTask
from spark_readers.read_options import ReadOptions
from spark_readers.scan import plan_tasks
from tests.bench.event_store import CODECS, COLUMNS, EventStore, make_events
from tests.bench.harness import Contest, begin_peak, benchmark, memory_figure
from tests.support.spark_session import spark_session

MIB = 1 << 20
CONTENT_MIB = int(os.environ.get("SPARK_BENCH_MIB", "2048"))
CORES = 2
ROUNDS = 3

# As Spark comes, but for what it prints: against a Java that compiles half as well, anything would look fast.
AS_SHIPPED = {"spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}

_AT_EXIT = ExitStack()
atexit.register(_AT_EXIT.close)


@cache
def folder() -> Path:
    return Path(_AT_EXIT.enter_context(tempfile.TemporaryDirectory(prefix="spark-bench-")))


@cache
def events() -> EventStore:
    return make_events(folder() / "events", CONTENT_MIB * MIB)


@cache
def session() -> SparkSession:
    """The one of all benchmarks: to end it would end those of others."""
    return _AT_EXIT.enter_context(spark_session(folder() / "spark", AS_SHIPPED))


@cache
def processes() -> ProcessPoolExecutor:
    return _AT_EXIT.enter_context(ProcessPoolExecutor(CORES, get_context("spawn")))


def journals(codec: CompressionCodec, columns: str | None, **options: Any) -> DataFrame:
    path = str(events().root(codec))
    return cast(DataFrame, spark_readers.read_journals(session(), path=path, columns=columns, **options))


def grouped(events: DataFrame) -> list[Any]:
    groups = events.groupBy("country", "type").agg(F.count("*"), F.sum("amount"))
    return _totals((row[0], row[1], row[2], row[3]) for row in groups.collect())


def _totals(rows: Any) -> list[Any]:
    """In cents, which come out the same in whatever order they are added. Without what is no event: acknowledgements
    have no columns, and only a scan of all messages shows them."""
    return sorted((country, kind, count, round(of, 2)) for country, kind, count, of in rows if country is not None)


def ours_grouped(codec: CompressionCodec, isolation: str) -> list[Any]:
    return grouped(journals(codec, COLUMNS, framing="json", isolation=isolation, uuidField="_meta.uuid"))


def spark_grouped(codec: CompressionCodec) -> list[Any]:
    return grouped(session().read.schema(COLUMNS).json(events().files(codec)))


def duckdb_grouped(codec: CompressionCodec) -> list[Any]:
    with duckdb.connect(config={"threads": CORES}) as connection:
        rows = connection.execute(
            "SELECT country, type, count(*), sum(amount) FROM read_json(?, format='newline_delimited', "
            "columns={country: 'VARCHAR', type: 'VARCHAR', amount: 'DOUBLE'}) GROUP BY ALL",
            [events().files(codec)],
        ).fetchall()
    return _totals(rows)


def unpacked(codec: CompressionCodec) -> int:
    return sum(processes().map(_unpack, events().files(codec)))


def _unpack(path: str) -> int:
    """As fast as it goes: in pieces of 1 MiB, which are dropped."""
    with ExitStack() as stack:
        if path.endswith(".gz"):
            content: Any = stack.enter_context(igzip.open(path))  # type: ignore[no-untyped-call]
        else:
            file = stack.enter_context(open(path, "rb"))
            content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        buffer = bytearray(MIB)
        length = 0
        while count := content.readinto(buffer):
            length += count
    return length


def _contest(
    ours: Callable[[], object], peer: Callable[[], object], peer_name: str, ratio_min: float | None, *, equal: bool
) -> Iterator[Contest]:
    made, theirs = ours(), peer()
    assert made == theirs or not equal, "the two have different results"
    yield Contest(ours, peer, peer_name, events().content_bytes / MIB, "MiB", ratio_min=ratio_min, rounds=ROUNDS)


def scan(codec: CompressionCodec, isolation: str, peer: str, ratio_min: float | None) -> Iterator[Contest]:
    peers = {"spark.read.json": spark_grouped, "DuckDB alone": duckdb_grouped, "a loop that unpacks": unpacked}
    # The last transaction of a journal is not acknowledged, and a loop that unpacks groups nothing.
    equal = isolation == "read_uncommitted" and peers[peer] is not unpacked
    return _contest(partial(ours_grouped, codec, isolation), partial(peers[peer], codec), peer, ratio_min, equal=equal)


def counting(codec: CompressionCodec) -> Iterator[Contest]:
    def ours() -> int:
        return journals(codec, "_offset long", framing="lines").count()

    def theirs() -> int:
        return session().read.text(events().files(codec)).count()

    return _contest(ours, theirs, "spark.read.text", 1.0, equal=True)


def _length(lines: DataFrame) -> Any:
    """Has every line go through Spark, which would drop the column of a mere count."""
    return lines.agg(F.sum(F.length("value"))).collect()


def lines(codec: CompressionCodec) -> Iterator[Contest]:
    def ours() -> Any:
        return _length(journals(codec, None, framing="lines"))

    def theirs() -> Any:
        return _length(session().read.text(events().files(codec)))

    return _contest(ours, theirs, "spark.read.text", 0.9, equal=True)


def _register(codec: CompressionCodec) -> None:
    name = f"spark {codec.name.lower()}"
    for peer, ratio_min in (("spark.read.json", 1.7), ("DuckDB alone", 0.6), ("a loop that unpacks", None)):
        benchmark(f"{name}: 3 columns of JSON, grouped ({peer})")(
            partial(scan, codec, "read_uncommitted", peer, ratio_min)
        )
    benchmark(f"{name}: 3 columns of JSON, grouped, read committed")(
        partial(scan, codec, "read_committed", "spark.read.json", None)
    )
    benchmark(f"{name}: offsets only, counted")(partial(counting, codec))
    benchmark(f"{name}: whole lines")(partial(lines, codec))


for _codec in CODECS:
    _register(_codec)


PLANNED_JOURNALS = 1000
PLANNED_FRAGMENTS = 100
"""Of each journal."""
PLANNED_BYTES_MAX = 300 * PLANNED_JOURNALS * PLANNED_FRAGMENTS


@cache
def listed() -> Path:
    """A store with names alone, which are all that a plan needs."""
    root = folder() / "listed"
    for number in range(PLANNED_JOURNALS):
        journal = f"acme/orders/part={number:03}"
        for at in range(PLANNED_FRAGMENTS):
            begin, digest = at << 24, (number << 32 | at).to_bytes(20, "big")
            of = Fragment(journal, begin, begin + (1 << 24), digest, CompressionCodec.ZSTANDARD)
            path = root / of.content_path
            if not at:
                path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
    return root


def plan() -> list[bytes]:
    return plan_tasks(ReadOptions.parse({"path": str(listed()), "framing": "json", "isolation": "read_uncommitted"}))


def walk() -> int:
    return sum(os.stat(path).st_size for path in listed().rglob("*") if path.is_file())


@benchmark("spark plan: 100,000 fragments of 1,000 journals")
def planning() -> Iterator[Contest]:
    tasks = [FragmentTask.unpack(task) for task in plan()]
    fragments = sum(len(run.pieces) for task in tasks for run in task.runs)
    assert fragments == PLANNED_JOURNALS * PLANNED_FRAGMENTS
    del tasks
    yield Contest(plan, walk, "a walk over the files", fragments, "fragments", seconds_max=5.0, rounds=ROUNDS)


@benchmark("spark plan: memory for 100,000 fragments")
def planning_memory() -> Iterator[Contest]:
    """In a process that has planned nothing before, whose memory is not at a peak already."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        grown = fresh.submit(_planned_bytes, str(listed())).result()
    fragments = PLANNED_JOURNALS * PLANNED_FRAGMENTS
    word = "met" if grown <= PLANNED_BYTES_MAX else "MISSED"
    told = f"{grown / fragments:.0f} bytes a fragment ({word}: at most 300)"
    yield Contest(plan, walk, told, fragments, "fragments", rounds=1)


def _planned_bytes(root: str) -> int:
    """How far the peak of memory rises, above what a plan of one journal needs."""
    given = {"path": root, "framing": "json", "isolation": "read_uncommitted"}
    plan_tasks(ReadOptions.parse(given | {"journal": "acme/orders/part=000"}))
    before = begin_peak()
    plan_tasks(ReadOptions.parse(given))
    return memory_figure("VmHWM") - before
