"""One operation of a recovery log: its frame, the checksum that chains it to all before it, and the fence.

A reader believes an operation only if it carries the checksum of everything that came before, so that two writers
cannot both extend a log. Whoever takes a log over also sets the fence, a register that the other's appends check.
"""

from __future__ import annotations

import google_crc32c

from consumer.message import fixed_framing
from protocol.gen import recorded_op_pb2 as pb
from protocol.label import LabelSet

AUTHOR_REGISTER = "author"
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def encode(operation: pb.RecordedOp) -> bytes:
    """The frame of an operation. The bytes of a write follow it in the log, and are not part of it."""
    return fixed_framing.encode(operation.SerializeToString())


def checksum_after(operation: pb.RecordedOp) -> int:
    """The checksum that the next operation must carry: CRC-32C over the payloads of all so far."""
    return int(google_crc32c.extend(operation.checksum, operation.SerializeToString()))


def fence(author: int) -> LabelSet:
    """The registers that say who owns a log: the author's number in base 32."""
    digits = ""
    while author:
        author, digit = divmod(author, 32)
        digits = _DIGITS[digit] + digits
    return LabelSet.of((AUTHOR_REGISTER, digits or "0"))
