"""The messages of a Replicate stream as bytes.

Content makes up nearly all of what is replicated. Its messages are written and read by hand, since protobuf would copy
the bytes two times over; everything else goes through protobuf and is judged by ``protocol.validation``.
"""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from broker.answer_header import complete
from broker.durable_head import Claim, EpochTerms
from broker.replication_message import Acked, Answer, Content, Message, Propose
from fragment.spool import CopyEnd, EpochMark
from protocol.errors import Status, UnavailableError, ValidationError
from protocol.fragment import HEAD_MAX, Fragment
from protocol.gen import epoch_pb2
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from protocol.route import Header
from protocol.validation import validate
from protocol.wire_bytes import read_varint, varint

_CONTENT, _DELTA = 4 << 3 | 2, 5 << 3
_ACKED_THROUGH = b"\xc8\x3e"
"""The tag of field 1001."""


class MessageEncoder:
    """Encodes what goes to all peers once: they are sent the same message one after the other."""

    def __init__(self) -> None:
        self._latest: Message | None = None
        self._encoded = b""

    def encode(self, message: Message) -> bytes:
        if message is not self._latest:
            self._encoded = encode(message)
            self._latest = message
        return self._encoded


def encode(message: Message) -> bytes:
    match message:
        case Content(data, delta, through):
            parts = [b"\x22", varint(len(data)), data]
            if delta:
                parts += [b"\x28", varint(delta)]
            if through:
                parts += [_ACKED_THROUGH, varint(through)]
            return b"".join(parts)
        case Acked(through):
            return _ACKED_THROUGH + varint(through)
        case Propose():
            return _encoded_proposal(message)


def _encoded_proposal(message: Propose) -> bytes:
    request = pb.ReplicateRequest(
        proposal=message.fragment.to_proto(),
        registers=message.registers.to_proto(),
        acknowledge=message.acknowledge,
        acked_through=message.acked_through or 0,
    )
    if message.header is not None:
        request.header.CopyFrom(message.header.to_proto())
        if not all(request.header.route.endpoints):
            # Peers want to know all of them, or none.
            request.header.route.ClearField("endpoints")
        request.deprecated_journal = message.fragment.journal
    if (told := message.epoch) is not None:
        epoch = request.epoch
        epoch.create_revision, epoch.number = told.mark.create_revision, told.mark.number
        epoch.begin, epoch.closed, epoch.void = told.begin, told.is_closed, told.is_void
        epoch.oldest_begin = told.oldest_begin
    return request.SerializeToString()


def decode(raw: bytes) -> Message:
    """Raises a ValidationError."""
    if raw and raw[0] == _CONTENT:
        content = _content(raw)
        if content is not None:
            return content
    try:
        request = pb.ReplicateRequest.FromString(raw)
    except DecodeError as error:
        raise ValidationError("the message is not a well-formed protobuf of its type") from error
    validate(request)
    if request.HasField("proposal"):
        return Propose(
            Fragment.from_proto(request.proposal),
            LabelSet.from_proto(request.registers),
            request.acknowledge,
            Header.from_proto(request.header) if request.HasField("header") else None,
            _terms(request.epoch) if request.HasField("epoch") else None,
            request.acked_through,
        )
    if request.content:
        return Content(request.content, request.content_delta, request.acked_through)
    return Acked(request.acked_through)


def _content(raw: bytes) -> Content | None:
    """A message of content in the order in which all encoders write it; None if it is anything else, or is to be judged
    as all others are."""
    delta = through = 0
    try:
        length, begin = read_varint(raw, 1)
        at = begin + length
        if at < len(raw) and raw[at] == _DELTA:
            delta, at = read_varint(raw, at + 1)
        if raw[at : at + 2] == _ACKED_THROUGH:
            through, at = read_varint(raw, at + 2)
    except IndexError:
        return None
    if at != len(raw) or not length or through > HEAD_MAX:
        return None
    return Content(memoryview(raw)[begin : begin + length], delta, through)


def _terms(message: epoch_pb2.Epoch) -> EpochTerms:
    mark = EpochMark(message.create_revision, message.number)
    return EpochTerms(mark, message.begin, message.closed, message.void, message.oldest_begin)


def encode_answer(answer: Answer) -> bytes:
    response = pb.ReplicateResponse(status=pb.Status.ValueType(answer.status))
    if (header := answer.header) is not None:
        response.header.CopyFrom(replace(header, route=complete(header.route)).to_proto())
    if answer.fragment is not None:
        response.fragment.CopyFrom(answer.fragment.to_proto())
        # Beside the fragment they are present even if there are none: a Go primary ends its process otherwise.
        response.registers.CopyFrom((answer.registers or LabelSet()).to_proto())
    if (claim := answer.claim) is not None:
        response.copy.spool_id = claim.spool_id
        if claim.copy is not None:
            response.copy.create_revision = claim.copy.epoch.create_revision
            response.copy.number = claim.copy.epoch.number
            response.copy.end = claim.copy.end
            response.copy.registers = claim.copy.registers.to_proto().SerializeToString()
    return response.SerializeToString()


def decode_answer(raw: bytes) -> Answer:
    """An answer as peers really give it: the first one has a header, whatever its status.

    Raises if it has parts that cannot be made sense of.
    """
    try:
        response = pb.ReplicateResponse.FromString(raw)
        for part in ("header", "fragment", "registers"):
            if response.HasField(part):
                validate(getattr(response, part))
        return Answer(
            Status(response.status),
            Header.from_proto(response.header) if response.HasField("header") else None,
            Fragment.from_proto(response.fragment) if response.HasField("fragment") else None,
            LabelSet.from_proto(response.registers) if response.HasField("registers") else None,
            _claim(response.copy) if response.HasField("copy") else None,
        )
    except (DecodeError, ValidationError, ValueError) as error:
        raise UnavailableError(f"its answer makes no sense: {error}") from error


def _claim(message: epoch_pb2.Copy) -> Claim:
    if not message.number:
        return Claim(message.spool_id)
    registers = pb.LabelSet.FromString(message.registers)
    validate(registers)
    mark = EpochMark(message.create_revision, message.number)
    if not 0 <= message.end <= HEAD_MAX:
        raise ValidationError(f"expected an offset of at most {HEAD_MAX}", "Copy", "End")
    return Claim(message.spool_id, CopyEnd(mark, message.end, LabelSet.from_proto(registers)))
