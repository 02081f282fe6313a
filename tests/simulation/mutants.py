"""Mutants: mistakes that one could make in the cores, planted one at a time. A simulator that finds none of them would
prove nothing about the cores as they are.

These are found by chance, in swarms of faults. Those in ``staged_mutants`` need a situation that hardly ever arises by
chance, and are found by the schedules that are about it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from allocator import keyspace
from allocator.key_event import WatchEvents
from broker import durable_head
from broker.append_effect import Advertise, Commit, Effect, Effects
from broker.append_event import Answered, Event, Shown, Transacted
from broker.append_fsm import AppendFSM
from broker.append_run import AppendRun
from broker.append_state import State
from broker.durable_head import Claim, CutAt, DurableHead, Epoch, EpochTerms, Fate, Start, Unproven
from broker.head_opening import recorded
from broker.held_copies import HeldCopies, Judgement
from broker.journal_transaction import advertise
from broker.last_spec import LastSpec
from broker.pipeline import Ask, Pipeline
from broker.replication_message import Answer, Propose
from broker.resolver import Resolver
from fragment.persist_item import Item
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd, EpochMark, Spool, Visible
from fragment.spool_file import SpoolFile
from fragment.spool_recovery import Copy, Worth, spool_of
from fragment.spool_writer import SpoolWriter
from protocol.fragment import Fragment
from protocol.route import ProcessId
from tests.simulation.disk import RecoveredCopy, SimulatedDirectory
from tests.simulation.faults import FaultKind
from tests.simulation.sim_copies import CopyKeeping

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    plant: Callable[[Patch], None]
    # Faults that bring it to light; none are needed for some.
    kinds: Sequence[FaultKind] = ()
    # How many brokers and replicas there are; as drawn if None. Leases are short where it matters.
    sizes: tuple[int, int] | None = None
    # A seed that is known to do so with just these faults.
    caught_by: int = 0

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def users_of(name: str) -> list[ModuleType]:
    """The modules of the broker that have this function of ``durable_head``, which has to be planted in each."""
    loaded = [module for at, module in sys.modules.items() if at.startswith("broker.") and hasattr(module, name)]
    return [module for module in loaded if module is not durable_head]


def _acknowledge_early(patch: Patch) -> None:
    """One peer that has yet to answer is not waited for."""

    def is_settled(ask: Ask) -> bool:
        return len(ask._missing) <= (1 if len(ask.answers) > 0 else 0)  # noqa: SLF001

    original = Pipeline.answered

    def answered(pipeline: Pipeline, peer: ProcessId, answer: Answer) -> None:
        if any(ask.is_waiting_for(peer) for ask in pipeline._asked):  # noqa: SLF001
            original(pipeline, peer, answer)

    patch.setattr(Ask, "is_settled", property(is_settled))
    patch.setattr(Pipeline, "answered", answered)


def _commit_at_any_end(patch: Patch) -> None:
    """The end of a client's stream is taken for its word."""
    original = AppendFSM._on_end  # noqa: SLF001

    def on_end(fsm: AppendFSM) -> Effects:
        fsm._content.has_intent = True  # noqa: SLF001
        return original(fsm)

    patch.setattr(AppendFSM, "_on_end", on_end)


def _forget_to_roll_back(patch: Patch) -> None:
    """What a client has left behind is not taken back from the peers."""

    def roll_back(fsm: AppendFSM, verdict: Any) -> Effects:
        return fsm._finish(verdict)  # noqa: SLF001

    patch.setattr(AppendFSM, "_roll_back", roll_back)


def _forget_to_rewind(patch: Patch) -> None:
    """The SHA-1 goes on as if what was rolled back were still there."""

    def rolled_back(spool: Spool) -> Spool:
        return spool._evolved(0, spool._running) if spool.pending else spool  # noqa: SLF001

    patch.setattr(Spool, "rolled_back", rolled_back)


def _read_past_acknowledged(patch: Patch) -> None:
    """What is committed is shown where it is, whoever else has it."""
    original = Spool.acked

    def acked(spool: Spool, through: int | None) -> tuple[Spool, tuple[Visible, ...]]:
        end = spool.fragment.end
        return original(spool, end if through is None else max(end, through))

    patch.setattr(Spool, "acked", acked)


