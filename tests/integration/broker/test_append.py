"""Append as clients meet it, against real brokers: what is answered, what is stored, and what is not."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def created(cluster: BrokerCluster, name: str, replication: int = 3, **policy: Any) -> str:
    """A journal that takes appends."""
    await cluster.apply(journal_spec(name, replication, **policy))
    await cluster.append("broker-0", name)
    return name


async def primary_of(cluster: BrokerCluster, journal: str) -> str:
    primary, _ = await cluster.route(journal)
    assert primary is not None
    return primary


async def test_an_append_commits_what_was_sent_and_nothing_else(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/commits")
    response = await cluster.try_append("broker-0", journal, b"one ", b"two ", b"three")
    assert response.status == pb.OK
    assert (response.commit.begin, response.commit.end) == (0, 13)
    digest = hashlib.sha1(b"one two three").digest()
    assert response.commit.sum.part1 == int.from_bytes(digest[:8], "big")
    assert response.HasField("registers")
    assert response.total_chunks == 4
    assert len(response.header.route.members) == 3
    assert all(response.header.route.endpoints)


async def test_every_member_has_what_was_acknowledged(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/everywhere")
    for at in range(5):
        await cluster.try_append("broker-1", journal, b"%d" % at)
        primary, others = await cluster.route(journal)
        assert primary is not None
        for name in (primary, *others):
            assert await cluster.read(name, journal, do_not_proxy=True) == b"01234"[: at + 1]


async def test_an_append_through_a_broker_that_is_no_member_is_proxied(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/proxied", replication=1)
    primary = await primary_of(cluster, journal)
    for name in cluster.brokers:
        response = await cluster.try_append(name, journal, b"x")
        assert response.status == pb.OK
        assert response.header.process_id.suffix == primary
        refused = await cluster.try_append(name, journal, b"y", do_not_proxy=True)
        assert refused.status == (pb.OK if name == primary else pb.NOT_JOURNAL_PRIMARY_BROKER)
        assert refused.header.process_id.suffix == name


async def test_a_journal_that_does_not_exist_is_not_found(cluster: BrokerCluster) -> None:
    response = await cluster.try_append("broker-0", "append/nowhere", b"x")
    assert response.status == pb.JOURNAL_NOT_FOUND
    assert not response.header.route.members
    assert response.header.route.primary == -1


async def test_a_barrier_tells_the_head_and_changes_nothing(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/barrier")
    await cluster.try_append("broker-0", journal, b"bytes")
    for _ in range(3):
        response = await cluster.try_append("broker-2", journal)
        assert (response.commit.begin, response.commit.end) == (5, 5)
        assert response.commit.sum.part1 == int.from_bytes(hashlib.sha1().digest()[:8], "big")


async def test_an_explicit_offset_has_to_be_the_head(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/offset")
    await cluster.try_append("broker-0", journal, b"12345")
    wrong = await cluster.try_append("broker-0", journal, b"x", offset=4)
    assert wrong.status == pb.WRONG_APPEND_OFFSET
    both = await asyncio.gather(*(cluster.try_append("broker-0", journal, b"678", offset=5) for _ in range(2)))
    assert sorted(response.status for response in both) == [pb.OK, pb.WRONG_APPEND_OFFSET]
    assert await cluster.read("broker-0", journal) == b"12345678"


async def test_registers_are_checked_and_changed_with_the_append(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/registers")
    ours = pb.LabelSelector(include=_labels(author="one"))
    first = await cluster.try_append(
        "broker-0", journal, b"x", check_registers=ours, union_registers=_labels(author="one")
    )
    assert (first.status, first.registers) == (pb.OK, _labels(author="one"))
    other = await cluster.try_append("broker-1", journal, b"y", union_registers=_labels(author="two"))
    assert other.registers == _labels(author="two")
    fenced = await cluster.try_append("broker-0", journal, b"z", check_registers=ours)
    assert (fenced.status, fenced.registers) == (pb.REGISTER_MISMATCH, _labels(author="two"))
    with pytest.raises(grpc.aio.AioRpcError, match="register modification") as error:
        await cluster.try_append("broker-0", journal, union_registers=_labels(author="three"))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await cluster.read("broker-0", journal) == b"xy"


def _labels(**values: str) -> pb.LabelSet:
    return pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in sorted(values.items())])


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        pytest.param([{"journal": "JOURNAL", "content": b"x"}], grpc.StatusCode.INVALID_ARGUMENT, id="content at once"),
        pytest.param([{"journal": "JOURNAL"}], grpc.StatusCode.INVALID_ARGUMENT, id="no commit"),
        pytest.param([{"journal": "JOURNAL"}, {"content": b"x"}], grpc.StatusCode.INVALID_ARGUMENT, id="cut off"),
        pytest.param(
            [{"journal": "JOURNAL"}, {"content": b"x"}, {}, {"content": b"y"}],
            grpc.StatusCode.INVALID_ARGUMENT,
            id="content after the commit",
        ),
        pytest.param(
            [{"journal": "JOURNAL"}, {"content": b"x"}, {}, {}], grpc.StatusCode.INVALID_ARGUMENT, id="two commits"
        ),
        pytest.param(
            [{"journal": "JOURNAL"}, {"content": b"x", "offset": 7}, {}],
            grpc.StatusCode.INVALID_ARGUMENT,
            id="offset beside content",
        ),
        pytest.param(
            [{"journal": "JOURNAL"}, {"journal": "JOURNAL"}, {}], grpc.StatusCode.INVALID_ARGUMENT, id="opened twice"
        ),
        pytest.param([{"journal": "JOURNAL", "offset": -1}], grpc.StatusCode.INVALID_ARGUMENT, id="negative offset"),
    ],
)
async def test_a_malformed_append_is_refused_and_leaves_nothing(
    cluster: BrokerCluster, messages: list[dict[str, object]], code: grpc.StatusCode
) -> None:
    journal = "append/malformed"
    if not await cluster.list(f"name={journal}"):
        await created(cluster, journal)
    before = await cluster.read("broker-0", journal)
    requests = [
        pb.AppendRequest(**{**message, **({"journal": journal} if message.get("journal") == "JOURNAL" else {})})  # type: ignore[arg-type]
        for message in messages
    ]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.stub("broker-0").Append(iter(requests), timeout=10)
    assert error.value.code() is code
    after = await cluster.try_append("broker-0", journal, b"ok")
    assert (after.status, after.commit.begin) == (pb.OK, len(before))
    assert await cluster.read("broker-0", journal) == before + b"ok"


async def test_a_client_that_stalls_is_sent_away_and_rolled_back(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/stalls")
    over = asyncio.Event()

    async def stalling() -> AsyncIterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        yield pb.AppendRequest(content=b"half a line")
        await over.wait()

    call = cluster.stub("broker-0").Append(stalling(), timeout=30)
    try:
        with pytest.raises(grpc.aio.AioRpcError, match="minimum append data rate"):
            await call
    finally:
        over.set()
    response = await cluster.try_append("broker-0", journal, b"next")
    assert response.commit.begin == 0


async def test_many_appends_at_once_each_get_a_range_of_their_own(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/many")
    names = list(cluster.brokers)
    responses = await asyncio.gather(
        *(cluster.try_append(names[at % 4], journal, b"%04d" % at, timeout_s=30) for at in range(100))
    )
    content = await cluster.read("broker-0", journal)
    for at, response in enumerate(responses):
        assert response.status == pb.OK
        assert content[response.commit.begin : response.commit.end] == b"%04d" % at
    assert len(content) == 400


async def test_a_journal_that_is_only_read_takes_barriers(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/read-only")
    listed = (await cluster.list(f"name={journal}"))[0]
    listed.spec.flags = Flag.O_RDONLY
    change = pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=listed.spec)
    await cluster.stub("broker-0").Apply(pb.ApplyRequest(changes=[change]), timeout=10)

    async def is_refused() -> bool:
        response = await cluster.try_append("broker-0", journal, b"x")
        return response.status == pb.NOT_ALLOWED

    await eventually(is_refused, "the flags to be seen")
    assert (await cluster.try_append("broker-0", journal)).status == pb.OK


async def test_a_large_append_is_stored_in_one_fragment(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/large", length=1 << 16)
    chunk = bytes(range(256)) * 4096
    response = await cluster.try_append("broker-3", journal, *[chunk] * 8, timeout_s=60)
    assert response.commit.end - response.commit.begin == len(chunk) * 8
    await cluster.try_append("broker-3", journal, b"more")

    async def is_stored() -> bool:
        request = pb.FragmentsRequest(journal=journal)
        listed = await cluster.stub("broker-0").ListFragments(request, timeout=10)
        return any(
            (each.spec.begin, each.spec.end, each.spec.backing_store) == (0, len(chunk) * 8, "file:///")
            for each in listed.fragments
        )

    await eventually(is_stored, "the fragment to be stored and listed")
    assert await cluster.read("broker-0", journal) == chunk * 8 + b"more"


async def test_suspension_and_resumption(cluster: BrokerCluster) -> None:
    """An empty journal is suspended fully, one with content partially; an append wakes either."""
    journal = await created(cluster, "append/suspended", replication=2)
    suspended = await cluster.try_append("broker-0", journal, suspend=pb.AppendRequest.SUSPEND_NOW)
    assert suspended.status == pb.SUSPENDED

    async def has_members(count: int) -> bool:
        listed = (await cluster.list(f"name={journal}"))[0]
        return len(listed.route.members) == count

    await eventually(lambda: has_members(0), "a suspended journal to have no members")
    refused = await cluster.try_append("broker-0", journal, b"x", suspend=pb.AppendRequest.SUSPEND_NO_RESUME)
    assert refused.status == pb.SUSPENDED
    woken = await cluster.append("broker-0", journal, b"awake")
    assert (woken.commit.begin, woken.commit.end) == (0, 5)
    partially = await cluster.try_append("broker-0", journal, suspend=pb.AppendRequest.SUSPEND_NOW)
    assert partially.status == pb.SUSPENDED
    await eventually(lambda: has_members(1), "a partially suspended journal to have one member")
    kept = await cluster.try_append("broker-0", journal, suspend=pb.AppendRequest.SUSPEND_KEEP)
    assert (kept.status, kept.commit.end) == (pb.OK, 5)
    again = await cluster.append("broker-0", journal, b"more")
    assert again.commit.begin == 5
    assert await cluster.read("broker-0", journal) == b"awakemore"


@pytest.mark.slow
async def test_a_revision_far_ahead_does_not_hold_a_request_for_ever(cluster: BrokerCluster) -> None:
    journal = await created(cluster, "append/forged")
    with pytest.raises(grpc.aio.AioRpcError, match="revision") as error:
        await cluster.try_append("broker-0", journal, b"x", min_etcd_revision=1 << 62, timeout_s=45)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_no_append_is_taken_before_the_stores_were_listed(shared_etcd: EtcdServer, tmp_path: Path) -> None:
    """A-21: a broker that does not know what is in the store does not know where the journal ends."""
    name, module = "append/listed", "tests.support.planted_broker lists-when-told"
    async with broker_cluster(tmp_path, shared_etcd.endpoint, "/first-listing", "broker-0", module=module) as cluster:
        await cluster.apply(journal_spec(name, 1))

        async def is_assigned() -> bool:
            return (await cluster.route(name))[0] == "broker-0"

        await eventually(is_assigned, "the journal to have its broker")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await cluster.try_append("broker-0", name, b"too soon", timeout_s=1)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        cluster.brokers["broker-0"].signal(signal.SIGUSR1)
        assert (await cluster.append("broker-0", name, b"in time")).commit.begin == 0
        assert await cluster.read("broker-0", name) == b"in time"
