"""Histories of one journal: the UUIDs of its messages, as producers of all kinds would write them, and what the
Sequencer, which reads everything in order, makes of one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from consumer.message.message_uuid import Flags, MessageUUID
from consumer.message.sequencer import Envelope, ReplayRange, Sequencer, SequencerState

PRODUCERS = (b"\x01aaaaa", b"\x03bbbbb")
TRANSACTIONS_MAX = 4
BURST_MAX = 8


def sequenced(messages: Sequence[MessageUUID]) -> set[int]:
    """What the Sequencer delivers, without acknowledgements. Messages are known by their places in the history."""
    sequencer = Sequencer[int](SequencerState({}))
    delivered = set()
    for at, uuid in enumerate(messages):
        sequencer.queue(Envelope("j", at, at + 1, uuid, at))
        while (head := sequencer.head()) is not None:
            assert not isinstance(head, ReplayRange)
            if head.uuid.clock == 0 or head.uuid.flags != Flags.ACK_TXN:
                delivered.add(head.message)
            sequencer.step()
    return delivered


def _unruly(clock_max: int, max_size: int) -> st.SearchStrategy[list[MessageUUID]]:
    flags = st.sampled_from([0, 0, 1, 1, 1, 1, 2, 2, 5])
    uuids = st.builds(MessageUUID, st.sampled_from(PRODUCERS), st.integers(0, clock_max), flags)
    return st.lists(uuids, max_size=max_size)


@st.composite
def _interleaved(draw: st.DrawFn, max_size: int) -> list[MessageUUID]:
    """Publishers that keep to the rules: several transactions each, most of them acknowledged, by Clocks that rise. One
    is ahead of the other by far, or behind, as clocks of machines are."""
    scripts = []
    for producer in PRODUCERS:
        clock = committed = draw(st.sampled_from([1, 5, 100]))
        script = []
        for _ in range(draw(st.integers(1, TRANSACTIONS_MAX))):
            for _ in range(draw(st.integers(1, 3))):
                clock += 1
                script.append(MessageUUID(producer, clock, int(Flags.CONTINUE_TXN)))
            if draw(st.integers(0, 3)):
                clock += 1
                committed = clock
            # Else it is rolled back, to what was acknowledged last.
            script.append(MessageUUID(producer, committed, int(Flags.ACK_TXN)))
        scripts.append(script)
    history: list[MessageUUID] = []
    while any(scripts) and len(history) < max_size:
        script = draw(st.sampled_from([script for script in scripts if script]))
        # In bursts, so that one gets through several transactions while another has one open.
        burst = draw(st.integers(1, BURST_MAX))
        history += script[:burst]
        del script[:burst]
    return history[:max_size]


def uuid_histories(max_size: int) -> st.SearchStrategy[list[MessageUUID]]:
    # Clocks that are few and close together repeat, run backwards and fall between those of a transaction. Those that
    # are far apart leave room for transactions that follow each other.
    return st.one_of(_unruly(6, max_size), _unruly(60, max_size), _interleaved(max_size))
