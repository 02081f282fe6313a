"""What a task of Spark needs in memory: of one small fragment, and of one many times as large, by each way to read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from protocol.codec import CompressionCodec
from spark_readers.fragment_task import FragmentTask
from spark_readers.read_options import ReadOptions
from spark_readers.scan import plan_tasks
from spark_readers.task_rows import task_rows
from tests.bench.event_store import events_of, interleaved, put_fragment
from tests.bench.harness import Contest, begin_peak, benchmark, memory_figure

MIB = 1 << 20
SMALL_MIB, LARGE_MIB = 64, 768
BYTES_MAX = 256 * MIB
"""Of a task, whatever its fragment: batches under way, what waits for its acknowledgement, what DuckDB keeps."""

WAYS = {
    "columns by DuckDB": ("country string, amount double", {"isolation": "read_uncommitted"}),
    "columns with offsets": ("country string, _offset long", {"isolation": "read_uncommitted"}),
    "lines with metadata": (
        "value string, _journal string, _offset long, _fragment string",
        {"isolation": "read_uncommitted", "framing": "lines"},
    ),
    "read committed": ("country string", {"isolation": "read_committed", "uuidField": "_meta.uuid"}),
}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Goes with the process."""
    return tempfile.TemporaryDirectory(prefix="spark-memory-")


CONTENTS: dict[str, Callable[[], Iterator[bytes]]] = {
    "short transactions": partial(events_of, 1),
    "one transaction over all of it": partial(events_of, 1, True),
    "two producers in turn, rows of 4 KiB": partial(interleaved, 4 << 10, 48 * MIB),
}


@cache
def _store(codec: CompressionCodec, content_mib: int, content: str) -> str:
    root = Path(_folder().name) / f"{codec.name}-{content_mib}-{content.replace(' ', '-')}"
    put_fragment(root, "events/all", 0, CONTENTS[content](), content_mib * MIB, (codec,))
    return str(root / codec.name.lower())


def _peak_bytes(root: str, way: str) -> tuple[int, int]:
    """How far memory rises above where it was before the first row, and how many rows there are."""
    columns, given = WAYS[way]
    kinds = {"string": pa.string(), "double": pa.float64(), "long": pa.int64()}
    fields = [part.split() for part in columns.split(", ")]
    schema = pa.schema([(name, kinds[kind]) for name, kind in fields])
    # One task has it all, as it has of a codec that cannot be split.
    options = ReadOptions.parse({"path": root, "framing": "json", "splitSize": "64g", **given})
    (task,) = plan_tasks(options)
    rows = 0
    before = begin_peak()
    for batch in task_rows(FragmentTask.unpack(task), schema, options):
        rows += batch.num_rows
    return memory_figure("VmHWM") - before, rows


def _measured(root: str, way: str) -> tuple[int, int]:
    """In a process that has read nothing before."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(_peak_bytes, root, way).result()


def memory(codec: CompressionCodec, way: str, content: str) -> Iterator[Contest]:
    small_root, large_root = (_store(codec, mib, content) for mib in (SMALL_MIB, LARGE_MIB))
    small, _ = _measured(small_root, way)
    large, rows = _measured(large_root, way)
    word = "met" if large <= BYTES_MAX else "MISSED"
    told = f"{SMALL_MIB} MiB: {small // MIB} MiB, {LARGE_MIB} MiB: {large // MIB} ({word}: at most {BYTES_MAX // MIB})"
    yield Contest(
        partial(_measured, large_root, way), partial(_measured, small_root, way), told, rows, "rows", rounds=1
    )


def _register() -> None:
    numbers = count(1)
    for way in WAYS:
        for codec in (CompressionCodec.ZSTANDARD, CompressionCodec.GZIP):
            benchmark(f"spark memory {next(numbers)}: {way}, {codec.name.lower()}")(
                partial(memory, codec, way, "short transactions")
            )
    for content in list(CONTENTS)[1:]:
        benchmark(f"spark memory {next(numbers)}: read committed, {content}")(
            partial(memory, CompressionCodec.ZSTANDARD, "read committed", content)
        )


_register()
