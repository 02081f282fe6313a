from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from consumer.message import csv_framing, fixed_framing, json_framing
from consumer.message.fixed_framing import MAGIC, FixedDecoder
from consumer.message.frame import Frame, Skipped
from consumer.message.framing import FrameDecoder, Framing
from consumer.message.message_uuid import parse_text
from protocol.errors import CorruptError, ValidationError
from tests.support.golden import Case, case_id, cases

# Larger than any length a header can state, as Gazette knows no limit.
NO_LIMIT = 1 << 32
UUID = "83fc2f95-cc5f-11e9-8001-0b1122334455"


def joined(decoded: Iterable[Frame | Skipped]) -> list[Frame | Skipped]:
    """With adjacent skips made one: how they are split depends on how the bytes arrived."""
    whole: list[Frame | Skipped] = []
    for item in decoded:
        before = whole[-1] if whole else None
        if isinstance(item, Skipped) and isinstance(before, Skipped) and before.end == item.begin:
            whole[-1] = Skipped(before.begin, item.end, before.why)
        else:
            whole.append(item)
    return whole


def payloads(decoder: FrameDecoder, data: bytes) -> list[bytes]:
    """Of a stream that is sound."""
    frames = [*decoder.feed(data), *decoder.end()]
    assert all(isinstance(frame, Frame) for frame in frames)
    return [frame.payload for frame in frames if isinstance(frame, Frame)]


@pytest.mark.parametrize("case", cases("framing", "content-type"), ids=case_id)
def test_content_types_have_a_framing_as_in_gazette(case: Case) -> None:
    if case["ok"]:
        assert Framing.of(case["content_type"]).value == case["content_type"]
        return
    with pytest.raises(ValidationError, match="label the journal with one of"):
        Framing.of(case["content_type"])


@pytest.mark.parametrize("case", cases("framing", "fixed-encode"), ids=case_id)
def test_fixed_frames_are_written_as_in_gazette(case: Case) -> None:
    payload, frame = bytes.fromhex(case["payload"]), bytes.fromhex(case["frame"])
    assert fixed_framing.encode(payload) == frame
    assert payloads(FixedDecoder(), frame) == [payload]


@pytest.mark.parametrize("case", cases("framing", "fixed-decode"), ids=case_id)
@pytest.mark.parametrize("piece_bytes", [1, 5, NO_LIMIT])
def test_fixed_frames_are_found_as_in_gazette(case: Case, piece_bytes: int) -> None:
    expected: list[Frame | Skipped] = []
    for result in case["results"]:
        at = result["at"]
        if result["result"] == "frame":
            expected.append(Frame(at, at + result["length"], bytes.fromhex(result["payload"])))
        elif result["result"] == "desync":
            expected.append(Skipped(at, at + result["skipped"], "no frame begins here"))
    data = bytes.fromhex(case["data"])
    decoder = FixedDecoder(frame_bytes_max=NO_LIMIT)
    decoded = [item for at in range(0, len(data), piece_bytes) for item in decoder.feed(data[at : at + piece_bytes])]
    assert joined(decoded) == joined(expected)

    last = case["results"][-1]
    if last["result"] == "end":
        assert decoder.end() == []
    else:
        assert last["result"] == "truncated"
        with pytest.raises(CorruptError, match=f"at offset {last['at']}$"):
            decoder.end()


@pytest.mark.parametrize("case", cases("framing", "json-encode"), ids=case_id)
def test_documents_are_written_as_in_gazette(case: Case) -> None:
    # The vectors have their keys sorted; the line tells the order in which they were written.
    document = json.loads(case["line"])
    assert document == case["value"]
    assert json_framing.encode(document) == case["line"].encode()


def read_field_a(line: bytes) -> object:
    """What a Go program makes of a line that it reads into a struct with one field."""
    document = json_framing.parse(line)
    if document is None:
        return None
    if not isinstance(document, dict):
        raise ValidationError("a struct is read from an object")
    fields = [value for key, value in document.items() if key.lower() == "a"]
    return fields[-1] if fields else None


@pytest.mark.parametrize("case", cases("framing", "json-decode"), ids=case_id)
def test_documents_are_read_as_in_gazette(case: Case) -> None:
    decoder = Framing.JSON.decoder()
    results: list[dict[str, object]] = []
    for line in decoder.feed(bytes.fromhex(case["hex"])):
        assert isinstance(line, Frame)
        try:
            field = read_field_a(line.payload)
            results.append({"result": "document"} if field is None else {"result": "document", "a": field})
        except ValidationError:
            results.append({"result": "bad line"})
    try:
        assert decoder.end() == []
        results.append({"result": "end"})
    except CorruptError:
        results.append({"result": "truncated"})
    assert results == case["results"]


