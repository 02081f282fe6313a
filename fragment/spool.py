"""Spool: the Fragment that is being written, as a value that decides and never waits.

Each step takes a Spool and returns the next one together with the effects to perform, in order. Whoever
performs them keeps the new Spool only once all have succeeded: a write that fails leaves the old one, and
with it the committed extent, as it was.

A primary sends content and then a proposal, which names the fragment as it will be. The proposal commits
the content, rolls it back (by naming the fragment as it is), begins a new fragment, or does not fit, and
then the answer says what this spool holds instead.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Protocol

from protocol.codec import CompressionCodec
from protocol.errors import GazetteError, Status
from protocol.fragment import NO_SUM, Fragment
from protocol.label import LabelSet


class ContentOrderError(GazetteError):
    """Content that does not follow on what came before it. The stream that sent it cannot go on."""


class Digest(Protocol):
    """A running SHA-1 that can be set back, by keeping a copy."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...
    def copy(self) -> Digest: ...


@dataclass(frozen=True, slots=True, order=True)
class EpochMark:
    """Which epoch of which incarnation of a journal a commit belongs to. Later ones are greater."""

    create_revision: int
    number: int


NO_EPOCH = EpochMark(0, 0)


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """How far the commits of one epoch go in a spool, and the journal's registers there."""

    epoch: EpochMark
    end: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Write:
    """Put `data` into the content file at `position`, over whatever a rolled back append left there."""

    position: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Sync:
    """Nothing that follows may happen before what was written is on disk, if the broker was asked for that."""


@dataclass(frozen=True, slots=True)
class Record:
    """Append a commit record of this spool to its log."""

    spool: Spool


@dataclass(frozen=True, slots=True)
class Completed:
    """Nothing more will be written to this spool: it is the persister's now."""

    spool: Spool
    # Whether its epoch is over, or a later record of it is on disk. If not, this spool's log outlives its upload:
    # without any record the directory would seem never to have committed in that epoch.
    is_superseded: bool = False


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A fragment that was begun but never held a byte is given up, with whatever files it has."""


@dataclass(frozen=True, slots=True)
class Visible:
    """Readers may have the bytes of this fragment."""

    fragment: Fragment


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a proposal. With a mismatch, what is held here instead."""

    status: Status
    fragment: Fragment | None = None
    registers: LabelSet | None = None


Effect = Write | Sync | Record | Completed | Abandoned | Visible | Reply

