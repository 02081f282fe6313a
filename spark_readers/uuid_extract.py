"""Where a message's UUID is, by framing: the first field of CSV, some field of JSON, none in plain lines.

There is one for every message of a scan, so that those of a batch are made of all its texts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from consumer.message.message_uuid import PRODUCER_BYTES, MessageUUID, parse_text
from protocol.errors import ValidationError

Uint64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

_TEXT_CHARS = 36
_HYPHENS = (8, 13, 18, 23)
# The parts of a UUID's 16 bytes: time, low to high, and then clock sequence and producer.
_PARTS = np.dtype([("low", ">u4"), ("mid", ">u2"), ("high", ">u2"), ("rest", ">u8")])
_PRODUCER_MASK = np.uint64((1 << 48) - 1)


class UuidColumns(NamedTuple):
    """The UUIDs of a batch of messages, part by part. Where `is_known` is False the others mean nothing."""

    is_known: NDArray[np.bool_]
    # As numbers of 48 bits.
    producers: Uint64s
    clocks: Uint64s
    flags: NDArray[np.uint16]

    def taken(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> UuidColumns:
        return UuidColumns(self.is_known[which], self.producers[which], self.clocks[which], self.flags[which])

    def to_list(self) -> list[MessageUUID | None]:
        packed = self.producers.astype(">u8").tobytes()
        producers = [packed[at - PRODUCER_BYTES : at] for at in range(8, len(packed) + 1, 8)]
        found = map(MessageUUID, producers, self.clocks.tolist(), self.flags.tolist())
        if self.is_known.all():
            return list(found)
        return [uuid if known else None for uuid, known in zip(found, self.is_known.tolist(), strict=True)]

    @classmethod
    def of(cls, uuids: Sequence[MessageUUID | None]) -> UuidColumns:
        nothing = MessageUUID(b"", 0, 0)
        parts = [uuid or nothing for uuid in uuids]
        return cls(
            np.array([uuid is not None for uuid in uuids], np.bool_),
            np.array([int.from_bytes(uuid.producer, "big") for uuid in parts], np.uint64),
            np.array([uuid.clock for uuid in parts], np.uint64),
            np.array([uuid.flags for uuid in parts], np.uint16),
        )


def columns_of_texts(texts: Sequence[object]) -> UuidColumns:
    """What is not a UUID is not known: the record is then delivered as it is, as are those that have none."""
    given = [text for text in texts if text is not None]
    found = _plain(given) or UuidColumns.of([parsed_uuid(text) for text in given])
    if len(given) == len(texts):
        return found
    is_given = np.array([text is not None for text in texts], np.bool_)
    # Where each is among those that were given; of others that is no matter.
    spread = found.taken(np.maximum(np.cumsum(is_given) - 1, 0)) if given else UuidColumns.of([None] * len(texts))
    return spread._replace(is_known=spread.is_known & is_given)


def _plain(texts: Sequence[Any]) -> UuidColumns | None:
    """Of texts that are all UUIDs in their common form, with hyphens and nothing around them; None if one is not."""
    try:
        joined = "".join(texts)
        if set(map(len, texts)) - {_TEXT_CHARS} or joined.count("-") != len(_HYPHENS) * len(texts):
            return None
        packed = bytes.fromhex(joined.replace("-", ""))
        chars = np.frombuffer(joined.encode("ascii"), np.uint8).reshape(-1, _TEXT_CHARS)
    except (TypeError, ValueError):
        return None
    # Of digits there are fewer if there were blanks between them, which are passed over.
    if len(packed) != 16 * len(texts) or not (chars[:, _HYPHENS] == ord("-")).all():
        return None
    parts = np.frombuffer(packed, _PARTS)
    units = parts["low"].astype(np.uint64)
    units |= parts["mid"].astype(np.uint64) << np.uint64(32)
    units |= (parts["high"] & 0xFFF).astype(np.uint64) << np.uint64(48)
    rest = parts["rest"].astype(np.uint64)
    return UuidColumns(
        np.ones(len(texts), np.bool_),
        rest & _PRODUCER_MASK,
        units << np.uint64(4) | rest >> np.uint64(58) & np.uint64(0xF),
        (rest >> np.uint64(48)).astype(np.uint16) & np.uint16(0x3FF),
    )


def parsed_uuid(text: object) -> MessageUUID | None:
    try:
        return parse_text(text) if isinstance(text, str) else None
    except ValidationError:
        return None


class JsonUuids:
    """Reads one field of each line and skips the rest, without making objects of it."""

    def __init__(self, path: Sequence[str]) -> None:
        kind: Any = str
        attributes = []
        for depth, name in enumerate(reversed(path)):
            attributes.append(f"field{depth}")
            kind = msgspec.defstruct(
                f"At{depth}", [(f"field{depth}", kind | None, msgspec.field(default=None, name=name))], gc=False
            )
        self._decoder = msgspec.json.Decoder(kind)
        self._steps = [attrgetter(attribute) for attribute in reversed(attributes)]

    def __call__(self, lines: Sequence[bytes]) -> UuidColumns:
        return self.of_lines(b"\n".join((*lines, b"")))[0] if lines else columns_of_texts(())

    def of_lines(self, data: bytes) -> tuple[UuidColumns, Int64s]:
        """Of lines that each end in a newline; and where each begins."""
        chars = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(chars == ord("\n"))
        begins = np.empty_like(ends)
        begins[:1] = 0
        begins[1:] = ends[:-1] + 1
        try:
            found = self._decoder.decode_lines(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = []
        # As many values as lines are one each only if no newline is within a value, nor two values in a line.
        if (
            len(found) != len(ends)
            or not (chars[begins] == ord("{")).all()
            or not (chars[np.maximum(ends, 1) - 1] == ord("}")).all()
        ):
            found = [self._decoded(line) for line in data.split(b"\n")[:-1]]
        for step in self._steps:
            found = list(map(step, found)) if all(found) else [of and step(of) for of in found]
        return columns_of_texts(found), begins

    def _decoded(self, line: bytes) -> Any:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


def csv_uuids(lines: Sequence[bytes]) -> UuidColumns:
    """By convention the first field. It needs no quotes, and a quoted one is read all the same."""
    return columns_of_texts([line.split(b",", 1)[0].strip(b'"\r\n').decode("ascii", "replace") for line in lines])


def no_uuids(lines: Sequence[bytes]) -> UuidColumns:
    return UuidColumns.of([None] * len(lines))


Extractor = Callable[[Sequence[bytes]], UuidColumns]