@pytest.mark.parametrize("case", cases("framing", "csv-encode"), ids=case_id)
def test_records_are_written_as_in_gazette(case: Case) -> None:
    assert csv_framing.encode(case["record"]) == case["line"].encode()


@pytest.mark.parametrize("case", cases("framing", "csv-decode"), ids=case_id)
def test_records_are_read_as_in_gazette(case: Case) -> None:
    """Gazette's reader stops at the first record it cannot read."""
    decoder = Framing.CSV.decoder()
    results: list[dict[str, object]] = []
    columns = None
    try:
        for part in (decoder.feed(case["text"].encode()), decoder.end()):
            for record in part:
                assert isinstance(record, Frame)
                fields = csv_framing.parse(record.payload, columns)
                parse_text(fields[0])
                columns = len(fields)
                results.append({"result": "record", "fields": fields})
        results.append({"result": "end"})
    except (CorruptError, ValidationError):
        results.append({"result": "bad record"})
    assert results == case["results"]


def test_the_fixed_frame_vector_of_the_wire_format() -> None:
    assert fixed_framing.encode(bytes.fromhex("089601")) == bytes.fromhex("6633933603000000089601")


def test_offsets_count_from_where_the_stream_begins() -> None:
    assert Framing.FIXED.decoder(begin=100).feed(b"zz" + fixed_framing.encode(b"abc")) == [
        Skipped(100, 102, "no frame begins here"),
        Frame(102, 113, b"abc"),
    ]
    assert Framing.JSON.decoder(begin=100).feed(b"1\n22\n") == [Frame(100, 102, b"1"), Frame(102, 105, b"22")]
    assert Framing.CSV.decoder(begin=100).feed(b'a,"b\nc"\n\nd,e\n') == [
        Frame(100, 108, b'a,"b\nc"'),
        Frame(109, 113, b"d,e"),
    ]


def test_a_length_over_the_limit_is_damage_and_the_next_frame_is_found() -> None:
    decoder = FixedDecoder(frame_bytes_max=4)
    assert decoder.feed(fixed_framing.encode(b"1234")) == [Frame(0, 12, b"1234")]
    too_long, after = decoder.feed(fixed_framing.encode(b"12345")), decoder.feed(fixed_framing.encode(b"x"))
    assert too_long[0] == Skipped(12, 16, "a frame of 5 bytes is over the limit of 4")
    assert joined([*too_long, *after])[1:] == [Frame(25, 34, b"x")]
    decoder.end()


def test_a_magic_word_before_a_frame_costs_that_frame_only_if_its_length_is_believed() -> None:
    data = MAGIC + fixed_framing.encode(b"abc")
    assert Frame(4, 15, b"abc") in FixedDecoder().feed(data)
    assert FixedDecoder(frame_bytes_max=NO_LIMIT).feed(data) == []


def test_a_line_over_the_limit_is_passed_over_and_the_next_one_is_found() -> None:
    for pieces in (b"123\n1234\n12345\n1\n",), (b"123\n1234\n123", b"4", b"5", b"\n1\n"):
        decoder = Framing.JSON.decoder(frame_bytes_max=4)
        decoded = joined(item for piece in pieces for item in decoder.feed(piece))
        assert decoded == [
            Frame(0, 4, b"123"),
            Frame(4, 9, b"1234"),
            Skipped(9, 15, "a line is over the limit of 4 bytes"),
            Frame(15, 17, b"1"),
        ]
        decoder.end()


def test_a_stream_that_ends_within_a_line_over_the_limit_is_cut() -> None:
    for framing in Framing.JSON, Framing.CSV:
        decoder = framing.decoder(frame_bytes_max=4)
        assert decoder.feed(b"12345") == [Skipped(0, 5, "a line is over the limit of 4 bytes")]
        with pytest.raises(CorruptError, match="within a line"):
            decoder.end()


def test_a_record_over_the_limit_is_passed_over_and_the_next_one_is_found() -> None:
    decoder = Framing.CSV.decoder(frame_bytes_max=5)
    assert decoder.feed(b'"\n\n"\n"a\nb"\n"a\nbc"\nd\n') == [
        Frame(0, 5, b'"\n\n"'),
        Frame(5, 11, b'"a\nb"'),
        Skipped(11, 18, "a record is over the limit of 5 bytes"),
        Frame(18, 20, b"d"),
    ]
    # A quote that nothing closes ends at the limit, rather than with the journal.
    decoded = Framing.CSV.decoder(frame_bytes_max=5).feed(b'"a\nb\nc\nd\n')
    assert decoded == [Skipped(0, 7, "a record is over the limit of 5 bytes"), Frame(7, 9, b"d")]
    # The same where a line of the record is over the limit by itself.
    decoded = Framing.CSV.decoder(frame_bytes_max=5).feed(b'"a\n123456\nd\n')
    assert decoded == [Skipped(0, 10, "a line is over the limit of 5 bytes"), Frame(10, 12, b"d")]


