from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import pytest

from consumer.message.message_uuid import Flags, MessageUUID, clock_at, parse_text
from consumer.message.sequencer import (
    Envelope,
    Outcome,
    ProducerState,
    ReplayRange,
    Sequencer,
    SequencerState,
)
from protocol.errors import CorruptError, InvariantError
from tests.support.golden import Case, case_id, cases

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN
A, B = b"\x01aaaaa", b"\x03bbbbb"
EMPTY = SequencerState({})


def journal_of(*messages: tuple[bytes, int, int], name: str = "acme/a") -> list[Envelope[int]]:
    """Messages of ten bytes each, told apart by their number."""
    return [
        Envelope(name, n * 10, n * 10 + 10, MessageUUID(producer, clock, flags), n)
        for n, (producer, clock, flags) in enumerate(messages)
    ]


def read_again(journal: Iterable[Envelope[int]], of: ReplayRange) -> list[Envelope[int]]:
    return [envelope for envelope in journal if envelope.journal == of.journal and of.begin <= envelope.begin < of.end]


def drain(sequencer: Sequencer[int], journal: Iterable[Envelope[int]]) -> list[int]:
    """Process what is at the head until nothing is, reading from `journal` what has to be read again."""
    delivered = []
    while (head := sequencer.head()) is not None:
        if isinstance(head, ReplayRange):
            for envelope in read_again(journal, head):
                if sequencer.replay(envelope):
                    delivered.append(envelope.message)
                    sequencer.step()
            sequencer.end_replay()
        else:
            delivered.append(head.message)
            sequencer.step()
    return delivered


def run(sequencer: Sequencer[int], journal: list[Envelope[int]]) -> list[tuple[Outcome, list[int]]]:
    return [(sequencer.queue(envelope), drain(sequencer, journal)) for envelope in journal]


GAZETTE_OUTCOMES = {
    Outcome.OUTSIDE_DUPLICATE: "outsideAlreadyAcked",
    Outcome.OUTSIDE_COMMIT: "outsideCommit",
    Outcome.OUTSIDE_DISCARD: "outsideCommit",
    Outcome.CONTINUE_ACKED: "continueAlreadyAcked",
    Outcome.CONTINUE_DUPLICATE: "continueRingClockLarger",
    Outcome.CONTINUE_BEGIN: "continueBeginSpan",
    Outcome.CONTINUE_EXTEND: "continueExtendSpan",
    Outcome.ACK_ROLLBACK: "ackRollback",
    Outcome.ACK_REGRESSION: "ackRollback",
    Outcome.ACK_EMPTY: "ackEmpty",
    Outcome.ACK_COMMIT: "ackCommitRing",
    Outcome.ACK_REPLAY: "ackCommitReplay",
}


def wherever_found(outcome: str) -> str:
    """Whether messages are still in the ring is not compared.

    In Gazette every message takes a place in it, in ours those that wait: it has to replay less.
    """
    return outcome.removesuffix("Replay").removesuffix("Ring")


def envelope_of(message: Case) -> Envelope[int]:
    uuid = parse_text(message["uuid"])
    assert uuid == MessageUUID(bytes.fromhex(message["producer"]), message["clock"], message["flags"])
    return Envelope(message["journal"], message["begin"], message["end"], uuid, message["n"])


def producer_state(state: Case) -> ProducerState:
    begin = None if state["begin"] == -1 else state["begin"]
    return ProducerState(state["journal"], bytes.fromhex(state["producer"]), state["last_ack"], begin)


def deduplicated(delivered: list[int], journal: list[Envelope[int]], last_ack: int) -> list[int]:
    """What Gazette should have delivered where a message without a Clock is in the range of a replay.

    It delivers that message once more and then, until the sequence ends, any whose Clock is larger than zero.
    """
    kept = []
    for n in delivered:
        if journal[n].uuid.clock > last_ack:
            kept.append(n)
            last_ack = journal[n].uuid.clock
    return kept


@pytest.mark.parametrize("case", cases("uuids", "sequence"), ids=case_id)
def test_messages_are_sequenced_as_in_gazette(case: Case) -> None:
    initial = SequencerState(case["initial_offsets"], tuple(map(producer_state, case["initial_producers"])))
    sequencer = Sequencer[int](initial, case["ring_size"])
    journal = [envelope_of(message) for message in case["messages"]]
    for message, envelope in zip(case["messages"], journal, strict=True):
        expected = message["delivered"]
        if message.get("zero_clock_in_replay"):
            # Only for its producers: this one was met before, so it is among them.
            states = deepcopy(sequencer).checkpoint(None).producers
            [of] = [of for of in states if (of.journal, of.producer) == (envelope.journal, envelope.uuid.producer)]
            expected = deduplicated(expected, journal, of.last_ack)
        outcome = sequencer.queue(envelope)
        assert wherever_found(GAZETTE_OUTCOMES[outcome]) == wherever_found(message["outcome"])
        assert drain(sequencer, journal) == expected
        assert sequencer.has_pending() == message["has_pending"]
        if "checkpoint" in message:
            checkpoint = message["checkpoint"]
            state = sequencer.checkpoint(checkpoint["prune_horizon_hours"] * 3600 or None)
            assert state.read_through == checkpoint["read_through"]
            assert state.producers == tuple(map(producer_state, checkpoint["producers"]))
            assert not sequencer.has_pending()


