"""Foresight: what becomes of transactions that a task has not met yet, from one look at the rest of its run.

Messages wait for their acknowledgement in memory, of which there is not enough for long transactions. So a task whose
messages wait for too long reads on to the end of its run, once, and notes the fate of every long transaction by
where that begins. Short ones are not noted, since they may be many and do not wait for long: what is noted is
bounded by the length of the run.
"""

from __future__ import annotations

from consumer.message.message_uuid import MessageUUID
from spark_readers.clock_summary import ACK, DROPPED, Carry, ProducerCarry, Settlement, stepped

LONG_BYTES_MIN = 64 << 10

# Where a transaction begins that was open when the look began.
_BEFORE = -1


class Foresight:
    """Fed what follows an offset, in order."""

    def __init__(self, carry: Carry) -> None:
        # Of transactions that are open at the offset, by producer; and of long ones that begin later, by their begin.
        self.open: dict[bytes, int] = {}
        self.later: dict[int, int] = {}
        self._states = {
            producer: state._replace(begin=_BEFORE if state.is_open else None) for producer, state in carry.items()
        }
        self._sizes = dict.fromkeys(self._states, 0)

    def take(self, begin: int, uuid: MessageUUID, size: int) -> None:
        producer, clock, flags = uuid
        if not clock:
            return
        before = self._states.get(producer)
        if before is None:
            before = ProducerCarry(clock - 1, clock - 1)
            self._sizes[producer] = 0
        after = self._states[producer] = stepped(before, begin, clock, flags)
        if after.is_open:
            if after is not before:
                self._sizes[producer] += size
        elif before.is_open:
            self._note(producer, before, clock if flags == ACK and clock > before.last_ack else DROPPED)

    def end(self, settlement: Settlement) -> None:
        """The run has ended, and `settlement` tells of what it leaves open."""
        for producer, state in self._states.items():
            if state.is_open:
                self._note(producer, state, settlement.get(producer, DROPPED))

    def _note(self, producer: bytes, state: ProducerCarry, fate: int) -> None:
        size, self._sizes[producer] = self._sizes[producer], 0
        if state.begin == _BEFORE:
            self.open[producer] = fate
        elif state.begin is not None and size >= LONG_BYTES_MIN:
            self.later[state.begin] = fate
