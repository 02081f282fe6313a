"""State: a cluster as its leader sees it at one revision, and what follows from that.

All of it is a function of the keys alone, so every member that has the same keys has the same State: they agree on
who leads, and whoever takes over goes on where the last leader stopped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Generic, Protocol, TypeVar, cast

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, Member, assignments_prefix, items_prefix, members_prefix

_by_key = itemgetter(0)


class ItemValue(Protocol):
    """What the allocator has to know of an item."""

    @property
    def desired_replication(self) -> int: ...

    @property
    def zones(self) -> frozenset[str] | None:
        """Where its replicas may be. None is anywhere."""
        ...


class MemberValue(Protocol):
    @property
    def limit(self) -> int:
        """How many assignments it takes, be it as primary or not."""
        ...

    @property
    def exiting(self) -> bool: ...


ItemT = TypeVar("ItemT", bound=ItemValue)
MemberT = TypeVar("MemberT", bound=MemberValue)
AssignmentT = TypeVar("AssignmentT")


@dataclass(frozen=True, slots=True)
class State(Generic[ItemT, MemberT, AssignmentT]):
    root: str
    # Ascending by key, as are items, and the assignments of each.
    members: Sequence[KeyValue[Member[MemberT]]]
    items: Sequence[KeyValue[Item[ItemT]]]
    # Of each item, in the order of items. Their members need not exist.
    assignments: Sequence[Sequence[KeyValue[Assignment[AssignmentT]]]]
    # By item, of those that no longer exist.
    dead: Sequence[Sequence[KeyValue[Assignment[AssignmentT]]]]
    # Where a member is, by its id.
    position: dict[str, int]
    # What is left of each member's limit once it sheds, in the order of members, and of all of them together.
    limits: Sequence[int]
    member_slots: int
    # How many replicas of each item are wanted, in the order of items, and of all of them together.
    replication: Sequence[int]
    item_slots: int
    # Those that could hold anything.
    zones: Sequence[str]
    # How many assignments of items that exist each member has, and of how many it is the primary.
    totals: Sequence[int]
    primaries: Sequence[int]
    # Of all that a desired assignment has to satisfy: while it stays, so does what is desired.
    network_hash: int

    @classmethod
    def of(
        cls, root: str, key_values: Sequence[KeyValue[Entity[ItemT, MemberT, AssignmentT]]]
    ) -> State[ItemT, MemberT, AssignmentT]:
        """`key_values` ascend by key. Those not of the cluster under `root` are passed over."""
        members = members_of(root, key_values)
        items = cast(list[KeyValue[Item[ItemT]]], _branch(key_values, items_prefix(root)))
        assigned = cast(list[KeyValue[Assignment[AssignmentT]]], _branch(key_values, assignments_prefix(root)))
        position = {kv.value.id: at for at, kv in enumerate(members)}
        assignments, dead = _by_item(items, assigned)
        replication = [kv.value.value.desired_replication for kv in items]
        item_slots = sum(replication)
        limits = _effective_limits(members, item_slots, max(replication, default=0))
        totals, primaries = _loads(position, assignments)
        return cls(
            root=root,
            members=members,
            items=items,
            assignments=assignments,
            dead=dead,
            position=position,
            limits=limits,
            member_slots=sum(limits),
            replication=replication,
            item_slots=item_slots,
            zones=sorted({kv.value.zone for kv in members if kv.value.value.limit > 0}),
            totals=totals,
            primaries=primaries,
            network_hash=_network_hash(members, limits, items, replication),
        )

    @property
    def leader(self) -> KeyValue[Member[MemberT]] | None:
        return leader_of(self.members)


def members_of(
    root: str, key_values: Sequence[KeyValue[Entity[ItemT, MemberT, AssignmentT]]]
) -> list[KeyValue[Member[MemberT]]]:
    """Only these are needed to know who leads, so that members who do not lead are spared the rest."""
    return cast(list[KeyValue[Member[MemberT]]], _branch(key_values, members_prefix(root)))


def leader_of(members: Sequence[KeyValue[Member[MemberT]]]) -> KeyValue[Member[MemberT]] | None:
    """The one that has been a member for longest."""
    return min(members, key=lambda kv: kv.create_revision, default=None)


def _branch(
    key_values: Sequence[KeyValue[Entity[ItemT, MemberT, AssignmentT]]], prefix: str
) -> list[KeyValue[Entity[ItemT, MemberT, AssignmentT]]]:
    """All whose key begins with `prefix`, which ends in a slash: up to those that have the next character instead."""
    begin = bisect_left(key_values, prefix, key=_by_key)
    end = bisect_left(key_values, prefix[:-1] + chr(ord("/") + 1), begin, key=_by_key)
    return list(key_values[begin:end])


def _by_item(
    items: Sequence[KeyValue[Item[ItemT]]], assigned: Sequence[KeyValue[Assignment[AssignmentT]]]
) -> tuple[list[list[KeyValue[Assignment[AssignmentT]]]], list[list[KeyValue[Assignment[AssignmentT]]]]]:
    """The assignments of each item, and by item those whose item is gone."""
    groups: dict[str, list[KeyValue[Assignment[AssignmentT]]]] = {kv.value.id: [] for kv in items}
    dead: dict[str, list[KeyValue[Assignment[AssignmentT]]]] = {}
    for kv in assigned:
        name = kv.value.item
        group = groups.get(name)
        if group is None:
            group = dead.setdefault(name, [])
        group.append(kv)
    return list(groups.values()), list(dead.values())


def _effective_limits(members: Sequence[KeyValue[Member[MemberT]]], item_slots: int, replication_max: int) -> list[int]:
    """Limits, less what exiting members shed: no more than the others can take, and the oldest of them first.

    An item needs as many members as it has replicas, so only as many may shed as are beyond that; the others drain
    once these are gone, or more have joined.
    """
    limits = [kv.value.value.limit for kv in members]
    excess = sum(limits) - item_slots
    exiting = [at for at, kv in enumerate(members) if kv.value.value.exiting]
    exiting.sort(key=lambda at: members[at].create_revision)
    for at in exiting[: max(0, len(members) - replication_max)]:
        shed = max(0, min(limits[at], excess))
        limits[at] -= shed
        excess -= shed
    return limits


def _loads(
    position: dict[str, int], assignments: Sequence[Sequence[KeyValue[Assignment[AssignmentT]]]]
) -> tuple[list[int], list[int]]:
    totals, primaries = [0] * len(position), [0] * len(position)
    for kv in chain.from_iterable(assignments):
        _item, member, slot, _value = kv.value
        at = position.get(member)
        if at is not None:
            totals[at] += 1
            if slot == 0:
                primaries[at] += 1
    return totals, primaries


def _network_hash(
    members: Sequence[KeyValue[Member[MemberT]]],
    limits: Sequence[int],
    items: Sequence[KeyValue[Item[ItemT]]],
    replication: Sequence[int],
) -> int:
    able = tuple([(kv.value.id, kv.value.value.limit, limit) for kv, limit in zip(members, limits, strict=True)])
    wanted = tuple([(kv.value.id, count, kv.value.value.zones) for kv, count in zip(items, replication, strict=True)])
    return hash((able, wanted))
