"""Pipeline: a primary's hold on its journal, which is its own spool and a stream to each of its peers.

Whoever has a synchronised pipeline is the only one to append to the journal. It is sent to by one append after the
other, each of which passes it on before its answers are in: answers come in the order of what they answer, from every
peer and from the spool here, so that an Ask knows its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Protocol

from broker.durable_head import Claim, DurableHead, EpochTerms, Fate
from broker.proposal import Head
from broker.replication_message import Acked, Answer, Content, Message, Propose
from fragment.spool import NO_EPOCH, Proposal, Reply, Spool
from protocol.errors import Status, UnavailableError
from protocol.fragment import Fragment
from protocol.label import LabelSet
from protocol.route import Header, ProcessId

CONTENT_BYTES_MAX = 1 << 20


class PeerStream(Protocol):
    """A Replicate stream to one peer. What it brings is told to the pipeline; it never waits."""

    def send(self, message: Message) -> None: ...

    def half_close(self) -> None:
        """Nothing more will be sent. What was sent is still answered."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """The spool with all content that was sent to it, not committed yet, and the SHA-1 of that content alone."""

    fragment: Fragment
    content_sum: bytes


class HeldSpool(Protocol):
    """A spool that its holder alone writes to. Steps are done in the order they are asked for, and so are answered.

    One that cannot be done fails all that come after it: the holder gives the spool back.
    """

    @property
    def spool(self) -> Spool:
        """As it was after the last step that is done."""
        ...

    # Whether the content of each append is hashed by itself too, for ``seal``: as a primary needs it.
    sums_content: bool

    def content(self, data: bytes | memoryview, delta: int) -> None: ...

    def seal(self, done: Callable[[Sealed | Exception], None]) -> None: ...

    def prepare(self, fate: Fate | None, done: Callable[[Exception | None], None]) -> None:
        """Get the spool ready for a synchronisation: as it is, or, if it has a `fate`, retired to that."""
        ...

    def propose(self, proposal: Proposal, done: Callable[[Reply | Exception], None]) -> None: ...

    def acked(self, through: int, done: Callable[[], None] | None = None) -> None:
        """Show what is now known to be with all holders. `done` is called whether or not there was anything."""
        ...

    def watch(self, failed: Callable[[Exception], None]) -> None:
        """Call `failed` if a step cannot be done, until the spool is given back."""
        ...

    def release(self) -> None:
        """Roll back and give the spool back, once all that was asked for is done."""
        ...

    def hand_on(self, done: Callable[[], None]) -> None:
        """Leave what is committed to the persister, and never write to the spool again."""
        ...


class Ask:
    """A proposal on its way, until every member has answered it or will not."""

    __slots__ = ("_done", "_missing", "answers", "failures", "fragment")

    def __init__(self, fragment: Fragment, members: Set[ProcessId], done: Callable[[Ask], None]) -> None:
        self.fragment = fragment
        self.answers: dict[ProcessId, Answer] = {}
        self.failures: dict[ProcessId, Exception] = {}
        self._missing = set(members)
        self._done = done

    @property
    def is_settled(self) -> bool:
        return not self._missing

    @property
    def failure(self) -> UnavailableError | None:
        """Why it is not known whether all members have it; None if all have answered."""
        return _failure_of(self.failures) if self.failures else None

    @property
    def refusal(self) -> ProcessId | None:
        """A peer that answered otherwise than OK."""
        return next((peer for peer in sorted(self.answers) if self.answers[peer].status is not Status.OK), None)

    def answered(self, member: ProcessId, answer: Answer | Exception) -> None:
        if member in self._missing:
            self._missing.remove(member)
            if isinstance(answer, Exception):
                self.failures[member] = answer
            else:
                self.answers[member] = answer

    def is_waiting_for(self, member: ProcessId) -> bool:
        return member in self._missing

    def settle(self) -> None:
        self._done(self)


class Pipeline:
    def __init__(
        self,
        header: Header,
        own_id: ProcessId,
        held: HeldSpool,
        kin: Set[ProcessId],
        terms: EpochTerms | None = None,
        spool_id: bytes = b"",
    ) -> None:
        """`header` is the Resolution it is built for. `kin` are the peers of our own kind, who are told through where
        bytes are acknowledged; others would take such a message for a breach of the protocol. `terms` name the last
        epoch on record, and are None where somebody takes part who keeps none."""
        self.header = header
        self.held = held
        spool = held.spool
        self.head = Head(spool.fragment, spool.registers, spool.first_append_ns)
        self.terms = terms
        # What is on record of the journal's head, and since which revision of etcd: zero where there is none.
        self.record: DurableHead | None = None
        self.record_revision = 0
        self.claim = Claim(spool_id, spool.copy)
        # Whether an epoch is open for it, or none is needed: before that, nothing may be acknowledged.
        self.is_open = False
        # What is known to be with all members. It is said with each message that goes out anyway.
        self.acked_through = spool.acked_through or 0
        # Of that, what readers here have.
        self.shown_through = self.acked_through
        self.failures: dict[ProcessId, Exception] = {}
        # Whether an append has it and will send more.
        self.is_owned = False
        self.is_closed = False
        self._own_id = own_id
        self.kin = kin
        # Where somebody keeps no epochs, all go by Gazette's rules: a commit is visible where it is applied.
        self._told = kin if terms is not None else frozenset()
        self._streams: dict[ProcessId, PeerStream] = {}
        self._asked: list[Ask] = []
        self._told_through = 0
        self._is_settling = False
        held.sums_content = True
        held.watch(lambda failure: self.failed(own_id, failure))

    @property
    def peers(self) -> list[ProcessId]:
        return [member for member in self.header.route.members if member != self._own_id]

    @property
    def streams(self) -> list[PeerStream]:
        return list(self._streams.values())

    @property
    def is_broken(self) -> bool:
        return bool(self.failures) or self.is_closed

    @property
    def failure(self) -> UnavailableError | None:
        """Why it is broken; None if it is not."""
        if self.failures:
            return _failure_of(self.failures)
        given_up = UnavailableError("the journal is being given up by this broker: another one takes over")
        return given_up if self.is_closed else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was asked is still to be answered."""
        return not self._asked

    def connect(self, streams: Mapping[ProcessId, PeerStream]) -> None:
        """One for every peer. A stream that could not be opened fails as one that broke."""
        self._streams = dict(streams)

    def opened(self, told: EpochTerms | None) -> None:
        """The epoch that is named is on record, for this pipeline alone; or none is kept."""
        self.terms, self.is_open = told, True

    def synchronise(self, fragment: Fragment, registers: LabelSet, now_ns: int, done: Callable[[Ask], None]) -> None:
        """As ``ask``, with which the streams begin: the peers learn for which Route they are."""
        self._ask(Propose(fragment, registers, header=self.header), now_ns, done)

    def ask(self, fragment: Fragment, registers: LabelSet, now_ns: int, done: Callable[[Ask], None]) -> None:
        """Propose `fragment`, and call `done` when all have answered."""
        self._ask(Propose(fragment, registers), now_ns, done)

    def begin(self, fragment: Fragment, registers: LabelSet, now_ns: int) -> None:
        """Begin a new fragment. All are synchronised, so nobody is asked: whoever disagrees ends the stream."""
        self._propose(Propose(fragment, registers, acknowledge=False), now_ns, self._applied_unasked)

    def content(self, data: bytes | memoryview, delta: int) -> None:
        """In pieces: what a client may send at once, and a little more, peers may not take at once."""
        if len(data) > CONTENT_BYTES_MAX:
            whole = memoryview(data)
            for begin in range(0, len(data), CONTENT_BYTES_MAX):
                self.content(whole[begin : begin + CONTENT_BYTES_MAX], delta + begin)
            return
        assert self.is_open, "content before the epoch is open"
        self._scatter(Content(data, delta, self.acked_through), Content(data, delta))
        self.held.content(data, delta)

    def acknowledge(self, through: int) -> None:
        """All members have the bytes below `through`, or have agreed to go on from there."""
        self.acked_through = max(self.acked_through, through)
        # Whoever has it and owes no answer may not send anything for long.
        if not self.is_owned or self.is_idle:
            self.tell_acked()

    def shown(self, through: int) -> None:
        """Readers here have the bytes below `through`."""
        self.shown_through = max(self.shown_through, through)

    def tell_acked(self) -> None:
        """Say by itself what no message has said yet, since none may come for long."""
        if self._told_through < self.acked_through and not self.is_closed:
            self._told_through = self.acked_through
            for peer in self._healthy():
                if peer in self._told:
                    self._streams[peer].send(Acked(self.acked_through))

    def answered(self, peer: ProcessId, answer: Answer) -> None:
        ask = next((ask for ask in self._asked if ask.is_waiting_for(peer)), None)
        if ask is None:
            self.failed(peer, UnavailableError("it answered what nobody asked"))
            return
        ask.answered(peer, answer)
        self._settle()

    def failed(self, member: ProcessId, failure: Exception) -> None:
        """A stream broke, or ended; or our own spool cannot be written. The first failure stays."""
        self.failures.setdefault(member, failure)
        for ask in self._asked:
            ask.answered(member, self.failures[member])
        self._settle()

    def ended(self, peer: ProcessId) -> None:
        """A stream ended in good order, which it may only do once we have said that it shall."""
        if not self.is_closed or any(ask.is_waiting_for(peer) for ask in self._asked):
            self.failed(peer, UnavailableError("it ended the stream"))

    def close(self) -> None:
        """Send nothing more, and give the spool back. What was asked is still answered."""
        if not self.is_closed:
            healthy = self._healthy()
            self.is_closed = True
            for peer in healthy:
                self._streams[peer].half_close()
            self.held.release()

    def _ask(self, message: Propose, now_ns: int, done: Callable[[Ask], None]) -> None:
        ask = Ask(message.fragment, {self._own_id, *self.peers}, done)
        for member, failure in self.failures.items():
            ask.answered(member, failure)
        self._asked.append(ask)
        self._propose(message, now_ns, lambda reply: self._applied(ask, reply))

    def _healthy(self) -> list[ProcessId]:
        return [peer for peer in self._streams if peer not in self.failures]

    def _scatter(self, to_kin: Message, to_others: Message) -> None:
        self._told_through = self.acked_through
        for peer in self._healthy():
            self._streams[peer].send(to_kin if peer in self._told else to_others)

    def _propose(self, message: Propose, now_ns: int, applied: Callable[[Reply | Exception], None]) -> None:
        self._told_through = self.acked_through
        # Spelled out: `dataclasses.replace` takes five times as long, for every append.
        fragment, registers = message.fragment, message.registers
        self.head = self.head.proposed(fragment, registers, now_ns)
        told = Propose(fragment, registers, message.acknowledge, message.header, self.terms, self.acked_through)
        for peer in self._healthy():
            header = None if message.header is None else replace(message.header, process_id=peer)
            mine = told if peer in self._told else message
            self._streams[peer].send(mine if header is None else replace(mine, header=header))
        mark = NO_EPOCH if self.terms is None else self.terms.mark
        proposal = Proposal(fragment, registers, now_ns, mark, self.acked_through)
        self.held.propose(proposal, applied)

    def _applied(self, ask: Ask, reply: Reply | Exception) -> None:
        if isinstance(reply, Exception):
            self.failed(self._own_id, reply)
            return
        # What is proposed follows from what is held here: it always fits.
        assert reply.status is Status.OK, (reply, ask.fragment)
        ask.answered(self._own_id, Answer(Status.OK))
        self._settle()

    def _applied_unasked(self, reply: Reply | Exception) -> None:
        if isinstance(reply, Exception):
            self.failed(self._own_id, reply)
        else:
            assert reply.status is Status.OK, reply

    def _settle(self) -> None:
        """In order, and one at a time: what an append does next may settle others."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self._asked and self._asked[0].is_settled:
                self._asked.pop(0).settle()
        finally:
            self._is_settling = False


def _failure_of(failures: Mapping[ProcessId, Exception]) -> UnavailableError:
    peer = min(failures)
    return UnavailableError(f"replication to {peer.zone}/{peer.suffix} failed: {failures[peer]}")
