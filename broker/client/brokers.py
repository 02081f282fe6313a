"""Brokers: the brokers of a cluster as a client reaches them. Connections, tokens, and which of them to ask.

Towards servers that we know nothing about, no connection is kept alive by pings: a Go server closes it at the fourth.
Whoever waits for long asks with a call of its own whether the broker is still there (``stall_watch``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc

from broker.client.answer import decoded
from broker.client.dispatch import Dispatch, Target
from broker.client.failure import failure_of
from broker.client.outcome import UnknownOutcomeError, is_refusal
from broker.client.retry import Attempts, RetryPolicy
from broker.client.settings import ClientSettings
from broker.client.tasks import ClientTasks
from protocol.auth import Capability
from protocol.endpoint import dial_address
from protocol.errors import GazetteError, UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.route import Route
from protocol.rpc.authorization import Metadata, TokenSigner
from protocol.rpc.keepalive import Options
from protocol.rpc.tls import PeerCredentials, PeerTls
from protocol.selector import LabelSelector
from protocol.validation import validate

AppendCall = grpc.aio.StreamUnaryCall[bytes, bytes]
StreamCall = grpc.aio.UnaryStreamCall[bytes, bytes]

_OPTIONS: Options = (
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name: how long one attempt may take, handshakes and all.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.service_config_disable_resolution", 1),
    # A channel has connections of its own, so that a new one does begin with a new one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.client_idle_timeout_ms", 60_000),
)
_SERVICE = "/protocol.Journal/"
_SUSPECTS_MAX = 4096
_UNUSED_S = 120.0
_CHANNELS_KEPT = 32
_FILES_LOOKED_AT_S = 1.0


@dataclass(slots=True, eq=False)
class _Connection:
    channel: grpc.aio.Channel
    credentials: grpc.ChannelCredentials | None
    used_s: float


class Brokers:
    """Of one client. `tasks` run for no longer than the client does; none of them raises."""

    def __init__(
        self, settings: ClientSettings, tasks: ClientTasks, now: Callable[[], float], chance: random.Random
    ) -> None:
        self.settings = settings
        self.tasks = tasks
        self.clock: Callable[[], float] = asyncio.get_running_loop().time
        self.dispatch = Dispatch(settings.addresses, settings.zone)
        # What we have changed is to be seen by the calls that follow, whichever broker serves them.
        self.revision = 0
        # Journals whose last append failed without an answer.
        self.suspects: set[str] = set()
        self._chance = chance
        self._signer = TokenSigner(settings.keys, now)
        self._fixed: Metadata = (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self._tls: PeerCredentials | None = None
        self._looked_at_s = 0.0
        self._connections: dict[str, _Connection] = {}
        self._retired: list[_Connection] = []

    def attempts(self, policy: RetryPolicy | None) -> Attempts:
        return Attempts(policy or self.settings.retry, self.clock())

    async def pause(self, attempts: Attempts, error: GazetteError) -> None:
        """Until it is time for the next attempt. Raises `error` if there is to be none."""
        failed = attempts.failed
        pause_s = attempts.again(error, self.clock(), self._chance.random())
        if pause_s is None:
            if failed:
                error.add_note(f"It was tried {failed + 1} times.")
            raise error
        await asyncio.sleep(pause_s)

    def learn(self, journal: str, header: pb.Header) -> None:
        self.dispatch.learn(journal, Route.from_proto(header.route), self.clock())

    def lost(self, endpoint: str, journal: str | None) -> None:
        """The broker has stopped answering: others are asked now, and this one over a new connection."""
        self.dispatch.failed(endpoint, journal, self.clock())
        held = self._connections.pop(endpoint, None)
        if held is not None:
            self._retired.append(held)

    def suspect(self, journal: str) -> None:
        if len(self.suspects) >= _SUSPECTS_MAX:
            self.suspects.clear()
        self.suspects.add(journal)

    async def connected(self, endpoint: str, journal: str | None) -> grpc.aio.Channel:
        """A channel that has a connection at this moment. What fails here was not sent."""
        channel = self._channel(endpoint)
        try:
            async with asyncio.timeout(self.settings.connect_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise UnavailableError(f"{endpoint}: no connection could be made")
                    await channel.wait_for_state_change(state)
        except (UnavailableError, TimeoutError) as error:
            self.dispatch.failed(endpoint, journal, self.clock())
            if isinstance(error, UnavailableError):
                raise
            raise UnavailableError(f"{endpoint}: no connection within {self.settings.connect_s:g} s") from error
        self.dispatch.reached(endpoint)
        return channel

    def token(self, capability: Capability, journal: str) -> Metadata:
        return self._fixed or self._signer.for_journal(capability, journal)

    def token_for(self, capability: Capability, selector: LabelSelector) -> Metadata:
        return self._fixed or self._signer.metadata(capability, selector)

    async def append(self, target: Target, journal: str) -> AppendCall:
        channel = await self.connected(target.endpoint, journal)
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(_SERVICE + "Append")
        return call(metadata=self.token(Capability.APPEND, journal))

    async def read(self, target: Target, request: pb.ReadRequest, timeout_s: float | None = None) -> StreamCall:
        channel = await self.connected(target.endpoint, request.journal)
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_SERVICE + "Read")
        metadata = self.token(Capability.READ, request.journal)
        return call(request.SerializeToString(), timeout=timeout_s, metadata=metadata)

    async def list(self, endpoint: str, request: pb.ListRequest, timeout_s: float | None = None) -> StreamCall:
        channel = await self.connected(endpoint, None)
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_SERVICE + "List")
        metadata = self.token_for(Capability.LIST, LabelSelector.from_proto(request.selector))
        return call(request.SerializeToString(), timeout=timeout_s, metadata=metadata)

    async def apply(self, request: pb.ApplyRequest, policy: RetryPolicy | None) -> pb.ApplyResponse:
        """Tried again where it surely was not done, or where the caller does not mind."""
        validate(request)
        attempts = self.attempts(policy)
        while True:
            endpoint = self.dispatch.for_any(self.clock())
            metadata = self.token_for(Capability.APPLY, LabelSelector())
            try:
                channel = await self.connected(endpoint, None)
                try:
                    raw = await self._unary(channel, endpoint, "Apply", request.SerializeToString(), metadata)
                    return decoded(pb.ApplyResponse, raw, endpoint)
                except GazetteError as error:
                    if is_refusal(error):
                        raise
                    raise UnknownOutcomeError(
                        f"the changes may or may not have been made: list the journals and see ({error})"
                    ) from error
            except GazetteError as error:
                await self.pause(attempts, error)

    async def list_fragments(self, target: Target, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        channel = await self.connected(target.endpoint, request.journal)
        metadata = self.token(Capability.READ, request.journal)
        raw = await self._unary(channel, target.endpoint, "ListFragments", request.SerializeToString(), metadata)
        return decoded(pb.FragmentsResponse, raw, target.endpoint)

    async def store_health(
        self, endpoint: str, request: pb.FragmentStoreHealthRequest
    ) -> pb.FragmentStoreHealthResponse:
        channel = await self.connected(endpoint, None)
        metadata = self.token_for(Capability.READ, LabelSelector())
        raw = await self._unary(channel, endpoint, "FragmentStoreHealth", request.SerializeToString(), metadata)
        return decoded(pb.FragmentStoreHealthResponse, raw, endpoint)

    async def _unary(
        self, channel: grpc.aio.Channel, endpoint: str, method: str, request: bytes, metadata: Metadata
    ) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_SERVICE + method)
        try:
            return await call(request, timeout=self.settings.stall_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.lost(endpoint, None)
            raise failure_of(error, endpoint) from error

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        now_s = self.clock()
        credentials = self._credentials(now_s) if endpoint.startswith("https:") else None
        held = self._connections.get(endpoint)
        if held is not None and held.credentials is credentials:
            held.used_s = now_s
            return held.channel
        if held is not None:
            self._retired.append(held)
        self._close_unused(now_s)
        address = dial_address(endpoint)
        if credentials is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        self._connections[endpoint] = _Connection(channel, credentials, now_s)
        return channel

    def _credentials(self, now_s: float) -> grpc.ChannelCredentials:
        """gRPC offers h2 and nothing else, which is what servers that speak HTTP/1 as well have to be offered."""
        if self._tls is None:
            self._tls = PeerCredentials(self.settings.tls or PeerTls())
        elif now_s - self._looked_at_s >= _FILES_LOOKED_AT_S:
            self._tls.refresh()
        self._looked_at_s = now_s
        return self._tls.current

    def _close_unused(self, now_s: float) -> None:
        """Brokers come and go under new addresses. A channel without calls gives up its connection by itself."""
        before_s = now_s - _UNUSED_S
        closing = [held for held in self._retired if held.used_s < before_s]
        self._retired = [held for held in self._retired if held.used_s >= before_s]
        if len(self._connections) >= _CHANNELS_KEPT:
            for endpoint, held in list(self._connections.items()):
                is_ready = held.channel.get_state() is grpc.ChannelConnectivity.READY
                if held.used_s < before_s and not is_ready:
                    closing.append(self._connections.pop(endpoint))
        for held in closing:
            self.tasks.create_task(_closed(held.channel))

    async def close(self) -> None:
        closing = [*self._connections.values(), *self._retired]
        self._connections.clear()
        self._retired.clear()
        for held in closing:
            await _closed(held.channel)


async def _closed(channel: grpc.aio.Channel) -> None:
    # What becomes of a connection that nobody uses any more is of no interest.
    with suppress(grpc.RpcError, grpc.aio.UsageError):
        await channel.close()
