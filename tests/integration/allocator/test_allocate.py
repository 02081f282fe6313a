"""Whole clusters on a real etcd: members come, lead, drain and die, strangers write what they should not, etcd fails;
and every item ends where it should."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from allocator import allocate
from allocator.allocate import OFF_LOOP_ITEMS, Allocator, Standing, may_leave_now
from allocator.converge import Consistent
from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdUnavailableError
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, decoder, item_key, member_id, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.membership import Membership
from allocator.state import State
from allocator.transaction import KEEP_LEASE, OPERATIONS_MAX, Compare, Put, Target, Transaction
from tests.integration.allocator.test_membership import Remembered
from tests.support.allocation import (
    GARBAGE,
    ClusterState,
    ItemSpec,
    MemberSpec,
    all_agree,
    assignment_value,
    route_of,
)
from tests.support.etcd_proxy import etcd_proxy
from tests.support.etcd_server import EtcdServer, etcd_cluster
from tests.support.eventually import eventually
from tests.support.metrics import metric

PATIENCE_S = 30.0
LIMIT = 4000

View = KeySpaceView[Entity[ItemSpec, MemberSpec, bytes]]
Watch = KeySpaceWatch[Entity[ItemSpec, MemberSpec, bytes]]
Assigned = Sequence[KeyValue[Assignment[bytes]]]


def in_order(_: Item[ItemSpec], assigned: Assigned) -> list[bool]:
    return [True] * len(assigned)


@dataclass
class Member:
    id: str
    membership: Membership
    watch: Watch
    running: asyncio.Task[None]

    async def drain(self, root: str) -> bool:
        drained = await self.membership.drain(
            MemberSpec(LIMIT, exiting=True).encode(), self.watch, partial(may_leave_now, root, self.id), PATIENCE_S
        )
        self.running.cancel()
        await self.membership.leave()
        assert not self.membership.is_certain(), "nothing is acknowledged once the lease is being revoked"
        return drained


@asynccontextmanager
async def member_of(
    etcd: EtcdClient,
    root: str,
    zone: str,
    suffix: str,
    consistent: Consistent[ItemSpec, bytes] = in_order,
    is_broker: bool = False,
    limit: int = LIMIT,
) -> AsyncIterator[Member]:
    membership = Membership(etcd, member_key(root, zone, suffix), Remembered())
    await membership.begin()
    revision = await membership.announce(MemberSpec(limit).encode())
    decode = decoder(root, ItemSpec.decode, MemberSpec.decode, assignment_value)
    watch = KeySpaceWatch(etcd, KeySpace(root, decode), timing=WatchTiming(delay_s=0))
    await watch.load(revision)
    allocator = Allocator(etcd, watch, root, membership.key, consistent)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(membership.run())
            tasks.create_task(watch.run())
            tasks.create_task(allocator.run())
            if is_broker:
                tasks.create_task(synchronise(etcd, root, watch, member_id(zone, suffix)))

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run())
        yield Member(member_id(zone, suffix), membership, watch, running)
        running.cancel()


async def synchronise(etcd: EtcdClient, root: str, watch: Watch, own_id: str) -> None:
    """As the primary of a journal: tell every holder who they all are, once every one of them can be reached."""
    while True:
        view = watch.view
        state = state_of(root, view)
        for group in state.assignments:
            holders = [kv.value.member for kv in group]
            leads = any(kv.value.slot == 0 and kv.value.member == own_id for kv in group)
            if leads and len(set(holders)) == len(holders) and set(holders) <= state.position.keys():
                late = [kv for kv in group if kv.raw != route_of(group)]
                unchanged = tuple(Compare(kv.key, Target.MOD, kv.mod_revision) for kv in group)
                if late:
                    puts = tuple(Put(kv.key, route_of(group), KEEP_LEASE) for kv in late)
                    await etcd.commit(Transaction(unchanged, puts))
        await watch.wait_change(view, None)


@asynccontextmanager
async def members_of(etcd: EtcdClient, root: str, *names: str) -> AsyncIterator[list[Member]]:
    """Each with its zone, such as ``zone-a#first``. The first one leads."""
    async with AsyncExitStack() as stack:
        places = [name.split("#") for name in names]
        yield [await stack.enter_async_context(member_of(etcd, root, zone, suffix)) for zone, suffix in places]


