"""From read-uncommitted to read-committed: which messages of a journal are to be processed, and when.

Producers write at least once, and mark messages of a transaction so that they count only once the producer
has acknowledged them. The Sequencer is told of every message in the order read. It passes over duplicates and
what was rolled back, and hands out each other message exactly once: those that stand alone right away, those
of a transaction in one sequence that its acknowledgement (ACK) ends::

    sequencer.queue(envelope)
    while (head := sequencer.head()) is not None:
        if isinstance(head, ReplayRange):
            for envelope in read_again(head):
                if sequencer.replay(envelope):
                    process(envelope)
                    sequencer.step()
            sequencer.end_replay()
        else:
            process(head)
            sequencer.step()

Memory is bounded: waiting messages are kept in a ring, and an ACK whose messages have left it asks for the
range of the journal that holds them. What is delivered does not depend on the ring's size.

A checkpoint may be taken between any two steps. A Sequencer restored from it and fed from its read-through
offsets goes on with the next message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from consumer.message.message_uuid import Flags, MessageUUID
from protocol.errors import CorruptError, InvariantError
from protocol.gen import shard_pb2 as pb

M = TypeVar("M")

RING_SIZE = 8192
PRUNE_HORIZON_S = 24 * 60 * 60

_CLOCKS_PER_S = 10_000_000 << 4
_NO_SLOT = -1
_NO_OFFSET = -1  # on the wire, where zero is an offset
# Comparing plain integers is several times as fast as comparing members of an enumeration.
_CONTINUE = int(Flags.CONTINUE_TXN)
_ACK = int(Flags.ACK_TXN)


class Envelope(NamedTuple, Generic[M]):
    """A message, and where it was read."""

    journal: str
    begin: int
    end: int
    uuid: MessageUUID
    message: M


class ReplayRange(NamedTuple):
    """What has to be read again, from one message boundary to another."""

    journal: str
    begin: int
    end: int


class Outcome(Enum):
    """What became of a message that was queued."""

    OUTSIDE_DUPLICATE = auto()  # it is passed over
    OUTSIDE_COMMIT = auto()  # it is delivered
    # It is delivered, but its producer left a transaction open, whose messages are lost. Worth a log line.
    OUTSIDE_DISCARD = auto()
    CONTINUE_ACKED = auto()  # a duplicate of an acknowledged message
    CONTINUE_DUPLICATE = auto()  # a duplicate of a waiting one
    CONTINUE_BEGIN = auto()  # it waits, as the first of a transaction
    CONTINUE_EXTEND = auto()  # it waits with others
    ACK_ROLLBACK = auto()  # waiting messages are dropped, if there are any
    # As a roll-back, but to before what was acknowledged: the producer lost state and may now repeat messages
    # as new ones. Worth an error in the log.
    ACK_REGRESSION = auto()
    ACK_EMPTY = auto()  # nothing waits; the ACK itself is delivered
    ACK_COMMIT = auto()  # waiting messages are delivered, then the ACK
    ACK_REPLAY = auto()  # the same, but some have left the ring


@dataclass(frozen=True, slots=True)
class ProducerState:
    """Where a producer stands in a journal."""

    journal: str
    producer: bytes
    last_ack: int
    # Where the open transaction begins; None if there is none.
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class SequencerState:
    """All that a Sequencer must know to go on after a restart: the `sources` of a Checkpoint."""

    read_through: dict[str, int]
    producers: tuple[ProducerState, ...] = ()

    @classmethod
    def from_proto(cls, message: pb.Checkpoint) -> SequencerState:
        return cls(
            {journal: source.read_through for journal, source in message.sources.items()},
            tuple(
                ProducerState(
                    journal,
                    entry.id,
                    entry.state.last_ack,
                    None if entry.state.begin == _NO_OFFSET else entry.state.begin,
                )
                for journal, source in message.sources.items()
                for entry in source.producers
            ),
        )

    def to_proto(self) -> pb.Checkpoint:
        """A Checkpoint without ACK intents: those are the publisher's."""
        message = pb.Checkpoint()
        for journal, offset in self.read_through.items():
            message.sources[journal].read_through = offset
        for of in self.producers:
            entry = message.sources[of.journal].producers.add(id=of.producer)
            entry.state.last_ack = of.last_ack
            entry.state.begin = _NO_OFFSET if of.begin is None else of.begin
        return message


