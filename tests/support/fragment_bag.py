"""Fragments as files of a store, and the rows that a scan makes of them without any Spark."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from spark_readers.fragment_task import FragmentTask
from spark_readers.read_options import ReadOptions
from spark_readers.scan import plan_tasks
from spark_readers.task_rows import task_rows
from tests.support.coding import encoded

LINES = pa.schema([("value", pa.string()), ("_offset", pa.int64())])


def put(
    store: Path,
    journal: str,
    begin: int,
    appends: Sequence[bytes],
    codec: CompressionCodec = CompressionCodec.NONE,
    postfix: str = "",
    mod_time: int = 1_700_000_000,
) -> tuple[Fragment, Path]:
    content = b"".join(appends)
    digest = hashlib.sha1(content).digest()
    url = f"file://{store}/"
    of = Fragment(journal, begin, begin + len(content), digest, codec, url, mod_time, postfix)
    path = store / of.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(codec, appends))
    os.utime(path, (mod_time, mod_time))
    return of, path


def options_of(**given: object) -> ReadOptions:
    return ReadOptions.parse({name: str(value) for name, value in given.items()})


def rows_of(options: ReadOptions, schema: pa.Schema = LINES) -> list[dict[str, Any]]:
    """What an executor gives for every task of a scan."""
    return rows_of_tasks((FragmentTask.unpack(task) for task in plan_tasks(options)), options, schema)


def rows_of_tasks(tasks: Iterable[FragmentTask], options: ReadOptions, schema: pa.Schema) -> list[dict[str, Any]]:
    return [row for task in tasks for batch in task_rows(task, schema, options) for row in batch.to_pylist()]
