"""A data source with ``pushFilters``, as ours would have them if Spark got it right. It has forty rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)
from pyspark.sql.types import StructType

ROWS = 40


class PushingReader(DataSourceReader):
    def __init__(self) -> None:
        self._filters: list[EqualTo | GreaterThanOrEqual | LessThan] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes what it knows, and leaves the rest to Spark."""
        for one in filters:
            if isinstance(one, EqualTo | GreaterThanOrEqual | LessThan):
                self._filters.append(one)
            else:
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition([n for n in range(ROWS) if all(_passes(one, n) for one in self._filters)])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for n in partition.value:
            yield (n,)


def _passes(one: EqualTo | GreaterThanOrEqual | LessThan, n: int) -> bool:
    match one:
        case EqualTo():
            return bool(n == one.value)
        case LessThan():
            return bool(n < one.value)
        case GreaterThanOrEqual():
            return bool(n >= one.value)


class PushingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: StructType) -> PushingReader:
        return PushingReader()