class _Producer:
    """One producer in one journal. A plain class, as there may be very many and all of it changes."""

    __slots__ = ("begin", "first", "last", "last_ack", "max_clock")

    def __init__(self, last_ack: int, begin: int | None = None) -> None:
        self.last_ack = last_ack
        # The largest Clock seen. Equals `last_ack` while no transaction is open, or none since a restart.
        self.max_clock = last_ack
        self.begin = begin
        # Slots of the oldest and the newest waiting message that the ring still has.
        self.first = _NO_SLOT
        self.last = _NO_SLOT


class _Ring(Generic[M]):
    """The newest waiting messages of all producers, chained by producer.

    A new message takes the place of the oldest, of whichever producer. A chain is in the order of reading, so
    what leaves it is always its first.
    """

    def __init__(self, size: int) -> None:
        self._envelopes: list[Envelope[M] | None] = [None] * size
        self._owners: list[_Producer | None] = [None] * size
        self._next = [_NO_SLOT] * size
        self._slot = 0

    def put(self, producer: _Producer, envelope: Envelope[M]) -> None:
        slot = self._slot
        self._slot = slot + 1 if slot + 1 < len(self._envelopes) else 0
        evicted = self._owners[slot]
        if evicted is not None:
            evicted.first = self._next[slot]
        self._envelopes[slot] = envelope
        self._owners[slot] = producer
        self._next[slot] = _NO_SLOT
        if producer.first == _NO_SLOT:
            producer.first = slot
        else:
            self._next[producer.last] = slot
        producer.last = slot

    def first_begin(self, producer: _Producer) -> int | None:
        envelope = self._envelopes[producer.first] if producer.first != _NO_SLOT else None
        return None if envelope is None else envelope.begin

    def pop(self, producer: _Producer) -> Envelope[M] | None:
        """The oldest message of a producer, which leaves the ring."""
        slot = producer.first
        if slot == _NO_SLOT:
            return None
        envelope = self._envelopes[slot]
        producer.first = self._next[slot]
        self._envelopes[slot] = self._owners[slot] = None
        return envelope

    def drop(self, producer: _Producer) -> None:
        while self.pop(producer) is not None:
            pass