@asynccontextmanager
async def client_of(*endpoints: str) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdConnections(endpoints), timeout_s=3) as client:
        yield client


def state_of(root: str, view: View) -> ClusterState:
    return State.of(root, view.key_values, view.undecodable)


def held(root: str, view: View) -> dict[str, list[tuple[int, str]]]:
    state = state_of(root, view)
    return {
        item.value.id: sorted((kv.value.slot, kv.value.member) for kv in assigned)
        for item, assigned in zip(state.items, state.assignments, strict=True)
    }


def is_settled(root: str, members: Iterable[str], view: View) -> bool:
    """Every item has its replicas on living members, in slots from 0, and over two zones where it has two."""
    state, living = state_of(root, view), set(members)
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


async def settled(root: str, watch: Watch, members: Iterable[Member], items: int) -> View:
    ids = [member.id for member in members]
    return await watch.wait_until(
        lambda view: len(held(root, view)) == items and is_settled(root, ids, view), PATIENCE_S
    )


async def put_items(etcd: EtcdClient, root: str, numbers: Iterable[int], replication: int) -> int:
    """As many at one revision as etcd takes. Returns the last one."""
    revision = 0
    puts = [Put(item_key(root, f"item/{at:04d}"), ItemSpec(replication).encode()) for at in numbers]
    for begin in range(0, len(puts), OPERATIONS_MAX):
        committed = await etcd.commit(Transaction((), tuple(puts[begin : begin + OPERATIONS_MAX])))
        revision = committed.header.revision
    return revision


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "allocator.allocate" and what in record.message]


async def test_items_are_assigned_and_follow_members_that_come_drain_and_die(etcd: EtcdClient, prefix: str) -> None:
    async with members_of(etcd, prefix, "zone-a#first", "zone-a#second", "zone-b#third") as members:
        first, second, third = members
        await put_items(etcd, prefix, range(9), 2)
        await settled(prefix, third.watch, members, 9)

        async with member_of(etcd, prefix, "zone-b", "fourth") as fourth:
            assert await first.drain(prefix), "the leader drains itself"
            view = await settled(prefix, fourth.watch, [second, third, fourth], 9)
            assert first.id not in {holder for holders in held(prefix, view).values() for _, holder in holders}

            second.running.cancel()
            await etcd.revoke_lease(second.membership.lease_id)
            await settled(prefix, fourth.watch, [third, fourth], 9)

            await etcd.delete(item_key(prefix, "item/0004"))
            await settled(prefix, fourth.watch, [third, fourth], 8)


async def test_an_item_stays_in_the_zones_it_is_allowed(etcd: EtcdClient, prefix: str) -> None:
    async with members_of(etcd, prefix, "zone-a#one", "zone-b#two", "zone-b#three") as members:
        await etcd.put(item_key(prefix, "item/bound"), ItemSpec(2, frozenset({"zone-b"})).encode())
        view = await members[2].watch.wait_until(
            lambda view: len(held(prefix, view).get("item/bound", [])) == 2, PATIENCE_S
        )
        assert {holder.split("#")[0] for _, holder in held(prefix, view)["item/bound"]} == {"zone-b"}


async def test_all_members_but_as_many_as_an_item_needs_exit_at_once(etcd: EtcdClient, prefix: str) -> None:
    names = [f"zone-{'ab'[at % 2]}#m{at}" for at in range(6)]
    async with members_of(etcd, prefix, *names) as members:
        await put_items(etcd, prefix, range(20), 2)
        await settled(prefix, members[5].watch, members, 20)
        seen: list[int] = []

        def fewest(view: View) -> None:
            seen.append(min(len(holders) for holders in held(prefix, view).values()))

        members[5].watch.observe(lambda update: fewest(update.view))
        assert all(await asyncio.gather(*(member.drain(prefix) for member in members[:4])))
        await settled(prefix, members[5].watch, members[4:], 20)
        assert min(seen) == 2, "no item was ever without its replicas"


