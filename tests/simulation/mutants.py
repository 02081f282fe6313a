"""Mutants: mistakes that one could make in the cores, planted one at a time. A simulator that finds none of them would
prove nothing about the cores as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from allocator import keyspace
from allocator.key_event import WatchEvents
from broker import proposal
from broker.append_effect import Acknowledge, Commit, Effects
from broker.append_fsm import AppendFSM, State
from broker.last_spec import LastSpec
from broker.pipeline import Ask, Pipeline
from broker.proposal import Agreed, Head, Verdict
from broker.replication_message import Answer
from broker.resolver import Resolver
from fragment.persist_queue import PersistQueue
from fragment.persister import Item, Persister
from fragment.spool import Spool, Visible
from fragment.spool_writer import Performed, SpoolWriter
from protocol.fragment import Fragment
from protocol.route import ProcessId
from tests.simulation import sim_allocator
from tests.simulation.faults import FaultKind
from tests.simulation.sim_append import _Port

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    plant: Callable[[Patch], None]
    # Faults that bring it to light; none are needed for some.
    kinds: Sequence[FaultKind] = ()
    # How many brokers and replicas there are; as drawn if None. Leases are short where it matters.
    sizes: tuple[int, int] | None = None
    # A seed that is known to do so with just these faults, for the short run.
    caught_by: int | None = None
    # Within how many seeds from zero on the long run has to find it by itself.
    seeds_max: int = 600

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


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


def _never_roll_forward(patch: Patch) -> None:
    """A peer that has more is taken to agree."""
    original = proposal._judged_mismatch  # noqa: SLF001

    def judged(head: Head, peer: ProcessId, answer: Answer) -> Verdict:
        held = answer.fragment
        return Agreed() if held is not None and held.end > head.end else original(head, peer, answer)

    patch.setattr(proposal, "_judged_mismatch", judged)


def _commit_at_any_end(patch: Patch) -> None:
    """The end of a client's stream is taken for its word."""
    original = AppendFSM._on_end  # noqa: SLF001

    def on_end(fsm: AppendFSM) -> Effects:
        fsm._has_intent = True  # noqa: SLF001
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

    def decided(item: Item) -> Fragment | None:
        return item.fragment if item.fragment.content_length else None

    patch.setattr(Item, "decided", decided)
    original = Persister.complete

    def complete(persister: Persister, completed: Any, create_revision: int, **rest: Any) -> None:
        original(persister, completed, create_revision, **rest)
        for item in persister._queue.items():  # noqa: SLF001
            persister._queue.open(item)  # noqa: SLF001

    patch.setattr(Persister, "complete", complete)


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
        return (*fsm._given_back(pipeline), Commit(pipeline, fragment, fsm._registers))  # noqa: SLF001

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
    patch.setattr(_Port, "is_certain", lambda _port: True)


def _count_everyone_as_in_step(patch: Patch) -> None:
    """The allocator takes replicas away without asking whether those that stay have what they need."""
    patch.setattr(sim_allocator, "journal_consistency", lambda _item, assigned: [True] * len(assigned))


def _forget_the_spec_of_a_deleted_journal(patch: Patch) -> None:
    """A commit that comes after the journal was deleted does not know where its bytes belong."""
    original = LastSpec.__call__

    def spec(last: LastSpec) -> bytes:
        kv = last._view().get(last._key)  # noqa: SLF001
        return original(last) if kv is not None else b""

    patch.setattr(LastSpec, "__call__", spec)


def _go_on_with_an_ended_spool(patch: Patch) -> None:
    """A file that could not be synced is written to again and again, in vain."""

    def roll_back(writer: SpoolWriter) -> Performed:
        writer.spool = writer.spool.rolled_back()
        return Performed(None)

    patch.setattr(SpoolWriter, "roll_back", roll_back)


def _decide_with_too_few(patch: Patch) -> None:
    """What all members hold is shown, however few they are."""

    def acknowledged(_: AppendFSM, pipeline: Pipeline) -> Effects:
        return (Acknowledge(pipeline, pipeline.head.end),)

    patch.setattr(AppendFSM, "_acknowledged", acknowledged)


def _show_what_one_has(patch: Patch) -> None:
    """What only one member holds when they synchronise is read from that one."""
    patch.setattr(Spool, "_hides", lambda _spool, _proposal: False)


def _store_in_any_order(patch: Patch) -> None:
    """A journal's first fragment may come into the store after others."""
    patch.setattr(PersistQueue, "_is_behind", lambda _queue, _held: False)
    patch.setattr(PersistQueue, "_hasten", lambda _queue, _journal, _due_s: None)


_DEATHS = (FaultKind.KILL, FaultKind.DROPS, FaultKind.KILL_IN_A_STEP)
# A peer that cannot write has less than its primary, until they synchronise.
_LAGS = (FaultKind.KILL, FaultKind.KILL_IN_A_STEP, FaultKind.DISK_FULL)

MUTANTS = (
    Mutant("acknowledge before all peers have answered", _acknowledge_early, _DEATHS, caught_by=2),
    Mutant("never roll forward to what a peer has", _never_roll_forward, _LAGS, (4, 3), caught_by=2),
    Mutant("commit at the end of a stream without intent", _commit_at_any_end, caught_by=1),
    Mutant("forget to roll back", _forget_to_roll_back, caught_by=1),
    Mutant("forget to rewind the sum", _forget_to_rewind, caught_by=3),
    Mutant("read past what is acknowledged", _read_past_acknowledged, _LAGS, (4, 2), caught_by=181),
    Mutant(
        "persist past what is acknowledged", _persist_past_acknowledged, (FaultKind.PARTITION,), (4, 3), caught_by=31
    ),
    Mutant("ignore the create revision", _ignore_create_revision, (FaultKind.RECREATE,), caught_by=3),
    Mutant(
        "take the header for a watermark",
        _take_the_header_for_a_watermark,
        (FaultKind.WATCH_TROUBLE, *_DEATHS),
        caught_by=12,
    ),
    Mutant(
        "keep the pipeline of another route",
        _keep_the_pipeline_of_another_route,
        (FaultKind.MOVE, FaultKind.KILL),
        caught_by=2,
    ),
    Mutant("pass the pipeline on before the proposal", _pass_on_before_the_proposal, caught_by=9),
    Mutant("take answers for those to later questions", _mistake_answers, (*_LAGS, FaultKind.DISK_SLOW), caught_by=26),
    Mutant(
        "acknowledge without a lease",
        _acknowledge_without_a_lease,
        (FaultKind.LONG_PAUSE, FaultKind.CLOG),
        caught_by=68,
    ),
    Mutant(
        "count everyone as in step",
        _count_everyone_as_in_step,
        (FaultKind.MOVE, FaultKind.CHANGE_REPLICATION),
        caught_by=5,
    ),
    # These were found as they are here, and mended.
    Mutant(
        "forget the spec of a deleted journal",
        _forget_the_spec_of_a_deleted_journal,
        (FaultKind.RECREATE,),
        caught_by=13,
    ),
    Mutant("go on with an ended spool", _go_on_with_an_ended_spool, (FaultKind.DISK_ERRORS,), caught_by=29),
    Mutant("decide with too few members", _decide_with_too_few, _LAGS, (2, 2), seeds_max=2500),
    Mutant("show what one member has", _show_what_one_has, _LAGS, (4, 2), caught_by=76),
    Mutant(
        "store a journal in any order",
        _store_in_any_order,
        (FaultKind.STORE_ERRORS, FaultKind.KILL),
        (5, 2),
        caught_by=372,
    ),
)
