"""Streaming queries of a real Spark over real brokers: growing journals, restarts, journals that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from consumer.message.message_uuid import Flags, build
from protocol.codec import CompressionCodec
from spark_readers.scan_plan import DataLossError
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.stream_query import StreamQuery

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = pa.schema([("n", pa.int64())])
PRODUCER = b"\x01aaaaa"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    async with broker_cluster(folder, shared_etcd.endpoint, "/stream-brokers", "broker-0") as cluster:
        yield cluster


async def create(cluster: BrokerCluster, *names: str) -> None:
    # So short that some fragments are stored, and some are not yet.
    await cluster.apply(*(journal_spec(name, 1, CompressionCodec.ZSTANDARD, length=1 << 10) for name in names))


async def append(cluster: BrokerCluster, journal: str, *numbers: int) -> None:
    content = b"".join(json.dumps({"n": n, "pad": "x" * 200}).encode() + b"\n" for n in numbers)
    await cluster.append("broker-0", journal, content)


def message(n: int, clock: int, flags: Flags) -> bytes:
    return json.dumps({"UUID": str(build(PRODUCER, clock, flags)), "n": n}).encode() + b"\n"


def options(cluster: BrokerCluster, pattern: str) -> dict[str, str]:
    return {
        "broker": cluster.brokers["broker-0"].address,
        "journalPattern": pattern,
        "framing": "json",
        "fileRoot": str(cluster.fragments),
        "listingIntervalMs": "100",
    }


class Sink:
    """A folder of Parquet, and the checkpoint of the query that writes it."""

    def __init__(self, spark: SparkSession, folder: Path, given: dict[str, str]) -> None:
        self._spark = spark
        self._folder = folder
        self._given = given

    def start(self, *, available_now: bool = False, **more: str) -> StreamingQuery:
        rows: DataFrame = (
            self._spark.readStream.format("gazette").options(**self._given, **more).schema("n long").load()
        )
        writing = rows.writeStream.format("parquet").option("checkpointLocation", str(self._folder / "checkpoint"))
        return (writing.trigger(availableNow=True) if available_now else writing).start(str(self._folder / "rows"))

    async def run(self, **more: str) -> StreamingQuery:
        """What there is now."""
        query = await asyncio.to_thread(lambda: self.start(available_now=True, **more))
        await asyncio.to_thread(query.awaitTermination)
        return query

    async def numbers(self) -> list[int]:
        if not (self._folder / "rows/_spark_metadata").exists():
            return []
        table = self._spark.read.schema("n long").parquet(str(self._folder / "rows"))
        rows = await asyncio.to_thread(table.collect)
        return sorted(row["n"] for row in rows)


async def test_a_query_that_is_started_again_has_each_row_once(
    spark: SparkSession, cluster: BrokerCluster, tmp_path: Path
) -> None:
    await create(cluster, "restart/a", "restart/b")
    sink = Sink(spark, tmp_path, options(cluster, "restart/.*"))
    for at in range(0, 20, 5):
        await append(cluster, "restart/a", *range(at, at + 5))
    await cluster.append("broker-0", "restart/b", message(20, 1, Flags.OUTSIDE_TXN), message(21, 2, Flags.CONTINUE_TXN))
    query = await sink.run(maxBytesPerTrigger="2k")
    assert await sink.numbers() == [*range(21)]
    assert len([progress for progress in query.recentProgress if progress.numInputRows]) > 1
    # The acknowledgement comes while no query runs, and with it a journal that was not there before.
    await cluster.append("broker-0", "restart/b", message(22, 3, Flags.CONTINUE_TXN))
    await sink.run()
    assert await sink.numbers() == [*range(21)]
    await cluster.append("broker-0", "restart/b", message(23, 4, Flags.ACK_TXN))
    await create(cluster, "restart/new")
    await append(cluster, "restart/new", 23, 24)
    # As if the last run had been killed before its last batch was committed: that one is done again, and counts once.
    commits = tmp_path / "checkpoint/commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()
    await sink.run()
    assert await sink.numbers() == [*range(25)]


async def test_a_running_query_follows_journals_that_grow_and_come(
    spark: SparkSession, cluster: BrokerCluster, tmp_path: Path
) -> None:
    await create(cluster, "grow/a")
    await append(cluster, "grow/a", 0)
    sink = Sink(spark, tmp_path, options(cluster, "grow/.*"))
    query = await asyncio.to_thread(sink.start)
    try:

        async def has(*numbers: int) -> None:
            async def are_there() -> bool:
                assert query.exception() is None
                return await sink.numbers() == [*numbers]

            await eventually(are_there, f"rows {numbers}")

        await has(0)
        await append(cluster, "grow/a", 1)
        await create(cluster, "grow/b")
        await append(cluster, "grow/b", 2, 3)
        await has(0, 1, 2, 3)
    finally:
        await asyncio.to_thread(query.stop)


@pytest.mark.slow
async def test_a_journal_that_is_deleted_fails_the_query_unless_losses_are_allowed(
    spark: SparkSession, cluster: BrokerCluster, tmp_path: Path
) -> None:
    await create(cluster, "gone/a", "gone/b")
    await append(cluster, "gone/a", 0)
    await append(cluster, "gone/b", 1)
    sink = Sink(spark, tmp_path, options(cluster, "gone/.*"))
    await sink.run()
    await cluster.delete("gone/a")
    await append(cluster, "gone/b", 2)
    with pytest.raises(StreamingQueryException, match=r"gone/a is gone.*failOnDataLoss"):
        await sink.run()
    await sink.run(failOnDataLoss="false")
    assert await sink.numbers() == [0, 1, 2]
    # It has been passed now.
    await append(cluster, "gone/b", 3)
    await sink.run()
    assert await sink.numbers() == [0, 1, 2, 3]


async def test_a_journal_that_is_deleted_is_a_loss(cluster: BrokerCluster) -> None:
    """The same without Spark."""
    await create(cluster, "lost/a", "lost/b")
    await append(cluster, "lost/a", 0)
    given = options(cluster, "lost/.*")
    query = await asyncio.to_thread(lambda: StreamQuery(NUMBERS, **given))
    assert await asyncio.to_thread(query.batch) == [{"n": 0}]
    await cluster.delete("lost/a")
    with pytest.raises(DataLossError, match="lost/a is gone"):
        await asyncio.to_thread(query.batch)
    lossy = StreamQuery(NUMBERS, query.at, **given, failOnDataLoss="false")
    assert await asyncio.to_thread(lossy.batch) == []
    assert lossy.offsets == {"lost/b": 0}
    assert await asyncio.to_thread(lossy.batch) is None


async def test_brokers_are_asked_as_often_as_was_said_however_often_spark_asks(cluster: BrokerCluster) -> None:
    await create(cluster, "idle/a")
    await append(cluster, "idle/a", *range(3))
    given = options(cluster, "idle/.*") | {"listingIntervalMs": "100000000"}

    def idle() -> StreamQuery:
        query = StreamQuery(NUMBERS, **given)
        end = query.poll()
        assert sorted(row["n"] for row in query.rows(end)) == [0, 1, 2]
        query.at = end
        for _ in range(500):
            assert query.poll() == end
        return query

    query = await asyncio.to_thread(idle)
    assert query.reader.listing.count == 1
    # Of a journal that was read to its end, fragments are not even asked for.
    await asyncio.to_thread(query.look)
    assert len(query.reader.listing.journals["idle/a"].fragments) == 0
