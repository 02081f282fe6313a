"""Mistakes that need a situation of their own to do harm: each is planted while the schedules are acted out that are
about it, and has to break them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocator.transaction import Compare, Put, Transaction
from broker import append_run, durable_head, held_copies, journal_transaction
from broker.append_effect import HeadChange
from broker.durable_head import Claim, CutAt, DurableHead, Epoch, Fate, Start, Undecided
from broker.held_copies import HeldCopies
from broker.replication import Replication
from broker.resolution import Resolution
from fragment import spool_recovery
from fragment.persist_destination import Destination
from fragment.persist_item import Item
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd, Effect, EpochMark, Proposal, Record, Spool
from fragment.spool_log import CommitRecord, Log
from protocol.fragment import Fragment
from tests.simulation import sim_copies
from tests.simulation.disk import SimulatedDirectory, SimulatedDisk
from tests.simulation.mutants import users_of

Patch = pytest.MonkeyPatch


def answer_the_older_stream(patch: Patch) -> None:
    """A stream whose spool was taken by a later synchronisation goes on to write to it, and to answer."""
    deposed: set[Replication] = set()
    original = Replication.close

    def depose(stream: Replication) -> None:
        held, replica = stream._held, stream._replica  # noqa: SLF001
        assert held is not None
        assert replica is not None
        deposed.add(stream)
        replica.held_by(None)
        held.release()

    def close(stream: Replication) -> None:
        if stream in deposed:
            # The spool was given back before, and somebody else has it.
            stream._held = None  # noqa: SLF001
        original(stream)

    patch.setattr(Replication, "depose", depose)
    patch.setattr(Replication, "close", close)


def never_cut(patch: Patch) -> None:
    """What a copy holds beyond where its epoch was closed counts all the same."""

    def decided(item: Item[Any]) -> Fragment | None:
        return None if item.is_spare or not item.fragment.content_length else item.fragment

    patch.setattr(Item, "decided", decided)


def never_close(patch: Patch) -> None:
    """A copy that comes back waits for others to say where its epoch ended."""
    patch.setattr(held_copies, "closed", lambda _head, _spool_id, _copy: None)


def close_where_it_began(patch: Patch) -> None:
    """A copy that comes back closes its epoch as one would that has no commit of it."""
    patch.setattr(held_copies, "closed", lambda head, spool_id, _: durable_head.closed(head, spool_id, None))


def retire_live_copies(patch: Patch) -> None:
    """The next primary closes the open epoch where it began, and all who have commits of it join empty."""

    def fate(head: DurableHead | None, mark: EpochMark) -> Fate:
        known = durable_head.fate(head, mark)
        return CutAt(head.last.begin) if isinstance(known, Undecided) and head and head.last else known

    for module in users_of("takes_part"):
        patch.setattr(module, "takes_part", lambda _told, _copy: False)
        patch.setattr(module, "fate", fate)


def need_a_commit(patch: Patch) -> None:
    """Who has no commit of an epoch has no say in it, though its directory is listed."""

    def start_with(head: DurableHead, last: Epoch, claim: Claim) -> Start | None:
        copy = claim.copy
        return Start(copy.end, copy.registers) if copy is not None and copy.epoch == head.mark(last) else None

    def closed(head: DurableHead, spool_id: bytes, copy: CopyEnd | None) -> DurableHead | None:
        return None if copy is None else durable_head.closed(head, spool_id, copy)

    patch.setattr(durable_head, "_start_with", start_with)
    patch.setattr(held_copies, "closed", closed)


def compare_the_record_alone(patch: Patch) -> None:
    """An epoch is opened whoever the journal is assigned to by then, if only the record is as it was.

    That is no mistake by itself, and all that the rules ask for.
    """
    original = journal_transaction.advertise

    def advertise(resolution: Resolution, change: HeadChange | None = None) -> Transaction:
        made = original(resolution, change)
        return made if change is None else replace(made, compares=made.compares[len(resolution.assignments) :])

    patch.setattr(append_run, "advertise", advertise)


def change_the_record_unseen(patch: Patch) -> None:
    """The record is put as it should be, whoever has changed it since it was read."""
    original = journal_transaction._recorded  # noqa: SLF001
    record = journal_transaction.record

    def recorded(resolution: Resolution, change: HeadChange | None) -> tuple[tuple[Compare, ...], tuple[Put, ...]]:
        compares, puts = original(resolution, change)
        return compares[:1], puts

    patch.setattr(journal_transaction, "_recorded", recorded)
    unseen = lambda *args: replace(record(*args), compares=())  # noqa: E731
    patch.setattr(sim_copies, "record", unseen)


def mix_incarnations(patch: Patch) -> None:
    """What comes back belongs to the journal of its name."""
    original = durable_head.fate

    def fate(head: DurableHead | None, mark: EpochMark) -> Fate:
        return original(head, mark if head is None else EpochMark(head.create_revision, mark.number))

    destination = PersistLedger.destination

    def current(ledger: PersistLedger[Any], item: Item[Any], decided: Fragment) -> Destination:
        known = ledger._spec_now(decided.journal)  # noqa: SLF001
        return destination(ledger, item, decided) if known is None else Destination(known.spec, decided)

    patch.setattr(held_copies, "fate", fate)
    patch.setattr(PersistLedger, "destination", current)


def forget_what_is_given_up(patch: Patch) -> None:
    """Nobody looks after the copy of a replica that was given up, until the process starts again."""
    patch.setattr(HeldCopies, "give_up", lambda *_: None)


def remove_the_last_log(patch: Patch) -> None:
    """What is uploaded needs no log any more."""
    patch.setattr(Item, "needs_no_log", property(lambda _: True))


def roll_without_a_record(patch: Patch) -> None:
    """A fragment that is begun inside an epoch has no record before its first commit."""
    original = Spool._rolled  # noqa: SLF001

    def rolled(spool: Spool, proposal: Proposal) -> tuple[Spool, tuple[Effect, ...]]:
        begun, effects = original(spool, proposal)
        return begun, tuple(effect for effect in effects if not isinstance(effect, Record))

    patch.setattr(Spool, "_rolled", rolled)


def raise_no_floor(patch: Patch) -> None:
    """A damaged copy does not say what it knows to be acknowledged, before it uploads that."""
    patch.setattr(held_copies, "damaged", lambda head, spool_id, _: durable_head.damaged(head, spool_id, 0))


def suspend_without_closing(patch: Patch) -> None:
    """A journal is suspended, and its epoch left to whoever held it."""
    original = journal_transaction.set_suspend
    patch.setattr(append_run, "set_suspend", lambda resolution, level, offset, _: original(resolution, level, offset))


def trust_unsynced_files(patch: Patch) -> None:
    """What is there after a loss of power is taken for all that there was."""
    damage = spool_recovery._damage  # noqa: SLF001
    opened = SimulatedDisk.open

    def unharmed(log: Log, last: CommitRecord, length: int, verified: CommitRecord | None, _: bytes) -> str:
        return damage(log, last, length, verified, last.boot_id)

    def same(disk: SimulatedDisk, *args: Any) -> SimulatedDirectory:
        if disk._identity is not None:  # noqa: SLF001
            disk._identity.boot_id = disk.boot_id  # noqa: SLF001
        return opened(disk, *args)

    patch.setattr(spool_recovery, "_damage", unharmed)
    patch.setattr(SimulatedDisk, "open", same)
