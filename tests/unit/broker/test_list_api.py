from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from allocator.keys import item_key
from broker.journal_changes import JournalChanges
from broker.list_api import TURN_JOURNALS
from broker.listing import JOURNALS_MAX, MESSAGE_BYTES_MAX, Selection
from protocol.errors import UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId
from protocol.selector import LabelSelector
from protocol.validation import validate
from tests.support.journal_cluster import ROOT, A, B, C, JournalCluster, journal_spec, settled

Names = list[str]


def asked(selector: str = "", **fields: object) -> pb.ListRequest:
    return pb.ListRequest(selector=LabelSelector.parse(selector).to_proto(), **fields)  # type: ignore[arg-type]


async def listed(
    cluster: JournalCluster, selector: str = "", permitted: str = "", at: ProcessId = A
) -> list[pb.ListResponse]:
    api = cluster.brokers[at].lists
    messages = [m async for m in api.list_journals(asked(selector), LabelSelector.parse(permitted))]
    validate(messages[0])
    assert messages[0].status == pb.OK
    for message in messages[1:]:
        assert not message.HasField("header")
        assert message.journals
    return messages


def names(messages: list[pb.ListResponse]) -> Names:
    return [journal.spec.name for message in messages for journal in message.journals]


async def test_journals_come_in_the_order_of_their_names_with_who_holds_them(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec("acme/b"), B, A)
    cluster.put_journal(journal_spec("acme/a/nested"), C)
    cluster.put_journal(journal_spec("acme/a"))
    (only,) = await listed(cluster)
    assert names([only]) == ["acme/a", "acme/a/nested", "acme/b"]
    assert [journal.mod_revision for journal in only.journals] == [106, 105, 104]
    assert [journal.create_revision for journal in only.journals] == [106, 105, 104]
    nobody, nested, two = (journal.route for journal in only.journals)
    assert (len(nobody.members), nobody.primary) == (0, -1)
    assert list(nested.endpoints) == [f"http://{C.suffix}:8080"]
    assert ([member.suffix for member in two.members], two.primary) == ([A.suffix, B.suffix], 1)
    header = only.header
    assert (header.process_id.suffix, header.route.primary, header.etcd.revision) == (A.suffix, -1, 106)


async def test_nothing_is_one_message_without_journals(cluster: JournalCluster) -> None:
    (only,) = await listed(cluster, "name=acme/none")
    assert not only.journals


