"""PersistQueue: which completed spools are to be uploaded now, and when the others are.

The primary's copy goes at once. A replica's copy is insurance: by the time it is due, the primary's object is
normally there and nothing is left to do, unless a primary died before it could upload it. So whoever goes on as primary
takes along what it has of the journal's earlier bytes. Nothing of a journal is uploaded before its first fragment: to a
broker that has only the listing to go by, a journal begins with the lowest object there is, and readers are sent there.

Failures come back after a pause that grows and varies, each on its own:
a store that was down is not met by all of them at the same instant, nor one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

INSURANCE_S = (120.0, 180.0)
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
# Where flush intervals end, thousands of fragments are complete at the same second. Each that finds others waiting
# is put off by up to this much for each of them, so that stores and disks see a slope and not a wall.
SMOOTHING_S, SMOOTHING_S_MAX = 0.02, 30.0


@dataclass(slots=True, eq=False)
class _Waiting(Generic[ItemT]):
    item: ItemT
    due_s: float
    # Only what is acknowledged or decided may be uploaded; until then time does not matter.
    is_open: bool
    # Of which journal it is, and where it begins there.
    journal: Hashable
    begin: int
    attempts: int = 0
    is_running: bool = False


class PersistQueue(Generic[ItemT]):
    """Decides only; the Persister uploads. Items are told apart by identity."""

    def __init__(self, parallel_max: int, chance: random.Random) -> None:
        self._parallel_max = parallel_max
        self._chance = chance
        self._waiting: dict[int, _Waiting[ItemT]] = {}
        # Of these, all of a journal, and the first fragments of journals.
        self._journals: dict[Hashable, dict[int, _Waiting[ItemT]]] = {}
        self._firsts: dict[Hashable, _Waiting[ItemT]] = {}
        # Those that wait for their time only, and such as once did. A process may start with thousands.
        self._due: list[tuple[float, int, _Waiting[ItemT]]] = []
        self._count = 0
        self._running = 0
        self._is_hurried = False

    def __len__(self) -> int:
        return len(self._waiting)

    def items(self) -> list[ItemT]:
        """All that are not done, running ones included, oldest first."""
        # Put into a list first: those who measure ask from another thread.
        return [waiting.item for waiting in list(self._waiting.values())]

    def has(self, item: ItemT) -> bool:
        return id(item) in self._waiting

    @property
    def shut_count(self) -> int:
        """How many do not go by themselves: nobody has decided on them, or on the first fragment of their journal."""
        return sum(
            not held.is_open or not self._firsts.get(held.journal, held).is_open for held in self._waiting.values()
        )

    def add(self, item: ItemT, now_s: float, *, primary: bool, is_open: bool, at: tuple[Hashable, int]) -> None:
        """`at` says of which journal it is, in which incarnation, and where it begins there."""
        journal, begin = at
        if primary:
            due_s = now_s + self._chance.uniform(0.0, min(SMOOTHING_S_MAX, SMOOTHING_S * len(self._waiting)))
            self._hasten(journal, due_s)
        else:
            due_s = now_s + self._chance.uniform(*INSURANCE_S)
        held = self._waiting[id(item)] = _Waiting(item, due_s, is_open, journal, begin)
        self._journals.setdefault(journal, {})[id(item)] = held
        if begin == 0:
            self._firsts[journal] = held
        self._await(held)

    def _hasten(self, journal: Hashable, due_s: float) -> None:
        for held in self._journals.get(journal, {}).values():
            if not held.attempts and due_s < held.due_s:
                held.due_s = due_s
                self._await(held)

    def open(self, item: ItemT, now_s: float | None = None) -> None:
        """The item may be uploaded from now on; at `now_s`, if that is before it is due."""
        if held := self._waiting.get(id(item)):
            held.is_open = True
            if now_s is not None and not held.attempts:
                held.due_s = min(held.due_s, now_s)
            self._await(held)

    def start(self, now_s: float) -> list[ItemT]:
        """What to begin now: the due ones, longest overdue first, as many as may run beside the running ones."""
        started: list[ItemT] = []
        while self._running < self._parallel_max and (held := self._next()) is not None and held.due_s <= now_s:
            heappop(self._due)
            held.is_running = True
            self._running += 1
            started.append(held.item)
        return started

    def next_due_s(self) -> float | None:
        """When ``start`` will have something that it does not have now; None: not by time alone."""
        held = self._next() if self._running < self._parallel_max else None
        return None if held is None else held.due_s

    def done(self, item: ItemT) -> None:
        held = self._waiting.pop(id(item))
        self._running -= 1
        others = self._journals[held.journal]
        del others[id(item)]
        if not others:
            del self._journals[held.journal]
        if self._firsts.get(held.journal) is held:
            del self._firsts[held.journal]
            for other in others.values():
                self._await(other)

    def failed(self, item: ItemT, now_s: float) -> float:
        """Put the item back; returns after how many seconds it is due again."""
        held = self._waiting[id(item)]
        self._running -= 1
        held.is_running = False
        ceiling = min(RETRY_S_MAX, RETRY_S_MIN * 2**held.attempts)
        held.attempts = min(held.attempts + 1, 16)
        pause_s = self._chance.uniform(ceiling / 2, ceiling)
        held.due_s = now_s + pause_s
        self._await(held)
        return pause_s

    def hurry(self) -> None:
        """The process is leaving: insurance is due at once. Pauses after failures stay."""
        self._is_hurried = True
        for held in self._waiting.values():
            self._await(held)

    def _await(self, held: _Waiting[ItemT]) -> None:
        """Have it start in its time, if it waits for nothing else."""
        if self._is_hurried and not held.attempts:
            held.due_s = 0.0
        if held.is_open and not held.is_running and not self._is_behind(held):
            self._count += 1
            heappush(self._due, (held.due_s, self._count, held))

    def _next(self) -> _Waiting[ItemT] | None:
        """That which is due first. What was put off, or has started, or is behind another by now, is found here."""
        while self._due:
            due_s, _, held = self._due[0]
            is_current = self._waiting.get(id(held.item)) is held and due_s == held.due_s
            if is_current and not held.is_running and not self._is_behind(held):
                return held
            heappop(self._due)
        return None

    def _is_behind(self, held: _Waiting[ItemT]) -> bool:
        """Whether the first fragment of its journal has to go before it."""
        return self._firsts.get(held.journal, held) is not held
