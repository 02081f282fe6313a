"""Journals as Spark tables::

    import spark_readers

    spark_readers.register(spark)
    spark.read.format("gazette").option("broker", "localhost:8080").option("journal", "acme/orders").load()

The functions here are the front door. They load what they need when they are called, so that an executor, or a program
that has no Spark, loads no more than it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def register(spark: Any) -> None:
    """After this ``spark.read.format("gazette")`` works in the session."""
    from spark_readers.source import register

    register(spark)


def read_journals(
    spark: Any,
    *,
    columns: Any = None,
    where: Mapping[str, str | Sequence[str]] | None = None,
    offsets: Mapping[str, tuple[int, int]] | None = None,
    **options: object,
) -> Any:
    """A DataFrame of journals, narrowed down before anything is read: see ``spark_readers.journal_frame``."""
    from spark_readers.journal_frame import read_journals

    return read_journals(spark, columns=columns, where=where, offsets=offsets, **options)


def resolve_offsets(**options: object) -> dict[str, tuple[int, int]]:
    """The offsets that a scan with these options would read now, to be kept and read again."""
    from spark_readers.journal_frame import resolve_offsets

    return resolve_offsets(**options)
