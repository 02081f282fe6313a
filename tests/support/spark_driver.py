"""What a driver of Spark writes to journals, or reads. As a program it is one, to be killed, as its arguments say."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.support.sink_source import StoppingSource
from tests.support.spark_session import ROOT, spark_session

ROWS = 60


def numbered(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("concat('k', id) as key", "id as n")


def start_stream(spark: SparkSession, files: str, checkpoint: str, options: Mapping[str, str]) -> None:
    """A micro-batch for each file of JSON rows, until there is none left."""
    rows = spark.readStream.schema("key string, n long").option("maxFilesPerTrigger", "1").json(files)
    writing = rows.writeStream.format("gazette").options(**options).option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()


def read_stream(spark: SparkSession, folder: str, options: Mapping[str, str]) -> None:
    """What journals have, into a folder of Parquet."""
    rows = spark.readStream.format("gazette").options(**options).schema("n long").load()
    writing = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writing.trigger(availableNow=True).start(f"{folder}/rows")
    query.awaitTermination()


@contextmanager
def driver_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This module as a program. At the end all of its processes are killed, Java and Python's workers as well."""
    command = [sys.executable, "-m", "tests.support.spark_driver", *arguments]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield driver
    finally:
        for pid in _of_session(driver.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.wait()


def _of_session(session: int) -> Sequence[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session:
                found.append(int(folder.name))
    return found


def main() -> None:
    kind, folder, given, *rest = sys.argv[1:]
    options = ast.literal_eval(given)
    with spark_session(Path(folder)) as spark:
        spark.dataSource.register(StoppingSource)
        if kind == "batch":
            numbered(spark).write.format("gazette").mode("append").options(**options).save()
        elif kind == "stream":
            files, checkpoint = rest
            start_stream(spark, files, checkpoint, options)
        else:
            read_stream(spark, rest[0], options)


if __name__ == "__main__":
    main()
