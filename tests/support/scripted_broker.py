"""A gRPC server under the Journal's name that answers as a test says, call by call, and remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

SERVICE = "protocol.Journal"


@dataclass
class Turn:
    """What becomes of one call."""

    answers: list[bytes] = field(default_factory=list)
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    trailers: tuple[tuple[str, str], ...] = ()
    # The answers come once so many messages were received, or with the end of them.
    after_messages: int | None = None
    # Neither a status nor anything else follows the answers.
    hangs: bool = False


@dataclass
class Received:
    method: str
    messages: list[bytes] = field(default_factory=list)
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    is_half_closed: bool = False


class ScriptedBroker:
    """Calls that there is no turn for wait until there is."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.endpoint = ""
        self._turns: deque[Turn] = deque()
        self._more = asyncio.Condition()

    async def add(self, *turns: Turn) -> None:
        async with self._more:
            self._turns.extend(turns)
            self._more.notify_all()

    def service(self, call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = call_details.method.rpartition("/")[2]

        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._serve(method, requests, context)

        return grpc.stream_stream_rpc_method_handler(serve)

    async def _serve(
        self, method: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        call = Received(method, metadata=dict(context.invocation_metadata() or ()))
        self.received.append(call)
        async with self._more:
            await self._more.wait_for(lambda: bool(self._turns))
            turn = self._turns.popleft()
        while len(call.messages) != turn.after_messages:
            message = await anext(requests, None)
            if message is None:
                call.is_half_closed = True
                break
            call.messages.append(message)
        for answer in turn.answers:
            await context.write(answer)
        if turn.hangs:
            await asyncio.Event().wait()
        if turn.code is not grpc.StatusCode.OK:
            await context.abort(turn.code, turn.details, turn.trailers)


class _Generic(grpc.GenericRpcHandler):
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._broker.service(handler_call_details)


@asynccontextmanager
async def scripted_broker(*turns: Turn) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker()
    await broker.add(*turns)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((_Generic(broker),))
    broker.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield broker
    finally:
        await server.stop(None)
