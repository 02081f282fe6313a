"""What a real broker tells Prometheus, name by name."""

from __future__ import annotations

import aiohttp
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, journal_spec
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="package")


def _histogram(name: str) -> set[str]:
    return {f"{name}_bucket", f"{name}_count", f"{name}_sum"}


# Those of Gazette's brokers, to the letter: rules and dashboards look for these.
OF_GAZETTE = {
    "gazette_journal_server_started_totals",
    "gazette_journal_server_completed_totals",
    "gazette_write_head",
    "gazette_spool_commits_total",
    "gazette_spool_commit_bytes_total",
    "gazette_spool_rollbacks_total",
    "gazette_spool_rollback_bytes_total",
    "gazette_spool_completed_total",
    "gazette_spool_persisted_total",
    "gazette_store_active",
    *_histogram("gazette_store_operation_duration_seconds"),
    "gazette_store_operation_total",
    "gazette_store_put_bytes_total",
    *_histogram("gazette_store_list_items_count"),
    "gazette_store_health_check_total",
    "gazette_allocator_assignment_added_total",
    "gazette_allocator_assignment_packed_total",
    "gazette_allocator_assignment_removed_total",
    "gazette_allocator_converge_total",
    *_histogram("gazette_allocator_max_flow_runtime_seconds"),
    "gazette_allocator_desired_replication_slots",
    "gazette_allocator_items",
    "gazette_allocator_members",
    "grpc_server_started_total",
    "grpc_server_handled_total",
    "grpc_server_msg_received_total",
    "grpc_server_msg_sent_total",
    *_histogram("grpc_server_handling_seconds"),
}


async def scraped(cluster: BrokerCluster, name: str) -> list[Sample]:
    """All samples, as Prometheus would read them."""
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.brokers[name].gateway}/metrics") as answer:
        text = await answer.text()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def primary_of(cluster: BrokerCluster, journal: str) -> str:
    primary, _ = await cluster.route(journal)
    assert primary is not None
    return primary


async def test_gazettes_metrics_have_their_names_to_the_letter(cluster: BrokerCluster) -> None:
    name = "metrics/names"
    await cluster.apply(journal_spec(name))
    # The second of them begins a fragment, and the first is uploaded.
    for _ in range(2):
        await cluster.append("broker-0", name, bytes(1 << 16))
    primary = await primary_of(cluster, name)
    missing = OF_GAZETTE

    async def is_complete() -> bool:
        nonlocal missing
        missing = OF_GAZETTE - {sample.name for sample in await scraped(cluster, primary)}
        return not missing

    await eventually(is_complete, lambda: f"samples of {sorted(missing)}")
    names = {sample.name for sample in await scraped(cluster, primary)}
    assert {known for known in names if known.startswith("gazette_journal_server")} == {
        "gazette_journal_server_started_totals",
        "gazette_journal_server_completed_totals",
    }


async def completed(cluster: BrokerCluster, name: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["operation"], sample.labels["status"]): sample.value
        for sample in await scraped(cluster, name)
        if sample.name == "gazette_journal_server_completed_totals"
    }


async def under_way(cluster: BrokerCluster, name: str, operation: str) -> float:
    samples = [sample for sample in await scraped(cluster, name) if sample.labels.get("operation") == operation]
    began = sum(sample.value for sample in samples if sample.name == "gazette_journal_server_started_totals")
    return began - sum(sample.value for sample in samples if sample.name == "gazette_journal_server_completed_totals")


async def test_every_call_that_began_is_counted_as_completed_however_it_ends(cluster: BrokerCluster) -> None:
    name = "metrics/calls"
    await cluster.apply(journal_spec(name))
    await cluster.append("broker-0", name, b"content")
    _, others = await cluster.route(name)
    broker = min(others)
    stub, before = cluster.stub(broker), await completed(cluster, broker)
    open_replications = await under_way(cluster, broker, "Replicate")

    assert (await cluster.try_append(broker, name, b"more")).status == pb.OK
    assert (await cluster.try_append(broker, name, b"more", offset=3)).status == pb.WRONG_APPEND_OFFSET
    assert (await cluster.try_append(broker, "metrics/none")).status == pb.JOURNAL_NOT_FOUND
    reading = stub.Read(pb.ReadRequest(journal=name, block=True))
    await reading.read()
    reading.cancel()
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Read(pb.ReadRequest(journal="/a//b")).read()
    listing = stub.List(pb.ListRequest(watch=True))
    await listing.read()
    listing.cancel()
    replicating = stub.Replicate()
    await replicating.write(pb.ReplicateRequest(content=b"no proposal"))
    with pytest.raises(grpc.aio.AioRpcError):
        await replicating.read()
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.ListFragments(pb.FragmentsRequest(journal="/a//b"))

    wanted = {
        ("Append", "ok"): 1,
        ("Append", "WRONG_APPEND_OFFSET"): 1,
        ("Append", "JOURNAL_NOT_FOUND"): 1,
        ("Read", "ok"): 1,
        ("Read", "<error>"): 1,
        ("List", "ok"): 1,
        ("Replicate", "<error>"): 1,
        ("ListFragments", "<error>"): 1,
    }
    counted: dict[tuple[str, str], float] = {}

    async def is_counted() -> bool:
        nonlocal counted
        now = await completed(cluster, broker)
        counted = {key: value - before.get(key, 0) for key, value in now.items() if value != before.get(key, 0)}
        return counted == wanted

    await eventually(is_counted, lambda: f"{wanted}: there is {counted}", 15)
    for operation in ("Append", "Read", "List", "ListFragments"):
        assert await under_way(cluster, broker, operation) == 0
    assert await under_way(cluster, broker, "Replicate") == open_replications
