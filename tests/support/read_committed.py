"""What a read-committed reader makes of a journal: the documents that count, each once, in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker.client.blocking import BlockingClient
from consumer.message import json_framing
from consumer.message.frame import Frame
from consumer.message.framing import Framing
from consumer.message.message_uuid import Flags, MessageUUID, parse_text
from consumer.message.sequencer import Envelope, Outcome, ReplayRange, Sequencer, SequencerState

Document = dict[str, Any]
# Large enough that nothing has to be read again.
_RING_SIZE = 1 << 16


def messages(client: BlockingClient, journal: str, uuid_field: str = "UUID") -> list[Envelope[Document]]:
    """All that is in a journal, up to where it ends now."""
    end = client.append(journal).end
    decoder = Framing.JSON.decoder()
    with client.read(journal, 0, end=end) as reader:
        frames = [frame for piece in reader for frame in decoder.feed(piece)] + decoder.end()
    found = []
    for frame in frames:
        assert isinstance(frame, Frame), frame
        document = json_framing.parse(frame.payload)
        assert isinstance(document, dict)
        found.append(Envelope(journal, frame.begin, frame.end, _uuid_of(document, uuid_field), document))
    return found


def committed(client: BlockingClient, journal: str, uuid_field: str = "UUID") -> list[Document]:
    return sequenced(messages(client, journal, uuid_field))[0]


def sequenced(envelopes: list[Envelope[Document]]) -> tuple[list[Document], Counter[Outcome]]:
    """The documents that count, and what became of each message."""
    sequencer: Sequencer[Document] = Sequencer(SequencerState({}), _RING_SIZE)
    counted: list[Document] = []
    outcomes: Counter[Outcome] = Counter()
    for envelope in envelopes:
        outcomes[sequencer.queue(envelope)] += 1
        while (head := sequencer.head()) is not None:
            assert not isinstance(head, ReplayRange)
            if head.uuid.flags != Flags.ACK_TXN:
                counted.append(head.message)
            sequencer.step()
    return counted, outcomes


def _uuid_of(document: Document, field: str) -> MessageUUID:
    found: Any = document
    for name in field.split("."):
        found = found[name]
    return parse_text(found)
