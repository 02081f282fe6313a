"""RpcServer: serves RpcMethods on a port, on the terms of their Rules, and stops within a bound.

What a client sends can fail its own call and nothing else. Messages are read and written here and not by grpcio, which
would answer one that it cannot read with the text of an exception, and a call without a request with nothing at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from protocol.errors import InvariantError
from protocol.rpc import health, reflection
from protocol.rpc.authorization import Authorizer
from protocol.rpc.failure import StatusError, cause_of, failure_of
from protocol.rpc.guarded_server import guarded_server
from protocol.rpc.keepalive import KeepAlive, Options
from protocol.rpc.method import AtExpiry, Call, Kind, RpcMethod, ServicerContext
from protocol.rpc.metrics import MethodMetrics
from protocol.rpc.tls import ServerTls, server_credentials

_LOG = logging.getLogger(__name__)

STOP_S = 15.0
"""How long calls may go on after a server was told to stop."""

# Within which handlers that were cancelled should have let go.
_CANCEL_S = 3.0
# No timer is set for longer: a token may expire in some billion years.
_CALL_S_MAX = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much a server takes on. What is beyond gets RESOURCE_EXHAUSTED; further streams of a connection wait."""

    receive_bytes_max: int = 4 << 20
    metadata_bytes_max: int = 20 << 10
    streams_per_connection_max: int = 4096
    long_lived_max: int = 10_000
    calls_max: int = 20_000
    # A connection has this long for its TLS and HTTP/2 handshakes.
    handshake_s: float = 10.0
    # One without calls is closed after this.
    idle_connection_s: float = 600.0

    def options(self) -> Options:
        return (
            ("grpc.max_receive_message_length", self.receive_bytes_max),
            # Equal, or gRPC would refuse some of those in between by chance.
            ("grpc.max_metadata_size", self.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes_max),
            ("grpc.max_concurrent_streams", self.streams_per_connection_max),
            ("grpc.server_handshake_timeout_ms", int(self.handshake_s * 1000)),
            ("grpc.max_connection_idle_ms", int(self.idle_connection_s * 1000)),
            # Else two processes may listen on one port, and each gets some of the other's calls.
            ("grpc.so_reuseport", 0),
        )


