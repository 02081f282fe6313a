"""A broker that dies under a write: what it had been sent is appended again elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from broker.client.blocking import BlockingClient
from broker.client.journal_change import Upsert
from spark_readers.sink import writer
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.read_committed import committed

SCHEMA = StructType([StructField("fill", StringType()), StructField("n", LongType())])
JOURNALS = ("sink/fault-0", "sink/fault-1")
BATCHES, ROWS = 30, 20


@pytest.fixture
async def brokers(shared_etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    names = ("broker-0", "broker-1", "broker-2")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, "/sink-faults", *names) as cluster:
        yield cluster


@pytest.mark.slow  # its short form is the repeated append of test_sink.py
def test_rows_count_once_although_brokers_die_while_they_are_appended(brokers: BrokerCluster) -> None:
    addresses = ",".join(broker.address for broker in brokers.brokers.values())
    with BlockingClient(*addresses.split(",")) as client:
        client.apply(*(Upsert(journal_spec(journal, 2, length=1 << 22)) for journal in JOURNALS))
        options = {"broker": addresses, "journals": ",".join(JOURNALS), "keyColumn": "n"}
        made = writer(SCHEMA, False, options)

        def batches() -> Iterator[pa.RecordBatch]:
            for at in range(BATCHES):
                rows = range(at * ROWS, at * ROWS + ROWS)
                yield pa.RecordBatch.from_pylist([{"fill": "x" * 200_000, "n": n} for n in rows])
                if at == BATCHES // 2:
                    kill_primary(brokers, client, JOURNALS[0])

        made.commit([made.write(batches())])
        found = [document["n"] for journal in JOURNALS for document in committed(client, journal)]
    assert sorted(found) == list(range(BATCHES * ROWS))


def kill_primary(brokers: BrokerCluster, client: BlockingClient, journal: str) -> None:
    (listed,) = client.list(f"name={journal}")
    assert listed.route.primary is not None
    primary = listed.route.members[listed.route.primary]
    brokers.brokers[primary.suffix].kill()
