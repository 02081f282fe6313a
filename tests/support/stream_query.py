"""A streaming query without Spark: it calls the reader as Spark does, and keeps what Spark would keep."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit

from spark_readers.fragment_task import FragmentTask
from spark_readers.stream_reader import GazetteStreamReader
from tests.support.fragment_bag import options_of, rows_of_tasks


class StreamQuery:
    def __init__(self, schema: pa.Schema, checkpoint: str | None = None, **given: object) -> None:
        self._schema = schema
        self._options = options_of(**given)
        self.reader = GazetteStreamReader(self._options, from_arrow_schema(schema))
        # As it would be in the log of a checkpoint.
        self.at = checkpoint or json.dumps(self.reader.initialOffset())

    @property
    def offsets(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.at)["offsets"]
        return found

    def look(self, limit: ReadLimit | None = None) -> str:
        """The next offset, from journals as they are now."""
        self.reader.listing.expire()
        return self.poll(limit)

    def poll(self, limit: ReadLimit | None = None) -> str:
        limit = limit or self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(json.loads(self.at), limit))

    def tasks(self, end: str) -> list[FragmentTask]:
        found = self.reader.partitions(json.loads(self.at), json.loads(end))
        return [FragmentTask.unpack(partition.value) for partition in found]

    def rows(self, end: str) -> list[dict[str, Any]]:
        return rows_of_tasks(self.tasks(end), self._options, self._schema)

    def batch(self, limit: ReadLimit | None = None) -> list[dict[str, Any]] | None:
        """The rows of the next batch; None if there is nothing new."""
        end = self.look(limit)
        if end == self.at:
            return None
        rows = self.rows(end)
        self.at = end
        return rows

    def batches(self, limit: ReadLimit | None = None) -> list[list[dict[str, Any]]]:
        """Until there is nothing new."""
        found = []
        while (rows := self.batch(limit)) is not None:
            found.append(rows)
        return found
