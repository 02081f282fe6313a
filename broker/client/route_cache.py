"""RouteCache: which brokers hold a journal, as far as their answers have told. Bounded, and forgets what is old."""

from __future__ import annotations

from collections import OrderedDict

from protocol.route import Route


class RouteCache:
    def __init__(self, size: int = 4096, ttl_s: float = 600.0) -> None:
        self._size = size
        self._ttl_s = ttl_s
        # With the time until which they are believed; the one used last is last.
        self._routes: OrderedDict[str, tuple[float, Route]] = OrderedDict()

    def get(self, journal: str, now_s: float) -> Route | None:
        held = self._routes.get(journal)
        if held is None:
            return None
        until_s, route = held
        if now_s >= until_s:
            del self._routes[journal]
            return None
        self._routes.move_to_end(journal)
        return route

    def update(self, journal: str, route: Route, now_s: float) -> None:
        """A route without members, or to members of which it does not say where they are, is no route."""
        if not route.members or not route.endpoints or not all(route.endpoints):
            self.forget(journal)
            return
        self._routes[journal] = (now_s + self._ttl_s, route)
        self._routes.move_to_end(journal)
        if len(self._routes) > self._size:
            self._routes.popitem(last=False)

    def forget(self, journal: str) -> None:
        self._routes.pop(journal, None)

    def __len__(self) -> int:
        return len(self._routes)
