"""History: what the clients of a run did and what they were told, for checkers to judge.

Every append has content of its own, from which it is known again wherever it is read. Moments are numbered in the
order in which they happened: two things may happen at the same virtual time, but one was told first.

A journal goes by any key that tells one incarnation of it from another, such as ``acme/orders`` or ``acme/orders@17``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from zlib import crc32

_HEAD = re.compile(rb"\[(\d+):(\d+):([0-9a-f]{8})\|")
VALUE_END = b"]"
"""Nowhere else in a value. Its number stands before it, so that a value is known by either end."""

_FILLER = b"abcdefghijklmnopqrstuvwxyz012345"


def value(number: int, length: int = 0) -> bytes:
    """Content that no other append has, of at least `length` bytes.

    >>> value(7)
    b'[7:18:17d26b79||7]'
    """
    head, tail = b"[%d:" % number, b"|%d]" % number
    # Two digits of length are the fewest there are, and more make it longer still.
    fixed = len(head) + len(tail) + len(b":01234567|")
    total = max(length, fixed + 2)
    while len(b"%d" % total) + fixed > total:
        total += 1
    filler = total - fixed - len(b"%d" % total)
    begin = number % len(_FILLER)
    body = (_FILLER * (filler // len(_FILLER) + 2))[begin : begin + filler]
    return head + b"%d:%08x|" % (total, crc32(b"%d:" % number + body)) + body + tail


def begins_at(content: bytes | memoryview, at: int) -> tuple[int, int] | None:
    """Number and length of the value whose beginning is at `at`, if there is one."""
    found = _HEAD.match(content, at)
    return (int(found[1]), int(found[2])) if found else None


def next_beginning(content: bytes | memoryview, at: int) -> int | None:
    """Where the first value after `at` begins."""
    found = _HEAD.search(content, at + 1)
    return found.start() if found else None


class Outcome(Enum):
    PENDING = "invoke"
    OK = "ok"
    # It has certainly not happened, and never will.
    FAILED = "fail"
    # It may have happened, or may yet.
    UNKNOWN = "info"


@dataclass(frozen=True, slots=True)
class Moment:
    number: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Fence:
    """An append that is to happen only if the register is `expected`, or there is none at all, and sets it."""

    expected: str | None
    sets: str | None


@dataclass(eq=False, slots=True)
class Append:
    client: str
    journal: str
    number: int
    # Empty for a barrier.
    content: bytes
    invoked: Moment
    fence: Fence | None = None
    # The append, of unknown outcome, whose content this one sends again.
    repeats: Append | None = None
    outcome: Outcome = Outcome.PENDING
    completed: Moment | None = None
    begin: int = -1
    end: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that a reader got. With `is_jump`, the broker said that it passed over what lies before them."""

    reader: str
    journal: str
    offset: int
    content: bytes
    broker: str
    read: Moment
    is_jump: bool = False

    @property
    def end(self) -> int:
        return self.offset + len(self.content)


@dataclass(eq=False, slots=True)
class HeadRead:
    """A read of metadata alone. `replica` names one life of one replica, such as ``b1/3/17``."""

    replica: str
    journal: str
    invoked: Moment
    head: int = -1
    completed: Moment | None = None


@dataclass(eq=False, slots=True)
class History:
    clock: Callable[[], float]
    appends: list[Append] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    heads: list[HeadRead] = field(default_factory=list)
    _moments: int = 0

    def moment(self) -> Moment:
        self._moments += 1
        return Moment(self._moments, self.clock())

    # Appends.

    def append(self, client: str, journal: str, length: int = 0, fence: Fence | None = None) -> Append:
        """One begins. Its content is that of the result."""
        number = len(self.appends) + 1
        return self._begun(Append(client, journal, number, value(number, length), self.moment(), fence))

    def barrier(self, client: str, journal: str) -> Append:
        return self._begun(Append(client, journal, len(self.appends) + 1, b"", self.moment()))

    def repeat(self, unknown: Append, client: str | None = None) -> Append:
        """The same content once more, as a caller may ask for who prefers twice to never."""
        number = len(self.appends) + 1
        moment = self.moment()
        first = unknown.repeats or unknown
        return self._begun(
            Append(client or unknown.client, unknown.journal, number, first.content, moment, unknown.fence, first)
        )

    def ok(self, append: Append, begin: int, end: int, journal: str | None = None) -> None:
        """`journal` is the key of the incarnation that took it, where it is only known now."""
        append.journal = journal or append.journal
        append.begin, append.end = begin, end
        self._settle(append, Outcome.OK, "")

    def failed(self, append: Append, why: str = "") -> None:
        self._settle(append, Outcome.FAILED, why)

    def unknown(self, append: Append, why: str = "") -> None:
        self._settle(append, Outcome.UNKNOWN, why)

    # Reads.

    def chunk(
        self, reader: str, journal: str, offset: int, content: bytes, broker: str, *, is_jump: bool = False
    ) -> Chunk:
        chunk = Chunk(reader, journal, offset, content, broker, self.moment(), is_jump)
        self.chunks.append(chunk)
        return chunk

    def head(self, replica: str, journal: str) -> HeadRead:
        """A metadata read begins."""
        head = HeadRead(replica, journal, self.moment())
        self.heads.append(head)
        return head

    def head_is(self, read: HeadRead, head: int) -> None:
        read.head, read.completed = head, self.moment()

    # For people, and for checkers.

    @property
    def unknown_share(self) -> float:
        """A run of which most is unknown proves little."""
        settled = [append for append in self.appends if append.outcome is not Outcome.PENDING]
        unknown = [append for append in settled if append.outcome is Outcome.UNKNOWN]
        return len(unknown) / len(settled) if settled else 0.0

    def journals(self) -> list[str]:
        return sorted({append.journal for append in self.appends} | {chunk.journal for chunk in self.chunks})

    def lines(self) -> Iterator[str]:
        """Everything, in the order in which it happened."""
        told: list[tuple[Moment, str]] = []
        for append in self.appends:
            told.append((append.invoked, f"{append.client} invoke append {append.number} to {append.journal}"))
            if append.completed:
                span = f"[{append.begin},{append.end})" if append.outcome is Outcome.OK else append.why
                told.append((append.completed, f"{append.client} {append.outcome.value} append {append.number} {span}"))
        for chunk in self.chunks:
            jump = " by a jump" if chunk.is_jump else ""
            told.append((chunk.read, f"{chunk.reader} read [{chunk.offset},{chunk.end}) of {chunk.broker}{jump}"))
        for head in self.heads:
            if head.completed:
                told.append((head.completed, f"{head.replica} has its head at {head.head}"))
        for moment, line in sorted(told, key=lambda item: item[0].number):
            yield f"{moment.time_s:10.4f} {line}"

    def _begun(self, append: Append) -> Append:
        self.appends.append(append)
        return append

    def _settle(self, append: Append, outcome: Outcome, why: str) -> None:
        assert append.outcome is Outcome.PENDING, "an append has one outcome"
        append.outcome, append.completed, append.why = outcome, self.moment(), why
