"""Schedules of the design of durable heads: brokers die, are paused and taken for dead, or lose their directories."""

from __future__ import annotations

import pytest

from tests.simulation import staged_mutants as mistake
from tests.simulation.broker_node import process_id
from tests.simulation.etcd_gate import HeadGate
from tests.simulation.history import Outcome
from tests.simulation.mutants import planted
from tests.simulation.schedule import UNPROVEN, Schedules, committed_alone, kept_in
from tests.simulation.stage import Stage
from tests.simulation.world import Node

SCHEDULES: Schedules = []
broken_by = kept_in(SCHEDULES)


@broken_by(mistake.never_cut, planted("cut by the latest epoch"), planted("offer a recovered copy"))
def overtaken() -> None:
    stage = Stage()
    stage.fill_store()
    first, *others = stage.assigned
    stage.append()
    alone, number = committed_alone(stage, first, others), stage.last.number
    stage.kill(first)
    stage.until_next_epoch()
    stage.unclog([first], others)
    after = stage.append(length=60)
    stage.arose(after.begin == alone.begin < after.end < alone.end, "the others went on with something else")
    stage.break_streams(stage.assigned[0])
    stage.append()
    stage.arose(stage.last.begin >= after.end, "a later epoch begins elsewhere")
    stage.start(first)
    stage.until_serving(first)
    stage.drain(stage.assigned[-1])
    stage.until(lambda: first in stage.assigned, "it is assigned")
    stage.expect(stage.ends_of(number) == {alone.begin}, "its epoch was closed before what it alone had")
    stage.finish()
    stage.expect(stage.cut(first) == [alone], "what it alone had is cut")


@broken_by(mistake.never_close, mistake.close_where_it_began)
def overtaken_by_nobody() -> None:
    """The others die too before they have opened an epoch, and the first one alone returns."""
    stage = Stage()
    stage.fill_store()
    first, *others = stage.assigned
    stage.append()
    alone = committed_alone(stage, first, others)
    stage.kill(first, *others)
    number = stage.last.number
    stage.arose(stage.last.is_open and stage.last.begin < alone.begin, "no other epoch is open")
    stage.unclog([first], others)
    stage.start(first)
    stage.until_serving(first)
    stage.expect(stage.ends_of(number) == {alone.end}, "it closes the epoch where it ends")
    stage.start(*others)
    stage.finish()
    stage.expect(any(span.begin <= alone.begin and alone.end <= span.end for span in stage.read_spans()), "it is read")


@broken_by(mistake.never_cut, mistake.never_close)
def killed_at_once() -> None:
    """The first to start has less than the others."""
    stage = Stage()
    stage.fill_store()
    first, second, third = stage.assigned
    promised, number = stage.append(), stage.last.number
    stage.clog([first], [third])
    stage.send(first)
    stage.until(lambda: min(stage.end_at(first), stage.end_at(second)) > promised.end, "two of them have committed")
    stage.arose(stage.end_at(third) == promised.end, "the third one has not")
    stage.kill(*stage.cluster.brokers)
    stage.unclog([first], [third])
    stage.start(third)
    stage.until_serving(third)
    stage.expect(stage.ends_of(number) == {promised.end}, "the first to start closes the epoch where it ends")
    stage.start(*stage.others(third))
    stage.until_serving(first, second)
    stage.arose(not stage.objects(), "nothing is in the store")
    stage.read(third, promised.end)
    stage.finish()
    for node in (first, second):
        stage.expect([span.begin for span in stage.cut(node)] == [promised.end], f"{node.name} cuts what it has more")


@broken_by(planted("begin anew where nobody knows the end"), mistake.close_where_it_began)
def held_by_others_than_assigned() -> None:
    stage = Stage(replication=2)
    stage.fill_store()
    holders = stage.holders
    promised, number = stage.append(), stage.last.number
    stage.kill(*holders)
    stage.until_assigned(2)
    stage.expect(stage.refused(stage.assigned[0]) == UNPROVEN, "nobody goes on without a holder")
    stage.start(*holders)
    stage.until(lambda: stage.ends_of(number), "the epoch is closed")
    stage.arose(not set(holders) & set(stage.assigned), "the holders are not assigned")
    stage.expect(stage.ends_of(number) == {promised.end}, "a holder closes it where it ends")
    stage.heal_store()
    stage.expect(stage.append().begin == promised.end, "the journal goes on there")
    stage.finish()


@broken_by(mistake.close_where_it_began, mistake.never_close)
def two_directories_lost() -> None:
    stage = Stage()
    stage.fill_store()
    *lost, last = stage.holders
    promised, number = stage.append(), stage.last.number
    stage.kill(*lost, last)
    stage.lose_directory(*lost)
    stage.start(last)
    stage.until_serving(last)
    stage.expect(stage.ends_of(number) == {promised.end}, "it closes the epoch where it ends")
    stage.start(*lost)
    stage.finish()


