"""PeerStream over gRPC: sends what the pipeline says in order, and tells it what comes back."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from broker.peers import ReplicateCall
from broker.pipeline import Pipeline
from broker.replication_message import Message
from broker.replication_wire import MessageEncoder, decode_answer
from protocol.errors import GazetteError, UnavailableError
from protocol.route import ProcessId

QUEUED_BYTES_MAX = 4 << 20
"""What waits to be sent to one peer. An append reads on once it is less."""


class GrpcPeerStream:
    """``run`` it for as long as the pipeline lives."""

    def __init__(self, call: ReplicateCall, peer: ProcessId, pipeline: Pipeline, encoder: MessageEncoder) -> None:
        self._call = call
        self._peer = peer
        self._pipeline = pipeline
        self._encoder = encoder
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_closing = False
        self._is_over = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def send(self, message: Message) -> None:
        if self._is_over:
            return
        encoded = self._encoder.encode(message)
        self._queue.append(encoded)
        self._queued_bytes += len(encoded)
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._room.clear()
        self._wake.set()

    def half_close(self) -> None:
        self._is_closing = True
        self._wake.set()

    @property
    def has_room(self) -> bool:
        return self._room.is_set()

    async def wait_room(self) -> None:
        await self._room.wait()

    async def run(self) -> None:
        """Until the stream is over, in whatever way. Nothing is raised: the pipeline is told."""
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_all())
                await self._receive_all()
                sending.cancel()
        finally:
            self._is_over = True
            self._queue.clear()
            self._room.set()
            self._call.cancel()

    async def _receive_all(self) -> None:
        try:
            while True:
                raw = await self._call.read()
                if raw is grpc.aio.EOF:
                    break
                assert isinstance(raw, bytes)
                self._pipeline.answered(self._peer, decode_answer(raw))
            code, details = await self._call.code(), await self._call.details()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        except GazetteError as error:
            self._pipeline.failed(self._peer, error)
            return
        if code is grpc.StatusCode.OK:
            self._pipeline.ended(self._peer)
        else:
            self._pipeline.failed(self._peer, UnavailableError(f"{code.name}: {details}"))

    async def _send_all(self) -> None:
        """A write that fails is told by the reading side, which knows why."""
        try:
            while True:
                while self._queue:
                    encoded = self._queue.popleft()
                    await self._call.write(encoded)
                    self._queued_bytes -= len(encoded)
                    if self._queued_bytes <= QUEUED_BYTES_MAX:
                        self._room.set()
                if self._is_closing:
                    await self._call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._room.set()
