"""Where a message's UUID is, by framing: the first field of CSV, some field of JSON, none in plain lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from consumer.message.message_uuid import MessageUUID, parse_bytes, parse_text
from protocol.errors import ValidationError

Uuids = list[MessageUUID | None]


def parsed_uuid(text: object) -> MessageUUID | None:
    """None for what is not a UUID: the record is then delivered as it is, as are those that have none."""
    if not isinstance(text, str):
        return None
    try:
        # The usual form, without the regular expression.
        if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":
            return parse_bytes(bytes.fromhex(text.replace("-", "")))
        return parse_text(text)
    except (ValidationError, ValueError):
        return None


def json_extractor(path: Sequence[str]) -> Callable[[Sequence[bytes]], Uuids]:
    """Reads one field of each line and skips the rest, without making objects of it."""
    kind: Any = msgspec.Raw
    names = []
    for depth, name in enumerate(reversed(path)):
        attribute = f"field{depth}"
        names.append(attribute)
        kind = msgspec.defstruct(f"At{depth}", [(attribute, kind, msgspec.field(default=None, name=name))])
    decode = msgspec.json.Decoder(kind).decode
    text = msgspec.json.Decoder(str).decode
    names.reverse()

    def one(line: bytes) -> MessageUUID | None:
        try:
            found = decode(line)
            for name in names:
                found = getattr(found, name)
                if found is None:
                    return None
            return parsed_uuid(text(found))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def extract(lines: Sequence[bytes]) -> Uuids:
        return [one(line) for line in lines]

    return extract


def csv_extractor(lines: Sequence[bytes]) -> Uuids:
    """By convention the first field. It needs no quotes, and a quoted one is read all the same."""
    return [parsed_uuid(line.split(b",", 1)[0].strip(b'"\r\n').decode("ascii", "replace")) for line in lines]


def none_extractor(lines: Sequence[bytes]) -> Uuids:
    return [None] * len(lines)
