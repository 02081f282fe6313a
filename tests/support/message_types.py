"""Finding the class of a message by the name that vectors give."""

from __future__ import annotations

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from protocol.gen import head_pb2, journal_pb2, recorded_op_pb2, shard_pb2

FILES = (journal_pb2.DESCRIPTOR, shard_pb2.DESCRIPTOR, recorded_op_pb2.DESCRIPTOR, head_pb2.DESCRIPTOR)


def message_class(full_name: str) -> type[Message]:
    """The class of, say, ``protocol.JournalSpec.Fragment``."""
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(full_name))
