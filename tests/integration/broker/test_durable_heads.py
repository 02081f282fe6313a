"""Acknowledged bytes outlive their brokers: the schedules of durable heads that real processes can act out.

No operator does anything in these, but where it is said.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.gen import journal_pb2 as pb
from tests.support.append_load import AppendLoad
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.gazctl_process import Gazctl

THREE = ("broker-0", "broker-1", "broker-2")
FIVE = (*THREE, "broker-3", "broker-4")
JOURNALS = ("test/one", "test/two")


@asynccontextmanager
async def loaded(cluster: BrokerCluster, *journals: str) -> AsyncIterator[AppendLoad]:
    load = AppendLoad(cluster, journals or JOURNALS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        try:
            yield load
        finally:
            load.stop()


def kill(cluster: BrokerCluster, *names: str) -> None:
    """At the same instant, as far as there is such a thing."""
    processes = [cluster.brokers[name].process for name in names]
    for process in processes:
        assert process is not None
        process.send_signal(signal.SIGKILL)
    for name in names:
        cluster.brokers[name].kill()


async def kill_and_start_again(
    cluster: BrokerCluster, names: tuple[str, ...], rounds: int, *, lost: tuple[str, ...] = ()
) -> None:
    """What can be read is read before each death and after each start, from one broker after the other."""
    read = dict.fromkeys(JOURNALS, b"")

    async def look(load: AppendLoad, name: str) -> None:
        for journal, content in (await load.check(name)).items():
            known = read[journal]
            assert content[: len(known)] == known[: len(content)], "no offset has two contents"
            read[journal] = max(known, content, key=len)

    async with loaded(cluster) as load:
        for at in range(rounds):
            await load.wait_more()
            await look(load, names[at % len(names)])
            kill(cluster, *names)
            for name in lost[at : at + 1]:
                shutil.rmtree(cluster.brokers[name].spool_dir)
            await cluster.start(*names)
            await look(load, names[(at + 1) % len(names)])
        await load.wait_more()
    for name in names:
        await look(load, name)


@pytest.mark.parametrize("replication", [3, 2])
async def test_all_brokers_are_killed_at_once_and_start_again(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path, replication: int
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(*(journal_spec(name, replication) for name in JOURNALS))
        await kill_and_start_again(cluster, THREE, rounds=2)


async def test_all_brokers_are_killed_and_a_spool_directory_is_gone(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(*(journal_spec(name) for name in JOURNALS))
        await kill_and_start_again(cluster, THREE, rounds=2, lost=THREE[1:3])


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(), FIVE[:4]], ids=["", "one-directory-is-lost-each-time"])
async def test_five_brokers_are_killed_again_and_again(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *FIVE) as cluster:
        await cluster.apply(*(journal_spec(name) for name in JOURNALS))
        await kill_and_start_again(cluster, FIVE, rounds=4, lost=lost)


async def test_the_holders_return_and_the_journal_is_elsewhere(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """Whoever has the journal by then waits for them, and goes on where they say it ended."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *FIVE) as cluster:
        await cluster.apply(journal_spec("test/one", 2))
        load = AppendLoad(cluster, ("test/one",))
        before = [await cluster.append(FIVE[at], "test/one", b"before %d\n" % at) for at in range(5)]
        primary, others = await cluster.route("test/one")
        holders = (primary or "", *others)
        kill(cluster, *holders)
        rest = tuple(name for name in FIVE if name not in holders)

        async def is_refused() -> bool:
            try:
                answer = await cluster.try_append(rest[0], "test/one", b"too early\n")
            except Exception:
                return False
            assert answer.status != pb.OK, "a second history has begun"
            return answer.status == pb.INDEX_HAS_GREATER_OFFSET

        await eventually(is_refused, "others to have the journal")
        await cluster.start(*holders)
        after = await cluster.append(rest[0], "test/one", b"after\n")
        assert after.commit.begin == before[-1].commit.end
        content = await cluster.read(rest[1], "test/one", block=True, end_offset=after.commit.end)
        assert content == b"".join(b"before %d\n" % at for at in range(5)) + b"after\n"
        assert load.unknown == 0


async def test_a_paused_primary_neither_keeps_its_journal_from_others_nor_spoils_it(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *FIVE[:4]) as cluster:
        await cluster.apply(journal_spec("test/one"))
        async with loaded(cluster, "test/one") as load:
            await load.wait_more()
            primary, _ = await cluster.route("test/one")
            assert primary is not None
            paused = cluster.brokers[primary]
            paused.signal(signal.SIGSTOP)
            # Nobody is to ask the one that does not answer.
            process, paused.process = paused.process, None
            await load.wait_more()
            paused.process = process
            paused.signal(signal.SIGCONT)
            # It finds that it has lost its lease, and ends.
            assert await paused.wait_exit() == 1
            paused.process = None
            await cluster.start(primary)
            await load.wait_more()
        await load.check(primary)


