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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from fragment.spool import NO_EPOCH, CopyEnd, EpochMark
from protocol.errors import ValidationError
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

    @property
    def is_open(self) -> bool:
        return self.end is None


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
        return cls(message.create_revision, epochs, message.floor, message.void)

    def encoded(self) -> bytes:
        message = head_pb2.Head(create_revision=self.create_revision, floor=self.floor, void=self.is_void)
        message.epochs.extend(map(_held_epoch, self.epochs))
        return message.SerializeToString(deterministic=True)

    @property
    def last(self) -> Epoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def open_epoch(self) -> Epoch | None:
        last = self.last
        return last if last is not None and last.is_open else None

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
    return EpochTerms(head.mark(last), last.begin, not last.is_open, head.is_void, head.epochs[0].begin)


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
    return Start(last.begin, last.registers) if claim.spool_id in last.holders else None


def reset_start(head: DurableHead, offset: int, listed_end: int) -> Start | None:
    """Where an operator's word lets a journal go on whose end nobody can prove; None if it may not be there (DH-11)."""
    last = head.open_epoch
    if last is None or offset < max(listed_end, last.begin, head.floor):
        return None
    return Start(offset, last.registers, is_forced=True)


# What becomes of the record.


def opened(
    head: DurableHead | None, create_revision: int, start: Start, holders: Sequence[bytes], stored_through: int = 0
) -> DurableHead:
    """With the last epoch closed where all have agreed to go on, and a new one open from there (DH-1).

    `stored_through` is up to where the store has everything from where the oldest epoch on record begins.
    """
    epochs = () if head is None else tuple(_closed_at(epoch, start, head.is_void) for epoch in head.epochs)
    number = epochs[-1].number + 1 if epochs else 1
    begun = Epoch(number, start.offset, tuple(sorted(holders)), start.registers)
    return DurableHead(create_revision, (*_untrimmed((*epochs, begun), stored_through), begun))


def _closed_at(epoch: Epoch, start: Start, is_void: bool) -> Epoch:
    if not epoch.is_open:
        return epoch
    if is_void:
        return replace(epoch, end=epoch.begin, is_voided=True)
    return replace(epoch, end=start.offset, registers=start.registers, is_forced=start.is_forced)


def _untrimmed(epochs: tuple[Epoch, ...], stored_through: int) -> tuple[Epoch, ...]:
    """Those before the last without such as the store has all of, oldest first, and never for another reason (DH-12).

    Where one ended that was voided nobody knows, but it was not after the next one began.
    """
    at = 0
    while at + 1 < len(epochs) and max(epochs[at].end or 0, epochs[at + 1].begin) <= stored_through:
        at += 1
    return epochs[at:-1]


def closed(head: DurableHead, spool_id: bytes, copy: CopyEnd | None) -> DurableHead | None:
    """With its open epoch closed by a directory that will never answer in it again; None if that may not close it.

    `copy` is the undamaged one that the directory has of that epoch: without any it has nothing beyond where the epoch
    began, and so nothing was acknowledged in it (DH-7).
    """
    last = head.open_epoch
    if last is None or head.is_void or spool_id not in last.holders:
        return None
    is_copy = copy is not None and copy.epoch == head.mark(last)
    end, registers = (copy.end, copy.registers) if copy is not None and is_copy else (last.begin, last.registers)
    if end < max(last.begin, head.floor):
        return None
    ended = replace(last, end=end, registers=registers)
    return replace(head, epochs=(*head.epochs[:-1], ended), floor=0)


def floored(head: DurableHead, through: int) -> DurableHead | None:
    """With the word of a damaged copy of the open epoch that bytes below `through` are acknowledged; None if it is on
    record already, or the epoch is not open any more."""
    last = head.open_epoch
    if last is None or through <= max(head.floor, last.begin):
        return None
    return replace(head, floor=through)


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
    )


def _held_epoch(epoch: Epoch) -> head_pb2.Head.HeldEpoch:
    message = head_pb2.Head.HeldEpoch(
        number=epoch.number,
        begin=epoch.begin,
        holders=epoch.holders,
        registers=epoch.registers.to_proto() if epoch.registers.labels else None,
        forced=epoch.is_forced,
        voided=epoch.is_voided,
    )
    if epoch.end is not None:
        message.end = epoch.end
    return message
