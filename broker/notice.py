"""Notice: of something that happens once, for whoever asked to be told."""

from __future__ import annotations

from collections.abc import Callable

Withdraw = Callable[[], None]
"""Ends a wait. What was waited for is not told any more."""


class Notice:
    __slots__ = ("_listeners", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._listeners: dict[object, Callable[[], None]] = {}

    def listen(self, told: Callable[[], None]) -> Withdraw:
        """Call `told` when it happens, or now if it has. What is returned takes that back."""
        if self.is_fired:
            told()
            return lambda: None
        key = object()
        self._listeners[key] = told
        return lambda: self._forget(key)

    def fire(self) -> None:
        if not self.is_fired:
            self.is_fired = True
            # One at a time: what one of them does may make another take it back.
            while self._listeners:
                self._listeners.pop(next(iter(self._listeners)))()

    def _forget(self, key: object) -> None:
        self._listeners.pop(key, None)