def test_a_transaction_is_delivered_with_its_acknowledgement() -> None:
    journal = journal_of((A, 10, CONTINUE), (B, 7, OUTSIDE), (A, 11, CONTINUE), (A, 12, ACK))
    assert run(Sequencer(EMPTY), journal) == [
        (Outcome.CONTINUE_BEGIN, []),
        (Outcome.OUTSIDE_COMMIT, [1]),
        (Outcome.CONTINUE_EXTEND, []),
        (Outcome.ACK_COMMIT, [0, 2, 3]),
    ]


def test_duplicates_are_passed_over() -> None:
    journal = journal_of(
        (A, 10, OUTSIDE),
        (A, 10, OUTSIDE),
        (A, 11, CONTINUE),
        (A, 11, CONTINUE),
        (A, 12, ACK),
        (A, 11, CONTINUE),
        (A, 12, ACK),
    )
    sequencer = Sequencer[int](EMPTY)
    assert run(sequencer, journal) == [
        (Outcome.OUTSIDE_COMMIT, [0]),
        (Outcome.OUTSIDE_DUPLICATE, []),
        (Outcome.CONTINUE_BEGIN, []),
        (Outcome.CONTINUE_DUPLICATE, []),
        (Outcome.ACK_COMMIT, [2, 4]),
        (Outcome.CONTINUE_ACKED, []),
        (Outcome.ACK_ROLLBACK, []),
    ]
    assert sequencer.checkpoint() == SequencerState({"acme/a": 70}, (ProducerState("acme/a", A, 12),))


def test_an_acknowledgement_commits_up_to_its_clock_and_drops_the_rest() -> None:
    journal = journal_of((A, 10, CONTINUE), (A, 11, CONTINUE), (A, 12, CONTINUE), (A, 11, ACK), (A, 13, ACK))
    assert [delivered for _, delivered in run(Sequencer(EMPTY), journal)] == [[], [], [], [0, 1], [4]]


def test_an_acknowledgement_of_what_is_acknowledged_rolls_back() -> None:
    journal = journal_of((A, 10, ACK), (A, 11, CONTINUE), (A, 10, ACK), (A, 12, ACK))
    assert run(Sequencer(EMPTY), journal) == [
        (Outcome.ACK_EMPTY, [0]),
        (Outcome.CONTINUE_BEGIN, []),
        (Outcome.ACK_ROLLBACK, []),
        (Outcome.ACK_EMPTY, [3]),
    ]


def test_an_acknowledgement_from_the_past_takes_the_producer_back_to_it() -> None:
    journal = journal_of((A, 20, OUTSIDE), (A, 10, ACK), (A, 20, OUTSIDE))
    assert run(Sequencer(EMPTY), journal) == [
        (Outcome.OUTSIDE_COMMIT, [0]),
        (Outcome.ACK_REGRESSION, []),
        (Outcome.OUTSIDE_COMMIT, [2]),
    ]


def test_a_message_outside_of_the_open_transaction_discards_it() -> None:
    journal = journal_of((A, 10, CONTINUE), (A, 11, OUTSIDE), (A, 12, CONTINUE), (A, 13, 7), (A, 14, ACK))
    assert run(Sequencer(EMPTY), journal) == [
        (Outcome.CONTINUE_BEGIN, []),
        (Outcome.OUTSIDE_DISCARD, [1]),
        (Outcome.CONTINUE_BEGIN, []),
        (Outcome.OUTSIDE_DISCARD, [3]),
        (Outcome.ACK_EMPTY, [4]),
    ]


@pytest.mark.parametrize("flags", [0, 1, 2, 9])
def test_a_message_without_a_clock_is_delivered_at_once_and_leaves_no_trace(flags: int) -> None:
    sequencer = Sequencer[int](EMPTY)
    journal = journal_of((A, 0, flags), (A, 0, flags))
    assert run(sequencer, journal) == [(Outcome.OUTSIDE_COMMIT, [0]), (Outcome.OUTSIDE_COMMIT, [1])]
    assert sequencer.checkpoint() == SequencerState({"acme/a": 20})


