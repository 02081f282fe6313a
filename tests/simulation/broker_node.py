"""BrokerNode: one life of a broker in the simulator, from the opening of its spool directory to its last word.

The cores are the shipped ones, in the places that ``main`` and ``journal_broker`` have them. Whatever waits there asks
the simulated network, etcd, store and disk here, and is called back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from allocator.allocate import may_leave_now
from allocator.etcd_client import Committed
from allocator.etcd_errors import EtcdError, LeaseNotFoundError
from allocator.key_event import StoredKey
from allocator.keys import item_key, items_prefix, member_id, member_key, members_prefix
from allocator.keyspace import KeySpace
from allocator.keyspace_view import Update
from allocator.transaction import KEEP_LEASE, Compare, Put, Target, Transaction
from broker.append_event import AppendOutcome, HeadRead, Ready
from broker.broker_member import EPOCHS, KIN, BrokerMember
from broker.cluster_keys import BrokerEntity, broker_decoder
from broker.disk_watch import LATE_S, LOOKS, DiskWatch
from broker.durable_head import EpochTerms
from broker.journal_item import JournalItem
from broker.last_spec import LastSpec
from broker.notice import Withdraw
from broker.peer_stream import answer_s
from broker.pipeline import PeerStream, Pipeline
from broker.replica import Replica
from broker.replica_observer import ReplicaObserver
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from broker.resolver import Resolver
from broker.spool_worker import SpoolWorker
from fragment.cover_set import CoverSet
from fragment.persist_destination import CurrentSpec
from fragment.persist_ledger import PersistLedger
from fragment.remote_listing import RemoteListing
from fragment.spool import EpochMark
from fragment.spool_directory import FsyncMode
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import ListedObject
from protocol.errors import GazetteError, UnavailableError
from protocol.fragment import Fragment
from protocol.route import ProcessId
from tests.simulation.disk import SimulatedDisk
from tests.simulation.etcd import Etcd, EtcdAccess
from tests.simulation.etcd_watch import Mirror
from tests.simulation.lease_keeping import LeaseKeeping
from tests.simulation.network import End, Network, OnEnd, OnMessage, Stream
from tests.simulation.sim_allocator import SimulatedAllocator
from tests.simulation.sim_append import APPEND, Beat, ServedAppend
from tests.simulation.sim_copies import CopyKeeping
from tests.simulation.sim_persister import SimulatedPersister
from tests.simulation.sim_read import READ, ServedRead
from tests.simulation.sim_replica import SimulatedReplica
from tests.simulation.sim_replication import REPLICATE, Done, ServedReplication, SimulatedPeerStream
from tests.simulation.sim_spool import spool_worker
from tests.simulation.store import Store, path_in_store
from tests.simulation.world import CrashError, Node, World

ROOT = "/gazette/cluster"
PULSE_S = 20.0
_RETRY_S = 0.3
_ANNOUNCE_RETRY_S = 2.0
_DRAIN_S = 40.0
_GRACE_S = 5.0
_UPLOAD_S = 30.0
_LIMIT = 64
_SUFFIX = "broker-"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What outlives the processes of a broker, and what all brokers share."""

    network: Network
    etcd: Etcd
    store: Store
    disk: SimulatedDisk
    lease_ttl_s: int
    syncs_commits: bool
    # The file in the spool directory that keeps the lease's id, by the names of nodes.
    lease_file: dict[str, int]
    # Hears that a process is about to end by itself, and whether all it held is with others and in the store.
    exiting: Callable[[Node, bool], None]
    # Hears of every append that is about to be acknowledged: by whom, of which incarnation, and when it began.
    acknowledging: Callable[[BrokerNode, AppendOutcome, int, float], None]
    # Hears of all that readers may have of some replica: journal, CreateRevision, begin and end.
    shown: Callable[[str, int, int, int], None]


class _Served(Protocol):
    is_over: bool

    def abort(self) -> None: ...


