"""Requests that are passed on, to peers of which some are not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest

from broker.peer import Link, Peer
from broker.peers import PeerChannels
from broker.relay import relayed_fragments, relayed_read
from protocol.errors import UnavailableError, ValidationError
from protocol.route import ProcessId
from tests.support.etcd_server import free_port
from tests.support.rpc_service import UNSIGNED, Echo, peer_at, serving
from tests.support.scripted_broker import Turn, scripted_broker

JOURNAL = "a/journal"


@pytest.fixture
def nobody() -> Peer:
    return peer_at(free_port())


@asynccontextmanager
async def channels() -> AsyncIterator[PeerChannels]:
    made = PeerChannels(UNSIGNED)
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        await made.close()


async def read(to: PeerChannels, *peers: Peer) -> list[bytes]:
    async with aclosing(relayed_read(to, peers, JOURNAL, b"2")) as messages:
        return [message async for message in messages]


async def test_a_request_goes_to_the_next_member_if_the_first_is_not_there(nobody: Peer) -> None:
    async with serving(Echo()) as (_, port), channels() as to:
        there = peer_at(port)
        assert await read(to, nobody, there) == [bytes(100_000)] * 2
        assert await relayed_fragments(to, [nobody, there], JOURNAL, b"x") == b"x"
        assert (to.link(nobody), to.link(there)) == (Link.FAILING, Link.CONNECTED)
        assert to.link(peer_at(free_port())) is Link.UNTRIED


async def test_if_nobody_is_there_the_client_hears_so(nobody: Peer) -> None:
    async with channels() as to:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await read(to, nobody, peer_at(free_port()))
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError):
            await relayed_fragments(to, [nobody], JOURNAL, b"x")


async def test_after_the_first_message_nobody_else_is_asked() -> None:
    breaks = Turn(answers=[b"first"], code=grpc.StatusCode.UNAVAILABLE)
    async with scripted_broker(breaks) as first, scripted_broker() as second, channels() as to:
        peers = [Peer(ProcessId("zone", "peer"), broker.endpoint, is_own_kind=True) for broker in (first, second)]
        async with aclosing(relayed_read(to, peers, JOURNAL, b"2")) as messages:
            assert await anext(messages) == b"first"
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(messages)
        assert not second.received


async def test_a_failure_that_others_would_repeat_is_the_answer() -> None:
    def refuse(_: bytes) -> None:
        raise ValidationError("it is no good")

    def be_away(_: bytes) -> None:
        raise UnavailableError("its stores cannot be listed")

    echo = Echo()
    async with (
        serving(Echo(refuse)) as (_, refusing),
        serving(Echo(be_away)) as (_, away),
        serving(echo) as (_, port),
        channels() as to,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await relayed_fragments(to, [peer_at(refusing), peer_at(port)], JOURNAL, b"x")
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not echo.calls
        assert await relayed_fragments(to, [peer_at(away), peer_at(port)], JOURNAL, b"x") == b"x"
