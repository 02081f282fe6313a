"""Append calls in the simulator, at the broker: a client's stream driven through the shipped AppendRun, or passed on to
the primary; and the pulse, which has no client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from allocator.transaction import Transaction
from broker.append_event import AppendOpening, AppendOutcome, Chunk, HeadRead, Intent, Ready
from broker.append_event import End as ClientEnd
from broker.append_run import AppendRun
from broker.pipeline import PeerStream, Pipeline
from broker.replica import Replica
from broker.resolution import Resolution, Wanted
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.journal import SuspendMode
from protocol.route import ProcessId
from tests.simulation.network import End, Ending, Stream
from tests.simulation.sim_replication import Done, Resolving, Withdraw

APPEND = "append"
REVISION_WAIT_S = 30.0

ClientMessage = AppendOpening | Chunk | Intent


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """What a client is told."""

    outcome: AppendOutcome | GazetteError
    # Of the incarnation that was appended to; zero where there was none.
    create_revision: int = 0
    # Of a failure: whether it was not done and never will be.
    is_refused: bool = False


class AppendBroker(Resolving, Protocol):
    """What an append needs of the broker it runs in."""

    def is_certain(self) -> bool: ...

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None: ...

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw: ...

    def open_streams(self, pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]: ...

    def acknowledging(self, outcome: AppendOutcome, create_revision: int, begun_s: float) -> None:
        """Hears of an append that is about to be acknowledged, and when it began."""
        ...

    def forward(
        self, peer: ProcessId, method: str, heard: Callable[[AppendAnswer], None], ended: Callable[[End], None]
    ) -> Stream: ...


class _Port:
    """What clients and pulses have in common of an AppendPort."""

    def __init__(self, broker: AppendBroker) -> None:
        self._broker = broker
        self._has_resolved = False

    def resolve(self, wanted: Wanted, done: Done) -> Withdraw:
        # The client's own demand is bounded. What is waited for afterwards comes about by itself.
        timeout_s = None if self._has_resolved else REVISION_WAIT_S
        self._has_resolved = True
        return self._broker.resolve_within(wanted, timeout_s, done)

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        self._broker.transact(transaction, done)

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        self._broker.read_head(journal, done)

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        return self._broker.await_ready(replica, is_fresh, done)

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        return self._broker.open_streams(pipeline)

    def is_certain(self) -> bool:
        return self._broker.is_certain()

    def now_ns(self) -> int:
        return self._broker.now_ns()


class ServedAppend(_Port):
    def __init__(self, broker: AppendBroker, stream: Stream) -> None:
        super().__init__(broker)
        self._stream = stream
        self._run: AppendRun | None = None
        self._arrived: deque[Chunk | Intent | ClientEnd] = deque()
        self._is_wanted = False
        self._upstream: Stream | None = None
        self._begun_s = stream.node.world.now_s
        self.is_over = False

    # What the run asks for.

    def next_chunk(self) -> None:
        self._is_wanted = True
        if self._arrived:
            # Not at once: a server reads its next message in a turn of its own.
            self._stream.node.after(0.0, self._feed)

    def proxy(self, resolution: Resolution) -> None:
        primary, run = resolution.header.process_id, self._run
        assert primary is not None
        assert run is not None
        self._upstream = self._broker.forward(primary, APPEND, self._answered_upstream, self._ended_upstream)
        self._upstream.send(replace(run.fsm.opening, header=resolution.header))
        while self._arrived:
            self._relay(self._upstream, self._arrived.popleft())

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        assert self._run is not None
        resolution = self._run.fsm.resolution
        item = resolution.item if resolution is not None else None
        create_revision = item.create_revision if item is not None else 0
        if isinstance(outcome, AppendOutcome) and outcome.status is Status.OK:
            self._broker.acknowledging(outcome, create_revision, self._begun_s)
        if outcome is not None:
            self._answer(AppendAnswer(outcome, create_revision, is_refused=not self._run.may_be_done))
        self.is_over = True

    # What comes in.

    def heard(self, message: ClientMessage) -> None:
        if self.is_over:
            return
        if isinstance(message, AppendOpening):
            self._run = AppendRun(message, self)
            self._run.start()
        else:
            self._take(message)

    def ended(self, end: End) -> None:
        if self.is_over:
            return
        if end.kind is Ending.EOF:
            if self._run is None:
                self.abort()
            else:
                self._take(ClientEnd())
        else:
            self.abort()

    def abort(self) -> None:
        self.is_over = True
        if self._upstream is not None:
            self._upstream.cancel()
        elif self._run is not None:
            self._run.cancel()
        self._stream.cancel()

    def _take(self, message: Chunk | Intent | ClientEnd) -> None:
        if self._upstream is not None:
            self._relay(self._upstream, message)
        else:
            self._arrived.append(message)
            self._feed()

    def _feed(self) -> None:
        if self._is_wanted and self._arrived and not self.is_over:
            assert self._run is not None
            self._is_wanted = False
            self._run.feed(self._arrived.popleft())

    def _answer(self, answer: AppendAnswer) -> None:
        self._stream.send(answer)
        self._stream.half_close()

    # Through another broker.

    def _relay(self, upstream: Stream, message: Chunk | Intent | ClientEnd) -> None:
        if isinstance(message, ClientEnd):
            upstream.half_close()
        else:
            upstream.send(message)

    def _answered_upstream(self, answer: AppendAnswer) -> None:
        if not self.is_over:
            self.is_over = True
            self._answer(answer)

    def _ended_upstream(self, end: End) -> None:
        if not self.is_over:
            self.is_over = True
            self._answer(AppendAnswer(UnavailableError(f"the primary did not answer: {end.kind.name}")))


class Beat(_Port):
    """One pulse of a journal, as ``broker.pulse`` has it."""

    def __init__(self, broker: AppendBroker, journal: str, done: Callable[[], None]) -> None:
        super().__init__(broker)
        self._done = done
        opening = AppendOpening(journal, do_not_proxy=True, suspend=SuspendMode.NO_RESUME)
        self.run = AppendRun(opening, self)
        self._has_intent = False

    def next_chunk(self) -> None:
        has_intent, self._has_intent = self._has_intent, True
        self.run.feed(ClientEnd() if has_intent else Intent())

    def proxy(self, resolution: Resolution) -> None:
        raise AssertionError("a pulse is not to be proxied")

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self._done()
