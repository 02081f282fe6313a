"""Whole stays in a cluster on a real etcd, and every way in which they end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdHistoryError
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, assignments_prefix, decoder, item_key, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.lease_keeper import LeaseLostError
from allocator.membership import Membership
from allocator.session import Session
from tests.integration.allocator.test_membership import Remembered
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Spec:
    desired_replication: int
    zones: frozenset[str] | None = None


@dataclass(frozen=True)
class Process:
    exiting: bool
    limit: int = 10


View = KeySpaceView[Entity[Spec, Process, bytes]]

HERE, EXITING = (json.dumps({"exiting": exiting}).encode() for exiting in (False, True))


def always(item: Item[Spec], assigned: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
    return [True] * len(assigned)


def session_of(
    etcd: EtcdClient, root: str, suffix: str, *, ttl_s: int = 20, memory: Remembered | None = None
) -> Session[Spec, Process, bytes]:
    decode = decoder(root, lambda _, raw: Spec(int(raw)), lambda _, __, raw: Process(**json.loads(raw)), bytes)
    watch = KeySpaceWatch(etcd, KeySpace(root, decode), timing=WatchTiming(delay_s=0, confirm_s=0.05))
    membership = Membership(etcd, member_key(root, "zone-a", suffix), memory or Remembered(), ttl_s=ttl_s)
    return Session(etcd, membership, watch, always)


def holders(root: str, view: View) -> list[str]:
    return [kv.key.removeprefix(assignments_prefix(root)) for kv in view.prefixed(assignments_prefix(root))]


@asynccontextmanager
async def busy(etcd: EtcdClient) -> AsyncIterator[None]:
    """An etcd that others use, too."""

    async def write() -> None:
        while True:
            await etcd.put("/elsewhere", b"")

    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        yield
        writing.cancel()


async def test_a_member_joins_leads_hands_over_and_leaves(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str
) -> None:
    first, second = session_of(etcd, prefix, "first"), session_of(etcd, prefix, "second")
    seen: list[int] = []
    first.watch.observe(lambda update: seen.append(update.view.revision))
    await etcd.put(item_key(prefix, "item/a"), b"1")
    async with busy(etcd), AsyncExitStack() as seconds_stay:
        firsts_stay = AsyncExitStack()
        await firsts_stay.enter_async_context(first.joined(HERE))
        # The mirror is loaded at the announcement, though others write; and whoever came before has seen that.
        (announced,) = (kv for kv in first.view.key_values if kv.key == first.membership.key)
        assert seen[0] == announced.mod_revision == announced.create_revision
        assert first.is_certain()
        await first.watch.wait_until(lambda view: holders(prefix, view) == ["item/a#zone-a#first#0"], PATIENCE_S)
        await seconds_stay.enter_async_context(second.joined(HERE))
        assert await first.drain(EXITING, PATIENCE_S) == 0
        assert first.is_certain(), "it may have more to see to before it leaves"
        await firsts_stay.aclose()
        assert not first.is_certain()
        assert not first.lost.is_set()
        view = await second.watch.wait_until(lambda view: view.get(first.membership.key) is None, PATIENCE_S)
        assert holders(prefix, view) == ["item/a#zone-a#second#0"]
        await etcd.delete(item_key(prefix, "item/a"))
        assert await second.drain(EXITING, PATIENCE_S) == 0
    assert shared_etcd.listing(prefix) == {}


async def test_a_member_that_nobody_relieves_leaves_when_its_time_is_up_and_says_why(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, full = session_of(etcd, prefix, "first"), session_of(etcd, prefix, "full")
    await etcd.put(item_key(prefix, "item/a"), b"1")
    async with session.joined(HERE), full.joined(json.dumps({"exiting": False, "limit": 0}).encode()):
        await session.watch.wait_until(lambda view: len(holders(prefix, view)) == 1, PATIENCE_S)
        assert await session.drain(EXITING, 0.2) == 1
    (warning,) = (record for record in caplog.records if "still assigned" in record.message)
    assert vars(warning)["items"] == 1


async def test_a_member_that_nobody_can_relieve_waits_for_nobody(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Remembered()
    session = session_of(etcd, prefix, "only", memory=memory)
    for name in ("item/a", "item/b"):
        await etcd.put(item_key(prefix, name), b"1")
    async with session.joined(HERE):
        await session.watch.wait_until(lambda view: len(holders(prefix, view)) == 2, PATIENCE_S)
        # One whose item is gone does not count.
        await etcd.put(f"{prefix}/assign/item/gone#zone-a#only#0", b"", session.membership.lease_id)
        async with asyncio.timeout(PATIENCE_S):
            assert await session.drain(EXITING, None) == 2
    assert sorted(shared_etcd.listing(prefix)) == [item_key(prefix, "item/a"), item_key(prefix, "item/b")]
    assert memory.lease_id is None
    (warning,) = (record for record in caplog.records if "still assigned" in record.message)
    assert vars(warning)["items"] == 2


async def test_an_update_is_seen_by_others_but_never_takes_an_exit_back(etcd: EtcdClient, prefix: str) -> None:
    first, second = session_of(etcd, prefix, "first"), session_of(etcd, prefix, "second")
    async with first.joined(HERE), second.joined(HERE):
        value = json.dumps({"exiting": False, "limit": 7}).encode()
        revision = await first.update(value)
        view = await second.watch.wait_revision(revision, PATIENCE_S)
        stored = view.get(first.membership.key)
        assert stored is not None
        assert (stored.raw, stored.lease, stored.mod_revision) == (value, first.membership.lease_id, revision)
        async with asyncio.TaskGroup() as tasks:
            # Asked for before the exit, and still under way.
            updating = tasks.create_task(first.update(HERE))
            exiting = tasks.create_task(first.drain(EXITING, PATIENCE_S))
        assert updating.done()
        assert exiting.result() == 0
        with pytest.raises(ValueError, match="is exiting"):
            await first.update(HERE)
        await second.drain(EXITING, PATIENCE_S)


async def test_a_body_that_just_ends_leaves_at_once(etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str) -> None:
    session = session_of(etcd, prefix, "only", ttl_s=600)

    async def body() -> None:
        async with session.joined(HERE):
            assert len(shared_etcd.listing(prefix)) == 1
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await body()
    assert caught.group_contains(ZeroDivisionError)
    assert not session.is_certain()
    assert shared_etcd.listing(prefix) == {}


# What ends it from without.


async def ended(session: Session[Spec, Process, bytes], joined: asyncio.Event) -> ExceptionGroup[Exception]:
    """Why the body was cancelled, having waited for ever."""
    try:
        async with asyncio.timeout(PATIENCE_S), session.joined(HERE):
            joined.set()
            await asyncio.Event().wait()
    except ExceptionGroup as errors:
        return errors
    raise AssertionError("nothing ended it")


@pytest.mark.parametrize("harm", ["revoked", "key deleted", "key of another"])
async def test_a_member_that_is_none_any_more_stops(
    etcd: EtcdClient, prefix: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, joined = session_of(etcd, prefix, "only", ttl_s=600), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(ended(session, joined))
        await joined.wait()
        match harm:
            case "revoked":
                await etcd.revoke_lease(session.membership.lease_id)
            case "key deleted":
                await etcd.delete(session.membership.key)
            case _:
                await etcd.put(session.membership.key, b"garbage")
        # Said before anybody has had to stop.
        await session.lost.wait()
        assert not session.is_certain()
    assert ending.result().subgroup(LeaseLostError) is not None
    assert [record.levelno for record in caplog.records if "lease is lost" in record.message] == [logging.ERROR]


async def test_a_member_that_hears_nothing_of_etcd_stops_by_its_own_clock(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=60) as etcd:
            session, joined = session_of(etcd, "/root", "only", ttl_s=2), asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(ended(session, joined))
                await joined.wait()
                server.pause()
                # It does not wait for an etcd that does not answer, be it only to take its leave.
                await eventually(ending.done, "the session to end")
                server.resume()
            assert ending.result().subgroup(LeaseLostError) is not None
            assert session.lost.is_set()


async def test_a_part_that_fails_ends_all_of_it_visibly(tmp_path: Path) -> None:
    """Here it is the watch, on an etcd that was wiped. The lease was not asked about for a long time yet."""
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
            for at in range(10):
                await etcd.put("/elsewhere", str(at).encode())
            session, joined = session_of(etcd, "/root", "only", ttl_s=600), asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(ended(session, joined))
                await joined.wait()
                server.discard()
                await asyncio.to_thread(server.start)
            assert ending.result().subgroup(EtcdHistoryError) is not None
            assert not session.is_certain()