@pytest.mark.parametrize("count", [1, JOURNALS_MAX, JOURNALS_MAX + 1, 2 * JOURNALS_MAX])
async def test_a_message_holds_so_many_journals(cluster: JournalCluster, count: int) -> None:
    wanted = [f"acme/part-{at:03}" for at in range(count)]
    for name in wanted:
        cluster.put_journal(journal_spec(name))
    messages = await listed(cluster)
    assert names(messages) == wanted
    assert len(messages) == -(-count // JOURNALS_MAX)


async def test_large_specs_do_not_make_a_message_too_large_to_send(cluster: JournalCluster) -> None:
    large = [(f"label-{at:05}", "x" * 900) for at in range(400)]
    for at in range(12):
        cluster.put_journal(journal_spec(f"acme/part-{at:03}", *large), A)
    messages = await listed(cluster)
    assert len(names(messages)) == 12
    assert max(message.ByteSize() for message in messages) < 2 * MESSAGE_BYTES_MAX


SELECTED = {
    "": ["acme/a", "acme/ab", "acme/b", "other/a"],
    "name=acme/a": ["acme/a"],
    "name in (acme/b, acme/a)": ["acme/a", "acme/b"],
    "name:prefix=acme/a": ["acme/a", "acme/ab"],
    "prefix=acme/": ["acme/a", "acme/ab", "acme/b"],
    "name:prefix=acme/, name!=acme/b": ["acme/a", "acme/ab"],
    "tier=gold": ["acme/a", "other/a"],
    "tier=gold, name:prefix=acme/": ["acme/a"],
    "!tier": ["acme/ab", "acme/b"],
}


async def of_two_tenants(cluster: JournalCluster) -> None:
    for name, labels in (
        ("acme/a", [("tier", "gold")]),
        ("acme/ab", []),
        ("acme/b", []),
        ("other/a", [("tier", "gold")]),
    ):
        cluster.put_journal(journal_spec(name, *labels), A)


@pytest.mark.parametrize("selector", SELECTED)
async def test_both_what_is_asked_for_and_what_may_be_seen_select(cluster: JournalCluster, selector: str) -> None:
    await of_two_tenants(cluster)
    assert names(await listed(cluster, selector)) == SELECTED[selector]
    assert names(await listed(cluster, "", selector)) == SELECTED[selector] or "prefix=" in selector
    acme = [name for name in SELECTED[selector] if name.startswith("acme/")]
    assert names(await listed(cluster, selector, "name:prefix=acme/")) == acme


@pytest.mark.parametrize("selector", SELECTED)
async def test_looking_at_names_only_finds_what_looking_at_all_does(cluster: JournalCluster, selector: str) -> None:
    await of_two_tenants(cluster)
    selection = Selection(LabelSelector.parse(selector), LabelSelector())
    found = {kv.key for kv in selection.candidates(cluster.view, ROOT) if selection.matches(kv)}
    assert found == {item_key(ROOT, name) for name in SELECTED[selector]}


async def test_a_member_that_cannot_be_reached_is_not_told_of(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec("acme/a"), ProcessId("zone-x", "nobody"), A)
    (only,) = await listed(cluster)
    route = only.journals[0].route
    assert ([member.suffix for member in route.members], list(route.endpoints), route.primary) == (
        [A.suffix],
        [f"http://{A.suffix}:8080"],
        -1,
    )


async def test_a_long_listing_lets_others_go_on(cluster: JournalCluster) -> None:
    specs = {f"acme/part-{at:05}": journal_spec(f"acme/part-{at:05}") for at in range(4 * TURN_JOURNALS)}
    cluster.write({item_key(ROOT, name): spec.to_proto().SerializeToString() for name, spec in specs.items()})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going_on = asyncio.get_running_loop().create_task(others())
    assert names(await listed(cluster, "name=acme/none, !none")) == []
    assert names(await listed(cluster, "!none")) == sorted(specs)
    going_on.cancel()
    assert turns > 4 * TURN_JOURNALS // JOURNALS_MAX


# Watching.


class Watch:
    def __init__(self, messages: AsyncGenerator[pb.ListResponse, None]) -> None:
        self._messages = messages
        self.revision = 0

    async def snapshot(self) -> Names:
        async with asyncio.timeout(10):
            return await self._snapshot()

    async def _snapshot(self) -> Names:
        found = await anext(self._messages)
        validate(found)
        assert found.header.etcd.revision > self.revision
        self.revision = found.header.etcd.revision
        got = names([found])
        while (message := await anext(self._messages)).journals:
            got += names([message])
        assert message == pb.ListResponse()
        return got


@asynccontextmanager
async def watching(cluster: JournalCluster, request: pb.ListRequest, permitted: str = "") -> AsyncIterator[Watch]:
    api = cluster.brokers[A].lists
    async with aclosing(api.list_journals(request, LabelSelector.parse(permitted))) as messages:
        yield Watch(messages)


async def test_a_watch_tells_of_each_change_of_a_spec_and_of_no_other(cluster: JournalCluster) -> None:
    async with watching(cluster, asked("name:prefix=acme/", watch=True)) as watch:
        assert await watch.snapshot() == []

        async def nothing_yet() -> asyncio.Task[Names]:
            waiting = asyncio.get_running_loop().create_task(watch.snapshot())
            await settled()
            assert not waiting.done()
            return waiting

        cluster.put_journal(journal_spec("other/a"), A)
        waiting = await nothing_yet()
        cluster.put_journal(journal_spec("acme/a"))
        assert await waiting == ["acme/a"]
        cluster.put_journal(journal_spec("acme/a", ("tier", "gold")))
        assert await watch.snapshot() == ["acme/a"]
        cluster.put_journal(journal_spec("acme/b"))
        assert await watch.snapshot() == ["acme/a", "acme/b"]
        cluster.put_member(A, "http://elsewhere:8080")
        waiting = await nothing_yet()
        cluster.delete_journal("acme/a")
        assert await waiting == ["acme/b"]


async def test_a_watch_tells_of_journals_that_come_to_match_and_cease_to(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec("acme/a"))
    async with watching(cluster, asked(watch=True), "tier=gold") as watch:
        assert await watch.snapshot() == []
        cluster.put_journal(journal_spec("acme/a", ("tier", "gold")))
        assert await watch.snapshot() == ["acme/a"]
        cluster.put_journal(journal_spec("acme/a", ("tier", "lead")))
        assert await watch.snapshot() == []


async def test_changes_during_a_snapshot_make_for_another_one(cluster: JournalCluster) -> None:
    for at in range(JOURNALS_MAX + 1):
        cluster.put_journal(journal_spec(f"acme/part-{at:03}"))
    api = cluster.brokers[A].lists
    async with asyncio.timeout(10), aclosing(api.list_journals(asked(watch=True))) as messages:
        first = await anext(messages)
        cluster.delete_journal("acme/part-000")
        assert names([first, await anext(messages)])[0] == "acme/part-000"
        assert await anext(messages) == pb.ListResponse()
        assert len(names([await anext(messages)])) == JOURNALS_MAX


async def test_a_watch_resumes_after_the_revision_it_had(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec("acme/a"))
    old = pb.Header(etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=cluster.view.revision - 1, raft_term=1))
    async with watching(cluster, asked(watch=True, watch_resume=old)) as watch:
        assert await watch.snapshot() == ["acme/a"]
    old.etcd.revision = cluster.view.revision
    async with watching(cluster, asked(watch=True, watch_resume=old)) as watch, asyncio.TaskGroup() as tasks:
        resuming = tasks.create_task(watch.snapshot())
        await settled()
        assert not resuming.done()
        # Whatever it is, it is later than what the client has seen.
        cluster.put_member(B, "http://elsewhere:8080")
    assert resuming.result() == ["acme/a"]


