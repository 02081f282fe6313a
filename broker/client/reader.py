"""Reader: a journal as a stream of bytes, and LineReader: the same as a stream of lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from types import TracebackType

from broker.client.brokers import Brokers
from broker.client.fragment_url import FragmentUrls
from broker.client.line_buffer import LineBuffer
from broker.client.retry import RetryPolicy
from broker.client.retrying_read import Jump, OnJump, ReadRange, RetryingRead
from protocol.fragment import Fragment


class Reader:
    """Iterate over it for chunks as they come, or `read` as from a file. It is at its end where the range ends, or at
    the write head if that is not to be waited at.

    Brokers that go are replaced by others, and each byte comes once. Bytes that are gone from the journal for good are
    passed over, and ``on_jump`` is told. One task reads at a time. Use it with ``async with``, or `close` it, where you
    leave it before its end.
    """

    def __init__(
        self,
        brokers: Brokers,
        urls: FragmentUrls,
        wanted: ReadRange,
        policy: RetryPolicy | None,
        on_jump: OnJump,
    ) -> None:
        self._brokers = brokers
        self._urls = urls
        self._wanted = wanted
        self._policy = policy
        self._on_jump = on_jump
        self._rest = b""
        self._begin()

    def _begin(self) -> None:
        self._source = RetryingRead(self._brokers, self._urls, self._wanted, self._policy, self._on_jump)
        self._pieces: AsyncGenerator[bytes, None] = self._source.pieces()

    @property
    def journal(self) -> str:
        return self._wanted.journal

    @property
    def offset(self) -> int:
        """Of the byte that comes next; ``WRITE_HEAD`` if it was asked for and is not known yet."""
        return self._source.offset - len(self._rest)

    @property
    def write_head(self) -> int | None:
        """Where the journal ended when a broker last said so."""
        return self._source.write_head

    @property
    def fragment(self) -> Fragment | None:
        """The one that the latest bytes are of, as far as it reached when it was opened."""
        return None if self._source.found is None else self._source.found.fragment

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._pieces.aclose()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> bytes:
        if self._rest:
            piece, self._rest = self._rest, b""
            return piece
        return await anext(self._pieces)

    async def read(self, bytes_max: int = -1) -> bytes:
        """The next bytes, at most so many and as soon as there are any; none at the end. Without a number, all."""
        if bytes_max < 0:
            return b"".join([piece async for piece in self])
        piece = await anext(self, b"")
        self._rest = piece[bytes_max:]
        return piece[:bytes_max] if self._rest else piece

    async def seek(self, offset: int) -> None:
        """Go on at another offset, also after the end was reached. What was read ahead is kept where it serves."""
        ahead = offset - self.offset
        if 0 <= ahead < len(self._rest):
            self._rest = self._rest[ahead:]
            return
        await self.close()
        self._rest = b""
        self._wanted = replace(self._wanted, offset=offset)
        self._begin()


class LineReader:
    """Lines without their newlines. ``offset`` is where the line after the latest one begins, so a reader that is to
    go on where this one left begins there.

    What follows the last newline is a line too, once the end is reached.
    """

    def __init__(
        self,
        brokers: Brokers,
        urls: FragmentUrls,
        wanted: ReadRange,
        policy: RetryPolicy | None,
        on_jump: OnJump,
    ) -> None:
        self._buffer = LineBuffer()
        self._on_jump = on_jump
        self.offset = wanted.offset
        # In reverse, so that the next one is taken off cheaply.
        self._lines: list[bytes] = []
        self._reader = Reader(brokers, urls, wanted, policy, self._jumped)

    @property
    def journal(self) -> str:
        return self._reader.journal

    @property
    def write_head(self) -> int | None:
        return self._reader.write_head

    async def __aenter__(self) -> LineReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._reader.close()

    def __aiter__(self) -> LineReader:
        return self

    async def __anext__(self) -> bytes:
        if not self._lines:
            self._lines = await self._more()
            self._lines.reverse()
        line = self._lines.pop()
        self.offset += len(line) + 1
        return line

    async def next_lines(self) -> list[bytes]:
        """As many as there are at once, none at the end: quicker than one by one."""
        lines, self._lines = self._lines[::-1], []
        try:
            lines = lines or await self._more()
        except StopAsyncIteration:
            return []
        self.offset += sum(map(len, lines)) + len(lines)
        return lines

    async def _more(self) -> list[bytes]:
        async for piece in self._reader:
            if self.offset < 0:
                self.offset = self._reader.offset - len(piece)
            if lines := self._buffer.feed(piece):
                return lines
        if rest := self._buffer.end():
            # There is no newline that it could have passed.
            self.offset -= 1
            return [rest]
        raise StopAsyncIteration

    def _jumped(self, jump: Jump) -> None:
        """The line that has begun before it has no end."""
        self._buffer.end()
        self.offset = jump.end
        self._on_jump(jump)
