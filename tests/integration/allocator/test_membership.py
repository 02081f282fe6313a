from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdUnavailableError
from allocator.keyspace_watch import WatchTiming
from allocator.lease_file import LeaseFile
from allocator.lease_keeper import LeaseLostError, boot_clock
from allocator.membership import LeaseMemory, Membership
from allocator.transaction import Put, Transaction
from tests.support.etcd_proxy import etcd_proxy
from tests.support.etcd_server import EtcdServer, etcd_cluster, etcd_server
from tests.support.eventually import eventually
from tests.support.metrics import metric
from tests.support.mirror import mirror_of

PATIENCE_S = 20.0
AT_ONCE = WatchTiming(delay_s=0)


@dataclass
class Remembered:
    """A LeaseMemory without a file."""

    lease_id: int | None = None

    async def recall(self) -> int | None:
        return self.lease_id

    async def remember(self, lease_id: int | None) -> None:
        self.lease_id = lease_id


def member_of(
    etcd: EtcdClient, prefix: str, memory: LeaseMemory | None = None, *, ttl_s: int = 20, late_s: float = 0.05
) -> Membership:
    key = f"{prefix}/members/zone-a#member-1"
    return Membership(etcd, key, memory or Remembered(), ttl_s=ttl_s, announce_retry_s=late_s)


@asynccontextmanager
async def kept(membership: Membership) -> AsyncIterator[None]:
    """Its lease is kept, and in the end no longer, as if the process were gone."""
    await membership.begin()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        yield
        running.cancel()


async def test_a_member_comes_drains_and_goes(etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str) -> None:
    memory = Remembered()
    membership = member_of(etcd, prefix, memory)
    assert not membership.is_certain()
    async with kept(membership):
        assert memory.lease_id == membership.lease_id
        revision = await membership.announce(b"spec")
        assert membership.is_certain()
        async with mirror_of(etcd, prefix, AT_ONCE, load_at=revision) as mirror:
            mirror.watch.observe(membership.observe)
            assert mirror.watch.view.revision == revision
            (member,) = mirror.watch.view.key_values
            assert (member.key, member.raw, member.lease) == (membership.key, b"spec", membership.lease_id)
            assigned = [f"{prefix}/assign/item-{at}#zone-a#member-1#0" for at in range(3)]
            await etcd.commit(Transaction((), tuple(Put(key, b"", membership.lease_id) for key in assigned)))
            async with asyncio.TaskGroup() as tasks:
                draining = tasks.create_task(
                    membership.drain(
                        b"exiting", mirror.watch, lambda view: not view.prefixed(f"{prefix}/assign/"), PATIENCE_S
                    )
                )
                await mirror.watch.wait_until(
                    lambda view: [kv.raw for kv in view.prefixed(f"{prefix}/members/")] == [b"exiting"], PATIENCE_S
                )
                # The leader takes its assignments away, one by one.
                for key in assigned[:-1]:
                    assert not draining.done()
                    await etcd.delete(key)
                await etcd.delete(assigned[-1])
            assert draining.result()
            await etcd.commit(Transaction((), tuple(Put(key, b"", membership.lease_id) for key in assigned)))
            before = (await etcd.header(prefix)).revision
            await membership.leave()
            view = await mirror.watch.wait_until(lambda view: not view.key_values, PATIENCE_S)
            # Its key and all its assignments, at once.
            assert view.revision == before + 1
            assert not membership.lost.is_set()
    assert await memory.recall() is None
    assert shared_etcd.listing(prefix) == {}


async def test_a_drain_that_takes_too_long_is_told(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix)
    async with kept(membership):
        revision = await membership.announce(b"spec")
        async with mirror_of(etcd, prefix, AT_ONCE, load_at=revision) as mirror:
            assert not await membership.drain(b"exiting", mirror.watch, lambda _: False, 0.05)
        await membership.leave()


async def test_a_process_that_starts_again_need_not_wait_for_its_former_lease(
    etcd: EtcdClient, prefix: str, tmp_path: Path
) -> None:
    file = LeaseFile(tmp_path / "lease")
    former = member_of(etcd, prefix, file, ttl_s=3600)
    async with kept(former):
        await former.announce(b"former")
    # It was killed. Its keys live on, but not for long.
    assert await etcd.get(former.key) is not None
    later = member_of(etcd, prefix, file, ttl_s=3600, late_s=3600)
    async with asyncio.timeout(PATIENCE_S), kept(later):
        assert await etcd.get(former.key) is None
        await later.announce(b"later")
        await later.leave()


