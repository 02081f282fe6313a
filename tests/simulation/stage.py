"""Stage: a cluster without chance clients, on which a schedule is acted out step by step.

Nothing is timed: the world runs until what a schedule waits for has come about, and stops right there, between two
events. A schedule says which situation it needs, and fails with ``UnreachedError`` if that did not arise; and what must
come of it, and fails with ``BrokenError`` if it did not. So a planted mistake that breaks a promise is told from one
that only keeps a schedule from being acted out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from allocator.keys import member_key, members_prefix
from broker.broker_member import BrokerMember
from broker.durable_head import DurableHead, Epoch, head_key
from fragment.spool import EpochMark
from protocol.journal import SuspendMode
from tests.simulation.broker_node import ROOT, BrokerNode, node_of, process_id
from tests.simulation.client import AppendCall, Plan
from tests.simulation.cluster import Cluster
from tests.simulation.failure_report import failure_report
from tests.simulation.faults import Options
from tests.simulation.history import Append, Outcome
from tests.simulation.network import Cut
from tests.simulation.sim_replica import SimulatedReplica
from tests.simulation.spans import Span
from tests.simulation.world import Node

WITHIN_S = 60.0


class UnreachedError(Exception):
    """What a schedule is about did not arise."""


class BrokenError(AssertionError):
    """It did, and something came of it that must not."""


class Stage:
    def __init__(self, **changes: Any) -> None:
        """`changes` are those of Options. The journal has its brokers, and the first epoch is open."""
        options = replace(
            Options.draw(1, kinds=[]),
            brokers=4,
            replication=3,
            journals=1,
            clients=1,
            readers=1,
            lease_ttl_s=5,
            syncs_commits=True,
            delay_mean_s=0.002,
            watch_delay_s=0.05,
            append_pause_s=0.5,
            append_length_max=100,
            fragment_length=1 << 16,
            names_offsets=False,
            repeats_unknowns=False,
            recovery_s=90.0,
        )
        self.cluster = Cluster(replace(options, **changes), ())
        self.world = self.cluster.world
        self.network = self.cluster.network
        self.etcd = self.cluster.etcd
        self.store = self.cluster.store
        self.journal = self.cluster.journals[0]
        self._hand = self.world.node("hand")
        self.cluster.settle()
        self.until(lambda: self.record is not None and self.last.is_open, "an epoch is open")
        self.cluster.start_readers()

    # What there is.

    @property
    def record(self) -> DurableHead | None:
        stored = self.etcd.get(head_key(ROOT, self.journal))
        return None if stored is None else DurableHead.decoded(stored.raw)

    @property
    def last(self) -> Epoch:
        record = self.record
        assert record is not None
        assert record.last is not None
        return record.last

    @property
    def mark(self) -> EpochMark:
        record = self.record
        assert record is not None
        return record.mark(self.last)

    def epoch(self, number: int) -> Epoch:
        record = self.record
        assert record is not None
        return next(epoch for epoch in record.epochs if epoch.number == number)

    @property
    def assigned(self) -> list[Node]:
        """The primary first."""
        kvs = sorted(self.cluster.assignments_of(self.journal), key=lambda kv: kv.value.slot)
        return [node_of(self.world, kv.value.member.partition("#")[2]) for kv in kvs]

    @property
    def holders(self) -> list[Node]:
        """Whose directories the last epoch names."""
        return [node for node in self.cluster.brokers if self.program(node).spool_id in self.last.holders]

    @property
    def leader(self) -> Node:
        """Who assigns journals: the member that has been one for longest."""
        listing = self.etcd.list_prefix(members_prefix(ROOT))
        assert not isinstance(listing, Exception)
        key = min(listing.keys, key=lambda stored: stored.create_revision).key.decode()
        return node_of(self.world, key.partition("#")[2])

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.cluster.brokers if node not in nodes]

    def program(self, node: Node) -> BrokerNode:
        return self.cluster.programs[node.name]

    def replica(self, node: Node) -> SimulatedReplica | None:
        """The live one."""
        held = [replica for replica in self.program(node).replicas if not replica.is_stopped]
        return held[-1] if node.is_up and held else None

    def replica_of(self, node: Node) -> SimulatedReplica:
        replica = self.replica(node)
        assert replica is not None, f"{node.name} has no replica"
        return replica

    def end_at(self, node: Node) -> int:
        """Up to where its live replica has commits."""
        replica = self.replica(node)
        copy = replica.worker.spool.copy if replica is not None else None
        return 0 if copy is None else copy.end

    def member(self, node: Node) -> BrokerMember | None:
        """As etcd has it now."""
        own_id = process_id(node)
        stored = self.etcd.get(member_key(ROOT, *own_id))
        return None if stored is None else BrokerMember.decoded(*own_id, stored.raw)

    def cut(self, *nodes: Node) -> list[Span]:
        """What these have dropped."""
        return [span for name, span in self.cluster.cuts if name in {node.name for node in nodes}]

    def objects(self, journal: str | None = None) -> list[Span]:
        held = self.store.fragments(journal or self.journal)
        return [Span(found.fragment.begin, found.fragment.end) for found in held]

    # What happens.

    def until(self, is_reached: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        """Stop as soon as it is."""
        if not self.world.run(self.world.now_s + within_s, lambda: bool(is_reached())):
            raise UnreachedError(f"it did not come about that {what}")

    def until_next_epoch(self) -> None:
        before = self.last.number
        self.until(lambda: self.last.number > before, "the next epoch is open")

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now_s + seconds)

    def arose(self, is_so: object, what: str) -> None:
        """The schedule is about this."""
        if not is_so:
            raise UnreachedError(f"it is not so that {what}")

    def expect(self, is_so: object, what: str) -> None:
        """This must come of it."""
        if not is_so:
            raise BrokenError(what)

    def lead_from_elsewhere(self) -> None:
        """Have somebody else than the journal's primary assign journals, so that either can be held up by itself."""
        for _ in range(8):
            first = self.assigned[0]
            if first is not self.leader:
                return
            self.kill(first)
            self.until_next_epoch()
            self.start(first)
            self.cluster.settle()
        raise UnreachedError("the leader is always the primary")

    def kill(self, *nodes: Node) -> None:
        for node in nodes:
            self.world.crash(node)

    def start(self, *nodes: Node) -> None:
        for node in nodes:
            self.world.restart(node)

    def lose_directory(self, *nodes: Node) -> None:
        """Of those that are not up."""
        for node in nodes:
            assert not node.is_up
            self.cluster.disks[node.name].wipe()

    def drain(self, node: Node) -> None:
        node.after(0.0, self.program(node).drain)
        self.until(lambda: (told := self.member(node)) and told.exiting, f"{node.name} says that it leaves")

    def change_replication(self, replication: int) -> None:
        self.cluster.change_replication(0, replication)

    def clog(self, sources: Iterable[Node], targets: Iterable[Node]) -> None:
        """What goes from these to those is held back until it is let through."""
        for src, dst in _pairs(sources, targets):
            self.network.clog(src, dst)

    def unclog(self, sources: Iterable[Node], targets: Iterable[Node]) -> None:
        for src, dst in _pairs(sources, targets):
            self.network.unclog(src, dst)

    def part(self, sources: Iterable[Node], targets: Iterable[Node]) -> None:
        """What goes from these to those is lost."""
        for src, dst in _pairs(sources, targets):
            self.network.cut(src, dst, Cut.SILENT)

    def send(self, at: Node, *, length: int = 50) -> Append:
        """Have something appended, and do not wait for what comes of it."""
        append = self.cluster.history.append(self._hand.name, self.journal, length)
        self._call(at, Plan(append))
        return append

    def ask(self, at: Node, *, offset: int | None = None, suspend: SuspendMode = SuspendMode.RESUME) -> Append:
        """An append without content, as operators send it."""
        barrier = self.cluster.history.barrier(self._hand.name, self.journal)
        self._call(at, Plan(barrier, offset=offset, suspend=suspend))
        return barrier

    def _call(self, at: Node, plan: Plan) -> None:
        AppendCall(self._hand, at, self.cluster.scene, plan, _nothing).start()

    def told(self, append: Append) -> Append:
        """Wait for its answer."""
        self.until(lambda: append.outcome is not Outcome.PENDING, "the client hears of its append")
        return append

    def append(self, at: Node | None = None, *, length: int = 50) -> Append:
        """Have something appended, which has to be possible, sooner or later."""
        why = ""
        for _ in range(60):
            up = [node for node in (*self.assigned, *self.cluster.brokers) if node.is_up and not node.is_paused]
            append = self.told(self.send(at or up[0], length=length))
            if append.outcome is Outcome.OK:
                return append
            why = append.why
            self.wait(1.0)
        raise BrokenError(f"appends are not taken any more: {why}")

    def refused(self, at: Node) -> str:
        """Have something appended that is refused, and say why."""
        append = self.told(self.send(at))
        return append.why if append.outcome is Outcome.FAILED else append.outcome.name

    # The end.

    def finish(self) -> None:
        """Everyone returns. All that was promised must hold, and the journal take appends again without an operator."""
        cluster = self.cluster
        cluster.start_clients()
        violations = cluster.end()
        if violations:
            raise BrokenError(failure_report(cluster.options, (), self.world, cluster.history, violations))


def _pairs(sources: Iterable[Node], targets: Iterable[Node]) -> Sequence[tuple[Node, Node]]:
    there = list(targets)
    return [(src, dst) for src in sources for dst in there if src is not dst]


def _nothing(_: AppendCall) -> None:
    """The history has it."""