@broken_by(planted("begin anew where nobody knows the end"))
def all_directories_lost() -> None:
    stage = Stage()
    stage.fill_store()
    everyone = stage.cluster.brokers
    stage.append()
    stage.kill(*everyone)
    stage.lose_directory(*everyone)
    stage.heal_store()
    stage.start(*everyone)
    stage.until_assigned(3)
    stage.arose(not stage.objects(), "the index is empty")
    for _ in range(3):
        stage.expect(stage.refused(stage.assigned[0]) == UNPROVEN, "nobody begins anew in silence")
        stage.wait(10.0)
    reset = stage.told(stage.ask(stage.assigned[0], offset=1000))
    stage.expect(reset.outcome is Outcome.OK, "an operator may say where it goes on")
    stage.expect(stage.append().begin == 1000, "it goes on there")
    stage.finish(over_budget=True)


@broken_by(mistake.never_cut, mistake.answer_the_older_stream)
def paused() -> None:
    """Nobody notices that the primary says nothing, until its lease runs out."""
    stage = Stage()
    stage.network.times.silence_s = 1000.0
    stage.fill_store()
    first, *others = stage.assigned
    stage.append()
    alone = committed_alone(stage, first, others)
    asked = stage.asked(first)[0]
    stage.world.pause(first)
    stage.until_next_epoch()
    stage.arose(stage.last.begin == alone.begin, "others have the journal, and not that")
    stage.wait(1.0)
    stage.world.resume(first)
    stage.unclog([first], others)
    stage.wait(0.05)
    stage.expect(set(asked.answers) == {process_id(first)}, "its peers answer nothing")
    stage.until_serving(first)
    stage.finish()
    stage.expect(stage.cut(first) == [alone], "its own extra bytes are cut")


@broken_by(mistake.answer_the_older_stream)
def moved_unheard_of() -> None:
    """A planned move, of which the old primary has yet to hear: it is a member beyond doubt, and has its streams."""
    stage = Stage()
    stage.fill_store()
    stage.lead_from_elsewhere()
    old, *peers = stage.assigned
    stage.append()
    deafness = stage.deafen(old)
    is_taken = stage.is_taken(peers)
    stage.drain(old)
    stage.change_replication(2)
    stage.until(is_taken, "the spools of its peers are taken")
    stage.arose(old not in stage.assigned, "the journal is with others")
    unheard = stage.send(old)
    stage.wait(1.0)
    stage.kill(*stage.cluster.brokers)
    deafness.end()
    stage.start(*stage.cluster.brokers)
    stage.finish()
    stage.expect(unheard.outcome is Outcome.UNKNOWN, "it acknowledges nothing")


@broken_by(mistake.retire_live_copies)
def acknowledged_late() -> None:
    """Its peers have answered, and it reads that only after they have gone on with another."""
    stage = Stage()
    stage.fill_store()
    stage.lead_from_elsewhere()
    old, *peers = stage.assigned
    begun = stage.append()
    deafness = stage.deafen(old)
    stage.clog(peers, [old])
    late = stage.send(old)
    stage.until(lambda: min(map(stage.end_at, (old, *peers))) > begun.end, "all have committed it")
    stage.drain(old)
    stage.change_replication(2)
    stage.until_next_epoch()
    stage.arose(late.outcome is Outcome.PENDING, "it has yet to be acknowledged")
    stage.unclog(peers, [old])
    stage.told(late)
    stage.arose(late.outcome is Outcome.OK, "it was acknowledged late")
    stage.expect(late.end <= stage.last.begin, "that is allowed: it is below where the others went on")
    deafness.end()
    stage.finish()


def opened_in_vain(stage: Stage) -> int:
    """Nobody has proposed anything yet in the epoch that was just opened. Where it begins."""
    stage.fill_store()
    begin = stage.append().end
    number = stage.last.number
    stage.break_streams(stage.assigned[0])
    stage.send(stage.assigned[0])
    stage.until(lambda: stage.last.number > number, "the next epoch is open")
    marks = {stage.copy_of(node) for node in stage.holders}
    stage.arose(stage.mark not in marks and stage.last.begin == begin, "nobody has a commit of it")
    return begin


@broken_by(mistake.need_a_commit)
def opened_and_the_primary_dies() -> None:
    stage = Stage()
    begin, first = opened_in_vain(stage), stage.assigned[0]
    stage.kill(first)
    stage.expect(stage.append().begin == begin, "who is listed takes part, where it began, and no operator is needed")
    stage.finish()


@broken_by(mistake.need_a_commit)
def opened_and_all_die() -> None:
    stage = Stage()
    begin, number = opened_in_vain(stage), stage.last.number
    stage.kill(*stage.cluster.brokers)
    stage.start(*stage.cluster.brokers)
    stage.expect(stage.append().begin == begin, "no operator is needed")
    stage.expect(stage.ends_of(number) == {begin}, "it was closed where it began")
    stage.finish()