class RpcServer:
    """Serves `services`, each a name and its methods, besides health and reflection."""

    def __init__(
        self,
        services: Mapping[str, Sequence[RpcMethod[Any, Any]]],
        authorizer: Authorizer,
        *,
        tls: ServerTls | None = None,
        limits: ServerLimits | None = None,
        keepalive: KeepAlive | None = None,
    ) -> None:
        self.authorizer = authorizer
        self.health = health.Health(tuple(services))
        self._tls = tls
        limits = limits or ServerLimits()
        options = (*limits.options(), *(keepalive or KeepAlive()).server_options())
        self._server = guarded_server(options, limits.calls_max)
        self._running = 0
        self._without_calls = asyncio.Event()
        self._without_calls.set()
        self._open_streams = _Places(limits.long_lived_max, "long-lived streams")
        self._is_stopping = False
        # The scopes of streams that end with OK when the server stops.
        self._ending: set[asyncio.Timeout] = set()
        self._broken: asyncio.Future[InvariantError] = asyncio.get_running_loop().create_future()
        reflected = reflection.reflection_methods((*services, health.SERVICE, *reflection.SERVICES))
        for service, methods in {
            **services,
            health.SERVICE: self.health.methods(),
            **dict.fromkeys(reflection.SERVICES, reflected),
        }.items():
            self._register(service, methods)

    def _register(self, service: str, methods: Sequence[RpcMethod[Any, Any]]) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for method in methods:
            served = _ServedMethod(self, service, method)
            # Of the request side all are streams to grpcio, so that a missing request is ours to answer.
            if method.kind in (Kind.UNARY_UNARY, Kind.STREAM_UNARY):
                handlers[method.name] = grpc.stream_unary_rpc_method_handler(served.serve)
            else:
                handlers[method.name] = grpc.stream_stream_rpc_method_handler(served.serve)
        self._server.add_registered_method_handlers(service, handlers)

    def listen(self, address: str) -> int:
        """Bind `host:port`, where port 0 is any free one, or `unix:///path`, where TLS does not apply. The port."""
        try:
            if self._tls is None or address.startswith("unix:"):
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, server_credentials(self._tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: is another process using it?") from error

    async def start(self) -> None:
        await self._server.start()

    async def wait_stopped(self) -> None:
        """Until `stop` is done. Raises if a handler has broken an invariant, or the server has ended by itself: run it
        beside the rest of a process, so that this goes down with it."""
        ended = asyncio.get_running_loop().create_task(self._wait_ended())
        try:
            await asyncio.wait((ended, self._broken), return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                raise self._broken.result()
            ended.result()
        finally:
            ended.cancel()

    async def _wait_ended(self) -> None:
        # With a timeout, because grpcio takes it badly if a wait without one is cancelled.
        while await self._server.wait_for_termination(3600.0):
            pass
        if not self._is_stopping:
            raise InvariantError("the gRPC server has ended by itself")

    async def stop(self, grace_s: float = STOP_S) -> None:
        """No new calls; long streams end, other calls have `grace_s` to, and are cancelled then."""
        self._is_stopping = True
        self.health.set_all(is_serving=False)
        now_s = asyncio.get_running_loop().time()
        for scope in self._ending:
            if not scope.expired():
                scope.reschedule(now_s)
        try:
            async with asyncio.timeout(grace_s + _CANCEL_S):
                await self._server.stop(grace_s)
                # grpcio does not wait for handlers that it has cancelled, but what they hold is to be let go of.
                await self._without_calls.wait()
        except TimeoutError:
            _LOG.error("the server stopped while calls were running on", extra={"calls": self._running})

    async def run(self, method: RpcMethod[Any, Any], call: Call[Any, Any]) -> object:
        """A call of `method`, for as long as its token lasts and, for one that may end, the server."""
        at_expiry = method.rules.at_expiry
        remaining_s = self.authorizer.remaining_s(call.claims)
        if remaining_s is not None and remaining_s <= 0:
            raise _expired()
        if at_expiry is AtExpiry.GO_ON or (at_expiry is AtExpiry.FAIL and remaining_s is None):
            return await method.handle(call)
        scope = asyncio.timeout(None if remaining_s is None else min(remaining_s, _CALL_S_MAX))
        try:
            async with scope:
                if at_expiry is AtExpiry.END:
                    self._ending.add(scope)
                    if self._is_stopping:
                        return None
                return await method.handle(call)
        except TimeoutError:
            if not scope.expired():
                raise
            if at_expiry is AtExpiry.END:
                return None
            raise _expired() from None
        finally:
            self._ending.discard(scope)

    @contextmanager
    def counted(self, is_long_lived: bool) -> Iterator[None]:
        self._running += 1
        self._without_calls.clear()
        try:
            if is_long_lived:
                with self._open_streams.taken():
                    yield
            else:
                yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._without_calls.set()

    def broke(self, error: InvariantError) -> None:
        if not self._broken.done():
            self._broken.set_result(error)


def _expired() -> StatusError:
    return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, "the token has expired: get a fresh one and try again")


class _Places:
    """So many may be taken at a time."""

    def __init__(self, places_max: int | None, what: str) -> None:
        self._left = places_max
        self._what = what

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._left is None:
            yield
            return
        if self._left == 0:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"this server has as many {self._what} as it takes on: try later"
            )
        self._left -= 1
        try:
            yield
        finally:
            self._left += 1


class _ServedMethod:
    """One method at one server, as grpcio calls it."""

    def __init__(self, server: RpcServer, service: str, method: RpcMethod[Any, Any]) -> None:
        is_stream = method.kind in (Kind.UNARY_STREAM, Kind.STREAM_STREAM)
        if method.rules.at_expiry is AtExpiry.END and not is_stream:
            raise InvariantError(f"{method.name} has one answer: it cannot end without")
        self._server = server
        self._method = method
        self._path = f"/{service}/{method.name}"
        self._metrics = MethodMetrics(service, method.name, method.kind)
        self._places = _Places(method.rules.calls_max, "calls of this method")

    async def serve(self, _requests: object, context: ServicerContext) -> bytes | None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        code = grpc.StatusCode.CANCELLED
        self._metrics.started.inc()
        try:
            response = await self._response(context)
            code = grpc.StatusCode.OK
            return response
        except Exception as raised:
            error = cause_of(raised)
            # The client is gone, or the server; grpcio knows which.
            if isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError):
                raise error from None
            if isinstance(error, InvariantError):
                self._server.broke(error)
            failure = failure_of(error, self._path)
            code = failure.code
            await context.abort(failure.code, failure.details)
        finally:
            self._metrics.ended(code, clock() - began_s)

    async def _response(self, context: ServicerContext) -> bytes | None:
        rules = self._method.rules
        claims = self._server.authorizer.claims(context.invocation_metadata() or (), rules.capability)
        call = Call(context, self._method, claims, self._metrics.received, self._metrics.sent)
        with self._server.counted(rules.is_long_lived), self._places.taken():
            response = await self._server.run(self._method, call)
        if self._method.kind in (Kind.UNARY_STREAM, Kind.STREAM_STREAM):
            return None
        self._metrics.sent.inc()
        return self._method.serialise(response)
