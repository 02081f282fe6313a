"""The ``gazette`` data source with tasks that fail or stop, and with a driver that stops within its commits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_readers.sink import JournalStreamWriter, JournalWriter, TaskWrites
from spark_readers.source import GazetteSource
from spark_readers.stream_reader import GazetteStreamReader
from tests.support.planted_stop import StoppingStreamWriter, StoppingWriter


class FailingOnceWriter(JournalWriter):
    """At the first attempt each task fails after its first batch."""

    def __init__(self, made: JournalWriter) -> None:
        self.__dict__.update(made.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrites:
        return super().write(self._failing(iterator))

    def _failing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.attemptNumber() == 0:
                raise OSError("an executor's disk is gone")


class FailingOnceSource(GazetteSource):
    @classmethod
    def name(cls) -> str:
        return "gazette-failing-once"

    def writer(self, schema: StructType, overwrite: bool) -> JournalWriter:
        made = super().writer(schema, overwrite)
        assert isinstance(made, JournalWriter)
        return FailingOnceWriter(made)


def uncounted(folder: Path) -> list[Path]:
    """Files of a sink that no batch has committed."""
    log = "".join(path.read_text() for path in (folder / "_spark_metadata").glob("[0-9]*"))
    return [path for path in folder.glob("*.parquet") if path.name not in log]


class StoppingReader(GazetteStreamReader):
    """Stops for good when it comes to a number, once another task of the batch has written its file of Parquet into the
    folder of a sink; then there is a file ``stopped`` beside it."""

    def __init__(self, made: GazetteStreamReader, number: int, folder: Path) -> None:
        self.__dict__.update(made.__dict__)
        self._number = number
        self._folder = folder

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            if self._number in batch.column("n").to_pylist():
                while not uncounted(self._folder):
                    time.sleep(0.02)
                (self._folder.parent / "stopped").touch()
                while True:
                    signal.pause()
            yield batch


class MeetingWriter(JournalWriter):
    """The first two attempts at a task wait for each other when each has appended all of its rows."""

    def __init__(self, made: JournalWriter, meeting: str) -> None:
        self.__dict__.update(made.__dict__)
        self._meeting = meeting

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrites:
        result = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        # A named pipe: who opens it waits until the other end is opened as well.
        with open(self._meeting, "wb" if context.attemptNumber() else "rb"):
            return result


class MeetingSource(GazetteSource):
    """Has one option more: ``meeting``, the pipe at which attempts meet."""

    def __init__(self, options: dict[str, str]) -> None:
        self._meeting = options.pop("meeting")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "gazette-meeting"

    def writer(self, schema: StructType, overwrite: bool) -> JournalWriter:
        made = super().writer(schema, overwrite)
        assert isinstance(made, JournalWriter)
        return MeetingWriter(made, self._meeting)


class StoppingSource(GazetteSource):
    """Has two options more: at which point it stops, and the file that says so. ``stopBatch`` is that of a stream. One
    that reads has the number and the folder instead."""

    def __init__(self, options: dict[str, str]) -> None:
        names = ("stopPoint", "stopMarker", "stopBatch", "stopNumber", "stopFolder")
        self._stop: dict[str, Any] = {name: options.pop(name, "") for name in names}
        super().__init__(options)

    def streamReader(self, schema: StructType) -> GazetteStreamReader:  # noqa: N802
        made = super().streamReader(schema)
        assert isinstance(made, GazetteStreamReader)
        return StoppingReader(made, int(self._stop["stopNumber"]), Path(self._stop["stopFolder"]))

    def writer(self, schema: StructType, overwrite: bool) -> JournalWriter:
        made = super().writer(schema, overwrite)
        assert isinstance(made, JournalWriter)
        return StoppingWriter(made, self._stop["stopPoint"], self._stop["stopMarker"])

    def streamWriter(self, schema: StructType, overwrite: bool) -> JournalStreamWriter:  # noqa: N802
        made = super().streamWriter(schema, overwrite)
        assert isinstance(made, JournalStreamWriter)
        stop = self._stop
        return StoppingStreamWriter(made, stop["stopPoint"], stop["stopMarker"], int(stop["stopBatch"] or 0))
