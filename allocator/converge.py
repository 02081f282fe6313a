"""Takes a cluster from its present assignment to the desired one, a safe step at a time.

A step is what can be done now, for each item, without ever leaving it fewer replicas in order than it needs. What came
of it shows in the next State, from which the next step follows: nothing is remembered in between, so a leader may stop
anywhere and another take over. A step without transactions is the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, NamedTuple

from allocator.key_value import KeyValue, ValueT
from allocator.keys import Assignment, Item, items_prefix, slot_key
from allocator.solve import Desired
from allocator.state import AssignmentT, ItemT, MemberT, State
from allocator.transaction import COMPARES_MAX, OPERATIONS_MAX, Compare, Delete, Put, Target, Transaction

Consistent = Callable[[Item[ItemT], Sequence[KeyValue[Assignment[AssignmentT]]]], Sequence[bool]]
"""Which of all the assignments of an item are in order: their holders have caught up with the latest of them."""

# Of one item in one step, since its changes are never split between transactions. No sane cluster gets near either.
_ADDED_MAX, _REMOVED_MAX = 32, 64


def converge(
    state: State[ItemT, MemberT, AssignmentT], desired: Desired, consistent: Consistent[ItemT, AssignmentT]
) -> list[Transaction]:
    """The next step. Each transaction holds only while all it is based on is as it was, our leadership included."""
    if state.leader is None:
        return []
    batch = _Batch(_unchanged(state.leader))
    step = _Step(state, consistent)
    for change in step.changes(desired):
        batch.add(change)
    return batch.finish()


@dataclass(slots=True)
class _Change:
    """What is done about one item: all of it happens, or none."""

    compares: list[Compare] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)


class _Batch:
    """Puts changes together into transactions, each with the comparison that is common to all."""

    def __init__(self, common: Compare) -> None:
        self._full: list[Transaction] = []
        self._common = common
        self._compares = [common]
        self._operations: list[Put | Delete] = []

    def add(self, change: _Change) -> None:
        compares, operations = len(change.compares), len(change.operations)
        if len(self._compares) + compares > COMPARES_MAX or len(self._operations) + operations > OPERATIONS_MAX:
            self._flush()
        self._compares += change.compares
        self._operations += change.operations

    def finish(self) -> list[Transaction]:
        self._flush()
        return self._full

    def _flush(self) -> None:
        if self._operations:
            self._full.append(Transaction(tuple(self._compares), tuple(self._operations)))
        self._compares, self._operations = [self._common], []


class _Replica(NamedTuple, Generic[AssignmentT]):
    kv: KeyValue[Assignment[AssignmentT]]
    is_consistent: bool

    @property
    def member(self) -> str:
        return self.kv.value.member

    @property
    def slot(self) -> int:
        return self.kv.value.slot


class _Step(Generic[ItemT, MemberT, AssignmentT]):
    def __init__(self, state: State[ItemT, MemberT, AssignmentT], consistent: Consistent[ItemT, AssignmentT]) -> None:
        self._state = state
        self._consistent = consistent
        # Most of a large step is adding, and all that add to a member compare the same.
        self._same_member = [_unchanged(kv) for kv in state.members]
        # As they are once this step is done, so that what is decided for one item counts for those after it.
        self._totals = list(state.totals)
        self._primaries = list(state.primaries)

    def changes(self, desired: Desired) -> Iterator[_Change]:
        """In the order of items, be they alive or dead."""
        dead = list(reversed(self._state.dead))
        for at, item in enumerate(self._state.items):
            while dead and dead[-1][0].value.item < item.value.id:
                yield from self._bury(dead.pop())
            wanted = desired.get(item.value.id, ())
            if not _is_settled(self._state.assignments[at], wanted):
                yield self._change(at, item, wanted)
        while dead:
            yield from self._bury(dead.pop())

    def _change(self, at: int, item: KeyValue[Item[ItemT]], wanted: tuple[str, ...]) -> _Change:
        assigned = self._state.assignments[at]
        replicas = [
            _Replica(kv, is_consistent)
            for kv, is_consistent in zip(assigned, self._consistent(item.value, assigned), strict=True)
        ]
        removed = self._removable(replicas, wanted, self._state.replication[at])
        kept = self._primary_first([replica for replica in replicas if replica not in removed])
        added = self._addable(replicas, wanted)

        change = _Change()
        for slot, member in added:
            self._add(change, item.value.id, member, slot)
        if removed:
            change.compares.append(_unchanged(item))
        for replica in removed:
            self._remove(change, replica)
        if kept and kept[0].slot != 0:
            self._move(change, kept[0], 0)
        if not added and not removed:
            # One at a time: a primary has to tell its replicas of every change.
            for slot, replica in enumerate(kept[1:], 1):
                if replica.slot != slot:
                    self._move(change, replica, slot)
                    break
        return change

    def _addable(self, replicas: list[_Replica[AssignmentT]], wanted: tuple[str, ...]) -> list[tuple[int, str]]:
        """Members to add, with slots beyond all in use. Those without room keep theirs free, and may have it later."""
        holders = {replica.member for replica in replicas}
        next_slot = 1 + max((replica.slot for replica in replicas), default=-1)
        missing = enumerate((member for member in wanted if member not in holders), next_slot)
        return [(slot, member) for slot, member in missing if self._has_room(member)][:_ADDED_MAX]

    def _removable(
        self, replicas: list[_Replica[AssignmentT]], wanted: tuple[str, ...], replication: int
    ) -> list[_Replica[AssignmentT]]:
        """Those not wanted that the item can do without, the most loaded members' first."""
        leaving, stays = [], set()
        for replica in replicas:
            if replica.member in wanted and replica.member not in stays:
                stays.add(replica.member)
            else:
                leaving.append(replica)
        leaving.sort(key=lambda replica: self._ratio(self._totals, replica.member), reverse=True)
        consistent = sum(replica.is_consistent for replica in replicas)
        removed: list[_Replica[AssignmentT]] = []
        for replica in leaving[:_REMOVED_MAX]:
            if consistent - replica.is_consistent < replication:
                break
            consistent -= replica.is_consistent
            removed.append(replica)
        return removed

    def _primary_first(self, kept: list[_Replica[AssignmentT]]) -> list[_Replica[AssignmentT]]:
        """By slot, led by the primary or whoever makes the best one: in order, and the primary of the least."""
        kept.sort(key=lambda replica: replica.slot)
        best = min(
            kept,
            key=lambda replica: (
                replica.slot != 0,
                not replica.is_consistent,
                self._ratio(self._primaries, replica.member),
            ),
            default=None,
        )
        return [] if best is None else [best, *(replica for replica in kept if replica is not best)]

    def _has_room(self, member: str) -> bool:
        at = self._state.position.get(member)
        return at is not None and self._totals[at] < self._state.limits[at]

    def _ratio(self, counts: Sequence[int], member: str) -> float:
        """How much of what a member can take it has. Nobody is loaded more than one that should have nothing."""
        at = self._state.position.get(member)
        if at is None:
            return sys.float_info.max
        return counts[at] / self._state.limits[at] if self._state.limits[at] else inf

    def _add(self, change: _Change, item: str, member: str, slot: int) -> None:
        at = self._state.position[member]
        change.compares.append(self._same_member[at])
        lease = self._state.members[at].lease
        change.operations.append(Put(slot_key(self._state.root, item, member, slot), b"", lease))
        self._count(member, 1, slot)

    def _remove(self, change: _Change, replica: _Replica[AssignmentT]) -> None:
        change.compares.append(_unchanged(replica.kv))
        change.operations.append(Delete(replica.kv.key))
        self._count(replica.member, -1, replica.slot)

    def _move(self, change: _Change, replica: _Replica[AssignmentT], slot: int) -> None:
        """The value goes along, and so does the lease: to the member it is one assignment all the time."""
        kv = replica.kv
        change.compares.append(_unchanged(kv))
        change.operations.append(Delete(kv.key))
        change.operations.append(Put(slot_key(self._state.root, kv.value.item, replica.member, slot), kv.raw, kv.lease))
        self._count(replica.member, -1, replica.slot)
        self._count(replica.member, 1, slot)

    def _count(self, member: str, by: int, slot: int) -> None:
        at = self._state.position.get(member)
        if at is not None:
            self._totals[at] += by
            if slot == 0:
                self._primaries[at] += by

    def _bury(self, assignments: Sequence[KeyValue[Assignment[AssignmentT]]]) -> Iterator[_Change]:
        """An item is gone, and so should its assignments be, unless it comes back first."""
        key = items_prefix(self._state.root) + assignments[0].value.item
        for begin in range(0, len(assignments), _REMOVED_MAX):
            part = assignments[begin : begin + _REMOVED_MAX]
            yield _Change([Compare(key, Target.CREATE, 0), *map(_unchanged, part)], [Delete(kv.key) for kv in part])


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