class Sequencer(Generic[M]):
    """See the module. Not to be shared between threads."""

    def __init__(self, state: SequencerState, ring_size: int = RING_SIZE) -> None:
        self._read_through = dict(state.read_through)
        self._producers: dict[str, dict[bytes, _Producer]] = {journal: {} for journal in self._read_through}
        for of in state.producers:
            self._producers.setdefault(of.journal, {})[of.producer] = _Producer(of.last_ack, of.begin)
        # A ShardSpec leaves the size at zero for the caller to replace; as in Gazette, one is the least.
        self._ring = _Ring[M](max(1, ring_size))
        # Producers whose transaction began since the last checkpoint and is still open.
        self._pending: set[_Producer] = set()
        self._head: Envelope[M] | ReplayRange | None = None
        # The sequence being delivered: the message that ends it and its producer (None if it is not tracked),
        # the largest Clock met in it, and what is left to read again.
        self._last: Envelope[M] | None = None
        self._delivering: _Producer | None = None
        self._met = 0
        self._rest: ReplayRange | None = None

    def has_pending(self) -> bool:
        """Whether a transaction that began since the last checkpoint is still open.

        A consumer may want to wait for it. One that was open before is not counted, so that a producer which
        died delays one checkpoint at most.
        """
        return bool(self._pending)

    def head(self) -> Envelope[M] | ReplayRange | None:
        """What to do next: process a message and ``step``, ``replay`` a range, or, if it is None, ``queue``."""
        return self._head

    def queue(self, envelope: Envelope[M]) -> Outcome:
        """Take the next message of a journal. ``head`` then says whether it brought anything to do."""
        if self._head is not None:
            raise InvariantError("messages are still to be delivered: step until head is None before queueing")
        journal = envelope.journal
        producer_id, clock, flags = envelope.uuid
        if clock == 0:
            return self._on_untracked(envelope)
        producers = self._producers.get(journal)
        if producers is None:
            producers = self._producers[journal] = {}
        producer = producers.get(producer_id)
        if producer is None:
            # Whatever it wrote before is not known, and was not delivered.
            producer = producers[producer_id] = _Producer(clock - 1)

        if flags == _CONTINUE:
            return self._on_continue(producer, envelope, clock)
        if flags == _ACK:
            return self._on_ack(producer, envelope, clock)
        return self._on_outside(producer, envelope, clock)

    def step(self) -> None:
        """The head has been processed: go on to the next."""
        head = self._head
        if head is None or isinstance(head, ReplayRange):
            raise InvariantError("there is no message at the head that could have been processed")
        producer = self._delivering
        if producer is not None:
            producer.last_ack = head.uuid.clock
            # A checkpoint taken now resumes by reading from here; `last_ack` then passes over this message.
            producer.begin = head.begin
        if head is self._last:
            self._finish(head)
        elif self._rest is not None:
            self._head = self._rest
        else:
            self._advance()

    def replay(self, envelope: Envelope[M]) -> bool:
        """Take the next message of the ReplayRange at the head. True if it is now the head itself."""
        wanted, last = self._head, self._last
        if last is None or not isinstance(wanted, ReplayRange):
            raise InvariantError("nothing is to be read again: look at head first")
        if envelope.journal != wanted.journal or envelope.begin < wanted.begin or envelope.end > wanted.end:
            raise CorruptError(
                f"read [{envelope.begin}, {envelope.end}) of {envelope.journal} where messages within "
                f"[{wanted.begin}, {wanted.end}) of {wanted.journal} were to be read again"
            )
        self._rest = ReplayRange(wanted.journal, envelope.end, wanted.end)
        # Those of this producer that did not wait were acknowledged before, or have no Clock: either way their
        # Clock is too small. Gazette would deliver the latter a second time here.
        accepted = envelope.uuid.producer == last.uuid.producer and self._accepts(envelope.uuid.clock, last)
        self._head = envelope if accepted else self._rest
        return accepted

    def end_replay(self) -> None:
        """The ReplayRange at the head has been read to its end."""
        if not isinstance(self._head, ReplayRange):
            raise InvariantError("nothing is to be read again: look at head first")
        self._rest = None
        self._advance()

    def checkpoint(self, prune_horizon_s: int | None = PRUNE_HORIZON_S) -> SequencerState:
        """What has been processed. Forgets producers that fell silent long before others of their journal."""
        if prune_horizon_s is not None:
            for producers in self._producers.values():
                self._prune(producers, prune_horizon_s * _CLOCKS_PER_S)
        self._pending.clear()
        return SequencerState(dict(self._read_through), tuple(self._states()))

    def _states(self) -> Iterable[ProducerState]:
        for journal, producers in sorted(self._producers.items()):
            for producer_id, producer in sorted(producers.items()):
                yield ProducerState(journal, producer_id, producer.last_ack, producer.begin)

    def _prune(self, producers: dict[bytes, _Producer], horizon: int) -> None:
        newest = max((producer.last_ack for producer in producers.values()), default=0)
        stale = [
            producer_id
            for producer_id, producer in producers.items()
            # One that is being delivered is not silent, however old its messages are.
            if producer.max_clock < newest - horizon and producer is not self._delivering
        ]
        for producer_id in stale:
            self._ring.drop(producers.pop(producer_id))

    def _on_untracked(self, envelope: Envelope[M]) -> Outcome:
        self._deliver(None, envelope)
        self._head = envelope
        return Outcome.OUTSIDE_COMMIT

    def _on_outside(self, producer: _Producer, envelope: Envelope[M], clock: int) -> Outcome:
        if clock <= producer.last_ack:
            self._read_through[envelope.journal] = envelope.end
            return Outcome.OUTSIDE_DUPLICATE
        discards = producer.begin is not None
        if discards:
            self._close(producer)
        self._deliver(producer, envelope)
        self._head = envelope
        return Outcome.OUTSIDE_DISCARD if discards else Outcome.OUTSIDE_COMMIT

    def _on_continue(self, producer: _Producer, envelope: Envelope[M], clock: int) -> Outcome:
        self._read_through[envelope.journal] = envelope.end
        if clock <= producer.last_ack:
            return Outcome.CONTINUE_ACKED
        if clock <= producer.max_clock:
            return Outcome.CONTINUE_DUPLICATE
        producer.max_clock = clock
        self._ring.put(producer, envelope)
        if producer.begin is not None:
            return Outcome.CONTINUE_EXTEND
        producer.begin = envelope.begin
        self._pending.add(producer)
        return Outcome.CONTINUE_BEGIN

    def _on_ack(self, producer: _Producer, envelope: Envelope[M], clock: int) -> Outcome:
        if clock <= producer.last_ack:
            outcome = Outcome.ACK_ROLLBACK if clock == producer.last_ack else Outcome.ACK_REGRESSION
            producer.last_ack = clock
            self._close(producer)
            self._read_through[envelope.journal] = envelope.end
            return outcome
        self._deliver(producer, envelope)
        if producer.begin is None:
            self._head = envelope
            return Outcome.ACK_EMPTY
        held_from = self._ring.first_begin(producer)
        if held_from == producer.begin:
            self._advance()
            return Outcome.ACK_COMMIT
        end = envelope.begin if held_from is None else held_from
        self._head = self._rest = ReplayRange(envelope.journal, producer.begin, end)
        return Outcome.ACK_REPLAY

    def _deliver(self, producer: _Producer | None, last: Envelope[M]) -> None:
        """Begin a sequence that this message ends."""
        self._last = last
        self._delivering = producer
        self._met = 0 if producer is None else producer.last_ack

    def _accepts(self, clock: int, last: Envelope[M]) -> bool:
        """Whether a waiting message is part of what the ACK commits.

        The largest Clock met decides, rather than the last delivered, so that messages read again meet the
        same test as when they were queued, also when they were beyond the ACK.
        """
        if clock <= self._met:
            return False
        self._met = clock
        return clock <= last.uuid.clock

    def _advance(self) -> None:
        """Make the next message of the sequence the head: those in the ring, then the ACK."""
        last, producer = self._last, self._delivering
        if last is None or producer is None:
            raise InvariantError("no sequence is being delivered")
        while (envelope := self._ring.pop(producer)) is not None:
            if self._accepts(envelope.uuid.clock, last):
                self._head = envelope
                return
        if last.uuid.clock > producer.last_ack:
            self._head = last
        else:
            # The last message was resent as its own acknowledgement, and has been delivered.
            self._finish(last)

    def _finish(self, last: Envelope[M]) -> None:
        """Only now is the ACK counted as read: a restart within its sequence must meet it again."""
        self._read_through[last.journal] = last.end
        if self._delivering is not None:
            self._close(self._delivering)
        self._head = self._last = self._delivering = None

    def _close(self, producer: _Producer) -> None:
        """No transaction of this producer is open from here on."""
        self._ring.drop(producer)
        producer.max_clock = producer.last_ack
        producer.begin = None
        self._pending.discard(producer)
