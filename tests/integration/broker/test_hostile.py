"""What clients and specs may do to a broker, and it goes on serving."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc
import pytest

from protocol.fragment import HEAD_MAX
from protocol.gen import epoch_pb2
from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, journal_spec
from tests.support.eventually import eventually
from tests.support.http2 import ACK, PREFACE, SETTINGS, answer, frame

pytestmark = pytest.mark.asyncio(loop_scope="package")

MESSAGE_MAX = 4 << 20
METHODS = ["Append", "Replicate", "Read", "List", "Apply", "ListFragments", "FragmentStoreHealth"]
# Of HTTP/2: how many streams a connection may have at a time.
MAX_CONCURRENT_STREAMS = 3


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("s3://bucket/?endpoint=http://[::1/", id="an endpoint that is no URL"),
        pytest.param("s3://bucket/?endpoint=http://a..b/", id="an endpoint without a host"),
        pytest.param("s3://bucket/?region=%0a", id="a region that is none"),
        # Half a minute: such a store opens, and is then checked several times in vain.
        pytest.param("file:///a%00b/", id="a path that no disk has", marks=pytest.mark.slow),
    ],
)
async def test_a_store_that_no_library_can_make_sense_of_costs_its_own_journal_alone(
    cluster: BrokerCluster, store: str
) -> None:
    healthy = journal_spec("hostile/healthy", 1)
    await cluster.apply(healthy)
    await cluster.apply(journal_spec("hostile/store", 3, stores=(store,)))

    async def is_unhealthy() -> bool:
        response = await cluster.try_append("broker-0", "hostile/store", b"x", timeout_s=60)
        return response.status == pb.FRAGMENT_STORE_UNHEALTHY

    await eventually(is_unhealthy, "appends to be refused")
    assert (await cluster.append("broker-0", healthy.name, b"x")).status == pb.OK
    assert all(broker.process is not None and broker.process.poll() is None for broker in cluster.brokers.values())
    await cluster.delete("hostile/store")


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_the_clients_fault(cluster: BrokerCluster, method: str) -> None:
    async with grpc.aio.insecure_channel(cluster.brokers["broker-0"].address) as channel:
        call: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        call = channel.stream_stream(f"/protocol.Journal/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call(iter([b"\xff\xff"]), timeout=10):
                pass
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_bytes_that_are_no_message_in_the_middle_of_an_append_roll_it_back(cluster: BrokerCluster) -> None:
    await cluster.apply(journal_spec("hostile/garbage"))
    await cluster.append("broker-0", "hostile/garbage")
    opening = pb.AppendRequest(journal="hostile/garbage").SerializeToString()
    async with grpc.aio.insecure_channel(cluster.brokers["broker-0"].address) as channel:
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/protocol.Journal/Append")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(iter([opening, pb.AppendRequest(content=b"x").SerializeToString(), b"\xff"]), timeout=10)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await cluster.try_append("broker-0", "hostile/garbage", b"y")).commit.begin == 0


async def test_content_as_large_as_a_message_may_be_is_replicated(cluster: BrokerCluster) -> None:
    await cluster.apply(journal_spec("hostile/large"))
    await cluster.append("broker-0", "hostile/large")
    chunk = bytes(MESSAGE_MAX - 5)
    response = await cluster.try_append("broker-0", "hostile/large", chunk, chunk, timeout_s=60)
    assert (response.status, response.commit.end) == (pb.OK, 2 * len(chunk))
    assert response.total_chunks == 3


async def test_registers_do_not_grow_without_bound(cluster: BrokerCluster) -> None:
    await cluster.apply(journal_spec("hostile/registers"))
    await cluster.append("broker-0", "hostile/registers")
    many = pb.LabelSet(labels=[pb.Label(name=f"name-{at:05}", value="x" * 100) for at in range(2000)])
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await cluster.try_append("broker-0", "hostile/registers", b"x", union_registers=many)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await cluster.try_append("broker-0", "hostile/registers", b"x")).commit.begin == 0


async def test_a_connection_may_have_so_many_streams_and_no_more(cluster: BrokerCluster) -> None:
    """Room for every journal that a peer replicates to it, and for calls: it is told when the connection begins."""
    answered = await answer(cluster.brokers["broker-0"].port, PREFACE + frame(SETTINGS), until=frame(SETTINGS, ACK))
    length, kind = int.from_bytes(answered[:3]), answered[3]
    assert kind == SETTINGS
    payload = answered[9 : 9 + length]
    settings = dict(struct.unpack_from(">HI", payload, at) for at in range(0, length, 6))
    assert settings[MAX_CONCURRENT_STREAMS] == 4096 + 1024


FORGED = b"forged"
TRIES_MAX = 5
Forge = Callable[[pb.Fragment], Sequence[pb.ReplicateRequest]]
"""What a primary that lies sends, to a replica that holds this."""


def content(delta: int = 0, acked_through: int = 0) -> pb.ReplicateRequest:
    return pb.ReplicateRequest(content=FORGED, content_delta=delta, acked_through=acked_through)


def commit(held: pb.Fragment, journal: str = "") -> pb.ReplicateRequest:
    """Of that content, with another sum than it has."""
    proposal = pb.Fragment()
    proposal.CopyFrom(held)
    digest = hashlib.sha1(b"something else").digest()
    proposal.end += len(FORGED)
    proposal.sum.part1, proposal.sum.part2 = int.from_bytes(digest[:8]), int.from_bytes(digest[8:16])
    proposal.sum.part3 = int.from_bytes(digest[16:])
    proposal.journal = journal or held.journal
    return pb.ReplicateRequest(proposal=proposal, registers=pb.LabelSet(), acknowledge=True)


@pytest.mark.parametrize(
    ("forge", "statuses", "code", "says"),
    [
        pytest.param(
            lambda _: [content(acked_through=HEAD_MAX + 1)],
            [],
            grpc.StatusCode.INVALID_ARGUMENT,
            "AckedThrough",
            id="bytes beyond all journals are acknowledged with content",
        ),
        pytest.param(
            lambda _: [pb.ReplicateRequest(acked_through=(1 << 63) - 1)],
            [],
            grpc.StatusCode.INVALID_ARGUMENT,
            "AckedThrough",
            id="and with nothing",
        ),
        pytest.param(
            lambda held: [
                content(acked_through=held.end + 1),
                pb.ReplicateRequest(acked_through=held.end + 1_000_000),
                pb.ReplicateRequest(acked_through=HEAD_MAX),
            ],
            [],
            grpc.StatusCode.OK,
            "",
            id="bytes that it does not hold are acknowledged",
        ),
        pytest.param(
            lambda held: [content(), commit(held)],
            [pb.PROPOSAL_MISMATCH],
            grpc.StatusCode.UNAVAILABLE,
            "does not fit what is held here",
            id="a commit has another sum",
        ),
        pytest.param(
            lambda held: [content(), commit(held, journal="hostile/other")],
            [pb.PROPOSAL_MISMATCH],
            grpc.StatusCode.UNAVAILABLE,
            "does not fit what is held here",
            id="a commit is of another journal",
        ),
        pytest.param(
            lambda _: [content(), content(delta=3)],
            [],
            grpc.StatusCode.UNAVAILABLE,
            "out of order",
            id="content does not follow on what came before it",
        ),
    ],
)
async def test_a_primary_that_lies_is_told_and_nothing_of_it_is_stored_or_shown(
    cluster: BrokerCluster, forge: Forge, statuses: list[int], code: grpc.StatusCode, says: str
) -> None:
    """It knows all that the real one knows, and takes the replica's spool from it."""
    journal = "hostile/replicated"
    await cluster.apply(journal_spec(journal))
    for _ in range(TRIES_MAX):
        before = await cluster.append("broker-0", journal, b"before\n")
        peer = sorted((await cluster.route(journal))[1])[0]
        if (heard := await lied(cluster, peer, before, forge, ends=code is grpc.StatusCode.OK)) is not None:
            break
    else:
        pytest.fail("the real primary was always faster")
    answers, ended, details = heard
    assert ([answer.status for answer in answers], ended) == (statuses, code)
    assert says in details
    # As the replica itself has it.
    shown = await cluster.responses(peer, journal, before.commit.begin, do_not_proxy=True)
    assert b"".join(response.content for response in shown).startswith(b"before\n")
    assert max(response.write_head for response in shown) == before.commit.end
    after = await cluster.append("broker-0", journal, b"after\n")
    assert after.commit.begin == before.commit.end
    for name in cluster.brokers:
        read = await cluster.read(name, journal, before.commit.begin, block=True, end_offset=after.commit.end)
        assert read == b"before\nafter\n"


