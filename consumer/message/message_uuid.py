"""The UUID of a message: who wrote it, when, and whether it stands alone or waits for an acknowledgement.

It is an RFC 4122 version 1 UUID. Its 60-bit timestamp and the upper four bits of its clock sequence form the
*Clock*, an unsigned 64-bit number; the lower ten bits of the clock sequence are the flags; its node is the
producer. A Clock is a plain ``int`` here, as sequencing compares several for every message.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from protocol.errors import ValidationError

PRODUCER_BYTES = 6
FLAGS_MAX = (1 << 10) - 1
CLOCK_MAX = (1 << 64) - 1

_SEQUENCE_BITS = 4
_TICK = 10 << _SEQUENCE_BITS  # one microsecond
_UNIX_EPOCH = 122_192_928_000_000_000  # 1970-01-01 in units of 100 ns since 1582-10-15
_NANOS_PER_UNIT = 100
_MULTICAST = 0x01
_VERSION_AND_VARIANT = 1 << 76 | 0b10 << 62

_HYPHENATED = "(" + "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12)) + ")"
_TEXT = re.compile(rf"{_HYPHENATED}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}|([0-9a-f]{{32}})", re.ASCII | re.I)


class Flags(IntEnum):
    """What a message means to its producer's transaction. Unknown values are read as OUTSIDE_TXN."""

    OUTSIDE_TXN = 0
    CONTINUE_TXN = 1
    ACK_TXN = 2


class MessageUUID(NamedTuple):
    """The parts of a UUID. A zero `clock` opts out of sequencing: the message is delivered at least once."""

    producer: bytes
    clock: int
    # Not `Flags`: other writers may set any of the ten bits, and they are kept.
    flags: int


def clock_at(unix_nanos: int) -> int:
    """The first Clock of the 100 ns that hold this time.

    Gazette wraps times that do not fit around to some other century; we refuse them.
    """
    # Rounds towards 1970, as Gazette does.
    units = abs(unix_nanos) // _NANOS_PER_UNIT
    clock = (_UNIX_EPOCH + (units if unix_nanos >= 0 else -units)) << _SEQUENCE_BITS
    if not 0 <= clock <= CLOCK_MAX:
        raise ValidationError("a Clock holds times from the year 1582 to 5236: check the system clock")
    return clock


def updated(clock: int, unix_nanos: int) -> int:
    """`clock`, moved on to this time unless it is already there: a Clock never runs backwards."""
    return max(clock, clock_at(unix_nanos))


def ticked(clock: int) -> int:
    """The next Clock, a microsecond on.

    After the last one of the year 5236 it starts again at zero, as a 64-bit number does.
    """
    return (clock + _TICK) & CLOCK_MAX


def unix_nanos_of(clock: int) -> int:
    """The time of a Clock, without its sequence counter."""
    return ((clock >> _SEQUENCE_BITS) - _UNIX_EPOCH) * _NANOS_PER_UNIT


def producer_id(entropy: bytes) -> bytes:
    """A producer of six random bytes. The multicast bit keeps it apart from addresses of network cards."""
    _check_producer(entropy)
    return bytes((entropy[0] | _MULTICAST, *entropy[1:]))


def build(producer: bytes, clock: int, flags: int) -> UUID:
    """
    >>> str(build(bytes.fromhex("0b1122334455"), clock_at(1_567_304_621_981_273_734), Flags.ACK_TXN))
    '83fc2f81-cc5f-11e9-8002-0b1122334455'
    """
    _check_producer(producer)
    if not 0 <= flags <= FLAGS_MAX:
        raise ValidationError(f"flags are ten bits: expected at most {FLAGS_MAX}", "Flags")
    if not 0 <= clock <= CLOCK_MAX:
        raise ValidationError("a Clock is an unsigned 64-bit number", "Clock")
    units = clock >> _SEQUENCE_BITS
    return UUID(
        int=_VERSION_AND_VARIANT
        | (units & 0xFFFF_FFFF) << 96
        | (units >> 32 & 0xFFFF) << 80
        | (units >> 48) << 64
        | (clock & 0xF) << 58
        | flags << 48
        | int.from_bytes(producer, "big")
    )


def parse(uuid: UUID) -> MessageUUID:
    """The parts of any UUID. Version and variant do not matter, so that the nil UUID has a zero Clock."""
    return _parts(uuid.int)


def parse_bytes(raw: bytes) -> MessageUUID:
    """As ``parse``, from the 16 bytes that binary messages carry."""
    if len(raw) != 16:
        raise ValidationError(f"a UUID has 16 bytes (got {len(raw)})")
    return _parts(int.from_bytes(raw, "big"))


def parse_text(text: str) -> MessageUUID:
    """As ``parse``, from text: hyphenated, then perhaps in braces or after ``urn:uuid:``, or 32 hex digits.

    ``uuid.UUID`` is not asked, as it ignores hyphens and braces wherever they are.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValidationError(f"expected a UUID such as 83fc2f95-cc5f-11e9-8000-0b1122334455 (got {text[:48]!r})")
    digits: str = found[found.lastindex or 0]
    return _parts(int(digits.replace("-", ""), 16))


def _parts(number: int) -> MessageUUID:
    units = number >> 96 | (number >> 80 & 0xFFFF) << 32 | (number >> 64 & 0xFFF) << 48
    clock = units << _SEQUENCE_BITS | number >> 58 & 0xF
    producer = (number & 0xFFFF_FFFF_FFFF).to_bytes(PRODUCER_BYTES, "big")
    return MessageUUID(producer, clock, number >> 48 & FLAGS_MAX)


def _check_producer(producer: bytes) -> None:
    if len(producer) != PRODUCER_BYTES:
        raise ValidationError(f"a producer has {PRODUCER_BYTES} bytes (got {len(producer)})", "Producer")
