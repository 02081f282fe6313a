"""MiniCluster: brokers in one process that run the shipped cores, over messages that are delivered one by one.

Whatever is under way is an *action*: a message or an answer on its way, a client's next chunk, a broker that has yet to
see what is in etcd, a transaction, a step of a spool. Nothing happens by itself: a test takes the next action, or one
of its choice.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from allocator.key_event import EtcdHeader
from allocator.key_value import KeyValue
from allocator.keys import Assignment, assignment_key, item_key, member_key
from allocator.keyspace_view import KeySpaceView, Update, changes_between
from allocator.transaction import Delete, Put, Transaction
from broker.append_effect import HeadChange
from broker.append_event import AppendOpening, AppendOutcome, Chunk, End, Failed, HeadRead, Intent, Ready
from broker.append_run import AppendRun
from broker.cluster_keys import BrokerEntity, broker_decoder, route_of
from broker.durable_head import DurableHead, EpochTerms, head_key
from broker.held_copies import HeldCopies
from broker.journal_transaction import record
from broker.notice import Withdraw
from broker.pipeline import PeerStream, Pipeline
from broker.replica import Replica
from broker.replication import Replication
from broker.replication_message import Answer, Message, Propose
from broker.resolution import Resolution, Wanted
from broker.resolver import Resolver
from fragment.index import FileT, Index
from fragment.spool import EpochMark
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.fragment import Fragment
from protocol.journal import JournalSpec
from protocol.route import ProcessId, Route
from tests.support.broker_cores import CLUSTER_ID, JOURNAL, NOW_NS, ROOT, SPEC, MemorySpool, member_of, spool_id_of
from tests.support.memory_keys import MemoryKeys

Action = tuple[str, Callable[[], None]]
ClientEvent = Chunk | Intent | End | Failed

STEPS_MAX = 100_000


class ClusterKeys:
    """The keys of a cluster, and views of them as brokers have them."""

    def __init__(self) -> None:
        self.keys: MemoryKeys[BrokerEntity] = MemoryKeys(broker_decoder(ROOT))

    def view(self) -> KeySpaceView[BrokerEntity]:
        revision = self.keys.revision
        return KeySpaceView(EtcdHeader(CLUSTER_ID, 0x3E, revision, 2), self.keys.key_values, {}, revision)

    def update_from(self, before: KeySpaceView[BrokerEntity]) -> Update[BrokerEntity]:
        view = self.view()
        return Update(view, changes_between(before.key_values, view.key_values), ())

    def add_member(self, member: ProcessId, *, is_kin: bool = True, keeps_epochs: bool = False) -> None:
        value = member_of(member, is_kin=is_kin, keeps_epochs=keeps_epochs).encoded()
        self.keys.put(Put(member_key(ROOT, *member), value, 70))

    def head(self, journal: str = JOURNAL) -> HeadRead:
        """What is on record."""
        key = head_key(ROOT, journal)
        if not self.keys.is_stored(key):
            return HeadRead(None, 0)
        stored = self.keys.stored(key)
        return HeadRead(DurableHead.decoded(stored.raw), stored.mod_revision)

    def apply(self, spec: JournalSpec) -> None:
        self.keys.put(Put(item_key(ROOT, spec.name), spec.to_proto().SerializeToString()))

    def assign(self, *slots: tuple[ProcessId, int], journal: str = JOURNAL) -> None:
        """Have these assignments and no others, at one revision. Those that stay keep what they advertise."""
        wanted = {assignment_key(ROOT, journal, member.zone, member.suffix, slot) for member, slot in slots}
        prefix = f"{ROOT}/assign/{journal}#"
        known = {kv.key for kv in self.keys.key_values if kv.key.startswith(prefix)}
        if known - wanted:
            self.keys.delete(known - wanted)
            self.keys.revision -= 1 if wanted - known else 0
        if wanted - known:
            self.keys.put(*(Put(key, b"", 70) for key in sorted(wanted - known)))

    def slots(self, journal: str = JOURNAL) -> dict[ProcessId, int]:
        """Who holds the journal, by what is assigned."""
        prefix = f"{ROOT}/assign/{journal}#"
        found: dict[ProcessId, int] = {}
        for kv in self.keys.key_values:
            if kv.key.startswith(prefix):
                zone, suffix, slot = kv.key.removeprefix(prefix).split("#")
                found[ProcessId(zone, suffix)] = int(slot)
        return found

    def move(self, member: ProcessId, slot: int) -> None:
        """As a leader promotes and packs: what the assignment advertises moves with it."""
        key = assignment_key(ROOT, JOURNAL, member.zone, member.suffix, self.slots()[member])
        to = assignment_key(ROOT, JOURNAL, member.zone, member.suffix, slot)
        self.keys.apply(Transaction((), (Put(to, self.keys[key].raw, 70), Delete(key))))

    def is_consistent(self) -> bool:
        """Whether all assignments of the journal advertise the Route that they make."""
        prefix = f"{ROOT}/assign/{JOURNAL}#"
        held = [kv for kv in self.keys.key_values if kv.key.startswith(prefix)]
        assignments = cast(list[KeyValue[Assignment[Route]]], held)
        route = route_of(assignments)
        return all(kv.value.value.equivalent(route) for kv in assignments)

    def remove(self, *keys: str) -> None:
        self.keys.delete(keys)


class Wire:
    """A Replicate stream between two brokers: what is sent is delivered in order, in both directions."""

    def __init__(self, cluster: MiniCluster, pipeline: Pipeline, to: MiniBroker) -> None:
        self.cluster = cluster
        self.pipeline = pipeline
        self.to = to
        self.requests: deque[Message | None] = deque()
        self.answers: deque[Answer | None] = deque()
        self.is_broken = False
        self.opened_with: Propose | None = None
        self.messages: list[Message] = []
        self._error: GazetteError | None = None
        self._is_half_closed = False
        self._replication = Replication(self)

    # A PeerStream, for the primary.

    def send(self, message: Message) -> None:
        assert not self._is_half_closed
        if not self.is_broken:
            self.requests.append(message)

    def half_close(self) -> None:
        assert not self._is_half_closed
        self._is_half_closed = True
        if not self.is_broken:
            self.requests.append(None)

    # A ReplicationPort, for the peer.

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        return self.to.resolver.resolve(wanted, done).withdraw

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        assert self.cluster.keeps_epochs
        self.cluster.under_way.append(("head is read", lambda: done(self.cluster.etcd.head(journal).head)))

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        assert not self.cluster.keeps_epochs
        done(None)

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)

    def end(self, error: GazetteError | None) -> None:
        self._error = error
        self.answers.append(None)

    def now_ns(self) -> int:
        return self.cluster.now_ns

    # What is under way.

    def actions(self) -> list[Action]:
        found: list[Action] = []
        if self.is_broken:
            return found
        is_first = self.opened_with is None
        if self.requests and (is_first or self._replication.is_serving or self._replication.is_over):
            found.append((f"request to {self.to.id.suffix}", self.deliver_request))
        elif self.requests and self.requests[0] is None:
            found.append((f"half-close to {self.to.id.suffix}", self.deliver_request))
        if self.answers:
            found.append((f"answer of {self.to.id.suffix}", self.deliver_answer))
        return found

    def deliver_request(self) -> None:
        message = self.requests.popleft()
        if message is None:
            self._replication.finish()
            return
        self.messages.append(message)
        if self.opened_with is None:
            assert isinstance(message, Propose)
            self.opened_with = message
            self._replication.open(message)
        else:
            self._replication.message(message)

    def deliver_answer(self) -> None:
        answer = self.answers.popleft()
        if answer is not None:
            self.pipeline.answered(self.to.id, answer)
        elif self._error is None:
            self.pipeline.ended(self.to.id)
        else:
            self.pipeline.failed(self.to.id, UnavailableError(f"it ended the stream: {self._error}"))

    def break_off(self) -> None:
        """Both sides see that the stream is gone. What was on its way is lost."""
        if not self.is_broken:
            self.is_broken = True
            self.requests.clear()
            self.answers.clear()
            self._replication.close()
            self.pipeline.failed(self.to.id, UnavailableError("connection reset"))


class _NoStore:
    """What would be uploaded of a copy is nobody's business here."""

    def closed(self, journal: str, epoch: EpochMark, end: int) -> None: ...

    def spared(self, journal: str, epoch: EpochMark) -> None: ...

    def acked_only(self, journal: str, epoch: EpochMark, through: int, *, is_over: bool = True) -> None: ...


