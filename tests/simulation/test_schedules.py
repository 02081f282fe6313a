"""The schedules that durable heads were designed by, each by its name, acted out by every broker in turn.

Those of an operator's reset, of suspension and of brokers without epochs have no part in the simulator: they are in
``tests/unit/broker`` (``test_durable_head``, ``test_append_epochs``), and with real brokers in
``tests/integration/broker/test_durable_heads.py``.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from tests.simulation import staged_mutants
from tests.simulation.cluster import Run, run
from tests.simulation.faults import Fault, FaultKind, Options, broker_names
from tests.simulation.history import Outcome
from tests.simulation.stage import BrokenError, Stage

Act = Callable[[], None]
Plant = Callable[[pytest.MonkeyPatch], None]

ACTED: list[tuple[Act, tuple[Plant, ...]]] = []


def broken_by(*mistakes: Plant) -> Callable[[Act], Act]:
    """A schedule, with mistakes that it is to find."""

    def keep(act: Act) -> Act:
        ACTED.append((act, mistakes))
        return act

    return keep


@broken_by(staged_mutants.answer_the_older_stream)
def the_older_stream_of_a_primary_that_does_not_know() -> None:
    """A planned move, of which the old primary has yet to hear: it is a member beyond doubt, and has its streams."""
    stage = Stage(lease_ttl_s=20)
    stage.store.faults.is_down = True
    stage.lead_from_elsewhere()
    old, *peers = stage.assigned
    stage.append()
    stage.clog([stage.etcd.node], [old])
    stage.drain(old)
    stage.change_replication(2)
    stage.until(lambda: old not in stage.assigned, "the journal is with others")
    known = {peer: stage.replica_of(peer).taken_revision for peer in peers}
    stage.until(
        lambda: all(stage.replica_of(peer).taken_revision > known[peer] for peer in peers), "their spools are taken"
    )
    unheard = stage.send(old)
    stage.wait(1.0)
    stage.kill(*stage.cluster.brokers)
    stage.unclog([stage.etcd.node], [old])
    stage.start(*stage.cluster.brokers)
    stage.finish()
    stage.expect(unheard.outcome is Outcome.UNKNOWN, "its peers answer nothing, and it acknowledges nothing")


@pytest.mark.parametrize("act", [act for act, _ in ACTED], ids=lambda act: act.__name__)
def test_a_schedule_is_acted_out(act: Act) -> None:
    act()


@pytest.mark.parametrize(
    ("act", "plant"),
    [(act, plant) for act, mistakes in ACTED for plant in mistakes],
    ids=lambda part: part.__name__,
)
def test_a_schedule_breaks_with_a_planted_mistake(act: Act, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a promise that is not kept, and not because the schedule could not be acted out or the cores noticed."""
    plant(monkeypatch)
    with pytest.raises(BrokenError):
        act()


NAMES = broker_names(replace(Options.draw(1), brokers=4))
STORE_IS_DOWN = Fault(0.5, FaultKind.STORE_DOWN, lasts_s=12.0)

Faults = tuple[Fault, ...]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def acted(faults: Sequence[Fault], **changes: Any) -> Run:
    base = replace(
        Options.draw(1, kinds=[]),
        brokers=4,
        replication=3,
        journals=1,
        clients=2,
        duration_s=22.0,
        lease_ttl_s=5,
        syncs_commits=True,
        append_pause_s=0.5,
        names_offsets=False,
        keeps_budget=False,
    )
    return run(replace(base, **changes), tuple(faults))


def others(name: str) -> tuple[str, ...]:
    return tuple(other for other in NAMES if other != name)


def overtaken(name: str) -> Faults:
    """What it sends does not arrive: it commits alone, dies, and returns after the others have gone on."""
    cut = Fault(4.0, FaultKind.ONE_WAY_CUT, (name,), others(name), lasts_s=2.0)
    return (STORE_IS_DOWN, cut, Fault(5.0, FaultKind.KILL, (name,), lasts_s=6.0))


def overtaken_and_first_to_return(name: str) -> Faults:
    killed = tuple(Fault(5.1, FaultKind.KILL, (other,), lasts_s=8.0) for other in others(name))
    return (*overtaken(name)[:2], Fault(5.0, FaultKind.KILL, (name,), lasts_s=1.0), *killed)


def elsewhere(name: str) -> Faults:
    """All die. Some return long before the others, and have the journal by then."""
    late = tuple(Fault(6.0, FaultKind.KILL, (other,), lasts_s=9.0) for other in (name, others(name)[0]))
    early = tuple(Fault(6.0, FaultKind.KILL, (other,), lasts_s=1.0) for other in others(name)[1:])
    return (STORE_IS_DOWN, *late, *early)


def opened_in_vain(_: str) -> Faults:
    """Nobody has proposed anything yet in the epoch that was opened."""
    return (Fault(0.05, FaultKind.KILL_ALL, NAMES, lasts_s=1.0),)


def unanswered(name: str) -> Faults:
    """Etcd does what it is asked, and nobody hears of it."""
    return (Fault(5.0, FaultKind.ETCD_LOSS, lasts_s=4.0), Fault(5.5, FaultKind.KILL, (name,), lasts_s=3.0))


