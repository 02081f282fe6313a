"""What a stretch of a journal does to its producers, in a few numbers each: read committed, by independent tasks.

Whether a message is to be delivered depends on what its producer wrote before it, and on the first
acknowledgement after it, which may be many fragments away. The ``Sequencer`` of ``consumer.message`` finds out by
reading everything in order; tasks of a scan read at the same time. So each stretch is *summarised* by whoever can
read it; the summaries are *carried* forward in the order of offsets, which tells each task the state of its
producers where it begins; and *settled* backwards, which tells it what becomes of the transactions that are still
open where it ends. With both, a ``Sieve`` gives the messages of one stretch that the Sequencer would deliver.

Six numbers are enough, because an acknowledgement sets a producer's state whatever it was, and of messages outside
of transactions only the largest Clock matters. A carry is a plain JSON value, so that a streaming query can keep
it in its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from consumer.message.message_uuid import PRODUCER_BYTES, Flags
from spark_readers.uuid_extract import Int64s, Uint64s, UuidColumns

_CONTINUE = int(Flags.CONTINUE_TXN)
ACK = int(Flags.ACK_TXN)

MANY = 16
"""Messages of a producer that are taken together sooner than one by one."""
DROPPED = 0
"""A settlement: no message of the open transaction is ever delivered, as no Clock is below it."""


class ProducerCarry(NamedTuple):
    """Where a producer stands at an offset of a journal."""

    last_ack: int
    # The largest Clock seen; above `last_ack` only while a transaction is open.
    max_clock: int
    # No message of the open transaction begins before this; None if there is none.
    begin: int | None = None

    @property
    def is_open(self) -> bool:
        return self.max_clock > self.last_ack


Carry = Mapping[bytes, ProducerCarry]
"""By producer, at one offset of one journal."""

Settlement = Mapping[bytes, int]
"""By producer with a transaction that is open at an offset: the Clock of the acknowledgement that commits it, or
``DROPPED``. One that is not in it is not settled within what was read: its messages are withheld."""


@dataclass(slots=True)
class ProducerSummary:
    """What one producer wrote within a stretch."""

    # The Clock of its first message: what a producer never seen before is assumed to stand right before.
    first: int
    # Before the first ACK: the largest Clock outside of transactions, and the largest within one, in all and after
    # the former; and where the first message of each begins.
    outside: int = 0
    pending: int = 0
    pending_begin: int | None = None
    renewed: int = 0
    renewed_begin: int | None = None
    # Its first ACK, if there is one, and where it stands after the last.
    ack: int | None = None
    after: ProducerCarry | None = None

    def take(self, begins: Int64s, clocks: Uint64s, flags: NDArray[np.uint16]) -> None:
        """Messages of this producer, in order."""
        if len(begins) >= MANY:
            self.take_many(begins, clocks, flags)
            return
        for begin, clock, flag in zip(begins.tolist(), clocks.tolist(), flags.tolist(), strict=True):
            self.take_one(begin, clock, flag)

    def take_many(self, begins: Int64s, clocks: Uint64s, flags: NDArray[np.uint16]) -> None:
        acks = np.flatnonzero(flags == ACK)
        if self.after is None:
            head = slice(None, acks[0] if len(acks) else None)
            self._take_head(begins[head], clocks[head], flags[head] == _CONTINUE)
        if len(acks):
            # What was between two of them is settled, and leaves nothing behind.
            self.ack = int(clocks[acks[0]]) if self.ack is None else self.ack
            last = int(clocks[acks[-1]])
            self.after = ProducerCarry(last, last)
            rest = slice(acks[-1] + 1, None)
            begins, clocks, flags = begins[rest], clocks[rest], flags[rest]
        if self.after is not None:
            self.after = _stepped_on(self.after, begins, clocks, flags == _CONTINUE)

    def take_one(self, begin: int, clock: int, flags: int) -> None:
        if self.after is not None:
            self.after = stepped(self.after, begin, clock, flags)
        elif flags == ACK:
            self.ack = clock
            self.after = ProducerCarry(clock, clock)
        elif flags == _CONTINUE:
            self.pending = max(self.pending, clock)
            if self.pending_begin is None:
                self.pending_begin = begin
            if clock > max(self.outside, self.renewed):
                self.renewed = clock
                if self.renewed_begin is None:
                    self.renewed_begin = begin
        elif clock > self.outside:
            self.outside, self.renewed, self.renewed_begin = clock, 0, None

    def _take_head(self, begins: Int64s, clocks: Uint64s, continues: NDArray[np.bool_]) -> None:
        """Messages before the first ACK."""
        if continues.any():
            self.pending = max(self.pending, int(clocks[continues].max()))
            if self.pending_begin is None:
                self.pending_begin = int(begins[continues][0])
        outside, since = _last_outside(clocks, continues, self.outside)
        if outside > self.outside:
            self.outside, self.renewed, self.renewed_begin = outside, 0, None
        self.renewed, first = _risen(clocks, continues, since, max(self.outside, self.renewed), self.renewed)
        if first is not None and self.renewed_begin is None:
            self.renewed_begin = int(begins[first])

    def applied(self, before: ProducerCarry | None) -> ProducerCarry:
        """Where the producer stands after the stretch."""
        if self.after is not None:
            return self.after
        before = before or ProducerCarry(self.first - 1, self.first - 1)
        if self.outside > before.last_ack:
            return ProducerCarry(self.outside, max(self.outside, self.renewed), self.renewed_begin)
        largest = max(before.max_clock, self.pending)
        if largest == before.last_ack:
            return before
        return ProducerCarry(before.last_ack, largest, before.begin if before.is_open else self.pending_begin)


Summary = dict[bytes, ProducerSummary]
"""Of a stretch, by producer."""


def summarise(batches: Iterable[tuple[Int64s, UuidColumns]]) -> Summary:
    """`batches` are where messages begin, and their UUIDs, in order. Those without a Clock do not take part."""
    summary: Summary = {}
    for begins, uuids in batches:
        _take_batch(summary, begins, uuids)
    return summary


def _take_batch(summary: Summary, begins: Int64s, uuids: UuidColumns) -> None:
    takes_part = uuids.is_known & (uuids.clocks != 0)
    if not takes_part.all():
        begins, uuids = begins[takes_part], uuids.taken(takes_part)
    if not len(begins):
        return
    if (uuids.producers != uuids.producers[0]).any():
        # By producer, and each still in the order of offsets.
        order = np.argsort(uuids.producers, kind="stable")
        begins, uuids = begins[order], uuids.taken(order)
    _, producers, clocks, flags = uuids
    bounds = [0, *(np.flatnonzero(producers[1:] != producers[:-1]) + 1).tolist(), len(producers)]
    for first, end in pairwise(bounds):
        producer = int(producers[first]).to_bytes(PRODUCER_BYTES, "big")
        found = summary.get(producer)
        if found is None:
            found = summary[producer] = ProducerSummary(int(clocks[first]))
        found.take(begins[first:end], clocks[first:end], flags[first:end])


def settlement(carry: Carry, later: Sequence[Summary]) -> dict[bytes, int]:
    """What becomes of the transactions that are open at `carry`, by the stretches that follow it, in order."""
    following: dict[bytes, _Following] = {}
    for summary in reversed(later):
        _precede(following, summary)
    return _fates(carry, following)


class _Following(NamedTuple):
    """Of one producer, all that follows an offset: the largest Clock outside of transactions before its first ACK, and
    that ACK. No more of it can settle a transaction, whatever state that was opened in."""

    outside: int
    ack: int | None

    def settled(self, before: ProducerCarry) -> int | None:
        """What becomes of the transaction that was open before; None if that is not told."""
        if self.outside > before.last_ack:
            return DROPPED
        if self.ack is None:
            return None
        return self.ack if self.ack > before.last_ack else DROPPED


def _precede(following: dict[bytes, _Following], summary: Summary) -> None:
    """Moves what follows back to the begin of one more stretch."""
    for producer, of in summary.items():
        later = following.get(producer)
        if of.ack is None and later is not None:
            following[producer] = _Following(max(of.outside, later.outside), later.ack)
        else:
            following[producer] = _Following(of.outside, of.ack)


def _fates(carry: Carry, following: Mapping[bytes, _Following]) -> dict[bytes, int]:
    fates = {}
    for producer, state in carry.items():
        if state.is_open and producer in following:
            fate = following[producer].settled(state)
            if fate is not None:
                fates[producer] = fate
    return fates


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a task has to know of the rest of the journal to judge messages of its own."""

    carry: Carry = field(default_factory=dict)
    settlement: Settlement = field(default_factory=dict)


