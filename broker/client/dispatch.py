"""Dispatch: which broker to ask.

Appends go straight to the primary, and are not passed on by another: of an append that a second broker has passed on
and then heard no more of, nobody could say whether it was done. Where members cannot be reached from here, since all
we are given is the address of a load balancer or of a tunnel, brokers do pass on what we ask.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from zlib import crc32

from broker.client.route_cache import RouteCache
from protocol.route import Route

AVOIDED_S = 5.0
"""For so long a broker that could not be reached is asked only if there is no other."""
PROXIED_S = 60.0
"""For so long members are not tried, after it has turned out that they cannot be reached."""
SEEN_MAX = 64


class Target(NamedTuple):
    endpoint: str
    # Whether that broker is to pass the call on if it cannot serve it itself.
    may_proxy: bool


class Dispatch:
    """
    >>> from protocol.route import ProcessId
    >>> route = Route((ProcessId("a", "one"), ProcessId("b", "two")), 0, ("http://one:80", "http://two:80"))
    >>> dispatch = Dispatch(("http://any:80",), zone="b")
    >>> dispatch.for_append("acme/orders", now_s=0.0)
    Target(endpoint='http://any:80', may_proxy=False)
    >>> dispatch.learn("acme/orders", route, now_s=0.0)
    >>> dispatch.for_append("acme/orders", now_s=0.0).endpoint, dispatch.for_read("acme/orders", now_s=0.0).endpoint
    ('http://one:80', 'http://two:80')
    """

    def __init__(self, addresses: tuple[str, ...], zone: str = "", routes: RouteCache | None = None) -> None:
        self._addresses = addresses
        self._zone = zone
        self._routes = routes or RouteCache()
        self._failed_s: dict[str, float] = {}
        # Brokers that were named to us and did answer, for when the addresses we were given do not.
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._proxied_until_s = 0.0

    def for_any(self, now_s: float) -> str:
        """One that can be asked anything: the first that is not known to be out of reach, else the least recent."""
        seen: list[str] = [] if self._is_proxied(now_s) else [*reversed(self._seen)]
        known = [*self._addresses, *seen]
        for endpoint in known:
            if not self._is_avoided(endpoint, now_s):
                return endpoint
        return min(known, key=lambda endpoint: self._failed_s.get(endpoint, 0.0))

    def for_append(self, journal: str, now_s: float) -> Target:
        if self._is_proxied(now_s):
            return Target(self.for_any(now_s), may_proxy=True)
        route = self._routes.get(journal, now_s)
        if route is None or route.primary is None or route.endpoints is None:
            return Target(self.for_any(now_s), may_proxy=False)
        return Target(route.endpoints[route.primary], may_proxy=False)

    def for_read(self, journal: str, now_s: float) -> Target:
        if self._is_proxied(now_s):
            return Target(self.for_any(now_s), may_proxy=True)
        route = self._routes.get(journal, now_s)
        if route is None or route.endpoints is None:
            return Target(self.for_any(now_s), may_proxy=False)
        members = list(zip(route.members, route.endpoints, strict=True))

        def rank(at: int) -> tuple[bool, bool, int]:
            member, endpoint = members[at]
            # Among equals a journal has its favourite, so that the readers of many journals ask many brokers.
            turn = (at + crc32(journal.encode())) % len(members)
            return self._is_avoided(endpoint, now_s), member.zone != self._zone, turn

        return Target(members[min(range(len(members)), key=rank)][1], may_proxy=False)

    def learn(self, journal: str, route: Route, now_s: float) -> None:
        self._routes.update(journal, route, now_s)

    def reached(self, endpoint: str) -> None:
        """A call to this broker got through."""
        self._failed_s.pop(endpoint, None)
        if endpoint in self._addresses:
            return
        self._proxied_until_s = 0.0
        self._seen[endpoint] = None
        self._seen.move_to_end(endpoint)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def failed(self, endpoint: str, journal: str | None, now_s: float) -> None:
        """It could not be reached, or has stopped answering."""
        self.avoid(endpoint, now_s)
        if journal is not None:
            self._routes.forget(journal)
        if endpoint not in self._addresses and not self._seen:
            self._proxied_until_s = now_s + PROXIED_S

    def avoid(self, endpoint: str, now_s: float) -> None:
        """It lacks what others have: for a while they are asked first."""
        self._failed_s = {one: at for one, at in self._failed_s.items() if now_s - at < AVOIDED_S}
        self._failed_s[endpoint] = now_s

    def _is_avoided(self, endpoint: str, now_s: float) -> bool:
        return now_s - self._failed_s.get(endpoint, -AVOIDED_S) < AVOIDED_S

    def _is_proxied(self, now_s: float) -> bool:
        return now_s < self._proxied_until_s
