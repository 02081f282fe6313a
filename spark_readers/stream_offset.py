"""StreamOffset: how far a streaming query is, as it is kept in the query's checkpoint.

Under read committed a batch ends in the midst of transactions. So besides an offset for each journal it has the states
of producers there, as a Gazette checkpoint does: with them the next batch, or a query that was started again, knows
which messages it has delivered, and from where it must read again what was pending once that is acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consumer.message.sequencer import PRUNE_HORIZON_S
from protocol.errors import ValidationError
from spark_readers.clock_summary import Carry, ProducerCarry, carry_from_json, carry_to_json

VERSION = 1
CLOSED_PRODUCERS_MAX = 4096
"""Of a journal, without those that have a transaction open. Each takes some sixty bytes in every entry of the log of
a query, and every task of a Spark job that writes is a producer of its own."""

_CLOCKS_PER_S = 10_000_000 << 4


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
        producers = {name: carry_to_json(carry) for name, carry in sorted(self.carries.items()) if carry}
        for name, value in (
            ("producers", producers),
            ("begins", dict(sorted(self.begins.items()))),
            ("turn", self.turn),
        ):
            if value:
                found[name] = value
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        if value.get("gazette") != VERSION:
            raise ValidationError(
                f"expected offsets of version {VERSION} of the source gazette, and got those of another: "
                "begin with a new checkpoint",
                "checkpointLocation",
            )
        return cls(
            value["offsets"],
            {name: carry_from_json(carry) for name, carry in value.get("producers", {}).items()},
            value.get("begins", {}),
            value.get("turn", ""),
        )


def batch_begin(start: StreamOffset, end: StreamOffset, journal: str) -> tuple[int, Carry]:
    """Where a batch begins to read a journal that it has, and the states of producers there."""
    if journal in end.begins:
        return end.begins[journal], {}
    return start.offsets[journal], start.carry(journal)


def remembered(carry: Carry) -> dict[bytes, ProducerCarry]:
    """Without those that fell silent long before others, as Gazette's consumers forget them; and of those that have
    nothing pending, the ones that were heard of last."""
    newest = max((state.last_ack for state in carry.values()), default=0)
    horizon = newest - PRUNE_HORIZON_S * _CLOCKS_PER_S
    kept = {producer: state for producer, state in carry.items() if state.max_clock >= horizon}
    closed = sorted((state.max_clock, producer) for producer, state in kept.items() if not state.is_open)
    for _, producer in closed[: max(0, len(closed) - CLOSED_PRODUCERS_MAX)]:
        del kept[producer]
    return kept
