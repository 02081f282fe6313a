"""List, and watching it, on a real etcd that is written to meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from allocator.etcd_client import EtcdClient
from allocator.keys import assignment_key, item_key, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.transaction import Delete, Put, Transaction
from broker.broker_member import BrokerMember
from broker.cluster_keys import broker_decoder
from broker.journal_changes import JournalChanges
from broker.list_api import ListApi
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector
from protocol.validation import validate
from tests.support.broker_cores import no_heads
from tests.support.journal_cluster import A, journal_spec

WATCHED = LabelSelector.parse("name:prefix=acme/")


@asynccontextmanager
async def lists_on(etcd: EtcdClient, root: str) -> AsyncIterator[ListApi]:
    put = await etcd.put(member_key(root, *A), BrokerMember(A, "http://broker-1:8080", 9).encoded())
    watch = KeySpaceWatch(etcd, KeySpace(root, broker_decoder(root)), timing=WatchTiming(delay_s=0.001))
    await watch.load(put.revision)
    changes = JournalChanges(watch.view)
    watch.observe(changes.observe)
    running = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield ListApi(changes, root, A, no_heads)
    finally:
        running.cancel()
        await asyncio.wait([running])


def put(root: str, name: str, *labels: tuple[str, str]) -> Put:
    return Put(item_key(root, name), journal_spec(name, *labels).to_proto().SerializeToString())


async def test_a_watch_follows_all_that_becomes_of_its_journals(etcd: EtcdClient, prefix: str) -> None:
    async with asyncio.timeout(20), lists_on(etcd, prefix) as lists:
        request = pb.ListRequest(selector=WATCHED.to_proto(), watch=True)
        async with aclosing(lists.list_journals(request)) as messages:

            async def snapshot() -> dict[str, pb.ListResponse.Journal]:
                message = await anext(messages)
                validate(message)
                assert await anext(messages) == pb.ListResponse()
                return {journal.spec.name: journal for journal in message.journals}

            async def commit(*operations: Put | Delete) -> int:
                return (await etcd.commit(Transaction((), operations))).header.revision

            assert await snapshot() == {}
            # Neither who holds a journal nor another's spec is news.
            await commit(put(prefix, "other/a"), Put(assignment_key(prefix, "other/a", *A, 0), b""))
            created = await commit(put(prefix, "acme/a"), put(prefix, "acme/b"))
            assert {name: j.create_revision for name, j in (await snapshot()).items()} == {
                "acme/a": created,
                "acme/b": created,
            }
            await commit(Put(assignment_key(prefix, "acme/a", *A, 0), b""))
            changed = await commit(put(prefix, "acme/a", ("tier", "gold")))
            shown = await snapshot()
            assert (shown["acme/a"].mod_revision, shown["acme/b"].mod_revision) == (changed, created)
            assert list(shown["acme/a"].route.endpoints) == ["http://broker-1:8080"]
            await commit(Delete(item_key(prefix, "acme/b")))
            assert list(await snapshot()) == ["acme/a"]


async def test_many_watches_see_the_same_in_the_end(etcd: EtcdClient, prefix: str) -> None:
    names = [f"acme/part-{at:02}" for at in range(30)]

    async with lists_on(etcd, prefix) as lists:

        async def until_all() -> int:
            seen, snapshots = set[str](), 0
            async with aclosing(lists.list_journals(pb.ListRequest(watch=True))) as messages:
                async for message in messages:
                    if message.HasField("header"):
                        seen, snapshots = set(), snapshots + 1
                    seen |= {journal.spec.name for journal in message.journals}
                    if seen == set(names) and not message.journals:
                        return snapshots
            return 0

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(until_all()) for _ in range(10)]
            for name in names:
                await etcd.commit(Transaction((), (put(prefix, name),)))
    assert all(1 <= task.result() <= len(names) + 1 for task in watching)
