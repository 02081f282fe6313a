"""Notice: of something that happens once, for whoever asked to be told."""

from __future__ import annotations

from collections.abc import Callable


class Notice:
    __slots__ = ("_listeners", "is_fired")

    def __init__(self) -> None:
        self.is_fired = False
        self._listeners: dict[int, Callable[[], None]] = {}

    def listen(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` when it happens, or now if it has. What is returned takes that back."""
        if self.is_fired:
            told()
            return lambda: None
        key = id(told)
        self._listeners[key] = told
        return lambda: self._forget(key)

    def fire(self) -> None:
        if not self.is_fired:
            self.is_fired = True
            listeners, self._listeners = self._listeners, {}
            for told in listeners.values():
                told()

    def _forget(self, key: int) -> None:
        self._listeners.pop(key, None)
