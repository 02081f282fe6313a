"""A cluster of the allocator that is nothing but keys: members and items come and go, a leader takes its steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allocator.converge import converge
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, assignments_prefix, decoder, item_key, slot_key
from allocator.solve import Desired, desired_assignment
from allocator.state import State
from allocator.transaction import KEEP_LEASE, Put, Transaction
from tests.support.memory_keys import MemoryKeys

ROOT = "/root"
CAUGHT_UP = b"consistent"


@dataclass(frozen=True, slots=True)
class ItemSpec:
    desired_replication: int
    zones: frozenset[str] | None = None

    def encode(self) -> bytes:
        return json.dumps([self.desired_replication, self.zones and sorted(self.zones)]).encode()

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


def all_or_nothing(item: Item[ItemSpec], assignments: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
    """A rule of consistency: as journals have it, where all know of the same route."""
    route = " ".join(f"{kv.value.member}:{kv.value.slot == 0}" for kv in assignments)
    return [all(kv.raw == CAUGHT_UP + route.encode() for kv in assignments)] * len(assignments)


class Cluster:
    """Members are named as the keys have it, ``zone#suffix``."""

    def __init__(self, root: str = ROOT) -> None:
        self.root = root
        decode = decoder(root, ItemSpec.decode, MemberSpec.decode, lambda raw: raw)
        self.keys: Keys = MemoryKeys(decode)
        self.desired: Desired = {}
        self._leases = 1000
        self._solved: int | None = None

    @property
    def state(self) -> ClusterState:
        return State.of(self.root, self.keys.key_values)

    def join(self, member: str, limit: int, lease: int | None = None) -> None:
        self._leases += 1
        spec = MemberSpec(limit)
        self.keys.put(Put(f"{self.root}/members/{member}", spec.encode(), self._leases if lease is None else lease))

    def change_member(self, member: str, limit: int, exiting: bool = False) -> None:
        self.keys.put(Put(f"{self.root}/members/{member}", MemberSpec(limit, exiting).encode(), KEEP_LEASE))

    def leave(self, member: str) -> None:
        """With its assignments, be it after a crash or when it has drained."""
        self.keys.end_lease(self.keys[f"{self.root}/members/{member}"].lease)

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

    def catch_up(self) -> None:
        """All that was assigned becomes consistent, at one revision."""
        prefix = assignments_prefix(self.root)
        late = [kv.key for kv in self.keys.key_values if kv.key.startswith(prefix) and kv.raw != CAUGHT_UP]
        if late:
            self.keys.put(*(Put(key, CAUGHT_UP, KEEP_LEASE) for key in late))

    def solve(self) -> None:
        """As the leader does: only if what it has to satisfy has changed."""
        state = self.state
        if state.network_hash != self._solved:
            self.desired, self._solved = desired_assignment(state), state.network_hash

    def step(self) -> list[Transaction]:
        """One step of the leader's, all of which succeeds."""
        transactions = converge(self.state, self.desired, each_by_itself)
        for transaction in transactions:
            assert self.keys.apply(transaction)
        return transactions

    def settle(self, rounds_max: int = 100) -> int:
        """Until there is nothing left to do, with all members quick to catch up. Returns the rounds it took."""
        for rounds in range(rounds_max):
            self.solve()
            if not self.step():
                return rounds
            self.catch_up()
        raise AssertionError(f"it has not settled after {rounds_max} rounds")
