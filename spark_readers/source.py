"""The data source ``gazette`` of Spark: journals as tables.

There is no ``pushFilters``, on purpose: in Spark 4.3 a source that has it returns wrong rows wherever a table is used
twice. What is read is narrowed down by options and by the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from consumer.message import csv_framing
from protocol.errors import ValidationError
from spark_readers import sink
from spark_readers.fragment_task import FragmentTask
from spark_readers.proto_columns import message_class, proto_schema
from spark_readers.read_options import Framing, ReadOptions
from spark_readers.row_buffer import METADATA
from spark_readers.scan import inferred_schema, plan_tasks, sample_columns
from spark_readers.session_zone import zoned
from spark_readers.stream_reader import GazetteStreamReader
from spark_readers.task_rows import task_rows

FORMAT = "gazette"


def register(spark: SparkSession) -> None:
    """After this ``spark.read.format("gazette")`` works in the session. To do it again does no harm."""
    spark.dataSource.register(GazetteSource)


class GazetteSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """For those who give none."""
        options = ReadOptions.parse(self.options)
        return StructType.fromJson(schema_of(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return GazetteReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        return GazetteStreamReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return sink.writer(schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 -- Spark's name
        return sink.stream_writer(schema, overwrite, self.options)


class GazetteReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Run once, at the first action: later ones of the same DataFrame read the same bytes."""
        return [InputPartition(task) for task in plan_tasks(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark still asks for one partition.
        if partition.value is None:
            return iter(())
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return task_rows(FragmentTask.unpack(partition.value), schema, zoned(self._options))


def schema_of(options: ReadOptions) -> dict[str, Any]:
    """The JSON form of the schema that a scan has if nobody gives one."""
    fields = _data_fields(options)
    if options.include_metadata:
        fields = [*fields, *(_field(name, kind) for name, kind in METADATA.items())]
    return {"type": "struct", "fields": fields}


def _data_fields(options: ReadOptions) -> list[Mapping[str, Any]]:
    match options.framing:
        case Framing.JSON:
            found: list[Mapping[str, Any]] = inferred_schema(options)["fields"]
            if not found:
                raise ValidationError("there are no records yet to infer a schema from: give one", "schema")
            return found
        case Framing.CSV:
            record = sample_columns(options)
            if record is None:
                raise ValidationError("there are no records yet to count columns of: give a schema", "schema")
            return [_field(f"_c{at}", "string") for at in range(len(csv_framing.parse(record, None)))]
        case Framing.FIXED if options.descriptor_file:
            fields: list[Mapping[str, Any]] = proto_schema(
                message_class(options.descriptor_file, options.message_name)
            )["fields"]
            return fields
        case Framing.LINES:
            return [_field("value", "string")]
        case _:
            return [_field("value", "binary")]


def _field(name: str, kind: Any) -> Mapping[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}
