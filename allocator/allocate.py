"""The leader's loop: whoever is the oldest member takes the cluster, step by step, to its desired assignment.

Every member runs it and only the leader acts. Nobody is elected and nothing is locked: each transaction holds only
while the leader's own key is as it was, so one that has been succeeded without knowing it changes nothing.

No item stops another. What cannot be read, decided or written is said once and left as it is, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NoReturn, ParamSpec, TypeVar, cast

from prometheus_client import Counter, Gauge, Histogram

from allocator.converge import Batch, Consistent, converge
from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import (
    AnswerTooLargeError,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseNotFoundError,
)
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, Member, assignments_prefix, item_key, members_prefix
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch
from allocator.solve import Desired, desired_assignment
from allocator.state import AssignmentT, ItemT, MemberT, State, leader_of, members_of
from allocator.transaction import Delete, Put, Transaction

OFF_LOOP_ITEMS = 2000
"""From so many keys on, planning goes to a thread: it takes long enough to delay keep-alives and requests."""
CATCH_UP_S = 10.0
"""How long a leader waits for what kept its transactions from taking effect before it looks again; and how often it
says that it cannot see those that did."""
PAUSE_S = 1.0

# What may be wrong with one change and not with another. Of these, etcd has done nothing.
_REFUSALS = (EtcdRefusedError, LeaseNotFoundError, AnswerTooLargeError)
_SAID_MAX = 20
_REASON_MAX = 200

log = logging.getLogger(__name__)

CONVERGED = Counter("gazette_allocator_converge", "Rounds in which the leader looked for changes to make")
ADDED = Counter("gazette_allocator_assignment_added", "Assignments that the leader added")
REMOVED = Counter("gazette_allocator_assignment_removed", "Assignments that the leader removed")
PACKED = Counter("gazette_allocator_assignment_packed", "Assignments that the leader moved to another slot")
SOLVED = Histogram("gazette_allocator_max_flow_runtime_seconds", "How long it took to find a desired assignment")
ITEMS = Gauge("gazette_allocator_items", "Items, as the leader sees them")
MEMBERS = Gauge("gazette_allocator_members", "Members, as the leader sees them")
SLOTS = Gauge("gazette_allocator_desired_replication_slots", "Replicas that all items want together")
LACKING = Gauge("gazette_allocator_under_replicated_items", "Items that have fewer assignments than they want")

P = ParamSpec("P")
T = TypeVar("T")


class Standing(Enum):
    """What a member is to the allocation, in words for its log."""

    LEADS = "it leads"
    FOLLOWS = "another member leads"
    UNREADABLE = "its own key in etcd cannot be read, so it does not lead"
    ABSENT = "its own key is gone from etcd, so it does not lead"


@dataclass(slots=True)
class _Outcome:
    """What came of a step."""

    # Whether some changes took effect, and whether some did not.
    is_done: bool = False
    is_held_up: bool = False
    # Members that still hold what they should have given up: others cannot have that room yet.
    unfreed: set[str] = field(default_factory=set)


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
        self._standing: Standing | None = None
        # What was desired the last time, and of which constraints that was the answer.
        self._desired: Desired = {}
        self._solved_for: int | None = None
        # When our own changes last took effect; and a key that one of them puts of which we do not know if it did.
        self._done_at = 0
        self._in_doubt: str | None = None
        self._complaints = _Complaints()

    async def run(self) -> NoReturn:
        """Run until cancelled."""
        try:
            while True:
                await self._look(self._keyspace.view)
        finally:
            if self._standing is Standing.LEADS:
                _clear_gauges()

    async def _look(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> None:
        """Do what there is to do, and wait until there may be more."""
        if self._stand(view) is not Standing.LEADS:
            await self._keyspace.wait_change(view, None)
            return
        try:
            await self._dispel_doubt()
            if view.through < self._done_at:
                await self._catch_up()
                return
            outcome = await self._step(view)
        except EtcdError as error:
            log.warning("allocation step failed (will retry)", extra={"error": str(error)})
            await asyncio.sleep(PAUSE_S)
            return
        except Exception:
            # Whoever took over would trip over the same, and one member after the other would go.
            log.exception("allocation step failed for an unknown reason (will retry)")
            await asyncio.sleep(PAUSE_S)
            return
        if not outcome.is_done:
            await self._rest(view, CATCH_UP_S if outcome.is_held_up else None)

    def _stand(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> Standing:
        standing = self._standing_in(view)
        if standing is not self._standing:
            is_member = standing in (Standing.LEADS, Standing.FOLLOWS)
            level = logging.INFO if is_member else logging.WARNING
            log.log(level, "standing of this member changed", extra={"key": self._own_key, "what": standing.value})
            if self._standing is Standing.LEADS:
                _clear_gauges()
            self._standing = standing
        return standing

    def _standing_in(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> Standing:
        members = members_of(self._root, view.key_values, view.undecodable)
        if all(kv.key != self._own_key for kv in members):
            return Standing.UNREADABLE if self._own_key.encode() in view.undecodable else Standing.ABSENT
        leader = leader_of(members)
        return Standing.LEADS if leader is not None and leader.key == self._own_key else Standing.FOLLOWS

    async def _step(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> _Outcome:
        """Do what can be done now."""
        is_large = len(view.key_values) > OFF_LOOP_ITEMS
        state, batches = await _planned(is_large, self._plan, view)
        CONVERGED.inc()
        ITEMS.set(len(state.items))
        MEMBERS.set(len(state.members))
        SLOTS.set(state.item_slots)
        LACKING.set(state.lacking)
        outcome = _Outcome()
        try:
            await self._carry_out(batches, outcome)
        finally:
            self._complaints.end_round()
        return outcome

    async def _carry_out(self, batches: Iterable[Batch], outcome: _Outcome) -> bool:
        """Whether we still lead."""
        for batch in batches:
            possible = batch.without_adding_to(outcome.unfreed)
            if not possible.changes or await self._commit(possible, outcome):
                continue
            if len(possible.changes) == 1:
                outcome.unfreed |= possible.changes[0].frees
            # One of them has failed, and which is not known. The others are not to suffer for it.
            elif not await self._still_leads(possible) or not await self._carry_out(possible.apart(), outcome):
                return False
        return True

    async def _commit(self, batch: Batch, outcome: _Outcome) -> bool:
        """Whether it took effect."""
        transaction = batch.transaction
        try:
            committed = await self._etcd.commit(transaction)
        except _REFUSALS as error:
            outcome.is_held_up = True
            if len(batch.changes) == 1:
                what = "etcd refuses a change (the item stays as it is)"
                self._complaints.add(what, batch.changes[0].item, str(error))
            return False
        except EtcdUnavailableError as error:
            if error.maybe_applied:
                puts = (operation.key for operation in transaction.operations if isinstance(operation, Put))
                self._in_doubt = next(puts, None)
            raise
        if not committed.succeeded:
            # Somebody changed what it was based on. What that was, the next view tells; the revision of this answer
            # may lie outside of the key space, and is not one to wait for.
            outcome.is_held_up = True
            items = [change.item for change in batch.changes[:_SAID_MAX]]
            log.info("allocation was overtaken by another change", extra={"items": items})
            return False
        self._done_at = committed.header.revision
        outcome.is_done = True
        _count(transaction)
        return True

    async def _still_leads(self, batch: Batch) -> bool:
        """If not, every other change would fail as well, and it may be thousands."""
        own = await self._etcd.get(self._own_key)
        return own is not None and own.mod_revision == batch.leadership.equals

    def _plan(
        self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]
    ) -> tuple[State[ItemT, MemberT, AssignmentT], list[Batch]]:
        state = State.of(self._root, view.key_values, view.undecodable)
        for kv in state.strangers:
            self._complaints.add("an assignment is to an unknown member", kv.key, f"there is no {kv.value.member}")
        for item, reason in state.unusable.items():
            self._complaints.add("an item cannot be assigned (it stays as it is)", item, reason)
        if state.network_hash != self._solved_for:
            with SOLVED.time():
                self._desired, self._solved_for = desired_assignment(state), state.network_hash
        return state, converge(state, self._desired, self._judged)

    def _judged(
        self, item: Item[ItemT], assigned: Sequence[KeyValue[Assignment[AssignmentT]]]
    ) -> Sequence[bool] | None:
        """What is consistent, from a rule that is not ours and is asked about values that are anybody's."""
        try:
            judged = self._consistent(item, assigned)
            if judged is None or len(judged) == len(assigned):
                return judged
            reason = f"{len(judged)} answers about {len(assigned)} assignments"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._complaints.add("the replicas of an item cannot be judged", item.id, reason)
        return None

    async def _dispel_doubt(self) -> None:
        """All of a transaction happened or nothing, so that any key it puts tells which. One that only deletes compares
        what it deletes, and may be tried again."""
        if self._in_doubt is not None:
            stored = await self._etcd.get(self._in_doubt)
            self._in_doubt = None
            if stored is not None:
                self._done_at = max(self._done_at, stored.mod_revision)

    async def _catch_up(self) -> None:
        """Nothing is planned without our own changes in view, however long that takes: to add an assignment a second
        time would be to take from its holder what that has written there."""
        try:
            await self._keyspace.wait_revision(self._done_at, CATCH_UP_S)
        except TimeoutError:
            log.warning("own changes are not seen yet (will wait)", extra={"revision": self._done_at})

    async def _rest(self, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]], timeout_s: float | None) -> None:
        try:
            await self._keyspace.wait_change(view, timeout_s)
        except TimeoutError:
            log.info("some changes did not take effect (will look again)")


