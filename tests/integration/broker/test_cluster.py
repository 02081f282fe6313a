"""Brokers as processes, with a real etcd and files: what holds for clients, seen from outside."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from allocator.etcd_client import EtcdClient
from allocator.keys import member_key
from broker.journal_item import ZONES
from protocol.label import REGION, LabelSet
from tests.support.broker_cluster import Broker, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer, free_port
from tests.support.eventually import eventually

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


async def test_a_journal_is_where_its_label_says_and_follows_it_with_all_its_bytes(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """The label of the region is one for people, and moves nothing."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix) as cluster:
        await cluster.start("broker-a0", "broker-a1", zone="zone-a")
        await cluster.start("broker-b0", "broker-b1", zone="zone-b")
        written = b""
        for zone, other in (("b", "a"), ("a", "b")):
            labels = LabelSet.of((REGION, f"zone-{other}"), (ZONES, f"zone-{zone}"))
            await cluster.apply(replace(journal_spec(replication=2), labels=labels))

            async def is_there() -> bool:
                primary, others = await cluster.route(JOURNAL)
                return {primary, *others} == {f"broker-{zone}0", f"broker-{zone}1"}  # noqa: B023

            await eventually(is_there, f"the journal to be in zone-{zone}")
            appended = await cluster.append("broker-a0", JOURNAL, f"in zone-{zone}\n".encode())
            assert appended.commit.begin == len(written)
            written += f"in zone-{zone}\n".encode()
        for name in cluster.brokers:

            async def is_read() -> bool:
                # What was written before the move comes from the store, once it is there.
                return await cluster.read(name, JOURNAL) == written  # noqa: B023

            await eventually(is_read, f"{name} to have everything")


async def test_a_broker_that_was_killed_comes_back_before_its_lease_has_run_out(
    shared_etcd: EtcdServer, etcd: EtcdClient, prefix: str, tmp_path: Path
) -> None:
    """The folder of its spools remembers the lease, and its lock shows that nobody holds that any more."""
    key = member_key(prefix, "local", "broker-0")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0", flags=LONG_LEASE) as cluster:
        before = await etcd.get(key)
        cluster.brokers["broker-0"].kill()
        assert await etcd.get(key) == before, "its lease lives on"
        await cluster.start("broker-0")
        after = await etcd.get(key)
        assert before is not None
        assert after is not None
        assert after.lease != before.lease


LONG_LEASE = ("--etcd.lease", "600s")


async def test_a_broker_that_waits_for_etcd_can_be_stopped(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "broker-0", f"http://127.0.0.1:{free_port()}", "/nowhere")
    broker.spawn()
    try:
        await eventually(lambda: "etcd does not answer" in broker.tail(), "the broker to wait for etcd")
        broker.signal(signal.SIGTERM)
        assert await broker.wait_exit() == 0
    finally:
        broker.kill()
