"""A cluster with a member that keeps no epochs, as Gazette's own do not: what brokers of ours do about it, and say."""

from __future__ import annotations

from pathlib import Path

import grpc

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

OURS = ("broker-0", "broker-1")
GUEST = "broker-2"
JOURNALS = ("test/one", "test/two", "test/three")
LINES = [b"line %d\n" % at for at in range(4)]


async def start_mixed(cluster: BrokerCluster) -> None:
    cluster.module = "tests.support.planted_broker without-epochs"
    await cluster.start(GUEST)
    cluster.module = "gazctl.main"
    await cluster.start(*OURS)


async def test_a_member_without_epochs_makes_heads_void_and_the_next_epoch_ends_that(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix) as cluster:
        await start_mixed(cluster)
        await cluster.apply(*(journal_spec(name) for name in JOURNALS))
        ends = {}
        for journal in JOURNALS:
            for line in LINES:
                ends[journal] = (await cluster.append(OURS[0], journal, line)).commit.end
            assert (await cluster.head(journal)).void
        for name in OURS:
            assert await cluster.metric(name, "gazette_void_heads") == len(JOURNALS)
            assert cluster.brokers[name].log.read_text().count("without epochs takes part") == len(JOURNALS)

        # It goes, and the journals that it held are ours alone: without anybody's doing, and with nothing lost.
        cluster.brokers[GUEST].kill()
        await cluster.start(GUEST)
        for journal in JOURNALS:
            after = await cluster.append(OURS[0], journal, b"after\n")
            assert after.commit.begin == ends[journal]
            head = await cluster.head(journal)
            assert (head.void, head.epoch > 0) == (False, True)
            content = await cluster.read(OURS[1], journal, block=True, end_offset=after.commit.end)
            assert content == b"".join(LINES) + b"after\n"
        for name in OURS:
            assert await cluster.metric(name, "gazette_void_heads") == 0


async def test_all_are_killed_while_void_and_what_was_acknowledged_is_where_it_belongs(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """As in Gazette an operator may have to say where a journal goes on. But what brokers of ours knew to be
    acknowledged is there, under the journal's own name, and the rest of what they had is set aside."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix) as cluster:
        await start_mixed(cluster)
        await cluster.apply(*(journal_spec(name) for name in JOURNALS))
        for journal in JOURNALS:
            for line in LINES:
                await cluster.append(OURS[0], journal, line)
        for name in (*OURS, GUEST):
            cluster.brokers[name].kill()
        await cluster.start(*OURS, GUEST)
        for journal in JOURNALS:
            end = await resumed(cluster, journal)
            after = await cluster.append(OURS[0], journal, b"after\n")
            assert after.commit.begin >= end
            await is_whole(cluster, journal)
        await eventually(lambda: not spools(cluster), lambda: f"spools to be done with: {spools(cluster)}")
        assert not list(cluster.fragments.glob(".deleted/**/*.raw")), "nothing was deleted"


async def is_whole(cluster: BrokerCluster, journal: str) -> None:
    """It can be read to its end, and what is there of the earlier lines are the first of them."""
    content = b""

    async def is_read() -> bool:
        nonlocal content
        content = await cluster.read(OURS[0], journal)
        return content.endswith(b"after\n")

    await eventually(is_read, lambda: f"all of {journal}, of which there is {content!r}")
    assert b"".join(LINES).startswith(content.removesuffix(b"after\n"))


async def resumed(cluster: BrokerCluster, journal: str) -> int:
    """Where it goes on, by an operator's word if need be."""
    end = -1

    async def takes_appends() -> bool:
        nonlocal end
        try:
            answer = await cluster.try_append(OURS[0], journal)
            if answer.status == pb.INDEX_HAS_GREATER_OFFSET:
                (head,) = await cluster.responses(OURS[0], journal, -1, metadata_only=True)
                answer = await cluster.try_append(OURS[0], journal, offset=head.write_head)
        except grpc.aio.AioRpcError:
            return False
        end = answer.commit.end
        return answer.status == pb.OK

    await eventually(takes_appends, f"{journal} to take appends")
    return end


def spools(cluster: BrokerCluster) -> list[str]:
    """Of earlier processes: those of live replicas begin where the journal goes on."""
    files = [path for name in OURS for path in cluster.brokers[name].spool_dir.glob("*-0000000000000000-*.content")]
    return [path.name for path in files]
