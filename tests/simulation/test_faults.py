from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from allocator.keyspace import KeySpace
from allocator.transaction import Put, Transaction
from fragment.spool import Proposal
from fragment.spool_directory import FsyncMode
from fragment.spool_writer import SpoolWriter
from protocol.errors import UnavailableError
from protocol.label import LabelSet
from tests.simulation.checkers import Violation
from tests.simulation.disk import SimulatedDisk
from tests.simulation.etcd import Etcd, EtcdAccess
from tests.simulation.etcd_watch import Mirror, WatchServer
from tests.simulation.failure_report import failure_report
from tests.simulation.faults import Fault, FaultKind, Options, broker_names, schedule, shrunk
from tests.simulation.history import History
from tests.simulation.injector import Injector
from tests.simulation.lease_keeping import LeaseKeeping
from tests.simulation.network import Network
from tests.simulation.store import Store
from tests.simulation.world import Node, World

ROOT = Path(__file__).parents[2]


def test_a_seed_draws_the_same_options_and_schedule_again() -> None:
    assert Options.draw(5) == Options.draw(5)
    assert schedule(Options.draw(5)) == schedule(Options.draw(5))
    assert Options.draw(5) != Options.draw(6)


def test_over_many_seeds_every_fault_and_size_is_drawn() -> None:
    drawn = [Options.draw(seed) for seed in range(400)]
    assert {options.brokers for options in drawn} == {3, 4, 5, 6, 7}
    assert {options.replication for options in drawn} == {1, 2, 3}
    assert {kind for options in drawn for kind, _ in options.intervals_s} == set(FaultKind)
    counts = [len(options.intervals_s) for options in drawn]
    assert min(counts) == 0
    assert sum(count <= 2 for count in counts) > len(counts) / 2, "often few"
    assert 0.8 < sum(options.keeps_budget for options in drawn) / len(drawn) < 0.98
    assert {fault.kind for options in drawn for fault in schedule(options)} == set(FaultKind)


def test_only_the_kinds_that_were_asked_for_are_drawn() -> None:
    for seed in range(50):
        options = Options.draw(seed, kinds=[FaultKind.PAUSE])
        assert {fault.kind for fault in schedule(options)} <= {FaultKind.PAUSE}


def test_a_schedule_is_in_order_and_within_its_phase() -> None:
    for seed in range(50):
        options = Options.draw(seed)
        times_s = [fault.at_s for fault in schedule(options)]
        assert times_s == sorted(times_s)
        assert all(0 < at_s < options.duration_s for at_s in times_s)


def test_the_description_names_everything_that_was_drawn() -> None:
    options = replace(Options.draw(5), intervals_s=((FaultKind.PAUSE, 3.0),))
    text = options.describe()
    assert "brokers =" in text
    assert "PAUSE every 3.0 s" in text
    assert set(Options.__slots__) - {"intervals_s"} <= set(text.split())


def test_a_schedule_is_shrunk_to_what_makes_it_fail() -> None:
    faults = tuple(Fault(float(number), FaultKind.KILL) for number in range(20))
    runs = []

    def fails(tried: tuple[Fault, ...]) -> bool:
        runs.append(tried)
        return faults[3] in tried and faults[17] in tried

    assert shrunk(faults, fails) == (faults[3], faults[17])
    assert len(runs) < 60
    assert shrunk((), lambda _: True) == ()


# Injected.


@dataclass
class NoOperators:
    settled: bool = False
    done: list[tuple[str, int]] = field(default_factory=list)

    def move(self, journal: int, chance: Random) -> None:
        self.done.append(("move", journal))

    def change_replication(self, journal: int, replication: int) -> None:
        self.done.append(("change replication", journal))

    def recreate(self, journal: int) -> None:
        self.done.append(("recreate", journal))

    def suspend(self, journal: int, chance: Random) -> None:
        self.done.append(("suspend", journal))

    def is_settled(self) -> bool:
        return self.settled


@dataclass
class Rig:
    options: Options
    world: World
    network: Network
    etcd: Etcd
    store: Store
    disks: dict[str, SimulatedDisk]
    operators: NoOperators
    injector: Injector

    def brokers(self) -> list[Node]:
        return [self.world.nodes[name] for name in broker_names(self.options)]


def rig(options: Options) -> Rig:
    world = World(options.seed)
    network = Network(world)
    etcd, store = Etcd(world.node("etcd")), Store(network, world.node("store"))
    disks = {name: SimulatedDisk(world.node(name)) for name in broker_names(options)}
    for disk in disks.values():
        disk.open(FsyncMode())
    operators = NoOperators()
    injector = Injector(options, network, etcd, store, disks, operators)
    return Rig(options, world, network, etcd, store, disks, operators, injector)