def test_a_replay_is_asked_for_from_the_first_waiting_message_to_the_first_in_the_ring() -> None:
    sequencer = Sequencer[int](EMPTY, ring_size=2)
    journal = journal_of(
        (A, 10, CONTINUE),
        (B, 5, CONTINUE),
        (A, 0, CONTINUE),
        (A, 11, CONTINUE),
        (A, 12, CONTINUE),
        (A, 13, ACK),
    )
    assert [drained for _, drained in run(sequencer, journal[:-1])] == [[], [], [2], [], []]
    assert sequencer.queue(journal[-1]) == Outcome.ACK_REPLAY
    assert sequencer.head() == ReplayRange("acme/a", 0, 30)
    assert drain(sequencer, journal) == [0, 3, 4, 5]
    # Nothing of the other producer is in the ring, so all is read again.
    last = Envelope("acme/a", 60, 70, MessageUUID(B, 6, ACK), 6)
    assert sequencer.queue(last) == Outcome.ACK_REPLAY
    assert sequencer.head() == ReplayRange("acme/a", 10, 60)
    assert drain(sequencer, journal) == [1, 6]


def test_what_is_left_of_a_replay_is_known_at_any_time() -> None:
    sequencer = Sequencer[int](SequencerState({"acme/a": 30}, (ProducerState("acme/a", A, 9, 0),)))
    journal = journal_of((A, 10, CONTINUE), (B, 1, CONTINUE), (A, 11, CONTINUE), (A, 12, ACK))
    sequencer.queue(journal[3])
    assert sequencer.replay(journal[0])
    assert sequencer.head() == journal[0]
    sequencer.step()
    assert sequencer.head() == ReplayRange("acme/a", 10, 30)
    assert not sequencer.replay(journal[1])
    assert sequencer.head() == ReplayRange("acme/a", 20, 30)


@pytest.mark.parametrize(
    "wrong",
    [
        Envelope("acme/b", 10, 20, MessageUUID(A, 10, CONTINUE), 0),
        Envelope("acme/a", 9, 19, MessageUUID(A, 10, CONTINUE), 0),
        Envelope("acme/a", 20, 31, MessageUUID(A, 10, CONTINUE), 0),
    ],
    ids=["journal", "begin", "end"],
)
def test_a_replay_of_something_else_is_refused(wrong: Envelope[int]) -> None:
    sequencer = Sequencer[int](SequencerState({"acme/a": 30}, (ProducerState("acme/a", A, 9, 10),)))
    sequencer.queue(Envelope("acme/a", 30, 40, MessageUUID(A, 12, ACK), 1))
    with pytest.raises(CorruptError, match=r"within \[10, 30\) of acme/a"):
        sequencer.replay(wrong)


def test_a_checkpoint_within_a_sequence_does_not_count_its_acknowledgement_as_read() -> None:
    journal = journal_of((A, 10, CONTINUE), (A, 11, CONTINUE), (A, 12, CONTINUE), (A, 13, ACK))
    sequencer = Sequencer[int](EMPTY)
    for envelope in journal:
        sequencer.queue(envelope)
    assert sequencer.checkpoint().producers == (ProducerState("acme/a", A, 9, 0),)
    sequencer.step()
    sequencer.step()
    # What is left can be read from the last message processed, rather than from the first.
    state = sequencer.checkpoint()
    assert state == SequencerState({"acme/a": 30}, (ProducerState("acme/a", A, 11, 10),))

    restored = Sequencer[int](state)
    assert restored.queue(journal[3]) == Outcome.ACK_REPLAY
    assert restored.head() == ReplayRange("acme/a", 10, 30)
    assert drain(restored, journal) == [2, 3]
    assert restored.checkpoint() == SequencerState({"acme/a": 40}, (ProducerState("acme/a", A, 13),))


def test_a_message_that_repeats_across_a_checkpoint_is_delivered_once() -> None:
    journal = journal_of((A, 10, CONTINUE), (A, 11, CONTINUE), (A, 10, CONTINUE), (A, 12, CONTINUE), (A, 13, ACK))
    before = Sequencer[int](EMPTY)
    run(before, journal[:2])
    after = Sequencer[int](before.checkpoint())
    assert [delivered for _, delivered in (run(after, journal[2:4]))] == [[], []]
    after.queue(journal[4])
    assert drain(after, journal) == [0, 1, 3, 4]


