"""JournalBroker: the replicas of one broker, with the disk, the stores, etcd and the peers that they live on."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError
from allocator.keys import item_key, member_key, members_prefix
from allocator.keyspace_watch import KeySpaceWatch
from allocator.transaction import Transaction
from broker.answer_header import reachable
from broker.append_api import AppendRates
from broker.append_event import HeadRead, Ready
from broker.background import Background
from broker.broker_member import BrokerMember
from broker.cluster_keys import MAX_REPLICATION, BrokerEntity
from broker.copy_keeping import CopyKeeping
from broker.disk_watch import DiskWatch
from broker.durable_head import DurableHead, EpochTerms, Extents, pruned, trimmed
from broker.journal_item import JournalItem
from broker.last_spec import LastSpec
from broker.local_replica import LocalReplica
from broker.metrics import VOID_HEADS
from broker.notice import Withdraw
from broker.peer import Peer, nearest_first
from broker.peer_stream import GrpcPeerStream, UnreachablePeerStream
from broker.peers import PeerChannels
from broker.pipeline import PeerStream, Pipeline
from broker.pulse import Pulse
from broker.replica import Replica
from broker.replica_observer import ReplicaObserver
from broker.replication_wire import MessageEncoder
from broker.resolution import Resolution, Wanted
from broker.resolver import Resolver
from broker.resolving import resolve_within
from broker.spool_worker import SpoolWorker
from broker.store_healths import StoreHealths
from broker.store_listing import StoreListing
from broker.unpersisted import Unpersisted, unpersisted
from fragment.live_index import LiveIndex, jittered
from fragment.persist_destination import CurrentSpec
from fragment.persist_ledger import PersistLedger
from fragment.persister import Persister
from fragment.retention import enforce
from fragment.spool import EpochMark
from fragment.spool_compression import SpoolCompression
from fragment.spool_directory import SpoolDirectory
from fragment.spool_file import SpoolFile
from fragment.spool_writer import LocalFragment, SpoolWriter
from fragment.stores.open_stores import OpenStores
from protocol.errors import GazetteError, InvariantError, UnavailableError
from protocol.fragment import Fragment
from protocol.journal import JournalSpec
from protocol.route import ProcessId

log = logging.getLogger(__name__)

NS_PER_S = 1_000_000_000
BUDGET_WAIT_S = 10.0
"""How long an append waits while too much is on disk that is not uploaded."""
TIDY_S = 600.0
SWEEP_EVERY = 6
"""Each so many times records of deleted journals are looked for, too: at first, and then about once in an hour."""
CATCH_UP_S, CATCH_UP_S_MAX = 1.0, 60.0
"""How soon stores are listed again, at first and at last, for what a holder of an earlier epoch is to bring."""
CATCH_UP_ROUNDS = 64
"""About an hour. What is not there by then is found when the journal is listed in due time."""
TRANSACTIONS_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicy:
    """How a broker treats all of its journals."""

    rates: AppendRates = field(default_factory=AppendRates)
    # Whether journals that are idle and flushed are suspended.
    auto_suspend: bool = False
    # Whether fragments past retention are only named, and not removed.
    report_retention: bool = False
    # Whether bytes of deleted journals that are not uploaded yet are thrown away.
    discard_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a broker is given to work with."""

    etcd: EtcdClient
    watch: KeySpaceWatch[BrokerEntity]
    directory: SpoolDirectory
    # For disks.
    executor: Executor
    # For readers, who must not hold up those who write.
    readers: Executor
    stores: OpenStores
    peers: PeerChannels
    chance: random.Random
    # Whether the broker is a member of its cluster beyond doubt.
    is_certain: Callable[[], bool]
    # How long a peer, or the disk, may owe an answer.
    answer_s: float
    # Unix seconds and nanoseconds.
    now_s: Callable[[], float]
    now_ns: Callable[[], int]


