"""A driver that stops for good at a point of its commit, to be killed there.

As a program it is a driver without Spark: two tasks, then the commit.
"""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from broker.client.blocking import BlockingAppends
from spark_readers.proto_columns import message_class
from spark_readers.sink import JournalStreamWriter, JournalWriter, writer

POINTS = ("after-data", "after-intents", "between-acks")
_WAIT_S = 120.0


def stopping(point: str, marker: str, commit: Callable[[], None]) -> None:
    """Run `commit`, but no further than to `point`; then there is a file `marker`."""

    def stop() -> None:
        Path(marker).touch()
        while True:
            signal.pause()

    if point == "after-data":
        stop()
    append, calls = BlockingAppends.append, 0

    def counted(self: BlockingAppends, journal: str, data: bytes) -> None:
        """The only appends that go this way in a commit are acknowledgements, one call for each journal."""
        nonlocal calls
        calls += 1
        if calls > (1 if point == "between-acks" else 0):
            self.flush()
            stop()
        append(self, journal, data)

    BlockingAppends.append = counted  # type: ignore[method-assign]
    commit()


def wait_stopped(driver: subprocess.Popen[Any], marker: Path) -> None:
    until_s = time.monotonic() + _WAIT_S
    while not marker.exists():
        assert driver.poll() is None, f"the driver ended with {driver.returncode}"
        assert time.monotonic() < until_s, "the driver does not come to where it was to stop"
        time.sleep(0.02)


class StoppingWriter(JournalWriter):
    """To be made of another one."""

    def __init__(self, made: JournalWriter, point: str, marker: str) -> None:
        self.__dict__.update(made.__dict__)
        self._point = point
        self._marker = marker

    def commit(self, messages: Any) -> None:
        commit = super().commit
        stopping(self._point, self._marker, lambda: commit(messages))


class StoppingStreamWriter(JournalStreamWriter):
    """In one of its micro-batches."""

    def __init__(self, made: JournalStreamWriter, point: str, marker: str, batch: int) -> None:
        self.__dict__.update(made.__dict__)
        self._point = point
        self._marker = marker
        self._batch = batch

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        commit = super().commit
        if batchId == self._batch:
            stopping(self._point, self._marker, lambda: commit(messages, batchId))
        else:
            commit(messages, batchId)


def main() -> None:
    point, marker, given = sys.argv[1:]
    options = ast.literal_eval(given)
    is_protobuf = "descriptorFile" in options
    plain = [StructField("key", StringType()), StructField("n", LongType())]
    schema = StructType([StructField("value", BinaryType())] if is_protobuf else plain)
    made = StoppingWriter(writer(schema, False, options), point, marker)

    def rows(begin: int) -> Iterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = [{"key": f"k{n}", "n": n} for n in range(begin, begin + 20)]
        if is_protobuf:
            kind = message_class(options["descriptorFile"], options["messageName"])
            rows = [{"value": kind(**row).SerializeToString()} for row in rows]
        yield pa.RecordBatch.from_pylist(rows)

    made.commit([made.write(rows(0)), made.write(rows(20))])


if __name__ == "__main__":
    main()
