"""Replication: a Replicate stream as the peer sees it that a primary replicates to.

It holds the replica's spool from the first proposal until the stream ends, or until a later one takes it: that is what
keeps any other primary out. The Route is compared before the spool is waited for, so that of two who take themselves
for the primary one is told. A spool whose commits are not of the last, open epoch is retired before it takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.durable_head import Claim, DurableHead, EpochTerms, Undecided, fate, is_stale, takes_part
from broker.pipeline import HeldSpool
from broker.replica import Replica
from broker.replication_message import Acked, Answer, Content, Message, Propose
from broker.resolution import EVERYTHING, Resolution, Wanted
from fragment.spool import NO_EPOCH, CopyEnd, EpochMark, Proposal, Reply
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

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        """What is on record of the journal's head, as etcd has it now."""
        ...

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        """Have it on record that a member without epochs takes part."""
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
        self._replica: Replica[object] | None = None
        self._held: HeldSpool | None = None
        # The epoch that is open for this stream, once its first proposal came; before, the one it was opened with.
        self._mark = NO_EPOCH
        self._is_synchronised = False
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

    @property
    def header(self) -> Header:
        """Under which the stream was opened."""
        assert self._opening is not None
        assert self._opening.header is not None
        return self._opening.header

    def depose(self) -> None:
        """A later synchronisation takes the spool: what was asked for and not answered yet never will be."""
        self._end(UnavailableError("a later synchronisation of the journal took the spool"))

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
            assert self._replica is not None
            self._replica.held_by(None)
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
        is_overtaken = self._tells and header.etcd.revision < replica.taken_revision
        if header.etcd.revision < replica.create_revision or is_overtaken:
            # It speaks of a journal of the same name that was deleted since: nothing of that one may get in here. Or it
            # was overtaken, by a later stream.
            self._refuse(Status.WRONG_ROUTE)
            return
        if replica.stall is not None:
            self._end(replica.stall)
            return
        self._replica = replica
        invalidation = replica.invalidation
        # Together: whichever comes first withdraws the other.
        self._waits.append(invalidation.listen(self._on_invalidated))
        if invalidation.is_fired:
            return
        self._waits.append(replica.take_spool(header, self._on_spool))
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
        resolution, opening, replica = self._resolution, self._opening, self._replica
        assert resolution is not None
        assert opening is not None
        assert replica is not None
        replica.held_by(self)
        self._is_kin = resolution.header.route.primary_id in resolution.kin
        told, copy = opening.epoch, held.spool.copy
        if told is None:
            self._port.void_head(replica.journal, replica.create_revision, self._on_voided)
            return
        self._mark = told.mark
        if told.is_void:
            self._propose(held, opening)
        elif copy is None or takes_part(told, copy):
            held.prepare(None, self._on_prepared)
        elif is_stale(told, copy):
            self._answer_as_it_is(held, told)
        else:
            self._port.read_head(replica.journal, self._on_head)

    # Getting the spool ready for a synchronisation.

    def _on_voided(self, failure: GazetteError | None) -> None:
        if self._is_over:
            return
        if failure is not None:
            self._end(failure)
            return
        held, opening, replica = self._held, self._opening, self._replica
        assert held is not None
        assert opening is not None
        assert replica is not None
        replica.voided()
        self._propose(held, opening)

    def _on_head(self, head: DurableHead | GazetteError | None) -> None:
        if self._is_over:
            return
        if isinstance(head, GazetteError):
            self._end(head)
            return
        held, opening = self._held, self._opening
        assert held is not None
        assert opening is not None
        copy, told = held.spool.copy, opening.epoch
        assert copy is not None
        assert told is not None
        known = fate(head, copy.epoch)
        if isinstance(known, Undecided):
            # The record has changed since the primary read it.
            self._answer_as_it_is(held, told)
        else:
            held.prepare(known, self._on_prepared)

    def _on_prepared(self, failure: Exception | None) -> None:
        if self._is_over or failure is not None:
            return
        held, opening = self._held, self._opening
        assert held is not None
        assert opening is not None
        self._propose(held, opening)

    def _answer_as_it_is(self, held: HeldSpool, told: EpochTerms) -> None:
        """To a primary that has to read the record again: nothing of the spool is touched."""
        spool = held.spool
        reply = Reply(Status.PROPOSAL_MISMATCH, spool.fragment, spool.registers)
        self._answer(reply.status, reply.fragment, reply, self._claim(told, spool.copy))

    def _claim(self, told: EpochTerms, copy: CopyEnd | None) -> Claim:
        assert self._replica is not None
        return Claim(self._replica.claimed_id(told.mark), copy)

    @property
    def _tells(self) -> bool:
        """Whether the primary tells through where bytes are acknowledged."""
        return self._opening is not None and self._opening.epoch is not None

    def _propose(self, held: HeldSpool, message: Propose) -> None:
        told = message.epoch
        through = message.acked_through if self._is_kin and self._tells else None
        mark = NO_EPOCH if told is None else told.mark
        if told is not None and mark != self._mark:
            self._open_epoch(told)
        proposal = Proposal(message.fragment, message.registers, self._port.now_ns(), mark, through)
        is_commit, self._has_content = self._has_content, False
        self._unanswered += 1
        held.propose(proposal, lambda reply: self._on_reply(message, is_commit, reply))

    def _open_epoch(self, told: EpochTerms) -> None:
        """The primary has one of its own by now. The one before it ended where this one begins."""
        assert self._replica is not None
        number = told.mark.number - 1
        closed = EpochMark(told.mark.create_revision, number) if number else None
        self._mark, self._is_synchronised = told.mark, True
        self._replica.epoch_opened(told, closed)

    def _on_reply(self, message: Propose, is_commit: bool, reply: Reply | Exception) -> None:
        self._unanswered -= 1
        if self._is_over or isinstance(reply, Exception):
            return
        if message.acknowledge:
            claim = None
            if message.epoch is not None and not self._is_synchronised and self._held is not None:
                claim = self._claim(message.epoch, self._held.spool.copy)
            self._answer(reply.status, reply.fragment, reply, claim)
        # To synchronise, a primary tries again on the same stream. One that is synchronised and yet does not fit has
        # lost track: it must not go on, and a Gazette primary only stops once the stream has ended.
        if reply.status is not Status.OK and (is_commit or not message.acknowledge):
            what = "a commit" if is_commit else "a proposal that asked for no answer"
            self._end(ReplicationError(f"{what} of {message.fragment.journal} does not fit what is held here"))
        elif self._is_finishing:
            self.finish()

    def _answer(self, status: Status, fragment: Fragment | None, reply: Reply, claim: Claim | None) -> None:
        assert self._resolution is not None
        header = None if self._is_answered else self._resolution.header
        self._is_answered = True
        self._port.answer(Answer(status, header, fragment, reply.registers, claim))

    def _refuse(self, status: Status) -> None:
        assert self._resolution is not None
        self._port.answer(Answer(status, self._resolution.header))
        self._end(None)

    def _acked(self, held: HeldSpool, through: int | None) -> None:
        if self._is_kin and self._tells and through is not None and through > self._acked_through:
            self._acked_through = through
            held.acked(through)

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