class _Complaints:
    """Says what is wrong when that begins, and not in every round that it lasts."""

    def __init__(self) -> None:
        self._lasting: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str], str] = {}

    def add(self, what: str, subject: str, reason: str) -> None:
        self._found[what, subject] = reason[:_REASON_MAX]

    def end_round(self) -> None:
        new = [each for each in self._found if each not in self._lasting]
        for what, subject in new[:_SAID_MAX]:
            log.warning(what, extra={"subject": subject, "reason": self._found[what, subject]})
        if len(new) > _SAID_MAX:
            log.warning("more is wrong with the keys of etcd", extra={"count": len(new) - _SAID_MAX})
        self._lasting, self._found = set(self._found), {}


def may_leave_now(root: str, member: str, view: KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]) -> bool:
    """Whether nothing is left that `member`, who is exiting, could hand over: it has no items, or none of them can be
    taken by anybody, since fewer members that take any stay in its zones than it has replicas."""
    members = cast("Sequence[KeyValue[Member[MemberT]]]", view.prefixed(members_prefix(root)))
    staying = [kv.value.zone for kv in members if kv.value.value.limit and not kv.value.value.exiting]
    assigned = cast("Sequence[KeyValue[Assignment[AssignmentT]]]", view.prefixed(assignments_prefix(root)))
    held = (view.get(item_key(root, kv.value.item)) for kv in assigned if kv.value.member == member)
    items = [cast("KeyValue[Item[ItemT]]", kv).value.value for kv in held if kv is not None]
    return all(item.desired_replication > _count_in(item.zones, staying) for item in items)


def _count_in(zones: frozenset[str] | None, staying: Sequence[str]) -> int:
    return len(staying) if zones is None else sum(zone in zones for zone in staying)


async def _planned(is_large: bool, plan: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(plan, *args, **kwargs) if is_large else plan(*args, **kwargs)


def _clear_gauges() -> None:
    """They are the leader's to tell: what was true under the last one would be counted twice under the next."""
    for gauge in (ITEMS, MEMBERS, SLOTS, LACKING):
        gauge.set(0)


def _count(transaction: Transaction) -> None:
    """What is deleted and put again, but for its slot, was moved."""
    put = {_without_slot(operation.key) for operation in transaction.operations if isinstance(operation, Put)}
    deleted = {_without_slot(operation.key) for operation in transaction.operations if isinstance(operation, Delete)}
    ADDED.inc(len(put - deleted))
    PACKED.inc(len(put & deleted))
    REMOVED.inc(len(deleted - put))


def _without_slot(key: str) -> str:
    return key.rpartition("#")[0]
