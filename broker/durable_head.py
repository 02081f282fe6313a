"""DurableHead: the epochs of a journal, by which acknowledged bytes outlive every broker.

An epoch is opened by a primary whose route is in step. It names its holders, which are spool directories and not
processes, and is on record in etcd before anything is acknowledged in it, which takes all of them. So the copy of a
holder that will never answer in it again, because it restarted or gave its replica up, has every byte that was or ever
will be acknowledged in it: such a copy may close the epoch where it ends. What any copy holds beyond that was never
acknowledged and never shown, and is cut.

All rules are here, and nothing else is: brokers, their start and the simulator perform what they say. The numbers DH-1
to DH-14 are those of the design that they follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from fragment.spool import NO_EPOCH, CopyEnd, EpochMark
from protocol.errors import ValidationError
from protocol.fragment import HEAD_MAX
from protocol.gen import head_pb2
from protocol.label import LabelSet

EPOCHS_WARN = 64
"""Epochs on record above which somebody should look why the store does not get what they hold."""

_PREFIX = "pygazette/heads"
"""It must not begin with the root of the cluster: Gazette's own brokers watch all that does."""


def heads_prefix(root: str) -> str:
    return f"{_PREFIX}{root}/"


def head_key(root: str, journal: str) -> str:
    return heads_prefix(root) + journal


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    begin: int
    # Ids of the spool directories that have every acknowledged byte of it.
    holders: tuple[bytes, ...]
    # Those at begin while it is open, those at end once it is closed.
    registers: LabelSet = LabelSet()
    end: int | None = None
    # Closed by an operator's word: what is missing below its end may be missing for ever.
    is_forced: bool = False
    # It was open when a member without epochs took part: nobody knows where it ended.
    is_voided: bool = False
    # Of the holders, those that cannot tell where it ends although they are there: what they have is damaged.
    damaged: tuple[bytes, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.end is None

    @property
    def witnesses(self) -> frozenset[bytes]:
        """The holders each of which can tell where it ends."""
        return frozenset(self.holders).difference(self.damaged)


@dataclass(frozen=True, slots=True)
class DurableHead:
    """What is on record of a journal."""

    # CreateRevision of the journal's item: its incarnation.
    create_revision: int
    # Oldest first; all but the last are closed.
    epochs: tuple[Epoch, ...] = ()
    # Of the open epoch: bytes below are known to be acknowledged, by the word of a damaged copy.
    floor: int = 0
    # Whether a member without epochs took part since the last one was opened.
    is_void: bool = False
    # Retention removes bytes below: that a store lacks them does not mean that somebody is still to bring them.
    pruned_through: int = 0

    @classmethod
    def decoded(cls, raw: bytes) -> DurableHead:
        try:
            message = head_pb2.Head.FromString(raw)
        except DecodeError as error:
            raise ValidationError("the record of a journal's head in etcd is not readable", "Head") from error
        epochs = tuple(map(_epoch, message.epochs))
        numbers = [epoch.number for epoch in epochs]
        if numbers != sorted(set(numbers)) or any(epoch.is_open for epoch in epochs[:-1]):
            raise ValidationError("epochs must ascend, and all but the last be closed", "Head", "Epochs")
        return cls(message.create_revision, epochs, message.floor, message.void, message.pruned_through)

    def encoded(self) -> bytes:
        message = head_pb2.Head(
            create_revision=self.create_revision,
            floor=self.floor,
            void=self.is_void,
            pruned_through=self.pruned_through,
        )
        message.epochs.extend(map(_held_epoch, self.epochs))
        return message.SerializeToString(deterministic=True)

    @property
    def last(self) -> Epoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def open_epoch(self) -> Epoch | None:
        last = self.last
        return last if last is not None and last.is_open else None

    @property
    def oldest_begin(self) -> int:
        """Below it the store has all that there is."""
        return max(self.epochs[0].begin, self.pruned_through) if self.epochs else 0

    def mark(self, epoch: Epoch) -> EpochMark:
        return EpochMark(self.create_revision, epoch.number)

    def of(self, create_revision: int) -> DurableHead | None:
        """Itself, if it is of that incarnation: a new one ignores the old record, and replaces it (DH-13)."""
        return self if self.create_revision == create_revision else None


# What primaries and their peers tell each other.


@dataclass(frozen=True, slots=True)
class EpochTerms:
    """What a primary tells its peers: with a synchronisation the last epoch on record, else the open one."""

    mark: EpochMark
    begin: int = 0
    # With a synchronisation: whether no copy of it takes part, and whether all live ones do, as in Gazette.
    is_closed: bool = False
    is_void: bool = False
    # Where the oldest epoch on record begins: the store may not have its bytes yet.
    oldest_begin: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a spool says of itself when it is synchronised with."""

    # Empty if this directory has commits of the epoch that are not in the spool.
    spool_id: bytes
    copy: CopyEnd | None = None


def terms(head: DurableHead | None, create_revision: int) -> EpochTerms:
    """For a synchronisation. Without a record, an epoch before the first is named, as one that is closed."""
    last = head.last if head is not None else None
    if head is None or last is None:
        is_void = head is not None and head.is_void
        return EpochTerms(EpochMark(create_revision, 0), is_closed=True, is_void=is_void)
    return EpochTerms(head.mark(last), last.begin, not last.is_open, head.is_void, head.oldest_begin)


def takes_part(told: EpochTerms, copy: CopyEnd) -> bool:
    """Whether a live copy is one of the last, open epoch; any other is retired before its owner joins (DH-5)."""
    return told.is_void or (copy.epoch == told.mark and not told.is_closed)


def is_stale(told: EpochTerms, copy: CopyEnd) -> bool:
    """Whether the primary has not heard of the epoch that this copy is of: it has to read the record again."""
    same = copy.epoch.create_revision == told.mark.create_revision
    return copy.epoch.create_revision > told.mark.create_revision or (same and copy.epoch.number > told.mark.number)


# Where a journal goes on.


@dataclass(frozen=True, slots=True)
class Start:
    """Where the next epoch begins, and the registers there."""

    offset: int
    registers: LabelSet = LabelSet()
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Unproven:
    """The last epoch is open, and none of its holders is there: nobody knows where the journal ends (DH-6)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Outdated:
    """A peer has commits of a later epoch than the record has: it has changed since it was read."""


def start_of(head: DurableHead | None, create_revision: int, claims: Iterable[Claim]) -> Start | Unproven | Outdated:
    """By the claims of all members of a route, our own included (DH-5, DH-6)."""
    held = list(claims)
    told = terms(head, create_revision)
    if any(claim.copy is not None and is_stale(told, claim.copy) for claim in held):
        return Outdated()
    last = head.last if head is not None else None
    if head is None or last is None:
        return Start(0)
    if last.end is not None:
        return Start(last.end, last.registers)
    starts = [start for claim in held if (start := _start_with(head, last, claim)) is not None]
    return max(starts, key=lambda start: start.offset, default=Unproven(last))


def _start_with(head: DurableHead, last: Epoch, claim: Claim) -> Start | None:
    copy = claim.copy
    if copy is not None and copy.epoch == head.mark(last):
        return Start(copy.end, copy.registers)
    # The opener may have died before its first proposal: whoever is listed and has no commit of it was in step then.
    return Start(last.begin, last.registers) if claim.spool_id in last.witnesses else None


def least_start(head: DurableHead | None) -> Start | None:
    """Where a journal goes on at the least that members without epochs took part in, of whom none may be left to tell:
    what is on record was acknowledged before they came (section 6)."""
    last = head.last if head is not None else None
    return None if head is None or last is None else Start(max(last.begin, last.end or 0, head.floor), last.registers)


def reset_start(
    head: DurableHead, offset: int, listed_end: int, change: Callable[[LabelSet], LabelSet] = lambda held: held
) -> Start | None:
    """Where an operator's word lets a journal go on whose end nobody can prove; None if it may not be there (DH-11).

    The registers are those that the open epoch began with, and `change` what the operator makes of them.
    """
    last = head.open_epoch
    if last is None or not max(listed_end, last.begin, head.floor) <= offset <= HEAD_MAX:
        return None
    return Start(offset, change(last.registers), is_forced=True)


# What becomes of the record.

Extents = Sequence[tuple[int, int]]
"""Ranges [begin, end) that a store has without a gap, ascending, none of which touches the next."""


def opened(
    head: DurableHead | None, create_revision: int, start: Start, holders: Sequence[bytes], stored: Extents = ()
) -> DurableHead:
    """With the last epoch closed where all have agreed to go on, and a new one open from there (DH-1)."""
    if head is None:
        return DurableHead(create_revision, (Epoch(1, start.offset, tuple(sorted(holders)), start.registers),))
    epochs = tuple(_closed_at(epoch, start, head.is_void) for epoch in head.epochs)
    number = epochs[-1].number + 1 if epochs else 1
    begun = Epoch(number, start.offset, tuple(sorted(holders)), start.registers)
    made = DurableHead(create_revision, (*epochs, begun), pruned_through=head.pruned_through)
    return trimmed(made, stored) or made


def _closed_at(epoch: Epoch, start: Start, is_void: bool) -> Epoch:
    if not epoch.is_open:
        return epoch
    if is_void:
        return replace(epoch, end=epoch.begin, is_voided=True)
    return replace(epoch, end=start.offset, registers=start.registers, is_forced=start.is_forced)


def trimmed(head: DurableHead, stored: Extents) -> DurableHead | None:
    """Without the closed epochs of which the store has all, oldest first, and never for another reason (DH-12); None if
    there are none of these.

    One that an operator closed beyond its bytes stays, since whoever brings them has to know where they were cut. It
    does not keep those after it: no spool went on from it to the next, and so no copy of theirs has bytes before it.
    """
    kept: list[Epoch] = []
    at = 0
    while at + 1 < len(head.epochs):
        epoch = head.epochs[at]
        if not _is_stored(epoch, head.epochs[at + 1], head.pruned_through, stored):
            if not epoch.is_forced:
                break
            kept.append(epoch)
        at += 1
    return None if len(kept) == at else replace(head, epochs=(*kept, *head.epochs[at:]))


def _is_stored(epoch: Epoch, after: Epoch, pruned_through: int, stored: Extents) -> bool:
    # Where one ended that was voided nobody knows, but it was not after the next one began.
    begin, end = max(epoch.begin, pruned_through), max(epoch.end or 0, after.begin)
    return end <= begin or any(of[0] <= begin and end <= of[1] for of in stored)


def pruned(head: DurableHead, through: int) -> DurableHead | None:
    """Before retention removes what the store has below `through`; None if it is on record, or of no interest."""
    if not head.epochs or through <= max(head.pruned_through, head.epochs[0].begin):
        return None
    return replace(head, pruned_through=through)


def closed(head: DurableHead, spool_id: bytes, copy: CopyEnd | None) -> DurableHead | None:
    """With its open epoch closed by a directory that will never answer in it again; None if that may not close it.

    `copy` is the undamaged one that the directory has of that epoch: without any it has nothing beyond where the epoch
    began, and so nothing was acknowledged in it (DH-7).
    """
    last = head.open_epoch
    if last is None or head.is_void or spool_id not in last.witnesses:
        return None
    is_copy = copy is not None and copy.epoch == head.mark(last)
    end, registers = (copy.end, copy.registers) if copy is not None and is_copy else (last.begin, last.registers)
    if end < max(last.begin, head.floor):
        return None
    ended = replace(last, end=end, registers=registers)
    return replace(head, epochs=(*head.epochs[:-1], ended), floor=0)


def damaged(head: DurableHead, spool_id: bytes, acked_through: int) -> DurableHead | None:
    """With the word of a holder of the open epoch that its copy proves no end, and that bytes below `acked_through` are
    acknowledged all the same; None if that is on record already, or the epoch is not open any more."""
    last = head.open_epoch
    if last is None:
        return None
    floor = max(head.floor, acked_through) if acked_through > last.begin else head.floor
    if spool_id in last.witnesses:
        last = replace(last, damaged=tuple(sorted((*last.damaged, spool_id))))
    changed = replace(head, epochs=(*head.epochs[:-1], last), floor=floor)
    return None if changed == head else changed


def voided(head: DurableHead | None, create_revision: int) -> DurableHead | None:
    """As it has to be before a member without epochs may take part; None if it is so already."""
    if head is None:
        return DurableHead(create_revision, is_void=True)
    return None if head.is_void else replace(head, is_void=True)


# What becomes of a copy that is not offered any more (DH-8, DH-13).


@dataclass(frozen=True, slots=True)
class CutAt:
    """Its epoch was closed here: what it has beyond was never part of the journal."""

    end: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The store has all of it."""


@dataclass(frozen=True, slots=True)
class AckedOnly:
    """It counts as far as it knows to be acknowledged: its journal is gone, or nobody kept count of epochs."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Its epoch is open."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is ahead of the record, or there is none: it is kept as it is, and somebody has to look at it."""


Fate = CutAt | Stored | AckedOnly | Undecided | Unknown


def fate(head: DurableHead | None, mark: EpochMark) -> Fate:
    """Of a copy whose last commit is of this epoch."""
    if mark == NO_EPOCH:
        return AckedOnly()
    if head is None or head.create_revision < mark.create_revision:
        return Unknown()
    if head.create_revision > mark.create_revision:
        return AckedOnly()
    last = head.last
    if last is None or mark.number > last.number:
        return AckedOnly() if head.is_void else Unknown()
    epoch = next((epoch for epoch in head.epochs if epoch.number == mark.number), None)
    if epoch is None:
        return Stored()
    if epoch.is_voided or (epoch.is_open and head.is_void):
        return AckedOnly()
    return Undecided() if epoch.end is None else CutAt(epoch.end)


def _epoch(message: head_pb2.Head.HeldEpoch) -> Epoch:
    return Epoch(
        message.number,
        message.begin,
        tuple(message.holders),
        LabelSet.from_proto(message.registers),
        message.end if message.HasField("end") else None,
        message.forced,
        message.voided,
        tuple(message.damaged),
    )


def _held_epoch(epoch: Epoch) -> head_pb2.Head.HeldEpoch:
    message = head_pb2.Head.HeldEpoch(
        number=epoch.number,
        begin=epoch.begin,
        holders=epoch.holders,
        registers=epoch.registers.to_proto() if epoch.registers.labels else None,
        forced=epoch.is_forced,
        voided=epoch.is_voided,
        damaged=epoch.damaged,
    )
    if epoch.end is not None:
        message.end = epoch.end
    return message