def process_id(node: Node) -> ProcessId:
    return ProcessId("zone-a" if node.number % 2 else "zone-b", f"{_SUFFIX}{node.name}")


def node_of(world: World, suffix: str) -> Node:
    """That of the broker whose id has this suffix."""
    return world.nodes[suffix.removeprefix(_SUFFIX)]


class BrokerNode:
    def __init__(self, node: Node, surroundings: Surroundings) -> None:
        self.node = node
        self.id = process_id(node)
        self.surroundings = surroundings
        self.store = surroundings.store
        self._world: World = node.world
        self._member_key = member_key(ROOT, *self.id)
        self._directory = surroundings.disk.open(FsyncMode(commit=surroundings.syncs_commits))
        self._access = EtcdAccess(surroundings.network, surroundings.etcd, node)
        self._keyspace: KeySpace[BrokerEntity] = KeySpace(ROOT, broker_decoder(ROOT))
        self._mirror: Mirror[BrokerEntity] = Mirror(self._access, self._keyspace, self._observe)
        self._keeping = LeaseKeeping(self._access, surroundings.lease_ttl_s, self._granted, self._lost)
        self._allocator = SimulatedAllocator(self._access, ROOT, self._member_key, lambda: self._mirror.view)
        self.lease_id = 0
        self._mod_revision: int | None = None
        self.resolver: Resolver[SpoolFile] | None = None
        self._ledger: PersistLedger[SpoolFile] = PersistLedger(
            self._spec_now, lambda: node.world.now_s, node.world.chance, may_upload=self.is_certain
        )
        self.persister = SimulatedPersister(node, self.store, self._ledger, self._decided)
        # Those that were started and have not handed on their spools yet.
        self.replicas: dict[SimulatedReplica, None] = {}
        self.keeping = CopyKeeping(self._access, ROOT, self._directory, self._ledger, self._has_replica)
        self._replica_count = 0
        self._hung_s = answer_s(surroundings.lease_ttl_s)
        self._disk_watch = DiskWatch(node.name, self._hung_s, lambda: node.world.now_s)
        self._served: dict[_Served, None] = {}
        self._is_draining = self._is_drained = self._is_stopping = self._has_resigned = self._is_exiting = False
        self._start()

    # Becoming a member.

    def _start(self) -> None:
        """The directory is ours alone, so whoever had the lease that it knows of is gone."""
        previous = self.surroundings.lease_file.get(self.node.name)
        if previous is None:
            self._recover()
            return

        def revoked(answer: object) -> None:
            if isinstance(answer, EtcdError) and not isinstance(answer, LeaseNotFoundError):
                self.node.after(_RETRY_S, self._start)
            else:
                self._recover()

        self._access.revoke_lease(previous, revoked)

    def _recover(self) -> None:
        """Before anybody knows of this broker."""
        self.keeping.recover(self._keeping.start)

    def _granted(self, lease_id: int) -> None:
        self.lease_id = lease_id
        self.surroundings.lease_file[self.node.name] = lease_id
        self._announce()

    def _member(self, *, exiting: bool = False) -> bytes:
        spool_id = self._directory.spool_id
        endpoint = f"http://{self.node.name}:8080"
        return BrokerMember(self.id, endpoint, _LIMIT, exiting, capabilities=KIN | EPOCHS, spool_id=spool_id).encoded()

    def _announce(self) -> None:
        if self._is_stopping:
            return
        absent = Compare(self._member_key, Target.VERSION, 0)
        self._access.commit(
            Transaction((absent,), (Put(self._member_key, self._member(), self.lease_id),)), self._announced
        )

    def _announced(self, answer: Committed | EtcdError) -> None:
        if isinstance(answer, LeaseNotFoundError):
            self._keeping.give_up("it was gone before the announcement")
        elif isinstance(answer, EtcdError):
            self.node.after(_RETRY_S, self._announce)
        elif answer.succeeded:
            self._joined(answer.header.revision)
        else:
            self._access.get(self._member_key, self._found_announced)

    def _found_announced(self, existing: StoredKey | EtcdError | None) -> None:
        """The answer to an earlier attempt may have been lost; or an earlier life's lease has yet to run out."""
        if isinstance(existing, StoredKey) and existing.lease == self.lease_id:
            self._joined(existing.mod_revision)
        else:
            self.node.after(_ANNOUNCE_RETRY_S if isinstance(existing, StoredKey) else _RETRY_S, self._announce)

    def _joined(self, revision: int) -> None:
        if self._mod_revision is None and not self._is_stopping:
            self._mod_revision = revision
            self._mirror.start(self._loaded, revision)

    def _loaded(self) -> None:
        if not self._is_stopping:
            self.resolver = Resolver(ROOT, self.id, self._mirror.view, self._start_replica)
            self.keeping.look_after()
            self.persister.run_now()
            self.surroundings.network.serve(self.node, self._accept)
            self._allocator.changed()
            self._look_after_disk(self._world.now_s)

    def _observe(self, update: Update[BrokerEntity]) -> None:
        if self.resolver is None or self._has_resigned:
            return
        member = update.view.get(self._member_key)
        if member is None or member.lease != self.lease_id:
            self._keeping.give_up("the member's key is gone from etcd")
            return
        self.resolver.observe(update)
        self._allocator.changed()

    # Ceasing to be one.

    def _look_after_disk(self, due_s: float) -> None:
        """As ``DiskWatch.run``: one that was stopped has yet to hear of its disk."""
        try:
            if self._world.now_s < due_s + LATE_S:
                self._disk_watch.look()
        except UnavailableError as error:
            self.node.note("gives up", error)
            self._stop_serving(0.0)
            self._resign()
            return
        look_s = self._hung_s / LOOKS
        self.node.after(look_s, self._look_after_disk, self._world.now_s + look_s)

    def _lost(self, why: str) -> None:
        self.node.note("lease is lost", why)
        if not self._has_resigned:
            self._stop_serving(0.0)
            self._end_membership()

    def drain(self) -> None:
        """As SIGTERM asks for: hand everything over, then go."""
        if self.resolver is None or self._is_draining or self._is_stopping:
            return
        self._is_draining = True
        self.node.note("drains")
        self._say_exiting()
        self.node.after(_DRAIN_S, self._leave)
        self._await_drained()

    def _say_exiting(self) -> None:
        unchanged = Compare(self._member_key, Target.MOD, self._mod_revision or 0)
        put = Put(self._member_key, self._member(exiting=True), KEEP_LEASE)

        def answered(answer: Committed | EtcdError) -> None:
            # It is compared with what we wrote last: if that fails, we have been here before and the answer was lost.
            if isinstance(answer, EtcdError) and not self._is_stopping:
                self.node.after(_RETRY_S, self._say_exiting)

        self._access.commit(Transaction((unchanged,), (put,)), answered)

    def _await_drained(self) -> None:
        view = self._mirror.view
        member = view.get(self._member_key)
        is_told = member is not None and isinstance(member.value.value, BrokerMember) and member.value.value.exiting
        if is_told and may_leave_now(ROOT, member_id(*self.id), view):
            self._is_drained = True
            self._leave()
        elif not self._is_stopping:
            self.node.after(0.5, self._await_drained)

    def _leave(self) -> None:
        """What nobody took over ends here, and where it ends is recorded, while this broker is a member beyond doubt.
        Only then it ceases to be one."""
        if not self._is_stopping:
            self._stop_serving(_GRACE_S)
            self.node.after(_UPLOAD_S, self._resign)
            self._settle_then(self._resign)

    def _resign(self) -> None:
        if not self._has_resigned:
            self._keeping.release()
            self._access.revoke_lease(self.lease_id, lambda _: None)
            self._end_membership()

    def _stop_serving(self, grace_s: float) -> None:
        """Nothing is ours to serve any more. Calls end, and replicas are given up."""
        self._is_stopping = True
        if self.resolver is not None and not self.resolver.is_stopped:
            self.resolver.stop()
        if grace_s:
            self.node.after(grace_s, self._abort_calls)
        else:
            self._abort_calls()

    def _end_membership(self) -> None:
        """What is left of it is to upload what replicas held."""
        self._has_resigned = True
        self._allocator.stop()
        self._mirror.stop()
        self.node.after(_UPLOAD_S, self._exit)
        self._settle_then(partial(self.persister.finish_then, self._exit))

    def _abort_calls(self) -> None:
        for served in list(self._served):
            if not served.is_over:
                served.abort()
        self._served.clear()

    def _settle_then(self, done: Callable[[], None]) -> None:
        """Once all replicas are given up: close what is open of theirs."""
        if not self.replicas:
            self.keeping.settle(done)
        else:
            self.node.after(0.1, self._settle_then, done)

    def _exit(self) -> None:
        if not self._is_exiting:
            self._is_exiting = True
            is_clean = self._is_drained and not self.persister.items and not self.replicas
            self.surroundings.exiting(self.node, is_clean)
            raise CrashError

    # For those who look from outside.

    def held(self) -> Iterator[tuple[str, int, int, int]]:
        """All that is committed here and may be in no store yet: journal, CreateRevision, begin and end."""
        for replica in self.replicas:
            fragment = replica.worker.spool.fragment
            yield replica.journal, replica.create_revision, fragment.begin, fragment.end
        for item in self.persister.items:
            yield item.fragment.journal, item.create_revision, item.fragment.begin, item.fragment.end

    @property
    def is_settled(self) -> bool:
        """Whether it is there, and about to stay."""
        return self.resolver is not None and not self._is_draining and not self._is_stopping

    def unreleased(self) -> Iterator[str]:
        """Pipelines that somebody has although nobody appends, and replicas that were stopped long ago."""
        for replica in self.replicas:
            if replica.is_stopped:
                yield f"{replica.name}, which was stopped"
            elif replica.pipeline.is_taken:
                yield f"the pipeline of {replica.name}"

    # Calls.

    def _accept(self, stream: Stream, method: str) -> tuple[OnMessage, OnEnd]:
        served: ServedAppend | ServedRead | ServedReplication
        if self._is_stopping:
            stream.half_close(UnavailableError("this broker is stopping"))
            return _ignored, _ignored
        if method == APPEND:
            served = ServedAppend(self, stream)
        elif method == READ:
            served = ServedRead(self, stream)
        else:
            assert method == REPLICATE
            served = ServedReplication(self, stream, REVISION_WAIT_S)
        if len(self._served) > 64:
            self._served = {held: None for held in self._served if not held.is_over}
        self._served[served] = None
        return served.heard, served.ended

    def now_ns(self) -> int:
        return self._world.unix_ns

    def is_certain(self) -> bool:
        return self._keeping.is_certain()

    def resolve_within(self, wanted: Wanted, timeout_s: float | None, done: Done) -> Withdraw:
        assert self.resolver is not None
        wait = self.resolver.resolve(wanted, done)
        if wait.is_over or timeout_s is None:
            return wait.withdraw

        def give_up() -> None:
            if not wait.is_over:
                wait.withdraw()
                done(UnavailableError(f"waited too long for revision {wanted.revision}"))

        self.node.after(timeout_s, give_up)
        return wait.withdraw

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        def answered(answer: Committed | EtcdError) -> None:
            if isinstance(answer, EtcdError):
                done(UnavailableError(f"etcd: {answer}"))
            else:
                done(answer.header.revision if answer.succeeded else None)

        self._access.commit(transaction, answered)

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        self.keeping.read_head(journal, done)

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        assert isinstance(replica, SimulatedReplica)
        if is_fresh:
            self._list_anew(replica, done)
            return _nothing
        if replica.is_refreshed:
            done(Ready(replica.index.summary()))
            return _nothing
        return replica.wait_refreshed(lambda: done(Ready(replica.index.summary())))

    def _list_anew(self, replica: SimulatedReplica, done: Callable[[Ready | GazetteError], None]) -> None:
        current = self._spec_now(replica.journal)
        (url,) = current.spec.fragment.stores if current is not None else ("",)

        def listed(objects: list[ListedObject] | UnavailableError) -> None:
            if isinstance(objects, UnavailableError):
                done(objects)
                return
            self._take_listing(replica, url, objects)
            members = self._mirror.view.prefixed(members_prefix(ROOT))
            spool_ids = {kv.value.value.spool_id for kv in members if isinstance(kv.value.value, BrokerMember)}
            done(Ready(replica.index.summary(), spool_ids=frozenset(spool_ids)))

        self.store.list_journal(self.node, path_in_store(url, replica.journal), listed)

    # What a replica needs of its broker.

    @property
    def spool_id(self) -> bytes:
        return self._directory.spool_id

    def has_copy(self, journal: str, mark: EpochMark) -> bool:
        return self._replicas_of(journal) > 1 or self.keeping.copies.has(journal, mark)

    def later(self, delay_s: float, act: Callable[[], None]) -> Withdraw:
        return self.node.timer(delay_s, act).cancel

    def is_member(self, member: ProcessId, revision: int) -> bool:
        kv = self._mirror.view.get(member_key(ROOT, *member))
        return kv is not None and kv.create_revision <= revision

    def epoch_opened(self, replica: Replica[Any], terms: EpochTerms, closed: EpochMark | None) -> None:
        if closed is not None:
            self._ledger.closed(replica.journal, closed, terms.begin, owner=replica)

    def _decided(self, fragment: Fragment, file: SpoolFile, create_revision: int) -> None:
        replica = self.resolver.replicas.get(fragment.journal) if self.resolver is not None else None
        if replica is not None and replica.create_revision == create_revision:
            self._show(replica, fragment, file)

    def _show(self, replica: Replica[SpoolFile], fragment: Fragment, file: SpoolFile) -> None:
        replica.index.commit(fragment, file)
        self.surroundings.shown(replica.journal, replica.create_revision, fragment.begin, fragment.end)

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        network, world = self.surroundings.network, self._world
        return {
            peer: SimulatedPeerStream(network, self.node, node_of(world, peer.suffix), peer, pipeline)
            for peer in pipeline.peers
        }

    def acknowledging(self, outcome: AppendOutcome, create_revision: int, begun_s: float) -> None:
        self.surroundings.acknowledging(self, outcome, create_revision, begun_s)

    def forward(
        self, peer: ProcessId, method: str, heard: Callable[[Any], None], ended: Callable[[End], None]
    ) -> Stream:
        return self.surroundings.network.open(self.node, node_of(self._world, peer.suffix), method, heard, ended)

    def nearest(self, resolution: Resolution) -> ProcessId:
        members = resolution.header.route.members
        return min(members, key=lambda member: (member.zone != self.id.zone, member))

    # The life of a replica.

    def _spec_now(self, journal: str) -> CurrentSpec | None:
        kv = self._mirror.view.get(item_key(ROOT, journal))
        if kv is None or not isinstance(kv.value.value, JournalItem):
            return None
        return CurrentSpec(kv.value.value.spec, kv.create_revision)

    def _has_replica(self, journal: str) -> bool:
        return self._replicas_of(journal) > 0

    def _replicas_of(self, journal: str) -> int:
        """How many are not given up: one that is stopped may still have an append under way."""
        return sum(replica.journal == journal for replica in self.replicas)

    def voided(self, journal: str) -> None:
        """The record says it all."""

    def _start_replica(self, journal: str, create_revision: int) -> SimulatedReplica:
        self._replica_count += 1
        name = f"{self.node.name}/{self.node.life}/{self._replica_count}"
        replica = SimulatedReplica(self.node, name, journal, create_revision)
        replica.host = self
        for fragment, file in self._ledger.local(journal, create_revision):
            self._show(replica, fragment, file)
        last_spec = LastSpec(lambda: self._mirror.view, ROOT, journal, create_revision)
        writer = self._directory.writer(journal, last_spec, create_revision)
        replica.equip(
            spool_worker(
                self.node,
                self.surroundings.disk,
                writer,
                ReplicaObserver(
                    replica,
                    lambda: replica.worker.spool.epoch,
                    self._ledger,
                    self.keeping.give_up,
                    lambda local: self._show(replica, local.fragment, local.file),
                ),
                _released(replica),
                self._disk_watch,
            )
        )
        replica.given_up.listen(lambda: _nothing(self.replicas.pop(replica, None)))
        self.replicas[replica] = None
        self.node.after(0.0, self._refresh, replica)
        self.node.after(0.0, _Pulsing(self, replica).look)
        return replica

    def _refresh(self, replica: SimulatedReplica) -> None:
        current = self._spec_now(replica.journal)
        if replica.is_stopped:
            return
        if current is None:
            self.node.after(1.0, self._refresh, replica)
            return
        (url,) = current.spec.fragment.stores

        def listed(objects: list[ListedObject] | UnavailableError) -> None:
            if replica.is_stopped:
                return
            if not isinstance(objects, UnavailableError):
                self._take_listing(replica, url, objects)
            interval_s = current.spec.fragment.refresh_interval_ns / 1e9
            self.node.after(interval_s * self._world.chance.uniform(0.9, 1.1), self._refresh, replica)

        self.store.list_journal(self.node, path_in_store(url, replica.journal), listed)

    def _take_listing(self, replica: SimulatedReplica, url: str, objects: list[ListedObject]) -> None:
        listing = RemoteListing(replica.journal)
        listing.take(url, objects, self._journal_names())
        replica.index.replace_remote(CoverSet(listing.fragments))
        replica.refreshed()

    def _journal_names(self) -> list[str]:
        prefix = items_prefix(ROOT)
        return [kv.key[len(prefix) :] for kv in self._mirror.view.prefixed(prefix)]