def stretches(carry: Carry, runs: Sequence[Sequence[Summary]]) -> tuple[list[Stretch], dict[bytes, ProducerCarry]]:
    """A Stretch for each of the runs, which follow each other and have one summary or more; and the carry at the end
    of the last.

    A Stretch has the producers of its own run and no others: a journal may have as many as its writers had tasks, and
    what every task is told of all of them would outgrow the journal.
    """
    now = dict(carry)
    begins: list[dict[bytes, ProducerCarry]] = []
    ends: list[dict[bytes, ProducerCarry]] = []
    for summaries in runs:
        own = {producer for summary in summaries for producer in summary}
        begins.append({producer: now[producer] for producer in own if producer in now})
        for summary in summaries:
            for producer, of in summary.items():
                now[producer] = of.applied(now.get(producer))
        ends.append({producer: now[producer] for producer in own if now[producer].is_open})
    found: list[Stretch] = []
    following: dict[bytes, _Following] = {}
    for summaries, begin, end in zip(reversed(runs), reversed(begins), reversed(ends), strict=True):
        found.append(Stretch(begin, _fates(end, following)))
        for summary in reversed(summaries):
            _precede(following, summary)
    found.reverse()
    return found, now


def stepped(state: ProducerCarry, begin: int, clock: int, flags: int) -> ProducerCarry:
    """A producer's state after one more message."""
    if flags == ACK:
        return ProducerCarry(clock, clock)
    if flags == _CONTINUE:
        if clock <= state.max_clock:
            return state
        return ProducerCarry(state.last_ack, clock, begin if state.begin is None else state.begin)
    return ProducerCarry(clock, clock) if clock > state.last_ack else state