@pytest.mark.parametrize("record", ['a"b', '"a"b', 'a,"b"c,d', 'a"b,"c', 'a,b"'])
def test_a_record_with_a_stray_quote_is_refused_and_does_not_swallow_the_next(record: str) -> None:
    bad, good = payloads(Framing.CSV.decoder(), f"{record}\nd,e\n".encode())
    with pytest.raises(ValidationError):
        csv_framing.parse(bad, None)
    assert csv_framing.parse(good, None) == ["d", "e"]


@pytest.mark.parametrize("records", [b"a\nb", b'"a"\nb', b'a\n"b"', b'a,b\nc,"d"'])
def test_two_records_are_not_taken_for_one(records: bytes) -> None:
    with pytest.raises(ValidationError):
        csv_framing.parse(records, None)


def test_a_record_within_quotes_may_have_newlines_and_carriage_returns_end_lines() -> None:
    data = f'{UUID},"x\r\n""y"",\n\n","",z\r\n\r\n\n{UUID},1,2,3\r'.encode()
    first, second = payloads(Framing.CSV.decoder(), data)
    assert csv_framing.parse(first, None) == [UUID, 'x\n"y",\n\n', "", "z"]
    assert csv_framing.parse(second, 4) == [UUID, "1", "2", "3"]


@pytest.mark.parametrize("record", [[], [""]])
def test_a_record_that_would_be_a_blank_line_is_refused(record: list[str]) -> None:
    with pytest.raises(ValidationError, match="blank line"):
        csv_framing.encode(record)


@pytest.mark.parametrize("field", ["", r"\.", "\u3000x", "\x1fx", "'", "x\u2028", "#", "x "])
def test_fields_are_quoted_only_where_go_does(field: str) -> None:
    quoted = csv_framing.encode(["k", field]) == f'k,"{field}"\n'.encode()
    assert quoted == (field in (r"\.", "\u3000x"))


def test_text_that_is_not_utf8_is_refused_in_records_and_replaced_in_documents() -> None:
    with pytest.raises(ValidationError, match="byte 1 is not"):
        csv_framing.parse(b"a\xff,b", None)
    with pytest.raises(ValidationError, match="surrogate"):
        csv_framing.encode(["a", "\ud800"])
    assert json_framing.parse(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert json_framing.parse(rb'{"\ud800":["x\uDC00",1,"\ud83d\ude00"]}') == {"\ufffd": ["x\ufffd", 1, "\U0001f600"]}
    with pytest.raises(ValidationError):
        json_framing.parse(b'{"a":1}\xff')


@pytest.mark.parametrize("document", [float("nan"), {"a": float("inf")}, "\ud800", object(), {1, 2}])
def test_what_json_cannot_hold_is_refused(document: object) -> None:
    with pytest.raises(ValidationError, match="cannot be written as JSON"):
        json_framing.encode(document)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"01",
        b"1 2",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"[" * 100_000,
        b"9" * 5000,
        b"'a'",
        b'"\t"',
    ],
    ids=lambda line: repr(line[:12]),
)
def test_what_is_no_document_is_refused_in_few_words(line: bytes) -> None:
    with pytest.raises(ValidationError, match="expected one JSON document") as caught:
        json_framing.parse(line)
    assert len(str(caught.value)) < 200


def test_a_payload_no_header_can_state_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(ValidationError, match="at most"):
        fixed_framing.encode(Huge())


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (5.0, "5"),
        (-0.0, "-0"),
        (0.5, "0.5"),
        (1e-06, "0.000001"),
        (1e-07, "1e-7"),
        (1.25e-09, "1.25e-9"),
        (3.08e-05, "0.0000308"),
        (9007199254740991.0, "9007199254740991"),
        (1e16, "1e+16"),
        (1e21, "1e+21"),
        (1e-10, "1e-10"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_floats_are_spelled_as_go_spells_them(number: float, spelled: str) -> None:
    document = {"x": [number, '5.0 and 1e-07 stay in "texts"'], "n": 7}
    text = json_framing.encode(document).decode()
    assert text.startswith(f'{{"x":[{spelled},"5.0 and 1e-07 stay')
    assert json_framing.parse(text.encode()) == document
