"""Replicate streams in the simulator: the primary's end, and the end of the peer that it replicates to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker.append_event import HeadRead
from broker.durable_head import DurableHead
from broker.notice import Withdraw
from broker.pipeline import Pipeline
from broker.replication import Replication
from broker.replication_message import Answer, Message, Propose
from broker.resolution import Resolution, Wanted
from protocol.errors import GazetteError, UnavailableError, ValidationError
from protocol.route import ProcessId
from tests.simulation.network import End, Ending, Network, Stream
from tests.simulation.world import Node

REPLICATE = "replicate"

Done = Callable[[Resolution | GazetteError], None]


class Resolving(Protocol):
    """What streams need of the broker that serves them."""

    def resolve_within(self, wanted: Wanted, timeout_s: float | None, done: Done) -> Withdraw: ...

    def now_ns(self) -> int: ...

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None: ...


class SimulatedPeerStream:
    """A PeerStream."""

    def __init__(self, network: Network, src: Node, dst: Node, peer: ProcessId, pipeline: Pipeline) -> None:
        self._peer = peer
        self._pipeline = pipeline
        self._stream = network.open(src, dst, REPLICATE, self._heard, self._ended)

    def send(self, message: Message) -> None:
        self._stream.send(message)

    def half_close(self) -> None:
        self._stream.half_close()

    def _heard(self, answer: Answer) -> None:
        self._pipeline.answered(self._peer, answer)

    def _ended(self, end: End) -> None:
        if end.kind is Ending.EOF and end.detail is None:
            self._pipeline.ended(self._peer)
        else:
            self._pipeline.failed(self._peer, UnavailableError(f"{end.kind.name}: {end.detail}"))


class ServedReplication:
    """A ReplicationPort, as ``replicate_api`` has one."""

    def __init__(self, broker: Resolving, stream: Stream, timeout_s: float) -> None:
        self._broker = broker
        self._stream = stream
        self._timeout_s = timeout_s
        self._replication = Replication(self)
        self._waiting: deque[Message] = deque()
        self._is_open = self._is_served = self._has_eof = False
        self.is_over = False

    # What the Replication asks for.

    def resolve(self, wanted: Wanted, done: Done) -> Withdraw:
        return self._broker.resolve_within(wanted, self._timeout_s, done)

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        self._broker.read_head(journal, lambda read: done(read.head if isinstance(read, HeadRead) else read))

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        raise AssertionError("all brokers of a simulation keep epochs")

    def answer(self, answer: Answer) -> None:
        self._stream.send(answer)
        self._serve()

    def end(self, error: GazetteError | None) -> None:
        self.is_over = True
        self._waiting.clear()
        self._stream.half_close(error)

    def now_ns(self) -> int:
        return self._broker.now_ns()

    # What comes in.

    def heard(self, message: Message) -> None:
        if self.is_over:
            return
        if not self._is_open:
            self._is_open = True
            if isinstance(message, Propose):
                self._replication.open(message)
            else:
                self._replication.close()
                self.end(ValidationError("the first message of a stream must be a proposal", "Proposal"))
        elif self._is_served and not self._waiting:
            self._replication.message(message)
        else:
            self._waiting.append(message)

    def ended(self, end: End) -> None:
        """Whatever has happened, it begins with an EOF."""
        if end.kind is not Ending.EOF:
            self.abort()
        elif not self.is_over:
            self._has_eof = True
            if not self._waiting:
                self._replication.finish()

    def abort(self) -> None:
        self.is_over = True
        self._waiting.clear()
        self._replication.close()
        self._stream.cancel()

    def _serve(self) -> None:
        """The first answer is out, so that what has come since is taken in, in the next turn."""
        if not self._is_served:
            self._is_served = True
            self._stream.node.after(0.0, self._take_in)

    def _take_in(self) -> None:
        while self._waiting and not self.is_over:
            self._replication.message(self._waiting.popleft())
        if self._has_eof and not self.is_over:
            self._replication.finish()
