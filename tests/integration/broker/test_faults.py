"""Brokers that die, stop, leave and lose their lease, as real processes: what was acknowledged stays."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import signal
from pathlib import Path

import grpc
import pytest

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import WAIT_S, eventually

JOURNAL = "test/journal"
NAMES = ("broker-0", "broker-1", "broker-2", "broker-3")


async def roles(cluster: BrokerCluster) -> tuple[str, list[str], str]:
    """The primary, the other members, and one that is none."""
    primary, others = await cluster.route(JOURNAL)
    assert primary is not None
    spare = next(name for name in cluster.brokers if name not in (primary, *others))
    return primary, sorted(others), spare


async def appended(cluster: BrokerCluster, through: str, *lines: bytes) -> bytes:
    for line in lines:
        await cluster.append(through, JOURNAL, line)
    return b"".join(lines)


async def test_a_killed_replica_is_replaced_and_nothing_is_lost(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster:
        await cluster.apply(journal_spec())
        before = await appended(cluster, "broker-0", b"one\n", b"two\n")
        primary, others, spare = await roles(cluster)
        cluster.brokers[others[0]].kill()
        # The append that meets it fails, whether it was stored or not. Those after it are refused or wait, and once
        # another has taken the place of the one that was killed, they go on.
        response = await cluster.append(primary, JOURNAL, b"three\n")
        assert response.status == pb.OK
        # One that has just joined reads what was written before from the store, once it is there.
        content = await cluster.read(spare, JOURNAL, block=True, end_offset=response.commit.end)
        assert content.startswith(before)
        assert content.endswith(b"three\n")
        assert spare in {member.suffix for member in response.header.route.members}


async def test_a_killed_primary_is_succeeded_and_nothing_is_lost(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster:
        await cluster.apply(journal_spec())
        before = await appended(cluster, "broker-0", b"one\n", b"two\n", b"three\n")
        primary, others, spare = await roles(cluster)
        cluster.brokers[primary].kill()
        after = await cluster.append(spare, JOURNAL, b"four\n")
        assert after.commit.begin >= len(before)
        for name in (*others, spare):
            assert await cluster.read(name, JOURNAL, block=True, end_offset=len(before)) == before


async def test_while_a_dead_member_has_its_lease_others_answer_what_is_passed_on(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """All three are of one zone, and the one that dies is the first in order."""
    flags = ("--etcd.lease", "60s")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES[:3], flags=flags) as cluster:
        await cluster.apply(journal_spec(replication=2))
        before = await appended(cluster, "broker-0", b"one\n")
        primary, others, spare = await roles(cluster)
        # So that there is a connection to it, which breaks.
        assert await cluster.read(spare, JOURNAL) == before
        cluster.brokers[min(primary, *others)].kill()
        for _ in range(2):
            assert await cluster.read(spare, JOURNAL) == before
            listed = await cluster.stub(spare).ListFragments(pb.FragmentsRequest(journal=JOURNAL), timeout=10)
            assert (listed.status, [fragment.spec.end for fragment in listed.fragments]) == (pb.OK, [len(before)])
        assert len((await cluster.responses(spare, JOURNAL))[0].header.route.members) == 2, "the lease still runs"


async def test_a_broker_that_is_told_to_stop_hands_everything_over(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """While appends go on: none of them fails for good, and every fragment gets to the store."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster:
        await cluster.apply(journal_spec())
        await cluster.append("broker-0", JOURNAL, b"0000\n")
        primary, _, spare = await roles(cluster)
        stop = asyncio.Event()
        written = 1

        async def keep_appending() -> None:
            nonlocal written
            while not stop.is_set():
                response = await cluster.append(spare, JOURNAL, b"%04d\n" % written)
                assert response.commit.end - response.commit.begin == 5
                written += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_appending())
            await eventually(lambda: written > 5, "some appends")
            cluster.brokers[primary].signal(signal.SIGTERM)
            assert await cluster.brokers[primary].wait_exit() == 0
            cluster.brokers[primary].process = None
            after = written
            await eventually(lambda: written > after + 5, "appends after the hand-over")
            stop.set()
        head = (await cluster.append(spare, JOURNAL)).commit.end
        content = await cluster.read(spare, JOURNAL, block=True, end_offset=head)
        lines = content.split(b"\n")[:-1]
        # In order; a line whose first attempt failed in the hand-over may be there twice.
        assert sorted(set(lines)) == [b"%04d" % at for at in range(written)]
        assert lines == sorted(lines)
        stored = sorted(path.name for path in (cluster.fragments / JOURNAL).iterdir())
        assert stored, "what the broker held is in the store"