async def test_a_lease_of_the_past_that_is_gone_is_no_obstacle(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix, Remembered(12345))
    async with kept(membership):
        await membership.announce(b"spec")
        await membership.leave()


async def test_a_place_that_is_taken_is_waited_for(etcd: EtcdClient, prefix: str) -> None:
    former, later = member_of(etcd, prefix), member_of(etcd, prefix)
    async with kept(former):
        await former.announce(b"former")
        async with kept(later), asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(later.announce(b"later"))
            version = await etcd.get(former.key)
            assert version is not None
            assert version.raw == b"former"
            await former.leave()
            revision = await announcing
            taken = await etcd.get(later.key)
            assert taken is not None
            assert (taken.raw, taken.lease, taken.mod_revision) == (b"later", later.lease_id, revision)
            await later.leave()


async def test_an_announcement_whose_answer_was_lost_is_recognised(shared_etcd: EtcdServer, prefix: str) -> None:
    """A Gazette member once waited for its own key to go."""
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        EtcdClient(EtcdConnections([proxy.endpoint]), timeout_s=3) as etcd,
    ):
        membership = member_of(etcd, prefix, late_s=60)
        async with kept(membership):
            proxy.lost_answers.add("/etcdserverpb.KV/Txn")
            revision = await membership.announce(b"spec")
            stored = await etcd.get(membership.key)
            assert stored is not None
            assert (stored.version, stored.mod_revision) == (1, revision)
            # The same of an update.
            proxy.lost_answers.add("/etcdserverpb.KV/Txn")
            revision = await membership.update(b"exiting")
            stored = await etcd.get(membership.key)
            assert stored is not None
            assert (stored.raw, stored.version, stored.mod_revision) == (b"exiting", 2, revision)
            await membership.leave()


async def test_an_update_wins_over_a_change_by_somebody_else(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix)
    async with kept(membership):
        await membership.announce(b"spec")
        await etcd.put(membership.key, b"edited by hand", membership.lease_id)
        await membership.update(b"exiting")
        stored = await etcd.get(membership.key)
        assert stored is not None
        assert stored.raw == b"exiting"
        await membership.leave()


async def test_of_two_updates_at_once_the_later_has_the_last_word(shared_etcd: EtcdServer, prefix: str) -> None:
    """The earlier does not know yet that it happened, and will try again. Were it the last, an exit would be undone."""
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        EtcdClient(EtcdConnections([proxy.endpoint]), timeout_s=3) as etcd,
    ):
        membership = member_of(etcd, prefix)
        async with kept(membership):
            await membership.announce(b"spec")
            proxy.lost_answers.add("/etcdserverpb.KV/Txn")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(membership.update(b"earlier"))
                await eventually(lambda: not proxy.lost_answers, "the answer to be lost")
                tasks.create_task(membership.update(b"exiting"))
            stored = await etcd.get(membership.key)
            assert stored is not None
            assert (stored.raw, stored.version) == (b"exiting", 3)
            await membership.leave()


async def lost_by(membership: Membership, running: asyncio.Event | None = None) -> LeaseLostError:
    """How ``run`` ends."""
    if running is not None:
        asyncio.get_running_loop().call_soon(running.set)
    with pytest.raises(LeaseLostError) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await membership.run()
    assert membership.lost.is_set()
    assert not membership.is_certain()
    return caught.value


async def test_a_member_whose_lease_is_revoked_stops(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix, ttl_s=3)
    await membership.begin()
    await membership.announce(b"spec")
    await etcd.revoke_lease(membership.lease_id)
    assert "run out or was revoked" in str(await lost_by(membership))
    with pytest.raises(LeaseLostError):
        await membership.update(b"exiting")


async def test_nothing_is_announced_under_a_lease_that_is_gone(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix)
    await membership.begin()
    await etcd.revoke_lease(membership.lease_id)
    with pytest.raises(LeaseLostError):
        await membership.announce(b"spec")
    assert not membership.is_certain()


