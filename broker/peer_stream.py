"""PeerStream over gRPC: sends what the pipeline says in order, and tells it what comes back."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from broker.peers import ReplicateCall
from broker.pipeline import Pipeline
from broker.replication_message import Acked, Message, Propose
from broker.replication_wire import MessageEncoder, decode_answer
from protocol.errors import GazetteError, UnavailableError
from protocol.route import ProcessId

QUEUED_BYTES_MAX = 4 << 20
"""What waits to be sent to one peer. An append reads on once it is less."""
MESSAGE_BYTES = 256
"""What a message costs beside its content."""
ANSWER_S_MIN, ANSWER_S_MAX = 1.0, 20.0
ACKED_ALONE_S = 0.005
"""What is acknowledged is said alone this often at most. Where appends come faster than that, the next one says it, and
peers have half as many messages to read."""


def answer_s(lease_s: float) -> float:
    """How long a peer may owe an answer, or take nothing of what is sent to it; and our own disk likewise.

    One that is alive but whose disk hangs would hold up the journal for ever. It is noticed within the time of a lease,
    as one is that has died, but not sooner than a busy one may take.

    >>> [answer_s(lease_s) for lease_s in (1, 5, 20, 60)]
    [1.0, 3.75, 15.0, 20.0]
    """
    return min(ANSWER_S_MAX, max(ANSWER_S_MIN, lease_s * 3 / 4))


class GrpcPeerStream:
    """``run`` it for as long as the pipeline lives."""

    def __init__(
        self,
        call: ReplicateCall,
        peer: ProcessId,
        pipeline: Pipeline,
        encoder: MessageEncoder,
        answer_s: float,
    ) -> None:
        self._call = call
        self._peer = peer
        self._pipeline = pipeline
        self._encoder = encoder
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        # When each answer that the peer owes was asked for, the oldest first; since when it has yet to take what is
        # written to it; and what looks after both, with one timer, which goes off now and then and not per message.
        self._asked_s: deque[float] = deque()
        self._writing_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        # What is acknowledged and to be said soon, if no other message says it first; and when it was last said.
        self._acked: Acked | None = None
        self._acked_timer: asyncio.TimerHandle | None = None
        self._acked_s = -ACKED_ALONE_S
        self._is_closing = False
        self._is_over = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def send(self, message: Message) -> None:
        if self._is_over:
            return
        if isinstance(message, Acked):
            if self._loop.time() < self._acked_s + ACKED_ALONE_S:
                self._say_soon(message)
                return
            self._acked, self._acked_s = None, self._loop.time()
        elif self._acked is not None:
            # It says as much, or more.
            self._acked, self._acked_s = None, self._loop.time()
        self._enqueue(message)

    def _say_soon(self, acked: Acked) -> None:
        self._acked = acked
        if self._acked_timer is None:
            self._acked_timer = self._loop.call_at(self._acked_s + ACKED_ALONE_S, self._say_acked)

    def _say_acked(self) -> None:
        self._acked_timer = None
        acked, self._acked = self._acked, None
        if acked is not None and not self._is_over:
            self._acked_s = self._loop.time()
            self._enqueue(acked)

    def _enqueue(self, message: Message) -> None:
        encoded = self._encoder.encode(message)
        self._queue.append(encoded)
        self._queued_bytes += len(encoded) + MESSAGE_BYTES
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._room.clear()
        if isinstance(message, Propose) and message.acknowledge:
            self._asked_s.append(self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_later(self._answer_s, self._look)
        self._wake.set()

    def half_close(self) -> None:
        acked, self._acked = self._acked, None
        if acked is not None and not self._is_over:
            self._enqueue(acked)
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
            self._let_go()
            for timer in (self._timer, self._acked_timer):
                if timer is not None:
                    timer.cancel()
            self._call.cancel()
            # Whoever has been told already is not told again; if we are cancelled, nobody has been.
            self._pipeline.ended(self._peer)

    def _let_go(self) -> None:
        """Nothing more is sent, and whoever waits to send is not kept."""
        self._is_over = True
        self._queue.clear()
        self._room.set()

    def _look(self) -> None:
        self._timer = None
        if not self._asked_s and not self._queue and self._writing_s is None:
            return
        now_s = self._loop.time()
        asked_s = self._asked_s[0] if self._asked_s else now_s
        writing_s = now_s if self._writing_s is None else self._writing_s
        left_s = min(asked_s, writing_s) + self._answer_s - now_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
            return
        what = "answered" if asked_s <= writing_s else "taken what was sent to it"
        self._pipeline.failed(self._peer, UnavailableError(f"it has not {what} within {self._answer_s:g} s"))
        self._let_go()
        self._call.cancel()

    async def _receive_all(self) -> None:
        try:
            while True:
                raw = await self._call.read()
                if raw is grpc.aio.EOF:
                    break
                assert isinstance(raw, bytes)
                answer = decode_answer(raw)
                if self._asked_s:
                    self._asked_s.popleft()
                self._pipeline.answered(self._peer, answer)
            code, details = await self._call.code(), await self._call.details()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        except (GazetteError, grpc.aio.BaseError) as error:
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
                    self._writing_s = self._loop.time()
                    await self._call.write(encoded)
                    self._writing_s = None
                    self._queued_bytes -= len(encoded) + MESSAGE_BYTES
                    if self._queued_bytes <= QUEUED_BYTES_MAX:
                        self._room.set()
                if self._is_closing:
                    await self._call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            self._room.set()


class UnreachablePeerStream:
    """To a peer of which nobody knows where it is: it fails as one that broke."""

    has_room = True

    def send(self, message: Message) -> None:
        return None

    def half_close(self) -> None:
        return None

    async def wait_room(self) -> None:
        return None
