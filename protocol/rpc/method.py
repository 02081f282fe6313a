"""RpcMethod: one method of a service as a value. Call: what a handler has of a call while it runs.

All four kinds come down to one coroutine that receives and sends, so that authorization, limits, errors and metrics
are the same for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError
from prometheus_client import Counter

from protocol.auth import Claims
from protocol.errors import ValidationError
from protocol.rpc.failure import StatusError

Request = TypeVar("Request")
Response = TypeVar("Response")
REQUEST_WAIT_S = 30.0
"""How long the single request of a call may take to arrive."""

ServicerContext = grpc.aio.ServicerContext[bytes, bytes]


class Kind(Enum):
    """The values are those of the metrics' `grpc_type`."""

    UNARY_UNARY = "unary"
    STREAM_UNARY = "client_stream"
    UNARY_STREAM = "server_stream"
    STREAM_STREAM = "bidi_stream"


class AtExpiry(Enum):
    """What becomes of a call whose token expires while it runs."""

    FAIL = "the call fails with DEADLINE_EXCEEDED"
    END = "the stream ends with OK and its client starts another; so it does when the server stops"
    GO_ON = "the token is of interest only when the call starts"


@dataclass(frozen=True, slots=True)
class Rules:
    """On what terms a method is served."""

    # None where no token is asked for, such as by the health service.
    capability: int | None
    at_expiry: AtExpiry = AtExpiry.FAIL
    # Counts towards the limit that all readers share. Not for replication: readers could shut it out.
    is_long_lived: bool = False
    # How many calls of this method there may be at a time, None for any number.
    calls_max: int | None = None


class Call(Generic[Request, Response]):
    """One call as its handler sees it."""

    __slots__ = ("_context", "_deserialise", "_received", "_sent", "_serialise", "claims")

    def __init__(
        self,
        context: ServicerContext,
        method: RpcMethod[Request, Response],
        claims: Claims,
        received: Counter,
        sent: Counter,
    ) -> None:
        self.claims = claims
        self._context = context
        self._deserialise = method.deserialise
        self._serialise = method.serialise
        self._received = received
        self._sent = sent

    async def receive(self) -> Request | None:
        """The next message; None when there are no more.

        None does not prove that the client meant to end: that it was killed or has cancelled looks the same here, and
        the handler is cancelled only a moment later. Commit on an explicit message, never on this alone.
        """
        raw: bytes | object = await self._context.read()
        if raw is grpc.aio.EOF:
            return None
        assert isinstance(raw, bytes)
        self._received.inc()
        try:
            return self._deserialise(raw)
        except (DecodeError, UnicodeDecodeError) as error:
            raise ValidationError("the message is not a well-formed protobuf of its type") from error

    async def send(self, response: Response) -> None:
        """Returns when the message is on its way, so that a client that does not read holds up its handler."""
        await self._context.write(self._serialise(response))
        self._sent.inc()

    def tell_at_end(self, name: str, value: str) -> None:
        """Something beside the answers, for clients that know of it: others do not see it."""
        self._context.set_trailing_metadata(((name, value),))

    def __aiter__(self) -> Call[Request, Response]:
        return self

    async def __anext__(self) -> Request:
        if (request := await self.receive()) is None:
            raise StopAsyncIteration
        return request

    @property
    def peer(self) -> str:
        """The address of the client, as gRPC writes it."""
        return self._context.peer()

    @property
    def remaining_s(self) -> float | None:
        """Until the client's own deadline, None if it has none. The handler is cancelled when that has passed."""
        return self._context.time_remaining()


@dataclass(frozen=True, slots=True)
class RpcMethod(Generic[Request, Response]):
    """Made by one of the functions below, which know the signature of each kind's handler."""

    name: str
    kind: Kind
    deserialise: Callable[[bytes], Request]
    serialise: Callable[[Response], bytes]
    rules: Rules
    handle: Callable[[Call[Request, Response]], Awaitable[Response | None]]


def unary_unary(
    name: str,
    deserialise: Callable[[bytes], Request],
    serialise: Callable[[Response], bytes],
    handler: Callable[[Request, Call[Request, Response]], Awaitable[Response]],
    rules: Rules,
) -> RpcMethod[Request, Response]:
    async def handle(call: Call[Request, Response]) -> Response:
        return await handler(await _only_request(call), call)

    return RpcMethod(name, Kind.UNARY_UNARY, deserialise, serialise, rules, handle)


def unary_stream(
    name: str,
    deserialise: Callable[[bytes], Request],
    serialise: Callable[[Response], bytes],
    handler: Callable[[Request, Call[Request, Response]], Awaitable[None]],
    rules: Rules,
) -> RpcMethod[Request, Response]:
    """The handler sends through the Call."""

    async def handle(call: Call[Request, Response]) -> None:
        await handler(await _only_request(call), call)

    return RpcMethod(name, Kind.UNARY_STREAM, deserialise, serialise, rules, handle)


def stream_unary(
    name: str,
    deserialise: Callable[[bytes], Request],
    serialise: Callable[[Response], bytes],
    handler: Callable[[Call[Request, Response]], Awaitable[Response]],
    rules: Rules,
) -> RpcMethod[Request, Response]:
    """The handler receives through the Call."""
    return RpcMethod(name, Kind.STREAM_UNARY, deserialise, serialise, rules, handler)


def stream_stream(
    name: str,
    deserialise: Callable[[bytes], Request],
    serialise: Callable[[Response], bytes],
    handler: Callable[[Call[Request, Response]], Awaitable[None]],
    rules: Rules,
) -> RpcMethod[Request, Response]:
    """The handler receives and sends through the Call."""
    return RpcMethod(name, Kind.STREAM_STREAM, deserialise, serialise, rules, handler)


async def _only_request(call: Call[Request, Response]) -> Request:
    """A client that opens a call and then says nothing is sent away."""
    try:
        async with asyncio.timeout(REQUEST_WAIT_S):
            request = await call.receive()
    except TimeoutError as error:
        raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, "no request came in time") from error
    if request is None:
        raise ValidationError("the call ended without a request")
    return request