async def test_a_member_whose_key_is_gone_stops_at_once_whatever_its_lease_says(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix, ttl_s=60)
    await membership.begin()
    revision = await membership.announce(b"spec")
    async with mirror_of(etcd, prefix, AT_ONCE, load_at=revision) as mirror, asyncio.TaskGroup() as tasks:
        mirror.watch.observe(membership.observe)
        losing = tasks.create_task(lost_by(membership))
        await etcd.delete(membership.key)
        assert "key is gone" in str(await losing)
    await etcd.revoke_lease(membership.lease_id)


@pytest.mark.parametrize("value", [b"another", b"bad"], ids=["decodable", "spoilt"])
@pytest.mark.parametrize("before", [b"spec", b"bad"], ids=["decodable before", "spoilt before"])
async def test_a_member_whose_key_has_another_lease_is_none_whatever_it_says(
    etcd: EtcdClient, prefix: str, before: bytes, value: bytes
) -> None:
    membership = member_of(etcd, prefix, ttl_s=60)
    await membership.begin()
    revision = await membership.announce(before)
    async with mirror_of(etcd, prefix, AT_ONCE, load_at=revision) as mirror, asyncio.TaskGroup() as tasks:
        mirror.watch.observe(membership.observe)
        losing = tasks.create_task(lost_by(membership))
        await etcd.put(membership.key, value)
        assert "another lease" in str(await losing)
    await etcd.revoke_lease(membership.lease_id)
    await etcd.delete(membership.key)


async def test_a_member_whose_key_was_spoilt_is_still_one(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix)
    async with kept(membership):
        revision = await membership.announce(b"bad")
        async with mirror_of(etcd, prefix, AT_ONCE, load_at=revision) as mirror:
            mirror.watch.observe(membership.observe)
            done = await etcd.put(f"{prefix}/a", b"1")
            await mirror.watch.wait_revision(done.revision, PATIENCE_S)
        assert membership.is_certain()
        await membership.leave()


async def test_an_update_of_a_key_that_is_gone_ends_the_membership(etcd: EtcdClient, prefix: str) -> None:
    membership = member_of(etcd, prefix)
    await membership.begin()
    await membership.announce(b"spec")
    await etcd.delete(membership.key)
    with pytest.raises(LeaseLostError, match="key is gone"):
        await membership.update(b"exiting")
    assert not membership.is_certain()
    await etcd.revoke_lease(membership.lease_id)


async def test_a_machine_that_slept_is_certain_of_nothing(etcd: EtcdClient, prefix: str) -> None:
    """The clock that counts is the one that ran on. Nothing has told the process yet, and it must know."""
    asleep_s = 0.0
    membership = Membership(
        etcd, f"{prefix}/members/zone-a#member-1", Remembered(), clock=lambda: boot_clock() + asleep_s
    )
    await membership.begin()
    await membership.announce(b"spec")
    assert membership.is_certain()
    asleep_s = 60.0
    assert not membership.is_certain()
    await lost_by(membership)
    await etcd.revoke_lease(membership.lease_id)


async def test_a_slow_answer_does_not_make_the_lease_longer(shared_etcd: EtcdServer, prefix: str) -> None:
    passed_s = 0.0
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        EtcdClient(EtcdConnections([proxy.endpoint])) as etcd,
    ):
        key, begun_s = f"{prefix}/members/zone-a#member-1", boot_clock()
        membership = Membership(etcd, key, Remembered(), ttl_s=60, clock=lambda: begun_s + passed_s)
        await membership.begin()
        proxy.flowing.clear()
        async with asyncio.TaskGroup() as tasks:
            # Sent at 21 s, answered at 26 s.
            streams, passed_s = proxy.streams, 21.0
            tasks.create_task(membership.run())
            await eventually(lambda: proxy.streams > streams, "another stream")
            passed_s = 26.0
            proxy.flowing.set()
            await eventually(lambda: metric("gazette_etcd_lease_remaining_seconds") > 40, "the lease to be kept")
            passed_s = 80.0
            assert membership.is_certain()
            passed_s = 82.0
            assert not membership.is_certain()
            passed_s = 26.0
            await membership.leave()


