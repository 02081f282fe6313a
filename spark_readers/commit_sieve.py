"""CommitSieve: of the messages of one stretch of a journal, those that a read-committed reader is given.

Messages of a transaction wait for the acknowledgement that ends it. If it lies beyond the stretch, the settlement
tells what it will be. Acknowledgements themselves are no data and are not delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from consumer.message.message_uuid import Flags, MessageUUID
from spark_readers.clock_summary import ACK, DROPPED, Carry, ProducerCarry, Settlement
from spark_readers.foresight import Foresight

T = TypeVar("T")

_CONTINUE = int(Flags.CONTINUE_TXN)


class _Producer(Generic[T]):
    __slots__ = ("begin", "fate", "last_ack", "max_clock", "waiting")

    def __init__(self, last_ack: int, max_clock: int, begin: int = 0) -> None:
        self.last_ack = last_ack
        self.max_clock = max_clock
        # In a replay: no message before it is of the transaction that was open.
        self.begin = begin
        # Messages whose fate is not known yet, with their Clocks; and the fate of the open transaction if it is.
        self.waiting: list[tuple[int, T, int]] = []
        self.fate: int | None = None


class CommitSieve(Generic[T]):
    """Fed every message in order. `T` is whatever the caller knows a message by.

    With `replays`, it delivers nothing but messages of transactions that were open at the end of the stretch and
    of producers in the settlement: what a streaming query still owes from stretches it has read before.
    """

    def __init__(self, carry: Carry, settlement: Settlement, replays: bool = False) -> None:
        self._producers = {
            producer: _Producer[T](state.last_ack, state.last_ack if replays else state.max_clock, state.begin or 0)
            for producer, state in carry.items()
            if not replays or producer in settlement
        }
        if replays:
            # It is their open transactions alone that are looked at, so their fates are known from the first message.
            for producer_id, producer in self._producers.items():
                producer.fate = settlement[producer_id]
        self._settlement = settlement
        self._replays = replays
        # Of transactions that are yet to come, by where each begins.
        self._fates: dict[int, int] = {}
        # Of all messages that wait, as the caller measures them.
        self.waiting_size = 0

    def take(self, begin: int, uuid: MessageUUID | None, message: T, delivered: list[T], size: int = 1) -> None:
        """Adds to `delivered` what this message brings: itself, or those that waited for it."""
        if uuid is None or uuid[1] == 0:
            if not self._replays:
                delivered.append(message)
            return
        producer_id, clock, flags = uuid
        producer = self._producers.get(producer_id)
        if producer is None:
            if self._replays:
                return
            producer = self._producers[producer_id] = _Producer(clock - 1, clock - 1)
        elif self._replays and begin < producer.begin:
            # A replay begins where the oldest of all open transactions does. What this producer acknowledged since
            # then was delivered in its time, and its state is already that after it.
            return
        if flags == _CONTINUE:
            self._continue(producer, begin, clock, message, delivered, size)
        elif flags == ACK:
            self._close(producer, clock if clock > producer.last_ack else DROPPED, delivered)
            producer.last_ack = producer.max_clock = clock
        elif clock > producer.last_ack:
            self._close(producer, DROPPED, delivered)
            producer.last_ack = producer.max_clock = clock
            if not self._replays:
                delivered.append(message)

    def _continue(
        self, producer: _Producer[T], begin: int, clock: int, message: T, delivered: list[T], size: int
    ) -> None:
        if clock <= producer.max_clock:
            return
        producer.max_clock = clock
        if self._fates and producer.fate is None and not producer.waiting:
            producer.fate = self._fates.pop(begin, None)
        if producer.fate is None:
            producer.waiting.append((clock, message, size))
            self.waiting_size += size
        elif clock <= producer.fate:
            delivered.append(message)

    def foresee(self, foresight: Foresight, delivered: list[T]) -> None:
        """Nothing more waits: the fate of every open transaction is known now, and of long ones that follow."""
        for producer_id, fate in foresight.open.items():
            producer = self._producers[producer_id]
            self._close(producer, fate, delivered)
            producer.fate = fate
        self._fates = foresight.later

    def end(self, delivered: list[T]) -> None:
        """The stretch has ended. What nobody has settled is withheld."""
        for producer_id, producer in self._producers.items():
            if producer.waiting:
                self._close(producer, self._settlement.get(producer_id, DROPPED), delivered)

    def carry(self) -> Mapping[bytes, ProducerCarry]:
        """Where producers stand now, for whoever looks ahead in the stretch."""
        return {
            producer_id: ProducerCarry(producer.last_ack, producer.max_clock)
            for producer_id, producer in self._producers.items()
        }

    def _close(self, producer: _Producer[T], fate: int, delivered: list[T]) -> None:
        waiting = producer.waiting
        if waiting:
            delivered.extend(message for clock, message, _ in waiting if clock <= fate)
            self.waiting_size -= sum(size for _, _, size in waiting)
            producer.waiting = []
        producer.fate = None
