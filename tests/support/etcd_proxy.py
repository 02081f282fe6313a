"""Stands between a client and a real etcd, and does to the calls what networks and crashes do.

It passes bytes on without looking at them, so that nothing about etcd is imitated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc


@dataclass
class EtcdProxy:
    channel: grpc.aio.Channel
    endpoint: str = ""
    # Methods whose next answer gets lost: the call has happened, and fails.
    lost_answers: set[str] = field(default_factory=set)
    # Methods with whose next call streams are held up: nobody hears of what it has done.
    muffled: set[str] = field(default_factory=set)
    # Whether every answer of a stream is passed on twice.
    is_stuttering: bool = False
    # Clear while streams are held up, without anybody being told.
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    # Clear while no stream gets as far as etcd.
    opening: asyncio.Event = field(default_factory=asyncio.Event)
    # Replaced when all open streams are to end.
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    # The latest answer to each question, and how often it is still to be given in place of a new one.
    answers: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    repeats: dict[tuple[str, bytes], int] = field(default_factory=dict)

    def answer_from_the_past(self, times: int) -> None:
        """To each question that was asked before, as a member does whose state is old."""
        self.repeats = dict.fromkeys(self.answers, times)

    def end_streams_in_silence(self) -> None:
        """As if the server had nothing more to say, and all was well."""
        ending, self.ending = self.ending, asyncio.Event()
        ending.set()

    async def unary(self, path: str, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if self.repeats.get((path, request), 0):
            self.repeats[path, request] -= 1
            return self.answers[path, request]
        if path in self.muffled:
            self.muffled.remove(path)
            self.flowing.clear()
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(path)
        try:
            answer: bytes = await call(request, metadata=_passed_on(context), timeout=20)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        if path in self.lost_answers:
            self.lost_answers.remove(path)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        self.answers[path, request] = answer
        return answer

    async def stream(
        self, path: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        self.streams += 1
        ending = self.ending
        await self.opening.wait()
        call: grpc.aio.StreamStreamCall[bytes, bytes] = self.channel.stream_stream(path)(metadata=_passed_on(context))
        answers: asyncio.Queue[bytes | grpc.aio.AioRpcError | None] = asyncio.Queue(100)
        try:
            async with asyncio.TaskGroup() as tasks:
                children = [
                    tasks.create_task(_send_all(requests, call)),
                    tasks.create_task(_read_all(call, answers)),
                    tasks.create_task(_put_at(ending, answers)),
                ]
                while (answer := await answers.get()) is not None:
                    await self.flowing.wait()
                    if isinstance(answer, grpc.aio.AioRpcError):
                        await context.abort(answer.code(), answer.details() or "")
                    for _ in range(2 if self.is_stuttering else 1):
                        yield answer
                for child in children:
                    child.cancel()
        finally:
            call.cancel()


async def _send_all(requests: AsyncIterator[bytes], call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    async for request in requests:
        await call.write(request)


async def _read_all(
    call: grpc.aio.StreamStreamCall[bytes, bytes], answers: asyncio.Queue[bytes | grpc.aio.AioRpcError | None]
) -> None:
    try:
        while isinstance(answer := await call.read(), bytes):
            await answers.put(answer)
        await answers.put(None)
    except grpc.aio.AioRpcError as error:
        await answers.put(error)


async def _put_at(ending: asyncio.Event, answers: asyncio.Queue[bytes | grpc.aio.AioRpcError | None]) -> None:
    await ending.wait()
    await answers.put(None)


def _passed_on(context: grpc.aio.ServicerContext[bytes, bytes]) -> tuple[tuple[str, str | bytes], ...]:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key in ("hasleader", "token"))


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, proxy: EtcdProxy) -> None:
        self._proxy = proxy

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        path = details.method
        if path.endswith(("/Watch", "/LeaseKeepAlive")):
            return grpc.stream_stream_rpc_method_handler(partial(self._proxy.stream, path))
        return grpc.unary_unary_rpc_method_handler(partial(self._proxy.unary, path))


@asynccontextmanager
async def etcd_proxy(etcd_endpoint: str) -> AsyncIterator[EtcdProxy]:
    async with grpc.aio.insecure_channel(etcd_endpoint.removeprefix("http://")) as channel:
        proxy = EtcdProxy(channel)
        proxy.flowing.set()
        proxy.opening.set()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Handlers(proxy),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        proxy.endpoint = f"http://127.0.0.1:{port}"
        try:
            yield proxy
        finally:
            await server.stop(None)
