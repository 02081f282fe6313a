"""A real Spark cluster that starts a second attempt at any task, on another executor, as soon as the first runs.

Spark never runs it on the host of the first, and all workers of ``local-cluster[...]`` are on one. So this is a
standalone cluster, whose master and workers are in the driver's Java; each worker has an address of this machine as its
own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_readers.java_home import find_java_home
from tests.support.spark_session import ROOT, SHORT_LIVED

HOSTS = ("127.0.0.1", "127.0.0.2")
WORKER_MIB = 1024
SETTINGS = {
    **SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": HOSTS[0],
    "spark.driver.host": HOSTS[0],
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.minTaskRuntime": "1ms",
    # Without it a stage of one task, which has no other to be slower than, is let be.
    "spark.speculation.task.duration.threshold": "1ms",
}


@contextmanager
def speculating_session(folder: Path) -> Iterator[SparkSession]:
    """`folder` takes what Spark writes besides. To be used once in a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java_home(os.environ, folder / "java")))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        settings = SparkConf().setAppName("pygazette speculation").setAll([*SETTINGS.items()])
        settings.set("spark.local.dir", str(folder / "local")).set("spark.sql.warehouse.dir", str(folder / "warehouse"))
        gateway: Any = launch_gateway(settings)  # type: ignore[no-untyped-call]
        settings.setMaster(_started_cluster(gateway, str(folder / "work")))
        context = SparkContext(conf=settings, gateway=gateway)
        context.setLogLevel("OFF")
        spark = SparkSession(context)
        try:
            yield spark
        finally:
            spark.stop()


def _started_cluster(gateway: Any, work: str) -> str:
    """The URL of its master."""
    jvm = gateway.jvm
    settings = jvm.org.apache.spark.SparkConf(False).set("spark.master.rest.enabled", "false")
    deploy, none = jvm.org.apache.spark.deploy, jvm.scala.Option.apply(None)
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, settings)
    url = str(master.productElement(0).address().toSparkURL())
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    for number, host in enumerate(HOSTS):
        named = jvm.scala.Option.apply(number)
        deploy.worker.Worker.startRpcEnvAndEndpoint(host, 0, 0, 1, WORKER_MIB, urls, work, named, settings, none)
    return url
