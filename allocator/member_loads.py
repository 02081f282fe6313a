"""MemberLoads: how much every member holds, as it will be once the step that is being planned is done.

Every replica is as heavy as any other. Should items ever differ in weight, it is here, in ``State`` and in
``Placement`` that it counts; the rules of ``converge`` ask, and know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Generic

from allocator.state import AssignmentT, ItemT, MemberT, State


class MemberLoads(Generic[ItemT, MemberT, AssignmentT]):
    def __init__(self, state: State[ItemT, MemberT, AssignmentT]) -> None:
        self._position = state.position
        self._limits = state.limits
        self._totals = list(state.totals)
        self._primaries = list(state.primaries)

    def has_room(self, member: str) -> bool:
        at = self._position.get(member)
        return at is not None and self._totals[at] < self._limits[at]

    def of_all(self, member: str) -> float:
        """How much of what a member can take it has."""
        return self._ratio(self._totals, member)

    def of_primaries(self, member: str) -> float:
        return self._ratio(self._primaries, member)

    def add(self, member: str, slot: int) -> None:
        self._count(member, 1, slot)

    def remove(self, member: str, slot: int) -> None:
        self._count(member, -1, slot)

    def _ratio(self, counts: Sequence[int], member: str) -> float:
        """Nobody is loaded more than one that should have nothing."""
        at = self._position[member]
        return counts[at] / self._limits[at] if self._limits[at] else inf

    def _count(self, member: str, by: int, slot: int) -> None:
        at = self._position.get(member)
        if at is not None:
            self._totals[at] += by
            if slot == 0:
                self._primaries[at] += by