def options_for(**changes: Any) -> Options:
    fixed: dict[str, Any] = {"brokers": 5, "replication": 3, "syncs_commits": False, "keeps_budget": True}
    return replace(Options.draw(0), **{**fixed, **changes})


@pytest.mark.parametrize("seed", range(40))
def test_after_the_healing_nothing_is_broken(seed: int) -> None:
    options = replace(
        Options.draw(seed), intervals_s=tuple((kind, 4.0) for kind in FaultKind), keeps_budget=seed % 2 == 0
    )
    it = rig(options)
    it.injector.arm(schedule(options))
    it.world.after(options.duration_s, it.injector.heal)
    it.world.run(options.duration_s + 200.0)
    assert all(node.is_up and not node.is_paused for node in it.world.nodes.values())
    assert not it.etcd.faults.request_loss_rate
    assert not it.store.faults.is_down
    for disk in it.disks.values():
        assert not disk.faults.error_rate
        assert not disk.faults.is_full
    for one in it.world.nodes.values():
        for other in it.world.nodes.values():
            link = it.network.link(one, other)
            assert (link.cut, link.is_clogged, link.slow_s) == (None, False, 0.0)
    if options.keeps_budget:
        assert not it.injector.budget.is_over


def test_the_healing_ends_what_would_last_longer_and_what_is_yet_to_come() -> None:
    it = rig(options_for())
    it.injector.arm(
        [
            Fault(1.0, FaultKind.PAUSE, ("b0",), lasts_s=1000.0),
            Fault(1.0, FaultKind.KILL, ("b1",), lasts_s=1000.0),
            Fault(6.0, FaultKind.KILL, ("b2",), lasts_s=1000.0),
        ]
    )
    it.world.after(5.0, it.injector.heal)
    it.world.run(4.0)
    assert [(node.is_up, node.is_paused) for node in it.brokers()[:2]] == [(True, True), (False, False)]
    it.world.run(20.0)
    assert all(node.is_up and not node.is_paused for node in it.brokers())


def eventful(seed: int) -> Rig:
    """Everything there is, at once: mirrors, leases, spools, uploads and streams, with every kind of fault."""
    options = replace(Options.draw(seed), intervals_s=tuple((kind, 4.0) for kind in FaultKind), duration_s=30.0)
    it = rig(options)
    WatchServer(it.network, it.etcd)

    def boot(node: Node) -> object:
        access = EtcdAccess(it.network, it.etcd, node)
        mirror = Mirror(access, KeySpace("/p", lambda _, raw: raw), lambda update: None)
        mirror.start(lambda: None)
        lease = LeaseKeeping(access, options.lease_ttl_s, lambda _: None, lambda _: end(node))
        lease.start()
        writer = it.disks[node.name].open(FsyncMode(commit=options.syncs_commits)).writer("acme/orders", lambda: b"")
        it.network.serve(node, lambda stream, _: (lambda message: None, lambda end: stream.half_close()))
        node.after(0.1, work, node, access, writer, 0)
        return mirror

    def end(node: Node) -> None:
        """As a broker does without a lease, to be started again."""
        it.world.crash(node)
        it.world.after(1.0, it.world.restart, node)

    def work(node: Node, access: EtcdAccess, writer: SpoolWriter, count: int) -> None:
        try:
            writer.content(b"x" * 10, 0)
            writer.propose(Proposal(writer.spool.next(), LabelSet(), it.world.unix_ns))
        except UnavailableError:
            # What cannot be removed now is there at the next attempt.
            with suppress(UnavailableError):
                writer.roll_back()
        access.commit(Transaction((), (Put(f"/p/{node.name}", b"%d" % count),)), lambda _: None)
        if count % 10 == 9 and (completed := writer.complete().completed):
            fragment = completed.spool.fragment
            content = completed.file.read(0, fragment.content_length)
            it.store.put(node, fragment.content_path, content, lambda _: None)
        stream = it.network.open(node, it.world.chance.choice(it.brokers()), "x", lambda _: None, lambda _: None)
        stream.send(count)
        stream.half_close()
        node.after(0.2, work, node, access, writer, count + 1)

    for node in it.brokers():
        node.boot = boot
        node.program = boot(node)
    it.injector.arm(schedule(options))
    it.world.after(options.duration_s, it.injector.heal)
    it.world.run(options.duration_s + 10.0)
    return it


def test_everything_together_replays_also_in_another_process() -> None:
    here = eventful(3).world
    assert here.events > 5000
    assert eventful(3).world.trace() == here.trace()
    program = "from tests.simulation.test_faults import eventful; print(eventful(3).world.fingerprint)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) == here.fingerprint


