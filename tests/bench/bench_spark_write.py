"""Rows written to journals by a real Spark on two cores, against the same rows written as files of JSON by Spark alone.

The broker shares the two cores, and its messages have UUIDs, cross a socket and are in its spool when they are
acknowledged: files need none of that. It is a floor that says how much of the time is not ours.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.bench.bench_spark import session
from tests.bench.harness import Contest, benchmark
from tests.support.broker_cluster import broker_cluster, journal_spec
from tests.support.etcd_server import etcd_server

JOURNAL = "bench/rows"
COMMITS = "bench/commits"
ROWS = 1_000_000


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).selectExpr(
        "id",
        "concat('customer-', id % 10007) AS customer",
        "cast(id % 12000 AS double) / 100 AS amount",
        "element_at(array('AT', 'BE', 'CH', 'DE', 'DK', 'ES', 'FI', 'FR'), cast(id % 8 AS int) + 1) AS country",
        "repeat('x', 80) AS note",
    )


@benchmark("spark write: 1,000,000 rows as JSON")
def writing() -> Iterator[Contest]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-write-")))
        (folder / "etcd").mkdir()
        etcd = stack.enter_context(etcd_server(folder / "etcd"))
        runner = stack.enter_context(asyncio.Runner())
        opened = broker_cluster(folder, etcd.endpoint, "/bench", "broker-0")
        cluster = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
        for journal in (JOURNAL, COMMITS):
            runner.run(cluster.apply(journal_spec(journal, 1, length=1 << 30)))
            runner.run(cluster.append("broker-0", journal, b"\n"))
        spark = session()
        versions = count()
        broker = cluster.brokers["broker-0"].address

        def ours() -> None:
            given = {"broker": broker, "journal": JOURNAL, "framing": "json", "txnAppId": "bench"}
            given |= {"txnVersion": str(next(versions)), "commitJournal": COMMITS}
            _rows(spark).write.format("gazette").mode("append").options(**given).save()

        def theirs() -> None:
            _rows(spark).write.mode("overwrite").json(str(folder / "files"))

        yield Contest(ours, theirs, "spark.write.json", ROWS, "rows", rounds=3)
