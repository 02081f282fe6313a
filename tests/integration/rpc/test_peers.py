"""PeerChannels and a server that is a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.peer import Peer
from broker.peers import SEND_BYTES_MAX, PeerChannels
from protocol.auth import Capability, Keys
from protocol.route import ProcessId
from protocol.rpc.authorization import Authorizer, TokenSigner
from protocol.rpc.server import RpcServer
from protocol.selector import LabelSelector
from tests.support.etcd_server import free_port
from tests.support.eventually import eventually
from tests.support.http2 import ping_counter
from tests.support.metrics import metric
from tests.support.rpc_service import SERVICE, UNSIGNED, Echo, now_s, peer_at, serving

KEYS = Keys.parse("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")


@asynccontextmanager
async def peer_channels(signer: TokenSigner = UNSIGNED, **options: Any) -> AsyncIterator[PeerChannels]:
    channels = PeerChannels(signer, **options)
    try:
        async with asyncio.timeout(30):
            yield channels
    finally:
        await channels.close()


async def test_calls_carry_bytes_and_a_token_for_their_journal() -> None:
    echo = Echo()
    async with serving(echo, KEYS) as (_, port), peer_channels(TokenSigner(KEYS, now_s)) as channels:
        peer = peer_at(port)
        replicate = channels.replicate(peer, "a/journal")
        await replicate.write(b"\xff raw")
        assert await replicate.read() == b"\xff raw"
        append = channels.append(peer, "a/journal;meta")
        await append.write(b"one ")
        await append.write(b"two")
        await append.done_writing()
        assert await append == b"one two"
        assert await channels.list_fragments(peer, "a/journal", b"x") == b"x"
        assert [len(part) async for part in channels.read(peer, "a/journal", b"2")] == [100_000] * 2
        assert {call.claims.selector for call in echo.calls} == {LabelSelector.parse("name=a/journal")}
        assert [call.claims.capability for call in echo.calls] == [
            Capability.REPLICATE,
            Capability.APPEND,
            Capability.READ,
        ]
        assert all(3590 < call.claims.expires_s - now_s() <= 3600 for call in echo.calls)
        replicate.cancel()


async def test_a_unix_endpoint_is_dialled_by_its_path(tmp_path: Path) -> None:
    server = RpcServer({SERVICE: Echo().methods()}, Authorizer(None, now_s))
    server.listen(f"unix://{tmp_path}/socket")
    await server.start()
    peer = Peer(ProcessId("zone", "peer"), f"unix://some-host{tmp_path}/socket", is_own_kind=True)
    async with peer_channels() as channels:
        assert await channels.list_fragments(peer, "a/journal", b"x") == b"x"
    await server.stop(0)


async def test_an_endpoint_has_one_channel_and_one_connection() -> None:
    async with serving(Echo()) as (_, port), ping_counter(port) as counter, peer_channels() as channels:
        peer = peer_at(counter.port)
        assert channels.channel(peer) is channels.channel(peer)
        calls = [channels.list_fragments(peer, "a/journal", b"x") for _ in range(20)]
        assert await asyncio.gather(*calls) == [b"x"] * 20
        assert counter.connections == 1
        assert channels.channel(peer_at(port)) is not channels.channel(peer)


async def test_a_call_to_a_peer_that_is_not_there_fails_at_once_and_works_when_it_is_back() -> None:
    async with peer_channels() as channels:
        async with serving(Echo()) as (_, port):
            peer = peer_at(port)
            assert await channels.list_fragments(peer, "a/journal", b"x") == b"x"
        # No deadline is given: that it ends is because nobody listens.
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channels.list_fragments(peer, "a/journal", b"x")
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        server = RpcServer({SERVICE: Echo().methods()}, Authorizer(None, now_s))
        server.listen(f"127.0.0.1:{port}")
        await server.start()

        async def is_back() -> bool:
            try:
                return await channels.list_fragments(peer, "a/journal", b"x") == b"x"
            except grpc.aio.AioRpcError:
                return False

        await eventually(is_back, "the peer that is back to answer")
        await server.stop(0)


def counted(what: str, method: str, kind: str, **labels: str) -> float:
    return metric(f"grpc_client_{what}", grpc_service=SERVICE, grpc_method=method, grpc_type=kind, **labels)


async def test_calls_of_peers_are_counted_as_gazette_counts_them() -> None:
    methods = {
        "Replicate": ("bidi_stream", "Canceled", 2, 2),
        "Append": ("client_stream", "OK", 2, 1),
        "Read": ("server_stream", "OK", 1, 3),
        "ListFragments": ("unary", "Unavailable", 1, 0),
    }

    def counts() -> dict[str, list[float]]:
        return {
            method: [
                counted("started_total", method, kind),
                counted("handled_total", method, kind, grpc_code=code),
                counted("msg_sent_total", method, kind),
                counted("msg_received_total", method, kind),
                counted("handling_seconds_count", method, kind),
            ]
            for method, (kind, code, _, _) in methods.items()
        }

    before = counts()
    async with serving(Echo()) as (_, port), peer_channels() as channels:
        peer = peer_at(port)
        replicate = channels.replicate(peer, "a/journal")
        for _ in range(2):
            await replicate.write(b"one")
            await replicate.read()
        replicate.cancel()
        append = channels.append(peer, "a/journal")
        await append.write(b"one")
        await append.write(b"two")
        await append.done_writing()
        await append
        assert len([part async for part in channels.read(peer, "a/journal", b"3")]) == 3
        with pytest.raises(grpc.aio.AioRpcError):
            await channels.list_fragments(peer_at(free_port()), "a/journal", b"x")
        expected = {
            method: [begun + 1, ended + 1, sent + out, received + in_, took + 1]
            for (method, (_, _, out, in_)), (begun, ended, sent, received, took) in zip(
                methods.items(), before.values(), strict=True
            )
        }
        await eventually(lambda: counts() == expected, "all calls to be counted")


async def test_a_message_that_a_peer_would_not_take_is_not_sent() -> None:
    async with serving(Echo()) as (_, port), peer_channels() as channels:
        peer = peer_at(port)
        assert len(await channels.list_fragments(peer, "a/journal", bytes(SEND_BYTES_MAX))) == SEND_BYTES_MAX
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channels.list_fragments(peer, "a/journal", bytes(SEND_BYTES_MAX + 1))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await channels.list_fragments(peer, "a/journal", b"x") == b"x"


async def test_unused_channels_are_closed_and_those_in_use_are_not() -> None:
    async with (
        serving(Echo()) as (_, port),
        ping_counter(port) as unused,
        ping_counter(port) as used,
        peer_channels(idle_s=1.0) as channels,
        asyncio.TaskGroup() as tasks,
    ):
        closing = tasks.create_task(channels.run())
        call = channels.replicate(peer_at(used.port), "a/journal")
        await call.write(b"before")
        assert await call.read() == b"before"
        await channels.list_fragments(peer_at(unused.port), "a/journal", b"x")
        before = channels.channel(peer_at(unused.port))
        await eventually(lambda: unused.open_connections == 0, "the connection to be closed")
        await eventually(lambda: before.get_state() is grpc.ChannelConnectivity.SHUTDOWN, "the channel to be closed")
        await call.write(b"after")
        assert await call.read() == b"after"
        # And one that was closed is replaced.
        assert await channels.list_fragments(peer_at(unused.port), "a/journal", b"x") == b"x"
        call.cancel()
        closing.cancel()
