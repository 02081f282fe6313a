"""What clients and specs may do to a broker, and it goes on serving."""

from __future__ import annotations

import struct

import grpc
import pytest

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
