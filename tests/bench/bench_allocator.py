"""A leader's whole step, from keys to transactions: against Gazette's way to solve it, and ten times larger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from allocator.converge import converge
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, Member
from allocator.solve import Desired, desired_assignment
from allocator.state import State
from allocator.transaction import Transaction
from tests.bench.harness import Contest, benchmark
from tests.support.allocation import CAUGHT_UP, ClusterState, ItemSpec, MemberSpec, each_by_itself
from tests.support.push_relabel import gazette_assignment

REPLICATION = 3
ZONES = 3
Keys = list[KeyValue[Entity[ItemSpec, MemberSpec, bytes]]]
Size = tuple[int, int]

SMALL, LARGE = (10_000, 100), (100_000, 300)


def member_id(at: int) -> str:
    return f"zone-{at % ZONES}#member-{at:03}"


def sorted_keys(size: Size, assigned: Desired) -> Keys:
    """All that is assigned has caught up. Members have half as much room again as is needed."""
    items, members = size
    limit = items * REPLICATION * 3 // (2 * members)
    keys: Keys = [
        KeyValue(f"/root/members/{member_id(at)}", Member(member_id(at), MemberSpec(limit)), b"", at, at, 1, at)
        for at in range(1, members + 1)
    ]
    keys += [new_item(f"acme/orders/part-{at:06}") for at in range(items)]
    keys += [
        KeyValue(f"/root/assign/{item}#{member}#{slot}", Assignment(item, member, slot, b""), CAUGHT_UP, 9, 9, 1, 9)
        for item, held in assigned.items()
        for slot, member in enumerate(held)
    ]
    return sorted(keys, key=lambda kv: kv.key)


def new_item(name: str) -> KeyValue[Entity[ItemSpec, MemberSpec, bytes]]:
    return KeyValue(f"/root/items/{name}", Item(name, ItemSpec(REPLICATION)), b"", 9, 9, 1, 0)


@cache
def cold(size: Size) -> Keys:
    return sorted_keys(size, {})


@cache
def settled(size: Size) -> Keys:
    return sorted_keys(size, desired_assignment(State.of("/root", cold(size))))


@cache
def after_a_death(size: Size) -> Keys:
    """Of a member and all that it held."""
    dead = member_id(size[1] // 2)
    return [kv for kv in settled(size) if f"{dead}#" not in f"{kv.key}#"]


@cache
def after_a_change(size: Size) -> Keys:
    """Every hundredth item is gone but for its assignments, and as many have come."""
    gone = {f"/root/items/acme/orders/part-{at:06}" for at in range(0, size[0], 100)}
    come = [new_item(f"acme/returns/part-{at:06}") for at in range(len(gone))]
    return sorted([*(kv for kv in settled(size) if kv.key not in gone), *come], key=lambda kv: kv.key)


def step(keys: Keys, solve: Callable[[ClusterState], Desired] = desired_assignment) -> list[Transaction]:
    state: ClusterState = State.of("/root", keys)
    return [batch.transaction for batch in converge(state, solve(state), each_by_itself)]


def register(name: str, keys_of: Callable[[Size], Keys], seconds_max: float) -> None:
    @benchmark(f"allocator: 10,000 items x 100 members, {name}")
    def against_gazette() -> Iterator[Contest]:
        keys = keys_of(SMALL)
        assert step(keys)
        assert not step(settled(SMALL))
        peer = "push-relabel, by hand"
        yield Contest(
            lambda: step(keys), lambda: step(keys, gazette_assignment), peer, 10_000, "items", seconds_max, ratio_min=1
        )

    @benchmark(f"allocator: 100,000 items x 300 members, {name}")
    def against_a_tenth() -> Iterator[Contest]:
        """A ratio of 10 % is growth in line with the number of items."""
        keys, small = keys_of(LARGE), keys_of(SMALL)
        yield Contest(
            lambda: step(keys), lambda: step(small), "10,000 x 100", 100_000, "items", ratio_min=0.05, rounds=3
        )


register("cold", cold, seconds_max=1.0)
register("after a death", after_a_death, seconds_max=0.1)
register("after 1 % of items changed", after_a_change, seconds_max=0.1)
