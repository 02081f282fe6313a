"""Requests that change nothing, passed on to another member: to the next one, if one is out of reach.

Only before the first message of an answer has come. After it, the client knows where it was, and asks again from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import grpc

from broker.peer import Peer
from broker.peers import PeerChannels, ReadCall

Answer = TypeVar("Answer")

_OUT_OF_REACH = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""The latter is what a server says that ends without waiting: if it were our own doing, it would not be an error."""


async def relayed_read(
    channels: PeerChannels, peers: Sequence[Peer], journal: str, request: bytes
) -> AsyncGenerator[bytes, None]:
    """What the first of `peers` that answers sends, as it comes."""

    async def begun(peer: Peer) -> tuple[ReadCall, object]:
        call = channels.read(peer, journal, request)
        try:
            return call, await call.read()
        except BaseException:
            call.cancel()
            raise

    call, message = await _first_answer(peers, begun)
    try:
        # What comes at the end is no message.
        while isinstance(message, bytes):
            yield message
            message = await call.read()
    finally:
        call.cancel()


async def relayed_fragments(channels: PeerChannels, peers: Sequence[Peer], journal: str, request: bytes) -> bytes:
    async def asked(peer: Peer) -> bytes:
        return await channels.list_fragments(peer, journal, request)

    return await _first_answer(peers, asked)


async def _first_answer(peers: Sequence[Peer], ask: Callable[[Peer], Awaitable[Answer]]) -> Answer:
    *others, last = peers
    for peer in others:
        try:
            return await ask(peer)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _OUT_OF_REACH:
                raise
    return await ask(last)
