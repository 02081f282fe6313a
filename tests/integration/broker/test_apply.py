"""Apply on a real etcd, and what Gazette answered to the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.keys import item_key, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from broker import apply_api
from broker.apply_api import ApplyApi
from broker.broker_member import BrokerMember
from broker.cluster_keys import BrokerEntity, broker_decoder
from broker.journal_changes import JournalChanges
from broker.list_api import ListApi
from protocol.errors import PermissionDeniedError, UnavailableError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec, Suspend, SuspendLevel
from protocol.selector import LabelSelector
from protocol.validation import validate
from tests.support.broker_cores import no_heads
from tests.support.etcd_server import EtcdServer
from tests.support.journal_cluster import A, journal_spec
from tests.support.recording import Conversation, conversations

EVERYTHING = LabelSelector()


@dataclass
class Broker:
    apply: ApplyApi
    lists: ListApi
    watch: KeySpaceWatch[BrokerEntity]
    etcd: EtcdClient

    async def applied(self, *changes: pb.ApplyRequest.Change, selector: LabelSelector = EVERYTHING) -> pb.ApplyResponse:
        request = pb.ApplyRequest(changes=changes)
        validate(request)
        response = await self.apply.apply(request, selector)
        validate(response)
        return response

    async def journals(self) -> dict[str, pb.ListResponse.Journal]:
        listing = self.lists.list_journals(pb.ListRequest())
        return {journal.spec.name: journal async for message in listing for journal in message.journals}


@asynccontextmanager
async def broker_on(etcd: EtcdClient, root: str) -> AsyncIterator[Broker]:
    """The parts of one that Apply and List need, with a mirror that follows etcd."""
    put = await etcd.put(member_key(root, *A), BrokerMember(A, "http://broker-1:8080", 9).encoded())
    watch = KeySpaceWatch(etcd, KeySpace(root, broker_decoder(root)), timing=WatchTiming(delay_s=0.001))
    await watch.load(put.revision)
    changes = JournalChanges(watch.view)
    watch.observe(changes.observe)
    running = asyncio.get_running_loop().create_task(watch.run())
    try:
        api = ApplyApi(etcd, root, A, lambda: watch.view, watch.wait_revision)
        yield Broker(api, ListApi(changes, root, A, no_heads), watch, etcd)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
async def broker(etcd: EtcdClient, prefix: str) -> AsyncIterator[Broker]:
    async with broker_on(etcd, prefix) as made:
        yield made


def upsert(spec: JournalSpec, expected: int = 0) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(upsert=spec.to_proto(), expect_mod_revision=expected)


def delete(name: str, expected: int = -1) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(delete=name, expect_mod_revision=expected)


async def test_what_was_applied_is_listed_at_once(broker: Broker) -> None:
    response = await broker.applied(upsert(journal_spec("acme/a")), upsert(journal_spec("acme/b")))
    assert response.status == pb.OK
    listed = await broker.journals()
    assert list(listed) == ["acme/a", "acme/b"]
    revision = response.header.etcd.revision
    assert {journal.mod_revision for journal in listed.values()} == {revision}
    assert response.header.process_id.suffix == A.suffix

    spec = replace(journal_spec("acme/a", ("tier", "gold")), suspend=Suspend(SuspendLevel.PARTIAL, 77))
    assert (await broker.applied(upsert(spec, revision), delete("acme/b", revision))).status == pb.OK
    listed = await broker.journals()
    assert list(listed) == ["acme/a"]
    assert JournalSpec.from_proto(listed["acme/a"].spec) == spec
    assert listed["acme/a"].create_revision == revision


async def test_all_is_applied_or_nothing(broker: Broker) -> None:
    await broker.applied(upsert(journal_spec("acme/a")))
    for conflict in (upsert(journal_spec("acme/a")), delete("acme/a", 1), upsert(journal_spec("acme/c"), 9)):
        response = await broker.applied(upsert(journal_spec("acme/b")), conflict)
        assert response.status == pb.ETCD_TRANSACTION_FAILED
        # It is a revision that other brokers know or will: they wait for what headers say.
        assert response.header.etcd.revision == broker.watch.view.revision
    assert list(await broker.journals()) == ["acme/a"]


async def test_where_nothing_is_changed_nothing_is_waited_for(broker: Broker, etcd: EtcdClient) -> None:
    known = broker.watch.view.revision
    await etcd.put("/somebody/else", b"")
    async with asyncio.timeout(2):
        for changes in ([], [delete("acme/none")]):
            response = await broker.applied(*changes)
            assert (response.status, response.header.etcd.revision) == (pb.OK, known)
    assert await etcd.get("/somebody/else") is not None


async def test_a_mirror_that_lags_is_not_waited_for_for_ever(
    etcd: EtcdClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_api, "VISIBLE_S_MAX", 0.01)
    async with broker_on(etcd, prefix) as broker:

        async def never(revision: int, timeout_s: float) -> None:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()

        lagging = replace(broker.apply, wait_revision=never)
        response = await lagging.apply(pb.ApplyRequest(changes=[upsert(journal_spec("acme/a"))]))
        assert response.status == pb.OK
        assert await etcd.get(item_key(prefix, "acme/a")) is not None


async def test_a_template_that_we_cannot_evaluate_is_refused_where_it_is_new(
    broker: Broker, etcd: EtcdClient, prefix: str
) -> None:
    """One that a Go broker has written is kept: what etcd holds is read leniently, and other fields may change."""
    plain = journal_spec("acme/a")
    beyond = replace(plain, fragment=replace(plain.fragment, path_postfix_template="{{ .Fragment.Length }}"))
    with pytest.raises(ValidationError, match=r"Fragment\.PathPostfixTemplate: .*write \.Spool or \.JournalSpec first"):
        await broker.applied(upsert(beyond))
    await broker.applied(upsert(plain))
    with pytest.raises(ValidationError, match="PathPostfixTemplate"):
        await broker.applied(upsert(beyond, -1))
    assert JournalSpec.from_proto((await broker.journals())["acme/a"].spec) == plain

    put = await etcd.put(item_key(prefix, "acme/a"), beyond.to_proto().SerializeToString())
    assert (await broker.applied(upsert(replace(beyond, replication=2), put.revision))).status == pb.OK
    assert JournalSpec.from_proto((await broker.journals())["acme/a"].spec) == replace(beyond, replication=2)


async def test_a_token_changes_only_what_it_matches_before_and_after(broker: Broker) -> None:
    gold = LabelSelector.parse("tier=gold")
    mine, others = journal_spec("acme/mine", ("tier", "gold")), journal_spec("acme/others", ("tier", "lead"))
    assert (await broker.applied(upsert(mine), selector=gold)).status == pb.OK
    await broker.applied(upsert(others))
    for change in (
        upsert(journal_spec("acme/new", ("tier", "lead"))),
        upsert(replace(others, labels=mine.labels), -1),
        upsert(replace(mine, labels=others.labels), -1),
        delete("acme/others"),
    ):
        with pytest.raises(PermissionDeniedError):
            await broker.applied(upsert(journal_spec("acme/other", ("tier", "gold"))), change, selector=gold)
    assert list(await broker.journals()) == ["acme/mine", "acme/others"]
    assert (await broker.applied(upsert(replace(mine, replication=3), -1), selector=gold)).status == pb.OK
    assert (await broker.applied(delete("acme/mine"), selector=gold)).status == pb.OK
    assert list(await broker.journals()) == ["acme/others"]


async def test_a_journal_is_not_taken_over_while_it_is_looked_at(broker: Broker, prefix: str) -> None:
    """Somebody else creates it after we saw that it is not there, and before we write it."""
    gold = LabelSelector.parse("tier=gold")
    mine, others = journal_spec("acme/a", ("tier", "gold")), journal_spec("acme/a", ("tier", "lead"))
    etcd = broker.etcd

    class Slow(EtcdClient):
        def __init__(self) -> None:
            self.looked = 0

        async def get(self, key: str):  # type: ignore[no-untyped-def]
            found = await etcd.get(key)
            self.looked += 1
            if self.looked == 1:
                await etcd.put(key, others.to_proto().SerializeToString())
            return found

        commit = etcd.commit

    with pytest.raises(PermissionDeniedError):
        await replace(broker.apply, etcd=Slow()).apply(pb.ApplyRequest(changes=[upsert(mine, -1)]), gold)
    stored = await etcd.get(item_key(prefix, "acme/a"))
    assert stored is not None
    assert JournalSpec.from_proto(pb.JournalSpec.FromString(stored.raw)) == others


async def test_without_etcd_one_is_told_to_try_again(shared_etcd: EtcdServer, broker: Broker) -> None:
    async with EtcdClient(EtcdConnections(["http://127.0.0.1:1"]), timeout_s=0.2) as nowhere:
        api = replace(broker.apply, etcd=nowhere)
        with pytest.raises(UnavailableError, match="out of reach"):
            await api.apply(pb.ApplyRequest(changes=[upsert(journal_spec("acme/a"))]))


async def test_requests_are_answered_as_gazette_answers_them(broker: Broker, prefix: str) -> None:
    """One after the other, since each finds what those before it have left."""
    for conversation in conversations("apply"):
        before = broker.watch.view.revision
        await _replay(broker, conversation)
        assert broker.watch.view.revision >= before


async def _judged(broker: Broker, request: pb.ApplyRequest) -> pb.ApplyResponse:
    validate(request)
    return await broker.apply.apply(request)


async def _replay(broker: Broker, conversation: Conversation) -> None:
    request = pb.ApplyRequest.FromString(conversation.request)
    if conversation.is_refused:
        with pytest.raises(ValidationError):
            await _judged(broker, request)
        return
    (expected,) = [pb.ApplyResponse.FromString(answer) for answer in conversation.answers]
    response = await _judged(broker, request)
    assert response.status == expected.status, conversation.title
    assert response.header.process_id.suffix
    assert response.header.route == expected.header.route
    known = broker.watch.view
    assert response.header.etcd.cluster_id == known.header.cluster_id
    assert response.header.etcd.revision <= known.revision
    if response.status == pb.OK:
        listed = await broker.journals()
        for change in request.changes:
            assert (change.upsert.name in listed) == change.HasField("upsert")
            assert change.delete not in listed
