"""Content: what a journal holds by all that was ever said of it, in answers, by readers, and in the store.

Where two accounts of one offset differ, that is a conflict. Whichever came first in the order of offsets is taken to
be the content, so that the rest can be looked at nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from tests.simulation.history import VALUE_END, Append, begins_at, next_beginning


class Source(Enum):
    ANSWER = "an append that was answered with ok"
    READER = "a reader"
    STORE = "an object of the store"


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody's word on what stands at an offset. `moment` is zero for what is true at the end."""

    offset: int
    content: bytes
    source: Source
    who: str
    moment: int = 0

    @property
    def end(self) -> int:
        return self.offset + len(self.content)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accounts that differ, first at `offset`."""

    offset: int
    one: Account
    other: Account


@dataclass(frozen=True, slots=True)
class Placement:
    """A value, whole or as far as the content goes."""

    offset: int
    number: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes that are no value, or not all of one."""

    offset: int
    what: str
    # At the edge of what anybody knows; whoever reads on may find the rest.
    is_at_edge: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    segments: Sequence[tuple[int, bytes]]
    conflicts: Sequence[Conflict]

    @classmethod
    def of(cls, accounts: Iterable[Account]) -> Content:
        ordered = sorted(accounts, key=attrgetter("offset"))
        segments: list[tuple[int, bytearray]] = []
        conflicts: list[Conflict] = []
        for account in ordered:
            if not account.content:
                continue
            begin, held = segments[-1] if segments else (0, bytearray())
            end = begin + len(held)
            if not segments or account.offset > end:
                segments.append((account.offset, bytearray(account.content)))
                continue
            overlap = min(end, account.end) - account.offset
            at = account.offset - begin
            if held[at : at + overlap] != account.content[:overlap]:
                conflicts.append(_conflict(ordered, account, held[at : at + overlap]))
            held += account.content[overlap:]
        return cls([(begin, bytes(held)) for begin, held in segments], conflicts)

    def parsed(self, appends: dict[int, Append]) -> tuple[list[Placement], list[Torn]]:
        """The values that stand in it, in the order of offsets, and what is none."""
        placements: list[Placement] = []
        torn: list[Torn] = []
        for begin, held in self.segments:
            _Parser(begin, held, appends, placements, torn).run()
        return placements, torn


def _conflict(accounts: Sequence[Account], account: Account, held: bytes | bytearray) -> Conflict:
    """With another account that says what is held at the first offset that differs."""
    differs = next(at for at, byte in enumerate(held) if byte != account.content[at])
    offset = account.offset + differs
    other = next(
        other
        for other in accounts
        if other.offset <= offset < other.end and other.content[offset - other.offset] == held[differs]
    )
    return Conflict(offset, other, account)


class _Parser:
    def __init__(
        self, begin: int, held: bytes, appends: dict[int, Append], placements: list[Placement], torn: list[Torn]
    ) -> None:
        self._begin = begin
        self._held = held
        self._appends = appends
        self._placements = placements
        self._torn = torn

    def run(self) -> None:
        at = 0
        while at < len(self._held):
            found = begins_at(self._held, at)
            at = self._value(at, *found) if found else self._piece(at)

    def _value(self, at: int, number: int, length: int) -> int:
        append = self._appends.get(number)
        there = self._held[at : at + length]
        if append is None or len(append.content) != length:
            self._torn.append(Torn(self._begin + at, f"a value {number} that nobody appended"))
        elif append.content.startswith(there):
            is_whole = len(there) == length
            self._placements.append(Placement(self._begin + at, number, is_whole))
            if not is_whole:
                self._torn.append(Torn(self._begin + at, f"the first {len(there)} bytes of {number}", is_at_edge=True))
            return at + length
        else:
            self._torn.append(Torn(self._begin + at, f"value {number} begins, and goes on as something else"))
        after = next_beginning(self._held, at)
        return len(self._held) if after is None else after

    def _piece(self, at: int) -> int:
        """What does not begin as a value does. At an edge of what is known that may be part of one."""
        after = next_beginning(self._held, at)
        end = len(self._held) if after is None else after
        close = self._held.find(VALUE_END) + len(VALUE_END) if at == 0 else 0
        values = (append.content for append in self._appends.values())
        if 0 < close <= end:
            end = close
            is_part = any(value.endswith(self._held[:end]) for value in values)
        elif after is None:
            piece = self._held[at:]
            is_part = any(piece in value if at == 0 else value.startswith(piece) for value in values)
        else:
            is_part = False
        what = f"{end - at} bytes that are {'part of a' if is_part else 'no'} value"
        self._torn.append(Torn(self._begin + at, what, is_at_edge=is_part))
        return end
