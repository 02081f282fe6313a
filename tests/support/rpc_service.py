"""A service under the Journal's name whose handlers do as the request says, and a process of its own that has it.

As a program it is a peer that a test can stop: `serve` prints its port, `connect ENDPOINT` keeps a call open.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from broker.peer import Peer
from broker.peers import PeerChannels
from protocol.auth import Capability, Keys
from protocol.route import ProcessId
from protocol.rpc.authorization import Authorizer, TokenSigner
from protocol.rpc.method import (
    AtExpiry,
    Call,
    RpcMethod,
    Rules,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from protocol.rpc.server import RpcServer

SERVICE = "protocol.Journal"
Raises = Callable[[bytes], None]


def now_s() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


UNSIGNED = TokenSigner(None, now_s)


def same(message: bytes) -> bytes:
    return message


@dataclass
class Echo:
    """`List` answers and then waits, as a watch does; `Replicate` answers each message."""

    # Called with each request, to raise what a test wants raised.
    check: Raises = lambda request: None
    deserialise: Callable[[bytes], bytes] = same
    calls_max: int | None = None
    calls: list[Call[bytes, bytes]] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def methods(self) -> list[RpcMethod[Any, Any]]:
        watch = Rules(Capability.LIST, AtExpiry.END, is_long_lived=True)
        go_on = Rules(Capability.REPLICATE, AtExpiry.GO_ON)
        return [
            unary_unary("Apply", self.deserialise, same, self.apply, Rules(Capability.APPLY, calls_max=self.calls_max)),
            unary_unary("Hang", self.deserialise, same, self.hang, Rules(Capability.APPLY, calls_max=self.calls_max)),
            unary_stream("List", self.deserialise, same, self.watch, watch),
            unary_stream("Read", self.deserialise, same, self.read, Rules(Capability.READ, AtExpiry.END)),
            stream_unary("Append", self.deserialise, same, self.append, Rules(Capability.APPEND)),
            stream_stream("Replicate", self.deserialise, same, self.replicate, go_on),
            unary_unary("ListFragments", self.deserialise, same, self.apply, Rules(Capability.READ)),
        ]

    async def apply(self, request: bytes, call: Call[bytes, bytes]) -> bytes:
        self.calls.append(call)
        self.check(request)
        return request

    async def hang(self, _request: bytes, _call: Call[bytes, bytes]) -> bytes:
        await self._wait()
        raise AssertionError

    async def watch(self, request: bytes, call: Call[bytes, bytes]) -> None:
        await call.send(request)
        await self._wait()

    async def read(self, request: bytes, call: Call[bytes, bytes]) -> None:
        for _ in range(int(request)):
            await call.send(bytes(100_000))

    async def append(self, call: Call[bytes, bytes]) -> bytes:
        self.calls.append(call)
        parts = [request async for request in call]
        self.check(b"".join(parts))
        return b"".join(parts)

    async def replicate(self, call: Call[bytes, bytes]) -> None:
        self.calls.append(call)
        try:
            while (request := await call.receive()) is not None:
                self.check(request)
                await call.send(request)
            # Gone without a word, or cancelled: the latter shows a moment later.
            await self._wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _wait(self) -> None:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def serving(echo: Echo, keys: Keys | None = None, **options: Any) -> AsyncIterator[tuple[RpcServer, int]]:
    """A server on a free port, and the port."""
    server = RpcServer({SERVICE: echo.methods()}, Authorizer(keys, now_s), **options)
    port = server.listen("127.0.0.1:0")
    await server.start()
    server.health.set_all(is_serving=True)
    try:
        yield server, port
    finally:
        await server.stop(0)


def peer_at(port: int, *, is_own_kind: bool = True, scheme: str = "http") -> Peer:
    return Peer(ProcessId("zone", "peer"), f"{scheme}://127.0.0.1:{port}", is_own_kind)


def unary_unary_of(channel: grpc.aio.Channel, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/{SERVICE}/{method}")


def unary_stream_of(channel: grpc.aio.Channel, method: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(f"/{SERVICE}/{method}")


def stream_unary_of(channel: grpc.aio.Channel, method: str) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
    return channel.stream_unary(f"/{SERVICE}/{method}")


def stream_stream_of(channel: grpc.aio.Channel, method: str) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/{SERVICE}/{method}")


async def _serve() -> None:
    async with serving(Echo()) as (_, port):
        print(port, flush=True)
        await asyncio.Event().wait()


async def _connect(port: int) -> None:
    call = PeerChannels(UNSIGNED).replicate(peer_at(port), "a/journal")
    await call.write(b"hello")
    print(await call.read(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve() if sys.argv[1] == "serve" else _connect(int(sys.argv[2])))
