"""StallWatch: ends a call that has made no progress for too long.

Of a read at the head of a journal, or of a watch, nothing is heard for as long as nothing happens, and a connection
whose other end has vanished looks the same. So the broker is asked, by another call, whether it is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

import grpc

from broker.client.brokers import StreamCall
from broker.client.failure import failure_of
from broker.client.tasks import ClientTasks
from protocol.errors import GazetteError, UnavailableError

IsAlive = Callable[[], Awaitable[bool]]
"""Whether the broker answers, and knows of nothing that it should have sent."""


class StallWatch:
    """Around a call, whose messages are read with `next`. The call is cancelled at the end."""

    def __init__(
        self,
        call: StreamCall,
        endpoint: str,
        stall_s: float,
        tasks: ClientTasks,
        is_alive: IsAlive | None = None,
    ) -> None:
        """Without `is_alive` no progress is taken for a failure right away."""
        self._call = call
        self._endpoint = endpoint
        self._stall_s = stall_s
        self._tasks = tasks
        self._is_alive = is_alive
        self._loop = asyncio.get_running_loop()
        self._waiting_since_s: float | None = None
        self._is_stalled = False
        self._asking: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(stall_s, self._look)

    async def __aenter__(self) -> StallWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._call.cancel()

    @property
    def is_stalled(self) -> bool:
        return self._is_stalled

    async def next(self) -> bytes | None:
        """The next message, None at the end of the stream. Raises a GazetteError."""
        self._waiting_since_s = self._loop.time()
        try:
            raw = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise failure_of(error, self._endpoint) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_stalled or (task is not None and task.cancelling()):
                raise
            raise UnavailableError(f"{self._endpoint}: no progress for {self._stall_s:g} s") from None
        finally:
            self._waiting_since_s = None
        if raw is grpc.aio.EOF:
            return None
        assert isinstance(raw, bytes)
        return raw

    def _look(self) -> None:
        since_s, now_s = self._waiting_since_s, self._loop.time()
        if since_s is None or now_s - since_s < self._stall_s:
            left_s = self._stall_s if since_s is None else self._stall_s - (now_s - since_s)
            self._timer = self._loop.call_later(left_s, self._look)
        elif self._is_alive is None:
            self._stall()
        else:
            self._asking = self._tasks.create_task(self._ask(self._is_alive, since_s))

    async def _ask(self, is_alive: IsAlive, since_s: float) -> None:
        try:
            alive = await is_alive()
        except GazetteError:
            alive = False
        if alive or self._waiting_since_s != since_s:
            self._timer = self._loop.call_later(self._stall_s, self._look)
        else:
            self._stall()

    def _stall(self) -> None:
        self._is_stalled = True
        self._call.cancel()
