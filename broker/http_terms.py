"""Terms: for how long requests may go on, which is while their token is valid and until this server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.auth import Claims
from protocol.rpc.authorization import Authorizer

# No timer is set for longer: a token may expire in some billion years.
_TIMER_S_MAX = 24 * 3600.0

STOPPED = "this broker stops: another one takes over"
EXPIRED = "the token has expired: get a fresh one"


class TermOverError(Exception):
    """The term of a stream is over. The text says why."""


class Terms:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._scopes: set[asyncio.Timeout] = set()
        self.is_over = False

    def remaining_s(self, claims: Claims) -> float | None:
        """None if they do not expire."""
        return self._authorizer.remaining_s(claims)

    @asynccontextmanager
    async def during(self, claims: Claims) -> AsyncIterator[None]:
        """Raises a TermOverError out of the body once its time has come."""
        remaining_s = self.remaining_s(claims)
        scope = asyncio.timeout(None if remaining_s is None else min(remaining_s, _TIMER_S_MAX))
        try:
            async with scope:
                self._scopes.add(scope)
                if self.is_over:
                    raise TermOverError(STOPPED)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise TermOverError(STOPPED if self.is_over else EXPIRED) from None
        finally:
            self._scopes.discard(scope)

    def end(self) -> None:
        """For all, those to come included."""
        self.is_over = True
        now_s = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now_s)