async def test_a_member_hands_over_what_it_can_and_does_not_wait_for_what_nobody_in_its_zones_takes(
    etcd: EtcdClient, prefix: str
) -> None:
    async with members_of(etcd, prefix, "zone-a#one", "zone-a#two", "zone-b#three") as members:
        await put_items(etcd, prefix, range(9), 1)
        await etcd.put(item_key(prefix, "item/bound"), ItemSpec(2, frozenset({"zone-a"})).encode())
        await members[2].watch.wait_until(lambda view: len(held(prefix, view).get("item/bound", [])) == 2, PATIENCE_S)
        await members[2].watch.wait_until(lambda view: len(held(prefix, view)) == 10, PATIENCE_S)
        assert await members[0].drain(prefix), "it has not waited for somebody to come"
        staying = {member.id for member in members[1:]}
        view = await members[2].watch.wait_until(
            lambda view: all({holder for _, holder in of} <= staying for of in held(prefix, view).values()), PATIENCE_S
        )
        assert len(held(prefix, view)) == 10


async def test_a_member_does_not_wait_for_others_that_take_nothing(etcd: EtcdClient, prefix: str) -> None:
    async with (
        member_of(etcd, prefix, "zone-a", "only") as member,
        member_of(etcd, prefix, "zone-a", "closed", limit=0) as closed,
    ):
        await put_items(etcd, prefix, range(3), 1)
        await settled(prefix, closed.watch, [member, closed], 3)
        assert await member.drain(prefix)


# What strangers write.


async def test_keys_and_values_that_are_none_of_the_clusters_are_passed_over(etcd: EtcdClient, prefix: str) -> None:
    async with member_of(etcd, prefix, "zone-a", "only") as member:
        await etcd.put(item_key(prefix, "item/bad"), GARBAGE)
        await etcd.put(f"{prefix}/assign/item/bad#{member.id}#0", b"")
        await etcd.put(f"{prefix}/elsewhere/x", b"")
        await etcd.put(f"{prefix}/assign/item/ghost#zone-x#gone#0", b"")
        await etcd.put(f"{prefix}/assign/item/0000#zone-x#gone#0", GARBAGE)
        await put_items(etcd, prefix, range(3), 1)
        view = await settled(prefix, member.watch, [member], 3)
        assert held(prefix, view) == {f"item/000{at}": [(0, member.id)] for at in range(3)}
        assigned = [kv.value.item for kv in view.key_values if isinstance(kv.value, Assignment)]
        assert assigned.count("item/bad") == 1, "an item that cannot be read is still there, and keeps what it has"


