"""Messages of any shape, and values that a field can hold on the wire, whatever the rules say."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.support.corruption import Bad, is_map
from tests.support.message_types import message_class

WIRE_TEXTS = st.text(max_size=8) | st.sampled_from(["abcd", "http://h", "s3://b/", "acme/orders", "azure-ad://t"])


def wire_numbers(bits: int, signed: bool) -> Bad:
    """Most are small, as the bounds of rules are; the others are of any size that the field holds."""
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    small = st.integers(max(least, -3), 600)
    return small | st.integers(least, most) | st.sampled_from([least, most])


WIRE_VALUES: dict[int, Bad] = {
    FieldDescriptor.TYPE_STRING: WIRE_TEXTS,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: wire_numbers(32, signed=True),
    FieldDescriptor.TYPE_INT32: wire_numbers(32, signed=True),
    FieldDescriptor.TYPE_INT64: wire_numbers(64, signed=True),
    FieldDescriptor.TYPE_SFIXED64: wire_numbers(64, signed=True),
    FieldDescriptor.TYPE_UINT32: wire_numbers(32, signed=False),
    FieldDescriptor.TYPE_FIXED32: wire_numbers(32, signed=False),
    FieldDescriptor.TYPE_UINT64: wire_numbers(64, signed=False),
    FieldDescriptor.TYPE_FIXED64: wire_numbers(64, signed=False),
}


def values_of(field: FieldDescriptor, depth: int) -> Bad:
    """Values of a field, or of an element of it."""
    return messages(field.message_type.full_name, depth + 1) if field.message_type else WIRE_VALUES[field.type]


@st.composite
def messages(draw: st.DrawFn, kind: str, depth: int = 0) -> Any:
    """A message of any shape: fields at random, of random values."""
    message: Any = message_class(kind)()
    for field in message.DESCRIPTOR.fields:
        if depth > 3 or not draw(st.booleans()):
            continue
        if is_map(field):
            entries = values_of(field.message_type.fields_by_name["value"], depth)
            fill(getattr(message, field.name), draw(st.dictionaries(WIRE_TEXTS, entries, max_size=3)))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(values_of(field, depth), max_size=3)))
        elif field.message_type:
            getattr(message, field.name).CopyFrom(draw(values_of(field, depth)))
        else:
            setattr(message, field.name, draw(values_of(field, depth)))
    return message


def fill(entries: Any, values: dict[str, Any]) -> None:
    """A map of messages takes no assignment."""
    for key, value in values.items():
        if isinstance(value, Message):
            entries[key].CopyFrom(value)
        else:
            entries[key] = value