class _Pulsing:
    """As ``pulse_forever``: at once, now and then, and whenever the journal's assignments have changed."""

    def __init__(self, broker: BrokerNode, replica: SimulatedReplica) -> None:
        self._broker = broker
        self._replica = replica
        self._beat: Beat | None = None
        self._is_hurried = False
        self._turn = 0

    def look(self) -> None:
        replica = self._replica
        if replica.is_stopped:
            return
        self._turn += 1
        self._is_hurried = False
        replica.invalidation.listen(self._hurry)
        if replica.is_primary:
            self._beat = Beat(self._broker, replica.journal, self._done)
            self._broker.node.after(PULSE_S, self._give_up, self._beat)
            self._beat.run.start()
        else:
            self._rest()

    def _give_up(self, beat: Beat) -> None:
        beat.run.cancel()

    def _done(self) -> None:
        self._beat = None
        self._broker.node.after(0.0, self._rest)

    def _rest(self) -> None:
        if self._is_hurried:
            self._broker.node.after(0.0, self.look)
        else:
            pause_s = PULSE_S * self._broker.node.world.chance.uniform(0.9, 1.1)
            self._broker.node.after(pause_s, self._again, self._turn)

    def _hurry(self) -> None:
        self._is_hurried = True
        if self._beat is None:
            self._broker.node.after(0.0, self._again, self._turn)

    def _again(self, turn: int) -> None:
        if turn == self._turn and self._beat is None:
            self.look()


def _released(replica: SimulatedReplica) -> Callable[[SpoolWorker], None]:
    return replica.spool_released


def _ignored(_: Any) -> None:
    """Nobody listens any more."""


def _nothing(_: object = None) -> None:
    """There is nothing to withdraw."""
