"""The leader's loop: whoever is the oldest member takes the cluster, step by step, to its desired assignment.

Every member runs it and only the leader acts. Nobody is elected and nothing is locked: each transaction holds only
while the leader's own key is as it was, so one that has been succeeded without knowing it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn, ParamSpec, TypeVar, cast

from prometheus_client import Counter, Gauge, Histogram

from allocator.converge import Consistent, converge
from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError, EtcdRefusedError
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, assignments_prefix, item_key
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch
from allocator.solve import Desired, desired_assignment
from allocator.state import AssignmentT, ItemT, MemberT, State, leader_of, members_of
from allocator.transaction import Delete, Put, Transaction

OFF_LOOP_ITEMS = 2000
"""From so many keys on, planning goes to a thread: it takes long enough to delay keep-alives and requests."""
CATCH_UP_S = 10.0
"""How long a leader waits to see its own transactions before it looks again anyway."""
PAUSE_S = 1.0

log = logging.getLogger(__name__)

CONVERGED = Counter("gazette_allocator_converge", "Rounds in which the leader looked for changes to make")
ADDED = Counter("gazette_allocator_assignment_added", "Assignments that the leader added")
REMOVED = Counter("gazette_allocator_assignment_removed", "Assignments that the leader removed")
PACKED = Counter("gazette_allocator_assignment_packed", "Assignments that the leader moved to another slot")
SOLVED = Histogram("gazette_allocator_max_flow_runtime_seconds", "How long it took to find a desired assignment")
ITEMS = Gauge("gazette_allocator_items", "Items, as the leader sees them")
MEMBERS = Gauge("gazette_allocator_members", "Members, as the leader sees them")
SLOTS = Gauge("gazette_allocator_desired_replication_slots", "Replicas that all items want together")

P = ParamSpec("P")
T = TypeVar("T")


class Allocator(Generic[ItemT, MemberT, AssignmentT]):
    def __init__(
        self,
        etcd: EtcdClient,
        keyspace: KeySpaceWatch[Entity[ItemT, MemberT, AssignmentT]],
        root: str,
        own_key: str,
        consistent: Consistent[ItemT, AssignmentT],
    ) -> None:
        """`own_key` is that of this process as a member; `consistent` says which replicas are in order."""
        self._etcd = etcd
        self._keyspace = keyspace
        self._root = root
        self._own_key = own_key
        self._consistent = consistent
        # What was desired the last time, and of which constraints that was the answer.
        self._desired: Desired = {}
        self._solved_for: int | None = None

    async def run(self) -> NoReturn:
        """Run until cancelled."""
        while True:
            view = self._keyspace.view
            try:
                revision = await self._step(view) if self._leads(view) else None
            except EtcdError as error:
                log.warning("allocation step failed (will retry)", extra={"error": str(error)})
                await asyncio.sleep(PAUSE_S)
                continue
            if revision is None:
                await self._keyspace.wait_change(view, None)
            else:
                await self._catch_up(revision)

    def _leads(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> bool:
        leader = leader_of(members_of(self._root, view.key_values))
        return leader is not None and leader.key == self._own_key

    async def _step(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> int | None:
        """Do what can be done now; the revision of the last change that took effect, None if there was none."""
        is_large = len(view.key_values) > OFF_LOOP_ITEMS
        transactions = await _planned(is_large, self._plan, view)
        revision = None
        for transaction in transactions:
            try:
                committed = await self._etcd.commit(transaction)
            except EtcdRefusedError as error:
                # Not an outage: it would be refused again. The others are about other items.
                log.error(
                    "etcd refused a step of the allocation (its items stay as they are)", extra={"error": str(error)}
                )
                continue
            if not committed.succeeded:
                # Somebody changed what it was based on. What that was, the next view tells; the revision of this
                # answer may lie outside of the key space, and is not one to wait for.
                log.info("allocation was overtaken by another change", extra={"revision": committed.header.revision})
                continue
            revision = committed.header.revision
            _count(transaction)
        return revision

    def _plan(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> list[Transaction]:
        state = State.of(self._root, view.key_values)
        if state.network_hash != self._solved_for:
            with SOLVED.time():
                self._desired, self._solved_for = desired_assignment(state), state.network_hash
        CONVERGED.inc()
        ITEMS.set(len(state.items))
        MEMBERS.set(len(state.members))
        SLOTS.set(state.item_slots)
        return converge(state, self._desired, self._consistent)

    async def _catch_up(self, revision: int) -> None:
        try:
            await self._keyspace.wait_revision(revision, CATCH_UP_S)
        except TimeoutError:
            log.warning("own changes are not seen yet (will look again)", extra={"revision": revision})


def is_drained(root: str, member: str, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> bool:
    """Whether no item that exists is assigned to `member`, who may then leave."""
    assigned = cast(Sequence[KeyValue[Assignment[AssignmentT]]], view.prefixed(assignments_prefix(root)))
    held = (kv.value.item for kv in assigned if kv.value.member == member)
    return all(view.get(item_key(root, item)) is None for item in held)


async def _planned(is_large: bool, plan: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(plan, *args, **kwargs) if is_large else plan(*args, **kwargs)


def _count(transaction: Transaction) -> None:
    """What is deleted and put again, but for its slot, was moved."""
    put = {_without_slot(operation.key) for operation in transaction.operations if isinstance(operation, Put)}
    deleted = {_without_slot(operation.key) for operation in transaction.operations if isinstance(operation, Delete)}
    ADDED.inc(len(put - deleted))
    PACKED.inc(len(put & deleted))
    REMOVED.inc(len(deleted - put))


def _without_slot(key: str) -> str:
    return key.rpartition("#")[0]
