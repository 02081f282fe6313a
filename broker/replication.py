"""Replication: a Replicate stream as the peer sees it that a primary replicates to.

It holds the replica's spool from the first proposal until the stream ends: that is what keeps any other primary out.
The Route is compared before the spool is waited for, so that of two who take themselves for the primary one is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.pipeline import HeldSpool
from broker.replica import Replica
from broker.replication_message import Acked, Answer, Content, Message, Propose
from broker.resolution import EVERYTHING, Resolution, Wanted
from fragment.spool import Proposal, Reply
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.route import Header
from protocol.selector import LabelSelector


class ReplicationError(UnavailableError):
    """A primary asked for what cannot be done here. Its stream ends."""


class ReplicationPort(Protocol):
    """What a Replication needs to have done for it."""

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        """What is returned ends the wait."""
        ...

    def answer(self, answer: Answer) -> None: ...

    def end(self, error: GazetteError | None) -> None:
        """End the stream, once all answers are out."""
        ...

    def now_ns(self) -> int: ...


class Replication:
    def __init__(self, port: ReplicationPort, selector: LabelSelector = EVERYTHING) -> None:
        self._port = port
        self._selector = selector
        self._opening: Propose | None = None
        self._resolution: Resolution | None = None
        self._held: HeldSpool | None = None
        self._waits: list[Callable[[], None]] = []
        self._is_over = False
        self._is_answered = False
        # Whether the primary tells through where bytes are acknowledged.
        self._is_kin = False
        # Whether content came since the last proposal: then a proposal is a commit.
        self._has_content = False
        self._acked_through = -1
        self._unanswered = 0
        self._is_finishing = False

    @property
    def is_serving(self) -> bool:
        """Whether it has the spool, so that the next message may come."""
        return self._held is not None

    @property
    def is_over(self) -> bool:
        return self._is_over

    def open(self, opening: Propose) -> None:
        """The first message. Others may come once it is served."""
        if opening.header is None or not opening.acknowledge:
            self._end(ValidationError("the first message of a stream must have a header", "Header"))
            return
        self._opening = opening
        self._resolve()

    def message(self, message: Message) -> None:
        held = self._held
        if self._is_over:
            return
        assert held is not None, "a message before the first was served"
        match message:
            case Propose():
                self._propose(held, message)
            case Content(data, delta, through):
                self._has_content = True
                self._acked(held, through)
                held.content(data, delta)
            case Acked(through):
                self._acked(held, through)

    def finish(self) -> None:
        """No more messages will come. What was asked is still answered, but nobody waits for the spool any more: later
        on, what the first message proposes would be out of date."""
        self._is_finishing = True
        if not self._unanswered and not self._is_over:
            self._end(None)

    def close(self) -> None:
        """The stream has ended, in whatever way. What is pending was never proposed."""
        self._is_over = True
        self._stop_waiting()
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def _resolve(self) -> None:
        opening = self._opening
        assert opening is not None
        wanted = Wanted(opening.fragment.journal, False, False, 0, opening.header, self._selector)
        self._waits.append(self._port.resolve(wanted, self._on_resolved))

    def _on_resolved(self, resolution: Resolution | GazetteError) -> None:
        self._waits.clear()
        if isinstance(resolution, GazetteError):
            self._end(resolution)
            return
        self._resolution = resolution
        opening = self._opening
        assert opening is not None
        assert opening.header is not None
        if resolution.status is not Status.OK:
            self._refuse(resolution.status)
        elif not resolution.header.route.equivalent(opening.header.route):
            self._refuse(Status.WRONG_ROUTE)
        else:
            self._take_spool(resolution, opening.header)

    def _take_spool(self, resolution: Resolution, header: Header) -> None:
        replica = resolution.replica
        assert isinstance(replica, Replica)
        if header.etcd.revision < replica.create_revision:
            # It speaks of a journal of the same name that was deleted since: nothing of that one may get in here.
            self._refuse(Status.WRONG_ROUTE)
            return
        invalidation = replica.invalidation
        # Together: whichever comes first withdraws the other.
        self._waits.append(invalidation.listen(self._on_invalidated))
        if invalidation.is_fired:
            return
        self._waits.append(replica.spool.take(self._on_spool).withdraw)
        if self._held is not None:
            self._stop_waiting()

    def _on_invalidated(self) -> None:
        if self._held is None and not self._is_over:
            self._stop_waiting()
            self._resolve()

    def _on_spool(self, held: HeldSpool) -> None:
        self._stop_waiting()
        self._held = held
        held.watch(self._on_failed)
        resolution, opening = self._resolution, self._opening
        assert resolution is not None
        assert opening is not None
        self._is_kin = resolution.header.route.primary_id in resolution.kin
        self._propose(held, opening)

    def _propose(self, held: HeldSpool, message: Propose) -> None:
        through = message.acked_through if self._is_kin else None
        opens, asks = message.header is not None, message.acknowledge
        now_ns = self._port.now_ns()
        proposal = Proposal(message.fragment, message.registers, now_ns, message.epoch, through, opens, asks)
        is_commit, self._has_content = self._has_content, False
        self._unanswered += 1
        held.propose(proposal, lambda reply: self._on_reply(message, is_commit, reply))

    def _on_reply(self, message: Propose, is_commit: bool, reply: Reply | Exception) -> None:
        self._unanswered -= 1
        if self._is_over or isinstance(reply, Exception):
            return
        if message.acknowledge:
            self._answer(reply.status, reply.fragment, reply)
        # To synchronise, a primary tries again on the same stream. One that is synchronised and yet does not fit has
        # lost track: it must not go on, and a Gazette primary only stops once the stream has ended.
        if reply.status is not Status.OK and (is_commit or not message.acknowledge):
            what = "a commit" if is_commit else "a proposal that asked for no answer"
            self._end(ReplicationError(f"{what} of {message.fragment.journal} does not fit what is held here"))
        elif self._is_finishing:
            self.finish()

    def _answer(self, status: Status, fragment: Fragment | None, reply: Reply) -> None:
        assert self._resolution is not None
        header = None if self._is_answered else self._resolution.header
        self._is_answered = True
        self._port.answer(Answer(status, header, fragment, reply.registers))

    def _refuse(self, status: Status) -> None:
        assert self._resolution is not None
        self._port.answer(Answer(status, self._resolution.header))
        self._end(None)

    def _acked(self, held: HeldSpool, through: int | None) -> None:
        if self._is_kin and through is not None and through > self._acked_through:
            self._acked_through = through
            held.acked(through, _nothing)

    def _on_failed(self, failure: Exception) -> None:
        self._end(failure if isinstance(failure, UnavailableError) else ReplicationError(str(failure)))

    def _end(self, error: GazetteError | None) -> None:
        if not self._is_over:
            self.close()
            self._port.end(error)

    def _stop_waiting(self) -> None:
        waits, self._waits = self._waits, []
        for withdraw in waits:
            withdraw()


def _nothing() -> None:
    """Nobody waits for it."""
