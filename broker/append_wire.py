"""The messages of an Append stream as bytes. As with replication, content is read by hand and not copied."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from broker.answer_header import reachable
from broker.append_event import AppendOpening, AppendOutcome, Chunk, End, Failed, Intent
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.memo import remembered
from protocol.route import Header
from protocol.selector import LabelSelector
from protocol.validation import validate
from protocol.wire_bytes import read_varint

_CONTENT = 4 << 3 | 2


@remembered
def decode_opening(raw: bytes) -> AppendOpening:
    """The first message. Raises a ValidationError.

    One that names no journal is not malformed, to Gazette: there is just no such journal. Whoever appends many times
    begins with the same bytes each time.
    """
    try:
        request = pb.AppendRequest.FromString(raw)
    except DecodeError as error:
        raise ValidationError("the message is not a well-formed protobuf of its type") from error
    validate(request)
    return AppendOpening(
        strip_meta(request.journal),
        Header.from_proto(request.header) if request.HasField("header") else None,
        request.do_not_proxy,
        request.offset or None,
        LabelSelector.from_proto(request.check_registers) if request.HasField("check_registers") else None,
        LabelSet.from_proto(request.union_registers),
        LabelSet.from_proto(request.subtract_registers),
        SuspendMode(request.suspend),
        request.min_etcd_revision,
    )


def decode_chunk(raw: bytes | None) -> Chunk | Intent | End | Failed:
    """Any later message; None is the end of the stream."""
    if raw is None:
        return End()
    if not raw:
        return Intent()
    if raw[0] == _CONTENT:
        try:
            length, begin = read_varint(raw, 1)
        except IndexError:
            length = begin = 0
        if length and begin + length == len(raw):
            return Chunk(memoryview(raw)[begin:])
    return _decoded(raw)


def _decoded(raw: bytes) -> Chunk | Intent | Failed:
    try:
        request = pb.AppendRequest.FromString(raw)
        if request.journal:
            raise ValidationError("goes with the first message of an append only", "Journal")
        validate(request)
    except DecodeError:
        return Failed(ValidationError("the message is not a well-formed protobuf of its type"))
    except ValidationError as error:
        return Failed(error)
    return Chunk(request.content) if request.content else Intent()


def response_of(outcome: AppendOutcome, total_chunks: int, delayed_chunks: int) -> pb.AppendResponse:
    response = pb.AppendResponse(
        status=pb.Status.ValueType(outcome.status),
        header=replace(outcome.header, route=reachable(outcome.header.route)).to_proto(),
        store_health_error=outcome.store_health_error,
    )
    if outcome.commit is not None:
        response.commit.CopyFrom(outcome.commit.to_proto())
        response.total_chunks, response.delayed_chunks = total_chunks, delayed_chunks
    if outcome.registers is not None:
        response.registers.CopyFrom(outcome.registers.to_proto())
    return response
