"""A real cluster with an S3 server as its store, read while it is written to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

import spark_readers
from broker.client.blocking import BlockingClient
from protocol.codec import CompressionCodec
from protocol.label import LabelSet
from spark_readers import resolve_offsets
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.object_servers import BUCKET

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOURNALS = {
    "spark/zstd": CompressionCodec.ZSTANDARD,
    "spark/snappy": CompressionCodec.SNAPPY,
    "spark/raw": CompressionCodec.NONE,
    "spark/fresh": CompressionCodec.GZIP,
}
# Its fragments, but for the first, are so long that none is stored while these tests run.
FRESH = "spark/fresh"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    shared_etcd: EtcdServer, s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    async with broker_cluster(folder, shared_etcd.endpoint, "/spark-brokers", "broker-0", "broker-1") as cluster:
        store = f"s3://{BUCKET}/spark/?endpoint={s3_endpoint}"
        await cluster.apply(
            *(
                journal_spec(name, 2, codec, length=1 << 26 if name == FRESH else 1 << 12, stores=(store,))
                for name, codec in JOURNALS.items()
            )
        )
        yield cluster


def record(n: int) -> bytes:
    return json.dumps({"n": n, "text": "abc" * (n % 30)}).encode() + b"\n"


class Writer:
    """Appends until it is told to stop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.written = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        with BlockingClient(self._address) as client:
            while not self._stop.is_set():
                for journal in JOURNALS:
                    client.append(journal, b"".join(record(self.written + at) for at in range(20)))
                self.written += 20


async def test_a_batch_is_what_a_reader_returns_while_appends_go_on(
    spark: SparkSession, cluster: BrokerCluster
) -> None:
    address = cluster.brokers["broker-0"].address
    with Writer(address) as writer:
        await eventually(lambda: asyncio.to_thread(_stored, address), "some fragments of each journal to be stored")
        before = writer.written
        offsets = await asyncio.to_thread(
            spark_readers.resolve_offsets, broker=address, selector="name:prefix=spark/", framing="bytes"
        )
        table = spark_readers.read_journals(
            spark, broker=address, framing="bytes", offsets=offsets, includeMetadata=True, splitSize="64m"
        ).select("_journal", "_offset", "value", "_fragment")
        rows = await asyncio.to_thread(table.collect)
        again = await asyncio.to_thread(table.collect)
    assert offsets.keys() == JOURNALS.keys()
    assert sorted(map(str, rows)) == sorted(map(str, again))
    with BlockingClient(address) as client:
        for journal, (begin, end) in offsets.items():
            parts = sorted((row["_offset"], bytes(row["value"])) for row in rows if row["_journal"] == journal)
            content = b"".join(part for _, part in parts)
            with client.read(journal, begin, end=end, block=False) as reader:
                assert content == reader.read()
            # Latest means latest: all that was acknowledged before is there, stored or not.
            assert content.count(b"\n") >= before
    assert None in {row["_fragment"] for row in rows if row["_journal"] == FRESH}
    assert any(row["_fragment"] for row in rows)


def _stored(address: str) -> bool:
    with BlockingClient(address) as client:
        return all(
            sum(1 for of in client.fragments(name) if of.fragment.backing_store) > 2
            for name in JOURNALS
            if name != FRESH
        )


async def test_without_the_tail_nothing_is_read_through_brokers(spark: SparkSession, cluster: BrokerCluster) -> None:
    address = cluster.brokers["broker-0"].address
    with BlockingClient(address) as client:
        client.append(FRESH, record(0))
    chosen = "name:prefix=spark/"
    with_tail, stored = [
        await asyncio.to_thread(partial(resolve_offsets, broker=address, selector=chosen, tail=tail))
        for tail in (True, False)
    ]
    assert stored[FRESH][1] < with_tail[FRESH][1]
    table = spark_readers.read_journals(
        spark,
        broker=address,
        selector=chosen,
        tail=False,
        framing="bytes",
        columns="value binary, _journal string, _fragment string",
    )
    rows = await asyncio.to_thread(table.collect)
    assert None not in {row["_fragment"] for row in rows}
    for journal, (begin, end) in stored.items():
        # More may have been stored by now, but no more than there is.
        assert (
            end - begin <= sum(len(row["value"]) for row in rows if row["_journal"] == journal) <= with_tail[journal][1]
        )


async def test_the_store_alone_has_what_was_stored(
    spark: SparkSession, cluster: BrokerCluster, s3_endpoint: str
) -> None:
    address = cluster.brokers["broker-0"].address
    with BlockingClient(address) as client:
        client.append("spark/zstd", b"".join(map(record, range(100))))
    table = spark_readers.read_journals(
        spark, path=f"s3://{BUCKET}/spark/?endpoint={s3_endpoint}", journal="spark/zstd", columns=["_offset", "value"]
    )
    rows = sorted((row["_offset"], row["value"]) for row in await asyncio.to_thread(table.collect))
    with BlockingClient(address) as client:
        content = client.read("spark/zstd", 0, end=rows[-1][0] + len(rows[-1][1]) + 1, block=False).read()
    assert [value.encode() for _, value in rows] == content.split(b"\n")[:-1]


async def test_labels_choose_journals_and_are_columns(spark: SparkSession, cluster: BrokerCluster) -> None:
    address = cluster.brokers["broker-0"].address
    spec = journal_spec("spark/labelled", 1)
    await cluster.apply(replace(spec, labels=LabelSet.of(("app", "spark"))))
    with BlockingClient(address) as client:
        client.append("spark/labelled", b"hello\n")
    table = spark_readers.read_journals(
        spark,
        broker=address,
        selector="app=spark",
        columns="value string, _labels map<string,string>",
        fileRoot=cluster.fragments,
    )
    assert [(row["value"], row["_labels"]) for row in await asyncio.to_thread(table.collect)] == [
        ("hello", {"app": "spark"})
    ]
