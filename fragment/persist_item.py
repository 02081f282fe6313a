"""Item: a completed spool on its way to the store, and what is known of it so far."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from fragment.spool import NO_EPOCH, EpochMark, Spool
from protocol.fragment import Fragment


class SpoolFiles(Protocol):
    """What of a spool's files has a say in what becomes of them. To read and to remove them is for shells."""

    @property
    def last_spec(self) -> bytes: ...

    @property
    def has_ended(self) -> bool: ...


FileT = TypeVar("FileT", bound=SpoolFiles)
FileT_co = TypeVar("FileT_co", bound=SpoolFiles, covariant=True)


class Completed(Protocol[FileT_co]):
    """What is taken over: a CompletedSpool."""

    @property
    def spool(self) -> Spool: ...

    @property
    def file(self) -> FileT_co: ...

    @property
    def is_superseded(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class CommitAt:
    """The greatest commit at or below `end`. Where that is, and its sum, the log on disk tells."""

    end: int


Decided = Fragment | CommitAt | None
"""What of a spool is part of its journal; None if nothing is."""


class Removal(Enum):
    """Which of its files are of no more use."""

    NOTHING = "all of them stay"
    CONTENT = "the content is in a store; the log is the last word on an epoch that may be open"
    ALL = "nobody needs them"


@dataclass(eq=False, slots=True)
class Item(Generic[FileT]):
    spool: Spool
    file: FileT
    create_revision: int
    # Whether its epoch is over, or a later record of it is on disk: then its log may go with its content.
    is_superseded: bool = False
    # Whoever wrote it, until it gives it up.
    owner: object = None
    # Kept from one attempt to the next: what is stored is not stored again, what was removed not removed.
    stored: Fragment | None = None
    removed: Removal = Removal.NOTHING
    # Where the epoch was closed, if that is below the end: the rest was never part of the journal.
    cut_at: int | None = None
    # Up to where its content is sound, if it is damaged.
    sound_through: int | None = None
    # Whether the store has it already, from another.
    is_spare: bool = False
    is_closed: bool = False
    is_counted_off: bool = False
    # Whether it was given up with bytes of which nobody here can tell whether they were acknowledged: its files stay.
    is_left: bool = False
    # Whether nobody can tell if it is part of the journal: it must not get in the way of what is.
    is_aside: bool = False
    # What of it is part of a journal that has no store: its files are all there is of it, and stay.
    resident: Fragment | None = None

    @property
    def fragment(self) -> Fragment:
        return self.spool.fragment

    @property
    def place(self) -> tuple[tuple[str, int], int]:
        """Which incarnation of which journal it is of, and where it begins there."""
        return (self.fragment.journal, self.create_revision), self.fragment.begin

    @property
    def mark(self) -> EpochMark:
        """The epoch whose acknowledgements and whose close decide this spool."""
        return self.spool.epoch

    @property
    def needs_no_log(self) -> bool:
        return self.mark == NO_EPOCH or self.is_superseded or self.is_closed

    @property
    def is_shown(self) -> bool:
        """Whether readers may have what it holds, once it is decided, without a look at its log."""
        if self.removed is not Removal.NOTHING:
            return False
        if self.resident is not None:
            return not self.is_aside
        is_whole = self.cut_at is None and self.sound_through is None and not self.is_spare
        return is_whole and bool(self.fragment.content_length)

    def decided(self) -> Decided:
        """What of it is part of the journal."""
        end = self.fragment.end if self.cut_at is None else self.cut_at
        if self.sound_through is not None:
            end = min(end, self.sound_through)
        if self.is_spare or end <= self.fragment.begin:
            return None
        return self.fragment if end >= self.fragment.end else CommitAt(end)

    def dropped_from(self, decided: Fragment | None) -> int | None:
        """Where what is dropped of it begins, if anything is: to the end of its fragment."""
        kept_to = decided.end if decided is not None else self.fragment.begin
        return None if kept_to == self.fragment.end or self.is_spare else kept_to

    def removal(self) -> Removal:
        """What is to be removed that is not yet, now that it is stored or is not to be."""
        wanted = self._wanted_removal()
        return Removal.NOTHING if self.removed in (wanted, Removal.ALL) else wanted

    def _wanted_removal(self) -> Removal:
        if self.is_left:
            return Removal.NOTHING
        if self.needs_no_log:
            return Removal.ALL
        # The directory must not seem to have no commit of an epoch that may still be open. An ended spool takes no
        # further record, and a damaged one must not seem to be sound: they stay as they are.
        is_intact = not self.file.has_ended and self.sound_through is None
        return Removal.CONTENT if is_intact else Removal.NOTHING
