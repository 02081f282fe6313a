"""JournalCluster: brokers that serve all but appends, over keys that a test makes up and files that are real."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.keys import assignment_key, item_key, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from broker.broker_member import BrokerMember
from broker.cluster_keys import BrokerEntity, broker_decoder
from broker.disk_watch import DiskWatch
from broker.durable_head import Fate
from broker.fragments_api import FragmentsApi
from broker.journal_changes import JournalChanges
from broker.list_api import ListApi
from broker.local_replica import LocalReplica
from broker.notice import Notice
from broker.read_api import ReadApi
from broker.resolution import Resolution
from broker.resolver import Resolver
from broker.spool_chunks import SpoolChunks
from broker.spool_worker import SpoolWorker
from fragment.cover_set import CoverSet
from fragment.live_index import LiveIndex
from fragment.spool import CopyEnd, EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory
from fragment.spool_file import SpoolFile
from fragment.spool_writer import CompletedSpool, LocalFragment, SpoolWriter
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError
from protocol.fragment import NO_SUM, Fragment
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag, FragmentPolicy, JournalSpec
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import no_heads

ROOT = "/gazette/cluster"
HEADER = EtcdHeader(0xC1, 0x3E, 100, 2)
A, B, C = ProcessId("zone-a", "broker-1"), ProcessId("zone-a", "broker-2"), ProcessId("zone-b", "broker-3")
NOW_S = 1_800_000_000
STORE = "file:///store/"
EPOCH = EpochMark(4, 2)
POLICY = FragmentPolicy(1 << 20, CompressionCodec.NONE, (STORE,), 5_000_000_000)


def journal_spec(name: str, *labels: tuple[str, str], flags: int = Flag.NOT_SPECIFIED) -> JournalSpec:
    return JournalSpec(name, 1, LabelSet.of(*labels), POLICY, flags)


class JournalCluster:
    """Its revision moves by one with each change."""

    def __init__(
        self, folder: Path, *members: ProcessId, header: EtcdHeader = HEADER, keys: Sequence[StoredKey] = ()
    ) -> None:
        """`keys` are there from the start, other than the members."""
        self.folder = folder
        (folder / "root/store").mkdir(parents=True)
        self.keyspace: KeySpace[BrokerEntity] = KeySpace(ROOT, broker_decoder(ROOT))
        self.keyspace.load(self.keyspace.decoded(Listing(header, keys)))
        self.stores = OpenStores(StoreSettings(file_root=folder / "root"))
        self.directory = SpoolDirectory(folder / "spools", FsyncMode(), b"\1" * 16, SpoolBudget())
        self.executor = ThreadPoolExecutor(2)
        self.brokers: dict[ProcessId, TestBroker] = {}
        for member in members:
            self.put_member(member, f"http://{member.suffix}:8080")
        for member in members:
            self.begin(member)

    def begin(self, member: ProcessId) -> TestBroker:
        broker = self.brokers[member] = TestBroker(self, member)
        return broker

    async def close(self) -> None:
        for broker in self.brokers.values():
            broker.resolver.stop()
        self.executor.shutdown()
        self.directory.close()
        await self.stores.close()

    @property
    def view(self) -> KeySpaceView[BrokerEntity]:
        return self.keyspace.view

    def write(self, puts: dict[str, bytes], deletes: Sequence[str] = (), revision: int | None = None) -> None:
        """All at one revision, the next one if none is given."""
        view = self.view
        revision = revision or view.revision + 1
        events: list[StoredKey | DeletedKey] = [DeletedKey(key.encode(), revision) for key in deletes]
        for key, raw in puts.items():
            known = view.get(key) if key not in deletes else None
            created, version = (known.create_revision, known.version + 1) if known else (revision, 1)
            events.append(StoredKey(key.encode(), raw, created, revision, version, 0))
        update = self.keyspace.apply([WatchEvents(view.header._replace(revision=revision), events)])
        for broker in self.brokers.values():
            broker.resolver.observe(update)
            broker.changes.observe(update)

    def put_member(self, member: ProcessId, endpoint: str) -> None:
        self.write({member_key(ROOT, *member): BrokerMember(member, endpoint, 100).encoded()})

    def put_journal(self, spec: JournalSpec, *held_by: ProcessId) -> None:
        """The first of them is the primary."""
        keys = {item_key(ROOT, spec.name): spec.to_proto().SerializeToString()}
        self.write(keys | {assignment_key(ROOT, spec.name, *member, at): b"" for at, member in enumerate(held_by)})

    def delete_journal(self, name: str) -> None:
        self.write({}, [item_key(ROOT, name)])

    def unassign(self, name: str, member: ProcessId, slot: int) -> None:
        self.write({}, [assignment_key(ROOT, name, *member, slot)])

    def put_object(self, fragment: Fragment, content: bytes) -> None:
        """As it is in the store that the fragment names."""
        path = self.folder / "root/store" / fragment.content_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class TestBroker:
    __test__ = False

    def __init__(self, cluster: JournalCluster, own_id: ProcessId) -> None:
        self.cluster = cluster
        self.own_id = own_id
        self.held: dict[str, HeldJournal] = {}
        self.stop_proxying = Notice()
        self.resolver: Resolver[SpoolFile] = Resolver(ROOT, own_id, cluster.view, self._start)
        self.changes = JournalChanges(cluster.view)
        self.chunks = SpoolChunks(cluster.executor)
        self.reads = ReadApi(
            self.resolver, cluster.stores.open, self.chunks, self._proxy_read, self.stop_proxying, ack_wait_s=0.05
        )
        self.fragments = FragmentsApi(self.resolver, cluster.stores.open, self._proxy_fragments)
        self.lists = ListApi(self.changes, ROOT, own_id, no_heads)

    def _start(self, journal: str, create_revision: int) -> LocalReplica:
        held = self.held[journal] = HeldJournal(self.cluster, journal, create_revision)
        return held.replica

    def _peer_of(self, resolution: Resolution) -> TestBroker:
        return self.cluster.brokers[resolution.header.route.members[0]]

    async def _proxy_read(self, resolution: Resolution, request: pb.ReadRequest) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._peer_of(resolution).reads.read(request)) as messages:
            async for message in messages:
                yield message if isinstance(message, bytes) else message.SerializeToString()

    async def _proxy_fragments(self, resolution: Resolution, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        return await self._peer_of(resolution).fragments.list_fragments(request)

    async def read(self, request: pb.ReadRequest) -> list[pb.ReadResponse]:
        return [message async for message in self.reading(request)]

    async def reading(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        async with aclosing(self.reads.read(request)) as messages:
            async for message in messages:
                yield pb.ReadResponse.FromString(message) if isinstance(message, bytes) else message


@dataclass
class HeldJournal:
    """A replica and its spool. What is appended is visible at once, unless it is told what is acknowledged."""

    cluster: JournalCluster
    journal: str
    create_revision: int

    def __post_init__(self) -> None:
        live: LiveIndex[SpoolFile] = LiveIndex(self.journal, lambda: NOW_S, random.Random(1))
        self.replica = LocalReplica(self.journal, self.create_revision, live)
        self.writer = SpoolWriter(self.journal, self.cluster.directory, lambda: b"")
        disk = DiskWatch("zone/broker", 10.0, asyncio.get_running_loop().time)
        self.replica.equip(SpoolWorker(self.writer, self.cluster.executor, self, lambda _: None, disk))

    def append(self, data: bytes, *, acked: int | None = None) -> Fragment:
        self.writer.content(data, 0)
        proposed = self.writer.spool.next()
        for local in self.writer.propose(Proposal(proposed, LabelSet(), 77, EPOCH, acked)).visible:
            self.visible(local)
        return proposed

    def roll(self) -> None:
        """What is appended from now on is in another fragment."""
        held = self.writer.spool.fragment
        proposed = replace(held, begin=held.end, sum=NO_SUM)
        self.writer.propose(Proposal(proposed, LabelSet(), 78, EPOCH))

    def ack(self, through: int) -> None:
        for local in self.writer.acked(through).visible:
            self.visible(local)

    def commit(self, fragment: Fragment, content: bytes) -> None:
        """A fragment that no spool of ours has written."""
        file = self.cluster.directory.create(fragment)
        file.write(0, content)
        self.replica.live.commit(fragment, file)

    async def refresh(self, *fragments: Fragment) -> None:
        """As if the stores held these."""

        async def listed() -> CoverSet:
            cover = CoverSet()
            for fragment in fragments:
                cover.add(fragment)
            return cover

        await self.replica.live.refresh(listed)

    # What the spool tells.

    def visible(self, local: LocalFragment) -> None:
        self.replica.live.commit(local.fragment, local.file)

    def completed(self, completed: CompletedSpool) -> None: ...

    def acked(self, through: int) -> None: ...

    def retired(self, copy: CopyEnd, fate: Fate) -> None: ...

    def given_up(self, copy: CopyEnd | None) -> None: ...

    def stalled(self, failure: UnavailableError | None) -> None: ...


def fragment_of(
    journal: str, begin: int, content: bytes, codec: CompressionCodec = CompressionCodec.NONE, mod_time: int = NOW_S
) -> Fragment:
    """One that is in the store."""
    digest = hashlib.sha1(content).digest()
    return Fragment(journal, begin, begin + len(content), digest, codec, STORE, mod_time)


def content_of(messages: Sequence[pb.ReadResponse]) -> bytes:
    return b"".join(message.content for message in messages)


async def settled() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)
