"""Takes a cluster from its present assignment to the desired one, a safe step at a time.

A step is what can be done now, for each item, without ever leaving it fewer replicas in order than it needs. What came
of it shows in the next State, from which the next step follows: nothing is remembered in between, so a leader may stop
anywhere and another take over. A step without transactions is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple

from allocator.key_value import KeyValue, ValueT
from allocator.keys import Assignment, Item, holder, items_prefix, members_prefix, slot_key
from allocator.member_loads import MemberLoads
from allocator.solve import Desired
from allocator.state import AssignmentT, ItemT, MemberT, State
from allocator.transaction import COMPARES_MAX, OPERATIONS_MAX, Compare, Delete, Put, Target, Transaction

Consistent = Callable[[Item[ItemT], Sequence[KeyValue[Assignment[AssignmentT]]]], Sequence[bool] | None]
"""Which of the assignments of an item are in order: their holders have caught up with the latest of them.

It is asked about members that exist, once about each, if an item has any assignment. None is that it cannot be told:
then the item stays as it is."""

# Of one item in one step, since its changes are never split between transactions. No sane cluster gets near either.
_ADDED_MAX, _REMOVED_MAX = 32, 40
# Slots are packed as soon as may be, so that none in use is near it. One that is has been written by a stranger, and to
# count on from there would be to leave the numbers that all members can read.
_SLOT_MAX = 1 << 31


def converge(
    state: State[ItemT, MemberT, AssignmentT], desired: Desired, consistent: Consistent[ItemT, AssignmentT]
) -> list[Batch]:
    """The next step. Each transaction holds only while all it is based on is as it was, our leadership included."""
    if state.leader is None:
        return []
    batching = _Batching(_unchanged(state.leader))
    for change in _Step(state, consistent).changes(desired):
        if change.operations:
            batching.add(change)
    return batching.finish()


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that go to etcd together, since that is faster. If they fail together, each is to be tried by itself."""

    # That we lead, which all depend on.
    leadership: Compare
    changes: Sequence[Change]

    @property
    def transaction(self) -> Transaction:
        compares = chain.from_iterable([change.compares for change in self.changes])
        operations = chain.from_iterable([change.operations for change in self.changes])
        return Transaction((self.leadership, *compares), tuple(operations))

    def apart(self) -> list[Batch]:
        return [Batch(self.leadership, (change,)) for change in self.changes]

    def without_adding_to(self, members: set[str]) -> Batch:
        """Whatever gives none of `members` more than they have."""
        if not members:
            return self
        return Batch(self.leadership, [change for change in self.changes if not members & change.fills])


@dataclass(slots=True)
class Change:
    """What is done about one item: all of it happens, or none."""

    item: str
    compares: list[Compare] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)

    @property
    def fills(self) -> set[str]:
        """The members that hold more thereafter."""
        return self._members_of(Put) - self._members_of(Delete)

    @property
    def frees(self) -> set[str]:
        """The members that hold less thereafter: what follows may count on their room."""
        return self._members_of(Delete) - self._members_of(Put)

    def _members_of(self, kind: type[Put | Delete]) -> set[str]:
        return {holder(operation.key) for operation in self.operations if isinstance(operation, kind)}


class _Batching:
    """Puts changes together, as many as etcd takes in one transaction."""

    def __init__(self, leadership: Compare) -> None:
        self._full: list[Batch] = []
        self._leadership = leadership
        self._changes: list[Change] = []
        self._compares, self._operations = 1, 0

    def add(self, change: Change) -> None:
        compares, operations = len(change.compares), len(change.operations)
        if self._compares + compares > COMPARES_MAX or self._operations + operations > OPERATIONS_MAX:
            self._flush()
        self._changes.append(change)
        self._compares += compares
        self._operations += operations

    def finish(self) -> list[Batch]:
        self._flush()
        return self._full

    def _flush(self) -> None:
        if self._changes:
            self._full.append(Batch(self._leadership, self._changes))
        self._changes, self._compares, self._operations = [], 1, 0


class _Replica(NamedTuple, Generic[AssignmentT]):
    kv: KeyValue[Assignment[AssignmentT]]
    is_consistent: bool

    @property
    def member(self) -> str:
        return self.kv.value.member

    @property
    def slot(self) -> int:
        return self.kv.value.slot


class _Replicas(NamedTuple, Generic[AssignmentT]):
    """The assignments of an item, by what they are worth."""

    # One of each member that exists.
    sound: list[_Replica[AssignmentT]]
    # Further ones of the same members. None of their holders can say of itself that it is in order while it has two.
    doubles: list[_Replica[AssignmentT]]
    # Of members that are not there or cannot be read. They will not catch up, and others would wait for them in vain.
    strangers: list[_Replica[AssignmentT]]


