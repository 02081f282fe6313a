"""What a real broker tells those who do not speak of journals: probes, load balancers, tools. And how it holds back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]

from broker.journal_item import ZONES
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from tests.support.broker_cluster import Broker, BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

SERVICE = "protocol.Journal"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
RATE = 256 << 10


@pytest.fixture
async def alone(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    """One broker, that may pass on no more than `RATE` bytes a second."""
    flags = ("--broker.max-append-rate", str(RATE), "--broker.drain-timeout", "1m")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0", flags=flags) as cluster:
        yield cluster


async def health_of(channel: grpc.aio.Channel, service: str) -> Any:
    request = health_pb2.HealthCheckRequest(service=service)
    response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
    return response.status


def channel_to(broker: Broker) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(broker.address)


@pytest.fixture
async def draining(alone: BrokerCluster) -> BrokerCluster:
    """It was told to stop, and waits for somebody who takes its journal over: whoever else is there has no room."""
    await alone.start("broker-2", zone="elsewhere", flags=("--broker.limit", "1"))
    elsewhere = replace(journal_spec("health/elsewhere", 1), labels=LabelSet.of((ZONES, "elsewhere")))
    await alone.apply(elsewhere, journal_spec("health/drained", 1))
    await alone.append("broker-0", "health/elsewhere", b"it is full")
    await alone.append("broker-0", "health/drained", b"before")
    broker = alone.brokers["broker-0"]
    broker.signal(signal.SIGTERM)
    await eventually(lambda: "broker was told to stop" in broker.log.read_text(), "the broker to hear of it")
    return alone


async def test_a_broker_serves(alone: BrokerCluster) -> None:
    async with channel_to(alone.brokers["broker-0"]) as channel:
        for service in ("", SERVICE):
            assert await health_of(channel, service) == SERVING
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
            assert (await watch.read()).status == SERVING
            watch.cancel()


async def test_a_broker_that_drains_tells_others_not_to_come(draining: BrokerCluster) -> None:
    async with channel_to(draining.brokers["broker-0"]) as channel:

        async def is_told() -> bool:
            return [await health_of(channel, service) for service in ("", SERVICE)] == [NOT_SERVING] * 2

        await eventually(is_told, "health to say that it does not serve")


async def test_a_broker_that_drains_serves_what_it_has_until_another_takes_over(draining: BrokerCluster) -> None:
    assert (await draining.try_append("broker-0", "health/drained", b", after")).status == pb.OK
    assert await draining.read("broker-0", "health/drained") == b"before, after"
    await draining.start("broker-1")
    assert await draining.brokers["broker-0"].wait_exit() == 0
    assert (await draining.append("broker-1", "health/drained")).commit.end == len(b"before, after")

    async def is_read() -> bool:
        return await draining.read("broker-1", "health/drained") == b"before, after"

    await eventually(is_read, "what was uploaded last to be listed")


async def test_a_service_that_a_broker_does_not_have_is_not_found(alone: BrokerCluster) -> None:
    async with channel_to(alone.brokers["broker-0"]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health_of(channel, "protocol.Nothing")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_tools_can_ask_which_services_a_broker_has(alone: BrokerCluster) -> None:
    async with channel_to(alone.brokers["broker-0"]) as channel:
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(requests), timeout=10)
        listed, found = [response async for response in call]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert any(b"Replicate" in raw for raw in found.file_descriptor_response.file_descriptor_proto)


async def test_content_above_the_greatest_rate_is_held_back_and_all_of_it_stored(alone: BrokerCluster) -> None:
    # A journal has to have a rate of its own for the broker's to count.
    await alone.apply(replace(journal_spec("health/rate", 1), max_append_rate=100 * RATE))
    await alone.append("broker-0", "health/rate")
    # It begins with what a second allows. The rest takes as long as its bytes do.
    chunks = [bytes([at]) * (RATE // 8) for at in range(11)]
    response = await alone.try_append("broker-0", "health/rate", *chunks, timeout_s=60)
    assert response.status == pb.OK
    assert response.total_chunks == len(chunks) + 1
    assert 0 < response.delayed_chunks <= len(chunks)
    assert await alone.read("broker-0", "health/rate") == b"".join(chunks)


async def test_content_of_a_journal_without_a_greatest_rate_is_never_held_back(alone: BrokerCluster) -> None:
    await alone.apply(journal_spec("health/free", 1))
    await alone.append("broker-0", "health/free")
    response = await alone.try_append("broker-0", "health/free", *[bytes(RATE)] * 20)
    assert (response.status, response.delayed_chunks) == (pb.OK, 0)


async def test_a_broker_that_stops_before_it_has_journals_is_gone_at_once(alone: BrokerCluster) -> None:
    broker = alone.brokers["broker-0"]
    broker.signal(signal.SIGTERM)
    assert await broker.wait_exit() == 0

    async def is_gone() -> bool:
        async with channel_to(broker) as channel:
            try:
                await health_of(channel, "")
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

    await eventually(is_gone, "the port to be closed")


async def test_a_store_that_cannot_be_listed_is_named_and_tried_again_soon(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """The first store is fine, so that its checks find nothing. The next listing in due time is in an hour."""
    module = "tests.support.planted_broker lists-impatiently"
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0", module=module) as cluster:
        spec = journal_spec("health/two", 1, stores=("file:///", "file:///second/"))
        await cluster.apply(replace(spec, fragment=replace(spec.fragment, refresh_interval_ns=3600 * 10**9)))

        async def is_refused() -> bool:
            try:
                response = await cluster.try_append("broker-0", "health/two", b"x", timeout_s=60)
            except grpc.aio.AioRpcError:
                return False
            if response.status != pb.FRAGMENT_STORE_UNHEALTHY:
                return False
            assert "file:///second/ cannot be listed" in response.store_health_error
            return True

        await eventually(is_refused, "an append to be refused")
        (cluster.fragments / "second").mkdir()
        assert (await cluster.append("broker-0", "health/two", b"x")).commit.end == 1
