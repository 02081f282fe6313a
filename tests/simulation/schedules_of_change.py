"""Schedules of the design of durable heads: journals are moved, created again, suspended and reset."""

from __future__ import annotations

from protocol.journal import SuspendLevel
from tests.simulation import staged_mutants as mistake
from tests.simulation.broker_node import process_id
from tests.simulation.mutants import planted
from tests.simulation.schedule import UNPROVEN, Schedules, kept_in
from tests.simulation.spans import Span
from tests.simulation.stage import Stage
from tests.simulation.world import Node

SCHEDULES: Schedules = []
broken_by = kept_in(SCHEDULES)

UPLOADED_S = 900.0
"""Brokers other than the primary wait for long before they upload what it should have."""


@broken_by(mistake.mix_incarnations)
def created_again() -> None:
    stage = Stage(replication=2)
    stage.fill_store()
    holders, create_revision = stage.holders, stage.mark.create_revision
    known = stage.append()
    stage.append()
    stage.kill(*holders)
    stage.create_again()
    new = stage.append()
    stage.arose(new.begin == 0 and stage.mark.create_revision > create_revision, "there is a new one, and it has begun")
    stage.start(*holders)
    stage.until_serving(*holders)
    stage.arose(all(stage.content_length(node) for node in holders), "they have what is of the old one")
    stage.heal_store()
    stage.finish()
    aside = stage.objects(f".deleted/{create_revision}/{stage.journal}")
    stage.expect(Span(0, known.end) in aside, "what is known to be acknowledged of the old one is set aside")


def moved_away(stage: Stage) -> tuple[Node, list[Node]]:
    """The old primary is not assigned any more, and the next epoch is not open. It, and those that are assigned."""
    old = stage.assigned[0]
    stage.ask_for(1, "zone-a" if process_id(old).zone == "zone-b" else "zone-b")
    stage.until(lambda: old not in stage.assigned, "the old primary is not assigned any more")
    stage.arose(stage.last.is_open and old in stage.holders, "its epoch is open")
    return old, stage.assigned


@broken_by(mistake.forget_what_is_given_up)
def moved_and_all_others_lost() -> None:
    stage = Stage(replication=2)
    stage.fill_store()
    promised = stage.append()
    old, assigned = moved_away(stage)
    number = stage.last.number
    stage.kill(*stage.others(old))
    stage.lose_directory(*stage.others(old))
    stage.start(*stage.others(old))
    stage.heal_store()
    stage.expect(stage.append(assigned[0]).begin == promised.end, "nothing is missing, and no operator is needed")
    stage.expect(stage.ends_of(number) == {promised.end}, "it closed the epoch with the copy that it gave up")
    stage.arose(not old.life, "it did so alive")
    stage.finish()


def is_cleaned(stage: Stage, *nodes: Node) -> bool:
    """Whether all is uploaded that these held, so that their directories have no content any more."""
    return bool(stage.objects()) and not any(map(stage.content_length, nodes))


@broken_by(mistake.roll_without_a_record)
def rolled_uploaded_and_cleaned() -> None:
    stage = Stage(fragment_length=1024)
    promised, number, holders = stage.append(length=1100), stage.last.number, stage.holders
    stage.told(stage.ask(stage.assigned[0]))
    stage.until(lambda: is_cleaned(stage, *holders), "all is uploaded, and cleaned", UPLOADED_S)
    stage.arose(stage.last.is_open and stage.last.number == number, "the epoch is open")
    stage.kill(*stage.cluster.brokers)
    stage.start(*stage.cluster.brokers)
    stage.until_serving(*holders)
    stage.expect(stage.ends_of(number) == {promised.end}, "it is closed where it ended, and not where it began")
    stage.finish()


@broken_by(mistake.remove_the_last_log)
def given_up_uploaded_and_cleaned() -> None:
    """The same for a copy that no replica has any more."""
    stage = Stage(replication=2)
    promised = stage.append()
    for node in stage.cluster.brokers:
        # Nobody gets to change the record.
        stage.gate(node)
    old, assigned = moved_away(stage)
    number = stage.last.number
    stage.until(lambda: is_cleaned(stage, old), "what it held is uploaded, and cleaned", UPLOADED_S)
    stage.arose(stage.last.is_open and stage.last.number == number, "the epoch is open")
    stage.kill(*stage.cluster.brokers)
    stage.lose_directory(*assigned)
    stage.start(*stage.cluster.brokers)
    stage.until_serving(old)
    stage.expect(stage.ends_of(number) == {promised.end}, "it is closed where it ended, and not where it began")
    stage.finish()


def damaged(stage: Stage) -> tuple[Node, int]:
    """One holder is lost for good, and the other damaged beyond what it knows to be acknowledged: that holder, and up
    to where it knows it."""
    stage.fill_store()
    known = stage.append().end
    stage.append()
    lost, held = stage.holders
    stage.kill(lost, held)
    stage.lose_directory(lost)
    stage.flip(held, known + 5)
    return held, known