class _Step(Generic[ItemT, MemberT, AssignmentT]):
    def __init__(self, state: State[ItemT, MemberT, AssignmentT], consistent: Consistent[ItemT, AssignmentT]) -> None:
        self._state = state
        self._consistent = consistent
        # Most of a large step is adding, and all that add to a member compare the same.
        self._same_member = [_unchanged(kv) for kv in state.members]
        # What is decided for one item counts for those after it.
        self._loads = MemberLoads(state)

    def changes(self, desired: Desired) -> Iterator[Change]:
        """In the order of items, be they alive or dead."""
        dead = list(reversed(self._state.dead))
        for at, item in enumerate(self._state.items):
            while dead and dead[-1][0].value.item < item.value.id:
                yield from self._bury(dead.pop())
            wanted, assigned = desired.get(item.value.id, ()), self._state.assignments[at]
            if not assigned:
                yield self._begin(item.value.id, wanted)
            elif not _is_settled(assigned, wanted):
                yield self._change(at, item, wanted)
        while dead:
            yield from self._bury(dead.pop())

    def _begin(self, item: str, wanted: tuple[str, ...]) -> Change:
        """What a large step has most of."""
        change = Change(item)
        for slot, member in self._addable((), wanted):
            self._add(change, member, slot)
        return change

    def _change(self, at: int, item: KeyValue[Item[ItemT]], wanted: tuple[str, ...]) -> Change:
        change = Change(item.value.id)
        assigned, needed = self._state.assignments[at], self._state.replication[at]
        replicas = self._sorted_out(item.value, assigned)
        if replicas is None:
            return change
        added = self._addable(assigned, wanted)
        removed = [*self._unfit(replicas, needed), *self._removable(replicas.sound, wanted, needed)][:_REMOVED_MAX]
        kept = self._primary_first(replicas, removed)

        for slot, member in added:
            self._add(change, member, slot)
        if removed:
            change.compares.append(_unchanged(item))
        for replica in removed:
            self._remove(change, replica)
        # To a key that another assignment has, or had until this step, nothing moves: etcd would refuse the
        # transaction, or the other be lost.
        taken = {kv.key for kv in assigned}
        if kept and kept[0].slot != 0:
            self._move(change, kept[0], 0, taken)
        elif not added and not removed:
            # One at a time: a primary has to tell its replicas of every change.
            for slot, replica in enumerate(kept[1:], 1):
                if replica.slot != slot and self._move(change, replica, slot, taken):
                    break
        return change

    def _sorted_out(
        self, item: Item[ItemT], assigned: Sequence[KeyValue[Assignment[AssignmentT]]]
    ) -> _Replicas[AssignmentT] | None:
        """None if it cannot be told what is in order."""
        position = self._state.position
        known = [kv for kv in assigned if kv.value.member in position]
        strangers: list[_Replica[AssignmentT]] = []
        if len(known) < len(assigned):
            strangers = [_Replica(kv, False) for kv in assigned if kv.value.member not in position]
        doubles: list[_Replica[AssignmentT]] = []
        if len({kv.value.member for kv in known}) < len(known):
            known, doubles = self._without_doubles(item, known)
        consistent = self._consistent(item, known)
        if consistent is None:
            return None
        sound = [_Replica(kv, is_consistent) for kv, is_consistent in zip(known, consistent, strict=True)]
        return _Replicas(sound, doubles, strangers)

    def _without_doubles(
        self, item: Item[ItemT], known: list[KeyValue[Assignment[AssignmentT]]]
    ) -> tuple[list[KeyValue[Assignment[AssignmentT]]], list[_Replica[AssignmentT]]]:
        """Of each member the assignment that is in order, if one can be told to be; else that of the lowest slot."""
        consistent = self._consistent(item, known) or [False] * len(known)

        def rank(pair: tuple[KeyValue[Assignment[AssignmentT]], bool]) -> tuple[bool, bool, int, int]:
            kv, is_consistent = pair
            return not is_consistent, kv.value.slot < 0, kv.value.slot, len(kv.key)

        best: dict[str, str] = {}
        for kv, _ in sorted(zip(known, consistent, strict=True), key=rank):
            best.setdefault(kv.value.member, kv.key)
        kept = [kv for kv in known if best[kv.value.member] == kv.key]
        return kept, [_Replica(kv, False) for kv in known if best[kv.value.member] != kv.key]

    def _addable(
        self, assigned: Sequence[KeyValue[Assignment[AssignmentT]]], wanted: tuple[str, ...]
    ) -> list[tuple[int, str]]:
        """Members to add, with slots beyond all in use. Those without room keep theirs free, and may have it later."""
        holders = {kv.value.member for kv in assigned}
        next_slot = 1 + max((kv.value.slot for kv in assigned if -1 <= kv.value.slot < _SLOT_MAX), default=-1)
        missing = enumerate((member for member in wanted if member not in holders), next_slot)
        return [(slot, member) for slot, member in missing if self._loads.has_room(member)][:_ADDED_MAX]

    def _unfit(self, replicas: _Replicas[AssignmentT], replication: int) -> list[_Replica[AssignmentT]]:
        """Those that go whatever else there is, since nobody counts on them.

        A member whose key is there but cannot be read may well be alive: its assignments go once others have theirs.
        """
        unreadable = self._state.unreadable_members
        is_replaced = len(replicas.sound) >= replication
        gone = [replica for replica in replicas.strangers if is_replaced or replica.member not in unreadable]
        return [*gone, *replicas.doubles]

    def _removable(
        self, replicas: list[_Replica[AssignmentT]], wanted: tuple[str, ...], replication: int
    ) -> list[_Replica[AssignmentT]]:
        """Those not wanted that the item can do without, the most loaded members' first."""
        leaving = [replica for replica in replicas if replica.member not in wanted]
        leaving.sort(key=lambda replica: self._loads.of_all(replica.member), reverse=True)
        consistent = sum(replica.is_consistent for replica in replicas)
        removed: list[_Replica[AssignmentT]] = []
        for replica in leaving:
            if consistent - replica.is_consistent < replication:
                break
            consistent -= replica.is_consistent
            removed.append(replica)
        return removed

    def _primary_first(
        self, replicas: _Replicas[AssignmentT], removed: list[_Replica[AssignmentT]]
    ) -> list[_Replica[AssignmentT]]:
        """What is kept, by slot, led by the primary or whoever makes the best one: in order, and the primary of the
        least. A stranger never becomes one, and what is left of them takes no part in anything."""
        gone = {replica.kv.key for replica in removed}
        if any(replica.slot == 0 and replica.kv.key not in gone for replica in replicas.strangers):
            return []
        kept = [replica for replica in replicas.sound if replica.kv.key not in gone]
        kept.sort(key=lambda replica: replica.slot)
        best = min(
            kept,
            key=lambda replica: (
                replica.slot != 0,
                not replica.is_consistent,
                self._loads.of_primaries(replica.member),
            ),
            default=None,
        )
        return [] if best is None else [best, *(replica for replica in kept if replica is not best)]

    def _add(self, change: Change, member: str, slot: int) -> None:
        at = self._state.position[member]
        change.compares.append(self._same_member[at])
        lease = self._state.members[at].lease
        change.operations.append(Put(slot_key(self._state.root, change.item, member, slot), b"", lease))
        self._loads.add(member, slot)

    def _remove(self, change: Change, replica: _Replica[AssignmentT]) -> None:
        change.compares.append(_unchanged(replica.kv))
        if replica.member not in self._state.position:
            change.compares.append(self._still_a_stranger(replica.member))
        change.operations.append(Delete(replica.kv.key))
        self._loads.remove(replica.member, replica.slot)

    def _still_a_stranger(self, member: str) -> Compare:
        """A member that has just joined is not robbed of what it may hold."""
        key = members_prefix(self._state.root) + member
        revision = self._state.unreadable_members.get(member)
        return Compare(key, Target.CREATE, 0) if revision is None else Compare(key, Target.MOD, revision)

    def _move(self, change: Change, replica: _Replica[AssignmentT], slot: int, taken: set[str]) -> bool:
        """The value goes along, and so does the lease: to the member it is one assignment all the time.

        Whether it does: not to a key that is `taken`.
        """
        kv = replica.kv
        key = slot_key(self._state.root, change.item, replica.member, slot)
        if key in taken:
            return False
        change.compares.append(_unchanged(kv))
        change.operations.append(Delete(kv.key))
        change.operations.append(Put(key, kv.raw, kv.lease))
        self._loads.remove(replica.member, replica.slot)
        self._loads.add(replica.member, slot)
        return True

    def _bury(self, assignments: Sequence[KeyValue[Assignment[AssignmentT]]]) -> Iterator[Change]:
        """An item is gone, and so should its assignments be, unless it comes back first."""
        item = assignments[0].value.item
        absent = Compare(items_prefix(self._state.root) + item, Target.CREATE, 0)
        for begin in range(0, len(assignments), _REMOVED_MAX):
            part = assignments[begin : begin + _REMOVED_MAX]
            yield Change(item, [absent, *map(_unchanged, part)], [Delete(kv.key) for kv in part])


def _is_settled(assigned: Sequence[KeyValue[Assignment[AssignmentT]]], wanted: tuple[str, ...]) -> bool:
    """As nearly all items are nearly always: so this is asked before anything else."""
    if len(assigned) != len(wanted):
        return False
    slots = 0
    for kv, wanted_member in zip(assigned, wanted, strict=True):
        _item, member, slot, _value = kv.value
        if member != wanted_member or not 0 <= slot < len(wanted):
            return False
        slots |= 1 << slot
    return slots == (1 << len(wanted)) - 1


def _unchanged(kv: KeyValue[ValueT]) -> Compare:
    return Compare(kv.key, Target.MOD, kv.mod_revision)
