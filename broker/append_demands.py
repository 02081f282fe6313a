"""What an append's request and its journal demand before content is taken, in the order in which clients are told."""

from __future__ import annotations

from dataclasses import dataclass

from broker.append_effect import Fail
from broker.append_event import AppendOpening, Ready
from broker.durable_head import Start, reset_start
from broker.pipeline import Pipeline
from broker.proposal import extent
from broker.resolution import Resolution
from fragment.index import Summary
from protocol import registers
from protocol.errors import PreconditionError, Status, ValidationError
from protocol.fragment import HEAD_MAX
from protocol.journal import FragmentPolicy, SuspendLevel, SuspendMode
from protocol.label import LabelSet

_REGISTERS_MAX = 64 << 10
"""They are sent with every proposal, and written with every commit."""

UNFLUSHED_AGE_S = 24 * 60 * 60
"""How old the last fragment of a journal without a flush interval has to be for the journal to count as idle."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The pipeline broke while the append waited. Nothing was sent, so that there is no need to tell the client."""


@dataclass(frozen=True, slots=True)
class Refuse:
    status: Status
    registers: LabelSet | None = None
    store_health_error: str = ""


@dataclass(frozen=True, slots=True)
class GoOnAt:
    """Synchronise there, and then see again."""

    start: Start


@dataclass(frozen=True, slots=True)
class Confirm:
    """The store has more than the members, and the client names its end. It may only know that from earlier: an
    operator's word is an append without content."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Write to the spec that the journal is suspended so far, or not any more."""

    level: SuspendLevel


@dataclass(frozen=True, slots=True)
class Stream:
    """Nothing is in the way of the content."""

    # Of the journal.
    extent: Summary


Demand = Rebuild | Refuse | Fail | GoOnAt | Confirm | Suspend | Stream


def demanded(opening: AppendOpening, resolution: Resolution, pipeline: Pipeline, ready: Ready, now_ns: int) -> Demand:
    head = pipeline.head
    if pipeline.is_broken:
        return Rebuild()
    if ready.unhealthy is not None:
        return Refuse(Status.FRAGMENT_STORE_UNHEALTHY, store_health_error=ready.unhealthy)
    if opening.check_registers and not registers.passes(head.registers, opening.check_registers):
        return Refuse(Status.REGISTER_MISMATCH, registers=head.registers)
    if _size(registers.changed(head.registers, opening.subtract_registers, opening.union_registers)) > _REGISTERS_MAX:
        rule = f"the registers of a journal may have {_REGISTERS_MAX} bytes in all"
        return Fail(ValidationError(rule, "UnionRegisters"))
    if head.end < resolution.suspend.offset:
        return _to_suspended(resolution.suspend.offset, head.registers)
    known = extent(ready.summary, head.fragment)
    is_elsewhere = head.end != max(head.end, known.end)
    # A journal that is only read has barriers alone, which need no place to go.
    if opening.offset is None and is_elsewhere and resolution.spec.may_write:
        return Refuse(Status.INDEX_HAS_GREATER_OFFSET)
    if opening.offset is not None and opening.offset != max(head.end, known.end):
        return Refuse(Status.WRONG_APPEND_OFFSET)
    if opening.offset is not None and is_elsewhere:
        # By Gazette's rules the offset alone is a word that the bytes in between are in the store, or lost.
        start = Start(opening.offset, head.registers, is_forced=True)
        return Confirm() if resolution.keeps_epochs else GoOnAt(start)
    return _by_suspension(opening.suspend, resolution, pipeline, known, now_ns)


def reset_demanded(opening: AppendOpening, pipeline: Pipeline, ready: Ready) -> Rebuild | Refuse | GoOnAt:
    """By an operator, of a journal whose end nobody who is there can prove, or of which the store has more than the
    members: stores and members were just listed."""
    record, offset = pipeline.record, opening.offset
    assert record is not None
    assert offset is not None
    if pipeline.is_broken:
        return Rebuild()

    def changed(held: LabelSet) -> LabelSet:
        return registers.changed(held, opening.subtract_registers, opening.union_registers)

    if pipeline.is_open:
        if offset != max(pipeline.head.end, ready.summary.end) or offset > HEAD_MAX:
            return Refuse(Status.WRONG_APPEND_OFFSET)
        return GoOnAt(Start(offset, changed(pipeline.head.registers), is_forced=True))
    last = record.open_epoch
    assert last is not None
    # One that is there closes the epoch by itself, unless it has said that it cannot.
    if ready.spool_ids & last.witnesses:
        return Refuse(Status.INDEX_HAS_GREATER_OFFSET)
    start = reset_start(record, offset, ready.summary.end, changed)
    return Refuse(Status.WRONG_APPEND_OFFSET) if start is None else GoOnAt(start)


def _to_suspended(offset: int, held: LabelSet) -> Fail | GoOnAt:
    """Where the journal was suspended, which Gazette lets a spec say as it likes."""
    if offset > HEAD_MAX:
        rule = f"the spec of the journal has it suspended beyond {HEAD_MAX}: apply one that does not"
        return Fail(PreconditionError(rule))
    return GoOnAt(Start(offset, held, is_forced=True))


def _by_suspension(
    mode: SuspendMode, resolution: Resolution, pipeline: Pipeline, known: Summary, now_ns: int
) -> Refuse | GoOnAt | Suspend | Stream:
    level, head = resolution.suspend.level, pipeline.head
    if mode is SuspendMode.RESUME and level != SuspendLevel.NONE:
        return Suspend(SuspendLevel.NONE)
    if mode is SuspendMode.NO_RESUME and level != SuspendLevel.NONE:
        return Refuse(Status.SUSPENDED)
    if mode not in (SuspendMode.IF_FLUSHED, SuspendMode.NOW):
        return Stream(known)
    # An index is not empty that has yet to be told of bytes, be they in a fragment that is closed already.
    if known.begin == known.end and pipeline.shown_through >= head.end:
        return Suspend(SuspendLevel.FULL)
    if level != SuspendLevel.NONE:
        return Refuse(Status.SUSPENDED)
    if mode is SuspendMode.IF_FLUSHED and not _is_flushed(resolution.spec.fragment, known, now_ns):
        return Stream(known)
    if head.fragment.content_length:
        # What the spool holds goes to the store now: nobody will append, and so close the fragment, for long.
        return GoOnAt(Start(head.end, head.registers))
    return Suspend(SuspendLevel.PARTIAL)


def _is_flushed(policy: FragmentPolicy, known: Summary, now_ns: int) -> bool:
    interval_s = policy.flush_interval_ns // 1_000_000_000 or UNFLUSHED_AGE_S
    return 0 < known.mod_time <= now_ns // 1_000_000_000 - interval_s


def _size(labels: LabelSet) -> int:
    return sum(len(label.name) + len(label.value) for label in labels)
