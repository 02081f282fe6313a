"""A run: a whole cluster with its clients, through faults, healing and a last look at everything. One seed, one run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from traceback import extract_tb
from typing import cast

from allocator.key_event import StoredKey
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, assignments_prefix, item_key
from allocator.transaction import Delete, Transaction
from broker.append_event import AppendOutcome
from broker.cluster_keys import BrokerEntity, broker_decoder, route_of
from broker.durable_head import DurableHead, head_key
from broker.journal_item import ZONES, JournalItem
from protocol.codec import CompressionCodec
from protocol.journal import FragmentPolicy, JournalSpec, SuspendMode
from protocol.route import Route
from tests.simulation.broker_node import ROOT, BrokerNode, Surroundings, node_of, process_id
from tests.simulation.checkers import Final, FinalJournal, Violation, check
from tests.simulation.client import (
    AppendCall,
    Appender,
    HeadReader,
    Plan,
    Reader,
    Scene,
    StoreReader,
    journal_key,
)
from tests.simulation.disk import SimulatedDisk
from tests.simulation.etcd import Etcd, EtcdFaults
from tests.simulation.etcd_watch import WatchServer
from tests.simulation.failure_report import failure_report
from tests.simulation.faults import ETCD, STORE, Fault, FaultKind, Options, broker_names, schedule
from tests.simulation.head_checker import HeadChecker
from tests.simulation.history import Append, History, Moment, Outcome
from tests.simulation.injector import Injector
from tests.simulation.network import Network, NetworkTimes
from tests.simulation.spans import Span, common, joined, without
from tests.simulation.store import URL, Store, StoredFragment
from tests.simulation.world import Node, World

_SETTLE_S = 60.0
_UPLOADED_S = 600.0
_READ_S = 120.0
_REFRESH_S = 8


@dataclass(slots=True)
class _Incarnation:
    """A journal from its creation to its deletion."""

    journal: str
    create_revision: int
    url: str
    # What readers may have of it, which takes in all that was acknowledged: ends of fragments by their begins.
    shown: dict[int, int] = field(default_factory=dict)
    # What was lost with processes, or cut off by them.
    destroyed: list[Span] = field(default_factory=list)

    @property
    def promised(self) -> list[Span]:
        return joined(self.shown.items())

    @property
    def key(self) -> str:
        return journal_key(self.journal, self.create_revision)


@dataclass(slots=True)
class Run:
    """What came of a seed."""

    options: Options
    faults: Sequence[Fault]
    world: World
    history: History
    violations: list[Violation]
    over_budget: bool
    skipped: int

    @property
    def is_failed(self) -> bool:
        """One that went beyond what must be survived proves nothing."""
        return bool(self.violations) and not self.over_budget

    @property
    def report(self) -> str:
        return failure_report(self.options, self.faults, self.world, self.history, self.violations)


class Cluster:
    """Also the Operators of its injector."""

    def __init__(self, options: Options, faults: Sequence[Fault]) -> None:
        self.options = options
        self.faults = faults
        self.world = World(options.seed)
        silence_s = min(10.0, options.lease_ttl_s * 0.4)
        self.network = Network(self.world, NetworkTimes(mean_s=options.delay_mean_s, silence_s=silence_s))
        self.etcd = Etcd(self.world.node(ETCD), EtcdFaults(watch_delay_s=options.watch_delay_s))
        WatchServer(self.network, self.etcd)
        self.store = Store(self.network, self.world.node(STORE))
        self.history = History(lambda: self.world.now_s)
        self._decode = broker_decoder(ROOT)
        self._lease_file: dict[str, int] = {}
        self._incarnations: dict[str, _Incarnation] = {}
        self._current: dict[str, _Incarnation] = {}
        self.journals = [f"acme/journal-{number}" for number in range(options.journals)]
        for journal in self.journals:
            self._create(journal)
        self.disks: dict[str, SimulatedDisk] = {}
        self.programs: dict[str, BrokerNode] = {}
        self.brokers = [self._broker(name) for name in broker_names(options)]
        self.injector = Injector(options, self.network, self.etcd, self.store, self.disks, self)
        self.scene = Scene(
            self.network,
            self.store,
            self.history,
            self.brokers,
            self.journals,
            options.append_pause_s,
            options.append_length_max,
            options.repeats_unknowns,
            options.names_offsets,
            options.suspends,
        )
        # What brokers dropped, because an epoch was closed below it, and which of them did.
        self.cuts: list[tuple[str, Span]] = []
        self._found: list[Violation] = []
        HeadChecker(self.etcd, ROOT, self.history, self._found.append)
        self._clients: list[Appender] = []
        self._readers: list[Reader | HeadReader | StoreReader] = []

    # What there is.

    def _broker(self, name: str) -> Node:
        node = self.world.node(name)
        disk = self.disks[name] = SimulatedDisk(node)
        disk.wiped = partial(self._destroy_all, node)
        options = self.options
        surroundings = Surroundings(
            self.network,
            self.etcd,
            self.store,
            disk,
            options.lease_ttl_s,
            options.syncs_commits,
            self._lease_file,
            self._exiting,
            self._acknowledging,
            self._shown,
        )

        def boot(node: Node) -> BrokerNode:
            program = self.programs[node.name] = BrokerNode(node, surroundings)
            program.persister.cut = partial(self._cut, node.name)
            return program

        node.boot = boot
        node.program = boot(node)
        node.crash_listeners.insert(0, self._crashed)
        return node

    def _create(self, journal: str) -> None:
        number = len(self._incarnations)
        url = URL if not number else f"{URL}{number}/"
        policy = FragmentPolicy(self.options.fragment_length, CompressionCodec.NONE, (url,), _REFRESH_S * 1_000_000_000)
        spec = JournalSpec(journal, self.options.replication, fragment=policy)
        revision = self.put_spec(spec)
        incarnation = _Incarnation(journal, revision, url)
        self._incarnations[incarnation.key] = self._current[journal] = incarnation

    def put_spec(self, spec: JournalSpec) -> int:
        encoded = spec.to_proto().SerializeToString(deterministic=True)
        return self.etcd.put(item_key(ROOT, spec.name), encoded).revision

    def spec_of(self, journal: str) -> JournalSpec | None:
        stored = self.etcd.get(item_key(ROOT, journal))
        if stored is None:
            return None
        item = cast(Item[JournalItem], self._decode(stored.key.decode(), stored.raw))
        return item.value.spec

    def assignments_of(self, journal: str) -> list[KeyValue[Assignment[Route]]]:
        listing = self.etcd.list_prefix(assignments_prefix(ROOT, journal))
        assert not isinstance(listing, Exception)
        return [_assigned(self._decode(stored.key.decode(), stored.raw), stored) for stored in listing.keys]

    def _is_converged(self, journal: str) -> bool:
        spec, assigned = self.spec_of(journal), self.assignments_of(journal)
        if spec is None:
            return False
        route = route_of(assigned)
        wanted = min(spec.replication, self.options.brokers)
        return len(assigned) == wanted and all(kv.value.value.equivalent(route) for kv in assigned)

    # What happens.

    def _shown(self, journal: str, create_revision: int, begin: int, end: int) -> None:
        if incarnation := self._incarnations.get(journal_key(journal, create_revision)):
            incarnation.shown[begin] = max(end, incarnation.shown.get(begin, 0))

    def _acknowledging(self, broker: BrokerNode, outcome: AppendOutcome, create_revision: int, begun_s: float) -> None:
        """What nobody can see from outside: that all members have it, and that no other can have taken over."""
        commit = outcome.commit
        assert commit is not None
        key = journal_key(commit.journal, create_revision)
        if broker.lease_id not in self.etcd.leases:
            self._found.append(Violation("S-10", "acknowledged without a lease", key, f"by {broker.node.name}"))
        for member in outcome.header.route.members:
            node = node_of(self.world, member.suffix)
            for replica in self.programs[node.name].replicas if node.is_up else ():
                is_meant = (replica.journal, replica.create_revision) == (commit.journal, create_revision)
                is_of_then = not replica.is_stopped and replica.started_s < begun_s
                # Since it answered, a later synchronisation may have taken its spool, and retired it.
                is_of_then = is_of_then and replica.taken_revision <= outcome.header.etcd.revision
                spool = replica.worker.spool
                # One that somebody takes for a later Route is nowhere, but for what it has committed.
                held = max(spool.fragment.end, spool.copy.end if spool.copy is not None else 0)
                if is_meant and is_of_then and commit.content_length and held < commit.end:
                    what = f"{replica.name} does not have [{commit.begin},{commit.end})"
                    self._found.append(Violation("A-01", "acknowledged too early", key, what))

    def _cut(self, node: str, journal: str, create_revision: int, begin: int, end: int) -> None:
        self.cuts.append((node, Span(begin, end)))
        self._destroy(journal, create_revision, begin, end)

    def _destroy(self, journal: str, create_revision: int, begin: int, end: int) -> None:
        if incarnation := self._incarnations.get(journal_key(journal, create_revision)):
            incarnation.destroyed.append(Span(begin, end))

    def _crashed(self, node: Node, power_lost: bool) -> None:
        if power_lost and not self.options.syncs_commits:
            self._destroy_all(node)

    def _destroy_all(self, node: Node) -> None:
        """Its spool directory is lost, or cannot be trusted any more."""
        program = self.programs[node.name]
        for journal, create_revision, begin, end in program.held():
            self._destroy(journal, create_revision, begin, end)

    def _exiting(self, node: Node, is_clean: bool) -> None:
        if is_clean:
            self.injector.budget.excuse(node.name)
        self.world.after(self.world.chance.uniform(1.0, 4.0), self.world.restart, node)

    # What operators do.

    def move(self, journal: int, chance: Random) -> None:
        """By stopping a broker that has it, or by asking for other zones."""
        name = self.journals[journal]
        spec, assigned = self.spec_of(name), self.assignments_of(name)
        if spec is None or not assigned:
            return
        if chance.random() < 0.5:
            up = [node for node in self.brokers if node.is_up and not node.is_paused]
            held = {node_of(self.world, kv.value.member.partition("#")[2]) for kv in assigned}
            holders = [node for node in up if node in held]
            if holders and len(up) > self.options.replication:
                program = self.programs[chance.choice(holders).name]
                program.node.after(0.0, program.drain)
            return
        zones = [zone for zone in ("zone-a", "zone-b") if self._size_of(zone) >= spec.replication]
        chosen = chance.choice([None, *zones])
        labels = spec.labels.remove(ZONES)
        self.put_spec(replace(spec, labels=labels if chosen is None else labels.add(ZONES, chosen)))

    def _size_of(self, zone: str) -> int:
        return sum(process_id(node).zone == zone for node in self.brokers)

    def change_replication(self, journal: int, replication: int) -> None:
        spec = self.spec_of(self.journals[journal])
        if spec is not None:
            allowed = spec.labels.values_of(ZONES)
            room = sum(map(self._size_of, allowed)) if allowed else self.options.brokers
            self.put_spec(replace(spec, replication=min(replication, room)))

    def recreate(self, journal: int) -> None:
        """At once, so that some see both together, or after a while. It gets a store of its own: what is on its way to
        the old one cannot be recalled."""
        name = self.journals[journal]
        if self.spec_of(name) is None:
            return
        self.etcd.commit(Transaction((), (Delete(item_key(ROOT, name)),)))
        chance = self.world.chance
        self.world.after(chance.choice((0.0, 0.02, 1.0, 5.0)), self._create, name)

    def suspend(self, journal: int, chance: Random) -> None:
        """At once, or as brokers do by themselves: if it has not been written to for a while."""
        broker = chance.choice(self.brokers)
        mode = chance.choice((SuspendMode.NOW, SuspendMode.NOW, SuspendMode.IF_FLUSHED))
        plan = Plan(self.history.barrier("operator", self.journals[journal]), suspend=mode)
        AppendCall(self.world.outside, broker, self.scene, plan, lambda _: None).start()

    def is_settled(self) -> bool:
        return all(map(self._is_safe, self._current.values()))

    def _is_safe(self, incarnation: _Incarnation) -> bool:
        """In the store alone it is not: without a copy that goes on, nobody knows that the store has it all."""
        stored = [Span(found.fragment.begin, found.fragment.end) for found in self._objects(incarnation)]
        missing = without(incarnation.promised, stored)
        head = max((*incarnation.shown.values(), *(span.end for span in stored)), default=0)
        spec = self.spec_of(incarnation.journal)
        if spec is None:
            return True
        if not head:
            return self._provers(incarnation) >= spec.replication
        holders = [node for node in self.brokers if node.is_up and self._has(node, incarnation, missing, head)]
        return len(holders) >= spec.replication and self._provers(incarnation) >= spec.replication

    def _provers(self, incarnation: _Incarnation) -> int:
        """How many directories can tell where the journal ends: nobody needs to once its last epoch is closed."""
        stored = self.etcd.get(head_key(ROOT, incarnation.journal))
        known = None if stored is None else DurableHead.decoded(stored.raw).of(incarnation.create_revision)
        last = None if known is None else known.open_epoch
        if known is None or last is None:
            return len(self.brokers)
        up = [self.programs[node.name] for node in self.brokers if node.is_up]
        mark = known.mark(last)
        return sum(
            program.spool_id in last.holders and not program.has_copy(incarnation.journal, mark) for program in up
        )

    def _has(self, node: Node, incarnation: _Incarnation, missing: list[Span], head: int) -> bool:
        held = self._held(node, incarnation)
        live = [
            replica.worker.spool.fragment.end
            for replica in self.programs[node.name].replicas
            if not replica.is_stopped and replica.create_revision == incarnation.create_revision
        ]
        return max(live, default=0) >= head and not without(missing, held)

    def _held(self, node: Node, incarnation: _Incarnation) -> list[Span]:
        return [
            Span(begin, end)
            for journal, create_revision, begin, end in self.programs[node.name].held()
            if (journal, create_revision) == (incarnation.journal, incarnation.create_revision)
        ]

    def _objects(self, incarnation: _Incarnation) -> list[StoredFragment]:
        return self.store.fragments(incarnation.journal, tuple(self.journals), incarnation.url)

    # A run.

    def run(self) -> Run:
        try:
            violations = self._run()
        except Exception as error:
            # An assertion of a core, as a rule. What else came of the run is of no interest then.
            where = " < ".join(
                f"{frame.name}:{frame.lineno}" for frame in reversed(extract_tb(error.__traceback__)[-5:])
            )
            violations = [Violation("C15", "dirty log", "", f"{type(error).__name__} {error} in {where}")]
        over_budget = self.injector.budget.is_over
        return Run(self.options, self.faults, self.world, self.history, violations, over_budget, self.injector.skipped)

    def _run(self) -> list[Violation]:
        self.settle()
        begin_s = self.world.now_s
        self.injector.arm([replace(fault, at_s=fault.at_s + begin_s) for fault in self.faults])
        self.start_clients()
        self.start_readers()
        self.world.run(begin_s + self.options.duration_s)
        return self.end(over_budget=lambda: self.injector.budget.is_over)

    def settle(self) -> None:
        self._until(_SETTLE_S, lambda: all(map(self._is_converged, self.journals)))

    def end(self, *, over_budget: Callable[[], bool] = lambda: False) -> list[Violation]:
        """Heal everything, look at all that there is, and tell what is wrong with it."""
        healed = self._heal()
        final = self._last_look(healed)
        return [*self._found, *check(self.history, final, over_budget=over_budget())]

    def start_clients(self) -> None:
        world, scene = self.world, self.scene
        self._clients = [Appender(world.node(f"c{number}"), scene) for number in range(self.options.clients)]

    def start_readers(self) -> None:
        options, world, scene = self.options, self.world, self.scene
        for number in range(options.readers):
            node = world.node(f"r{number}")
            journal = self.journals[number % len(self.journals)]
            if number == 1:
                self._readers.append(HeadReader(node, scene))
            elif number == 3:
                current = self._current[journal]
                reader = StoreReader(node, scene, journal, current.url, current.create_revision)
                self._readers.append(reader)
                reader.start()
            else:
                self._readers.append(Reader(node, node.name, scene, journal))

    def _heal(self) -> Moment:
        """Everything works again, and clients go on until each has had a success."""
        self.injector.heal()
        healed = self.history.moment()
        waiting = {client.name: client for client in self._clients}
        looked = len(self.history.appends)

        def has_recovered() -> bool:
            nonlocal looked
            pending = False
            for append in self.history.appends[looked:]:
                if append.outcome is Outcome.OK:
                    waiting.pop(append.client, None)
                pending = pending or append.outcome is Outcome.PENDING
            if not pending:
                looked = len(self.history.appends)
            return not waiting

        self._until(self.options.recovery_s, has_recovered)
        for client in self._clients:
            client.is_active = False
        self._until(20.0, lambda: all(client.is_idle for client in self._clients))
        return healed

    def _last_look(self, healed: Moment) -> Final:
        for reader in self._readers:
            reader.is_active = False
        heads = {journal: self._head(journal) for journal in self.journals}
        # Most of what is to come is waiting.
        self.etcd.faults.progress_s = 30.0
        self.etcd.lengthen_leases(60)
        leaks: list[str] = []
        if not self._until(_UPLOADED_S, self._is_uploaded):
            leaks.extend(self._not_uploaded())
        # Everybody is to have seen what is in the store.
        self.world.run(self.world.now_s + 1.5 * _REFRESH_S)
        journals = {key: FinalJournal(objects=self._objects(held)) for key, held in self._incarnations.items()}
        finals: list[Reader] = []
        for journal in self.journals:
            current = self._current[journal]
            journals[current.key], readers = self._read_all(current, heads[journal])
            finals.extend(readers)
        self._until(_READ_S, lambda: all(reader.has_all() for reader in finals))
        for reader in finals:
            reader.stop()
        # Who is about to leave has its time to do so.
        self._until(_SETTLE_S, lambda: all(node.is_up and self.programs[node.name].is_settled for node in self.brokers))
        self.world.run(self.world.now_s + 2 * self.options.lease_ttl_s)
        leaks.extend(self._leaks())
        clients = tuple(client.name for client in self._clients)
        return Final(journals, healed, self.options.recovery_s, clients, tuple(leaks))

    def _head(self, journal: str) -> int:
        """By the word of a barrier, which is as good as an append."""
        client = self._clients[0]
        answers: list[Append] = []
        for _ in range(10):
            client.barrier(journal, answers.append)
            self._until(20.0, lambda: client.is_idle)
            if answers and answers[-1].outcome is Outcome.OK:
                return answers[-1].end
            self.world.run(self.world.now_s + 1.0)
        return 0

    def _is_uploaded(self) -> bool:
        return all(node.is_up and not self.programs[node.name].persister.items for node in self.brokers)

    def _not_uploaded(self) -> list[str]:
        return [
            f"{node.name} has yet to upload {item.fragment}"
            for node in self.brokers
            for item in self.programs[node.name].persister.items
        ]

    def _read_all(self, incarnation: _Incarnation, head: int) -> tuple[FinalJournal, list[Reader]]:
        """Somebody at each broker reads everything. Whatever is below what the spools hold must be in the store."""
        objects = self._objects(incarnation)
        stored = [Span(found.fragment.begin, found.fragment.end) for found in objects]
        held = [self._held(node, incarnation) for node in self.brokers]
        stored_through = min((span.begin for spans in held for span in spans), default=head)
        everything = [*stored, *(span for spans in held for span in spans)]
        missing = without([Span(0, head)], everything)
        # What was decided but never acknowledged may be lost with the only directory that had it.
        acked = joined(
            (append.begin, append.end)
            for append in self.history.appends
            if append.journal == incarnation.key and append.outcome is Outcome.OK
        )
        lost = common(without(missing, acked), incarnation.destroyed)
        readers = []
        for node in self.brokers:
            own = self.world.node(f"final-{node.name}-{incarnation.journal}")
            reader = Reader(own, f"final-{node.name}", self.scene, incarnation.journal, node)
            reader.create_revision = incarnation.create_revision
            reader.target, reader.lost = head, {span.begin: span.end for span in lost}
            readers.append(reader)
        names = tuple(reader.name for reader in readers)
        return FinalJournal(head, names, objects, min(stored_through, head), lost_tails=tuple(lost)), readers

    def _leaks(self) -> list[str]:
        leaks = [f"{node.name} is down" for node in self.brokers if not node.is_up]
        if len(self.etcd.leases) > len(self.brokers):
            leaks.append(f"{len(self.etcd.leases)} leases of {len(self.brokers)} brokers")
        for node in self.brokers:
            program = self.programs[node.name]
            leaks.extend(f"{node.name} has not let go of {name}" for name in program.unreleased())
        return leaks

    def _until(self, timeout_s: float, is_reached: Callable[[], bool]) -> bool:
        """Look now and then; whether it was reached in time."""
        until_s = self.world.now_s + timeout_s
        while not is_reached():
            if self.world.now_s >= until_s:
                return False
            self.world.run(min(until_s, self.world.now_s + max(0.5, timeout_s / 100)))
        return True


def _assigned(entity: BrokerEntity, stored: StoredKey) -> KeyValue[Assignment[Route]]:
    assert isinstance(entity, Assignment)
    _, raw, create_revision, mod_revision, version, lease = stored
    return KeyValue(stored.key.decode(), entity, raw, create_revision, mod_revision, version, lease)


def swarm(seed: int, kinds: Sequence[FaultKind] | None = None) -> Options:
    """The schedules that must pass without durable heads (`kinds` are the faults there may be, all if None).

    Left out are those in which a journal loses all the brokers that know where it ends: killed before others have
    caught up, or gone because none of them could keep its lease. Then Gazette's rules leave it to an operator, or begin
    anew at zero. Whoever keeps the budget has at least one of them left. A pause beyond the lease is such a loss, too,
    and is only drawn where others are left.
    """
    return replace(Options.draw(seed, kinds=kinds), keeps_budget=True)


def run(options: Options, faults: Sequence[Fault] | None = None) -> Run:
    """Without collecting garbage: a run makes millions of short-lived things, and few cycles before it is over."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return Cluster(options, schedule(options) if faults is None else faults).run()
    finally:
        if is_collecting:
            gc.enable()
