"""HttpGateway: journals for whoever speaks HTTP. It serves the path of a journal, /v1/ in JSON, and diagnostics.

Everything is asked of this process, with the rights of the caller's own token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import Counter

from broker.debug_server import PATHS as DIAGNOSTIC_PATHS
from broker.debug_server import Diagnostics
from broker.http_append import serve_append
from broker.http_cors import Cors
from broker.http_exchange import CLOSE, ClientGoneError, Exchange, GatewayLimits
from broker.http_read import serve_read
from broker.http_rest import CAPABILITIES, PREFIX, error_document, not_implemented, serve_rest
from broker.http_status import RETRY_AFTER, Refusal, RefusedRequestError, failure_refusal
from broker.http_target import ReadWanted, Target, append_wanted
from broker.http_terms import STOPPED, Terms
from broker.journals import Journals
from protocol.auth import Capability, Claims
from protocol.errors import InvariantError, UnauthenticatedError
from protocol.rpc.authorization import Authorizer
from protocol.rpc.failure import cause_of, failure_of
from protocol.selector import LabelSelector

log = logging.getLogger(__name__)

_METHODS = {"GET": Capability.READ, "HEAD": Capability.READ, "PUT": Capability.APPEND}
_ALLOWED = "GET, HEAD, PUT, OPTIONS"
# Within which requests that were cancelled should have let go.
_CANCEL_S = 3.0
_NOBODY = Claims(0, LabelSelector(), 0)

_HEADERS = {"Server": "pygazette", "X-Content-Type-Options": "nosniff"}

REQUESTS = Counter("gazette_http_requests_total", "Requests of HTTP that were answered.", ["method", "code"])


class HttpGateway:
    """`handle` is what an HTTP server is made with. To stop, `drain` it first."""

    def __init__(
        self,
        journals: Journals,
        authorizer: Authorizer,
        diagnostics: Diagnostics,
        *,
        cors: Cors | None = None,
        is_private: bool = False,
        limits: GatewayLimits | None = None,
        broke: Callable[[InvariantError], None] | None = None,
    ) -> None:
        self._journals = journals
        self._authorizer = authorizer
        self._diagnostics = diagnostics
        # Whether metrics are on the debug port alone.
        self._is_private = is_private
        self._cors = cors or Cors()
        self.limits = limits or GatewayLimits()
        # Told of what must not go on.
        self._broke = broke
        self._terms = Terms(authorizer)
        self._running: set[asyncio.Task[object]] = set()

    async def drain(self, grace_s: float) -> None:
        """Long reads end, appends have `grace_s` to, and no others begin."""
        self._terms.end()
        for timeout_s in (grace_s, _CANCEL_S):
            if self._running:
                _, left = await asyncio.wait(self._running, timeout=timeout_s)
                for task in left:
                    task.cancel()
        if self._running:
            log.error("the gateway stopped while requests were still running", extra={"requests": len(self._running)})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        exchange = Exchange(request, {**_HEADERS, **self._cors.headers(origin)}, _NOBODY, self.limits)
        try:
            response = await self._answer(exchange, origin)
        except ClientGoneError:
            raise
        except Exception as raised:
            error = cause_of(raised)
            if isinstance(error, InvariantError) and self._broke is not None:
                self._broke(error)
            if exchange.is_begun:
                failure_of(error, request.method)
                raise ClientGoneError from error
            response = self._refused(exchange, _refusal(error, request.method))
        method = request.method if request.method in (*_METHODS, "POST", "OPTIONS") else "other"
        REQUESTS.labels(method, str(response.status)).inc()
        return response

    def _refused(self, exchange: Exchange, refusal: Refusal) -> web.Response:
        if exchange.request.raw_path.startswith(PREFIX):
            return exchange.document(refusal.code, error_document(refusal), refusal.headers)
        return exchange.refused(refusal)

    async def _answer(self, exchange: Exchange, origin: str | None) -> web.StreamResponse:
        request = exchange.request
        target = Target.parse(request.raw_path)
        if request.method == "OPTIONS":
            return exchange.empty(200, {"Allow": _ALLOWED, **self._cors.preflight_headers(origin)})
        if target.path in DIAGNOSTIC_PATHS:
            answer = await self._diagnostics.answer(request.method, target.path, is_private=self._is_private)
            answer.headers.update(_HEADERS)
            return answer
        if target.path.startswith(PREFIX):
            return await self._rest(exchange, target)
        capability = _METHODS.get(request.method)
        if capability is None:
            raise RefusedRequestError(
                Refusal(405, "GET and HEAD read a journal, PUT appends to it", {"Allow": _ALLOWED, **CLOSE})
            )
        with self._admitted(exchange, capability):
            if request.method == "PUT":
                return await serve_append(exchange, self._journals, append_wanted(target), self._terms)
            wanted = ReadWanted.of(target, request.headers.get("Range"))
            return await serve_read(exchange, self._journals, wanted, self._terms)

    async def _rest(self, exchange: Exchange, target: Target) -> web.StreamResponse:
        capability = CAPABILITIES.get(target.path)
        if capability is None or exchange.request.method != "POST":
            return not_implemented(exchange)
        with self._admitted(exchange, capability):
            return await serve_rest(exchange, self._journals, target.path, self._terms)

    @contextmanager
    def _admitted(self, exchange: Exchange, capability: Capability) -> Iterator[None]:
        """Raises unless the caller may, and we can."""
        headers = ((name.lower(), value) for name, value in exchange.request.headers.items())
        claims = self._authorizer.claims(headers, capability)
        remaining_s = self._terms.remaining_s(claims)
        if remaining_s is not None and remaining_s <= 0:
            raise UnauthenticatedError("the token has expired: get a fresh one and try again")
        if self._terms.is_over:
            raise RefusedRequestError(Refusal(503, STOPPED, {**RETRY_AFTER, **CLOSE}))
        if not self._journals.is_serving:
            raise RefusedRequestError(Refusal(503, "this broker is starting: try again", dict(RETRY_AFTER)))
        exchange.claims = claims
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)


def _refusal(error: Exception, method: str) -> Refusal:
    if isinstance(error, RefusedRequestError):
        return error.refusal
    failure = failure_of(error, method)
    return failure_refusal(failure.code, failure.details)
