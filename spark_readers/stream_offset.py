"""StreamOffset: how far a streaming query is, as it is kept in the query's checkpoint.

Under read committed a batch ends in the midst of transactions. So besides an offset for each journal it has the states
of producers there, as a Gazette checkpoint does: with them the next batch, or a query that was started again, knows
which messages it has delivered, and from where it must read again what was pending once that is acknowledged.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from consumer.message.message_uuid import PRODUCER_BYTES
from consumer.message.sequencer import PRUNE_HORIZON_S
from protocol.errors import ValidationError
from spark_readers.clock_summary import Carry, ProducerCarry, carry_from_json, carry_to_json

VERSION = 2
_READABLE = (1, VERSION)
CLOSED_PRODUCERS_MAX = 8192
"""Of all journals together, without those that have a transaction open. Each takes nineteen bytes in every entry of the
log of a query, and in every report of its progress.

Each is kept for one purpose: should a message come again that was acknowledged before, it is known. For that its
producer has to append it again after its acknowledgement, which it does only within the time that it retries an append.
So of too many the ones go that were silent for longest. Every task of a Spark job that writes is a producer of its own,
but such a one never repeats more than its acknowledgement, and that commits nothing twice: there is nothing before it.
"""

_CLOCKS_PER_S = 10_000_000 << 4
_CLOSED = Struct(f">{PRODUCER_BYTES}sQ")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    # By journal: all before it was read.
    offsets: Mapping[str, int] = field(default_factory=dict)
    # By journal, where there is anything to remember of its producers.
    carries: Mapping[str, Carry] = field(default_factory=dict)
    # Of journals that came with the batch that ends here: where it begins to read them.
    begins: Mapping[str, int] = field(default_factory=dict)
    # The journal that was given more than its share last.
    turn: str = ""

    def carry(self, journal: str) -> Carry:
        return self.carries.get(journal, {})

    def without(self, journals: frozenset[str]) -> StreamOffset:
        return StreamOffset(
            {name: offset for name, offset in self.offsets.items() if name not in journals},
            {name: carry for name, carry in self.carries.items() if name not in journals},
            self.begins,
            self.turn,
        )

    def to_json(self) -> dict[str, Any]:
        """In one order only: Spark takes two texts that differ for two offsets."""
        found: dict[str, Any] = {"gazette": VERSION, "offsets": dict(sorted(self.offsets.items()))}
        opened: dict[str, Any] = {}
        closed: dict[str, str] = {}
        for name, carry in sorted(self.carries.items()):
            if waits := {producer: state for producer, state in carry.items() if state.is_open}:
                opened[name] = carry_to_json(waits)
            if text := _packed(carry):
                closed[name] = text
        for name, value in (
            ("producers", opened),
            ("closed", closed),
            ("begins", dict(sorted(self.begins.items()))),
            ("turn", self.turn),
        ):
            if value:
                found[name] = value
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        if value.get("gazette") not in _READABLE:
            raise ValidationError(
                f"expected offsets of version {VERSION} of the source gazette, and got those of another: "
                "begin with a new checkpoint",
                "checkpointLocation",
            )
        # In the first version all producers were among these.
        carries = {name: carry_from_json(carry) for name, carry in value.get("producers", {}).items()}
        for name, text in value.get("closed", {}).items():
            carries.setdefault(name, {}).update(_unpacked(text))
        return cls(
            value["offsets"],
            carries,
            value.get("begins", {}),
            value.get("turn", ""),
        )


def batch_begin(start: StreamOffset, end: StreamOffset, journal: str) -> tuple[int, Carry]:
    """Where a batch begins to read a journal that it has, and the states of producers there."""
    if journal in end.begins:
        return end.begins[journal], {}
    return start.offsets[journal], start.carry(journal)


def remembered(carries: Mapping[str, Carry]) -> dict[str, dict[bytes, ProducerCarry]]:
    """By journal, without those that fell silent long before others, as Gazette's consumers forget them; and of those
    that have nothing pending, the ones that were heard of last."""
    kept = {name: _heard_lately(carry) for name, carry in carries.items()}
    closed = [
        (state.max_clock, name, producer)
        for name, carry in kept.items()
        for producer, state in carry.items()
        if not state.is_open
    ]
    for _, name, producer in sorted(closed)[: max(0, len(closed) - CLOSED_PRODUCERS_MAX)]:
        del kept[name][producer]
    return kept


def _heard_lately(carry: Carry) -> dict[bytes, ProducerCarry]:
    newest = max((state.last_ack for state in carry.values()), default=0)
    horizon = newest - PRUNE_HORIZON_S * _CLOCKS_PER_S
    return {producer: state for producer, state in carry.items() if state.max_clock >= horizon}


def _packed(carry: Carry) -> str:
    """Those without a transaction, which are many: one text is compared and parsed in no time, whatever it holds."""
    closed = sorted((producer, state.last_ack) for producer, state in carry.items() if not state.is_open)
    return b64encode(b"".join(_CLOSED.pack(*of) for of in closed)).decode()


def _unpacked(text: str) -> dict[bytes, ProducerCarry]:
    return {producer: ProducerCarry(clock, clock) for producer, clock in _CLOSED.iter_unpack(b64decode(text))}
