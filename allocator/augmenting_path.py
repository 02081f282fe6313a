"""Finds room where there seems to be none: an item takes another's place, which takes another's, until one finds room.

It is the augmenting path of a maximum flow from items through zones to members, walked from member to member: what
lies between them, the items that could move, is looked up as a group. Of all paths, one is taken that moves as few as
possible of the replicas which are where they were. Those placed anew may move at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocator.placement import NOBODY, Placement

# With more items astray than this, a move too many does not matter, and the time to look for it would.
ASTRAY_MAX = 32


class AugmentingPaths:
    """Paths for one purpose: under one notion of room, and with or without regard for zones.

    From members that led nowhere once, no path leads anywhere as long as only paths found here change the placement,
    so they are not tried again. That makes it cheap to learn that nothing can be done, many times over.
    """

    def __init__(self, placement: Placement, *, spread: bool = True, cheap: bool = False) -> None:
        """With `spread`, no item loses its second zone. If `cheap`, only replicas placed anew move."""
        self._placement = placement
        self._spread = spread
        self._cheap = cheap
        self._hopeful = [list(members) for members in placement.problem.members]

    def is_hopeful(self, member: int) -> bool:
        return member in self._hopeful[self._placement.problem.zone_of[member]]

    def vacated(self, member: int) -> None:
        """A member has lost a replica in another way, so that paths may lead to it which led nowhere before."""
        if not self.is_hopeful(member):
            self._hopeful = [list(members) for members in self._placement.problem.members]

    def place(self, item: int) -> bool:
        """Give an item one more replica, if there is a way."""
        placement = self._placement
        member = placement.lightest_for(item, self._spread)
        if member != NOBODY:
            placement.change(item, NOBODY, member)
            return True
        zones = placement.zones_for(item, self._spread)
        if not any(self._hopeful[zone] for zone in zones):
            return False
        search = _Search(placement, self._spread, self._hopeful)
        return self._take(search, search.from_item(item, zones))

    def relieve(self, member: int) -> bool:
        """Take one replica from a member, if there is another place for it."""
        if not self.is_hopeful(member):
            return False
        search = _Search(self._placement, self._spread, self._hopeful)
        return self._take(search, search.from_member(member))

    def _take(self, search: _Search, level: list[int]) -> bool:
        end = search.end(level, self._cheap)
        if end == NOBODY:
            self._hopeful = search.unreached
            return False
        moves = search.path(end)
        if self._spread and self._is_crowding(moves):
            return False
        for item, leave, enter in moves:
            self._placement.change(item, leave, enter)
        return True

    def _is_crowding(self, moves: list[tuple[int, int, int]]) -> bool:
        """An item enters a zone twice. Each time for itself left it in two zones; both together may not."""
        zone_of = self._placement.problem.zone_of
        entered = [
            (item, zone_of[enter])
            for item, leave, enter in moves
            if leave == NOBODY or zone_of[leave] != zone_of[enter]
        ]
        return len(set(entered)) < len(entered)


class _Search:
    """Breadth first from member to member, and at each distance first as far as it goes at no cost."""

    def __init__(self, placement: Placement, spread: bool, members: Sequence[Sequence[int]]) -> None:
        self._placement = placement
        self._spread = spread
        # By zone.
        self.unreached = [list(each) for each in members]
        # Who is to leave which member, so that another can be reached.
        self._before: dict[int, tuple[int, int]] = {}

    def from_item(self, item: int, zones: Sequence[int]) -> list[int]:
        reached: list[int] = []
        for zone in zones:
            self._reach(zone, [item], NOBODY, reached)
        return reached

    def from_member(self, member: int) -> list[int]:
        self.unreached[self._placement.problem.zone_of[member]].remove(member)
        return [member]

    def end(self, level: list[int], cheap: bool) -> int:
        """The member with room that a path leads to, or NOBODY."""
        placement = self._placement
        while level:
            for member in level:  # which grows meanwhile
                if placement.load[member] < placement.room[member]:
                    return member
                if (end := self._finish(member, is_kept=False)) != NOBODY:
                    return end
                self._go_back(member, level)
                self._go_on(member, level, is_kept=False)
            if cheap:
                break
            for member in level:
                if (end := self._finish(member, is_kept=True)) != NOBODY:
                    return end
            further: list[int] = []
            for member in level:
                self._go_on(member, further, is_kept=True)
            level = further
        return NOBODY

    def path(self, end: int) -> list[tuple[int, int, int]]:
        """What has to move from where to where, last things first: nobody is ever without room."""
        moves: list[tuple[int, int, int]] = []
        enter = end
        while enter in self._before:
            item, leave = self._before[enter]
            moves.append((item, leave, enter))
            enter = leave
        return moves

    def _finish(self, member: int, is_kept: bool) -> int:
        """Find room for one of the member's items."""
        placement, here = self._placement, self._placement.problem.zone_of[member]
        for mobility, group in placement.items_of(member, is_kept).items():
            found = [self._mover(zone, group) for zone in mobility.zones_from(here, self._spread)]
            ends = [(placement.weight(end), end, item) for item, end in found if end != NOBODY]
            if ends:
                _, end, item = min(ends)
                self._before[end] = item, member
                return end
        return NOBODY

    def _mover(self, zone: int, group: dict[int, None]) -> tuple[int, int]:
        """One of a group that does not hold all who have room in `zone`, and whom it could go to."""
        placement = self._placement
        if placement.lightest(zone, ()) == NOBODY:
            return NOBODY, NOBODY
        found, stuck = (NOBODY, NOBODY), []
        for item in group:
            if (end := placement.lightest(zone, placement.held[item])) != NOBODY:
                found = item, end
                break
            stuck.append(item)
        _to_the_back(group, stuck)
        return found

    def _go_on(self, member: int, reached: list[int], is_kept: bool) -> None:
        here = self._placement.problem.zone_of[member]
        for mobility, group in self._placement.items_of(member, is_kept).items():
            for zone in mobility.zones_from(here, self._spread):
                if self.unreached[zone]:
                    _to_the_back(group, self._reach(zone, group, member, reached))

    def _go_back(self, member: int, reached: list[int]) -> None:
        """Let items of the member return to where they are now: that is no move at all."""
        placement, zone_of = self._placement, self._placement.problem.zone_of
        if len(placement.astray) > ASTRAY_MAX:
            return
        for item in placement.astray:
            if member not in placement.held[item]:
                continue
            zones = placement.mobility(item).zones_from(zone_of[member], self._spread)
            for back in placement.lost(item):
                zone = zone_of[back]
                if zone in zones and back in self.unreached[zone]:
                    self.unreached[zone].remove(back)
                    self._before[back] = item, member
                    reached.append(back)

    def _reach(self, zone: int, items: Sequence[int] | dict[int, None], leave: int, reached: list[int]) -> list[int]:
        """All members of a zone that one of the items could go to. Returns the items that could go to none."""
        stuck: list[int] = []
        for item in items:
            held, missed = self._placement.held[item], []
            for member in self.unreached[zone]:
                if member in held:
                    missed.append(member)
                else:
                    self._before[member] = item, leave
                    reached.append(member)
            if len(missed) == len(self.unreached[zone]):
                stuck.append(item)
            self.unreached[zone] = missed
            if not missed:
                break
        return stuck


def _to_the_back(group: dict[int, None], items: list[int]) -> None:
    """Those that were of no use are looked at last the next time, or many searches would walk past them again."""
    for item in items:
        del group[item]
        group[item] = None