def _persist_past_acknowledged(patch: Patch) -> None:
    """What is given up is uploaded as it is, and so is what nobody has decided on."""

    def decided(item: Item[Any]) -> Fragment | None:
        return item.fragment if item.fragment.content_length else None

    patch.setattr(Item, "decided", decided)
    original = PersistLedger.complete

    def complete(ledger: PersistLedger[Any], completed: Any, create_revision: int, **rest: Any) -> None:
        original(ledger, completed, create_revision, **rest)
        while ledger.next_to_join() is not None:
            pass
        for item in ledger.items:
            ledger._queue.open(item)  # noqa: SLF001

    patch.setattr(PersistLedger, "complete", complete)


def _ignore_create_revision(patch: Patch) -> None:
    """A journal that was created again goes on with the replica of the old one."""
    original = Resolver._follow_journal  # noqa: SLF001

    def follow(resolver: Resolver[Any], journal: str, is_invalid: bool) -> None:
        item = resolver.view.get(f"{resolver._root}/items/{journal}")  # noqa: SLF001
        known = resolver.replicas.get(journal)
        if item is not None and known is not None:
            known.create_revision = item.create_revision
        original(resolver, journal, is_invalid)

    patch.setattr(Resolver, "_follow_journal", follow)


def _take_the_header_for_a_watermark(patch: Patch) -> None:
    """The header of an answer is taken for the revision that was reached, so what follows of it is passed over."""
    batch = keyspace._Batch  # noqa: SLF001
    original = batch.add

    def add(self: Any, answer: WatchEvents) -> None:
        reached = self._through
        fresh = [event for event in answer.events if event.mod_revision > reached]
        original(self, WatchEvents(answer.header, fresh))
        self._through = max(self._through, answer.header.revision)
        self._header = answer.header

    patch.setattr(batch, "add", add)


def _keep_the_pipeline_of_another_route(patch: Patch) -> None:
    patch.setattr(AppendFSM, "_is_routed", lambda _fsm, _pipeline: True)


def _pass_on_before_the_proposal(patch: Patch) -> None:
    """The next append gets the pipeline before this one has proposed its commit."""

    def commit(fsm: AppendFSM, fragment: Fragment) -> Effects:
        pipeline = fsm._held  # noqa: SLF001
        fsm.state = State.READ_ACKS
        return (*fsm._given_back(pipeline), Commit(pipeline, fragment, fsm._content.registers))  # noqa: SLF001

    patch.setattr(AppendFSM, "_commit", commit)


def _mistake_answers(patch: Patch) -> None:
    """An answer is taken for one to what was asked last, and not first."""

    def answered(pipeline: Pipeline, peer: ProcessId, answer: Answer) -> None:
        asked = [ask for ask in pipeline._asked if ask.is_waiting_for(peer)]  # noqa: SLF001
        if asked:
            asked[-1].answered(peer, answer)
            pipeline._settle()  # noqa: SLF001

    patch.setattr(Pipeline, "answered", answered)


def _acknowledge_without_a_lease(patch: Patch) -> None:
    """An append that all members have is acknowledged, be this broker one of them still or not."""
    original = AppendFSM.step

    def step(fsm: AppendFSM, event: Event, now_ns: int) -> Effects:
        return original(fsm, replace(event, is_certain=True) if isinstance(event, Answered | Shown) else event, now_ns)

    patch.setattr(AppendFSM, "step", step)


def _forget_the_spec_of_a_deleted_journal(patch: Patch) -> None:
    """A commit that comes after the journal was deleted does not know where its bytes belong."""
    original = LastSpec.__call__

    def spec(last: LastSpec) -> bytes:
        kv = last._view().get(last._key)  # noqa: SLF001
        return original(last) if kv is not None else b""

    patch.setattr(LastSpec, "__call__", spec)


def _offer_recovered(patch: Patch) -> None:
    """What an earlier process left is offered to the pipeline as it is, whichever epoch it is of."""
    offered: dict[tuple[SimulatedDirectory, str], tuple[Spool, SpoolFile]] = {}
    take_in, open_writer = CopyKeeping._take_in, SimulatedDirectory.writer  # noqa: SLF001

    def offer(keeping: CopyKeeping, recovered: RecoveredCopy) -> None:
        fragment = recovered.copy.fragment
        if fragment is None or not fragment.content_length:
            take_in(keeping, recovered)
            return
        summed = hashlib.sha1(recovered.content[: fragment.content_length])
        spool = replace(spool_of(recovered.copy), _committed=summed, _running=summed)
        at = recovered.directory, fragment.journal
        if at not in offered or offered[at][0].fragment.end < fragment.end:
            offered[at] = spool, recovered.reopened()

    def writer(directory: SimulatedDirectory, journal: str, *args: Any) -> SpoolWriter:
        made = open_writer(directory, journal, *args)
        if (directory, journal) in offered:
            made.spool, made._file = offered.pop((directory, journal))  # noqa: SLF001
        return made

    def takes_part(told: EpochTerms, copy: CopyEnd) -> bool:
        return told.is_void or not told.is_closed

    def start_with(head: DurableHead, last: Epoch, claim: Claim) -> Start | None:
        copy = claim.copy
        return original(head, last, claim) if copy is None else Start(copy.end, copy.registers)

    original = durable_head._start_with  # noqa: SLF001
    patch.setattr(CopyKeeping, "_take_in", offer)
    patch.setattr(SimulatedDirectory, "writer", writer)
    patch.setattr(durable_head, "_start_with", start_with)
    for module in users_of("takes_part"):
        patch.setattr(module, "takes_part", takes_part)


