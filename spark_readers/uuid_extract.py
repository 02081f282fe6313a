"""Where a message's UUID is, by framing: the first field of CSV, some field of JSON, none in plain lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from consumer.message.message_uuid import MessageUUID, parse_text
from protocol.errors import ValidationError

Uuids = list[MessageUUID | None]


_TAILS_MAX = 4096
_TIME_MASK = (1 << 60) - 1
# By the last two groups of a UUID's text: producer, flags, and the lowest bits of the Clock. They repeat all the time.
_TAILS: dict[str, tuple[bytes, int, int]] = {}


def parsed_uuid(text: object) -> MessageUUID | None:
    """None for what is not a UUID: the record is then delivered as it is, as are those that have none."""
    if not isinstance(text, str):
        return None
    tail = _TAILS.get(text[18:])
    try:
        if tail is not None and len(text) == 36 and text[8] == text[13] == "-":
            time = bytes.fromhex(text[14:18] + text[9:13] + text[:8])
            # Less if there were blanks, which are passed over.
            if len(time) == 8:
                units = int.from_bytes(time, "big") & _TIME_MASK
                return MessageUUID(tail[0], units << 4 | tail[1], tail[2])
        found = parse_text(text)
    except (ValidationError, ValueError):
        return None
    if len(text) == 36:
        if len(_TAILS) >= _TAILS_MAX:
            _TAILS.clear()
        _TAILS[text[18:]] = (found.producer, found.clock & 0xF, found.flags)
    return found


def json_extractor(path: Sequence[str]) -> Callable[[Sequence[bytes]], Uuids]:
    """Reads one field of each line and skips the rest, without making objects of it."""
    kind: Any = str
    attributes = []
    for depth, name in enumerate(reversed(path)):
        attributes.append(f"field{depth}")
        kind = msgspec.defstruct(
            f"At{depth}", [(f"field{depth}", kind | None, msgspec.field(default=None, name=name))], gc=False
        )
    decoder = msgspec.json.Decoder(kind)
    steps = [attrgetter(attribute) for attribute in reversed(attributes)]

    def one(line: bytes) -> MessageUUID | None:
        try:
            found = decoder.decode(line)
            for step in steps:
                if found is None:
                    return None
                found = step(found)
            return parsed_uuid(found)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def extract(lines: Sequence[bytes]) -> Uuids:
        try:
            found = decoder.decode_lines(b"\n".join(lines))
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = []
        # A line that is no such record, or blank: each has to be looked at by itself.
        if len(found) != len(lines):
            return [one(line) for line in lines]
        for step in steps:
            found = [None if of is None else step(of) for of in found]
        return [parsed_uuid(text) for text in found]

    return extract


def csv_extractor(lines: Sequence[bytes]) -> Uuids:
    """By convention the first field. It needs no quotes, and a quoted one is read all the same."""
    return [parsed_uuid(line.split(b",", 1)[0].strip(b'"\r\n').decode("ascii", "replace")) for line in lines]


def none_extractor(lines: Sequence[bytes]) -> Uuids:
    return [None] * len(lines)
