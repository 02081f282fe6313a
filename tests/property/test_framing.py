from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.message import csv_framing, fixed_framing, json_framing
from consumer.message.fixed_framing import MAGIC
from consumer.message.frame import Frame, Skipped
from consumer.message.framing import FrameDecoder, Framing
from protocol.errors import CorruptError, ValidationError

CUTS = st.lists(st.integers(0, 200), max_size=12)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.text(st.sampled_from(['"', ",", "\n", "\r", " ", "a", "é", "\\", "."]), max_size=6)
RECORDS = st.lists(FIELDS, min_size=1, max_size=4).filter(lambda fields: fields != [""])
# Bytes that mean something to some framing, so that garbage comes close to being sound.
GARBAGE = st.lists(
    st.sampled_from([MAGIC, MAGIC[:2], b"\x03\0\0\0", b"\0\0\0\0", b"\n", b"\r\n", b'"', b'""', b",", b"{}", b"\xff"])
    | st.binary(max_size=6),
    max_size=40,
).map(b"".join)


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def decoded(decoder: FrameDecoder, data: bytes, cuts: Iterable[int]) -> tuple[list[Frame | Skipped], bool]:
    """What is found, adjacent skips made one, and whether the stream ends cleanly."""
    found = [item for piece in pieces(data, cuts) for item in decoder.feed(piece)]
    try:
        found += decoder.end()
        clean = True
    except CorruptError:
        clean = False
    whole: list[Frame | Skipped] = []
    for item in found:
        before = whole[-1] if whole else None
        if isinstance(item, Skipped) and isinstance(before, Skipped) and before.end == item.begin:
            whole[-1] = Skipped(before.begin, item.end, before.why)
        else:
            whole.append(item)
    return whole, clean


def check_round_trip(framing: Framing, frames: list[bytes], cuts: list[int]) -> list[bytes]:
    """The payloads found, after checking that each frame is where it was put."""
    found, clean = decoded(framing.decoder(begin=7), b"".join(frames), cuts)
    assert clean
    begin, payloads = 7, []
    for frame, item in zip(frames, found, strict=True):
        assert isinstance(item, Frame)
        assert (item.begin, item.end) == (begin, begin + len(frame))
        begin = item.end
        payloads.append(item.payload)
    return payloads


@given(st.lists(st.binary(max_size=30) | st.just(MAGIC), max_size=8), CUTS)
def test_fixed_frames_survive_however_their_bytes_arrive(messages: list[bytes], cuts: list[int]) -> None:
    assert check_round_trip(Framing.FIXED, [fixed_framing.encode(message) for message in messages], cuts) == messages


@given(st.lists(DOCUMENTS, max_size=8), CUTS)
def test_documents_survive_however_their_bytes_arrive(documents: list[object], cuts: list[int]) -> None:
    lines = [json_framing.encode(document) for document in documents]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert not any(symbol in line for line in lines for symbol in (b"<", b">", b"&"))
    assert [json_framing.parse(line) for line in check_round_trip(Framing.JSON, lines, cuts)] == documents


@given(st.lists(RECORDS, max_size=8), CUTS)
def test_records_survive_however_their_bytes_arrive(records: list[list[str]], cuts: list[int]) -> None:
    payloads = check_round_trip(Framing.CSV, [csv_framing.encode(record) for record in records], cuts)
    # A carriage return before a newline is taken for a part of it, in Go as here.
    expected = [[field.replace("\r\n", "\n") for field in record] for record in records]
    assert [csv_framing.parse(payload, None) for payload in payloads] == expected


@given(st.sampled_from(Framing), GARBAGE, CUTS, st.sampled_from([3, 16, 1 << 32]))
def test_what_is_found_in_garbage_does_not_depend_on_how_it_arrives(
    framing: Framing, data: bytes, cuts: list[int], frame_bytes_max: int
) -> None:
    at_once = decoded(framing.decoder(0, frame_bytes_max), data, [])
    assert decoded(framing.decoder(0, frame_bytes_max), data, cuts) == at_once
    assert decoded(framing.decoder(0, frame_bytes_max), data, range(len(data))) == at_once
    # Ranges ascend, and nothing but blank lines and what the end cuts off is left out.
    at = 0
    for item in at_once[0]:
        assert at <= item.begin < item.end <= len(data)
        assert data[at : item.begin].strip(b"\r\n") == b""
        at = item.end
        if isinstance(item, Frame):
            assert item.payload in data
            assert len(item.payload) <= frame_bytes_max
    assert not at_once[1] or data[at:].strip(b"\r\n") == b""


@given(GARBAGE, CUTS, st.lists(st.binary(max_size=9), min_size=1, max_size=3))
def test_frames_after_garbage_are_found(garbage: bytes, cuts: list[int], messages: list[bytes]) -> None:
    """Unless the garbage has a magic word, whose frame may reach into those that follow."""
    garbage = garbage.replace(MAGIC, b"")
    frames = b"".join(map(fixed_framing.encode, messages))
    if (garbage + MAGIC[:3]).find(MAGIC) >= 0:
        return
    found, clean = decoded(Framing.FIXED.decoder(), garbage + frames, cuts)
    assert clean
    assert [item.payload for item in found if isinstance(item, Frame)] == messages
    assert [item[:2] for item in found if isinstance(item, Skipped)] == ([(0, len(garbage))] if garbage else [])


@given(GARBAGE)
def test_any_line_is_a_document_or_is_refused(line: bytes) -> None:
    try:
        document = json_framing.parse(line)
    except ValidationError:
        return
    assert json_framing.parse(json_framing.encode(document)) == document


@given(GARBAGE)
def test_any_payload_is_a_record_or_is_refused(payload: bytes) -> None:
    try:
        fields = csv_framing.parse(payload, None)
    except ValidationError:
        return
    if fields != [""]:
        expected = [field.replace("\r\n", "\n") for field in fields]
        assert csv_framing.parse(csv_framing.encode(fields), len(fields)) == expected


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize(
    "piece",
    [b"x" * 4096, b"x\n" * 2048, b'"x,' * 1365, MAGIC * 1024, MAGIC + b"\xff\x7f\0\0" + b"\0" * 4088],
    ids=["one line", "short lines", "quotes", "magic words", "zeros"],
)
def test_memory_is_bounded_whatever_arrives(framing: Framing, piece: bytes) -> None:
    frame_bytes_max = 1 << 15
    decoder = framing.decoder(frame_bytes_max=frame_bytes_max)
    tracemalloc.start()
    try:
        # A quote that nothing closes, and pieces that add up to several times the limit.
        decoder.feed(b'"\n')
        held = []
        for _ in range(20):
            decoder.feed(piece)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held) < 4 * frame_bytes_max
