"""The messages of a Read that carry content, written by hand: every byte that is read goes through here.

Through protobuf they would be copied twice, and the message could not be shared by readers of the same bytes.
"""

from __future__ import annotations

from protocol.wire_bytes import read_varint, varint

_STATUS_TAG = b"\x08"
_OFFSET_TAG = b"\x18"
_CONTENT_TAG = b"\x3a"


def content_message(offset: int, content: bytes | memoryview) -> bytes:
    """A ``ReadResponse`` of nothing but `content`, of which there is some, and its offset. It is copied once.

    >>> from protocol.gen import journal_pb2 as pb
    >>> content_message(300, b"hello") == pb.ReadResponse(offset=300, content=b"hello").SerializeToString()
    True
    """
    at = _OFFSET_TAG + varint(offset) if offset else b""
    return b"".join((at, _CONTENT_TAG, varint(len(content)), content))


def content_length(message: bytes) -> int:
    """Of a message that ``content_message`` has made.

    >>> content_length(content_message(300, b"hello")), content_length(content_message(0, b"hello"))
    (5, 5)
    """
    at = read_varint(message, 1)[1] if message.startswith(_OFFSET_TAG) else 0
    return read_varint(message, at + 1)[0]


def status_of(message: bytes) -> int:
    """Of a ``ReadResponse`` as brokers send it: fields in their order, so that the status comes first, if there is one.

    >>> from protocol.gen import journal_pb2 as pb
    >>> status_of(pb.ReadResponse(status=pb.NOT_ALLOWED, offset=3).SerializeToString())
    10
    >>> status_of(content_message(8, b"hello"))
    0
    """
    if not message.startswith(_STATUS_TAG):
        return 0
    try:
        return read_varint(message, 1)[0]
    except IndexError:
        # None that anybody knows.
        return -1
