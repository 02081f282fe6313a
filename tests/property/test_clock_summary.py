"""Tasks that know no more than summaries deliver what the Sequencer does, which reads everything in order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.message.message_uuid import MessageUUID
from consumer.message.sequencer import Envelope, Sequencer, SequencerState
from spark_readers.clock_summary import (
    ProducerSummary,
    Summary,
    carry_from_json,
    carry_to_json,
    settlement,
    stretches,
    summarise,
)
from spark_readers.commit_sieve import CommitSieve
from spark_readers.foresight import LONG_BYTES_MIN, Foresight
from spark_readers.uuid_extract import UuidColumns
from tests.support.stretches import carried, sieved
from tests.support.uuid_histories import sequenced, uuid_histories

MESSAGES = uuid_histories(max_size=40)
KINDS = (np.int64, np.uint64, np.uint16)
CUTS = st.lists(st.integers(0, 40), max_size=20)


def summary_of(messages: Iterable[tuple[int, MessageUUID]]) -> Summary:
    """Of one batch."""
    numbered = list(messages)
    begins = np.array([begin for begin, _ in numbered], np.int64)
    return summarise([(begins, UuidColumns.of([uuid for _, uuid in numbered]))])


def cut(messages: list[MessageUUID], cuts: list[int]) -> list[list[tuple[int, MessageUUID]]]:
    numbered = list(enumerate(messages))
    bounds = sorted({0, len(messages), *(min(at, len(messages)) for at in cuts)})
    return [numbered[begin:end] for begin, end in pairwise(bounds)]


def summaries_of(part: list[tuple[int, MessageUUID]], pieces: int) -> list[Summary]:
    """Of a run that was summarised piece by piece."""
    length = -(-len(part) // pieces)
    return [summary_of(part[at : at + length]) for at in range(0, len(part), length)]


@settings(max_examples=1500)
@given(MESSAGES, CUTS, st.integers(1, 3))
def test_independent_tasks_deliver_what_the_sequencer_does(
    messages: list[MessageUUID], cuts: list[int], pieces: int
) -> None:
    parts = cut(messages, cuts)
    found, _ = stretches({}, [summaries_of(part, pieces) for part in parts])
    delivered = [
        at for part, stretch in zip(parts, found, strict=True) for at in sieved(part, stretch.carry, stretch.settlement)
    ]
    assert len(delivered) == len(set(delivered))
    assert set(delivered) == sequenced(messages)


@given(MESSAGES, CUTS)
def test_a_carry_is_the_same_however_the_journal_was_cut(messages: list[MessageUUID], cuts: list[int]) -> None:
    _, in_parts = stretches({}, [[summary_of(part)] for part in cut(messages, cuts)])
    whole = carried({}, summary_of(enumerate(messages)))
    assert {producer: state[:2] for producer, state in in_parts.items()} == {
        producer: state[:2] for producer, state in whole.items()
    }
    # What is open begins where its first message does, or before: those in between are passed over when read again.
    sequencer = Sequencer[int](SequencerState({}))
    for at, uuid in enumerate(messages):
        sequencer.queue(Envelope("j", at, at + 1, uuid, at))
        while sequencer.head() is not None:
            sequencer.step()
    for state in sequencer.checkpoint(None).producers:
        of = in_parts[state.producer]
        assert of.last_ack == state.last_ack
        assert of.is_open == (state.begin is not None)
        if state.begin is not None:
            assert of.begin is not None
            assert of.begin <= state.begin


@settings(max_examples=1500)
@given(MESSAGES, st.integers(0, 40))
def test_a_stream_delivers_in_two_batches_what_one_scan_does(messages: list[MessageUUID], at: int) -> None:
    """What was open at the end of the first batch is read again, from where it began, once it is acknowledged."""
    numbered = list(enumerate(messages))
    at %= len(messages) + 1
    first, second = numbered[:at], numbered[at:]
    carry = carry_from_json(json.loads(json.dumps(carry_to_json(carried({}, summary_of(first))))))
    summary = summary_of(second)
    early = sieved(first, {}, {})
    owed = settlement(carry, [summary])
    begins = [state.begin for producer, state in carry.items() if producer in owed and state.begin is not None]
    again = first[min(begins, default=len(first)) :]
    late = sieved(again, carry, owed, replays=True) + sieved(second, carry, {})
    assert sorted(early + late) == sorted(sequenced(messages))


@settings(max_examples=1500)
@given(MESSAGES, st.integers(0, 40), st.integers(0, 40), st.integers(1, 4))
def test_looking_ahead_changes_nothing_but_when(messages: list[MessageUUID], begin: int, at: int, long: int) -> None:
    """In a run that begins and ends within transactions, of which those of `long` messages or more are noted."""
    numbered = list(enumerate(messages))
    begin, at = sorted((begin % (len(messages) + 1), at % (len(messages) + 1)))
    end = max(at, len(messages) - 5)
    parts = (numbered[:begin], numbered[begin:end], numbered[end:])
    (_, stretch, _), _ = stretches({}, [[summary_of(part)] for part in parts])
    sieve = CommitSieve[int](stretch.carry, stretch.settlement)
    delivered: list[int] = []
    for place, uuid in numbered[begin:at]:
        sieve.take(place, uuid, place, delivered)
    foresight = Foresight(sieve.carry())
    for place, uuid in numbered[at:end]:
        foresight.take(place, uuid, -(-LONG_BYTES_MIN // long))
    foresight.end(stretch.settlement)
    sieve.foresee(foresight, delivered)
    for place, uuid in numbered[at:end]:
        # Of short transactions up to so many messages wait, of each of the few producers, and of long ones none.
        assert long > 1 or sieve.waiting_size == 0
        sieve.take(place, uuid, place, delivered)
    sieve.end(delivered)
    assert sorted(delivered) == sorted(sieved(numbered[begin:end], stretch.carry, stretch.settlement))


@settings(max_examples=1500)
@given(uuid_histories(max_size=120), CUTS)
def test_messages_that_are_taken_together_do_what_they_do_one_by_one(
    messages: list[MessageUUID], cuts: list[int]
) -> None:
    together: Summary = {}
    one_by_one: Summary = {}
    for part in cut(messages, cuts):
        for producer in {uuid.producer for _, uuid in part if uuid.clock}:
            own = [(begin, uuid.clock, uuid.flags) for begin, uuid in part if uuid.producer == producer and uuid.clock]
            columns = [np.array(of, kind) for of, kind in zip(zip(*own, strict=True), KINDS, strict=True)]
            together.setdefault(producer, ProducerSummary(own[0][1])).take_many(*columns)
            for message in own:
                one_by_one.setdefault(producer, ProducerSummary(own[0][1])).take_one(*message)
    assert together == one_by_one
    assert summary_of(enumerate(messages)) == one_by_one
