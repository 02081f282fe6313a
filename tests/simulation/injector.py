"""Injector: makes the faults of a schedule happen, within the budget of what was promised to be survived, and heals
everything when their time is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from tests.simulation.disk import SimulatedDisk
from tests.simulation.etcd import Etcd
from tests.simulation.faults import Fault, FaultKind, Options
from tests.simulation.network import Cut, Network
from tests.simulation.store import Store, StoreFaults
from tests.simulation.world import Node, World


class Operators(Protocol):
    """What people do to a cluster. Each may be impossible just then, and does nothing."""

    def move(self, journal: int, chance: Random) -> None: ...
    def change_replication(self, journal: int, replication: int) -> None: ...
    def recreate(self, journal: int) -> None: ...
    def suspend(self, journal: int, chance: Random) -> None: ...

    def is_settled(self) -> bool:
        """Whether as many brokers as the journal is to have know where it ends, and have all that is in no store."""
        ...


class Budget:
    """How many copies of bytes that are not in a store may be lost at a time: one less than there are."""

    def __init__(self, options: Options, operators: Operators) -> None:
        self._allowed = options.replication - 1
        self._options = options
        self._operators = operators
        self._lost: dict[str, None] = {}
        self._excused: set[str] = set()
        # Who may yet be lost by what has befallen it, and until when.
        self._at_risk: dict[str, float] = {}
        self.is_over = False

    def watch(self, node: Node) -> None:
        """Count the deaths of this node, whatever they are due to: a broker also ends itself, when its lease has."""
        node.crash_listeners.append(self._crashed)

    def limit(self, replication: int) -> None:
        """There may be fewer copies from now on."""
        self._allowed = min(self._allowed, replication - 1)

    def risk(self, nodes: Sequence[str], now_s: float, lasts_s: float) -> None:
        """These may end themselves because of something that lasts so long."""
        until_s = now_s + lasts_s + self._options.lease_ttl_s
        for node in nodes:
            self._at_risk[node] = max(until_s, self._at_risk.get(node, 0.0))

    def allows(self, nodes: Sequence[str], now_s: float) -> bool:
        return self._count([*nodes, *self._threatened(now_s)]) <= self._allowed

    def allows_limit(self, replication: int, now_s: float) -> bool:
        """Whether there may be so few copies: the one that is kept must not be one that is lost and not missed yet."""
        return self._count(self._threatened(now_s)) < replication

    def _threatened(self, now_s: float) -> list[str]:
        return [node for node, until_s in self._at_risk.items() if until_s > now_s]

    def _count(self, nodes: Sequence[str]) -> int:
        if self._operators.is_settled():
            self._lost.clear()
        return len({*self._lost, *nodes})

    def lose(self, node: str) -> None:
        if self._count([node]) > self._allowed:
            self.is_over = True
        self._lost[node] = None

    def excuse(self, node: str) -> None:
        """It is about to end, and holds nothing that is not in the store."""
        self._excused.add(node)

    def _crashed(self, node: Node, power_lost: bool) -> None:
        options = self._options
        if node.name in self._excused:
            self._excused.remove(node.name)
            return
        if power_lost and not options.syncs_commits:
            self.lose(node.name)


class Injector:
    def __init__(
        self,
        options: Options,
        network: Network,
        etcd: Etcd,
        store: Store,
        disks: Mapping[str, SimulatedDisk],
        operators: Operators,
    ) -> None:
        """`disks` are those of the brokers, by their names."""
        self.budget = Budget(options, operators)
        self.skipped = 0
        self._options = options
        self._world: World = network.world
        self._network = network
        self._etcd = etcd
        self._etcd_usual = replace(etcd.faults)
        self._store = store
        self._disks = disks
        self._operators = operators
        self._is_healed = False
        for name in disks:
            self.budget.watch(self._world.nodes[name])

    def arm(self, faults: Sequence[Fault]) -> None:
        """Have them happen in their time."""
        for fault in faults:
            self._world.after(fault.at_s - self._world.now_s, self._inject, fault)

    def heal(self) -> None:
        """From now on everything works, and everyone is up."""
        self._is_healed = True
        self._world.outside.note("everything is healed")
        self._network.heal()
        self._etcd.faults = replace(self._etcd_usual)
        self._store.heal()
        for disk in self._disks.values():
            disk.heal()
        for node in self._world.nodes.values():
            self._world.resume(node)
            self._world.restart(node)

    def _inject(self, fault: Fault) -> None:
        if self._is_healed:
            return
        if self._options.keeps_budget and not self._is_affordable(fault):
            self.skipped += 1
            return
        self._world.outside.note(f"fault: {fault}")
        if fault.nodes and fault.others:
            self._befall_links(fault)
        elif fault.nodes and fault.kind.name in _OF_BROKERS:
            for name in fault.nodes:
                self._befall_broker(fault, self._world.nodes[name])
        else:
            self._befall_cluster(fault)

    def _is_affordable(self, fault: Fault) -> bool:
        losers, now_s = self._losers(fault), self._world.now_s
        if losers and not self.budget.allows(losers, now_s):
            return False
        if fault.kind not in _AT_ONCE:
            self.budget.risk(losers, now_s, fault.lasts_s)
        return True

    def _losers(self, fault: Fault) -> tuple[str, ...]:
        """The brokers that may lose their copies by this fault."""
        kind, options = fault.kind, self._options
        if kind in (FaultKind.DISK_LOST, FaultKind.BIT_FLIP):
            return fault.nodes
        if kind is FaultKind.POWER_LOSS:
            return () if options.syncs_commits else fault.nodes
        # What is on disk outlives its process.
        return ()

    # Brokers.

    def _befall_broker(self, fault: Fault, node: Node) -> None:
        disk = self._disks[node.name]
        match fault.kind:
            case FaultKind.KILL | FaultKind.KILL_ALL:
                self._end_process(fault, node, power_lost=False)
            case FaultKind.POWER_LOSS:
                self._end_process(fault, node, power_lost=True)
            case FaultKind.DISK_LOST:
                self._end_process(fault, node, power_lost=False)
                disk.wipe()
                self.budget.lose(node.name)
            case FaultKind.BIT_FLIP:
                self._end_process(fault, node, power_lost=False)
                disk.wiped()
                disk.corrupt()
                self.budget.lose(node.name)
            case FaultKind.KILL_IN_A_STEP:
                disk.crash_after(fault.draw % 6, power_lost=fault.draw % 7 == 0 and self._options.syncs_commits)
                # It may have nothing to write for long; then it is not restarted, because it never died.
                self._world.after(fault.lasts_s, self._world.restart, node)
            case FaultKind.PAUSE | FaultKind.LONG_PAUSE:
                self._world.pause(node)
                self._world.after(fault.lasts_s, self._world.resume, node)
            case _:
                self._befall_disk(fault, disk)

    def _befall_disk(self, fault: Fault, disk: SimulatedDisk) -> None:
        match fault.kind:
            case FaultKind.DISK_ERRORS:
                disk.faults.error_rate = 0.2
            case FaultKind.DISK_FULL:
                disk.faults.is_full = True
            case FaultKind.DISK_SLOW:
                disk.faults.slow_s = 0.5
            case FaultKind.DISK_HANGS:
                disk.faults.is_hung = True
            case _:
                raise AssertionError(f"{fault.kind} does not befall brokers")
        self._until_healed(fault, disk.heal)

    def _end_process(self, fault: Fault, node: Node, *, power_lost: bool) -> None:
        self._world.crash(node, power_lost=power_lost)
        self._world.after(fault.lasts_s, self._world.restart, node)

    # Links.

    def _befall_links(self, fault: Fault) -> None:
        nodes, others = ([self._world.nodes[name] for name in names] for names in (fault.nodes, fault.others))
        kind = Cut.REJECTED if fault.draw % 3 == 0 else Cut.SILENT
        if fault.kind is FaultKind.PARTITION:
            self._network.partition(nodes, others, kind)
        for one in nodes:
            for other in others:
                self._befall_link(fault, one, other, kind)

    def _befall_link(self, fault: Fault, one: Node, other: Node, cut: Cut) -> None:
        if fault.kind is FaultKind.ONE_WAY_CUT:
            self._network.cut(one, other, cut)
        elif fault.kind is FaultKind.CLOG:
            self._network.clog(one, other)
        elif fault.kind is FaultKind.SLOW_LINK:
            self._network.link(one, other).slow_s = 0.3
        for src, dst in ((one, other), (other, one)):
            self._world.after(fault.lasts_s, self._clear_link, src, dst)

    def _clear_link(self, src: Node, dst: Node) -> None:
        link = self._network.link(src, dst)
        link.cut, link.slow_s = None, 0.0
        self._network.unclog(src, dst)

    # All the rest.

    def _befall_cluster(self, fault: Fault) -> None:
        chance = Random(fault.draw)
        match fault.kind:
            case FaultKind.DROPS:
                self._network.times.drop_rate = 0.02
                self._until_healed(fault, self._stop_drops)
            case FaultKind.ETCD_PAUSE:
                self._world.pause(self._etcd.node)
                self._world.after(fault.lasts_s, self._world.resume, self._etcd.node)
            case FaultKind.ETCD_LOSS:
                self._etcd.faults.request_loss_rate = self._etcd.faults.answer_loss_rate = 0.3
                self._until_healed(fault, self._heal_etcd)
            case FaultKind.WATCH_TROUBLE:
                faults = self._etcd.faults
                faults.watch_lag_rate = faults.watch_split_rate = 0.5
                faults.watch_drop_rate = 0.2
                self._until_healed(fault, self._heal_etcd)
            case FaultKind.COMPACTION:
                self._etcd.faults.watch_drop_rate = 0.5
                self._until_healed(fault, self._compact)
            case FaultKind.STORE_ERRORS:
                rates = chance.choice(((0.5, 0.0), (0.1, 0.3), (0.0, 0.5)))
                lag_s = self._store.faults.list_lag_s
                self._store.faults = StoreFaults(rates[0], rates[1], rates[1], 0.2, 30.0, lag_s)
                self._until_healed(fault, self._store.heal)
            case FaultKind.STORE_DOWN:
                self._store.faults.is_down = True
                self._until_healed(fault, self._store.heal)
            case _:
                self._operate(fault, chance)

    def _operate(self, fault: Fault, chance: Random) -> None:
        match fault.kind:
            case FaultKind.MOVE:
                self._operators.move(fault.journal, chance)
            case FaultKind.CHANGE_REPLICATION:
                replication = chance.randint(1, min(3, self._options.brokers))
                if self._may_be_as_few_as(replication):
                    self._operators.change_replication(fault.journal, replication)
            case FaultKind.SUSPEND:
                # One broker has what is not in the store yet.
                if self._may_be_as_few_as(1):
                    self._operators.suspend(fault.journal, chance)
            case FaultKind.RECREATE:
                self._operators.recreate(fault.journal)
            case _:
                raise AssertionError(f"{fault.kind} befalls somebody")

    def _may_be_as_few_as(self, replication: int) -> bool:
        if self._options.keeps_budget and not self.budget.allows_limit(replication, self._world.now_s):
            self.skipped += 1
            return False
        self.budget.limit(replication)
        return True

    def _stop_drops(self) -> None:
        self._network.times.drop_rate = 0.0

    def _heal_etcd(self) -> None:
        self._etcd.faults = replace(self._etcd_usual)

    def _compact(self) -> None:
        self._etcd.compact(self._etcd.revision)
        self._heal_etcd()

    def _until_healed(self, fault: Fault, heal: Callable[[], None]) -> None:
        self._world.after(fault.lasts_s, heal)


_OF_BROKERS = frozenset(
    kind.name for kind in FaultKind if kind.name.startswith(("KILL", "POWER", "PAUSE", "LONG_PAUSE", "DISK", "BIT"))
)
_AT_ONCE = frozenset(
    (FaultKind.KILL, FaultKind.KILL_ALL, FaultKind.POWER_LOSS, FaultKind.DISK_LOST, FaultKind.BIT_FLIP)
)
