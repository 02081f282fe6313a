"""The Replicate RPC: a primary's stream, applied to the spool of our replica."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker.append_api import first_message
from broker.append_event import HeadRead
from broker.durable_head import DurableHead
from broker.local_replica import LocalReplica
from broker.patience import Patience
from broker.replication import Replication
from broker.replication_message import Answer, Propose
from broker.replication_wire import decode, encode_answer
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from broker.resolver import Resolver
from broker.resolving import resolve_within
from fragment.spool_file import SpoolFile
from protocol.errors import GazetteError, ValidationError
from protocol.rpc.method import Call

ANSWERS_MAX = 256


class ReplicateBroker(Protocol):
    """What a stream needs of the broker that it comes to."""

    @property
    def resolver(self) -> Resolver[SpoolFile]: ...

    def now_ns(self) -> int: ...

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None: ...

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None: ...


class _Stream:
    """A ReplicationPort: what the Replication says is sent by ``serve``, which also reads."""

    def __init__(self, broker: ReplicateBroker, call: Call[bytes, bytes]) -> None:
        self._broker = broker
        self._call = call
        self.now_ns = broker.now_ns
        self._answers: deque[bytes] = deque()
        # Set when there is an answer to send, and when it is over.
        self._turn = asyncio.Event()
        self._served = asyncio.Event()
        self._sent = asyncio.Event()
        self._is_over = False
        self._error: GazetteError | None = None
        self._replication = Replication(self, call.claims.selector)
        self.replica: LocalReplica | None = None

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        """The replica is remembered, to wait for its disk."""

        def resolved(resolution: Resolution | GazetteError) -> None:
            if isinstance(resolution, Resolution) and isinstance(resolution.replica, LocalReplica):
                self.replica = resolution.replica
            done(resolution)

        return resolve_within(self._broker.resolver, wanted, REVISION_WAIT_S, resolved)

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        def read(found: HeadRead | GazetteError) -> None:
            done(found.head if isinstance(found, HeadRead) else found)

        self._broker.read_head(journal, read)

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        self._broker.void_head(journal, create_revision, done)

    def answer(self, answer: Answer) -> None:
        self._answers.append(encode_answer(answer))
        self._served.set()
        self._turn.set()

    def end(self, error: GazetteError | None) -> None:
        self._is_over, self._error = True, error
        self._served.set()
        self._turn.set()

    async def serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(self._receive_all())
                await self._send_all()
                receiving.cancel()
        finally:
            self._replication.close()
        if self._error is not None:
            raise self._error

    async def _send_all(self) -> None:
        while True:
            while self._answers:
                await self._call.send(self._answers.popleft())
                self._sent.set()
            if self._is_over:
                return
            self._turn.clear()
            await self._turn.wait()

    async def _receive_all(self) -> None:
        """Reads on while there is room for what was read: a primary that is faster than the disk waits."""
        try:
            with Patience() as patience:
                opening = decode(await first_message(self._call, patience))
            if not isinstance(opening, Propose):
                raise ValidationError("the first message of a stream must be a proposal", "Proposal")
            self._replication.open(opening)
            while (raw := await self._call.receive()) is not None:
                # A primary waits for the answer to its first message before it sends another: this is not for long.
                await self._served.wait()
                if self._is_over:
                    return
                while len(self._answers) > ANSWERS_MAX:
                    # A primary that asks and does not listen.
                    self._sent.clear()
                    await self._sent.wait()
                self._replication.message(decode(raw))
                if self.replica is not None:
                    await self.replica.worker.wait_room()
        except GazetteError as error:
            self.end(error)
        else:
            self._replication.finish()


async def replicate(broker: ReplicateBroker, call: Call[bytes, bytes]) -> None:
    """Serve one stream until it ends. Raises what it ended with."""
    await _Stream(broker, call).serve()