class MiniBroker:
    def __init__(self, cluster: MiniCluster, own_id: ProcessId) -> None:
        self.cluster = cluster
        self.id = own_id
        # Every spool that this broker ever had, with its replica: what is given up is still the persister's.
        self.spools: list[MemorySpool] = []
        self.all_replicas: list[Replica[bytearray]] = []
        self.given_up: set[MemorySpool] = set()
        self.is_ready = True
        self.copies = HeldCopies(spool_id_of(own_id))
        self.resolver: Resolver[bytearray] = Resolver(ROOT, own_id, cluster.etcd.view(), self._started)

    def _started(self, journal: str, create_revision: int) -> Replica[bytearray]:
        replica: Replica[bytearray] = Replica(journal, create_revision, Index())
        held = MemorySpool(journal, replica.spool_released, replica.index, deferred=self.cluster.has_slow_disks)
        replica.host = self
        replica.start(held)
        replica.given_up.listen(lambda: self._given_up(journal, held))
        self.spools.append(held)
        self.all_replicas.append(replica)
        return replica

    def _given_up(self, journal: str, held: MemorySpool) -> None:
        self.given_up.add(held)
        self.copies.give_up(journal, held.spool.copy, held.spool.acked_through or 0)

    # A ReplicaHost.

    @property
    def spool_id(self) -> bytes:
        return self.copies.spool_id

    def has_copy(self, journal: str, mark: EpochMark) -> bool:
        return self._replica_count(journal) > 1 or self.copies.has(journal, mark)

    def later(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        timer = (f"timer of {self.id.suffix}", act)
        self.cluster.timers.append(timer)

        def withdraw() -> None:
            self.cluster.timers = [known for known in self.cluster.timers if known is not timer]

        return withdraw

    def is_member(self, member: ProcessId, revision: int) -> bool:
        known = self.resolver.view.get(member_key(ROOT, *member))
        return known is not None and known.create_revision <= revision

    def epoch_opened(self, replica: Replica[FileT], terms: EpochTerms, closed: EpochMark | None) -> None:
        pass

    def voided(self, journal: str) -> None:
        pass

    # An AppendHost.

    def resolve_within(
        self, wanted: Wanted, timeout_s: float | None, done: Callable[[Resolution | GazetteError], None]
    ) -> Withdraw:
        return self.resolver.resolve(wanted, done).withdraw

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        keys = self.cluster.etcd.keys
        self.cluster.under_way.append(("transaction", lambda: done(keys.revision if keys.apply(transaction) else None)))

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        if self.cluster.keeps_epochs:
            self.cluster.under_way.append(("head is read", lambda: done(self.cluster.etcd.head(journal))))
            return
        item = self.resolver.view.get(item_key(ROOT, journal))
        assert item is not None
        done(HeadRead(DurableHead(item.create_revision, is_void=True), 1))

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        is_waiting = True

        def serve() -> None:
            if is_waiting:
                done(Ready(replica.index.summary()))

        def withdraw() -> None:
            nonlocal is_waiting
            is_waiting = False

        if self.is_ready:
            serve()
        else:
            self.cluster.unready.append((self, serve))
        return withdraw

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        streams: dict[ProcessId, PeerStream] = {}
        for peer in pipeline.peers:
            wire = Wire(self.cluster, pipeline, self.cluster.brokers[peer])
            self.cluster.wires.append(wire)
            streams[peer] = wire
        return streams

    def is_certain(self) -> bool:
        return True

    def now_ns(self) -> int:
        return self.cluster.now_ns

    # Copies that were given up.

    def keep(self, journal: str) -> None:
        """As a broker looks after them, once the others had time to go on."""
        read = self.cluster.etcd.head(journal)
        judgement = self.copies.judged(journal, read.head, has_replica=self._has_replica(journal))
        if judgement.change is None:
            self.copies.perform(journal, judgement, _NoStore())
        else:
            assert self.cluster.etcd.keys.apply(record(ROOT, journal, HeadChange(judgement.change, read.mod_revision)))

    def _has_replica(self, journal: str) -> bool:
        return self._replica_count(journal) > 0

    def _replica_count(self, journal: str) -> int:
        """How many are not given up: one that is stopped may still have an append under way."""
        held = [spool for spool in self.spools if spool not in self.given_up]
        return sum(spool.spool.fragment.journal == journal for spool in held)

    def is_unsettled(self, journal: str) -> bool:
        """Whether anything is to be done about them."""
        head = self.cluster.etcd.head(journal).head
        judgement = self.copies.judged(journal, head, has_replica=self._has_replica(journal))
        return judgement.change is not None or bool(judgement.settled)

    @property
    def replica(self) -> Replica[bytearray]:
        return self.resolver.replicas[JOURNAL]

    @property
    def spool(self) -> MemorySpool:
        return next(held for held in reversed(self.spools) if held.index is self.replica.index)

    @property
    def is_behind(self) -> bool:
        return self.resolver.view.revision < self.cluster.etcd.keys.revision

    def observe(self) -> None:
        self.resolver.observe(self.cluster.etcd.update_from(self.resolver.view))

    def reads(self, begin: int, end: int) -> bytes | None:
        """What it has committed of that range, be it given up by now."""
        found = (held.reads(begin, end) for held in reversed(self.spools))
        return next((content for content in found if content is not None), None)

    def actions(self) -> list[Action]:
        found: list[Action] = [(f"{self.id.suffix} sees etcd", self.observe)] if self.is_behind else []
        found += [(f"disk of {self.id.suffix}", held.work) for held in self.spools if held.has_work]
        return found


@dataclass(slots=True, eq=False)
class Client:
    """One append, as its client and its caller: it sends `script` and remembers what it was told."""

    cluster: MiniCluster
    broker: MiniBroker
    opening: AppendOpening
    script: deque[ClientEvent]
    run: AppendRun = field(init=False)
    wants_chunk: bool = False
    proxied: Resolution | None = None
    outcomes: list[AppendOutcome | GazetteError | None] = field(default_factory=list)
    sent: bytes = b""
    has_intent: bool = False
    is_cancelled: bool = False
    # In the order in which appends begin and end.
    begun_at: int = 0
    ended_at: int = 0

    def __post_init__(self) -> None:
        self.run = AppendRun(self.opening, self.broker, self)
        self.begun_at = self.cluster.tick()

    def next_chunk(self) -> None:
        self.wants_chunk = True
        self.cluster.hungry.append(self)

    def proxy(self, resolution: Resolution) -> None:
        self.proxied = resolution

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        assert not self.outcomes, "an append ends once"
        self.outcomes.append(outcome)
        self.ended_at = self.cluster.tick()
        self.cluster.finished(self)

    @property
    def is_over(self) -> bool:
        return bool(self.outcomes) or self.proxied is not None

    @property
    def outcome(self) -> AppendOutcome | GazetteError | None:
        assert self.outcomes, self.run.fsm.state
        return self.outcomes[0]

    @property
    def status(self) -> Status:
        assert isinstance(self.outcome, AppendOutcome), self.outcome
        return self.outcome.status

    @property
    def commit(self) -> Fragment:
        assert isinstance(self.outcome, AppendOutcome), self.outcome
        assert self.outcome.commit is not None, self.outcome
        return self.outcome.commit

    @property
    def incarnation(self) -> int:
        """The revision at which the journal was created that it appended to."""
        resolution = self.run.fsm.resolution
        return 0 if resolution is None or resolution.item is None else resolution.item.create_revision

    @property
    def can_feed(self) -> bool:
        return self.wants_chunk and bool(self.script) and not self.is_over and not self.is_cancelled

    def feed(self) -> None:
        self.wants_chunk = False
        event = self.script.popleft()
        if isinstance(event, Chunk):
            self.sent += bytes(event.data)
        elif isinstance(event, Intent):
            self.has_intent = True
        self.run.feed(event)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.run.cancel()


class MiniCluster:
    def __init__(
        self,
        *members: ProcessId,
        spec: JournalSpec = SPEC,
        has_slow_disks: bool = False,
        keeps_epochs: bool = True,
    ) -> None:
        self.now_ns = NOW_NS
        self.has_slow_disks = has_slow_disks
        self.keeps_epochs = keeps_epochs
        self.etcd = ClusterKeys()
        self.wires: list[Wire] = []
        self.clients: list[Client] = []
        # Those that were asked for their next chunk.
        self.hungry: list[Client] = []
        self.under_way: list[Action] = []
        # What happens once nothing else does.
        self.timers: list[Action] = []
        self.unready: list[tuple[MiniBroker, Callable[[], None]]] = []
        self.ended: list[Client] = []
        self._ticks = 0
        # Of appends that were answered OK: the incarnation of the journal, the range, and when.
        self._commits: list[tuple[int, int, int, int]] = []
        for member in members:
            self.etcd.add_member(member, keeps_epochs=keeps_epochs)
        self.etcd.apply(spec)
        self.etcd.assign(*((member, slot) for slot, member in enumerate(members[: spec.replication])))
        self.brokers = {member: MiniBroker(self, member) for member in members}

    def tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def append(
        self, broker: ProcessId, *chunks: bytes, opening: AppendOpening | None = None, ends: str = "commit"
    ) -> Client:
        """Begin an append. `ends` is `commit`, `drop` (without the client's word), or `open` (no end yet)."""
        script: deque[ClientEvent] = deque(Chunk(chunk) for chunk in chunks)
        if ends == "commit":
            script += [Intent(), End()]
        elif ends == "drop":
            script.append(End())
        client = Client(self, self.brokers[broker], opening or AppendOpening(JOURNAL), script)
        self.clients.append(client)
        client.run.start()
        return client

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for broker in self.brokers.values():
            found += broker.actions()
        self.wires = [wire for wire in self.wires if not wire.is_broken]
        for wire in self.wires:
            found += wire.actions()
        self.hungry = [client for client in self.hungry if client.wants_chunk and not client.is_over]
        found += [("client", client.feed) for client in self.hungry if client.can_feed]
        found += [(name, lambda at=at: self.under_way.pop(at)[1]()) for at, (name, _) in enumerate(self.under_way)]  # type: ignore[misc]
        return found or self._late_actions()

    def _late_actions(self) -> list[Action]:
        found: list[Action] = [
            (name, lambda at=at: self.timers.pop(at)[1]())  # type: ignore[misc]
            for at, (name, _) in enumerate(self.timers)
        ]
        for broker in self.brokers.values():
            found += [
                ("copies are kept", lambda broker=broker, journal=journal: broker.keep(journal))  # type: ignore[misc]
                for journal in broker.copies.journals
                if broker.is_unsettled(journal)
            ]
        return found

    def run(self) -> None:
        """Until nothing is under way any more."""
        for _ in range(STEPS_MAX):
            actions = self.actions()
            if not actions:
                return
            actions[0][1]()
        raise AssertionError("it does not come to rest")

    def be_ready(self) -> None:
        waiting, self.unready = self.unready, []
        for broker, serve in waiting:
            broker.is_ready = True
            serve()

    def finished(self, client: Client) -> None:
        """Check what a client was told, at the moment it is told."""
        self.ended.append(client)
        outcome = client.outcome
        if not isinstance(outcome, AppendOutcome) or outcome.status is not Status.OK:
            return
        commit = client.commit
        assert commit.content_length == len(client.sent), "as many bytes as were sent"
        assert commit.sum == hashlib.sha1(client.sent).digest(), "the sum of these bytes"
        assert client.has_intent, "nothing is committed without the client's word"
        for member in outcome.header.route.members:
            if client.sent:
                held = self.brokers[member].reads(commit.begin, commit.end)
                assert held == client.sent, f"{member} has the bytes of an append that is answered OK, in one fragment"
        if not client.sent:
            return
        for incarnation, begin, end, ended_at in self._commits:
            if incarnation == client.incarnation:
                assert end <= commit.begin or commit.end <= begin, "commits are disjoint"
                assert ended_at > client.begun_at or end <= commit.begin, "in the order of appends"
        self._commits.append((client.incarnation, commit.begin, commit.end, client.ended_at))
