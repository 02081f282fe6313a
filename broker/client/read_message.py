"""The messages of a Read as values. Those of content, which are nearly all, are read by hand and copied once."""

from __future__ import annotations

from typing import NamedTuple

from broker.client.answer import decoded
from protocol.errors import Status
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.wire_bytes import read_varint

_OFFSET, _CONTENT = 3 << 3, 7 << 3 | 2


class ReadContent(NamedTuple):
    offset: int
    data: bytes


class ReadMetadata(NamedTuple):
    """What there is to say about an offset, before its content or instead of it."""

    status: Status
    offset: int
    write_head: int
    # The one that holds the offset; None if there is none yet.
    fragment: Fragment | None = None
    # Where the fragment is read from its store; empty while it is only on brokers' disks.
    fragment_url: str = ""
    # With the first message of a stream.
    header: pb.Header | None = None


def decode(raw: bytes, endpoint: str) -> ReadContent | ReadMetadata:
    """Raises a FailedCallError.

    >>> decode(pb.ReadResponse(offset=300, content=b"hello").SerializeToString(), "http://broker:80")
    ReadContent(offset=300, data=b'hello')
    """
    content = _content(raw)
    if content is not None:
        return content
    message = decoded(pb.ReadResponse, raw, endpoint)
    if message.content:
        return ReadContent(message.offset, message.content)
    return ReadMetadata(
        Status(message.status),
        message.offset,
        message.write_head,
        Fragment.from_proto(message.fragment) if message.HasField("fragment") else None,
        message.fragment_url,
        message.header if message.HasField("header") else None,
    )


def _content(raw: bytes) -> ReadContent | None:
    """A message of content in the order in which all encoders write it; None if it is anything else."""
    offset = at = 0
    try:
        if raw[0] == _OFFSET:
            offset, at = read_varint(raw, 1)
        if raw[at] != _CONTENT:
            return None
        length, begin = read_varint(raw, at + 1)
    except IndexError:
        return None
    if not length or begin + length != len(raw):
        return None
    return ReadContent(offset, raw[begin:])
