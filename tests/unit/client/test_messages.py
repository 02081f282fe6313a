"""What a client sends and receives, message by message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.append_request import AppendRequest, Messages, content_message, is_repeatable
from broker.client.line_buffer import LineBuffer
from broker.client.listing import ListingBuilder
from broker.client.metrics import OTHERS, JournalLabels
from broker.client.outcome import FailedCallError
from broker.client.read_message import ReadContent, ReadMetadata, decode
from broker.client.settings import ClientSettings
from protocol.auth import Keys
from protocol.errors import CorruptError, RefusedError, Status, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from protocol.wire_bytes import read_varint, varint

AT = "http://broker:80"
chunks = st.lists(st.binary(max_size=40), max_size=20)


@given(chunks=chunks, limit=st.integers(1, 30))
def test_messages_carry_all_content_in_order_and_no_more_than_they_may(chunks: list[bytes], limit: int) -> None:
    messages = Messages(limit)
    made = [message for chunk in chunks for message in messages.feed(chunk)] + list(messages.end())
    contents = [pb.AppendRequest.FromString(message).content for message in made]
    assert b"".join(contents) == b"".join(chunks)
    assert all(len(content) == limit for content in contents[:-1])
    # A message without content would be a request to commit.
    assert all(0 < len(content) <= limit for content in contents)


@given(st.binary(min_size=1, max_size=300))
def test_content_is_encoded_as_protobuf_would(content: bytes) -> None:
    assert content_message(content) == pb.AppendRequest(content=content).SerializeToString()


def test_wide_memory_is_sent_byte_by_byte() -> None:
    wide = memoryview(bytes(range(16))).cast("I")
    messages = Messages()
    made = [*messages.feed(wide), *messages.end()]
    assert pb.AppendRequest.FromString(made[0]).content == bytes(range(16))


def test_what_is_its_own_iterator_can_be_sent_but_once() -> None:
    for content in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert is_repeatable(content)
    assert is_repeatable([b"x"])
    assert is_repeatable((b"x",))
    assert not is_repeatable(iter([b"x"]))
    assert not is_repeatable(part for part in (b"x",))


@pytest.mark.parametrize(
    "fields", [{"journal": ""}, {"journal": "a b c d"}, {"offset": -1}, {"offset": 0}], ids=lambda fields: str(fields)
)
def test_a_request_that_breaks_a_rule_is_not_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AppendRequest(**{"journal": "acme/orders", **fields})  # type: ignore[arg-type]


def test_registers_are_present_only_where_they_are_asked_for() -> None:
    plain = AppendRequest("acme/orders").message(may_proxy=True)
    assert not any(plain.HasField(name) for name in ("check_registers", "union_registers", "subtract_registers"))
    union = AppendRequest("acme/orders", union_registers=LabelSet.of(("author", "me"))).message(may_proxy=True)
    assert union.HasField("union_registers")


@given(offset=st.integers(0, (1 << 63) - 1), content=st.binary(min_size=1, max_size=300))
def test_content_of_a_read_is_decoded_as_protobuf_would(offset: int, content: bytes) -> None:
    raw = pb.ReadResponse(offset=offset, content=content).SerializeToString()
    assert decode(raw, AT) == ReadContent(offset, content)
    # In another order, and with a field that nobody knows, it takes the long way.
    other = content_of(content) + (varint(3 << 3) + varint(offset) if offset else b"") + varint(1000 << 3) + b"\x01"
    assert decode(other, AT) == ReadContent(offset, content)


def content_of(content: bytes) -> bytes:
    return b"\x3a" + varint(len(content)) + content


@given(st.binary(max_size=60))
def test_no_bytes_are_taken_for_content_that_protobuf_would_not_take(raw: bytes) -> None:
    try:
        message = decode(raw, AT)
    except FailedCallError:
        return
    parsed = pb.ReadResponse.FromString(raw)
    if isinstance(message, ReadContent):
        assert (message.offset, message.data) == (parsed.offset, parsed.content)
    else:
        assert isinstance(message, ReadMetadata)
        assert not parsed.content


@given(st.integers(0, (1 << 63) - 1))
def test_varints_survive(number: int) -> None:
    assert read_varint(varint(number) + b"\x01", 0) == (number, len(varint(number)))


@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"a", b"\n")), max_size=20))
def test_lines_are_those_of_the_whole(pieces: list[bytes]) -> None:
    buffer = LineBuffer()
    lines = [line for piece in pieces for line in buffer.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert (lines, buffer.end()) == (whole, rest)
    assert buffer.end() == b""


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    buffer = LineBuffer(line_bytes_max=10)
    buffer.feed(b"12345")
    with pytest.raises(CorruptError):
        buffer.feed(b"678901")


def test_a_listing_that_begins_with_a_refusal_or_goes_back_is_none() -> None:
    header = pb.Header(
        process_id=pb.ProcessSpec.ID(zone="zone", suffix="broker"),
        route=pb.Route(primary=-1),
        etcd=pb.Header.Etcd(cluster_id=1, member_id=2, revision=5, raft_term=3),
    )
    with pytest.raises(RefusedError):
        ListingBuilder().feed(pb.ListResponse(status=pb.NOT_ALLOWED, header=header))
    with pytest.raises(FailedCallError):
        ListingBuilder(header).feed(pb.ListResponse(header=header))
    with pytest.raises(FailedCallError):
        ListingBuilder().feed(pb.ListResponse())
    with pytest.raises(FailedCallError):
        ListingBuilder().end()


def test_labels_of_metrics_are_bounded() -> None:
    labels = JournalLabels(size=2)
    assert [labels.label(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHERS, "a"]


def test_settings_keep_their_secrets_and_their_rules() -> None:
    settings = ClientSettings.of("broker:8080", "https://other:443", keys="c2VjcmV0")
    assert settings.addresses == ("http://broker:8080", "https://other:443")
    assert settings.keys == Keys.parse("c2VjcmV0")
    assert "c2VjcmV0" not in repr(settings)
    assert "secret" not in repr(settings)
    with pytest.raises(ValidationError, match="both"):
        ClientSettings.of("broker:8080", keys="c2VjcmV0", token="a.b.c")
    with pytest.raises(ValidationError, match=r"addresses\[0\]"):
        ClientSettings.of("http://")


def test_every_status_is_known() -> None:
    assert {status.name for status in Status} == set(pb.Status.keys())