async def test_a_journal_that_is_created_again_has_nothing_of_the_old_one(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(journal_spec("test/one"))
        # The first bytes of a journal go to the store as soon as there are others, be it by a pulse.
        old = (b"first of the old one\n", b"second of the old one\n")
        for content in old:
            await cluster.append(THREE[0], "test/one", content)
        stored = cluster.fragments / "test" / "one"
        await eventually(lambda: any(stored.glob("*.raw")), "the first bytes to be stored")
        kill(cluster, *THREE[1:])
        await eventually(lambda: _is_alone(cluster), "the others to be gone")
        await cluster.delete("test/one")
        # With them there, the new journal would be refused: they may be all that is left of it.
        shutil.rmtree(stored)
        await cluster.apply(journal_spec("test/one"))
        await cluster.start(*THREE[1:])
        response = await cluster.append(THREE[0], "test/one", b"of the new one\n")
        assert response.commit.begin == 0
        for name in THREE:
            assert await cluster.read(name, "test/one", block=True, end_offset=15) == b"of the new one\n"
        aside = cluster.fragments / ".deleted"

        def contents() -> set[bytes]:
            return {path.read_bytes() for path in aside.rglob("*.raw")}

        await eventually(lambda: old[1] in contents(), "the old bytes to be set aside")
        assert contents() <= set(old)


async def _is_alone(cluster: BrokerCluster) -> bool:
    primary, others = await cluster.route("test/one")
    return primary == THREE[0] and not others


async def test_the_last_brokers_stop_and_start_again(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> None:
    """There is nobody to hand over to: they record where journals end, upload, and go."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(*(journal_spec(name) for name in JOURNALS))
        async with loaded(cluster) as load:
            await load.wait_more()
        await stop_all(cluster)
        left = [path.name for name in THREE for path in cluster.brokers[name].spool_dir.glob("*.content")]
        assert not left, "everything is in the store"
        await cluster.start(*THREE)
        async with loaded(cluster) as again:
            await again.wait_more(5)
        await load.check(THREE[0])


async def test_the_last_brokers_stop_though_nothing_was_appended_since_they_started(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """Their epoch is closed where it began: so nobody needs their directories any more."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(journal_spec("test/one"))
        before = await cluster.append(THREE[0], "test/one", b"before\n")
        await stop_all(cluster)
        await cluster.start(*THREE)

        async def is_open() -> bool:
            return not (await cluster.head("test/one")).HasField("end")

        await eventually(is_open, "an epoch to be opened by a pulse")
        await stop_all(cluster)
        for name in THREE:
            shutil.rmtree(cluster.brokers[name].spool_dir)
        await cluster.start(*THREE)
        after = await cluster.append(THREE[0], "test/one", b"after\n")
        assert after.commit.begin == before.commit.end


async def stop_all(cluster: BrokerCluster) -> None:
    for name in THREE:
        cluster.brokers[name].signal(signal.SIGTERM)
    for name in THREE:
        assert await cluster.brokers[name].wait_exit() == 0
        cluster.brokers[name].process = None


async def test_a_holder_that_is_damaged_says_so_and_does_not_keep_an_operator_from_a_reset(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """It is there, and cannot tell where the journal ended: nobody can."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, THREE[0]) as cluster:
        await cluster.apply(journal_spec("test/one", 1))
        for line in (b"known\n", b"to be\n"):
            await cluster.append(THREE[0], "test/one", line)
        before = await cluster.append(THREE[0], "test/one", b"spoilt\n")
        kill(cluster, THREE[0])
        spoil(cluster, THREE[0])
        await cluster.start(THREE[0])

        async def is_refused() -> bool:
            answer = await cluster.try_append(THREE[0], "test/one", b"too early\n")
            assert answer.status != pb.OK
            return answer.status == pb.INDEX_HAS_GREATER_OFFSET

        await eventually(is_refused, "the journal to be refused")
        head = await cluster.head("test/one")
        assert [(held.member, held.damaged) for held in head.holders] == [("local/broker-0", True)]
        assert await cluster.metric(THREE[0], "gazette_damaged_copies") == 1
        assert await cluster.metric(THREE[0], "gazette_unproven_heads_total") >= 1
        assert "a spool is damaged" in cluster.brokers[THREE[0]].log.read_text()
        await cluster.append(THREE[0], "test/one", offset=before.commit.end)
        after = await cluster.append(THREE[0], "test/one", b"after\n")
        assert after.commit.begin == before.commit.end

        # What it knew to be acknowledged and is sound was stored, and it is done with the rest.
        async def is_read() -> bool:
            return await cluster.read(THREE[0], "test/one") == b"known\nto be\n"

        await eventually(is_read, "what was acknowledged and is sound to be readable")
        await eventually(lambda: damaged_count(cluster), "the damaged copy to be gone")


async def damaged_count(cluster: BrokerCluster) -> bool:
    return await cluster.metric(THREE[0], "gazette_damaged_copies") == 0


def spoil(cluster: BrokerCluster, name: str) -> None:
    """The last bytes of the last spool, of which there is more than one if the first was rolled."""
    last = max(cluster.brokers[name].spool_dir.glob("*.content"), key=lambda path: path.name)
    last.write_bytes(last.read_bytes()[:-1] + b"?")


async def test_a_journal_of_one_replica_waits_for_its_broker(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(journal_spec("test/one", 1))
        before = await cluster.append(THREE[0], "test/one", b"before\n")
        primary, _ = await cluster.route("test/one")
        assert primary is not None
        kill(cluster, primary)
        asked = next(name for name in THREE if name != primary)

        async def is_refused() -> bool:
            try:
                answer = await cluster.try_append(asked, "test/one", b"too early\n")
            except Exception:
                return False
            assert answer.status != pb.OK, "a second history has begun"
            return answer.status == pb.INDEX_HAS_GREATER_OFFSET

        await eventually(is_refused, "another to have the journal")
        await cluster.start(primary)
        after = await cluster.append(asked, "test/one", b"after\n")
        assert after.commit.begin == before.commit.end
        assert await cluster.read(asked, "test/one", block=True, end_offset=after.commit.end) == b"before\nafter\n"


async def test_gazctl_says_who_is_missing_and_lets_a_journal_go_on_without_them(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        gazctl = Gazctl(f"http://{cluster.brokers[THREE[0]].address}", tmp_path)
        listing = ("journals", "list", "-l", "name=test/one", "--heads")
        reset = ("journals", "reset-head", "-l", "name=test/one")
        await cluster.apply(journal_spec("test/one"))
        before = await cluster.append(THREE[0], "test/one", b"lost\n")
        assert " proven" in await asyncio.to_thread(gazctl.ok, *listing)
        refused = await asyncio.to_thread(gazctl, *reset, "--offset", "500")
        assert (refused.code, "its end is known: proven" in refused.stderr) == (1, True)
        kill(cluster, *THREE)
        for name in THREE:
            shutil.rmtree(cluster.brokers[name].spool_dir)
        await cluster.start(*THREE)

        async def is_unproven() -> bool:
            return "unproven: all 3 holders are missing" in await asyncio.to_thread(gazctl.ok, *listing)

        await eventually(is_unproven, "nobody to be there who can tell")
        told = await asyncio.to_thread(gazctl.ok, *reset, "--offset", "500")
        assert "appends go on at 500; nobody who holds its last bytes can tell where they end" in told
        assert told.count("(missing)") == 3
        after = await cluster.append(THREE[0], "test/one", b"after\n")
        assert after.commit.begin == 500 > before.commit.end
        followed = tmp_path / "followed"
        with followed.open("wb") as output:
            watching = gazctl.begin(*listing, "--watch", stdout=output)
        try:
            await eventually(lambda: " proven" in followed.read_text(), "heads to be shown")
            kill(cluster, *THREE[1:])
            await eventually(lambda: "(missing)" in followed.read_text(), "the change to be shown")
        finally:
            watching.kill()
            watching.wait()


async def test_an_operator_resets_a_journal_whose_brokers_are_lost(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *THREE) as cluster:
        await cluster.apply(journal_spec("test/one"))
        before = await cluster.append(THREE[0], "test/one", b"lost\n")
        kill(cluster, *THREE)
        for name in THREE:
            shutil.rmtree(cluster.brokers[name].spool_dir)
        await cluster.start(*THREE)

        async def is_refused() -> bool:
            answer = await cluster.try_append(THREE[0], "test/one", b"too early\n")
            assert answer.status != pb.OK, "it began anew in silence"
            return answer.status == pb.INDEX_HAS_GREATER_OFFSET

        await eventually(is_refused, "the journal to be refused")
        # An append with content is no operator's word.
        named = await cluster.try_append(THREE[0], "test/one", b"named\n", offset=before.commit.end)
        assert named.status == pb.INDEX_HAS_GREATER_OFFSET
        reset = await cluster.append(THREE[0], "test/one", offset=before.commit.end)
        assert reset.commit.end == before.commit.end
        after = await cluster.append(THREE[0], "test/one", b"after\n")
        assert after.commit.begin == before.commit.end


@pytest.mark.parametrize("names", [THREE[:1], THREE], ids=["one", "three"])
async def test_a_journal_without_stores_is_there_again_when_its_brokers_are(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Nothing else has its bytes."""
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *names) as cluster:
        await cluster.apply(journal_spec("test/one", len(names), stores=()))
        before = [await cluster.append("broker-0", "test/one", b"before %d\n" % at) for at in range(3)]
        content = await cluster.read("broker-0", "test/one")
        for _ in range(2):
            kill(cluster, *names)
            await cluster.start(*names)
            content += b"after\n"
            after = await cluster.append("broker-0", "test/one", b"after\n")
            assert after.commit.begin >= before[-1].commit.end
            for name in names:
                assert await cluster.read(name, "test/one", block=True, end_offset=after.commit.end) == content
