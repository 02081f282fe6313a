"""PeerChannels: connections to the other brokers, and the calls that are made over them.

Messages are bytes on both sides: what is replicated is serialised once for all peers, and what is relayed is not looked
into. Every call carries a token that we sign ourselves, for the one journal it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from broker.peer import Link, Peer
from broker.peer_method import PeerMethod
from protocol.auth import Capability
from protocol.endpoint import dial_address
from protocol.rpc.authorization import TokenSigner
from protocol.rpc.keepalive import KeepAlive, Options
from protocol.rpc.method import Kind
from protocol.rpc.tls import PeerCredentials, PeerTls

ReplicateCall = grpc.aio.StreamStreamCall[bytes, bytes]
AppendCall = grpc.aio.StreamUnaryCall[bytes, bytes]
ReadCall = grpc.aio.UnaryStreamCall[bytes, bytes]
ListFragmentsCall = grpc.aio.UnaryUnaryCall[bytes, bytes]

SEND_BYTES_MAX = 4 << 20
"""What a Go broker takes from a peer, whatever its flags say."""

_OPTIONS: Options = (
    ("grpc.max_send_message_length", SEND_BYTES_MAX),
    ("grpc.max_receive_message_length", 16 << 20),
    # A peer that is back is found soon; one that cannot be reached costs little.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Despite its name: how long one attempt may take, handshakes and all.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A broker that restarts elsewhere under its old name is looked up again at once.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Brokers are next door: not through a proxy that the environment names for the web, and not as DNS would have it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    # A channel has connections of its own, so that a new one does begin with new credentials.
    ("grpc.use_local_subchannel_pool", 1),
)
_FILES_LOOKED_AT_S = 1.0

_REPLICATE = PeerMethod("Replicate", Kind.STREAM_STREAM)
_APPEND = PeerMethod("Append", Kind.STREAM_UNARY)
_READ = PeerMethod("Read", Kind.UNARY_STREAM)
_LIST_FRAGMENTS = PeerMethod("ListFragments", Kind.UNARY_UNARY)


@dataclass(slots=True, eq=False)
class _Connection:
    channel: grpc.aio.Channel
    credentials: grpc.ChannelCredentials | None
    used_s: float


class PeerChannels:
    """One channel per endpoint. `run` closes those that are no longer used."""

    def __init__(
        self,
        signer: TokenSigner,
        *,
        tls: PeerTls | None = None,
        keepalive: KeepAlive | None = None,
        idle_s: float = 30.0,
    ) -> None:
        self._signer = signer
        self._tls = PeerCredentials(tls or PeerTls())
        self._keepalive = keepalive or KeepAlive()
        self._idle_s = idle_s
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._looked_at_s = self._clock()
        self._connections: dict[tuple[str, bool, str], _Connection] = {}
        # Made with credentials of the past, and left to those who are still using them.
        self._retired: list[_Connection] = []

    def channel(self, peer: Peer, purpose: str = "") -> grpc.aio.Channel:
        """Without waiting. Ask for each call: a channel that was kept may be closed, or its certificate outdated.

        Each `purpose` has connections of its own, and so a number of streams that is its own.
        """
        now_s = self._clock()
        if now_s - self._looked_at_s >= _FILES_LOOKED_AT_S:
            self._looked_at_s = now_s
            self._tls.refresh()
        key = (peer.endpoint, peer.is_own_kind, purpose)
        credentials = self._tls.current if peer.endpoint.startswith("https:") else None
        held = self._connections.get(key)
        if held is not None and held.credentials is credentials:
            held.used_s = now_s
            return held.channel
        if held is not None:
            self._retired.append(held)
        made = self._connections[key] = _Connection(self._dialled(peer, credentials), credentials, now_s)
        return made.channel

    def _dialled(self, peer: Peer, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        options: Options = (
            *_OPTIONS,
            # gRPC lets go of the connection of a channel that has had no call for so long.
            ("grpc.client_idle_timeout_ms", int(self._idle_s * 1000)),
            *(self._keepalive.channel_options() if peer.is_own_kind else ()),
        )
        address = dial_address(peer.endpoint)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def link(self, peer: Peer) -> Link:
        """As the connection for requests has it, without making one."""
        held = self._connections.get((peer.endpoint, peer.is_own_kind, ""))
        match held.channel.get_state() if held is not None else None:
            case grpc.ChannelConnectivity.READY:
                return Link.CONNECTED
            case grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return Link.FAILING
            case _:
                return Link.UNTRIED

    def replicate(self, peer: Peer, journal: str) -> ReplicateCall:
        # Its streams stay open: on one connection with reads, either could shut out the other.
        channel, method = self.channel(peer, "replicate"), _REPLICATE
        call: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        call = channel.stream_stream(method.path, method.sent, method.received)
        return method.counted(call(metadata=self._signer.for_journal(Capability.REPLICATE, journal)))

    def append(self, peer: Peer, journal: str, timeout_s: float | None = None) -> AppendCall:
        channel, method = self.channel(peer), _APPEND
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes]
        call = channel.stream_unary(method.path, method.sent, method.received)
        return method.counted(call(timeout=timeout_s, metadata=self._signer.for_journal(Capability.APPEND, journal)))

    def read(self, peer: Peer, journal: str, request: bytes, timeout_s: float | None = None) -> ReadCall:
        channel, method = self.channel(peer), _READ
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        call = channel.unary_stream(method.path, method.sent, method.received)
        metadata = self._signer.for_journal(Capability.READ, journal)
        return method.counted(call(request, timeout=timeout_s, metadata=metadata))

    def list_fragments(
        self, peer: Peer, journal: str, request: bytes, timeout_s: float | None = None
    ) -> ListFragmentsCall:
        channel, method = self.channel(peer), _LIST_FRAGMENTS
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(method.path, method.sent, method.received)
        metadata = self._signer.for_journal(Capability.READ, journal)
        return method.counted(call(request, timeout=timeout_s, metadata=metadata))

    async def run(self) -> None:
        """Closes unused channels, for ever."""
        while True:
            await asyncio.sleep(self._idle_s / 2)
            await self.close_unused()

    async def close_unused(self) -> None:
        """Those that nobody has asked for in a while and that gRPC has found without calls."""
        unused_before_s = self._clock() - self._idle_s
        unused = [key for key, held in self._connections.items() if _is_unused(held, unused_before_s)]
        closing = [self._connections.pop(key) for key in unused]
        closing += [held for held in self._retired if _is_unused(held, unused_before_s)]
        self._retired = [held for held in self._retired if held not in closing]
        for held in closing:
            await held.channel.close()

    async def close(self) -> None:
        """All of them, and with them the calls that are running."""
        closing = [*self._connections.values(), *self._retired]
        self._connections.clear()
        self._retired.clear()
        for held in closing:
            await held.channel.close()


def _is_unused(held: _Connection, unused_before_s: float) -> bool:
    """A channel with a call is never idle, and neither is one that tries to connect for a call."""
    return held.used_s <= unused_before_s and held.channel.get_state() is not grpc.ChannelConnectivity.READY
