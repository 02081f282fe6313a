"""A Spark on this machine, for programs that are started without one: with a Java of a wheel if there is no other."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_readers.java_home import find_java_home

ROOT = Path(__file__).parent.parent
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


@contextmanager
def local_session(name: str) -> Iterator[Any]:
    """Ends the program, and says what to install, where there is no Spark or no Java."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        sys.exit("There is no Spark here: pip install 'pygazette[spark]'")
    with tempfile.TemporaryDirectory(prefix="pygazette-spark-") as folder:
        try:
            os.environ["JAVA_HOME"] = str(find_java_home(os.environ, Path(folder) / "java"))
        except FileNotFoundError as error:
            sys.exit(str(error))
        # Spark's workers are processes of their own, and need what we need.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # What Spark says while it starts is of no use to those who read a program's output.
        logging = Path(folder) / "log4j2.properties"
        logging.write_text(LOGGING, encoding="utf-8")
        spark = (
            SparkSession.builder.master("local[*]")
            .appName(name)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
            .config("spark.local.dir", f"{folder}/local")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()