def created_again(name: str) -> Faults:
    return (
        STORE_IS_DOWN,
        Fault(4.0, FaultKind.KILL, (name,), lasts_s=8.0),
        Fault(6.0, FaultKind.RECREATE, journal=0, draw=1),
    )


def moved_and_lost(name: str) -> Faults:
    """The journal goes elsewhere, and before it is there a directory is gone."""
    return (
        STORE_IS_DOWN,
        *(Fault(5.0, FaultKind.MOVE, journal=0, draw=draw) for draw in range(3)),
        Fault(5.3, FaultKind.DISK_LOST, (name,), lasts_s=2.0),
    )


def changed(name: str) -> Faults:
    return (
        *(Fault(4.0 + at * 2.5, FaultKind.CHANGE_REPLICATION, journal=0, draw=at) for at in range(4)),
        Fault(9.0, FaultKind.MOVE, journal=0, draw=3),
        Fault(14.0, FaultKind.KILL, (name,), lasts_s=2.0),
    )


def paused(name: str) -> Faults:
    return (STORE_IS_DOWN, Fault(4.0, FaultKind.LONG_PAUSE, (name,), lasts_s=9.0))


def acknowledged_late(name: str) -> Faults:
    """Its peers have answered, and it reads that only after they have gone on."""
    return tuple(Fault(3.0 + at * 3.1, FaultKind.PAUSE, (name,), lasts_s=2.5) for at in range(5))


def killed_at_once(_: str) -> Faults:
    return (STORE_IS_DOWN, Fault(6.0, FaultKind.KILL_ALL, NAMES, lasts_s=2.0))


SCHEDULES: tuple[tuple[Callable[[str], Faults], dict[str, Any]], ...] = (
    (overtaken, {}),
    (overtaken_and_first_to_return, {}),
    (killed_at_once, {}),
    (elsewhere, {"replication": 2}),
    (paused, {}),
    (acknowledged_late, {}),
    (opened_in_vain, {}),
    (unanswered, {}),
    (created_again, {}),
    (moved_and_lost, {}),
    (changed, {"brokers": 4}),
)


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES, ids=[schedule.__name__ for schedule, _ in SCHEDULES])
def test_a_schedule_is_survived(schedule: Callable[[str], Faults], options: dict[str, Any]) -> None:
    for name in NAMES:
        ran = acted(schedule(name), **options)
        assert not ran.violations, f"{name}: {ran.report}"


def test_two_directories_are_lost_for_good_and_the_third_returns() -> None:
    for lost in combinations(NAMES, 2):
        faults = [Fault(6.0, FaultKind.DISK_LOST, (name,), lasts_s=2.0) for name in lost]
        rest = [Fault(6.0, FaultKind.KILL, (name,), lasts_s=3.0) for name in NAMES if name not in lost]
        ran = acted((STORE_IS_DOWN, *faults, *rest))
        assert not ran.violations, f"{lost}: {ran.report}"


def test_all_fragments_are_uploaded_and_cleaned_before_everyone_restarts() -> None:
    """The last record of the epoch is still there: it is closed where it ended, and not where it began."""
    ran = acted((Fault(14.0, FaultKind.KILL_ALL, NAMES, lasts_s=2.0),), fragment_length=1024, append_length_max=1000)
    assert not ran.violations, ran.report


@pytest.mark.parametrize(
    ("kind", "syncs_commits"), [(FaultKind.DISK_LOST, True), (FaultKind.POWER_LOSS, False)], ids=["disks", "power"]
)
def test_a_journal_that_lost_all_directories_never_begins_anew_in_silence(kind: FaultKind, syncs_commits: bool) -> None:
    lost = [Fault(6.0, kind, (name,), lasts_s=2.0) for name in NAMES]
    ran = acted((STORE_IS_DOWN, *lost), syncs_commits=syncs_commits)
    assert ran.over_budget
    acknowledged = [append for append in ran.history.appends if append.outcome is Outcome.OK]
    assert acknowledged
    lost_at_s = min(append.invoked.time_s for append in acknowledged) + 6.5
    assert not [append for append in acknowledged if append.invoked.time_s > lost_at_s], "until an operator says so"


@pytest.mark.parametrize("name", NAMES)
def test_the_only_broker_of_a_journal_dies(name: str) -> None:
    """No other one starts a second history."""
    ran = acted((STORE_IS_DOWN, Fault(5.0, FaultKind.KILL, (name,), lasts_s=8.0)), replication=1)
    assert not ran.violations, ran.report


@pytest.mark.parametrize("name", NAMES)
def test_a_holder_is_damaged_and_others_go_on(name: str) -> None:
    faults = (STORE_IS_DOWN, Fault(5.0, FaultKind.BIT_FLIP, (name,), lasts_s=2.0, draw=7))
    ran = acted((*faults, Fault(9.0, FaultKind.KILL_ALL, NAMES, lasts_s=2.0)))
    assert not ran.violations, ran.report
