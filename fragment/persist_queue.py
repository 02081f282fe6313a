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
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

INSURANCE_S = (120.0, 180.0)
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
# Where flush intervals end, thousands of fragments are complete at the same second. Each that finds others waiting
# is put off by up to this much for each of them, so that stores and disks see a slope and not a wall.
SMOOTHING_S, SMOOTHING_S_MAX = 0.02, 30.0


@dataclass(slots=True)
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
        # Of these, the first fragments of journals.
        self._firsts: dict[Hashable, _Waiting[ItemT]] = {}
        self._running = 0
        self._is_hurried = False

    def __len__(self) -> int:
        return len(self._waiting)

    def items(self) -> list[ItemT]:
        """All that are not done, running ones included, oldest first."""
        return [waiting.item for waiting in self._waiting.values()]

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
        if begin == 0:
            self._firsts[journal] = held

    def _hasten(self, journal: Hashable, due_s: float) -> None:
        for held in self._waiting.values():
            if held.journal == journal and not held.attempts:
                held.due_s = min(held.due_s, due_s)

    def open(self, item: ItemT) -> None:
        """The item may be uploaded from now on."""
        if waiting := self._waiting.get(id(item)):
            waiting.is_open = True

    def start(self, now_s: float) -> list[ItemT]:
        """What to begin now: the due ones, longest overdue first, as many as may run beside the running ones."""
        due = [
            held
            for held in self._waiting.values()
            if held.is_open and not held.is_running and self._is_due(held, now_s) and not self._is_behind(held)
        ]
        due.sort(key=lambda held: held.due_s)
        started = due[: max(0, self._parallel_max - self._running)]
        for held in started:
            held.is_running = True
        self._running += len(started)
        return [held.item for held in started]

    def next_due_s(self) -> float | None:
        """When ``start`` will have something that it does not have now; None: not by time alone."""
        if self._running >= self._parallel_max:
            return None
        return min(
            (
                held.due_s
                for held in self._waiting.values()
                if held.is_open and not held.is_running and not self._is_behind(held)
            ),
            default=None,
        )

    def done(self, item: ItemT) -> None:
        self._running -= 1
        held = self._waiting.pop(id(item))
        if self._firsts.get(held.journal) is held:
            del self._firsts[held.journal]

    def failed(self, item: ItemT, now_s: float) -> float:
        """Put the item back; returns after how many seconds it is due again."""
        held = self._waiting[id(item)]
        self._running -= 1
        held.is_running = False
        ceiling = min(RETRY_S_MAX, RETRY_S_MIN * 2**held.attempts)
        held.attempts = min(held.attempts + 1, 16)
        pause_s = self._chance.uniform(ceiling / 2, ceiling)
        held.due_s = now_s + pause_s
        return pause_s

    def hurry(self) -> None:
        """The process is leaving: insurance is due at once. Pauses after failures stay."""
        self._is_hurried = True

    def _is_due(self, held: _Waiting[ItemT], now_s: float) -> bool:
        return held.due_s <= now_s or (self._is_hurried and held.attempts == 0)

    def _is_behind(self, held: _Waiting[ItemT]) -> bool:
        """Whether the first fragment of its journal has to go before it."""
        return self._firsts.get(held.journal, held) is not held