@pytest.mark.parametrize("spoilt", ["item", "assignment", "member", "leader"])
async def test_a_value_that_can_no_longer_be_read_holds_nothing_up(
    etcd: EtcdClient, prefix: str, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All goes on with the one before: the item itself, and all that share transactions with it."""
    async with members_of(etcd, prefix, "zone-a#first", "zone-a#second", "zone-b#third", "zone-b#fourth") as members:
        await put_items(etcd, prefix, range(4), 2)
        view = await settled(prefix, members[0].watch, members, 4)
        leaving = members[1]
        assigned = chain.from_iterable(state_of(prefix, view).assignments)
        assignment = next(kv for kv in assigned if kv.value.member == leaving.id)
        key = {
            "item": item_key(prefix, assignment.value.item),
            "assignment": assignment.key,
            "member": members[2].membership.key,
            "leader": members[0].membership.key,
        }[spoilt]
        known = await etcd.get(key)
        assert known is not None
        await etcd.put(key, GARBAGE, known.lease)
        await put_items(etcd, prefix, range(4, 8), 2)
        assert await leaving.drain(prefix)
        await settled(prefix, members[0].watch, [members[0], *members[2:]], 8)
        assert not said(caplog, "overtaken")


async def test_a_leader_whose_key_has_lost_its_lease_no_longer_leads(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with members_of(etcd, prefix, "zone-a#first", "zone-a#second") as (first, second):
        await etcd.put(first.membership.key, GARBAGE)
        await put_items(etcd, prefix, range(3), 1)
        await settled(prefix, second.watch, [second], 3)
        [record] = [each for each in said(caplog, "standing") if Standing.UNREADABLE.value in str(vars(each))]
        assert first.membership.key in str(vars(record))


async def test_an_assignment_to_nobody_does_not_stop_a_journal(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By the rule of brokers, who wait for everybody. The primary is nobody, and there is no other."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(member_of(etcd, prefix, "zone-a", name, all_agree, is_broker=True))
            for name in ("first", "second", "third")
        ]
        await put_items(etcd, prefix, range(4), 2)
        view = await settled(prefix, members[0].watch, members, 4)
        strangers = [f"{prefix}/assign/item/000{at}#zone-x#gone#{at}" for at in range(3)]
        for key in strangers:
            await etcd.put(key, b"")
        doubled = next(kv for kv in view.key_values if isinstance(kv.value, Assignment))
        await etcd.put(f"{doubled.key.rpartition('#')[0]}#+7", b"", doubled.lease)
        assert await members[2].drain(prefix), "every journal can still move"
        view = await settled(prefix, members[0].watch, members[:2], 4)
        assert not state_of(prefix, view).strangers
        about = [record for record in said(caplog, "unknown member") if strangers[0] in str(vars(record))]
        assert len(about) == 1, "it is said once, and not in every round"


# What the leader's own transactions meet.


async def test_a_change_that_is_overtaken_does_not_stop_those_beside_it(
    etcd: EtcdClient, prefix: str, shared_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    overtaken = item_key(prefix, "item/0002")
    is_armed = False

    def rule(item: Item[ItemSpec], assigned: Assigned) -> list[bool]:
        nonlocal is_armed
        if is_armed and item.id == "item/0002":
            is_armed = False
            # Between the leader's look at the keys and its transaction.
            shared_etcd.put(overtaken, ItemSpec(1).encode().decode())
        return in_order(item, assigned)

    async with (
        member_of(etcd, prefix, "zone-a", "first", rule) as first,
        member_of(etcd, prefix, "zone-a", "second") as second,
    ):
        await put_items(etcd, prefix, range(5), 2)
        await settled(prefix, first.watch, [first, second], 5)
        is_armed = True
        caplog.clear()
        await first.watch.wait_revision(await put_items(etcd, prefix, range(5), 1), PATIENCE_S)
        await settled(prefix, first.watch, [first, second], 5)
        assert not is_armed
        items = [vars(record)["items"] for record in said(caplog, "overtaken")]
        assert items == [[f"item/000{at}" for at in range(5)], ["item/0002"]]


async def test_room_that_was_not_freed_after_all_is_not_taken(
    etcd: EtcdClient, prefix: str, shared_etcd: EtcdServer
) -> None:
    old, new, is_armed = item_key(prefix, "item/0000"), item_key(prefix, "item/0001"), False

    def rule(item: Item[ItemSpec], assigned: Assigned) -> list[bool]:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            shared_etcd.put(old, ItemSpec(0).encode().decode())
        return in_order(item, assigned)

    async with member_of(etcd, prefix, "zone-a", "only", rule, limit=1) as member:
        await put_items(etcd, prefix, [0], 1)
        await settled(prefix, member.watch, [member], 1)
        totals: list[int] = []
        member.watch.observe(lambda update: totals.extend(state_of(prefix, update.view).totals))
        is_armed = True
        await etcd.commit(Transaction((), (Put(old, ItemSpec(0).encode()), Put(new, ItemSpec(1).encode()))))
        await settled(prefix, member.watch, [member], 2)
        assert not is_armed
        assert max(totals) == 1, "the member never held more than its limit"


async def test_a_leader_whose_own_key_has_changed_looks_again_before_it_does_anything(
    etcd: EtcdClient, prefix: str, shared_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Since it may no longer be one. Nothing is tried item by item that cannot succeed."""
    caplog.set_level(logging.INFO)
    own_key, is_armed = member_key(prefix, "zone-a", "first"), False

    def rule(item: Item[ItemSpec], assigned: Assigned) -> list[bool]:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            key, value = (base64.b64encode(each).decode() for each in (own_key.encode(), MemberSpec(LIMIT).encode()))
            shared_etcd.call("kv/put", key=key, value=value, ignore_lease=True)
        return in_order(item, assigned)

    async with (
        member_of(etcd, prefix, "zone-a", "first", rule) as first,
        member_of(etcd, prefix, "zone-a", "second") as second,
    ):
        await put_items(etcd, prefix, range(100), 2)
        await settled(prefix, first.watch, [first, second], 100)
        is_armed = True
        await first.watch.wait_revision(await put_items(etcd, prefix, range(100), 1), PATIENCE_S)
        await settled(prefix, first.watch, [first, second], 100)
        assert not is_armed
        assert len(said(caplog, "overtaken")) == 1


async def test_a_change_that_etcd_refuses_does_not_stop_those_beside_it(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A value so large that it can be put, but not moved: then the request is beyond what etcd takes."""
    async with member_of(etcd, prefix, "zone-a", "only") as member:
        big = f"{prefix}/assign/item/0001#{member.id}#5"
        # Nobody may hold it, so that it is the test that gives it to somebody.
        await etcd.put(item_key(prefix, "item/0001"), ItemSpec(1, frozenset({"nowhere"})).encode())
        await etcd.put(big, bytes(1536 * 1024 - len(big) - 64), member.membership.lease_id)
        await put_items(etcd, prefix, range(3), 1)
        small = {f"item/000{at}": [(0, member.id)] for at in (0, 2)}
        await member.watch.wait_until(lambda view: small.items() <= held(prefix, view).items(), PATIENCE_S)
        await put_items(etcd, prefix, range(3, 5), 1)
        small |= {f"item/000{at}": [(0, member.id)] for at in (3, 4)}
        view = await member.watch.wait_until(lambda view: small.items() <= held(prefix, view).items(), PATIENCE_S)
        assert held(prefix, view)["item/0001"] == [(5, member.id)]
        await etcd.delete(big)
        await settled(prefix, member.watch, [member], 5)
        [record] = said(caplog, "refuses")
        assert "item/0001" in str(vars(record))


async def test_an_answer_that_is_lost_changes_nothing_in_the_end(
    etcd: EtcdClient, prefix: str, shared_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        client_of(proxy.endpoint) as client,
        member_of(client, prefix, "zone-a", "first") as first,
        member_of(etcd, prefix, "zone-b", "second") as second,
    ):
        await settled(prefix, first.watch, [first, second], 0)
        proxy.lost_answers.add("/etcdserverpb.KV/Txn")
        await put_items(etcd, prefix, range(5), 2)
        await settled(prefix, first.watch, [first, second], 5)
        await eventually(lambda: bool(said(caplog, "step failed")), "a step to fail")
        await put_items(etcd, prefix, range(5, 8), 2)
        await settled(prefix, second.watch, [first, second], 8)
        assert not proxy.lost_answers


@pytest.mark.parametrize("is_lost", [True, False], ids=["answer lost", "answered"])
async def test_what_a_holder_wrote_is_not_taken_from_it_by_a_leader_that_is_blind(
    etcd: EtcdClient,
    prefix: str,
    shared_etcd: EtcdServer,
    is_lost: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its watch says nothing more, and it cannot see the assignment that it has added. To add it again would be to put
    an empty value in place of the holder's."""
    monkeypatch.setattr(allocate, "CATCH_UP_S", 0.1)
    transact = "/etcdserverpb.KV/Txn"
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        client_of(proxy.endpoint) as client,
        member_of(client, prefix, "zone-a", "first") as first,
    ):
        await settled(prefix, first.watch, [first], 0)
        proxy.muffled.add(transact)
        if is_lost:
            proxy.lost_answers.add(transact)
        await put_items(etcd, prefix, [0], 1)
        key = f"{prefix}/assign/item/0000#{first.id}#0"
        await eventually(lambda: not proxy.muffled, "the answer to be muffled")
        async with asyncio.timeout(PATIENCE_S):
            while await etcd.get(key) is None:
                continue
        await etcd.commit(Transaction((), (Put(key, b"in order", KEEP_LEASE),)))
        # It has had every reason to look again.
        await eventually(lambda: len(said(caplog, "not seen yet")) > 1, "the leader to say so twice")
        proxy.flowing.set()
        await settled(prefix, first.watch, [first], 1)
        stored = await etcd.get(key)
        assert stored is not None
        assert (stored.raw, stored.version) == (b"in order", 2)


async def test_the_leader_of_etcd_is_lost(tmp_path: Path) -> None:
    prefix = "/root"
    with etcd_cluster(tmp_path) as cluster:
        leader = cluster.leader()
        others = [member.endpoint for member in cluster.members if member is not leader]
        async with (
            client_of(leader.endpoint, *others) as etcd,
            members_of(etcd, prefix, "zone-a#first", "zone-a#second", "zone-b#third") as members,
        ):
            await put_items(etcd, prefix, range(20), 2)
            leader.kill()
            while True:
                try:
                    await put_items(etcd, prefix, range(20, 40), 2)
                    break
                except EtcdUnavailableError:
                    continue
            await settled(prefix, members[2].watch, members, 40)
            await asyncio.to_thread(leader.start)
            assert await members[0].drain(prefix)
            await settled(prefix, members[2].watch, members[1:], 40)


async def test_large_clusters_are_planned_beside_the_event_loop(etcd: EtcdClient, prefix: str) -> None:
    planners: set[threading.Thread] = set()

    def rule(item: Item[ItemSpec], assigned: Assigned) -> list[bool]:
        planners.add(threading.current_thread())
        return in_order(item, assigned)

    async with (
        member_of(etcd, prefix, "zone-a", "first", rule) as first,
        member_of(etcd, prefix, "zone-b", "second", rule) as second,
    ):
        await put_items(etcd, prefix, range(OFF_LOOP_ITEMS + 100), 1)
        await settled(prefix, first.watch, [first, second], OFF_LOOP_ITEMS + 100)
        planners.clear()
        await first.watch.wait_revision(await put_items(etcd, prefix, range(20), 2), PATIENCE_S)
        await settled(prefix, first.watch, [first, second], OFF_LOOP_ITEMS + 100)
        assert planners
        assert threading.main_thread() not in planners


async def test_an_item_that_cannot_be_judged_stops_no_other(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = False

    def rule(item: Item[ItemSpec], assigned: Assigned) -> list[bool]:
        if is_broken and item.id == "item/0001":
            raise LookupError("its status makes no sense")
        if is_broken and item.id == "item/0002":
            return []
        return in_order(item, assigned)

    async with (
        member_of(etcd, prefix, "zone-a", "first", rule) as first,
        member_of(etcd, prefix, "zone-a", "second") as second,
    ):
        await put_items(etcd, prefix, range(4), 1)
        await settled(prefix, first.watch, [first, second], 4)
        is_broken = True
        for at in (0, 3):
            # In several rounds.
            await put_items(etcd, prefix, [1, 2, at], 2)
            await first.watch.wait_until(lambda view: len(held(prefix, view)[f"item/000{at}"]) == 2, PATIENCE_S)  # noqa: B023
        assert [len(held(prefix, first.watch.view)[f"item/000{at}"]) for at in range(4)] == [2, 1, 1, 2]
        is_broken = False
        await put_items(etcd, prefix, [4], 1)
        await settled(prefix, first.watch, [first, second], 5)
        raised, short = said(caplog, "cannot be judged")
        assert "LookupError: its status makes no sense" in str(vars(raised))
        assert "0 answers about 1 assignments" in str(vars(short))


async def test_only_the_leader_tells_of_the_cluster_and_only_while_it_is_one(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def gauges() -> list[float]:
        names = ("items", "members", "desired_replication_slots")
        return [metric(f"gazette_allocator_{name}") for name in names]

    async with member_of(etcd, prefix, "zone-a", "first") as first:
        await put_items(etcd, prefix, range(3), 1)
        await eventually(lambda: gauges() == [3, 1, 3], "the gauges to tell of it")
        await etcd.delete(first.membership.key)
        await eventually(lambda: gauges() == [0, 0, 0], "the gauges to be zero")
        standings = [vars(record)["what"] for record in said(caplog, "standing")]
        assert standings == [Standing.LEADS.value, Standing.ABSENT.value]
        async with member_of(etcd, prefix, "zone-a", "second") as second:
            await eventually(lambda: gauges() == [3, 1, 3], "the gauges to tell of it")
            second.running.cancel()
            await eventually(lambda: gauges() == [0, 0, 0], "the gauges to be zero")
