"""Compressor: the object of a spool, made while the spool still grows.

Compressing a fragment of 1 GiB takes seconds. Done piece by piece behind the acknowledged end, on a thread, little
is left to do when the fragment is complete. The result is a file beside the spool's own, which only the
persister reads, and only once it is finished: until then it proves nothing, and after a restart it is made anew.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from fragment.encoder import encoder_of
from fragment.zstd_frames import FRAME_BYTES_MIN
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, UnavailableError

STEP_BYTES = 4 << 20
"""How much content is compressed before the thread is given back: some 20 ms of its time."""
READ_BYTES = 1 << 20


class Content(Protocol):
    """The spool's content file."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`, as many as there are."""
        ...


class Compressor:
    """One spool's object in the making. For one task at a time.

    All offsets are those of the journal. If anything fails, what was compressed is forgotten and the next call
    begins again with the first byte: a half-written file is never continued.
    """

    def __init__(
        self, codec: CompressionCodec, content: Content, begin: int, path: Path, executor: Executor | None = None
    ) -> None:
        """`content` begins at offset `begin` of the journal; `path` is for the object, and is ours to overwrite."""
        self.path = path
        self._codec = codec
        self._content = content
        self._begin = begin
        self._executor = executor
        self.rebuild()

    @property
    def compressed_through(self) -> int:
        """Content before this offset is in the object already.

        If the spool is cut below, the object holds bytes that are not the journal's: ``rebuild`` it.
        """
        return self._through

    def rebuild(self) -> None:
        """Forget the object made so far."""
        self._encoder = encoder_of(self._codec)
        self._is_finished = False
        self._through = self._begin
        self._frame_begin = self._begin
        self._object_bytes = 0

    async def advance(self, through: int, ends: Sequence[int]) -> None:
        """Compress what is worth it of the content before `through`, which must be acknowledged.

        `ends` are the ends of the appends, ascending; they may grow meanwhile, not change. Less than a frame is
        left for later, so that an idle journal holds no compression state: a broker has many of them. (The one
        member of GZIP_OFFLOAD_DECOMPRESSION has to stay open.)
        """
        if self._is_finished:
            raise InvariantError(f"{self.path.name} is finished and takes no more content")
        while self._frame_end(through, ends) is not None:
            await self._in_thread(lambda: self._step(through, ends))

    async def finish(self, through: int, ends: Sequence[int]) -> int:
        """Complete the object with the content before `through`; returns its length in bytes."""
        if self._through > through or (self._is_finished and self._through != through):
            raise InvariantError(f"{self.path.name} holds content up to {self._through}, not {through}: rebuild it")
        if not self._is_finished:
            await self.advance(through, ends)
            await self._in_thread(lambda: self._complete(through))
        return self._object_bytes

    def _frame_end(self, through: int, ends: Sequence[int]) -> int | None:
        """Where the frame, or member, that is being made can be closed."""
        at = bisect_left(ends, self._frame_begin + FRAME_BYTES_MIN)
        return ends[at] if at < len(ends) and ends[at] <= through else None

    def _step(self, through: int, ends: Sequence[int]) -> None:
        """Compress some frames, or a part of one."""
        stop = self._through + STEP_BYTES
        while self._through < stop:
            end = self._frame_end(through, ends)
            if end is None:
                return
            # The encoder is told of the last boundary before `end` too: if the append after it is so long that a
            # frame cannot hold both, the frame is closed between them. Boundaries before that one never matter.
            at = bisect_left(ends, end)
            before = ends[at - 1] if at else self._begin
            boundary = before if before > self._through else end
            self._feed(min(boundary, stop))
            if self._through == boundary:
                self._write(self._encoder.cut())
            if self._through == end:
                self._frame_begin = end

    def _feed(self, end: int) -> None:
        while self._through < end:
            position = self._through - self._begin
            data = self._content.read(position, min(READ_BYTES, end - self._through))
            if not data:
                raise CorruptError(f"the content of {self.path.name} ends at {position}, before what was acknowledged")
            self._write(self._encoder.feed(data))
            self._through += len(data)

    def _complete(self, through: int) -> None:
        self._feed(through)
        self._write(self._encoder.finish())
        self._is_finished = True

    def _write(self, data: bytes) -> None:
        if not data:
            return
        # Opened each time: a broker may have as many of these as it has journals.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if self._object_bytes else os.O_TRUNC)
        descriptor = os.open(self.path, flags, 0o640)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, self._object_bytes)
                self._object_bytes += written
                view = view[written:]
        finally:
            os.close(descriptor)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Run one step. It is waited for even if this task is cancelled, since it would write on otherwise."""
        step = asyncio.get_running_loop().run_in_executor(self._executor, work)
        cancelled: asyncio.CancelledError | None = None
        while not step.done():
            try:
                await asyncio.wait([step])
            except asyncio.CancelledError as error:
                cancelled = error
        failure = step.exception()
        if failure is not None:
            self.rebuild()
        if cancelled is not None:
            raise cancelled
        if isinstance(failure, OSError):
            raise UnavailableError(f"cannot compress into {self.path.name}: {failure.strerror}") from failure
        step.result()
