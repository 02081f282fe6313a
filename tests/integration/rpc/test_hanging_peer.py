"""A peer that stops without closing its connections, on either side of a call."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from broker.peers import PeerChannels
from protocol.rpc.keepalive import KeepAlive
from tests.support.eventually import eventually
from tests.support.http2 import GOAWAY, PING, ping_counter
from tests.support.rpc_service import UNSIGNED, Echo, peer_at, serving

ROOT = Path(__file__).parent.parent.parent.parent
# gRPC's own ideas of when a peer is gone begin at 60 s.
NOTICED_S_MAX = 30.0


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.rpc_service", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def printed(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


async def test_a_stopped_peer_is_noticed_on_both_sides() -> None:
    echo = Echo()
    channels = PeerChannels(UNSIGNED)
    async with serving(echo) as (_, port), child("serve") as server, child("connect", str(port)) as client:
        call = channels.replicate(peer_at(int(await printed(server))), "a/journal")
        await call.write(b"hello")
        assert await call.read() == b"hello"
        assert await printed(client) == "b'hello'"
        server.send_signal(signal.SIGSTOP)
        client.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(NOTICED_S_MAX):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call.read()
            await echo.cancelled.wait()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    await channels.close()


async def test_our_own_may_ping_an_idle_stream_and_others_are_not_pinged() -> None:
    keepalive = KeepAlive(time_s=0.1, timeout_s=20)
    channels = PeerChannels(UNSIGNED, keepalive=keepalive)
    async with (
        serving(Echo(), keepalive=keepalive) as (_, port),
        ping_counter(port) as own,
        ping_counter(port) as other,
    ):
        calls = [
            channels.replicate(peer_at(own.port), "a/journal"),
            channels.replicate(peer_at(other.port, is_own_kind=False), "a/journal"),
        ]
        for call in calls:
            await call.write(b"before")
            assert await call.read() == b"before"
        own.client_frames.clear()
        # A server that minds sends GOAWAY at the third or fourth. gRPC's clients send one a second at most.
        await eventually(
            lambda: own.client_frames[PING] >= 5 and own.server_frames[PING] >= 5, "pings in both directions"
        )
        # One may have gone out to measure the bandwidth, after the message that came.
        assert other.client_frames[PING] <= 1
        for call, counter in zip(calls, (own, other), strict=True):
            await call.write(b"after")
            assert await call.read() == b"after"
            assert counter.server_frames[GOAWAY] == 0
            assert counter.connections == 1
            call.cancel()
    await channels.close()