async def test_a_broker_that_loses_its_lease_stops_and_says_so(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0") as cluster:
        await cluster.apply(journal_spec(replication=1))
        await cluster.append("broker-0", JOURNAL, b"one\n")
        lease = next(
            int(kv["lease"])
            for kv in shared_etcd.call("kv/range", key="AA==", range_end="AA==")["kvs"]
            if int(kv.get("lease", 0)) and prefix in _text(kv["key"])
        )
        shared_etcd.call("lease/revoke", ID=lease)
        assert await cluster.brokers["broker-0"].wait_exit() == 1
        assert "lease" in cluster.brokers["broker-0"].tail()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


async def test_nothing_is_acknowledged_after_the_lease_may_have_run_out(prefix: str, tmp_path: Path) -> None:
    """S-10, from outside: etcd says nothing any more, of the lease or of anything else. Until the lease may have
    run out appends go on, and after the first that is not acknowledged none is."""
    with etcd_server(tmp_path) as etcd:
        async with broker_cluster(tmp_path, etcd.endpoint, prefix, "broker-0") as cluster:
            await cluster.apply(journal_spec(replication=1))
            broker = cluster.brokers["broker-0"]
            acknowledged = [(await cluster.append("broker-0", JOURNAL, b"before\n")).commit.end]
            outcomes: list[bool] = []
            etcd.pause()
            try:
                while broker.process is not None and broker.process.poll() is None:
                    line = b"%06d\n" % len(outcomes)
                    try:
                        response = await cluster.try_append("broker-0", JOURNAL, line)
                    except grpc.aio.AioRpcError:
                        outcomes.append(False)
                    else:
                        outcomes.append(response.status == pb.OK)
                        acknowledged.append(response.commit.end)
            finally:
                etcd.resume()
            assert await broker.wait_exit() == 1
            assert "lease" in broker.tail()
            count = outcomes.index(False)
            assert count > 0, "nothing was appended while etcd was silent"
            assert not any(outcomes[count:])
            await cluster.start("broker-0")
            await cluster.append("broker-0", JOURNAL, b"after\n")
            read = await cluster.read("broker-0", JOURNAL, block=True, end_offset=acknowledged[-1])
            assert read == b"before\n" + b"".join(b"%06d\n" % at for at in range(count))


async def test_a_broker_that_was_stopped_past_its_lease_acknowledges_nothing_that_was_under_way(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """S-10: others may have the journal by the time that it goes on, with all that it needs for an answer at hand."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0") as cluster:
        await cluster.apply(journal_spec(replication=1))
        await cluster.append("broker-0", JOURNAL, b"one\n")
        broker = cluster.brokers["broker-0"]
        call = cluster.stub("broker-0").Append(timeout=WAIT_S)
        await call.write(pb.AppendRequest(journal=JOURNAL))
        await call.write(pb.AppendRequest(content=b"two\n"))
        broker.signal(signal.SIGSTOP)
        try:
            await call.write(pb.AppendRequest())
            await call.done_writing()
            await eventually(
                lambda: not [key for key in shared_etcd.listing(prefix) if "/members/" in key], "the lease to run out"
            )
        finally:
            broker.signal(signal.SIGCONT)
        assert await call.code() is not grpc.StatusCode.OK
        assert await broker.wait_exit() == 1
        await cluster.start("broker-0")
        await cluster.append("broker-0", JOURNAL, b"three\n")
        assert (await cluster.read("broker-0", JOURNAL)).startswith(b"one\n")


async def test_a_paused_replica_is_noticed_and_the_journal_goes_on_without_it(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster:
        await cluster.apply(journal_spec())
        before = await appended(cluster, "broker-0", b"one\n")
        primary, others, _ = await roles(cluster)
        paused = cluster.brokers[others[0]]
        paused.signal(signal.SIGSTOP)
        try:
            response = await cluster.append(primary, JOURNAL, b"two\n")
        finally:
            paused.signal(signal.SIGCONT)
        assert others[0] not in {member.suffix for member in response.header.route.members}
        assert (await cluster.read(primary, JOURNAL)).startswith(before)
        # Its lease had run out: it goes, and does not pretend.
        assert await paused.wait_exit() == 1


async def test_a_replica_whose_disk_hangs_fails_the_appends_that_meet_it_in_bounded_time(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """It answers pings and keeps its lease. Content that it does not take any more must not wedge the journal: neither
    the append that sends it, nor those that wait for that one.

    It is noticed within the time of a lease. Those behind it wait for one more try, of another pipeline.
    """
    lease_s = 10
    flags = ("--etcd.lease", f"{lease_s}s")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, flags=flags) as cluster:
        cluster.module = "tests.support.planted_broker hangs-when-told"
        await cluster.start("broker-0", "broker-1")
        await cluster.apply(journal_spec(replication=2))
        await cluster.append("broker-0", JOURNAL, b"one\n")
        primary, others = await cluster.route(JOURNAL)
        assert primary is not None
        (hung,) = others
        cluster.brokers[hung].signal(signal.SIGUSR1)
        chunks = [bytes(1 << 20)] * 32
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(_failure(cluster, primary, *chunks, within_s=lease_s))
            queued = tasks.create_task(_failure(cluster, primary, b"two\n", within_s=2 * lease_s))
        # A client whose own write fails first calls that INTERNAL, whatever it would have been told.
        assert large.result()[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)
        code, details = queued.result()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert f"replication to local/{hung} failed" in details


async def _failure(
    cluster: BrokerCluster, through: str, *chunks: bytes, within_s: float
) -> tuple[grpc.StatusCode, str]:
    """Why an append was not possible, as its client hears it. It may hear it before it has sent all, and if it hears
    nothing in time that is DEADLINE_EXCEEDED."""
    call = cluster.stub(through).Append(timeout=within_s)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(pb.AppendRequest(journal=JOURNAL))
        for chunk in (*chunks, b""):
            await call.write(pb.AppendRequest(content=chunk))
        await call.done_writing()
    return await call.code(), await call.details() or ""


async def test_a_primary_whose_own_disk_hangs_says_so_and_leaves_its_journals_to_others(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """It keeps its lease, and its peers would wait for it for ever."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix) as cluster:
        cluster.module = "tests.support.planted_broker hangs-when-told"
        await cluster.start(*NAMES[:3])
        await cluster.apply(journal_spec(replication=2))
        before = await appended(cluster, "broker-0", b"one\n")
        primary, (peer,), spare = await roles(cluster)
        hung = cluster.brokers[primary]
        hung.signal(signal.SIGUSR1)
        async with asyncio.TaskGroup() as tasks:
            failures = [tasks.create_task(_failure(cluster, primary, b"two\n", within_s=30)) for _ in range(3)]
        for code, details in (failure.result() for failure in failures):
            assert code is grpc.StatusCode.UNAVAILABLE
            assert f"the disk of broker local/{primary} hangs" in details
        # It goes by itself, with the reason in its log, and is no member any more by then.
        assert await hung.wait_exit() == 1
        assert f"the disk of broker local/{primary} hangs: it has not done within" in hung.log.read_text()
        hung.process = None
        assert not [key for key in shared_etcd.listing(prefix) if "/members/" in key and primary in key]
        after = await cluster.append(spare, JOURNAL, b"three\n")
        content = await cluster.read(peer, JOURNAL, block=True, end_offset=after.commit.end)
        assert content.startswith(before)
        assert content.endswith(b"three\n")


async def test_a_broker_whose_disk_hangs_ends_when_told_to(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """Threads that wait for the disk would keep the interpreter from exiting for as long as the disk hangs."""
    flags = ("--broker.drain-timeout", "1s")
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, flags=flags) as cluster:
        cluster.module = "tests.support.planted_broker hangs-when-told"
        (broker,) = await cluster.start("broker-0")
        await cluster.apply(journal_spec(replication=1))
        await cluster.append("broker-0", JOURNAL, b"one\n")
        broker.signal(signal.SIGUSR1)
        with pytest.raises(grpc.aio.AioRpcError):
            await cluster.try_append("broker-0", JOURNAL, b"two\n", timeout_s=2)
        broker.signal(signal.SIGTERM)
        assert await broker.wait_exit() == 1
        assert "threads still wait for the disk" in broker.tail()


async def test_a_journal_that_is_deleted_and_created_again_starts_anew(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES[:3]) as cluster:
        await cluster.apply(journal_spec(stores=()))
        await appended(cluster, "broker-0", b"old\n")
        await cluster.delete(JOURNAL)
        await cluster.apply(journal_spec(stores=()))
        response = await cluster.append("broker-0", JOURNAL, b"new\n")
        assert (response.commit.begin, response.commit.end) == (0, 4)
        for name in NAMES[:3]:
            assert await cluster.read(name, JOURNAL) == b"new\n"


async def test_appends_are_refused_when_the_store_knows_of_more_until_an_operator_resets(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES[:1]) as cluster:
        await cluster.apply(journal_spec(replication=1))
        await appended(cluster, "broker-0", b"one\n", b"two\n")
        fragments = cluster.fragments / JOURNAL

        await eventually(lambda: any(fragments.glob("0*.raw")), "the first fragment to be stored")
        broker = cluster.brokers["broker-0"]
        broker.kill()
        # With its spools it would prove where the journal ends.
        shutil.rmtree(broker.spool_dir)
        await cluster.start("broker-0")

        async def is_refused() -> bool:
            try:
                response = await cluster.try_append("broker-0", JOURNAL, b"three\n")
            except grpc.aio.AioRpcError:
                return False
            return response.status == pb.INDEX_HAS_GREATER_OFFSET

        await eventually(is_refused, "the append to be refused")
        reset = await cluster.try_append("broker-0", JOURNAL, offset=4)
        assert (reset.status, reset.commit.end) == (pb.OK, 4)
        assert (await cluster.try_append("broker-0", JOURNAL, b"three\n")).commit.begin == 4
