"""A real Spark on two cores of this machine, which tries a task twice. To start one takes many seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_readers
from spark_readers.java_home import find_java_home

ROOT = Path(__file__).parent.parent.parent


# It does not live long enough for Java's better compiler to pay off.
SHORT_LIVED = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def spark_session(folder: Path, settings: Mapping[str, str] = SHORT_LIVED) -> Iterator[SparkSession]:
    """`folder` takes what Spark writes besides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java_home(os.environ, folder / "java")))
        # Of the processes that Spark starts: they need our packages, and what tests share.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        spark = _started(folder, settings)
        try:
            spark_readers.register(spark)
            yield spark
        finally:
            spark.stop()


def _started(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2, 2]")
        .appName("pygazette tests")
        .config("spark.ui.enabled", "false")
        .config(map=dict(settings))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    # Tasks that fail on purpose would fill the screen.
    spark.sparkContext.setLogLevel("OFF")
    return spark
