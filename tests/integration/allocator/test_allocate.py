"""Whole clusters on a real etcd: members come, lead, drain and die, and every item ends where it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from allocator.allocate import Allocator, is_drained
from allocator.etcd_client import EtcdClient
from allocator.keys import Entity, decoder, item_key, member_id, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.membership import Membership
from allocator.state import State
from tests.integration.allocator.test_membership import Remembered

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Spec:
    desired_replication: int
    zones: frozenset[str] | None = None


@dataclass(frozen=True)
class Process:
    limit: int
    exiting: bool

    def encoded(self) -> bytes:
        return json.dumps({"limit": self.limit, "exiting": self.exiting}).encode()


View = KeySpaceView[Entity[Spec, Process, bytes]]


def item_spec(_: str, raw: bytes) -> Spec:
    fields = json.loads(raw)
    return Spec(fields["replication"], frozenset(fields["zones"]) if "zones" in fields else None)


def process(_: str, __: str, raw: bytes) -> Process:
    return Process(**json.loads(raw))


@dataclass
class Member:
    id: str
    membership: Membership
    watch: KeySpaceWatch[Entity[Spec, Process, bytes]]
    running: asyncio.Task[None]

    async def drain(self, root: str) -> bool:
        drained = await self.membership.drain(
            Process(10, exiting=True).encoded(), self.watch, partial(is_drained, root, self.id), PATIENCE_S
        )
        self.running.cancel()
        await self.membership.leave()
        assert not self.membership.is_certain(), "nothing is acknowledged once the lease is being revoked"
        return drained


@asynccontextmanager
async def member_of(etcd: EtcdClient, root: str, zone: str, suffix: str) -> AsyncIterator[Member]:
    membership = Membership(etcd, member_key(root, zone, suffix), Remembered())
    await membership.begin()
    revision = await membership.announce(Process(10, exiting=False).encoded())
    decode = decoder(root, item_spec, process, lambda raw: raw)
    watch = KeySpaceWatch(etcd, KeySpace(root, decode), timing=WatchTiming(delay_s=0))
    await watch.load(revision)
    allocator = Allocator(etcd, watch, root, membership.key, lambda _, assigned: [True] * len(assigned))

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(membership.run())
            tasks.create_task(watch.run())
            tasks.create_task(allocator.run())

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run())
        yield Member(member_id(zone, suffix), membership, watch, running)
        running.cancel()


def held(root: str, view: View) -> dict[str, list[tuple[int, str]]]:
    state = State.of(root, view.key_values)
    return {
        item.value.id: sorted((kv.value.slot, kv.value.member) for kv in assigned)
        for item, assigned in zip(state.items, state.assignments, strict=True)
    }


def is_settled(root: str, members: Iterable[str], view: View) -> bool:
    """Every item has its replicas on living members, in slots from 0, and over two zones where it has two."""
    state, living = State.of(root, view.key_values), set(members)
    if state.dead or {kv.value.id for kv in state.members} != living:
        return False
    for item, assigned in zip(state.items, state.assignments, strict=True):
        slots = sorted(kv.value.slot for kv in assigned)
        holders = {kv.value.member for kv in assigned}
        zones = {holder.split("#")[0] for holder in holders}
        wanted = item.value.value.desired_replication
        spread = min(wanted, len({member.split("#")[0] for member in living}), 2)
        if (
            slots != list(range(wanted))
            or not holders <= living
            or (len(zones) < spread and not item.value.value.zones)
        ):
            return False
    return True


async def put_items(etcd: EtcdClient, root: str, count: int, replication: int) -> None:
    for at in range(count):
        await etcd.put(item_key(root, f"item/{at:03d}"), json.dumps({"replication": replication}).encode())


async def test_items_are_assigned_and_follow_members_that_come_drain_and_die(etcd: EtcdClient, prefix: str) -> None:
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(member_of(etcd, prefix, zone, suffix))
            for zone, suffix in (("zone-a", "first"), ("zone-a", "second"), ("zone-b", "third"))
        ]
        first, second, third = members
        await put_items(etcd, prefix, 9, 2)
        ids = [member.id for member in members]
        await third.watch.wait_until(
            lambda view: len(held(prefix, view)) == 9 and is_settled(prefix, ids, view), PATIENCE_S
        )

        fourth = await stack.enter_async_context(member_of(etcd, prefix, "zone-b", "fourth"))
        assert await first.drain(prefix), "the leader drains itself"
        ids = [second.id, third.id, fourth.id]
        view = await fourth.watch.wait_until(lambda view: is_settled(prefix, ids, view), PATIENCE_S)
        assert first.id not in {holder for holders in held(prefix, view).values() for _, holder in holders}

        second.running.cancel()
        await etcd.revoke_lease(second.membership.lease_id)
        await fourth.watch.wait_until(lambda view: is_settled(prefix, [third.id, fourth.id], view), PATIENCE_S)

        await etcd.delete(item_key(prefix, "item/004"))
        view = await fourth.watch.wait_until(
            lambda view: len(held(prefix, view)) == 8 and is_settled(prefix, [third.id, fourth.id], view), PATIENCE_S
        )


async def test_an_item_stays_in_the_zones_it_is_allowed(etcd: EtcdClient, prefix: str) -> None:
    async with AsyncExitStack() as stack:
        for zone, suffix in (("zone-a", "one1"), ("zone-b", "two2")):
            await stack.enter_async_context(member_of(etcd, prefix, zone, suffix))
        member = await stack.enter_async_context(member_of(etcd, prefix, "zone-b", "three3"))
        value = json.dumps({"replication": 2, "zones": ["zone-b"]}).encode()
        await etcd.put(item_key(prefix, "item/bound"), value)
        view = await member.watch.wait_until(
            lambda view: len(held(prefix, view).get("item/bound", [])) == 2, PATIENCE_S
        )
        assert {holder.split("#")[0] for _, holder in held(prefix, view)["item/bound"]} == {"zone-b"}


async def test_bad_values_are_passed_over(etcd: EtcdClient, prefix: str) -> None:
    async with member_of(etcd, prefix, "zone-a", "only1") as member:
        await etcd.put(item_key(prefix, "item/bad"), b"{")
        await etcd.put(f"{prefix}/elsewhere/x", b"")
        await etcd.put(f"{prefix}/assign/item/ghost#zone-x#gone#0", b"")
        await put_items(etcd, prefix, 1, 1)
        view = await member.watch.wait_until(
            lambda view: bool(held(prefix, view)) and is_settled(prefix, [member.id], view), PATIENCE_S
        )
        assert held(prefix, view) == {"item/000": [(0, member.id)]}
