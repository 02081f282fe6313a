"""What brokers tidy up by themselves: fragments past retention, epochs that the store has all of, records of journals
that are gone. Theirs is a matter of minutes; here it comes every other second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from allocator.etcd_client import EtcdClient
from allocator.keys import item_key
from broker.durable_head import DurableHead, head_key
from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

JOURNAL = "test/one"
ONLY = "broker-0"


@pytest.fixture
async def cluster(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    planted = "tests.support.planted_broker tidies-soon"
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, ONLY, module=planted) as made:
        yield made


async def head_of(etcd: EtcdClient, prefix: str) -> DurableHead | None:
    stored = await etcd.get(head_key(prefix, JOURNAL))
    return None if stored is None else DurableHead.decoded(stored.raw)


async def test_epochs_go_off_the_record_as_the_store_gets_what_they_hold(
    cluster: BrokerCluster, etcd: EtcdClient, prefix: str
) -> None:
    """DH-12: also if it did not have it yet when the next one was opened, as after the restart of an only broker."""
    await cluster.apply(journal_spec(JOURNAL, 1))
    for at in range(4):
        await cluster.append(ONLY, JOURNAL, b"line %d\n" % at)
        cluster.brokers[ONLY].kill()
        await cluster.start(ONLY)
    await cluster.append(ONLY, JOURNAL, b"last\n")

    async def is_trimmed() -> bool:
        head = await head_of(etcd, prefix)
        assert head is not None
        assert head.last is not None
        assert head.last.number > 4
        return len(head.epochs) == 1

    await eventually(is_trimmed, "the store to have the others")
    # It goes on as if nothing had happened.
    await cluster.append(ONLY, JOURNAL, b"more\n")
    content = await cluster.read(ONLY, JOURNAL)
    assert content == b"".join(b"line %d\n" % at for at in range(4)) + b"last\nmore\n"


async def test_epochs_go_off_the_record_of_a_journal_that_is_never_at_rest(
    cluster: BrokerCluster, etcd: EtcdClient, prefix: str
) -> None:
    """DH-12: its pipeline is always in somebody's hands."""
    await cluster.apply(journal_spec(JOURNAL, 1))
    await cluster.append(ONLY, JOURNAL, b"first\n")
    cluster.brokers[ONLY].kill()
    await cluster.start(ONLY)
    is_trimmed = asyncio.Event()

    async def append() -> None:
        while not is_trimmed.is_set():
            await cluster.append(ONLY, JOURNAL, b"more\n")

    async def look() -> bool:
        head = await head_of(etcd, prefix)
        return head is not None and head.last is not None and head.last.number > 1 and len(head.epochs) == 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(append())
        await eventually(look, "the store to have the first epoch")
        is_trimmed.set()


async def test_what_retention_removes_is_not_waited_for(cluster: BrokerCluster, etcd: EtcdClient, prefix: str) -> None:
    """Neither by readers nor by the list of epochs."""
    await cluster.apply(journal_spec(JOURNAL, 1, length=1024, retention_ns=2 * 10**9))
    for _ in range(8):
        await cluster.append(ONLY, JOURNAL, b"x" * 1024)
    stored = cluster.fragments / JOURNAL

    async def is_pruned() -> bool:
        head = await head_of(etcd, prefix)
        assert head is not None
        names = sorted(path.name for path in stored.glob("*.raw"))
        return bool(names) and int(names[0][:16], 16) > 0 and head.pruned_through > 0

    await eventually(is_pruned, "the first fragments to be removed")
    cluster.brokers[ONLY].kill()
    await cluster.start(ONLY)
    await cluster.append(ONLY, JOURNAL, b"after\n")

    async def is_trimmed() -> bool:
        head = await head_of(etcd, prefix)
        assert head is not None
        return len(head.epochs) == 1

    await eventually(is_trimmed, "no epoch to be waited for")
    responses: list[pb.ReadResponse] = []

    async def is_read() -> bool:
        nonlocal responses
        try:
            responses = await cluster.responses(ONLY, JOURNAL)
        except grpc.aio.AioRpcError:
            # It was just removed, and the next listing is yet to come.
            return False
        return b"".join(response.content for response in responses).endswith(b"after\n")

    await eventually(is_read, "what is left to be read")
    offsets = [response.offset for response in responses if response.content]
    assert offsets[0] > 0, "whoever asks for what is gone is sent on"


async def test_the_record_of_a_deleted_journal_goes_once_it_is_done_with(
    cluster: BrokerCluster, etcd: EtcdClient, prefix: str
) -> None:
    await cluster.apply(journal_spec(JOURNAL, 1))
    await cluster.append(ONLY, JOURNAL, b"first\n")
    await cluster.append(ONLY, JOURNAL, b"second\n")
    assert await head_of(etcd, prefix) is not None
    await cluster.delete(JOURNAL)

    async def is_gone() -> bool:
        return await head_of(etcd, prefix) is None

    await eventually(is_gone, "the record to be removed")
    aside = [path.read_bytes() for path in (cluster.fragments / ".deleted").rglob("*.raw")]
    assert b"second\n" in aside, "what was not stored yet was set aside first"


async def test_a_journal_whose_spec_cannot_be_read_is_not_taken_for_a_deleted_one(
    cluster: BrokerCluster, etcd: EtcdClient, prefix: str
) -> None:
    """What an earlier process left of it waits, until somebody has mended the spec."""
    await cluster.apply(journal_spec(JOURNAL, 1))
    await cluster.append(ONLY, JOURNAL, b"first\n")
    # Any append that follows the first closes its fragment, also a pulse. What follows stays open.
    await cluster.append(ONLY, JOURNAL, b"kept\n")
    await eventually(lambda: len(objects(cluster)) == 1, "the first fragment to be stored")
    stored = await etcd.get(item_key(prefix, JOURNAL))
    assert stored is not None
    cluster.brokers[ONLY].kill()
    before = objects(cluster)
    await etcd.put(item_key(prefix, JOURNAL), b"\xff")
    await cluster.start(ONLY)

    async def has_waited() -> bool:
        return await cluster.metric(ONLY, "gazette_spool_persist_failures_total") > 0

    await eventually(has_waited, "an upload to fail for want of a spec")
    assert objects(cluster) == before
    await etcd.put(item_key(prefix, JOURNAL), stored.raw)

    await eventually(lambda: objects(cluster) > before, "what was left to be stored")
    assert {path.parent for path in objects(cluster)} == {cluster.fragments / JOURNAL}
    await cluster.append(ONLY, JOURNAL, b"more\n")
    assert set((await cluster.read(ONLY, JOURNAL)).splitlines()) == {b"first", b"kept", b"more"}


def objects(cluster: BrokerCluster) -> set[Path]:
    return set(cluster.fragments.rglob("*.raw"))