def _close_with_damage(patch: Patch) -> None:
    """A damaged copy closes its epoch where its sound part ends."""
    original = HeldCopies.recover

    def recover(copies: HeldCopies, name: str, copy: Copy, doubted_through: EpochMark | None = None) -> None:
        if copy.worth is Worth.DAMAGED and copy.verified is not None:
            records = tuple(record for record in copy.records if record.end <= copy.verified.end)
            copy = replace(copy, worth=Worth.CUT, records=records)
        original(copies, name, copy, doubted_through)

    patch.setattr(HeldCopies, "recover", recover)


def _use_before_recorded(patch: Patch) -> None:
    """An epoch counts as open while what opens it is still on its way to etcd."""
    original = AppendRun._perform  # noqa: SLF001

    def perform(run: AppendRun, effect: Effect) -> None:
        if isinstance(effect, Advertise) and effect.change is not None and effect.resolution.is_consistent:
            run._host.transact(advertise(effect.resolution, effect.change), lambda _: None)  # noqa: SLF001
            run._on(Transacted(effect.resolution.revision))  # noqa: SLF001
        else:
            original(run, effect)

    patch.setattr(AppendRun, "_perform", perform)


def _cut_by_the_latest_epoch(patch: Patch) -> None:
    """A copy is cut where the latest epoch begins, and not where its own ended."""

    def fate(head: DurableHead | None, mark: EpochMark) -> Fate:
        known = durable_head.fate(head, mark)
        return CutAt(head.last.begin) if head and head.last and isinstance(known, CutAt) else known

    for module in users_of("fate"):
        patch.setattr(module, "fate", fate)


def _tell_by_a_proposal(patch: Patch) -> None:
    """What is acknowledged is told by proposing the head again, which to a replica is to roll back."""

    def tell_acked(pipeline: Pipeline) -> None:
        if pipeline._told_through < pipeline.acked_through and not pipeline.is_closed:  # noqa: SLF001
            pipeline._told_through = pipeline.acked_through  # noqa: SLF001
            head = pipeline.head
            for peer in pipeline._healthy():  # noqa: SLF001
                said = Propose(head.fragment, head.registers, False, None, pipeline.terms, pipeline.acked_through)
                pipeline._streams[peer].send(said)  # noqa: SLF001

    def acknowledge(pipeline: Pipeline, through: int) -> None:
        pipeline.acked_through = max(pipeline.acked_through, through)
        pipeline.tell_acked()

    patch.setattr(Pipeline, "tell_acked", tell_acked)
    patch.setattr(Pipeline, "acknowledge", acknowledge)


def _take_silence_for_success(patch: Patch) -> None:
    """A transaction whose answer did not come is taken to have opened the epoch."""
    original = AppendFSM._on_failed  # noqa: SLF001

    def on_failed(fsm: AppendFSM, error: Any) -> Effects:
        change = fsm._head.change  # noqa: SLF001
        if fsm.state is State.UPDATE_ASSIGNMENTS and change is not None and fsm.pipeline is not None:
            fsm._head.change = None  # noqa: SLF001
            effects = recorded(fsm.pipeline, fsm._resolution, change.head, change.mod_revision)  # noqa: SLF001
            return (*effects, *fsm._update_assignments())  # noqa: SLF001
        return original(fsm, error)

    patch.setattr(AppendFSM, "_on_failed", on_failed)


def _close_though_live(patch: Patch) -> None:
    """A directory without any commit of an epoch closes it, though a replica is live and may get to commit in it."""
    original = HeldCopies.judged

    def judged(copies: HeldCopies, journal: str, head: DurableHead | None, **rest: Any) -> Judgement:
        return original(copies, journal, head, **{**rest, "has_replica": False})

    patch.setattr(HeldCopies, "judged", judged)


