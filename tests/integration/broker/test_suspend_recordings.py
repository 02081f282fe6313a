"""Suspension, and appends while a member is dead, as recorded with Gazette's own brokers: ours answer as they did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from allocator.keys import member_key
from protocol.codec import CompressionCodec
from protocol.gen import journal_pb2 as pb
from tests.support.append_recording import Conversation, compare, conversations, had_with
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

ZONES = {"broker-1": "zone-a", "broker-2": "zone-a", "broker-3": "zone-b"}
STORES = ("file:///store/",)
# Of the journal that was recorded: where its fragments ended. All but the fourth were closed for their length.
ENDS = (4477, 38772, 72761, 102225, 132243)
LEASE = ("--etcd.lease", "60s")


@pytest.fixture
async def cluster(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, flags=LEASE) as made:
        (made.fragments / "store").mkdir()
        await made.start("broker-1", "broker-2", zone="zone-a")
        await made.start("broker-3", zone="zone-b")
        yield made


async def members(cluster: BrokerCluster, journal: str) -> int:
    primary, others = await cluster.route(journal)
    return len(others) + (primary is not None)


async def test_journals_are_suspended_and_resumed_as_gazette_does_it(cluster: BrokerCluster) -> None:
    recorded = {one.title: one for one in conversations("suspend")}

    async def same(title: str) -> None:
        one = recorded.pop(title)
        compare(one, *await had_with(cluster, "broker-1", one, 20))

    async def resumed(title: str) -> None:
        """The allocator may be done by the time the append looks again. Gazette's was not when it was recorded."""
        one = recorded.pop(title)
        code, answer = await had_with(cluster, "broker-1", one, 20)
        if answer is None or answer.status != pb.OK:
            compare(one, code, answer)
        else:
            assert answer.commit.begin == answer.commit.end

    async def has(journal: str, count: int) -> None:
        async def holds() -> bool:
            return await members(cluster, journal) == count

        await eventually(holds, f"{journal} to have {count} members")

    await cluster.apply(journal_spec("golden/none", length=32768, stores=STORES, flush_interval_ns=60 * 10**9))
    begin = 0
    await cluster.append("broker-1", "golden/none")
    for end in ENDS:
        answer = await cluster.try_append("broker-1", "golden/none", bytes(end - begin))
        assert (answer.status, answer.commit.end) == (pb.OK, end)
        begin = end
    created = await applied(cluster, recorded.pop("Apply: create two journals"))
    await cluster.append("broker-1", "golden/empty")

    await same("Append SUSPEND_IF_FLUSHED, last fragment too young")
    await same("Append SUSPEND_NOW on a journal with content -> PARTIAL")
    await same("Append SUSPEND_NOW on an empty journal -> FULL")
    await has("golden/none", 1)
    await has("golden/empty", 0)
    await same("Append SUSPEND_NO_RESUME on PARTIAL")
    await same("Append SUSPEND_KEEP zero bytes on PARTIAL")
    await same("Append SUSPEND_KEEP with content on PARTIAL")
    await same("Append SUSPEND_NO_RESUME on FULL")
    await same("Append SUSPEND_KEEP zero bytes on FULL")
    await same_read(cluster, recorded.pop("Read of a FULL suspended journal"))
    await same_fragments(cluster, recorded.pop("ListFragments of a FULL suspended journal"))
    await same_fragments(cluster, recorded.pop("ListFragments of a PARTIAL suspended journal"))
    await resumed("Append SUSPEND_RESUME (zero bytes) on PARTIAL: resumes")
    await resumed("Append SUSPEND_RESUME (zero bytes) on FULL: resumes")
    await applied(cluster, recorded.pop("Apply: delete"), created)
    assert not recorded, "all of it was had"

    # What is resumed is whole, and goes on where it was.
    assert (await cluster.append("broker-1", "golden/none", b"x\n")).commit.end == ENDS[-1] + 2
    assert (await cluster.append("broker-1", "golden/empty", b"x\n")).commit.end == 2
    assert "golden/victim" not in {listed.spec.name for listed in await cluster.list()}


