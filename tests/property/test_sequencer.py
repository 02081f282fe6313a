from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.message.message_uuid import Flags, MessageUUID
from consumer.message.sequencer import Envelope, ReplayRange, Sequencer, SequencerState

JOURNALS = ("acme/a", "acme/b;meta")
PRODUCERS = (b"\x01aaaaa", b"\x03bbbbb", b"\x05ccccc")
# Few and close together, so that Clocks repeat, run backwards and fall between those of a transaction.
CLOCKS = st.integers(0, 12)
FLAGS = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 5])
RING_SIZES = st.sampled_from([0, 1, 2, 3, 5, 8192])
BEGIN = 100


@st.composite
def journals(draw: st.DrawFn) -> list[Envelope[int]]:
    """Messages of several journals, in the order they are read; numbered, as they may be equal otherwise."""
    heads = dict.fromkeys(JOURNALS, BEGIN)
    messages = []
    for n in range(draw(st.integers(0, 40))):
        journal = draw(st.sampled_from(JOURNALS))
        uuid = MessageUUID(draw(st.sampled_from(PRODUCERS)), draw(CLOCKS), draw(FLAGS))
        end = heads[journal] + draw(st.integers(1, 9))
        messages.append(Envelope(journal, heads[journal], end, uuid, n))
        # Journals may have gaps.
        heads[journal] = end + draw(st.sampled_from([0, 0, 3]))
    return messages


@dataclass
class Model:
    """The rules as they are written down, for one producer in one journal, with memory without end."""

    last_ack: int
    max_clock: int
    pending: list[Envelope[int]] = field(default_factory=list)

    def on_message(self, envelope: Envelope[int]) -> list[Envelope[int]]:
        """What is delivered at this point."""
        clock, flags = envelope.uuid.clock, envelope.uuid.flags
        if flags == Flags.CONTINUE_TXN:
            if clock > self.last_ack and clock > self.max_clock:
                self.pending.append(envelope)
                self.max_clock = clock
            return []
        if flags == Flags.ACK_TXN:
            committed = [of for of in self.pending if self.last_ack < of.uuid.clock <= clock]
            if clock > self.last_ack and not (committed and committed[-1].uuid.clock == clock):
                committed.append(envelope)
        elif clock <= self.last_ack:
            return []
        else:
            committed = [envelope]
        self.last_ack = self.max_clock = clock
        self.pending = []
        return committed


def modelled(messages: list[Envelope[int]]) -> list[list[int]]:
    """What is delivered upon each message."""
    models: dict[tuple[str, bytes], Model] = {}
    delivered = []
    for envelope in messages:
        key = (envelope.journal, envelope.uuid.producer)
        clock = envelope.uuid.clock
        if clock == 0:
            delivered.append([envelope.message])
            continue
        model = models.setdefault(key, Model(clock - 1, clock - 1))
        delivered.append([of.message for of in model.on_message(envelope)])
    return delivered


def read_again(messages: list[Envelope[int]], of: ReplayRange) -> list[Envelope[int]]:
    found = [item for item in messages if item.journal == of.journal and of.begin <= item.begin < of.end]
    # Its edges are message boundaries, and it is not asked for in vain.
    assert found
    assert found[0].begin == of.begin
    return found


def drain(sequencer: Sequencer[int], messages: list[Envelope[int]]) -> Iterator[int]:
    """What is delivered, one by one. All that was yielded counts as processed."""
    while (head := sequencer.head()) is not None:
        if isinstance(head, ReplayRange):
            for envelope in read_again(messages, head):
                if sequencer.replay(envelope):
                    sequencer.step()
                    yield envelope.message
            sequencer.end_replay()
        else:
            sequencer.step()
            yield head.message


@given(journals(), RING_SIZES)
@settings(max_examples=200)
def test_what_is_delivered_is_what_the_rules_say_whatever_the_ring_holds(
    messages: list[Envelope[int]], ring_size: int
) -> None:
    sequencer = Sequencer[int](SequencerState({}), ring_size)
    delivered = []
    for envelope in messages:
        sequencer.queue(envelope)
        delivered.append(list(drain(sequencer, messages)))
    assert delivered == modelled(messages)
    heads = {envelope.journal: envelope.end for envelope in messages}
    assert sequencer.checkpoint().read_through == heads


@given(journals(), RING_SIZES, st.data())
@settings(max_examples=200)
def test_a_sequencer_restored_from_any_checkpoint_goes_on_with_the_next_message(
    messages: list[Envelope[int]], ring_size: int, data: st.DataObject
) -> None:
    """Processes die at any point, and start again from their last checkpoint, which may be at any step."""
    expected = [n for delivered in modelled(messages) for n in delivered]
    stops = data.draw(st.lists(st.integers(0, 12), max_size=4))
    committed: list[int] = []
    state = SequencerState({})
    for stop in [*stops, None]:
        sequencer = Sequencer[int](state, ring_size)
        processed = run_until(sequencer, state, messages, stop)
        # Checkpoints travel as protobuf messages.
        state = SequencerState.from_proto(sequencer.checkpoint().to_proto())
        committed += processed
    for journal in JOURNALS:
        # Only within a journal is there an order that a restart keeps.
        assert [n for n in committed if messages[n].journal == journal] == [
            n for n in expected if messages[n].journal == journal
        ]


def run_until(
    sequencer: Sequencer[int], state: SequencerState, messages: list[Envelope[int]], stop: int | None
) -> list[int]:
    """What is processed of all that was not read yet, up to a number of messages."""
    processed: list[int] = []
    if stop == 0:
        return processed
    for envelope in messages:
        if envelope.begin < state.read_through.get(envelope.journal, 0):
            continue
        sequencer.queue(envelope)
        for n in drain(sequencer, messages):
            processed.append(n)
            if len(processed) == stop:
                return processed
    return processed