@broken_by(mistake.raise_no_floor)
def reset_after_a_damaged_holder() -> None:
    stage = Stage(replication=2)
    held, known = damaged(stage)
    stage.start(held)
    stage.until_serving(held)
    stage.until_assigned(2)
    below = stage.reset(stage.assigned[0], 0)
    stage.expect(below != "OK", "the reset cannot go below what is about to be uploaded")
    stage.expect(stage.reset(stage.assigned[0], 1000) == "OK", "it may go above")
    stage.append()
    stage.heal_store()
    stage.finish(over_budget=True)
    stage.expect(Span(0, known) in stage.objects(), "what is known to be acknowledged is uploaded")


@broken_by(mistake.never_cut)
def reset_before_a_damaged_holder() -> None:
    stage = Stage(replication=2, readers=0)
    held, known = damaged(stage)
    stage.start(held)
    gate = stage.gate(held)
    stage.until(lambda: gate.is_wanted, "it wants to have on record what it knows")
    stage.until_assigned(2)
    stage.expect(stage.reset(stage.assigned[0], known // 2) == "OK", "the operator is first")
    stage.disown()
    stage.append()
    gate.let_go()
    stage.heal_store()
    stage.until_serving(held)
    stage.finish(over_budget=True)


@broken_by(mistake.suspend_without_closing)
def suspended_and_resumed() -> None:
    stage = Stage()
    end, number = stage.append().end, stage.last.number
    stage.suspend(SuspendLevel.PARTIAL)
    stage.until(stage.objects, "all is uploaded")
    stage.wait(15.0)
    stage.prune()
    stage.suspend(SuspendLevel.FULL)
    stage.expect(stage.last.end == end == stage.suspended.offset, "the last epoch is closed where it is suspended")
    stage.until(lambda: not stage.assigned, "nobody has it")
    stage.kill(*stage.cluster.brokers)
    stage.lose_directory(*stage.cluster.brokers)
    stage.start(*stage.cluster.brokers)
    stage.expect(stage.append().begin == end, "it resumes there, though nobody is left that had it")
    stage.expect(stage.last.number > number, "by another epoch")
    stage.finish(over_budget=True)


@broken_by(planted("begin anew where nobody knows the end"))
def the_only_broker_dies() -> None:
    stage = Stage(replication=1)
    stage.fill_store()
    promised, (only,) = stage.append(), stage.assigned
    stage.kill(only)
    stage.until_assigned(1)
    for _ in range(3):
        stage.expect(stage.refused(stage.assigned[0]) == UNPROVEN, "nobody starts a second history")
        stage.wait(10.0)
    stage.start(only)
    stage.heal_store()
    stage.expect(stage.append().begin == promised.end, "it goes on when that one is back")
    stage.finish()


@broken_by(planted("keep the pipeline of another route"))
def lowered_raised_and_drained() -> None:
    stage = Stage()
    holders = stage.holders

    def has_left() -> list[Node]:
        """With an epoch for those that are left."""
        before = stage.last.number
        stage.until(lambda: sorted(map(str, stage.assigned)) != sorted(map(str, holders)), "the assignments change")
        stage.cluster.settle()
        stage.append()
        stage.expect(stage.last.number > before, "there is a new epoch")
        stage.expect(set(stage.holders) == set(stage.assigned), "of all that are assigned")
        return [node for node in holders if node not in stage.holders]

    stage.append()
    stage.change_replication(2)
    left = has_left()
    stage.until(lambda: not any(map(stage.log_length, left)), "the leaving copy is retired")
    holders = stage.holders
    stage.change_replication(3)
    stage.expect(not has_left(), "nobody leaves")
    holders = stage.holders
    stage.drain(stage.assigned[0])
    (drained,) = has_left()
    stage.until(lambda: drained.life > 0 and not stage.log_length(drained), "it has left, and its copy is retired")
    stage.finish()


@broken_by(mistake.trust_unsynced_files)
def power_lost() -> None:
    stage = Stage(syncs_commits=False)
    stage.fill_store()
    everyone = stage.cluster.brokers
    known = stage.append().end
    stage.append()
    ids = {stage.program(node).spool_id for node in everyone}
    # Though nobody asked it to, and so nobody can count on it, one of their kernels has written out all that it had.
    stage.cluster.disks[stage.assigned[0].name].write_out()
    for node in everyone:
        stage.world.crash(node, power_lost=True)
    stage.heal_store()
    stage.start(*everyone)
    stage.until_serving(*everyone)
    stage.expect(not ids & {stage.program(node).spool_id for node in everyone}, "all directories have new ids")
    stage.until_assigned(3)
    stage.expect(stage.refused(stage.assigned[0]) == UNPROVEN, "nobody knows where it ended")
    stage.expect(stage.reset(stage.assigned[0], 1000) == "OK", "an operator may say where it goes on")
    stage.finish(over_budget=True)
    stage.expect(Span(0, known) in stage.objects(), "what is known to be acknowledged is uploaded")