def both_wanted(stage: Stage) -> tuple[HeadGate, HeadGate]:
    """A primary synchronised, and what would open its epoch is on its way while its peers are taken by the next one,
    which has read the record before. What they want to change waits at these gates, the old one's at the first."""
    stage.fill_store()
    stage.lead_from_elsewhere()
    old, following, _ = stage.assigned
    stage.append()
    stage.deafen(old)
    gates = stage.gate(old), stage.gate(following)
    stage.break_streams(old)
    stage.send(old)
    stage.until(lambda: gates[0].is_wanted, "the old primary wants to open an epoch")
    stage.drain(old)
    stage.change_replication(2)
    stage.until(lambda: gates[1].is_wanted, "the next one wants to as well")
    stage.arose(stage.assigned[0] is following, "the journal is the next one's")
    return gates


@broken_by(mistake.compare_the_record_alone)
def opened_late() -> None:
    """It does not come to that: the assignments are compared, too, and have changed."""
    stage = Stage()
    late, following = both_wanted(stage)
    number = stage.last.number
    late.let_go()
    stage.wait(0.5)
    stage.expect(stage.last.number == number, "who lost the journal opens no epoch")
    following.let_go()
    stage.until_next_epoch()
    stage.finish()


@broken_by(mistake.change_the_record_unseen)
def opened_late_all_the_same() -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake.compare_the_record_alone(patch)
        stage = Stage()
        late, following = both_wanted(stage)
        old, head = stage.others(*stage.assigned), stage.last.number
        late.let_go()
        stage.until_next_epoch()
        begin = stage.last.begin
        stage.arose(set(stage.holders) & set(old) and stage.last.number == head + 1, "the old primary opened an epoch")
        stage.wait(0.2)
        following.let_go()
        after = stage.append(stage.assigned[0]), stage.append(stage.assigned[0]), stage.append(stage.assigned[0])
        stage.expect(after[0].begin == begin, "the next one reads again, and goes on where that epoch began")
        stage.finish()
        stage.expect(stage.last.number >= head + 2, "each of them had one of its own")


def close_at_once(stage: Stage, *, is_longer_first: bool) -> None:
    """Two recovered copies, of which one is longer."""
    stage.fill_store()
    first, *others = stage.assigned
    stage.append()
    alone, number = committed_alone(stage, first, others), stage.last.number
    stage.kill(*stage.cluster.brokers)
    stage.unclog([first], others)
    stage.start(first, others[0])
    gates = stage.gate(first), stage.gate(others[0])
    stage.until(lambda: all(gate.is_wanted for gate in gates), "both want to close the epoch")
    stage.arose(stage.last.is_open, "neither has")
    for gate in gates if is_longer_first else reversed(gates):
        gate.let_go()
        stage.wait(0.2)
    end = alone.end if is_longer_first else alone.begin
    stage.expect(stage.ends_of(number) == {end}, "one wins, and the epoch ends there for good")
    stage.start(*stage.cluster.brokers)
    stage.finish()
    stage.expect(bool(stage.cut(first)) is not is_longer_first, "the other one cuts what it has more")


@broken_by(mistake.change_the_record_unseen)
def two_close_at_once_the_longer_first() -> None:
    close_at_once(Stage(), is_longer_first=True)


@broken_by(mistake.change_the_record_unseen)
def two_close_at_once_the_shorter_first() -> None:
    close_at_once(Stage(), is_longer_first=False)


@broken_by(planted("use an epoch before it is recorded"))
def killed_before_it_is_recorded() -> None:
    """What opens an epoch is on its way to etcd, and never gets there."""
    stage = Stage()
    stage.fill_store()
    stage.append()
    first = stage.assigned[0]
    gate = stage.gate(first)
    stage.break_streams(first)
    unheard = stage.send(first)
    stage.until(lambda: gate.is_wanted, "an epoch is to be opened")
    stage.wait(1.0)
    stage.kill(*stage.cluster.brokers)
    stage.start(*stage.cluster.brokers)
    stage.finish()
    stage.expect(unheard.outcome is Outcome.UNKNOWN, "nothing is acknowledged before it is recorded")


def about_to_open(stage: Stage) -> tuple[Node, int, HeadGate]:
    """A primary whose streams broke, the number of its last epoch, and what holds the transaction of the next."""
    stage.fill_store()
    stage.append()
    first, number = stage.assigned[0], stage.last.number
    gate = stage.gate(first)
    stage.break_streams(first)
    stage.send(first)
    stage.until(lambda: gate.is_wanted, "an epoch is to be opened")
    return first, number, gate


@broken_by(planted("take silence for success"))
def answer_lost() -> None:
    stage = Stage()
    first, number, gate = about_to_open(stage)
    gate.lose_answers()
    stage.until(lambda: stage.last.number > number, "it is open, and nobody was told")
    stage.append(first)
    stage.expect(gate.reads, "the record is read again before anything is acknowledged")
    stage.finish()


@broken_by(planted("take silence for success"))
def request_lost() -> None:
    """As it looks to the primary, this is the same."""
    stage = Stage()
    first, number, gate = about_to_open(stage)
    gate.lose_requests()
    stage.wait(0.5)
    stage.append(first)
    stage.kill(*stage.cluster.brokers)
    stage.start(*stage.cluster.brokers)
    stage.finish()
    stage.expect(stage.last.number > number, "an epoch was opened after all")