@pytest.mark.parametrize("asleep", ["between two keep-alives", "while one is under way"])
async def test_a_machine_that_slept_through_its_lease_finds_out_as_it_wakes(
    shared_etcd: EtcdServer, prefix: str, asleep: str
) -> None:
    """The clock of the loop, by which everything waits, stood still with the machine."""
    begun_s, slept_s = boot_clock(), 0.0
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        EtcdClient(EtcdConnections([proxy.endpoint])) as etcd,
    ):
        key = f"{prefix}/members/zone-a#member-1"
        # Its keep-alives are due after 200 s, and given up minutes later.
        membership = Membership(etcd, key, Remembered(), ttl_s=600, clock=lambda: begun_s + slept_s)
        await membership.begin()
        async with asyncio.TaskGroup() as tasks:
            if asleep == "while one is under way":
                proxy.flowing.clear()
                streams, slept_s = proxy.streams, 201.0
                losing = tasks.create_task(lost_by(membership))
                await eventually(lambda: proxy.streams > streams, "another stream")
            else:
                running = asyncio.Event()
                losing = tasks.create_task(lost_by(membership, running))
                await running.wait()
            slept_s = 3600.0
            assert "answered" in str(await losing)
        proxy.flowing.set()
        await etcd.revoke_lease(membership.lease_id)


async def test_certainty_ends_before_etcd_gives_the_place_to_another(tmp_path: Path) -> None:
    """etcd stands still, so that no keep-alive is answered, and then lives on to see the lease run out."""
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=5) as etcd:
            membership = member_of(etcd, "/root", ttl_s=2)
            async with kept(membership):
                await membership.announce(b"spec")
                # Kept for longer than it was granted for.
                granted_s = boot_clock()
                await eventually(lambda: boot_clock() > granted_s + 2.5, "more time than was granted")
                assert membership.is_certain()
            server.pause()
            await lost_by(membership)
            assert not membership.is_certain()
            # Only now may another have it: until here etcd stood still.
            server.resume()
            await wait_gone(etcd, membership.key)


async def wait_gone(etcd: EtcdClient, key: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if await etcd.get(key) is None:
                    return
            except EtcdUnavailableError:
                continue


async def test_a_member_waits_for_an_etcd_that_is_not_there_yet(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    try:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=0.2) as etcd:
            membership = member_of(etcd, "/root")
            async with asyncio.TaskGroup() as tasks:
                beginning = tasks.create_task(membership.begin())
                await asyncio.to_thread(server.start)
                await beginning
            await membership.announce(b"spec")
            await membership.leave()
            assert await etcd.get(membership.key) is None
    finally:
        server.discard()


async def test_a_member_that_cannot_reach_etcd_leaves_all_the_same(tmp_path: Path) -> None:
    memory = Remembered()
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=0.3) as etcd:
            membership = member_of(etcd, "/root", memory)
            await membership.begin()
            await membership.announce(b"spec")
            server.kill()
            await membership.leave()
            # So that the next process can revoke it.
            assert memory.lease_id == membership.lease_id


async def test_a_member_whose_disk_hangs_leaves_all_the_same(
    shared_etcd: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hung(Remembered):
        async def remember(self, lease_id: int | None) -> None:
            await (super().remember(lease_id) if lease_id else asyncio.Event().wait())

    monkeypatch.setattr("allocator.membership._FORGET_S", 0.05)
    async with EtcdClient(EtcdConnections([shared_etcd.endpoint])) as etcd:
        membership = member_of(etcd, prefix, Hung())
        await membership.begin()
        await membership.announce(b"spec")
        async with asyncio.timeout(PATIENCE_S):
            await membership.leave()
        assert await etcd.get(membership.key) is None


@pytest.mark.slow
async def test_a_lease_survives_a_leader_of_etcd_that_stands_still(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as cluster:
        leader = cluster.leader()
        endpoints = [leader.endpoint, *(each.endpoint for each in cluster.members if each is not leader)]
        async with EtcdClient(EtcdConnections(endpoints)) as etcd:
            membership = member_of(etcd, "/root", ttl_s=20)
            async with kept(membership):
                await membership.announce(b"spec")
                leader.pause()
                paused_s = boot_clock()
                await eventually(lambda: boot_clock() > paused_s + 25, "the lease to run out", 60)
                assert membership.is_certain()
                leader.resume()
                assert await etcd.get(membership.key) is not None
                await membership.leave()