async def applied(cluster: BrokerCluster, one: Conversation, mod_revision: int = 0) -> int:
    """The revision of what was applied, at the revision that this cluster has in place of what was recorded."""
    (request,) = (pb.ApplyRequest.FromString(raw) for raw in one.requests)
    for change in request.changes:
        change.expect_mod_revision = mod_revision if change.expect_mod_revision else 0
    response = await cluster.stub("broker-1").Apply(request, timeout=20)
    (theirs,) = (pb.ApplyResponse.FromString(raw) for raw in one.responses)
    assert response.status == theirs.status
    assert (len(response.header.route.members), response.header.route.primary) == (0, -1)
    return response.header.etcd.revision


async def same_read(cluster: BrokerCluster, one: Conversation) -> None:
    call = cluster.stub("broker-1").Read(pb.ReadRequest.FromString(one.requests[0]), timeout=20)
    ours = [response async for response in call]
    theirs = [pb.ReadResponse.FromString(raw) for raw in one.responses]
    assert [response.status for response in ours] == [response.status for response in theirs]
    assert len(ours[0].header.route.members) == len(theirs[0].header.route.members)
    assert (ours[0].offset, ours[0].write_head) == (theirs[0].offset, theirs[0].write_head)


async def same_fragments(cluster: BrokerCluster, one: Conversation) -> None:
    """As soon as they are listed here too: those that are closed for their length, and bytes as far as they went.

    Gazette had not listed all of its own when it was asked.
    """
    (theirs,) = (pb.FragmentsResponse.FromString(raw) for raw in one.responses)
    wanted = [(each.spec.begin, each.spec.end) for each in theirs.fragments]
    request = pb.FragmentsRequest.FromString(one.requests[0])

    async def is_same() -> bool:
        ours = await cluster.stub("broker-1").ListFragments(request, timeout=20)
        assert ours.status == theirs.status
        assert len(ours.header.route.members) == len(theirs.header.route.members)
        held = [each.spec for each in ours.fragments if each.spec.backing_store]
        assert all(spec.mod_time for spec in held)
        bounds = [(spec.begin, spec.end) for spec in held]
        assert all(before[1] == after[0] for before, after in pairwise(bounds))
        reach = bounds[-1][1] if bounds else 0
        return bounds[: len(wanted) - 1] == wanted[:-1] and reach >= max((end for _, end in wanted), default=0)

    await eventually(is_same, one.title)


async def test_appends_while_a_member_is_dead_are_answered_as_gazette_answers_them(
    cluster: BrokerCluster, etcd: EtcdClient, prefix: str
) -> None:
    journals = ("golden/none", "golden/gzip")
    await cluster.apply(
        journal_spec("golden/none", stores=STORES),
        journal_spec("golden/gzip", codec=CompressionCodec.GZIP, stores=STORES),
    )
    for journal in journals:
        await cluster.append("broker-1", journal, b"before\n")
    primaries = {(await cluster.route(journal))[0] for journal in journals}
    victim = next(name for name in sorted(ZONES, reverse=True) if name not in primaries)
    asked = next(name for name in sorted(ZONES) if name in primaries)
    for one in conversations("append-dead-member"):
        if one.code == "UNAVAILABLE":
            cluster.brokers[victim].kill()
        else:
            await forgotten(etcd, member_key(prefix, ZONES[victim], victim))

            async def is_gone() -> bool:
                return await members(cluster, "golden/none") == 2

            await eventually(is_gone, "the dead member to be gone from the Route")
        compare(one, *await had_with(cluster, asked, one, 20))

    # Nobody was told that it is there, and by nobody who is left it can be read.
    for journal in journals:
        assert await cluster.read(asked, journal) == b"before\n"


async def forgotten(etcd: EtcdClient, key: str) -> None:
    """As if the lease of a broker had run out by now."""
    known = await etcd.get(key)
    assert known is not None
    await etcd.revoke_lease(known.lease)