class JournalBroker:
    """It has replicas from ``begin`` until it is stopped."""

    def __init__(self, tasks: Background, own_id: ProcessId, surroundings: Surroundings, policy: BrokerPolicy) -> None:
        self.own_id = own_id
        self.policy = policy
        self._tasks = tasks
        self.surroundings = surroundings
        self.root = surroundings.watch.prefix
        self._loop = asyncio.get_running_loop()
        self._encoder = MessageEncoder()
        self._transacting = asyncio.Semaphore(TRANSACTIONS_MAX)
        # What runs for each replica until it is to be given up.
        self._tending: dict[LocalReplica, asyncio.Task[None]] = {}
        # Replicas that wait for what others have of earlier epochs.
        self._catching_up: dict[LocalReplica, EpochTerms] = {}
        # Primaries of journals with earlier epochs on record.
        self._untrimmed: set[Replica[Any]] = set()
        # How many replicas of each journal may still have a say: one that is given up is soon followed by another.
        self._not_given_up: Counter[str] = Counter()
        self._all_given_up = asyncio.Event()
        self._disk = DiskWatch("/".join(own_id), surroundings.answer_s, self.clock_s)
        self.healths = StoreHealths(tasks, surroundings.stores.open, surroundings.chance)
        self._listing = StoreListing(self.root, lambda: self.resolver.view, self.spec_now, surroundings.stores.open)
        self.compression = SpoolCompression()
        self.ledger: PersistLedger[SpoolFile] = PersistLedger(
            self._spec_of_bytes,
            self.clock_s,
            surroundings.chance,
            may_upload=surroundings.is_certain,
            discard_deleted=policy.discard_deleted,
        )
        self.persister = Persister(self.ledger, surroundings.stores.open, self.compression, self._joined)
        self.keeping = CopyKeeping(
            surroundings.etcd, self.root, surroundings.directory, self.ledger, self._not_given_up.__contains__
        )
        self._resolver: Resolver[SpoolFile] | None = None

    async def recover(self) -> None:
        """Before this broker is a member: see to what an earlier process of it has left. Raises unless etcd answers."""
        await self.keeping.recover()

    def begin(self) -> None:
        """Have replicas, from now on. The mirror of etcd has to be loaded."""
        surroundings = self.surroundings
        self._resolver = Resolver(self.root, self.own_id, surroundings.watch.view, self._start)
        surroundings.watch.observe(self._resolver.observe)
        VOID_HEADS.set_function(lambda: sum(replica.is_void for replica in list(self.resolver.replicas.values())))

    @property
    def has_begun(self) -> bool:
        return self._resolver is not None

    @property
    def resolver(self) -> Resolver[SpoolFile]:
        assert self._resolver is not None, "a broker has replicas once it has begun"
        return self._resolver

    @property
    def rates(self) -> AppendRates:
        return self.policy.rates

    def now_ns(self) -> int:
        return self.surroundings.now_ns()

    def is_certain(self) -> bool:
        return self.surroundings.is_certain()

    def clock_s(self) -> float:
        return self._loop.time()

    def spec_now(self, journal: str) -> CurrentSpec | None:
        kv = self.surroundings.watch.view.get(item_key(self.root, journal))
        if kv is None or not isinstance(kv.value.value, JournalItem):
            return None
        return CurrentSpec(kv.value.value.spec, kv.create_revision)

    def _spec_of_bytes(self, journal: str) -> CurrentSpec | None:
        """To upload by. A journal whose spec cannot be read is not a deleted one: its bytes wait. Raises an
        UnavailableError."""
        current = self.spec_now(journal)
        if current is None and self._is_unreadable(journal):
            raise UnavailableError(f"the spec of {journal} in etcd cannot be read: apply it again")
        return current

    def _is_unreadable(self, journal: str) -> bool:
        return item_key(self.root, journal).encode() in self.surroundings.watch.view.undecodable

    # What an append asks of the broker it runs in.

    def resolve_within(
        self, wanted: Wanted, timeout_s: float | None, done: Callable[[Resolution | GazetteError], None]
    ) -> Withdraw:
        return resolve_within(self.resolver, wanted, timeout_s, done)

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        self._tasks.create_task(self._transact(transaction, done))

    async def _transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        try:
            async with self._transacting:
                committed = await self.surroundings.etcd.commit(transaction)
        except EtcdError as error:
            # Not in its own words, which name hosts.
            log.warning("etcd did not do a transaction of a journal's primary", extra={"error": str(error)})
            done(UnavailableError("etcd cannot be reached, or does not answer: try again"))
        else:
            done(committed.header.revision if committed.succeeded else None)

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        self._tasks.create_task(self._read_head(journal, done))

    async def _read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        try:
            async with self._transacting:
                read = await self.keeping.read_head(journal)
        except UnavailableError as error:
            done(error)
        else:
            done(read)

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        self._tasks.create_task(self._void_head(journal, create_revision, done))

    async def _void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        try:
            async with self._transacting:
                await self.keeping.void_head(journal, create_revision)
        except UnavailableError as error:
            done(error)
        else:
            done(None)

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Withdraw:
        """At once, as nearly always: the stores were listed long ago, and are healthy."""
        assert isinstance(replica, LocalReplica)
        if is_fresh:
            listing = self._tasks.create_task(self._list_anew(replica, done))
            return lambda: _nothing(listing.cancel())
        url = next(iter(self._listing.urls(replica.journal)), None)
        has_room = self.surroundings.directory.budget.has_room
        if has_room and replica.live.is_refreshed and (url is None or self.healths.is_healthy(url)):
            done(Ready(replica.index.summary()))
            return _nothing
        waiting = self._tasks.create_task(self._ready(replica, url, done))
        return lambda: _nothing(waiting.cancel())

    async def _list_anew(self, replica: LocalReplica, done: Callable[[Ready | GazetteError], None]) -> None:
        try:
            await replica.live.refresh(partial(self._listing.list, replica.journal))
        except Exception as error:
            # Stores raise all sorts of things.
            if isinstance(error, InvariantError):
                raise
            done(UnavailableError(f"the stores of the journal cannot be listed: {error}"))
            return
        members = self.resolver.view.prefixed(members_prefix(self.root))
        spool_ids = {kv.value.value.spool_id for kv in members if isinstance(kv.value.value, BrokerMember)}
        done(Ready(replica.index.summary(), spool_ids=frozenset(spool_ids - {b""})))

    async def _ready(
        self, replica: LocalReplica, url: str | None, done: Callable[[Ready | GazetteError], None]
    ) -> None:
        try:
            await self.surroundings.directory.budget.wait_for_room(BUDGET_WAIT_S)
            # First: a store that cannot be used cannot be listed either.
            unhealthy = await self.healths.problem(url) if url is not None else None
            if unhealthy is None:
                unhealthy = await self._listing.first_problem(replica.live)
        except UnavailableError as error:
            done(error)
        else:
            done(Ready(replica.index.summary(), unhealthy))

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        route = pipeline.header.route
        assert route.endpoints is not None
        streams: dict[ProcessId, PeerStream] = {}
        for member, endpoint in zip(route.members, route.endpoints, strict=True):
            if member != self.own_id:
                streams[member] = self._open_stream(replica.journal, pipeline, member, endpoint)
        return streams

    def _open_stream(self, journal: str, pipeline: Pipeline, member: ProcessId, endpoint: str) -> PeerStream:
        try:
            call = self.surroundings.peers.replicate(Peer(member, endpoint, member in pipeline.kin), journal)
        except GazetteError:
            # Its key is gone, or cannot be read: there is no way to get to it.
            failure = UnavailableError("it is not known where it can be reached")
            self._loop.call_soon(pipeline.failed, member, failure)
            return UnreachablePeerStream()
        stream = GrpcPeerStream(call, member, pipeline, self._encoder, self.surroundings.answer_s)
        self._tasks.create_task(stream.run())
        return stream

    def proxy_append(self, resolution: Resolution, journal: str) -> grpc.aio.StreamUnaryCall[bytes, bytes]:
        # To the primary alone: nobody else could do it, and it is never sent twice.
        (primary,) = self.peers_of(resolution)
        return self.surroundings.peers.append(primary, journal)

    def peers_of(self, resolution: Resolution) -> list[Peer]:
        """Whom a request may be passed on to: the one that was resolved, or any member, the nearest first."""
        route, wanted = reachable(resolution.header.route), resolution.header.process_id
        peers = [
            Peer(member, endpoint, member in resolution.kin)
            for member, endpoint in zip(route.members, route.endpoints or (), strict=True)
            if wanted in (None, member)
        ]
        if not peers:
            raise UnavailableError("whoever holds the journal cannot be reached: another one soon takes over")
        return nearest_first(peers, self.own_id.zone, self.surroundings.peers.link)

    # The life of a replica.

    def _start(self, journal: str, create_revision: int) -> LocalReplica:
        surroundings = self.surroundings
        live: LiveIndex[SpoolFile] = LiveIndex(journal, surroundings.now_s, surroundings.chance)
        replica = LocalReplica(journal, create_revision, live)
        replica.host = self
        for fragment, file in self.ledger.local(journal, create_revision):
            live.commit(fragment, file)
        last_spec = LastSpec(lambda: surroundings.watch.view, self.root, journal, create_revision)
        writer = SpoolWriter(journal, surroundings.directory, last_spec, create_revision)
        shown = partial(self._shown, replica)
        observer = ReplicaObserver(
            replica, lambda: replica.worker.spool.epoch, self.ledger, self.keeping.give_up, shown
        )
        replica.equip(SpoolWorker(writer, surroundings.executor, observer, replica.spool_released, self._disk))
        replica.given_up.listen(lambda: self._given_up(replica))
        replica.stopped.listen(lambda: self._stop_tending(replica))
        listing, interval_s = partial(self._listing.list, journal), partial(self._listing.interval_s, journal)
        self._tending[replica] = self._tasks.create_task(live.refresh_forever(listing, interval_s))
        Pulse(self, replica, self.policy.auto_suspend, surroundings.chance.random).start()
        self._not_given_up[journal] += 1
        return replica

    def _shown(self, replica: LocalReplica, local: LocalFragment) -> None:
        replica.live.commit(local.fragment, local.file)
        if replica.is_primary:
            self.compression.grew(local)

    def _stop_tending(self, replica: LocalReplica) -> None:
        self._tending.pop(replica).cancel()

    def _given_up(self, replica: LocalReplica) -> None:
        self._not_given_up[replica.journal] -= 1
        if not self._not_given_up[replica.journal]:
            del self._not_given_up[replica.journal]
        if not self._not_given_up:
            self._all_given_up.set()

    # What a replica needs of its broker.

    @property
    def spool_id(self) -> bytes:
        return self.surroundings.directory.spool_id

    def has_copy(self, journal: str, mark: EpochMark) -> bool:
        # A replica that was stopped but is not given up yet has commits that are nobody else's to see.
        return self._not_given_up[journal] > 1 or self.keeping.copies.has(journal, mark)

    def later(self, delay_s: float, act: Callable[[], None]) -> Withdraw:
        return self._loop.call_later(delay_s, act).cancel

    def is_member(self, member: ProcessId, revision: int) -> bool:
        kv = self.resolver.view.get(member_key(self.root, *member))
        return kv is not None and kv.create_revision <= revision

    def epoch_opened(self, replica: Replica[Any], terms: EpochTerms, closed: EpochMark | None) -> None:
        if closed is not None:
            self.ledger.closed(replica.journal, closed, terms.begin, owner=replica)
        if terms.oldest_begin < terms.begin and replica.is_primary:
            self._untrimmed.add(replica)
        if terms.oldest_begin < terms.begin and isinstance(replica, LocalReplica):
            is_under_way = replica in self._catching_up
            self._catching_up[replica] = terms
            if not is_under_way:
                self._tasks.create_task(self._catch_up(replica))

    def voided(self, journal: str) -> None:
        extra = {"journal": journal}
        log.warning("a broker without epochs takes part: acknowledged bytes are as safe as in Gazette", extra=extra)

    async def _catch_up(self, replica: LocalReplica) -> None:
        """A holder of an earlier epoch may have uploaded it, or be about to: look soon, and not only in due time."""
        pause_s = CATCH_UP_S
        try:
            for _ in range(CATCH_UP_ROUNDS):
                terms = self._catching_up[replica]
                if replica.is_stopped or replica.index.held_through(terms.oldest_begin) >= terms.begin:
                    return
                await asyncio.sleep(jittered(pause_s, self.surroundings.chance))
                await self._relist(replica)
                pause_s = min(2 * pause_s, CATCH_UP_S_MAX)
        finally:
            del self._catching_up[replica]

    async def _relist(self, replica: LocalReplica) -> None:
        try:
            await replica.live.refresh(partial(self._listing.list, replica.journal))
        except Exception as error:
            # As in the refresh that comes in due time: stores raise all sorts of things.
            if isinstance(error, InvariantError):
                raise
            extra = {"journal": replica.journal, "error": repr(error)}
            log.warning("listing the fragments of a journal failed (will retry)", extra=extra)

    def _joined(self, fragment: Fragment, file: SpoolFile, create_revision: int) -> None:
        """Bytes that no replica had are decided: whoever reads the journal here may have them."""
        replica = self._resolver.replicas.get(fragment.journal) if self._resolver is not None else None
        if isinstance(replica, LocalReplica) and replica.create_revision == create_revision:
            replica.live.commit(fragment, file)

    def heads(self) -> Iterator[tuple[str, int]]:
        return ((replica.journal, replica.index.summary().end) for replica in list(self.resolver.replicas.values()))

    def replica_counts(self) -> tuple[int, int]:
        """How many there are, and of how many this broker is the primary."""
        replicas = list(self.resolver.replicas.values())
        return len(replicas), sum(replica.is_primary for replica in replicas)

    def unpersisted(self) -> Unpersisted:
        # Of a journal without stores bytes are where they are to be.
        replicas = [replica for replica in list(self.resolver.replicas.values()) if isinstance(replica, LocalReplica)]
        spools = (replica.worker.spool for replica in replicas if self._listing.urls(replica.journal))
        return unpersisted(self.ledger.waiting_bytes, self.ledger.oldest_append_ns(), spools, self.now_ns())

    def tend(self) -> None:
        """Compress and upload what is complete, and tidy up. Each by itself: if one cannot go on, and with it the
        process, there are still uploads to be done."""
        for work in (
            self._disk.run(),
            self.compression.run(),
            self.persister.run(),
            self.keeping.run(),
            self.healths.sweep_forever(),
            self._tidy_forever(),
        ):
            self._tasks.create_task(work)

    async def _tidy_forever(self) -> None:
        for at in itertools.count():
            await asyncio.sleep(jittered(TIDY_S, self.surroundings.chance))
            await self.retain()
            await self.trim()
            self.ledger.revisit()
            if at % SWEEP_EVERY == 0:
                await self._sweep()

    async def _sweep(self) -> None:
        try:
            await self.keeping.sweep(lambda name: self.spec_now(name) is not None or self._is_unreadable(name))
        except EtcdError as error:
            log.warning("records of deleted journals are not removed (will retry)", extra={"error": str(error)})

    async def trim(self) -> None:
        """Take epochs off the record that the store has all of, of the journals that this broker is the primary of."""
        self._untrimmed = {replica for replica in self._untrimmed if not replica.is_stopped}
        for replica in list(self._untrimmed):
            stored = replica.index.stored_extents()
            try:
                read = await self.keeping.change_head(
                    replica.journal, replica.create_revision, partial(_trimmed, stored)
                )
            except UnavailableError as error:
                extra = {"journal": replica.journal, "error": str(error)}
                log.warning("the record of a journal's epochs is not trimmed (will retry)", extra=extra)
                continue
            if read.head is None or len(read.head.epochs) < 2:
                self._untrimmed.discard(replica)
            # In turn, as appends may have the pipeline one after the other for as long as there are any.
            replica.pipeline.take(partial(_put_back, replica, read))

    async def retain(self) -> None:
        """Remove what is past retention, of the journals that this broker is the primary of, one after the other."""
        for replica in list(self.resolver.replicas.values()):
            current = self.spec_now(replica.journal)
            if not replica.is_primary or current is None or current.spec.fragment.retention_ns <= 0:
                continue
            try:
                expired = await enforce(
                    replica.journal,
                    replica.index.page(0, sys.maxsize, end_mod_time=sys.maxsize).fragments,
                    self.surroundings.now_s(),
                    current_spec=self._stored_spec,
                    open_store=self.surroundings.stores.open,
                    announce=partial(self._announce_pruning, replica),
                    dry_run=self.policy.report_retention,
                )
                is_removed = bool(expired.fragments) and not self.policy.report_retention
                if is_removed and isinstance(replica, LocalReplica):
                    # Before anybody is sent to what is gone.
                    await self._relist(replica)
            except Exception as error:
                # Stores raise all sorts of things, and none is a reason for the broker to go.
                if isinstance(error, InvariantError):
                    raise
                extra = {"journal": replica.journal, "error": str(error)}
                log.warning("fragments past retention could not be removed (will retry)", extra=extra)

    async def _announce_pruning(self, replica: Replica[SpoolFile], through: int) -> None:
        """What retention removes is not missing: without this, it would look as if a holder were still to bring it."""
        read = await self.keeping.change_head(
            replica.journal, replica.create_revision, lambda head: head and pruned(head, through)
        )
        replica.pipeline.take(partial(_put_back, replica, read))

    async def _stored_spec(self, journal: str) -> JournalSpec | None:
        """As etcd itself has it, which may be ahead of the mirror."""
        stored = await self.surroundings.etcd.get(item_key(self.root, journal))
        return None if stored is None else JournalItem.decoded(journal, stored.raw, MAX_REPLICATION).spec

    async def stop(self) -> None:
        """Give up all replicas, and return once what they held is the persister's and its fate is known.

        Nobody else may be there to go on: then it is known that nobody will, and where the journals end is recorded.
        """
        self._all_given_up.clear()
        if self._resolver is not None:
            self._resolver.stop()
        if self._not_given_up:
            await self._all_given_up.wait()
        try:
            await self.keeping.settle()
        except EtcdError as error:
            log.warning("epochs are not closed (they will be at the next start)", extra={"error": str(error)})


def _trimmed(stored: Extents, head: DurableHead | None) -> DurableHead | None:
    return None if head is None else trimmed(head, stored)


def _put_back(replica: Replica[Any], read: HeadRead, pipeline: Pipeline | None) -> None:
    """With what is on record by now, unless it knows of something later."""
    if pipeline is not None and pipeline.record_revision < read.mod_revision:
        pipeline.record, pipeline.record_revision = read.head, read.mod_revision
    replica.pipeline.put(pipeline)


def _nothing(_: object = None) -> None:
    """There is nothing to withdraw."""
