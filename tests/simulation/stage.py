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

from allocator.key_event import StoredKey
from allocator.keys import member_key, members_prefix
from broker.broker_member import BrokerMember
from broker.durable_head import DurableHead, Epoch, head_key
from broker.journal_item import ZONES
from broker.pipeline import Ask
from fragment.spool import EpochMark
from protocol.journal import Suspend, SuspendLevel, SuspendMode
from tests.simulation.broker_node import ROOT, BrokerNode, node_of, process_id
from tests.simulation.client import AppendCall, Plan, Reader
from tests.simulation.cluster import Cluster
from tests.simulation.etcd_gate import Deafness, HeadGate
from tests.simulation.failure_report import failure_report
from tests.simulation.faults import Options
from tests.simulation.history import Append, Outcome
from tests.simulation.network import Cut
from tests.simulation.sim_replica import SimulatedReplica
from tests.simulation.sim_replication import REPLICATE
from tests.simulation.spans import Span, joined
from tests.simulation.world import Node

WITHIN_S = 60.0

_TOO_EARLY = ("NO_JOURNAL_PRIMARY_BROKER", "NOT_JOURNAL_PRIMARY_BROKER", "INSUFFICIENT_JOURNAL_BROKERS")


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

    def copy_of(self, node: Node) -> EpochMark | None:
        """Of which epoch its last commit is."""
        replica = self.replica(node)
        copy = replica.worker.spool.copy if replica is not None else None
        return None if copy is None else copy.epoch

    def asked(self, primary: Node) -> list[Ask]:
        """What its pipeline has asked its members, and not all have answered."""
        pipeline = self.replica_of(primary).pipeline.peek()
        assert pipeline is not None
        return list(pipeline._asked)  # noqa: SLF001 -- nobody else is to know

    def read_spans(self) -> list[Span]:
        """What readers got."""
        return joined((chunk.offset, chunk.end) for chunk in self.cluster.history.chunks)

    def records(self) -> list[DurableHead]:
        """All that were on record, one after the other."""
        events = self.etcd.history(head_key(ROOT, self.journal), 0, self.etcd.revision)
        return [DurableHead.decoded(event.raw) for _, of in events for event in of if isinstance(event, StoredKey)]

    def ends_of(self, number: int) -> set[int]:
        """Where an epoch was closed, by what was ever on record."""
        epochs = [epoch for record in self.records() for epoch in record.epochs if epoch.number == number]
        return {epoch.end for epoch in epochs if epoch.end is not None}

    def content_length(self, node: Node) -> int:
        """Of all spools in its directory."""
        disk = self.cluster.disks[node.name]
        return sum(len(disk.bytes_of(name)[1] or b"") for name in disk.names)

    def log_length(self, node: Node) -> int:
        disk = self.cluster.disks[node.name]
        return sum(len(disk.bytes_of(name)[0]) for name in disk.names)

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
        for _ in range(20):
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

    def until_serving(self, *nodes: Node) -> None:
        """They have done what comes before anybody knows of them, and are members."""
        self.until(lambda: all(node.is_up and self.program(node).is_settled for node in nodes), f"{nodes} are back")

    def until_assigned(self, count: int) -> None:
        """To so many that are there: whoever died before is not among them any more."""

        def is_assigned() -> bool:
            assigned = self.assigned
            return len(assigned) == count and all(node.is_up and self.program(node).is_settled for node in assigned)

        self.until(is_assigned, f"{count} brokers are assigned")

    def lose_directory(self, *nodes: Node) -> None:
        """Of those that are not up."""
        for node in nodes:
            assert not node.is_up
            self.cluster.disks[node.name].wipe()

    def drain(self, node: Node) -> None:
        node.after(0.0, self.program(node).drain)
        self.until(lambda: (told := self.member(node)) and told.exiting, f"{node.name} says that it leaves")

    def is_taken(self, nodes: Sequence[Node]) -> Callable[[], bool]:
        """Whether their spools were taken for a later Route since now."""
        known = {node: self.replica_of(node).taken_revision for node in nodes}
        return lambda: all(self.replica_of(node).taken_revision > known[node] for node in nodes)

    def gate(self, node: Node) -> HeadGate:
        return HeadGate(self.program(node), head_key(ROOT, self.journal))

    def deafen(self, node: Node) -> Deafness:
        return Deafness(self.program(node))

    def break_streams(self, node: Node) -> None:
        """Those that it replicates through."""
        for end in self.network.streams_of(node):
            if end.method == REPLICATE:
                self.network.lose(end, Cut.REJECTED)

    def fill_store(self) -> None:
        """Nothing gets into it, so that all there is of the journal is on the disks of brokers."""
        self.store.faults.is_full = True

    def heal_store(self) -> None:
        self.store.heal()

    def ask_for(self, replication: int, zone: str) -> None:
        """For so many brokers, all of that zone."""
        spec = self.cluster.spec_of(self.journal)
        assert spec is not None
        labels = spec.labels.remove(ZONES).add(ZONES, zone)
        self.cluster.put_spec(replace(spec, replication=replication, labels=labels))

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
        """Have something appended that is refused, once there is somebody to do so, and say why."""
        return self._insist(lambda: self.send(at))

    def reset(self, at: Node, offset: int) -> str:
        """As ``reset-head`` does. What came of it."""
        return self._insist(lambda: self.ask(at, offset=offset))

    def _insist(self, send: Callable[[], Append]) -> str:
        """Until there is an answer by somebody who can tell."""
        for _ in range(20):
            append = self.told(send())
            if append.outcome is not Outcome.UNKNOWN and append.why not in _TOO_EARLY:
                return append.why or append.outcome.name
            self.wait(1.0)
        raise UnreachedError("nobody answers")

    def disown(self) -> None:
        """Nothing of what was acknowledged so far is to be kept, by the word of an operator."""
        for append in self.cluster.history.appends:
            if append.outcome is Outcome.OK and append.content:
                append.outcome = Outcome.UNKNOWN

    @property
    def suspended(self) -> Suspend:
        spec = self.cluster.spec_of(self.journal)
        assert spec is not None
        return spec.suspend or Suspend()

    def suspend(self, level: SuspendLevel) -> None:
        for _ in range(20):
            if self.suspended.level == level:
                return
            self.told(self.ask(self.assigned[0], suspend=SuspendMode.NOW))
            self.wait(0.5)
        raise UnreachedError(f"it is not suspended to {level.name}")

    def prune(self) -> None:
        """As retention does: all that is in the store is removed, and everybody has seen that."""
        record = self.record
        assert record is not None
        through = max(span.end for span in self.objects())
        self.etcd.put(head_key(ROOT, self.journal), replace(record, pruned_through=through).encoded())
        self.store.remove_journal(self.journal)
        self.wait(15.0)

    def create_again(self) -> None:
        """Deleted, and created under the same name."""
        revision = self.mark.create_revision
        self.cluster.recreate(0)
        self.until(lambda: self.record is None or self.mark.create_revision > revision, "it is created again")

    def flip(self, node: Node, offset: int) -> None:
        """A bit of the journal's byte there is another one on its disk."""
        self.cluster.disks[node.name].flip(offset)

    def read(self, at: Node, end: int) -> None:
        """Have somebody read all of it there."""
        node = self.world.node(f"reader-{len(self.world.nodes)}")
        reader = Reader(node, node.name, self.cluster.scene, self.journal, at)
        reader.create_revision, reader.target = self.mark.create_revision, end
        if not self.world.run(self.world.now_s + WITHIN_S, reader.has_all):
            raise BrokenError(f"{at.name} gives readers nothing beyond {reader.position}")

    # The end.

    def finish(self, *, over_budget: bool = False) -> None:
        """Everyone returns. All that was promised must hold, and the journal take appends again without an operator.

        `over_budget` if more was lost than must be survived: then nothing different may be served, and that is all."""
        cluster = self.cluster
        cluster.start_clients()
        violations = cluster.end(over_budget=lambda: over_budget)
        if violations:
            raise BrokenError(failure_report(cluster.options, (), self.world, cluster.history, violations))


def _pairs(sources: Iterable[Node], targets: Iterable[Node]) -> Sequence[tuple[Node, Node]]:
    there = list(targets)
    return [(src, dst) for src in sources for dst in there if src is not dst]


def _nothing(_: AppendCall) -> None:
    """The history has it."""
