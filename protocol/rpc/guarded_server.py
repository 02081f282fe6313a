"""A grpc.aio server that a client cannot end by asking for a method with a strange name.

grpcio (seen in 1.85.1) reads the path of a call to a method that is not registered as UTF-8, in the very loop that
accepts calls: one call to `/\\xff`, for which no token is needed, ends the loop and with it the server. Here all
methods are registered, which gRPC tells apart by their bytes, and the others are answered before that loop gets to see
them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import grpc
from grpc._cython import cygrpc
from grpc.aio._server import Server

from protocol.rpc.keepalive import Options

_LOG = logging.getLogger(__name__)


class _NoMethods:
    """Knows none, so that grpcio itself answers UNIMPLEMENTED."""

    def resolve_handler(self, _details: object) -> None:
        return None


class _GuardedCore(cygrpc.AioServer):  # type: ignore[misc]
    _NO_METHODS = _NoMethods()

    async def _request_call(self) -> None:
        """Calls of methods that are not registered, each answered by a task of its own, for ever."""
        loop = asyncio.get_running_loop()
        answering: set[asyncio.Task[None]] = set()
        while True:
            state = await super()._request_call()
            # gRPC has no task group of ours to put these in; they live for as long as it takes to send a status.
            task = loop.create_task(self._answer(state, loop))
            answering.add(task)
            task.add_done_callback(answering.discard)

    async def _answer(self, state: Any, loop: asyncio.AbstractEventLoop) -> None:
        try:
            refusal = cygrpc._handle_rpc("", self._NO_METHODS, (), state, loop, False)  # noqa: SLF001
            await cygrpc._schedule_rpc_coro(refusal, state, loop, "unknown")  # noqa: SLF001
        except Exception:
            # Whatever a later grpcio makes of these two, it must not end the server.
            _LOG.exception("a call of an unknown method could not be answered")


class _GuardedServer(Server):
    def __init__(self, options: Options, calls_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = _GuardedCore(self._loop, None, (), (), options, calls_max)


def guarded_server(options: Options, calls_max: int) -> grpc.aio.Server:
    """Takes registered methods only."""
    server: Any = _GuardedServer(options, calls_max)
    return cast(grpc.aio.Server, server)
