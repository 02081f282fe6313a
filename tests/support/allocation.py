"""A cluster of the allocator that is nothing but keys: members and items come and go, a leader takes its steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil
from operator import itemgetter

from allocator.converge import Consistent, converge
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, assignments_prefix, decoder, item_key, slot_key
from allocator.solve import Desired, desired_assignment
from allocator.state import State
from allocator.transaction import KEEP_LEASE, Compare, Put, Target, Transaction
from tests.support.golden import Case
from tests.support.memory_keys import MemoryKeys

ROOT = "/root"
CAUGHT_UP = b"consistent"
# What no decoder takes.
GARBAGE = b"{"


@dataclass(frozen=True, slots=True)
class ItemSpec:
    desired_replication: int
    zones: frozenset[str] | None = None

    def encode(self) -> bytes:
        return json.dumps([self.desired_replication, None if self.zones is None else sorted(self.zones)]).encode()

    @classmethod
    def decode(cls, _id: str, raw: bytes) -> ItemSpec:
        replication, zones = json.loads(raw)
        return cls(replication, None if zones is None else frozenset(zones))


@dataclass(frozen=True, slots=True)
class MemberSpec:
    limit: int
    exiting: bool = False

    def encode(self) -> bytes:
        return json.dumps([self.limit, self.exiting]).encode()

    @classmethod
    def decode(cls, _zone: str, _suffix: str, raw: bytes) -> MemberSpec:
        return cls(*json.loads(raw))


Keys = MemoryKeys[Entity[ItemSpec, MemberSpec, bytes]]
ClusterState = State[ItemSpec, MemberSpec, bytes]


def each_by_itself(_item: Item[ItemSpec], assignments: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
    """A rule of consistency: as shards have it."""
    return [kv.raw == CAUGHT_UP for kv in assignments]


def all_or_nothing(_item: Item[ItemSpec], assignments: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
    """A rule of consistency: as journals have it, where everybody has to know of everybody."""
    return [all(kv.raw == CAUGHT_UP for kv in assignments)] * len(assignments)


def all_agree(_item: Item[ItemSpec], assignments: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
    """A rule of consistency: that of journals to the letter. Everybody has been told who they are."""
    return [all(kv.raw == route_of(assignments) for kv in assignments)] * len(assignments)


def route_of(assignments: Sequence[KeyValue[Assignment[bytes]]]) -> bytes:
    """Who holds an item, and who is its primary."""
    holders = sorted((kv.value.member, kv.value.slot == 0) for kv in assignments)
    return ",".join(f"{member}*" if is_primary else member for member, is_primary in holders).encode()


def assignment_value(raw: bytes) -> bytes:
    if raw == GARBAGE:
        raise ValueError("it is garbage")
    return raw


def golden_cluster(given: Case) -> Cluster:
    """As a golden case describes it, with members that have joined in the order of their revisions."""
    cluster = Cluster()
    for member in sorted(given["members"], key=itemgetter("create_revision")):
        name = f"{member['zone']}#{member['suffix']}"
        cluster.join(name, member["limit"])
        if member["exiting"]:
            cluster.change_member(name, member["limit"], exiting=True)
    for item in given["items"]:
        cluster.put_item(item["id"], item["replication"])
    for item, assigned in given["current"].items():
        cluster.assign(item, *(each.replace("/", "#") for each in assigned))
    return cluster


@dataclass(frozen=True, slots=True)
class Quality:
    """What makes one assignment better than another. All but the last two matter in this order."""

    members_over_limit: int
    unmet_replicas: int
    single_zone_items: int
    # Replicas of members beyond what they would hold if all were loaded alike.
    beyond_fair_share: int
    moved: int
    most_loaded: int
    least_loaded: int

    @classmethod
    def of(cls, state: ClusterState, desired: Desired) -> Quality:
        loads = Counter(chain.from_iterable(desired.values()))
        limits = {kv.value.id: limit for kv, limit in zip(state.members, state.limits, strict=True)}
        usable = [loads[member] for member, limit in limits.items() if limit]
        share = min(Fraction(1), Fraction(state.item_slots, max(1, state.member_slots)))
        current = {
            kv.value.id: {each.value.member for each in assigned}
            for kv, assigned in zip(state.items, state.assignments, strict=True)
        }
        return cls(
            members_over_limit=sum(load > limits[member] for member, load in loads.items()),
            unmet_replicas=state.item_slots - loads.total(),
            single_zone_items=sum(
                len(held) > 1 and len({zone_of(member) for member in held}) == 1 for held in desired.values()
            ),
            beyond_fair_share=sum(max(0, loads[member] - ceil(limit * share)) for member, limit in limits.items()),
            moved=sum(len(set(held) - current[item]) for item, held in desired.items()),
            most_loaded=max(usable, default=0),
            least_loaded=min(usable, default=0),
        )

    @property
    def flaws(self) -> tuple[int, int, int, int]:
        return self.members_over_limit, self.unmet_replicas, self.single_zone_items, self.beyond_fair_share


def zone_of(member: str) -> str:
    return member.partition("#")[0]


class Cluster:
    """Members are named as the keys have it, ``zone#suffix``."""

    def __init__(self, root: str = ROOT) -> None:
        self.root = root
        decode = decoder(root, ItemSpec.decode, MemberSpec.decode, assignment_value)
        self.keys: Keys = MemoryKeys(decode)
        self.desired: Desired = {}
        self._leases = 1000
        self._solved: int | None = None

    @property
    def state(self) -> ClusterState:
        return State.of(self.root, self.keys.key_values, self.keys.undecodable)

    def join(self, member: str, limit: int, lease: int | None = None) -> None:
        self._leases += 1
        spec = MemberSpec(limit)
        self.keys.put(Put(f"{self.root}/members/{member}", spec.encode(), self._leases if lease is None else lease))

    def change_member(self, member: str, limit: int, exiting: bool = False) -> None:
        self.keys.put(Put(f"{self.root}/members/{member}", MemberSpec(limit, exiting).encode(), KEEP_LEASE))

    def leave(self, member: str) -> None:
        """With its assignments, be it after a crash or when it has drained."""
        key = f"{self.root}/members/{member}"
        lease = self.keys[key].lease
        # What has no lease does not go by itself.
        if lease:
            self.keys.end_lease(lease)
        if key in self.keys:
            self.keys.delete([key])

    def put_item(self, item: str, replication: int, zones: Iterable[str] | None = None) -> None:
        spec = ItemSpec(replication, None if zones is None else frozenset(zones))
        self.keys.put(Put(item_key(self.root, item), spec.encode()))

    def delete_item(self, item: str) -> None:
        self.keys.delete([item_key(self.root, item)])

    def assign(self, item: str, *members: str) -> None:
        """To members and slots, such as ``zone#suffix:0``, all of them caught up."""
        for text in members:
            member, _, slot = text.rpartition(":")
            lease = self.keys[f"{self.root}/members/{member}"].lease
            self.keys.put(Put(slot_key(self.root, item, member, int(slot)), CAUGHT_UP, lease))

    @property
    def assigned(self) -> dict[str, list[str]]:
        """Members by item, each with its slot, in the order of keys."""
        found: dict[str, list[str]] = {}
        for kv in self.keys.key_values:
            if isinstance(kv.value, Assignment):
                found.setdefault(kv.value.item, []).append(f"{kv.value.member}:{kv.value.slot}")
        return found

    def catch_up(self) -> bool:
        """All that was assigned becomes consistent, at one revision. Whether anything was not."""
        prefix = assignments_prefix(self.root)
        late = [kv.key for kv in self.keys.key_values if kv.key.startswith(prefix) and kv.raw != CAUGHT_UP]
        if late:
            self.keys.put(*(Put(key, CAUGHT_UP, KEEP_LEASE) for key in late))
        return bool(late)

    def solve(self) -> None:
        """As the leader does: only if what it has to satisfy has changed."""
        state = self.state
        if state.network_hash != self._solved:
            self.desired, self._solved = desired_assignment(state), state.network_hash

    def step(self) -> list[Transaction]:
        """One step of the leader's, all of which succeeds."""
        transactions = self.plan()
        for transaction in transactions:
            assert self.keys.apply(transaction)
        return transactions

    def plan(self, consistent: Consistent[ItemSpec, bytes] = each_by_itself) -> list[Transaction]:
        return [batch.transaction for batch in converge(self.state, self.desired, consistent)]

    def settle(self, rounds_max: int = 100) -> int:
        """Until there is nothing left to do, with all members quick to catch up. Returns the rounds it took."""
        for rounds in range(rounds_max):
            self.solve()
            if not self.step():
                return rounds
            self.catch_up()
        raise AssertionError(f"it has not settled after {rounds_max} rounds")


def cluster_of(*members: str, limit: int = 10, item: int | None = None) -> Cluster:
    """Members that join in the order given, and perhaps an item ``i`` of some replication."""
    cluster = Cluster()
    for member in members:
        cluster.join(member, limit)
    if item is not None:
        cluster.put_item("i", item)
    return cluster


def mod(cluster: Cluster, key: str) -> Compare:
    """That a key is as it is now."""
    return Compare(key, Target.MOD, cluster.keys[key].mod_revision)


def key(member: str, slot: int) -> str:
    """Of an assignment of item ``i``."""
    return f"/root/assign/i#{member}#{slot}"
