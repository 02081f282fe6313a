"""Whole stretches of messages at once, where tasks take them one by one."""

from __future__ import annotations

from collections.abc import Iterable

from consumer.message.message_uuid import MessageUUID
from spark_readers.clock_summary import Carry, ProducerCarry, Settlement, Summary
from spark_readers.commit_sieve import CommitSieve


def carried(carry: Carry, summary: Summary) -> dict[bytes, ProducerCarry]:
    """The carry at the end of a stretch, by that at its begin."""
    after = dict(carry)
    for producer, of in summary.items():
        after[producer] = of.applied(after.get(producer))
    return after


def sieved(
    messages: Iterable[tuple[int, MessageUUID | None]], carry: Carry, settlement: Settlement, replays: bool = False
) -> list[int]:
    """What of a stretch is delivered. Messages are known by where they begin."""
    sieve = CommitSieve[int](carry, settlement, replays)
    delivered: list[int] = []
    for begin, uuid in messages:
        sieve.take(begin, uuid, begin, delivered)
    sieve.end(delivered)
    return delivered
