"""Any history, cut into any micro-batches: each batch has what a Sequencer delivers by then, and had not before."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

from consumer.message.message_uuid import Flags, MessageUUID, build
from consumer.message.sequencer import Envelope, ReplayRange, Sequencer, SequencerState
from tests.support.coding import CODECS
from tests.support.fragment_bag import put
from tests.support.stream_query import StreamQuery
from tests.support.uuid_histories import uuid_histories

JOURNALS = ("acme/a", "acme/b")
FRAGMENTS_MAX = 8
NUMBERS = pa.schema([("n", pa.int64()), ("_journal", pa.string())])


@dataclass
class Stored:
    """A fragment that is stored, and then batches are read: under which limit, and whether after a restart."""

    journal: str
    uuids: list[MessageUUID]
    codec: int
    batches: int
    limit: int
    restarts: bool


@st.composite
def histories(draw: st.DrawFn) -> list[Stored]:
    """What producers wrote to each journal, cut into fragments that are stored in turns."""
    left = {journal: draw(uuid_histories(max_size=30)) for journal in JOURNALS}
    history: list[Stored] = []
    while any(left.values()) and len(history) < FRAGMENTS_MAX:
        journal = draw(st.sampled_from([journal for journal, uuids in left.items() if uuids]))
        count = draw(st.integers(1, 8))
        uuids, left[journal] = left[journal][:count], left[journal][count:]
        codec = draw(st.integers(0, len(CODECS) - 1))
        batches = draw(st.sampled_from([0, 0, 1, 1, 2]))
        history.append(Stored(journal, uuids, codec, batches, draw(st.sampled_from([0, 1, 2])), draw(st.booleans())))
    return history


def record(n: int, uuid: MessageUUID) -> bytes:
    return json.dumps({"UUID": str(build(*uuid)), "n": n, "pad": "x" * (n % 3 * 300)}).encode() + b"\n"


def sequenced(envelopes: list[Envelope[int]]) -> set[tuple[str, int]]:
    sequencer = Sequencer[int](SequencerState({}))
    delivered = set()
    for envelope in envelopes:
        sequencer.queue(envelope)
        while (head := sequencer.head()) is not None:
            assert not isinstance(head, ReplayRange)
            if head.uuid.clock == 0 or head.uuid.flags != Flags.ACK_TXN:
                delivered.add((head.journal, head.message))
            sequencer.step()
    return delivered


@settings(max_examples=40)
@given(histories(), st.sampled_from(["1k", "70k", "128m"]))
def test_each_batch_has_what_a_sequencer_delivers_by_then(history: list[Stored], split: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given = {"path": folder, "framing": "json", "splitSize": split}
        query = StreamQuery(NUMBERS, **given)
        ends = dict.fromkeys(JOURNALS, 0)
        envelopes: list[Envelope[int]] = []
        seen: list[tuple[str, int]] = []

        def take(limit: ReadAllAvailable | ReadMaxBytes | ReadMaxFiles) -> bool:
            before = query.offsets
            rows = query.batch(limit)
            if rows is None:
                assert query.offsets == {name: end for name, end in ends.items() if end}
                return False
            assert before != query.offsets
            seen.extend((row["_journal"], row["n"]) for row in rows)
            assert len(seen) == len(set(seen))
            assert set(seen) == sequenced([of for of in envelopes if of.end <= query.offsets.get(of.journal, 0)])
            return True

        for of in history:
            begin = ends[of.journal]
            lines = []
            for uuid in of.uuids:
                n = len(envelopes)
                lines.append(record(n, uuid))
                end = ends[of.journal] + len(lines[-1])
                envelopes.append(Envelope(of.journal, ends[of.journal], end, uuid, n))
                ends[of.journal] = end
            put(Path(folder), of.journal, begin, lines, CODECS[of.codec])
            for _ in range(of.batches):
                if of.restarts:
                    # What the process knew is lost, be it of the last batch or of one that was not finished.
                    unfinished = query.look()
                    again = StreamQuery(NUMBERS, query.at, **given)
                    assert sorted(map(str, again.rows(unfinished))) == sorted(map(str, query.rows(unfinished)))
                    query = again
                take((ReadAllAvailable(), ReadMaxBytes(1024), ReadMaxFiles(1))[of.limit])
        while take(ReadMaxFiles(1)):
            pass
        assert set(seen) == sequenced(envelopes)
