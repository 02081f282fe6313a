"""Whatever a message is made of, it is valid or refused, and nothing else comes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ValidationError
from protocol.validation import validate
from tests.support.corruption import valid
from tests.support.message_shapes import messages
from tests.support.message_types import FILES, message_class


def all_types() -> Iterator[str]:
    def within(descriptor: Descriptor) -> Iterator[str]:
        if not descriptor.GetOptions().map_entry:
            yield descriptor.full_name
        for nested in descriptor.nested_types:
            yield from within(nested)

    for file in FILES:
        for descriptor in file.message_types_by_name.values():
            yield from within(descriptor)


def judge(message: Message) -> None:
    """Anything but a return or a ``ValidationError`` fails the test."""
    with contextlib.suppress(ValidationError):
        validate(message)


@pytest.mark.parametrize("kind", sorted(all_types()))
@settings(max_examples=12)
@given(data=st.data())
def test_whatever_bytes_are_parsed_the_verdict_is_clean(kind: str, data: st.DataObject) -> None:
    """Random bytes rarely parse, so bytes of valid messages are spliced with them as well."""
    pool = [message.SerializeToString() for message in valid(kind)]
    noise = st.binary(max_size=64)
    encoded = data.draw(st.one_of(noise, st.sampled_from(pool)) if pool else noise)
    at, cut = (data.draw(st.integers(0, len(encoded))) for _ in range(2))
    with contextlib.suppress(DecodeError):
        judge(message_class(kind).FromString(encoded[:at] + data.draw(noise) + encoded[cut:]))


@pytest.mark.parametrize("kind", sorted(all_types()))
@settings(max_examples=6)
@given(data=st.data())
def test_whatever_shape_a_message_has_the_verdict_is_clean(kind: str, data: st.DataObject) -> None:
    judge(data.draw(messages(kind)))
