from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import CrashError, Node, World

ROOT = Path(__file__).parents[2]


def chatter(seed: int) -> World:
    """Nodes that keep sending each other on, with crashes and pauses among them."""
    world = World(seed)
    nodes = [world.node(f"n{number}") for number in range(4)]

    def pass_on(node: Node) -> None:
        world.chance.choice(nodes).after(world.chance.random(), pass_on, world.chance.choice(nodes))

    def disturb() -> None:
        node = world.chance.choice(nodes)
        world.chance.choice([world.crash, world.restart, world.pause, world.resume])(node)
        pass_on(node)
        world.after(0.5, disturb)

    for node in nodes:
        pass_on(node)
    disturb()
    world.run(50.0)
    return world


def test_a_seed_replays_exactly() -> None:
    one, other = chatter(7), chatter(7)
    assert one.events > 100
    assert (one.fingerprint, one.trace()) == (other.fingerprint, other.trace())
    assert chatter(8).fingerprint != one.fingerprint


def test_a_seed_replays_in_another_process() -> None:
    program = "from tests.simulation.test_world import chatter; print(chatter(7).fingerprint)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) == chatter(7).fingerprint


def test_events_happen_in_time_and_then_in_the_order_they_were_asked_for() -> None:
    world = World(0)
    happened: list[object] = []
    node = world.node("a")
    for name, delay_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        node.after(delay_s, happened.append, name)
    world.run(1.5)
    assert happened == ["first", "second"]
    assert world.now_s == 1.5
    world.run(3.0)
    assert happened == ["first", "second", "late"]


def test_run_stops_when_told() -> None:
    world = World(0)
    happened: list[object] = []
    for number in range(5):
        world.after(number, happened.append, number)
    assert world.run(10.0, lambda: len(happened) == 3)
    assert (happened, world.now_s) == ([0, 1, 2], 2.0)
    assert not world.run(10.0, lambda: False)


def test_what_was_asked_for_before_a_crash_never_happens() -> None:
    world = World(0)
    happened: list[object] = []
    node = world.node("a")
    node.after(1.0, happened.append, "old")
    world.crash(node)
    node.after(1.0, happened.append, "asked of the dead")
    world.restart(node)
    node.after(1.0, happened.append, "new")
    world.run(2.0)
    assert happened == ["new"]


def test_a_program_is_made_anew_in_each_life() -> None:
    world = World(0)
    programs: list[object] = []

    def boot(node: Node) -> object:
        programs.append(object())
        return programs[-1]

    node = world.node("a", boot)
    assert node.program is programs[0]
    world.crash(node)
    assert node.program is None
    world.crash(node)
    world.restart(node)
    assert node.program is programs[1]
    assert (len(programs), node.life) == (2, 1)


def test_what_comes_during_a_pause_bursts_at_its_end_in_order() -> None:
    world = World(0)
    happened: list[tuple[str, float]] = []
    node = world.node("a")
    # Asked for in another order than that of their times.
    for name, delay_s in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("after", 10.0)):
        node.after(delay_s, lambda name: happened.append((name, world.now_s)), name)
    world.pause(node)
    world.after(5.0, world.resume, node)
    world.run(20.0)
    assert happened == [("first", 5.0), ("second", 5.0), ("third", 5.0), ("after", 10.0)]


def test_a_burst_goes_before_what_is_due_at_the_same_moment() -> None:
    world = World(0)
    happened: list[object] = []
    node = world.node("a")
    world.after(5.0, world.resume, node)
    node.after(5.0, happened.append, "due")
    node.after(1.0, happened.append, "parked")
    world.pause(node)
    world.run(9.0)
    assert happened == ["parked", "due"]


def test_a_node_that_dies_while_paused_forgets_what_waited() -> None:
    world = World(0)
    happened: list[object] = []
    node = world.node("a")
    node.after(1.0, happened.append, "old")
    world.pause(node)
    world.run(2.0)
    world.crash(node)
    world.restart(node)
    world.resume(node)
    world.run(3.0)
    assert happened == []


def test_a_timer_can_be_called_off() -> None:
    world = World(0)
    happened: list[object] = []
    node = world.node("a")
    kept, cancelled = node.timer(1.0, happened.append, "kept"), node.timer(1.0, happened.append, "cancelled")
    cancelled.cancel()
    world.run(2.0)
    assert happened == ["kept"]
    assert kept.is_cancelled, "it has fired, and there is nothing left to call off"


def test_a_node_may_die_in_the_middle_of_an_event() -> None:
    world = World(0)
    told: list[tuple[str, bool]] = []
    node = world.node("a")
    node.crash_listeners.append(lambda node, power_lost: told.append((node.name, power_lost)))

    def step() -> None:
        try:
            raise CrashError(power_lost=True)
        except Exception:
            pytest.fail("no program may catch its own death")

    node.after(1.0, step)
    world.run(2.0)
    assert told == [("a", True)]
    assert not node.is_up


def test_the_trace_tells_the_last_events_and_notes() -> None:
    world = World(0, trace_events=3)
    node = world.node("broker")

    def append(_: int) -> None:
        node.note("appended", world.now_s)

    for number in range(3):
        node.after(number, append, number)
    node.timer(5.0, append, 9)
    world.run(9.0)
    assert len(world.trace()) == 3
    assert world.trace()[-1].split() == ["5.0000", "broker", "appended", "5.0"]
    assert "append" in world.trace("locals")[-1], "a timer is shown as what it does"
