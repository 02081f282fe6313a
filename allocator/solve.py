"""The desired assignment: who should hold what, given who does.

It is the maximum flow of Gazette's allocator, from items through zones to members, found the other way round. Gazette
builds the flow anew and prefers what is assigned; here what is assigned is the flow to begin with, and only what is
wrong with it is mended, by shortest augmenting paths. So the cost is that of what has changed, what is right already
is never touched, and a placement with nothing to mend is its own solution.

What is mended, the first before the second and so on:

1. No member holds more than its limit, less what it sheds.
2. Items have as many replicas as wanted; where there is too little room for all, the first in the order of keys do.
3. An item's replicas span two zones, if it may be in two.
4. No member holds more than its fair share: what it would hold if all were loaded in proportion to their limits.
5. Replicas stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from allocator.augmenting_path import AugmentingPaths
from allocator.placement import NOBODY, Placement, Problem
from allocator.state import AssignmentT, ItemT, MemberT, State

_PASSES_MAX = 20

Desired = dict[str, tuple[str, ...]]
"""The ids of members by that of the item they should hold, in the order of keys."""


def desired_assignment(state: State[ItemT, MemberT, AssignmentT]) -> Desired:
    name_of = [kv.value.id for kv in state.members].__getitem__
    solved = solve(problem_of(state))
    return {kv.value.id: tuple(map(name_of, held)) for kv, held in zip(state.items, solved, strict=True) if held}


def problem_of(state: State[ItemT, MemberT, AssignmentT]) -> Problem:
    zone_at = {zone: at for at, zone in enumerate(state.zones)}
    zone_of = [zone_at.get(kv.value.zone, NOBODY) for kv in state.members]
    anywhere = tuple(range(len(state.zones)))
    allowed: dict[frozenset[str] | None, tuple[int, ...]] = {None: anywhere}
    zones, current = [], []
    for names, assigned in zip(state.allowed, state.assignments, strict=True):
        item_zones = allowed.get(names)
        if item_zones is None:
            item_zones = allowed[names] = tuple([at for at in anywhere if state.zones[at] in names]) if names else ()
        zones.append(item_zones)
        held: list[int] = []
        for assignment in assigned:
            _item, member, slot, _value = assignment.value
            at = state.position.get(member)
            if at is not None and at not in held and zone_of[at] in item_zones:
                if slot:
                    held.append(at)
                else:
                    held.insert(0, at)
        current.append(held)
    return Problem(
        zone_of=zone_of,
        limits=state.limits,
        fair=_fair_shares(state),
        members=[[at for at, its_zone in enumerate(zone_of) if its_zone == zone] for zone in anywhere],
        wanted=_wanted(state),
        zones=zones,
        current=current,
    )


def _fair_shares(state: State[ItemT, MemberT, AssignmentT]) -> list[int]:
    if state.item_slots >= state.member_slots:
        return list(state.limits)
    return [-(-limit * state.item_slots // state.member_slots) for limit in state.limits]


def _wanted(state: State[ItemT, MemberT, AssignmentT]) -> Sequence[int]:
    """What there is room for: an item that gets less than it needs is of little use, so the last ones go without.

    Items that are bound to zones claim no more than those have, lest others go without for what nobody can hold.
    """
    if state.item_slots <= state.member_slots:
        return state.replication
    wanted, left = [], state.member_slots
    able: dict[frozenset[str], list[int]] = {}
    unclaimed: dict[frozenset[str], int] = {}
    for count, zones in zip(state.replication, state.allowed, strict=True):
        claim = min(count, left)
        if zones is not None:
            if zones not in able:
                able[zones] = _limits_within(state, zones)
                unclaimed[zones] = sum(able[zones])
            claim = min(claim, len(able[zones]), unclaimed[zones])
            unclaimed[zones] -= claim
        wanted.append(claim)
        left -= claim
    return wanted


def _limits_within(state: State[ItemT, MemberT, AssignmentT], zones: frozenset[str]) -> list[int]:
    """Of the members there that could hold anything."""
    limits = zip(state.members, state.limits, strict=True)
    return [limit for kv, limit in limits if limit and kv.value.zone in zones]


def solve(problem: Problem) -> list[list[int]]:
    """The members of each item, ascending."""
    placement = Placement(problem)
    _drop_surplus(placement)
    _repeat(_mend, placement)
    _repeat(_restore, placement)
    return [sorted(held) for held in placement.held]


def _repeat(improve: Callable[[Placement], bool], placement: Placement) -> None:
    """As long as it helps. Two or three times are all it takes; should that ever be wrong, a leader must not hang."""
    for _ in range(_PASSES_MAX):
        if not improve(placement):
            break


def _drop_surplus(placement: Placement) -> None:
    """Items that want fewer replicas than they have lose those of the most loaded members; of several, not the
    primary's, as somebody else would have to become it."""
    problem = placement.problem

    def rank(item: int, member: int) -> tuple[bool, float, int]:
        held, limit = placement.held[item], problem.limits[member]
        others = {problem.zone_of[other] for other in held if other != member}
        load = placement.load[member] / limit if limit else inf
        return len(others) > 1 or problem.wanted[item] < 2, load, held.index(member)

    surplus = [item for item, held in enumerate(placement.held) if len(held) > problem.wanted[item]]
    # Those that lose all have no choice, and show the others who is loaded in the end.
    for item in sorted(surplus, key=lambda item: problem.wanted[item] > 0):
        while len(placement.held[item]) > problem.wanted[item]:
            placement.change(item, max(placement.held[item], key=partial(rank, item)), NOBODY)


