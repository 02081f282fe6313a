"""State: a cluster as its leader sees it at one revision, and what follows from that.

All of it is a function of the keys alone, so every member that has the same keys has the same State: they agree on
who leads, and whoever takes over goes on where the last leader stopped.

Anyone may write anything into etcd. What cannot be read is passed over, but not taken for absent: it goes on with the
last value that could be, or is left alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from allocator.key_event import StoredKey
from allocator.key_value import KeyValue, ValueT
from allocator.keys import Assignment, Entity, Item, Member, assignments_prefix, items_prefix, members_prefix

_by_key = itemgetter(0)
_NONE: Mapping[bytes, StoredKey] = MappingProxyType({})
_REASON_MAX = 200


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
    # Ascending by key, as are items, and the assignments of each. Their ModRevisions and leases are those of etcd, even
    # where the value is an older one because what etcd has cannot be read.
    members: Sequence[KeyValue[Member[MemberT]]]
    items: Sequence[KeyValue[Item[ItemT]]]
    # Of each item, in the order of items. Their members need not exist.
    assignments: Sequence[Sequence[KeyValue[Assignment[AssignmentT]]]]
    # By item, of those that no longer exist.
    dead: Sequence[Sequence[KeyValue[Assignment[AssignmentT]]]]
    # Assignments of items that exist to members that do not, or of whom nothing is known.
    strangers: Sequence[KeyValue[Assignment[AssignmentT]]]
    # The ModRevisions of members of whom nothing but their key can be read, by id. They are none of `members`.
    unreadable_members: Mapping[str, int]
    # Items that do not say what they want, and why. They are none of `items`, and their assignments stay as they are.
    unusable: Mapping[str, str]
    # Where a member is, by its id.
    position: dict[str, int]
    # What is left of each member's limit once it sheds, in the order of members, and of all of them together.
    limits: Sequence[int]
    member_slots: int
    # How many replicas of each item are wanted, in the order of items, and of all of them together.
    replication: Sequence[int]
    item_slots: int
    # The zones where each item may be, in the order of items. None is anywhere.
    allowed: Sequence[frozenset[str] | None]
    # Those that could hold anything.
    zones: Sequence[str]
    # How many assignments of items that exist each member has, and of how many it is the primary.
    totals: Sequence[int]
    primaries: Sequence[int]
    # Of all that a desired assignment has to satisfy: while it stays, so does what is desired.
    network_hash: int

    @classmethod
    def of(
        cls,
        root: str,
        key_values: Sequence[KeyValue[Entity[ItemT, MemberT, AssignmentT]]],
        undecodable: Mapping[bytes, StoredKey] = _NONE,
    ) -> State[ItemT, MemberT, AssignmentT]:
        """`key_values` ascend by key. Those not of the cluster under `root` are passed over.

        `undecodable` are the keys whose value in etcd cannot be read. For some of them, `key_values` has an older one.
        """
        key_values, unread = _as_in_etcd(root, key_values, undecodable)
        members = members_of(root, key_values)
        assigned = cast("list[KeyValue[Assignment[AssignmentT]]]", _branch(key_values, assignments_prefix(root)))
        items, unusable = _usable(cast("list[KeyValue[Item[ItemT]]]", _branch(key_values, items_prefix(root))))
        position = {kv.value.id: at for at, kv in enumerate(members)}
        existing = chain(_ids(unread, items_prefix(root)), unusable)
        held = _held([kv.value.id for kv in items.key_values], assigned, existing, position)
        item_slots = sum(items.replication)
        limits = _effective_limits(members, item_slots, max(items.replication, default=0))
        return cls(
            root=root,
            members=members,
            items=items.key_values,
            assignments=held.assignments,
            dead=held.dead,
            strangers=held.strangers,
            unreadable_members=_ids(unread, members_prefix(root)),
            unusable=unusable,
            position=position,
            limits=limits,
            member_slots=sum(limits),
            replication=items.replication,
            item_slots=item_slots,
            allowed=items.allowed,
            zones=sorted({kv.value.zone for kv in members if kv.value.value.limit > 0}),
            totals=held.totals,
            primaries=held.primaries,
            network_hash=_network_hash(members, limits, items),
        )

    @property
    def lacking(self) -> int:
        """How many items have fewer assignments than they want."""
        held = zip(self.assignments, self.replication, strict=True)
        return sum(len(assigned) < wanted for assigned, wanted in held)

    @property
    def leader(self) -> KeyValue[Member[MemberT]] | None:
        return leader_of(self.members)


def members_of(
    root: str,
    key_values: Sequence[KeyValue[Entity[ItemT, MemberT, AssignmentT]]],
    undecodable: Mapping[bytes, StoredKey] = _NONE,
) -> Sequence[KeyValue[Member[MemberT]]]:
    """Only these are needed to know who leads, so that members who do not lead are spared the rest."""
    members, _ = _as_in_etcd(root, _branch(key_values, members_prefix(root)), undecodable)
    return cast("Sequence[KeyValue[Member[MemberT]]]", members)


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


def _as_in_etcd(
    root: str, key_values: Sequence[KeyValue[ValueT]], undecodable: Mapping[bytes, StoredKey]
) -> tuple[Sequence[KeyValue[ValueT]], dict[str, int]]:
    """`key_values` with the ModRevisions and leases that etcd has, and the cluster's keys that have no value at all.

    A transaction that compared the revision of an older value would fail for as long as nobody repairs the key.
    """
    branches = tuple(prefix(root).encode() for prefix in (items_prefix, members_prefix, assignments_prefix))
    unread: dict[str, int] = {}
    kept: dict[str, KeyValue[ValueT]] = {}
    for key, stored in undecodable.items():
        # A sibling of the root may have any number of them.
        if not key.startswith(branches):
            continue
        text = key.decode(errors="surrogateescape")
        at = bisect_left(key_values, text, key=_by_key)
        known = key_values[at] if at < len(key_values) and key_values[at].key == text else None
        # A member is its lease: whoever lost it has given up, and what may be put under it is not known.
        if known is None or (key.startswith(branches[1]) and known.lease != stored.lease):
            unread[text] = stored.mod_revision
        else:
            kept[text] = known._replace(mod_revision=stored.mod_revision, lease=stored.lease)
    if not kept and not unread:
        return key_values, unread
    return [kept.get(kv.key, kv) for kv in key_values if kv.key not in unread], unread


def _ids(unread: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {key[len(prefix) :]: revision for key, revision in unread.items() if key.startswith(prefix)}


class _Items(NamedTuple, Generic[ItemT]):
    """Items that say what they want, and what that is."""

    key_values: list[KeyValue[Item[ItemT]]]
    replication: list[int]
    allowed: list[frozenset[str] | None]


def _usable(key_values: Sequence[KeyValue[Item[ItemT]]]) -> tuple[_Items[ItemT], dict[str, str]]:
    """The items to be assigned, and why others are not."""
    usable: list[KeyValue[Item[ItemT]]] = []
    replications: list[int] = []
    zones: list[frozenset[str] | None] = []
    unusable: dict[str, str] = {}
    for kv in key_values:
        value = kv.value.value
        try:
            replication, allowed = value.desired_replication, value.zones
        except Exception as error:
            # It is asked of every item of every cluster. One that has no answer must not stop all the others.
            unusable[kv.value.id] = f"{type(error).__name__}: {str(error)[:_REASON_MAX]}"
            continue
        usable.append(kv)
        replications.append(replication)
        zones.append(allowed)
    return _Items(usable, replications, zones), unusable


class _Held(NamedTuple, Generic[AssignmentT]):
    """Who holds what."""

    assignments: list[list[KeyValue[Assignment[AssignmentT]]]]
    dead: list[list[KeyValue[Assignment[AssignmentT]]]]
    strangers: list[KeyValue[Assignment[AssignmentT]]]
    totals: list[int]
    primaries: list[int]


def _held(
    items: Sequence[str],
    assigned: Sequence[KeyValue[Assignment[AssignmentT]]],
    existing: Iterable[str],
    position: dict[str, int],
) -> _Held[AssignmentT]:
    """The assignments of each of `items`, and by item those whose item is gone. Others that exist are left out.

    There may be hundreds of thousands, in the order of keys, so that those of an item are neighbours: all that is to
    be known of them is found in one pass.
    """
    groups: dict[str, list[KeyValue[Assignment[AssignmentT]]]] = {item: [] for item in items}
    others: dict[str, list[KeyValue[Assignment[AssignmentT]]]] = {}
    totals, primaries = [0] * len(position), [0] * len(position)
    strangers = []
    group, group_of, is_item = None, None, False
    for kv in assigned:
        name, member, slot, _value = kv.value
        if group is None or name != group_of:
            group, group_of = groups.get(name), name
            is_item = group is not None
            if group is None:
                group = others.setdefault(name, [])
        group.append(kv)
        if is_item:
            at = position.get(member)
            if at is None:
                strangers.append(kv)
                continue
            totals[at] += 1
            if slot == 0:
                primaries[at] += 1
    for item in existing:
        others.pop(item, None)
    return _Held(list(groups.values()), list(others.values()), strangers, totals, primaries)


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


def _network_hash(members: Sequence[KeyValue[Member[MemberT]]], limits: Sequence[int], items: _Items[ItemT]) -> int:
    able = tuple([(kv.value.id, kv.value.value.limit, limit) for kv, limit in zip(members, limits, strict=True)])
    ids = [kv.value.id for kv in items.key_values]
    return hash((able, tuple(zip(ids, items.replication, items.allowed, strict=True))))
