"""Lines: what the JSON and the CSV framing have in common."""

from __future__ import annotations

from consumer.message.frame import FRAME_BYTES_MAX, Frame, Skipped
from protocol.errors import CorruptError


class LineDecoder:
    """Finds lines in bytes that arrive in pieces of any size. A payload is a line without its newline."""

    def __init__(self, begin: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._begin = begin  # offset of the buffer's first byte
        self._frame_bytes_max = frame_bytes_max
        self._skipping = False  # true within a line whose beginning was too long to keep

    def feed(self, data: bytes) -> list[Frame | Skipped]:
        buffer, offset = self._buffer, self._begin
        # What is left of an earlier piece has no newline, so it is not searched again.
        search = len(buffer)
        buffer += data
        found: list[Frame | Skipped] = []
        at = 0
        with memoryview(buffer) as view:
            while (newline := buffer.find(b"\n", search)) >= 0:
                search = newline + 1
                if self._skipping or newline - at > self._frame_bytes_max:
                    found.append(self._too_long(at, search))
                    self._skipping = False
                else:
                    found.append(Frame(offset + at, offset + search, bytes(view[at:newline])))
                at = search
        rest = len(buffer)
        if rest > at and (self._skipping or rest - at > self._frame_bytes_max):
            found.append(self._too_long(at, rest))
            self._skipping = True
            at = rest
        del buffer[:at]
        self._begin += at
        return found

    def rest(self) -> Frame | None:
        """The bytes after the last newline, or None if there are none."""
        if not self._buffer:
            return None
        return Frame(self._begin, self._begin + len(self._buffer), bytes(self._buffer))

    def end(self) -> list[Frame | Skipped]:
        """To be called when the stream has ended: raises if it did so within a line."""
        if self._buffer or self._skipping:
            raise CorruptError(f"the stream ends within a line: no newline follows offset {self._begin}")
        return []

    def _too_long(self, at: int, end: int) -> Skipped:
        why = f"a line is over the limit of {self._frame_bytes_max} bytes"
        return Skipped(self._begin + at, self._begin + end, why)
