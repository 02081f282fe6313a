"""Append calls in the simulator, at the broker: a client's stream driven through the shipped AppendRun, or passed on to
the primary; and the pulse, which has no client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from broker.append_event import AppendOpening, AppendOutcome, Chunk, Intent
from broker.append_event import End as ClientEnd
from broker.append_run import AppendHost, AppendRun
from broker.resolution import Resolution
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.journal import SuspendMode
from protocol.route import ProcessId
from tests.simulation.network import End, Ending, Stream

APPEND = "append"

ClientMessage = AppendOpening | Chunk | Intent


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """What a client is told."""

    outcome: AppendOutcome | GazetteError
    # Of the incarnation that was appended to; zero where there was none.
    create_revision: int = 0
    # Of a failure: whether it was not done and never will be.
    is_refused: bool = False


class AppendBroker(AppendHost, Protocol):
    """What a client's append needs of the broker it runs in."""

    def acknowledging(self, outcome: AppendOutcome, create_revision: int, begun_s: float) -> None:
        """Hears of an append that is about to be acknowledged, and when it began."""
        ...

    def forward(
        self, peer: ProcessId, method: str, heard: Callable[[AppendAnswer], None], ended: Callable[[End], None]
    ) -> Stream: ...


class ServedAppend:
    """An AppendCaller."""

    def __init__(self, broker: AppendBroker, stream: Stream) -> None:
        self._broker = broker
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
            self._run = AppendRun(message, self._broker, self)
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


class Beat:
    """One pulse of a journal, as ``broker.pulse`` has it."""

    def __init__(self, host: AppendHost, journal: str, done: Callable[[], None]) -> None:
        self._done = done
        opening = AppendOpening(journal, do_not_proxy=True, suspend=SuspendMode.NO_RESUME)
        self.run = AppendRun(opening, host, self)
        self._has_intent = False

    def next_chunk(self) -> None:
        has_intent, self._has_intent = self._has_intent, True
        self.run.feed(ClientEnd() if has_intent else Intent())

    def proxy(self, resolution: Resolution) -> None:
        raise AssertionError("a pulse is not to be proxied")

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self._done()