async def lied(
    cluster: BrokerCluster, peer: str, appended: pb.AppendResponse, forge: Forge, *, ends: bool
) -> tuple[list[pb.ReplicateResponse], grpc.StatusCode, str] | None:
    """What came back, after it was synchronised as by the primary of that append; None if that one has opened another
    epoch since. If the replica has nothing to complain of, the stream `ends` by the primary's word."""
    journal = appended.commit.journal
    (listed,) = await cluster.list(f"name={journal}")
    head = await cluster.head(journal)
    header = pb.Header()
    header.CopyFrom(appended.header)
    header.process_id.CopyFrom(next(member for member in header.route.members if member.suffix == peer))
    epoch = epoch_pb2.Epoch(create_revision=listed.create_revision, number=head.epoch, begin=head.begin)
    nothing = pb.Fragment(journal=journal, compression_codec=pb.NONE)
    opening = pb.ReplicateRequest(
        proposal=nothing, header=header, registers=pb.LabelSet(), acknowledge=True, epoch=epoch
    )
    call = cluster.stub(peer).Replicate(timeout=30, metadata=cluster.metadata)
    await call.write(opening)
    found = await call.read()
    assert isinstance(found, pb.ReplicateResponse)
    if (found.status, found.fragment.end) != (pb.PROPOSAL_MISMATCH, appended.commit.end):
        call.cancel()
        return None
    again = pb.ReplicateRequest(
        proposal=found.fragment, registers=found.registers, acknowledge=True, epoch=epoch, acked_through=1
    )
    await call.write(again)
    agreed = await call.read()
    assert isinstance(agreed, pb.ReplicateResponse)
    assert agreed.status == pb.OK
    answers: list[pb.ReplicateResponse] = []
    for request in forge(found.fragment):
        await call.write(request)
    # To write to a call that has ended, or to end it once more, is INTERNAL in grpc.aio.
    if ends:
        await call.done_writing()
    with suppress(grpc.aio.AioRpcError):
        while isinstance(said := await call.read(), pb.ReplicateResponse):
            answers.append(said)
    return answers, await call.code(), await call.details() or ""