_SYNC, _OK = Sync(), Reply(Status.OK)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a primary proposes the spool to be."""

    fragment: Fragment
    registers: LabelSet
    now_ns: int
    epoch: EpochMark = NO_EPOCH
    # Bytes below are known to be with every holder. None: this primary does not tell, as Go's do not, and a
    # commit is visible where it is applied.
    acked_through: int | None = None


@dataclass(frozen=True, slots=True)
class Spool:
    """What is committed, and what follows it but is not."""

    fragment: Fragment
    registers: LabelSet = LabelSet()
    # Bytes of content past the committed end.
    pending: int = 0
    # Unix nanoseconds of the fragment's first commit here; None before it.
    first_append_ns: int | None = None
    # Of the last commit that came with an epoch. To go on at another offset does not move it.
    copy: CopyEnd | None = None
    acked_through: int | None = None
    # Commits that are not yet known to be with every holder, oldest first: only the acknowledged may be read.
    unseen: tuple[Fragment, ...] = ()
    # Of the committed bytes, and of those with the pending ones. Never updated in place.
    _committed: Digest = field(default_factory=hashlib.sha1, repr=False, compare=False)
    _running: Digest = field(default_factory=hashlib.sha1, repr=False, compare=False)

    @classmethod
    def fresh(cls, journal: str) -> Spool:
        """As a replica starts: empty, at zero, and not compressed until a proposal says so."""
        return cls(Fragment(journal, 0, 0, NO_SUM, CompressionCodec.NONE))

    @property
    def epoch(self) -> EpochMark:
        """That of the last commit."""
        return NO_EPOCH if self.copy is None else self.copy.epoch

    @property
    def _held_through(self) -> int:
        """Where what is committed here ends, be the spool there or not."""
        end = self.fragment.end
        return end if self.copy is None else max(end, self.copy.end)

    def next(self) -> Fragment:
        """The fragment as it would be if the pending content were committed."""
        held = self.fragment
        if not self.pending:
            return held
        return Fragment(held.journal, held.begin, held.end + self.pending, self._running.digest(), held.codec)

    def content(self, data: bytes | memoryview, content_delta: int) -> tuple[Spool, Write]:
        """With `data` after the pending content. The hashing makes this the one step that takes time."""
        if content_delta != self.pending:
            raise ContentOrderError(
                f"content of {self.fragment.journal} is out of order: by its own word {content_delta} bytes of "
                f"this append came before it, and {self.pending} did"
            )
        running = self._running.copy()
        running.update(data)
        position = self.fragment.content_length + self.pending
        return self._evolved(self.pending + len(data), running), Write(position, data)

    def rolled_back(self) -> Spool:
        """Without the pending content."""
        return self._evolved(0, self._committed) if self.pending else self

    def propose(self, proposal: Proposal) -> tuple[Spool, tuple[Effect, ...]]:
        """The spool after a proposal, and what is to be done; the last effect is the Reply."""
        rolled, effects = self._rolled(proposal) if self._rolls(proposal.fragment) else (self, ())
        if rolled.is_at(proposal):
            spool, shown = rolled.rolled_back().acked(proposal.acked_through)
            return spool, (*effects, *shown, _OK)
        if rolled.is_next(proposal.fragment):
            committed = rolled.committed_as(proposal)
            spool, shown = committed.acked(proposal.acked_through)
            # The content first: a record on disk whose bytes are not is damage.
            return spool, (*effects, _SYNC, Record(spool), _SYNC, *shown, _OK)
        return rolled, (*effects, Reply(Status.PROPOSAL_MISMATCH, rolled.fragment, rolled.registers))

    def is_at(self, proposal: Proposal) -> bool:
        """Whether the proposal is what is committed here already."""
        proposed = proposal.fragment
        return proposed.end == self.fragment.end and proposed == self.fragment and proposal.registers == self.registers

    def is_next(self, proposed: Fragment) -> bool:
        """Whether the proposal is what is committed here with the pending content, ``next()``, and there is any."""
        held = self.fragment
        return (
            self.pending > 0
            and proposed.end == held.end + self.pending
            and proposed.begin == held.begin
            and proposed.codec == held.codec
            and proposed.journal == held.journal
            # A fragment in a store is not one that is being written.
            and not (proposed.backing_store or proposed.mod_time or proposed.path_postfix)
            and proposed.sum == self._running.digest()
        )

    def acked(self, through: int | None) -> tuple[Spool, tuple[Visible, ...]]:
        """After the primary said that all holders have the bytes below `through`, or None: it does not tell.

        This spool is one of theirs, and what is acknowledged they all have (DH-3): a word of bytes that are beyond what
        is held here is no such word. Whoever says so is not believed at all.
        """
        if through is not None and through > self._held_through:
            through = self.acked_through or 0
        acked = _later(self.acked_through, through)
        seen = self.unseen if acked is None else tuple(held for held in self.unseen if held.end <= acked)
        if not seen and acked == self.acked_through:
            return self, ()
        # Of each fragment the longest commit says it all.
        longest = {held.begin: held for held in seen}
        spool = Spool(
            self.fragment,
            self.registers,
            self.pending,
            self.first_append_ns,
            self.copy,
            acked,
            self.unseen[len(seen) :],
            self._committed,
            self._running,
        )
        return spool, tuple(Visible(held) for held in longest.values())

    def complete(self) -> tuple[Spool, tuple[Effect, ...]]:
        """After the replica was given up: an empty spool at the same end, and this one handed on."""
        return self._emptied(replace(self.fragment, begin=self.fragment.end, sum=NO_SUM)), self._handed_on()

    def retired(self) -> tuple[Spool, tuple[Effect, ...]]:
        """Handed on, for a spool that knows nothing of the journal: others decide where it goes on."""
        return Spool.fresh(self.fragment.journal), self._handed_on()

    def unplaced(self) -> tuple[Spool, tuple[Effect, ...]]:
        """As it takes part in a synchronisation: an empty spool has no place, and counts by its last commit alone.

        An earlier synchronisation may have moved it on and failed, to where nobody has any bytes.
        """
        if self.fragment.content_length or not self.fragment.end:
            return self.rolled_back(), ()
        fresh = Spool.fresh(self.fragment.journal)
        return replace(fresh, copy=self.copy, acked_through=self.acked_through, unseen=self.unseen), self._handed_on()

    def _evolved(self, pending: int, running: Digest) -> Spool:
        # Spelled out, as in `committed_as`: `dataclasses.replace` takes five times as long, for every chunk.
        return Spool(
            self.fragment,
            self.registers,
            pending,
            self.first_append_ns,
            self.copy,
            self.acked_through,
            self.unseen,
            self._committed,
            running,
        )

    def _rolls(self, proposed: Fragment) -> bool:
        ahead = proposed.end > self.fragment.end + self.pending
        here = proposed.end == self.fragment.end and proposed.begin == proposed.end
        return ahead or here

    def _rolled(self, proposal: Proposal) -> tuple[Spool, tuple[Effect, ...]]:
        proposed = proposal.fragment
        empty = replace(self.fragment, begin=proposed.end, end=proposed.end, sum=NO_SUM, codec=proposed.codec)
        # Strictly ahead of what is committed here, the primary's registers are the only ones there are.
        registers = proposal.registers if proposed.end > self.fragment.end else self.registers
        spool = replace(self._emptied(empty), registers=registers)
        if empty.begin == self.fragment.begin:
            return spool, ()
        is_in_epoch = self.copy is not None and self.copy.epoch == proposal.epoch and self.copy.end == empty.begin
        if not is_in_epoch:
            # A record here would say that the bytes up to there are held.
            return spool, self._handed_on(is_over=self.epoch < proposal.epoch)
        # Inside an epoch the directory must at no time seem to have no commit of it.
        whole = Completed(self.rolled_back(), is_superseded=True) if self.fragment.content_length else Abandoned()
        return spool, (Record(spool), _SYNC, whole)

    def _handed_on(self, *, is_over: bool = False) -> tuple[Effect, ...]:
        # Even without content, what was recorded in an epoch stays until the epoch is known to be closed: by a proposal
        # of a later one, at the latest.
        keep = self.fragment.content_length or (self.epoch != NO_EPOCH and not is_over)
        return (Completed(self.rolled_back(), is_superseded=is_over),) if keep else (Abandoned(),)

    def _emptied(self, empty: Fragment) -> Spool:
        return Spool(empty, self.registers, copy=self.copy, acked_through=self.acked_through, unseen=self.unseen)

    def committed_as(self, proposal: Proposal) -> Spool:
        return Spool(
            proposal.fragment,
            proposal.registers,
            0,
            proposal.now_ns if self.first_append_ns is None else self.first_append_ns,
            _copy_end(proposal),
            self.acked_through,
            (*self.unseen, proposal.fragment),
            self._running,
            self._running,
        )


def _copy_end(proposal: Proposal) -> CopyEnd | None:
    if proposal.epoch == NO_EPOCH:
        return None
    return CopyEnd(proposal.epoch, proposal.fragment.end, proposal.registers)


def _later(known: int | None, told: int | None) -> int | None:
    """Acknowledged bytes stay so: an older word does not take a newer one back. A primary that does not tell is one
    of Go's, whose commits are visible where they are applied."""
    return told if known is None or told is None else max(known, told)