def _stepped_on(state: ProducerCarry, begins: Int64s, clocks: Uint64s, continues: NDArray[np.bool_]) -> ProducerCarry:
    """A producer's state after more messages, of which none is an ACK."""
    outside, since = _last_outside(clocks, continues, state.last_ack)
    if outside > state.last_ack:
        state = ProducerCarry(outside, outside)
    largest, first = _risen(clocks, continues, since, state.max_clock, state.max_clock)
    if first is None:
        return state
    return ProducerCarry(state.last_ack, largest, int(begins[first]) if state.begin is None else state.begin)


def _last_outside(clocks: Uint64s, continues: NDArray[np.bool_], above: int) -> tuple[int, int]:
    """The largest Clock outside of transactions, if it is above, and what comes after the first that has it."""
    if not continues.all():
        largest = int(clocks[~continues].max())
        if largest > above:
            return largest, int(np.argmax(~continues & (clocks == largest))) + 1
    return above, 0


def _risen(
    clocks: Uint64s, continues: NDArray[np.bool_], since: int, above: int, largest: int
) -> tuple[int, int | None]:
    """The largest Clock within a transaction of those `since` that are above, and which is the first of these; or
    the one there was."""
    rises = continues[since:] & (clocks[since:] > above)
    if not rises.any():
        return largest, None
    return int(clocks[since:][rises].max()), since + int(np.argmax(rises))


def carry_to_json(carry: Carry) -> dict[str, list[int | None]]:
    """Clocks as numbers: JSON has 64-bit integers wherever Python writes and reads it."""
    return {producer.hex(): [*state] for producer, state in sorted(carry.items())}


def carry_from_json(value: Mapping[str, Sequence[int | None]]) -> dict[bytes, ProducerCarry]:
    return {
        bytes.fromhex(producer): ProducerCarry(last_ack or 0, max_clock or 0, begin)
        for producer, (last_ack, max_clock, begin) in value.items()
    }
