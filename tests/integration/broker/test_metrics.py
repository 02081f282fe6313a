"""What a real broker tells Prometheus, name by name."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
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
    "grpc_client_started_total",
    "grpc_client_handled_total",
    "grpc_client_msg_received_total",
    "grpc_client_msg_sent_total",
    *_histogram("grpc_client_handling_seconds"),
}
# What Gazette lacks: how long appends take, what is in no store yet, what lacks members, how far we are behind etcd.
OF_OURS = {
    *_histogram("gazette_append_stage_seconds"),
    "gazette_append_held_back_seconds_total",
    "gazette_spool_unpersisted_bytes",
    "gazette_spool_unpersisted_oldest_seconds",
    "gazette_allocator_under_replicated_items",
    "gazette_keyspace_silence_seconds",
    *_histogram("gazette_keyspace_apply_delay_seconds"),
}


async def scraped(cluster: BrokerCluster, name: str) -> list[Sample]:
    """All samples, as Prometheus would read them."""
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.brokers[name].gateway}/metrics") as answer:
        text = await answer.text()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def test_all_metrics_have_their_names_to_the_letter(cluster: BrokerCluster) -> None:
    name = "metrics/names"
    await cluster.apply(journal_spec(name))
    # The second of them begins a fragment, and the first is uploaded.
    for _ in range(2):
        await cluster.append("broker-0", name, bytes(1 << 16))
    primary, others = await cluster.route(name)
    assert primary is not None
    # The one that is no member asks another: of all calls between brokers only such a one ends.
    spare = next(iter(set(cluster.brokers) - {primary, *others}))
    await cluster.read(spare, name)
    wanted = OF_GAZETTE | OF_OURS
    missing = wanted

    async def is_complete() -> bool:
        nonlocal missing
        samples = [*await scraped(cluster, primary), *await scraped(cluster, spare)]
        missing = wanted - {sample.name for sample in samples}
        return not missing

    await eventually(is_complete, lambda: f"samples of {sorted(missing)}", 20)
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


async def test_a_read_that_is_passed_on_is_counted_by_what_its_client_is_told(cluster: BrokerCluster) -> None:
    name = "metrics/passed-on"
    await cluster.apply(journal_spec(name))
    head = (await cluster.append("broker-0", name, b"content")).commit.end
    primary, others = await cluster.route(name)
    spare = next(iter(set(cluster.brokers) - {primary or "", *others}))
    before = await completed(cluster, spare)
    (response,) = await cluster.responses(spare, name, head)
    assert response.status == pb.OFFSET_NOT_YET_AVAILABLE

    async def is_counted() -> bool:
        now = await completed(cluster, spare)
        return {key: now[key] - before.get(key, 0) for key in now if now[key] != before.get(key, 0)} == {
            ("Read", "OFFSET_NOT_YET_AVAILABLE"): 1
        }

    await eventually(is_counted, "the read to be counted", 15)


async def test_what_gazette_lacks_is_measured(shared_etcd: EtcdServer, tmp_path: Path) -> None:
    """By a broker of its own, since others would add to it."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, "/metrics-alone", "broker-0") as cluster:

        async def value(name: str, **labels: str) -> float:
            samples = await scraped(cluster, "broker-0")
            return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

        async def becomes(expected: float, name: str) -> None:
            seen = 0.0

            async def holds() -> bool:
                nonlocal seen
                seen = await value(name)
                return seen == expected

            await eventually(holds, lambda: f"{name} to be {expected}: it is {seen}", 20)

        assert await value("gazette_spool_unpersisted_bytes") == 0
        assert await value("gazette_spool_unpersisted_oldest_seconds") == 0
        await cluster.apply(journal_spec("alone/one", 1), journal_spec("alone/storeless", 1, stores=()))
        for stage in ("turn", "stream", "commit"):
            assert await value("gazette_append_stage_seconds_count", stage=stage) == 0
        await cluster.append("broker-0", "alone/one", b"content")
        for stage in ("turn", "stream", "commit"):
            assert await value("gazette_append_stage_seconds_count", stage=stage) >= 1
        # Its spool is open, and stays so.
        assert await value("gazette_spool_unpersisted_bytes") == 7
        assert await value("gazette_spool_unpersisted_oldest_seconds") > 0
        # Of a journal without a store bytes are where they are to be.
        await cluster.append("broker-0", "alone/storeless", b"more content")
        assert await value("gazette_spool_unpersisted_bytes") == 7
        # The first fragment is complete now, and goes to the store.
        await cluster.append("broker-0", "alone/one", b"and more")
        await becomes(8, "gazette_spool_unpersisted_bytes")

        await cluster.apply(journal_spec("alone/two", 2))
        await becomes(1, "gazette_allocator_under_replicated_items")
        assert await value("gazette_keyspace_apply_delay_seconds_count") > 0
        assert await value("gazette_keyspace_silence_seconds") >= 0
