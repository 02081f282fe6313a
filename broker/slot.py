"""Slot: something of which there is one, and which passes from hand to hand.

A journal's spool and its pipeline are each kept in one. Whoever takes what is in it has it alone, until it is put
back; those who wait are served in the order they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")

_SWEPT_MIN = 64


class Wait(Generic[ValueT]):
    """A place in the queue. It may be given up until it was served."""

    __slots__ = ("_granted",)

    def __init__(self, granted: Callable[[ValueT], None]) -> None:
        self._granted: Callable[[ValueT], None] | None = granted

    @property
    def is_over(self) -> bool:
        return self._granted is None

    def withdraw(self) -> None:
        self._granted = None

    def serve(self, value: ValueT) -> None:
        granted, self._granted = self._granted, None
        assert granted is not None
        granted(value)


class Slot(Generic[ValueT]):
    __slots__ = ("_held", "_is_serving", "_swept_at", "_waiting")

    def __init__(self, value: ValueT) -> None:
        # In a list, since None is a value too: that of a pipeline which is to be built.
        self._held: list[ValueT] = [value]
        # None while nobody waits, as nearly always: there are thousands of slots.
        self._waiting: deque[Wait[ValueT]] | None = None
        # When there are so many, those who have given up are forgotten: there may be any number of them.
        self._swept_at = _SWEPT_MIN
        self._is_serving = False

    @property
    def is_taken(self) -> bool:
        return not self._held

    def take(self, granted: Callable[[ValueT], None]) -> Wait[ValueT]:
        """Call `granted` with the value once it is this caller's turn, which may be now."""
        wait = Wait(granted)
        if self._waiting is None:
            self._waiting = deque()
        elif len(self._waiting) >= self._swept_at:
            self._waiting = deque(known for known in self._waiting if not known.is_over)
            self._swept_at = max(_SWEPT_MIN, 2 * len(self._waiting))
        self._waiting.append(wait)
        self._serve()
        return wait

    def peek(self) -> ValueT | None:
        """What is in it, to be looked at; None if somebody has it."""
        return self._held[0] if self._held else None

    def put(self, value: ValueT) -> None:
        assert not self._held, "put into a slot what was not taken from it"
        self._held.append(value)
        self._serve()

    def _serve(self) -> None:
        """In a loop, not by recursion: each of a thousand who wait may put the value back at once."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._held and self._waiting:
                wait = self._waiting.popleft()
                if not wait.is_over:
                    wait.serve(self._held.pop())
            if not self._waiting:
                self._waiting = None
        finally:
            self._is_serving = False
