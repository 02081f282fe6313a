"""Frames of a magic word, a length and a payload: those of protobuf messages and of recovery logs."""

from __future__ import annotations

from struct import Struct

from consumer.message.frame import FRAME_BYTES_MAX, Frame, Skipped
from protocol.errors import CorruptError, ValidationError

MAGIC = b"\x66\x33\x93\x36"
HEADER_BYTES = 8

_HEADER = Struct("<4sI")
_LENGTH_MAX = 0xFFFF_FFFF


def encode(payload: bytes) -> bytes:
    """
    >>> encode(bytes.fromhex("089601")).hex()
    '6633933603000000089601'
    """
    if len(payload) > _LENGTH_MAX:
        raise ValidationError(f"a frame holds at most {_LENGTH_MAX} bytes (got {len(payload)})")
    return _HEADER.pack(MAGIC, len(payload)) + payload


class FixedDecoder:
    """Finds frames in bytes that arrive in pieces of any size.

    Where no frame begins it looks for the next magic word and reports what it passed over. A length beyond
    the limit is taken for damage, and handled in the same way.
    """

    def __init__(self, begin: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._begin = begin  # offset of the buffer's first byte
        self._frame_bytes_max = frame_bytes_max
        self._lost = False  # true while no magic word was found since the last frame

    def feed(self, data: bytes) -> list[Frame | Skipped]:
        buffer, offset = self._buffer, self._begin
        buffer += data
        found: list[Frame | Skipped] = []
        at = 0
        with memoryview(buffer) as view:
            while True:
                if self._lost:
                    at = self._resync(at, found)
                if len(view) - at < HEADER_BYTES:
                    break
                magic, length = _HEADER.unpack_from(view, at)
                if magic != MAGIC:
                    self._lost = True
                    continue
                if length > self._frame_bytes_max:
                    why = f"a frame of {length} bytes is over the limit of {self._frame_bytes_max}"
                    found.append(Skipped(offset + at, offset + at + len(MAGIC), why))
                    at += len(MAGIC)
                    self._lost = True
                    continue
                end = at + HEADER_BYTES + length
                if end > len(view):
                    break
                found.append(Frame(offset + at, offset + end, bytes(view[at + HEADER_BYTES : end])))
                at = end
        del buffer[:at]
        self._begin += at
        return found

    def end(self) -> list[Frame | Skipped]:
        """To be called when the stream has ended: raises if it did so within a frame.

        A single newline is let pass, as Gazette lets it: people end a journal of frames with one by hand.
        """
        if self._buffer and self._buffer != b"\n":
            raise CorruptError(
                f"the stream ends within a frame: {len(self._buffer)} bytes are left at offset {self._begin}"
            )
        return []

    def _resync(self, at: int, found: list[Frame | Skipped]) -> int:
        """Where the next magic word begins, or might begin once more bytes arrive."""
        word = self._buffer.find(MAGIC, at)
        self._lost = word < 0
        resume = max(at, len(self._buffer) - len(MAGIC) + 1) if self._lost else word
        if resume > at:
            found.append(Skipped(self._begin + at, self._begin + resume, "no frame begins here"))
        return resume
