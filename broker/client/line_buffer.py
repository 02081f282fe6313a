"""LineBuffer: pieces of any size in, lines out, as fast as ``bytes.split`` is."""

from __future__ import annotations

from consumer.message.frame import FRAME_BYTES_MAX
from protocol.errors import CorruptError


class LineBuffer:
    """
    >>> buffer = LineBuffer()
    >>> buffer.feed(b"one\\ntw"), buffer.feed(b"o\\n\\nthr"), buffer.end()
    ([b'one'], [b'two', b''], b'thr')
    """

    def __init__(self, line_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, without their newlines."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts, self._held = [], 0
        if rest:
            self._parts.append(rest)
            self._held += len(rest)
            if self._held > self._line_bytes_max:
                raise CorruptError(
                    f"a line is longer than {self._line_bytes_max} bytes: read the journal by chunks, not by lines"
                )
        return lines

    def end(self) -> bytes:
        """What follows the last newline. The buffer is empty then."""
        rest = b"".join(self._parts)
        self._parts, self._held = [], 0
        return rest
