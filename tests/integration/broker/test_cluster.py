"""Brokers as processes, with a real etcd and files: what holds for clients, seen from outside."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_cluster import broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer

JOURNAL = "test/journal"


async def test_acknowledged_bytes_are_read_from_every_member_and_through_others(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster:
        await cluster.apply(journal_spec())
        first = await cluster.append("broker-0", JOURNAL, b"hello ", b"world\n")
        assert (first.commit.begin, first.commit.end) == (0, 12)
        for at, name in enumerate(cluster.brokers):
            appended = await cluster.append(name, JOURNAL, b"line %d\n" % at)
            assert appended.commit.end - appended.commit.begin == 7
        expected = b"hello world\n" + b"".join(b"line %d\n" % at for at in range(4))
        for name in cluster.brokers:
            assert await cluster.read(name, JOURNAL) == expected


NAMES = ("broker-0", "broker-1", "broker-2", "broker-3")
