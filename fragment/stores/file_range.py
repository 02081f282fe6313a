"""FileRange: a piece of a local file as the stream that HTTP clients upload from."""

from __future__ import annotations

import io
import os


class FileRange(io.RawIOBase):
    """The bytes [begin, end) of a file. Positions are its own, so several may read one descriptor at once.

    A file that is shorter than promised raises rather than ends: a client library would otherwise wait for
    the rest, or worse, store what it has got.
    """

    def __init__(self, descriptor: int, begin: int, end: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self.begin = begin
        self.end = end
        self.ended_at: int | None = None
        """Where the file turned out to end, if that was too early."""
        self._position = begin

    @property
    def size(self) -> int:
        return self.end - self.begin

    def window(self, offset: int, size: int) -> FileRange:
        """At most `size` bytes of this one from `offset`, as a stream of its own."""
        begin = self.begin + offset
        return FileRange(self.descriptor, begin, min(begin + size, self.end))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position - self.begin

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: self.begin, os.SEEK_CUR: self._position, os.SEEK_END: self.end}[whence]
        self._position = max(self.begin, start + offset)
        return self.tell()

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.end - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        found = os.pread(self.descriptor, wanted, self._position) if wanted else b""
        if wanted and not found:
            self.ended_at = self._position
            raise ShortFileError(f"the file ends at {self._position}, before {self.end}")
        self._position += len(found)
        return found

    def read_all(self) -> bytes:
        """For pieces that are known to be small."""
        pieces = []
        while piece := self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Nothing: clients close what they have sent, and may yet have to send it again.

        The descriptor belongs to whoever opened it.
        """


class ShortFileError(OSError):
    """A file that has fewer bytes than its owner said."""
