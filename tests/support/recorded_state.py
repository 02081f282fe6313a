"""The state that a cluster of Gazette's was in when conversations were recorded, as far as its answers tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from allocator.key_event import EtcdHeader, StoredKey
from allocator.keys import assignment_key, item_key, member_key
from broker.broker_member import BrokerMember
from fragment.cover_set import CoverSet
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag
from protocol.route import ProcessId, Route
from tests.support.journal_cluster import ROOT, HeldJournal, JournalCluster, journal_spec
from tests.support.recording import Conversation

MEMBERS = (ProcessId("zone-a", "broker-1"), ProcessId("zone-a", "broker-2"), ProcessId("zone-b", "broker-3"))


def etcd_header(header: pb.Header) -> EtcdHeader:
    etcd = header.etcd
    return EtcdHeader(etcd.cluster_id, etcd.member_id, etcd.revision, etcd.raft_term)


def stored(key: str, raw: bytes, created: int = 1, modified: int = 1) -> StoredKey:
    return StoredKey(key.encode(), raw, created, modified, 1 if created == modified else 2, 0)


def member_keys(routes: Iterable[Route]) -> list[StoredKey]:
    """Of all members that the routes know how to reach."""
    endpoints = {member: f"http://{member.suffix}" for member in MEMBERS}
    for route in routes:
        endpoints.update(zip(route.members, route.endpoints or (), strict=True))
    return [
        stored(member_key(ROOT, *member), BrokerMember(member, at, 9).encoded()) for member, at in endpoints.items()
    ]


def assignment_keys(journal: str, route: Route) -> list[str]:
    """The primary has slot zero."""
    return [
        assignment_key(ROOT, journal, *member, 0 if at == route.primary else at + 1)
        for at, member in enumerate(route.members)
    ]


def cluster_for(folder: Path, journal: str, header: pb.Header | None, status: pb.Status.ValueType) -> JournalCluster:
    """As it was when an answer about `journal` was given with this header. All of its brokers are of ours."""
    known = header or pb.Header(etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=1, raft_term=1))
    route = Route.from_proto(known.route) if header else Route(MEMBERS[:1], 0, ("http://broker-1",))
    keys = member_keys([route])
    if status != pb.JOURNAL_NOT_FOUND:
        flags = Flag.O_WRONLY if status == pb.NOT_ALLOWED else Flag.NOT_SPECIFIED
        raw = journal_spec(journal, flags=flags).to_proto().SerializeToString()
        keys.append(stored(item_key(ROOT, journal), raw))
        keys += [stored(key, b"") for key in assignment_keys(journal, route)]
    cluster = JournalCluster(folder, header=etcd_header(known), keys=sorted(keys))
    for member in MEMBERS:
        cluster.begin(member)
    return cluster


def asked_broker(conversation: Conversation, header: pb.Header | None) -> ProcessId:
    """Whom the client asked: who answered, unless that was another one, which only the title tells."""
    if header is None:
        return MEMBERS[0]
    answered = ProcessId.from_proto(header.process_id)
    if "proxied by" in conversation.title or ", proxied" in conversation.title or "proxying" in conversation.title:
        holders = Route.from_proto(header.route).members
        if others := [member for member in MEMBERS if member not in holders]:
            return others[0]
    return answered


class JournalContents:
    """Everything that some conversations tell of the content of journals."""

    def __init__(self) -> None:
        self.fragments: dict[str, list[Fragment]] = {}
        self._known: dict[str, dict[int, bytes]] = {}

    def learn(self, fragment: Fragment) -> None:
        known = self.fragments.setdefault(fragment.journal, [])
        if fragment not in known:
            known.append(fragment)

    def learn_content(self, journal: str, offset: int, content: bytes) -> None:
        self._known.setdefault(journal, {})[offset] = content

    def content(self, fragment: Fragment) -> bytes:
        """With zeros where nothing is known."""
        whole = bytearray(fragment.content_length)
        for offset, content in self._known.get(fragment.journal, {}).items():
            begin, end = max(offset, fragment.begin), min(offset + len(content), fragment.end)
            if begin < end:
                whole[begin - fragment.begin : end - fragment.begin] = content[begin - offset : end - offset]
        return bytes(whole)

    async def put(self, cluster: JournalCluster, held: Mapping[str, HeldJournal], journal: str, end: int) -> None:
        """Have the broker hold what there was of the journal when it ended at `end`."""
        if journal not in held:
            return
        stored_ones = CoverSet()
        for fragment in self.fragments.get(journal, []):
            if fragment.end > end:
                continue
            if fragment.mod_time:
                cluster.put_object(fragment, self.content(fragment))
                stored_ones.add(fragment)
            else:
                held[journal].commit(fragment, self.content(fragment))
        await held[journal].refresh(*stored_ones)


def contents_of_reads(conversations: Iterable[Conversation], contents: JournalContents) -> JournalContents:
    """`contents`, which have learned from reads."""
    for conversation in conversations:
        journal = pb.ReadRequest.FromString(conversation.request).journal.partition(";")[0]
        for answer in map(pb.ReadResponse.FromString, conversation.answers):
            if answer.HasField("fragment"):
                contents.learn(Fragment.from_proto(answer.fragment))
            if answer.content:
                contents.learn_content(journal, answer.offset, answer.content)
    return contents