async def test_a_watch_that_resumes_at_a_revision_far_ahead_is_not_held_for_ever(cluster: JournalCluster) -> None:
    api = replace(cluster.brokers[A].lists, revision_wait_s=0.01)
    forged = pb.Header(etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=1 << 62, raft_term=1))
    request = asked(watch=True, watch_resume=forged)
    async with asyncio.timeout(10), aclosing(api.list_journals(request)) as messages:
        with pytest.raises(UnavailableError, match=f"is at revision {cluster.view.revision} of .* revision {1 << 62}"):
            await anext(messages)


async def test_a_watch_that_resumes_where_the_broker_is_waits_for_news_without_a_limit(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec("acme/a"))
    api = replace(cluster.brokers[A].lists, revision_wait_s=0)
    seen = pb.Header(etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=cluster.view.revision, raft_term=1))
    async with aclosing(api.list_journals(asked(watch=True, watch_resume=seen))) as messages:
        watch = Watch(messages)
        async with asyncio.TaskGroup() as tasks:
            resuming = tasks.create_task(watch.snapshot())
            await settled()
            assert not resuming.done()
            cluster.put_member(B, "http://elsewhere:8080")
        assert resuming.result() == ["acme/a"]


async def test_who_is_too_slow_for_the_changes_sees_everything_anew(cluster: JournalCluster) -> None:
    changes = JournalChanges(cluster.view, kept_max=2)
    cluster.brokers[A].changes = changes
    for at in range(2):
        cluster.put_journal(journal_spec(f"acme/part-{at}"))
    assert [change.key for change in changes.since(0) or ()] == [
        item_key(ROOT, "acme/part-0"),
        item_key(ROOT, "acme/part-1"),
    ]
    assert changes.since(2) == []
    cluster.put_journal(journal_spec("acme/part-2"))
    assert changes.since(0) is None
    assert len(changes.since(1) or ()) == 2
