"""A real Spark on two cores of this machine, which tries a task four times.

As a program it is a driver of its own, to be killed: it writes what its arguments say, and ends.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_readers.java_home import find_java_home
from tests.support.sink_source import StoppingSource

ROOT = Path(__file__).parents[2]
ROWS = 60


@contextmanager
def local_spark(folder: Path) -> Iterator[SparkSession]:
    """`folder` takes what Spark writes besides."""
    # One that other tests have left would be taken instead, and tries a task but once.
    if (left := SparkSession.getActiveSession()) is not None:
        left.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java_home(os.environ, folder / "java")))
        # Of the processes that Spark starts: they need our packages, and what tests share.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        spark = _started(folder)
        try:
            yield spark
        finally:
            spark.stop()


def _started(folder: Path) -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2, 4]")
        .appName("pygazette tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        # It does not live long enough for Java's better compiler to pay off.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def numbered(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("concat('k', id) as key", "id as n")


def start_stream(spark: SparkSession, files: str, checkpoint: str, options: Mapping[str, str]) -> None:
    """A micro-batch for each file of JSON rows, until there is none left."""
    rows = spark.readStream.schema("key string, n long").option("maxFilesPerTrigger", "1").json(files)
    writing = rows.writeStream.format("gazette").options(**options).option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()


@contextmanager
def driver_process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This module as a program. At the end all of its processes are killed, Java and Python's workers as well."""
    command = [sys.executable, "-m", "tests.support.local_spark", *arguments]
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
    with local_spark(Path(folder)) as spark:
        spark.dataSource.register(StoppingSource)
        if kind == "batch":
            numbered(spark).write.format("gazette").mode("append").options(**options).save()
        else:
            files, checkpoint = rest
            start_stream(spark, files, checkpoint, options)


if __name__ == "__main__":
    main()