def test_a_transaction_counts_as_pending_until_the_next_checkpoint() -> None:
    journal = journal_of((A, 10, CONTINUE), (A, 11, CONTINUE), (B, 5, CONTINUE), (B, 6, ACK))
    sequencer = Sequencer[int](EMPTY)
    run(sequencer, journal[:1])
    assert sequencer.has_pending()
    sequencer.checkpoint()
    run(sequencer, journal[1:2])
    assert not sequencer.has_pending()
    run(sequencer, journal[2:3])
    assert sequencer.has_pending()
    run(sequencer, journal[3:])
    assert not sequencer.has_pending()


def test_a_producer_silent_for_a_day_is_forgotten() -> None:
    day, now = 86_400_000_000_000, 1_700_000_000_000_000_000
    old, newer, new = clock_at(now - day - 100), clock_at(now - day), clock_at(now)
    journal = journal_of((A, old, CONTINUE), (b"\x05ccccc", newer, OUTSIDE), (B, new, OUTSIDE))
    journal.append(Envelope("acme/b", 0, 10, MessageUUID(A, old, OUTSIDE), 3))
    sequencer = Sequencer[int](EMPTY, ring_size=4)
    run(sequencer, journal)
    assert len(sequencer.checkpoint(prune_horizon_s=None).producers) == 4
    pruned = sequencer.checkpoint()
    assert [(of.journal, of.producer) for of in pruned.producers] == [
        ("acme/a", B),
        ("acme/a", b"\x05ccccc"),
        ("acme/b", A),
    ]
    # Its waiting message is forgotten as well, even by the ring.
    assert run(sequencer, [Envelope("acme/a", 40, 50, MessageUUID(A, old + 1, ACK), 4)]) == [(Outcome.ACK_EMPTY, [4])]


def test_a_producer_is_not_forgotten_while_its_messages_are_delivered() -> None:
    journal = journal_of((B, clock_at(1_700_000_000_000_000_000), OUTSIDE), (A, 10, CONTINUE), (A, 11, ACK))
    sequencer = Sequencer[int](EMPTY)
    run(sequencer, journal[:2])
    sequencer.queue(journal[2])
    sequencer.step()
    assert ProducerState("acme/a", A, 10, 10) in sequencer.checkpoint().producers
    assert drain(sequencer, journal) == [2]


def test_messages_that_were_delivered_or_dropped_are_not_kept() -> None:
    class Message:
        alive = 0

        def __init__(self) -> None:
            Message.alive += 1

        def __del__(self) -> None:
            Message.alive -= 1

    sequencer = Sequencer[Message](EMPTY, ring_size=8)
    offset = 0
    for clock in range(10, 1000):
        flags = ACK if clock % 100 == 0 else OUTSIDE if clock % 77 == 0 else CONTINUE
        sequencer.queue(Envelope("acme/a", offset, offset + 1, MessageUUID(A, clock, flags), Message()))
        offset += 1
        while (head := sequencer.head()) is not None:
            sequencer.end_replay() if isinstance(head, ReplayRange) else sequencer.step()
        assert Message.alive <= 8
    sequencer.queue(Envelope("acme/a", offset, offset + 1, MessageUUID(A, 10, ACK), Message()))
    assert Message.alive == 0

    # The same for those of a producer that is forgotten.
    newest = clock_at(1_700_000_000_000_000_000)
    sequencer.queue(Envelope("acme/a", 0, 1, MessageUUID(A, 11, CONTINUE), Message()))
    sequencer.queue(Envelope("acme/a", 1, 2, MessageUUID(B, newest, OUTSIDE), Message()))
    sequencer.step()
    assert Message.alive == 1
    sequencer.checkpoint()
    assert Message.alive == 0


def test_a_caller_out_of_step_is_told_so() -> None:
    sequencer = Sequencer[int](EMPTY)
    envelope = journal_of((A, 10, OUTSIDE))[0]
    for call in (sequencer.step, sequencer.end_replay, lambda: sequencer.replay(envelope)):
        with pytest.raises(InvariantError):
            call()
    sequencer.queue(envelope)
    with pytest.raises(InvariantError, match="step until head is None"):
        sequencer.queue(envelope)
    with pytest.raises(InvariantError):
        sequencer.replay(envelope)


def test_a_state_survives_its_checkpoint_message() -> None:
    state = SequencerState(
        {"acme/a": 100, "acme/b;meta": 0},
        (
            ProducerState("acme/a", A, 1 << 63, 0),
            ProducerState("acme/a", B, 7),
            ProducerState("acme/b;meta", A, 0, 9),
        ),
    )
    message = state.to_proto()
    assert message.sources["acme/a"].producers[1].state.begin == -1
    restored = SequencerState.from_proto(type(message).FromString(message.SerializeToString()))
    assert restored.read_through == state.read_through
    assert set(restored.producers) == set(state.producers)