def _begin_anew(patch: Patch) -> None:
    """A journal whose holders are away goes on where its last epoch began, as if nothing were missing."""

    def started(head: DurableHead | None, create_revision: int, claims: Iterable[Claim]) -> Any:
        start = durable_head.start_of(head, create_revision, claims)
        return Start(start.epoch.begin, start.epoch.registers) if isinstance(start, Unproven) else start

    for module in users_of("start_of"):
        patch.setattr(module, "start_of", started)


_DEATHS = (FaultKind.KILL, FaultKind.DROPS, FaultKind.KILL_IN_A_STEP)
# A peer that cannot write has less than its primary, until they synchronise.
_LAGS = (FaultKind.KILL, FaultKind.KILL_IN_A_STEP, FaultKind.DISK_FULL)

_COPIES = (FaultKind.KILL, FaultKind.KILL_ALL, FaultKind.KILL_IN_A_STEP, FaultKind.STORE_DOWN)


def _call_what_was_proposed_refused(patch: Patch) -> None:
    """A failure is taken for one of an append that nobody was asked to commit."""
    patch.setattr(AppendRun, "may_be_done", property(lambda _: False, lambda _, __: None), raising=False)


MUTANTS = (
    Mutant("acknowledge before all peers have answered", _acknowledge_early, _DEATHS, caught_by=2),
    Mutant("commit at the end of a stream without intent", _commit_at_any_end, caught_by=0),
    Mutant("forget to roll back", _forget_to_roll_back, caught_by=0),
    Mutant("forget to rewind the sum", _forget_to_rewind, caught_by=3),
    Mutant("read past what is acknowledged", _read_past_acknowledged, _LAGS, (4, 2), caught_by=6),
    Mutant(
        "persist past what is acknowledged", _persist_past_acknowledged, (FaultKind.PARTITION,), (4, 3), caught_by=51
    ),
    Mutant("ignore the create revision", _ignore_create_revision, (FaultKind.RECREATE,), caught_by=14),
    Mutant(
        "take the header for a watermark",
        _take_the_header_for_a_watermark,
        (FaultKind.WATCH_TROUBLE, *_DEATHS),
        caught_by=13,
    ),
    Mutant(
        "keep the pipeline of another route",
        _keep_the_pipeline_of_another_route,
        (FaultKind.MOVE, FaultKind.KILL),
        caught_by=3,
    ),
    Mutant("pass the pipeline on before the proposal", _pass_on_before_the_proposal, caught_by=0),
    Mutant("take answers for those to later questions", _mistake_answers, (*_LAGS, FaultKind.DISK_SLOW), caught_by=24),
    Mutant(
        "acknowledge without a lease",
        _acknowledge_without_a_lease,
        (FaultKind.LONG_PAUSE, FaultKind.CLOG),
        caught_by=24,
    ),
    Mutant(
        "forget the spec of a deleted journal",
        _forget_the_spec_of_a_deleted_journal,
        (FaultKind.RECREATE,),
        caught_by=12,
    ),
    Mutant("offer a recovered copy", _offer_recovered, _COPIES, (4, 2), caught_by=12),
    Mutant("close with a damaged copy", _close_with_damage, (FaultKind.BIT_FLIP, *_COPIES), (4, 3), caught_by=3),
    Mutant(
        "use an epoch before it is recorded",
        _use_before_recorded,
        (FaultKind.DROPS, FaultKind.ETCD_LOSS, FaultKind.KILL_ALL),
        (3, 3),
        caught_by=19,
    ),
    Mutant("cut by the latest epoch", _cut_by_the_latest_epoch, _COPIES, (4, 2), caught_by=0),
    Mutant("tell by a proposal what is acknowledged", _tell_by_a_proposal, caught_by=25),
    Mutant(
        "take silence for success",
        _take_silence_for_success,
        (FaultKind.ETCD_LOSS, FaultKind.KILL_ALL, FaultKind.DROPS),
        (3, 3),
        caught_by=21,
    ),
    Mutant("call what was proposed refused", _call_what_was_proposed_refused, _DEATHS, caught_by=0),
    Mutant(
        "close though the replica is live",
        _close_though_live,
        (FaultKind.MOVE, FaultKind.CHANGE_REPLICATION, FaultKind.DROPS),
        (4, 2),
        caught_by=12,
    ),
    Mutant("begin anew where nobody knows the end", _begin_anew, (FaultKind.KILL,), (4, 1), caught_by=19),
)


def planted(name: str) -> Callable[[Patch], None]:
    """How the one of that name is planted."""
    return next(mutant.plant for mutant in MUTANTS if mutant.name == name)
