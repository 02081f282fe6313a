"""Conversations that were recorded with Gazette's own brokers, had with ours: the same requests, equivalent answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag
from tests.support.append_recording import Conversation, compare, conversations, had_with
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually


@pytest.fixture
async def wire(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix) as cluster:
        await cluster.start("broker-1", "broker-2", zone="zone-a")
        await cluster.start("broker-3", zone="zone-b")
        await cluster.apply(
            journal_spec("wire/three"),
            journal_spec("wire/one", 1),
            journal_spec("wire/ro", 1, flags=Flag.O_RDONLY),
            journal_spec("wire/wo", 1, flags=Flag.O_WRONLY),
            journal_spec("wire/toomany", 5),
        )
        for journal in ("wire/three", "wire/one", "wire/ro", "wire/wo"):
            await cluster.append("broker-1", journal)
        yield cluster


async def addressed(cluster: BrokerCluster, one: Conversation) -> str:
    """Who was asked, as the title has it; if it does not say, that was the primary."""
    journal = pb.AppendRequest.FromString(one.requests[0]).journal.partition(";")[0] if one.requests else ""
    if journal not in {listed.spec.name for listed in await cluster.list()}:
        return "broker-1"
    primary, others = await cluster.route(journal)
    assert primary is not None
    if any(words in one.title for words in ("non-primary", "at a replica", "through a proxy")):
        return min(others)
    if "no replica" in one.title or "without replica" in one.title:
        return next(name for name in cluster.brokers if name not in (primary, *others))
    return primary


def amended(one: Conversation, known: pb.Header) -> None:
    """A header with the ids of this cluster in place of those of the one that was recorded."""
    if not one.requests:
        return
    opening = pb.AppendRequest.FromString(one.requests[0])
    if "in the future" in one.title or "future revision" in one.title:
        opening.min_etcd_revision = known.etcd.revision + 1000
        opening.ClearField("header")
    elif opening.HasField("header") and "empty" not in one.title:
        recorded = opening.header.process_id
        opening.header.CopyFrom(known)
        if "another cluster" in one.title:
            opening.header.etcd.cluster_id += 1
        if "another process" in one.title:
            opening.header.process_id.CopyFrom(recorded)
        if "another route" in one.title:
            opening.header.route.Clear()
            opening.header.route.primary = -1
    else:
        return
    one.requests[0] = opening.SerializeToString()


async def test_appends_are_answered_as_gazette_answers_them(wire: BrokerCluster) -> None:
    known = (await wire.append("broker-1", "wire/three")).header
    for one in conversations("append"):
        amended(one, known)
        name = await addressed(wire, one)
        timeout_s = 1.0 if "blocks until" in one.title else 20.0
        compare(one, *await had_with(wire, name, one, timeout_s))
    assert (await wire.append("broker-1", "wire/three")).commit.end == 109


async def test_appends_in_special_situations_are_answered_as_gazette_answers_them(wire: BrokerCluster) -> None:
    by_title = {one.title: one for one in conversations("append-special")}

    async def same(title: str, *, timeout_s: float = 20) -> None:
        one = by_title[title]
        compare(one, *await had_with(wire, await addressed(wire, one), one, timeout_s))

    async def has_three_members() -> bool:
        primary, others = await wire.route("wire/toomany")
        return primary is not None and len(others) == 2

    await eventually(has_three_members, "as many members as there are brokers")
    await same("R=5 with three members: INSUFFICIENT_JOURNAL_BROKERS")
    # A fragment far ahead of the head, as a cluster that lost all its brokers leaves it.
    ahead = wire.fragments / "wire/one" / f"{1048576:016x}-{1048581:016x}-aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d.raw"
    ahead.parent.mkdir(exist_ok=True, parents=True)
    ahead.write_bytes(b"hello")

    async def is_listed() -> bool:
        listed = await wire.stub("broker-1").ListFragments(pb.FragmentsRequest(journal="wire/one"), timeout=10)
        return any(each.spec.end == 1048581 for each in listed.fragments)

    await eventually(is_listed, "the fragment to be listed")
    await same("store listing is ahead: INDEX_HAS_GREATER_OFFSET")
    await same("zero-byte append at the index end resets the head")
    await same("append after the reset")
    await wire.apply(journal_spec("sick/args", 1, stores=("file:///store/?bogus=1",)))

    async def has_primary() -> bool:
        return (await wire.route("sick/args"))[0] is not None

    await eventually(has_primary, "a primary")
    await same("append to a store that cannot be opened: FRAGMENT_STORE_UNHEALTHY at once")
