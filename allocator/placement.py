"""Placement: who holds what, while a desired assignment is worked out.

Items and members are small numbers here, their places in the order of keys, and so are zones. A Placement begins as
what is assigned now; it knows how loaded every member is, who has room and is lightest, and which items of a member
could go elsewhere. It does as it is told: whether a change is a good one is for ``solve`` to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Problem:
    # Of members. A zone of NOBODY is one that can hold nothing.
    zone_of: Sequence[int]
    limits: Sequence[int]
    # What each would hold if all were loaded alike, rounded up. Never beyond its limit.
    fair: Sequence[int]
    # The members of each zone.
    members: Sequence[Sequence[int]]
    # Of items: how many replicas are wanted, the zones where they may be, and who holds them now, the primary first.
    wanted: Sequence[int]
    zones: Sequence[tuple[int, ...]]
    current: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Mobility:
    """Where an item could move. All items of a member that are alike in this are looked at as one.

    There are few of these and many items, and that is what makes the search for a path fast.
    """

    # Zones that have a member without it.
    somewhere: tuple[int, ...]
    # Those of them where it would still span two zones.
    spread: tuple[int, ...]

    def zones_from(self, zone: int, spread: bool) -> tuple[int, ...]:
        """Where it can go from a member of `zone`: within the zone always, if there is anybody."""
        if not spread:
            return self.somewhere
        if zone in self.somewhere and zone not in self.spread:
            return (*self.spread, zone)
        return self.spread


Groups = dict[Mobility, dict[int, None]]
"""Items, each group in the order in which to look at them."""


class Placement:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.held = [list(members) for members in problem.current]
        count = Counter(chain.from_iterable(self.held))
        self.load = [count[member] for member in range(len(problem.limits))]
        # Items that are not, or no longer, with all who hold them now and could.
        self.astray: dict[int, None] = {}
        # By whether they are with the member now, and by member. Made when first asked for, as it seldom is.
        self._groups: tuple[list[Groups], list[Groups]] | None = None
        self._mobility: list[Mobility] = []
        # By where an item may be and where it is, and again by what it says, so that there is but one of each.
        self._mobility_at: dict[tuple[tuple[int, ...], tuple[int, ...]], Mobility] = {}
        self._mobilities: dict[tuple[tuple[int, ...], tuple[int, ...]], Mobility] = {}
        self.give_room(problem.fair)

    def give_room(self, room: Sequence[int]) -> None:
        """From now on, a member has room while it holds less than its part of `room`."""
        self.room = room
        # Up to their fair share, members fill evenly. Beyond it, each as its limit allows.
        fair = room is self.problem.fair
        self._unit = [1.0 if fair or not limit else 1.0 / limit for limit in self.problem.limits]
        self._lightest = [
            [(self.load[member] * self._unit[member], member) for member in members if self.load[member] < room[member]]
            for members in self.problem.members
        ]
        for heap in self._lightest:
            heapify(heap)

    def change(self, item: int, leave: int, enter: int) -> None:
        """Move a replica from one member to another; either may be NOBODY."""
        if self._groups is not None:
            self._unfile(item, self._groups)
        if leave != NOBODY:
            self.held[item].remove(leave)
            self._weigh(leave, -1)
        if enter != NOBODY:
            self.held[item].append(enter)
            self._weigh(enter, 1)
        if self.lost(item):
            self.astray[item] = None
        else:
            self.astray.pop(item, None)
        if self._groups is not None:
            self._mobility[item] = self.mobility(item)
            self._file(item, self._groups)

    def lost(self, item: int) -> list[int]:
        """Those who hold it now, could go on, and are not to."""
        held, limits = self.held[item], self.problem.limits
        return [member for member in self.problem.current[item] if member not in held and limits[member]]

    def weight(self, member: int) -> float:
        """How loaded a member is, compared with others."""
        return self.load[member] * self._unit[member]

    def _weigh(self, member: int, by: int) -> None:
        """One replica is as heavy as another. If items ever differ in weight, it will be here that it counts."""
        load = self.load[member] = self.load[member] + by
        if load < self.room[member]:
            heappush(self._lightest[self.problem.zone_of[member]], (load * self._unit[member], member))

    def lightest(self, zone: int, without: Sequence[int]) -> int:
        """The least loaded member of `zone` that has room and is not among `without`, or NOBODY."""
        heap, found = self._lightest[zone], NOBODY
        aside: list[tuple[float, int]] = []
        while heap and found == NOBODY:
            weight, member = heap[0]
            load = self.load[member]
            if weight != load * self._unit[member] or load >= self.room[member]:
                heappop(heap)  # It has changed since, and if it still has room it is here a second time.
            elif member in without:
                aside.append(heappop(heap))
            else:
                found = member
        for entry in aside:
            heappush(heap, entry)
        return found

    def lightest_for(self, item: int, spread: bool) -> int:
        """Whom to give one more replica: in the zone with the fewest of them, the least loaded; or NOBODY.

        With `spread`, not so that all replicas would be in one zone.
        """
        held, zone_of, load, unit = self.held[item], self.problem.zone_of, self.load, self._unit
        holding = [zone_of[member] for member in held]
        most = self._zone_max(item, len(held) + 1) if spread else len(held) + 1
        best, chosen = (0, 0.0, 0), NOBODY
        for zone in self.problem.zones[item]:
            count = holding.count(zone)
            if count < most and (member := self.lightest(zone, held)) != NOBODY:
                rank = (count, load[member] * unit[member], member)
                if chosen == NOBODY or rank < best:
                    best, chosen = rank, member
        return chosen

    def is_in_one_zone(self, item: int) -> bool:
        """All its replicas are, of which it has several, though they need not be."""
        held, zone_of = self.held[item], self.problem.zone_of
        if len(held) < 2 or len(self.problem.zones[item]) < 2:
            return False
        zone = zone_of[held[0]]
        return all(zone_of[member] == zone for member in held)

    def items_in_one_zone(self) -> list[int]:
        """Nearly all items differ in the zones of their first two replicas, and that is quickly seen."""
        zone_of = self.problem.zone_of
        near = [at for at, held in enumerate(self.held) if len(held) > 1 and zone_of[held[0]] == zone_of[held[1]]]
        return [item for item in near if self.is_in_one_zone(item)]

    def zones_for(self, item: int, spread: bool) -> list[int]:
        """The zones that have a member to give one more replica, with `spread` such that it spans two zones then."""
        held, members = self.held[item], self.problem.members
        holding = [self.problem.zone_of[member] for member in held]
        most = self._zone_max(item, len(held) + 1) if spread else len(held) + 1
        return [z for z in self.problem.zones[item] if (count := holding.count(z)) < most and count < len(members[z])]

    def mobility(self, item: int) -> Mobility:
        zone_of, zones = self.problem.zone_of, self.problem.zones[item]
        holding = tuple([zone_of[member] for member in self.held[item]])
        known = self._mobility_at.get((zones, holding))
        if known is None:
            most = self._zone_max(item, len(holding))
            somewhere = tuple([zone for zone in zones if holding.count(zone) < len(self.problem.members[zone])])
            spread = tuple([zone for zone in somewhere if holding.count(zone) < most])
            known = self._mobilities.setdefault((somewhere, spread), Mobility(somewhere, spread))
            self._mobility_at[zones, holding] = known
        return known

    def _zone_max(self, item: int, count: int) -> int:
        """How many of `count` replicas may be in one zone."""
        return max(1, count - 1) if len(self.problem.zones[item]) > 1 else count

    def items_of(self, member: int, is_kept: bool) -> Groups:
        """What a member is to hold: that which it holds now, or the rest. Groups may be put into another order."""
        if self._groups is None:
            self._groups = [{} for _ in self.load], [{} for _ in self.load]
            self._mobility = [self.mobility(item) for item in range(len(self.held))]
            for item in range(len(self.held)):
                self._file(item, self._groups)
        return self._groups[is_kept][member]

    def _file(self, item: int, groups: tuple[list[Groups], list[Groups]]) -> None:
        mobility, current = self._mobility[item], self.problem.current[item]
        for member in self.held[item]:
            by_mobility = groups[member in current][member]
            group = by_mobility.get(mobility)
            if group is None:
                by_mobility[mobility] = {item: None}
            else:
                group[item] = None

    def _unfile(self, item: int, groups: tuple[list[Groups], list[Groups]]) -> None:
        mobility, current = self._mobility[item], self.problem.current[item]
        for member in self.held[item]:
            del groups[member in current][member][mobility][item]