def _mend(placement: Placement) -> bool:
    """Whether to look again: one repair can make way for another, as long as there is anything left to repair."""
    problem, changed = placement.problem, False
    missing = [item for item, count in enumerate(problem.wanted) if len(placement.held[item]) < count]
    for room, spread in ((problem.fair, True), (problem.limits, True), (problem.limits, False)):
        placement.give_room(room)
        paths = AugmentingPaths(placement, spread=spread)
        placed = [_place(placement, paths, item) for item in missing]
        relieved = [_relieve(placement, paths, member) for member in range(len(room))]
        changed = changed or any(placed) or any(relieved)
        missing = [item for item in missing if len(placement.held[item]) < problem.wanted[item]]
        if not missing and not _beyond(placement, problem.limits):
            break
    for member in _beyond(placement, problem.limits):
        _evict(placement, member)
        changed = True
    in_one_zone = placement.items_in_one_zone()
    changed = _spread(placement, in_one_zone) or changed
    return changed and bool(missing or in_one_zone or _beyond(placement, problem.fair))


def _beyond(placement: Placement, most: Sequence[int]) -> list[int]:
    """Members that hold more than they should."""
    return [member for member, load in enumerate(placement.load) if load > most[member]]


def _place(placement: Placement, paths: AugmentingPaths, item: int) -> bool:
    before = len(placement.held[item])
    while len(placement.held[item]) < placement.problem.wanted[item] and paths.place(item):
        pass
    return len(placement.held[item]) > before


def _relieve(placement: Placement, paths: AugmentingPaths, member: int) -> bool:
    before = placement.load[member]
    while placement.load[member] > placement.room[member] and paths.relieve(member):
        pass
    return placement.load[member] < before


def _evict(placement: Placement, member: int) -> None:
    """There is no other place for what is beyond the limit of a member."""
    holders = [item for item, held in enumerate(placement.held) if member in held]
    while placement.load[member] > placement.problem.limits[member]:
        placement.change(holders.pop(), member, NOBODY)


def _spread(placement: Placement, items: list[int]) -> bool:
    """Take items that are in one zone to another, if need be to members that are beyond their fair share then."""
    changed = False
    for room in (placement.problem.fair, placement.problem.limits) if items else ():
        placement.give_room(room)
        paths = AugmentingPaths(placement)
        for item in items:
            if placement.is_in_one_zone(item) and _spread_one(placement, paths, item):
                changed = True
    return changed


def _spread_one(placement: Placement, paths: AugmentingPaths, item: int) -> bool:
    by_weight = sorted(placement.held[item], key=placement.weight)
    # From the end, so that of those who are loaded alike the primary is the last.
    for member in by_weight[::-1]:
        placement.change(item, member, NOBODY)
        paths.vacated(member)
        if paths.place(item):
            return True
        placement.change(item, NOBODY, member)
    return False


def _restore(placement: Placement) -> bool:
    """Take replicas back to where they are now, if that only moves those which were placed anew.

    Paths are found one by one, and what was the best for one may, in the light of a later one, be a move too many.
    """
    problem, restored = placement.problem, False
    placement.give_room([max(each) for each in zip(problem.fair, placement.load, strict=True)])
    paths = AugmentingPaths(placement, cheap=True)
    for item in sorted(placement.astray):
        for member in placement.lost(item):
            # A path found for another may have taken it back already.
            if member not in placement.held[item]:
                restored |= _restore_one(placement, paths, item, member)
    return restored


def _restore_one(placement: Placement, paths: AugmentingPaths, item: int, member: int) -> bool:
    problem = placement.problem
    zone = problem.zone_of[member]
    spread = placement.mobility(item).spread
    for other in [each for each in placement.held[item] if each not in problem.current[item]]:
        if zone != problem.zone_of[other] and zone not in spread:
            continue
        placement.change(item, other, member)
        paths.vacated(other)
        if placement.load[member] <= placement.room[member] or paths.relieve(member):
            return True
        placement.change(item, member, other)
    return False
