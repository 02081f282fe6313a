"""AppendRequest: what is appended and on which conditions, and the messages that say so.

Content is copied once, into the message that carries it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.identifier import check_journal, strip_meta
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from protocol.validation import validate
from protocol.wire_bytes import tag, varint

MESSAGE_BYTES = 1 << 20
"""Of content. Brokers take 4 MiB; larger messages than this are no faster."""

Chunk = bytes | bytearray | memoryview
Content = Chunk | Iterable[Chunk] | AsyncIterable[Chunk]

COMMIT = b""
"""The message that asks for the commit. A broker commits nothing that it does not follow."""

_CONTENT = tag(4, is_bytes=True)
_NO_LABELS = LabelSet()


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """
    >>> AppendRequest("acme/orders;debug", offset=7).message(may_proxy=False)
    journal: "acme/orders"
    do_not_proxy: true
    offset: 7
    <BLANKLINE>
    """

    journal: str
    # Where the journal has to end for this to be appended.
    offset: int | None = None
    check_registers: LabelSelector | None = None
    union_registers: LabelSet = _NO_LABELS
    subtract_registers: LabelSet = _NO_LABELS
    suspend: SuspendMode = SuspendMode.RESUME

    def __post_init__(self) -> None:
        checked("journal", check_journal, self.journal)
        if self.offset == 0:
            raise ValidationError(
                "an append cannot ask for a journal that is empty, since 0 stands for no offset at all: leave it out",
                "offset",
            )
        validate(self.message(may_proxy=True))

    def message(self, *, may_proxy: bool, min_revision: int = 0) -> pb.AppendRequest:
        """The first message. What comes after a semicolon is left out: some brokers end at it when they proxy."""
        message = pb.AppendRequest(
            journal=strip_meta(self.journal),
            do_not_proxy=not may_proxy,
            offset=self.offset or 0,
            suspend=pb.AppendRequest.Suspend.ValueType(self.suspend),
            min_etcd_revision=min_revision,
        )
        if self.check_registers is not None:
            message.check_registers.CopyFrom(self.check_registers.to_proto())
        if self.union_registers:
            message.union_registers.CopyFrom(self.union_registers.to_proto())
        if self.subtract_registers:
            message.subtract_registers.CopyFrom(self.subtract_registers.to_proto())
        return message


def content_message(*parts: Chunk) -> bytes:
    """
    >>> content_message(b"he", b"llo") == pb.AppendRequest(content=b"hello").SerializeToString()
    True
    """
    return b"".join((_CONTENT, varint(sum(map(len, parts))), *parts))


def is_repeatable(content: Content) -> bool:
    """Whether it can be sent a second time. What can be gone through but once is its own iterator."""
    return isinstance(content, bytes | bytearray | memoryview) or not isinstance(content, Iterator | AsyncIterator)


class Messages:
    """Chunks of any size in, messages of a good size out. Call `end` after the last chunk.

    >>> messages = Messages(limit=4)
    >>> [*messages.feed(b"ab"), *messages.feed(b"cdefghij"), *messages.end()] == [
    ...     content_message(part) for part in (b"abcd", b"efgh", b"ij")]
    True
    """

    def __init__(self, limit: int = MESSAGE_BYTES) -> None:
        self._limit = limit
        self._parts: list[Chunk] = []
        self._held = 0

    def feed(self, chunk: Chunk) -> Iterator[bytes]:
        view = memoryview(chunk)
        if view.itemsize != 1:
            view = view.cast("B")
        if self._held + len(view) < self._limit:
            if view:
                self._parts.append(view)
                self._held += len(view)
            return
        at = 0
        while self._held + len(view) - at >= self._limit:
            take = self._limit - self._held
            yield content_message(*self._parts, view[at : at + take])
            self._parts, self._held = [], 0
            at += take
        if at < len(view):
            self._parts, self._held = [view[at:]], len(view) - at

    def end(self) -> Iterator[bytes]:
        if self._parts:
            yield content_message(*self._parts)
            self._parts, self._held = [], 0
