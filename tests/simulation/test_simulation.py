"""Whole clusters on a virtual clock, with the shipped cores: without faults, through swarms of them, and with planted
mistakes that have to be found."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.client import REFUSED
from tests.simulation.cluster import Run, run, swarm
from tests.simulation.faults import Fault, FaultKind, Options, broker_names
from tests.simulation.history import Outcome
from tests.simulation.mutants import MUTANTS, Mutant

BLOCK = 10
SEEDS_MAX = 300
"""Of seeds that are tried for a planted mistake: they take some 30 s."""
ROOT = Path(__file__).parents[2]

EVERYONE = broker_names(replace(Options.draw(1), brokers=4))
STORE_IS_DOWN = Fault(0.5, FaultKind.STORE_DOWN, lasts_s=12.0)

# Refusals that a client has asked for, by saying what it expects.
_CONDITIONS = ("REGISTER_MISMATCH", "WRONG_APPEND_OFFSET", "never asked for")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What brokers log of all that befalls them would fill the memory of a long run."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def expect_clean(ran: Run) -> None:
    if ran.is_failed:
        pytest.fail(ran.report, pytrace=False)


def check_swarm(seeds: range) -> int:
    """How many of them went beyond what must be survived."""
    over = 0
    for seed in seeds:
        ran = run(swarm(seed))
        expect_clean(ran)
        over += ran.over_budget
    return over


# Without faults.


def check_without_faults(seeds: range) -> None:
    for seed in seeds:
        ran = run(swarm(seed, kinds=[]))
        expect_clean(ran)
        assert not ran.over_budget
        assert not [
            (append.number, append.why)
            for append in ran.history.appends
            if append.outcome is not Outcome.OK and not append.why.startswith(_CONDITIONS)
        ], f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 30, BLOCK))
def test_without_faults_every_append_is_acknowledged_and_every_byte_is_read(first: int) -> None:
    check_without_faults(range(first, first + BLOCK))


@pytest.mark.slow
def test_without_faults_the_same_holds_for_many_seeds() -> None:
    check_without_faults(range(30, 330))


# With faults.


@pytest.mark.parametrize("first", range(0, 120, BLOCK))
def test_what_was_promised_holds_through_faults(first: int) -> None:
    check_swarm(range(first, first + BLOCK))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 500))
def test_what_was_promised_holds_through_thousands_of_schedules(first: int) -> None:
    over = check_swarm(range(first, first + 500))
    assert over < 25, "runs that go beyond prove nothing, so there must be few"


@pytest.mark.slow
@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.name)
def test_each_kind_of_fault_is_survived_by_itself(kind: FaultKind) -> None:
    for seed in range(60):
        options = replace(swarm(seed, kinds=[]), intervals_s=((kind, kind.interval_s * 0.3),))
        expect_clean(run(options))


@pytest.mark.parametrize(
    ("seed", "lesson"),
    [
        (100936, "fewer members than there should be decided on a tail, which was read and then lost with the last"),
        (300222, "a tail that one member had when all synchronised was read from that one, and lost with it"),
        (302684, "the same, where a barrier had found the head above it"),
        (2872, "a replica forgot with its spool through where the journal was acknowledged, and told readers of less"),
        (
            1339,
            "who was leaving waited for others to take what nobody in its zones could, and kept journals from going on",
        ),
        (515, "the first fragment could not be stored and the second could, so that readers were sent to that one"),
    ],
)
def test_what_failed_once_does_not_fail_again(seed: int, lesson: str) -> None:
    """Beside these, the mistakes themselves are planted below, since a schedule changes with all that it meets."""
    assert lesson
    expect_clean(run(swarm(seed)))


def test_nobody_skips_what_a_primary_could_not_store_before_it_died() -> None:
    """To a broker that joins later, a journal begins with the lowest object in the store: nothing may go there before
    the first fragment does, whoever has it then."""
    options = replace(
        Options.draw(1, kinds=[]),
        brokers=4,
        replication=2,
        journals=1,
        clients=2,
        readers=4,
        duration_s=40.0,
        lease_ttl_s=5,
        append_pause_s=0.5,
        append_length_max=100,
        fragment_length=1024,
        names_offsets=False,
        keeps_budget=True,
    )
    store_is_down = Fault(0.1, FaultKind.STORE_DOWN, lasts_s=6.0)
    for name in EVERYONE:
        expect_clean(run(options, (store_is_down, Fault(3.0, FaultKind.KILL, (name,), lasts_s=2.0))))


def test_a_seed_replays_exactly_in_another_process() -> None:
    seed = 17
    ran = run(swarm(seed))
    code = (
        "import logging; logging.disable(50)\n"
        "from tests.simulation.cluster import run, swarm\n"
        f"ran = run(swarm({seed})); print(ran.world.events, ran.world.fingerprint, len(ran.history.chunks))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(ran.world.events), str(ran.world.fingerprint), str(len(ran.history.chunks))]


def test_a_failing_run_says_how_to_run_it_again() -> None:
    with pytest.MonkeyPatch.context() as patch:
        next(mutant for mutant in MUTANTS if mutant.name.startswith("commit at the end")).plant(patch)
        ran = next(ran for seed in range(20) if (ran := run(swarm(seed, kinds=[]))).is_failed)
    assert f"--seed {ran.options.seed}" in ran.report
    assert "C4 aborted-read" in ran.report
    assert "options of this seed" in ran.report


# What was beyond Gazette's rules, and is not any more: with those of ``test_schedules``.


def durable(*, replication: int, faults: tuple[Fault, ...], duration_s: float = 22.0) -> Run:
    options = replace(
        Options.draw(1, kinds=[]),
        brokers=4,
        replication=replication,
        journals=1,
        clients=2,
        duration_s=duration_s,
        lease_ttl_s=5,
        syncs_commits=True,
        append_pause_s=0.5,
        names_offsets=False,
        keeps_budget=False,
    )
    return run(options, faults)


@pytest.mark.parametrize("name", EVERYONE)
def test_a_holder_is_damaged_and_others_go_on(name: str) -> None:
    faults = (STORE_IS_DOWN, Fault(5.0, FaultKind.BIT_FLIP, (name,), lasts_s=2.0, draw=7))
    ran = durable(replication=3, faults=(*faults, Fault(9.0, FaultKind.KILL_ALL, EVERYONE, lasts_s=2.0)))
    assert not ran.violations, ran.report


def test_all_brokers_are_killed_before_anything_is_stored() -> None:
    expect_clean(durable(replication=3, faults=(STORE_IS_DOWN, Fault(6.0, FaultKind.KILL_ALL, EVERYONE, lasts_s=2.0))))


def test_all_brokers_are_killed_after_something_was_stored() -> None:
    expect_clean(durable(replication=3, faults=(Fault(8.0, FaultKind.KILL_ALL, EVERYONE, lasts_s=2.0),)))


def test_the_only_broker_of_a_journal_is_killed() -> None:
    killed = tuple(Fault(6.0 + at, FaultKind.KILL, (name,), lasts_s=1.5) for at, name in enumerate(EVERYONE))
    expect_clean(durable(replication=1, faults=(STORE_IS_DOWN, *killed)))


def test_the_only_broker_of_a_journal_is_paused_past_its_lease() -> None:
    paused = Fault(4.0, FaultKind.LONG_PAUSE, EVERYONE[-1:], lasts_s=9.0)
    expect_clean(durable(replication=1, faults=(STORE_IS_DOWN, paused)))


def test_etcd_is_away_for_longer_than_any_lease_lasts() -> None:
    cut = tuple(Fault(5.0, FaultKind.PARTITION, (name,), ("etcd",), lasts_s=11.0) for name in EVERYONE)
    expect_clean(durable(replication=3, faults=cut))


def test_all_machines_lose_power_though_commits_are_synced() -> None:
    lost = tuple(Fault(6.0, FaultKind.POWER_LOSS, (name,), lasts_s=2.0) for name in EVERYONE)
    expect_clean(durable(replication=3, faults=(STORE_IS_DOWN, *lost)))


def test_a_primary_that_is_paused_past_its_lease_does_no_harm_while_others_are_left() -> None:
    """What it holds beyond the others is not acknowledged, not shown, and not uploaded."""
    for at, name in enumerate(EVERYONE):
        fault = Fault(4.0 + at * 0.37, FaultKind.LONG_PAUSE, (name,), lasts_s=9.0)
        expect_clean(durable(replication=3, faults=(fault,)))


# Disks that hang.


@pytest.mark.parametrize("lasts_s", [7.0, 19.0], ids=["for a while", "for longer than its broker waits"])
def test_a_disk_hangs_and_then_does_what_it_was_asked_for_after_all(lasts_s: float) -> None:
    for name in EVERYONE:
        hung = Fault(3.0, FaultKind.DISK_HANGS, (name,), lasts_s=lasts_s)
        expect_clean(durable(replication=3, faults=(STORE_IS_DOWN, hung), duration_s=30.0))


def test_a_disk_that_hangs_fails_appends_and_its_broker_leaves_the_journal_to_others() -> None:
    """While it still hangs: 3.75 s after it began to, they are told, and 15 s after it the broker is gone."""
    whys: set[str] = set()
    for name in EVERYONE:
        hung = Fault(3.0, FaultKind.DISK_HANGS, (name,), lasts_s=100.0)
        ran = durable(replication=3, faults=(hung,), duration_s=40.0)
        expect_clean(ran)
        invoked_s = [append.invoked.time_s for append in ran.history.appends if append.outcome is Outcome.OK]
        assert [time_s for time_s in invoked_s if 25.0 < time_s - min(invoked_s) < 37.0], f"{name}: {ran.report}"
        whys |= {append.why for append in ran.history.appends if "hangs" in append.why}
    assert any("nothing was written within 3.75 s" in why for why in whys)


# Planted mistakes.


def hostile(mutant: Mutant, seed: int) -> Options:
    """All of the faults that bring it to light, and often."""
    intervals_s = tuple((kind, kind.interval_s * 0.3) for kind in mutant.kinds)
    options = replace(swarm(seed, kinds=[]), intervals_s=intervals_s)
    brokers, replication = mutant.sizes or (options.brokers, options.replication)
    lease_ttl_s = options.lease_ttl_s if mutant.sizes is None else 5
    return replace(options, brokers=brokers, replication=replication, lease_ttl_s=lease_ttl_s)


def is_caught(mutant: Mutant, seed: int) -> bool:
    ran = run(hostile(mutant, seed))
    if ran.over_budget:
        return False
    if any(violation.check == "C15" for violation in ran.violations):
        # It, or an assertion, ended the run: that says nothing about what was promised.
        return False
    # Without faults no append fails, be it known or not whether it was done: that is promised, too.
    failed = not mutant.kinds and any(
        append.outcome is Outcome.UNKNOWN or append.why.startswith(REFUSED) for append in ran.history.appends
    )
    return bool(ran.violations) or failed


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_mistake_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a minute, and by a schedule that is clean without it. The known seed is only where to begin: schedules
    change with all that they meet."""
    seeds = dict.fromkeys((mutant.caught_by, *range(SEEDS_MAX)))
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        caught = next((seed for seed in seeds if is_caught(mutant, seed)), None)
    assert caught is not None
    expect_clean(run(hostile(mutant, caught)))
