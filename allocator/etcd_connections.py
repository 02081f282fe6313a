"""EtcdConnections: one channel per endpoint, which of them is in use, and the token that opens it.

A call goes to the endpoint in use. Where that fails, the next one is in use from then on; the call itself is repeated
there if it is known that nothing happened, or if to do it twice is to do it once. A write whose fate is open is never
repeated in silence: its caller hears ``maybe_applied``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import Message

from allocator.etcd_errors import (
    AuthDisabledError,
    EtcdFullError,
    EtcdUnavailableError,
    StaleTokenError,
)
from allocator.etcd_failure import error_of
from allocator.gen import etcd_pb2 as pb

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")

Metadata = tuple[tuple[str, str], ...]

ANSWER_BYTES_MAX = 32 * 1024 * 1024
_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    # etcd has the last word on what it takes; its own limit is 1.5 MiB unless it was told otherwise.
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
    # A dead peer is noticed only with all three of these set. etcd ends connections that ping more than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # etcd is next door: not through a proxy that the environment names for the web, and not as DNS would have it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    # Two clients of one process must not wait for each other's back-off.
    ("grpc.use_local_subchannel_pool", 1),
)
# A member that has lost the others says so at once, instead of keeping the call until its deadline.
_REQUIRE_LEADER = ("hasleader", "true")


@dataclass(frozen=True, slots=True)
class EtcdUser:
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """In PEM. Without `ca`, those that gRPC brings along are trusted; a key needs its certificate."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    path: str
    request: type[Request]
    response: type[Response]
    # Whether to do it twice is to do it once.
    is_repeatable: bool


_AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse, is_repeatable=True
)


class Endpoint:
    """A member of the etcd cluster, by its URL."""

    def __init__(self, url: str, tls: EtcdTls | None) -> None:
        self.url = url
        target, is_secure = _target_of(url)
        if is_secure:
            tls = tls or EtcdTls()
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
            self.channel = grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(target, options=_OPTIONS)

    async def unary(
        self, method: Method[Request, Response], request: Request, metadata: Metadata, timeout_s: float
    ) -> Response:
        call: grpc.aio.UnaryUnaryMultiCallable[Request, Response] = self.channel.unary_unary(
            method.path,
            request_serializer=_encoded,
            response_deserializer=method.response.FromString,
        )
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.url) from error

    def stream(
        self, method: Method[Request, Response], metadata: Metadata, timeout_s: float | None
    ) -> grpc.aio.StreamStreamCall[Request, Response]:
        call: grpc.aio.StreamStreamMultiCallable[Request, Response] = self.channel.stream_stream(
            method.path,
            request_serializer=_encoded,
            response_deserializer=method.response.FromString,
        )
        return call(timeout=timeout_s, metadata=metadata)


def _encoded(message: Message) -> bytes:
    return message.SerializeToString()


def _target_of(url: str) -> tuple[str, bool]:
    """gRPC's name of what a URL points at, and whether it is behind TLS."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    match parts.scheme:
        case "http" | "https" if parts.netloc and parts.path in ("", "/"):
            return parts.netloc, parts.scheme == "https"
        case "unix" if parts.netloc or parts.path:
            return f"unix:{parts.netloc}{parts.path}", False
        case _:
            raise ValueError("an etcd endpoint is http://host:port, https://host:port or unix:///path")


class EtcdConnections:
    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        user: EtcdUser | None = None,
        tls: EtcdTls | None = None,
        chance: random.Random | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint is given")
        self.endpoints = [Endpoint(url, tls) for url in endpoints]
        self._current = self.endpoints[0]
        self._user = user
        self._chance = chance or random.Random()
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    @property
    def current(self) -> Endpoint:
        return self._current

    def leave(self, endpoint: Endpoint) -> None:
        """Do not use this one next. Calls that fail together move on by one, not by as many as they are."""
        if endpoint is self._current:
            at = self.endpoints.index(endpoint) + 1
            self._current = self.endpoints[at % len(self.endpoints)]

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.channel.close()

    async def unary(self, method: Method[Request, Response], request: Request, timeout_s: float) -> Response:
        return await self.attempts(
            lambda endpoint, metadata, left_s: endpoint.unary(method, request, metadata, left_s),
            timeout_s,
            is_repeatable=method.is_repeatable,
        )

    async def attempts(
        self,
        attempt: Callable[[Endpoint, Metadata, float], Awaitable[T]],
        timeout_s: float,
        *,
        is_repeatable: bool,
    ) -> T:
        """Try at one endpoint after the other, for as long as there is time and it is safe to."""
        clock = asyncio.get_running_loop().time
        give_up_s = clock() + timeout_s
        # One member that does not answer must not use up the time in which another would have.
        share_s = timeout_s / len(self.endpoints)
        failures = stale_tokens = 0
        while True:
            endpoint = self._current
            token = None
            try:
                token = await self._token_for(endpoint, max(0.001, min(share_s, give_up_s - clock())))
                return await attempt(endpoint, _metadata(token), max(0.001, min(share_s, give_up_s - clock())))
            except StaleTokenError:
                self.forget(token)
                stale_tokens += 1
                if stale_tokens > 2:
                    raise
                continue
            except EtcdFullError:
                raise
            except EtcdUnavailableError as error:
                self.leave(endpoint)
                failures += 1
                pause_s = self._pause_s(failures)
                if (error.maybe_applied and not is_repeatable) or clock() + pause_s >= give_up_s:
                    raise
            await asyncio.sleep(pause_s)

    def _pause_s(self, failures: int) -> float:
        """None while there is an endpoint that was not tried; then growing, and never the same for two processes."""
        rounds = failures // len(self.endpoints)
        if failures % len(self.endpoints):
            return 0.0
        longest_s = min(_PAUSE_S_MAX, _PAUSE_S * (1 << min(rounds, 10)))
        return longest_s * self._chance.uniform(0.5, 1.0)

    async def fresh_metadata(self, endpoint: Endpoint, timeout_s: float) -> Metadata:
        """With a token nobody can have forgotten yet: for a watch, to which etcd before 3.5.8 answers "permission
        denied" whatever is wrong with the token."""
        self._token = None
        return _metadata(await self._token_for(endpoint, timeout_s))

    def forget(self, token: str | None) -> None:
        """Unless it has been renewed by somebody else in the meantime."""
        if token == self._token:
            self._token = None

    async def _token_for(self, endpoint: Endpoint, timeout_s: float) -> str | None:
        if self._user is None:
            return None
        request = pb.AuthenticateRequest(name=self._user.name, password=self._user.password)
        try:
            # Those who come while one asks wait for its answer, but not for longer than they have.
            async with asyncio.timeout(timeout_s), self._authenticating:
                if self._token is None:
                    answer = await endpoint.unary(_AUTHENTICATE, request, _metadata(None), timeout_s)
                    self._token = answer.token
                return self._token
        except AuthDisabledError:
            return None
        except (EtcdUnavailableError, TimeoutError) as error:
            # Whatever became of it, the request that the token is for was not sent.
            text = str(error) or f"{endpoint.url}: no token was given in time"
            raise EtcdUnavailableError(text, maybe_applied=False) from error


def _metadata(token: str | None) -> Metadata:
    return (_REQUIRE_LEADER, ("token", token)) if token else (_REQUIRE_LEADER,)