@pytest.mark.parametrize("seed", range(3))
def test_after_everything_each_broker_has_its_one_watch_and_its_one_lease(seed: int) -> None:
    it = eventful(seed)
    it.world.run(it.world.now_s + 40.0)
    assert len(it.network.streams_of(it.etcd.node)) == len(it.brokers())
    assert len(it.etcd.leases) == len(it.brokers())


def test_the_budget_keeps_faults_from_taking_the_last_copy() -> None:
    it = rig(options_for())
    it.injector.arm([Fault(float(at), FaultKind.POWER_LOSS, (f"b{at}",), lasts_s=100.0) for at in range(4)])
    it.world.run(50.0)
    assert [node.is_up for node in it.brokers()] == [False, False, True, True, True]
    assert it.injector.skipped == 2
    assert not it.injector.budget.is_over


def test_what_is_settled_can_be_lost_again() -> None:
    it = rig(options_for())
    it.operators.settled = True
    it.injector.arm([Fault(float(at), FaultKind.POWER_LOSS, (f"b{at}",), lasts_s=100.0) for at in range(4)])
    it.world.run(50.0)
    assert [node.is_up for node in it.brokers()] == [False, False, False, False, True]


def test_a_run_that_goes_beyond_is_marked() -> None:
    it = rig(options_for(keeps_budget=False))
    it.injector.arm([Fault(1.0, FaultKind.POWER_LOSS, (name,), lasts_s=1.0) for name in broker_names(it.options)])
    it.world.run(50.0)
    assert it.injector.budget.is_over


def test_a_machine_that_loses_power_otherwise_counts_too_but_a_mere_death_does_not() -> None:
    it = rig(options_for(replication=1))
    it.world.crash(it.brokers()[0])
    assert not it.injector.budget.is_over
    it.world.crash(it.brokers()[1], power_lost=True)
    assert it.injector.budget.is_over


def test_spools_are_not_lost_with_their_process_but_with_their_directory() -> None:
    it = rig(options_for(syncs_commits=True))
    everyone = broker_names(it.options)
    it.injector.arm(
        [
            Fault(1.0, FaultKind.KILL_ALL, everyone, lasts_s=1.0),
            Fault(5.0, FaultKind.POWER_LOSS, ("b0",), lasts_s=1.0),
            *(Fault(10.0 + at, FaultKind.DISK_LOST, (f"b{at}",), lasts_s=0.5) for at in range(3)),
        ]
    )
    it.world.run(50.0)
    assert it.injector.skipped == 1
    assert not it.injector.budget.is_over


def test_fewer_replicas_are_a_smaller_budget() -> None:
    it = rig(options_for())
    it.injector.arm([Fault(1.0, FaultKind.CHANGE_REPLICATION, ("b0",), journal=0, draw=draw) for draw in range(20)])
    it.injector.arm([Fault(2.0, FaultKind.POWER_LOSS, ("b0",), lasts_s=1.0)])
    it.world.run(5.0)
    assert it.operators.done[0] == ("change replication", 0)
    assert it.injector.skipped == 1


def test_however_long_somebody_is_away_from_etcd_is_no_loss() -> None:
    it = rig(options_for(replication=1, lease_ttl_s=10))
    it.injector.arm(
        [
            Fault(1.0, FaultKind.LONG_PAUSE, ("b0",), lasts_s=20.0),
            Fault(1.0, FaultKind.PARTITION, ("b0",), ("b1", "etcd"), lasts_s=20.0),
            Fault(1.0, FaultKind.ETCD_PAUSE, (), lasts_s=20.0),
            Fault(1.0, FaultKind.PARTITION, ("b0",), ("b1",), lasts_s=20.0),
        ]
    )
    it.world.run(2.0)
    assert it.injector.skipped == 0
    assert not it.injector.budget.is_over


def test_operators_are_asked() -> None:
    it = rig(options_for())
    it.injector.arm([Fault(1.0, FaultKind.MOVE, ("b0",)), Fault(2.0, FaultKind.RECREATE, ("b0",))])
    it.world.run(5.0)
    assert it.operators.done == [("move", 0), ("recreate", 0)]


def test_a_failure_is_reported_in_full() -> None:
    it = rig(options_for())
    faults = schedule(it.options)
    history = History(lambda: it.world.now_s)
    history.append("c1", "acme/orders")
    text = failure_report(it.options, faults, it.world, history, [Violation("C1", "lost-ack", "acme/orders", "gone")])
    assert "seed 0 failed" in text
    assert "C1 lost-ack in acme/orders: gone" in text
    assert "c1 invoke append 1" in text
    assert it.options.describe() in text
