"""What etcd and the way to it can do to a mirror. Each time it ends equal to a listing, and nothing was told twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from allocator.etcd_binary import find_etcd
from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdHistoryError, EtcdUnavailableError
from allocator.keyspace import KeySpace
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from tests.support.etcd_proxy import EtcdProxy, etcd_proxy
from tests.support.etcd_server import EtcdServer, etcd_cluster, etcd_server
from tests.support.eventually import eventually
from tests.support.metrics import metric
from tests.support.mirror import RunningMirror, mirror_of, text

PATIENCE_S = 30.0
PREFIX = "/root"
# Impatient, so that a stall of a second will do.
TIMING = WatchTiming(delay_s=0.005, probe_s=0.1, stall_s=0.5, confirm_s=0.05)


@asynccontextmanager
async def client_of(*endpoints: str) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdConnections(endpoints), timeout_s=3) as client:
        yield client


async def catch_up(mirror: RunningMirror, server: EtcdServer, mark: str) -> None:
    """Write once more, and wait until that is in the mirror."""
    revision = await asyncio.to_thread(server.put, f"{PREFIX}/mark", mark)
    await mirror.watch.wait_revision(revision, PATIENCE_S)
    mirror.check(server)


async def churn(client: EtcdClient, stop: asyncio.Event) -> int:
    """Put and delete without end, through whatever happens; how many of it etcd acknowledged."""
    done = at = 0
    while not stop.is_set():
        at += 1
        key = f"{PREFIX}/churn/{at % 10}"
        try:
            await (client.delete(key) if at % 4 == 0 else client.put(key, str(at).encode()))
            done += 1
        except EtcdUnavailableError:
            continue
    return done


async def some_updates(mirror: RunningMirror) -> None:
    seen = len(mirror.updates)
    await mirror.watch.wait_until(lambda _: len(mirror.updates) > seen + 3, PATIENCE_S)


async def test_an_etcd_that_is_killed_and_comes_back_with_its_data(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        async with client_of(server.endpoint) as client, mirror_of(client, PREFIX, TIMING) as mirror:
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(churn(client, stop))
                for _ in range(2):
                    await some_updates(mirror)
                    server.kill()
                    await asyncio.to_thread(server.start)
                stop.set()
            assert writing.result() > 0
            await catch_up(mirror, server, "end")
            assert metric("gazette_keyspace_silence_seconds") < PATIENCE_S


async def test_a_compaction_while_the_watch_was_cut_off(tmp_path: Path) -> None:
    """In its absence keys are put, deleted and recreated, and etcd forgets how it came to be."""
    with etcd_server(tmp_path) as server:
        for key in ("kept", "changed", "deleted", "recreated", "spoilt"):
            server.put(f"{PREFIX}/{key}", "1")
        async with client_of(server.endpoint) as client, mirror_of(client, PREFIX, TIMING) as mirror:
            reloads = metric("gazette_keyspace_reloads_total")
            port = server.client_port
            server.kill()
            # Elsewhere, so that the mirror does not find it before it is ready.
            server.client_port = server.peer_port + 1000
            await asyncio.to_thread(server.start)
            server.put(f"{PREFIX}/changed", "2")
            server.delete(f"{PREFIX}/deleted")
            server.delete(f"{PREFIX}/recreated")
            server.put(f"{PREFIX}/recreated", "2")
            server.put(f"{PREFIX}/new", "1")
            last = server.delete(f"{PREFIX}/new")
            server.put("/elsewhere", "1")
            server.compact()
            server.kill()
            server.client_port = port
            await asyncio.to_thread(server.start)
            # The very last change was a delete, of which a listing does not tell.
            view = await mirror.watch.wait_revision(last, PATIENCE_S)
            assert metric("gazette_keyspace_reloads_total") == reloads + 1
            assert view.revision < last < view.through
            mirror.check(server)
            (update,) = mirror.updates[1:]
            changed = {change.key for change in update.changes}
            assert changed == {f"{PREFIX}/{key}" for key in ("changed", "deleted", "recreated")}
            await catch_up(mirror, server, "end")
            assert metric("gazette_keyspace_reloads_total") == reloads + 1


async def test_a_revision_that_is_gone_is_loaded_afresh(tmp_path: Path) -> None:
    """That of the announcement, if etcd compacts just then. What goes out in headers is still one of the prefix."""
    with etcd_server(tmp_path) as server:
        announced = server.put(f"{PREFIX}/member", "1")
        latest = server.put(f"{PREFIX}/a", "2")
        server.delete(f"{PREFIX}/member")
        server.put("/elsewhere", "1")
        server.compact()
        async with (
            client_of(server.endpoint) as client,
            mirror_of(client, PREFIX, TIMING, load_at=announced) as mirror,
        ):
            view = mirror.watch.view
            assert [(kv.key, kv.value) for kv in view.key_values] == [(f"{PREFIX}/a", "2")]
            assert (view.revision, view.through) == (latest, server.revision())
            await catch_up(mirror, server, "end")
        server.compact()
        async with client_of(server.endpoint) as client:
            watch = KeySpaceWatch(client, KeySpace("/none", text), timing=TIMING)
            view = await watch.load(announced)
            assert (view.revision, view.through) == (announced, server.revision())


async def test_progress_saves_a_quiet_watch_from_a_compaction(tmp_path: Path) -> None:
    """Much happens elsewhere and is compacted away. What etcd says on its own shows that none of it was missed."""
    new_name = find_etcd().version >= (3, 6, 0)
    flag = "--watch-progress-notify-interval" if new_name else "--experimental-watch-progress-notify-interval"
    with etcd_server(tmp_path, flag, "100ms") as server:
        server.put(f"{PREFIX}/a", "1")
        async with client_of(server.endpoint) as client, mirror_of(client, PREFIX, TIMING) as mirror:
            reloads = metric("gazette_keyspace_reloads_total")
            before = mirror.watch.view
            last = [server.put("/elsewhere", str(at)) for at in range(5)][-1]
            view = await mirror.watch.wait_revision(last, PATIENCE_S)
            # Peers are told of a revision that they have, too.
            assert view.header == before.header
            server.compact()
            server.kill()
            await asyncio.to_thread(server.start)
            await catch_up(mirror, server, "end")
            assert metric("gazette_keyspace_reloads_total") == reloads


async def test_an_etcd_that_stands_still_is_noticed_and_taken_up_again(tmp_path: Path) -> None:
    await stall(tmp_path, TIMING, metric("gazette_keyspace_watches_resumed_total") + 1)


@pytest.mark.slow
async def test_an_etcd_that_stands_still_for_half_a_minute(tmp_path: Path) -> None:
    """With the timing of production."""
    await stall(tmp_path, WatchTiming(), metric("gazette_keyspace_watches_resumed_total") + 1, stall_s=30)


async def stall(folder: Path, timing: WatchTiming, resumed: float, stall_s: float = 0) -> None:
    with etcd_server(folder) as server:
        server.put(f"{PREFIX}/a", "1")
        async with client_of(server.endpoint) as client, mirror_of(client, PREFIX, timing) as mirror:
            await catch_up(mirror, server, "begin")
            begun_s = asyncio.get_running_loop().time()
            server.pause()
            try:
                async with asyncio.timeout(60):
                    await eventually(
                        lambda: metric("gazette_keyspace_watches_resumed_total") >= resumed, "watches to be resumed", 60
                    )
                    await asyncio.sleep(stall_s - (asyncio.get_running_loop().time() - begun_s))
            finally:
                server.resume()
            await catch_up(mirror, server, "end")


@pytest.mark.parametrize("harm", ["wiped", "another cluster"])
async def test_an_etcd_without_its_past_is_not_believed(tmp_path: Path, harm: str) -> None:
    """Its keys are gone. To take that for news would be to drop every journal."""
    with etcd_server(tmp_path) as server:
        for at in range(10):
            server.put(f"{PREFIX}/{at}", "1")
        async with client_of(server.endpoint) as client:
            watch = KeySpaceWatch(client, KeySpace(PREFIX, text), timing=TIMING)
            before = await watch.load()
            server.discard()
            if harm == "another cluster":
                server.flags = (*server.flags, "--initial-cluster-token", "other")
            await asyncio.to_thread(server.start)
            with pytest.raises(EtcdHistoryError, match=r"was at|and it was"):
                await asyncio.wait_for(watch.run(), PATIENCE_S)
            assert watch.view is before


# The way to etcd.


@asynccontextmanager
async def proxied(server: EtcdServer) -> AsyncIterator[tuple[EtcdProxy, EtcdClient]]:
    async with etcd_proxy(server.endpoint) as proxy, client_of(proxy.endpoint) as client:
        yield proxy, client


async def test_a_watch_that_is_closed_in_silence_is_resumed(shared_etcd: EtcdServer) -> None:
    """Without an error, and for no reason: the leader of a Gazette cluster once stayed blind for ever."""
    async with proxied(shared_etcd) as (proxy, client), mirror_of(client, PREFIX, TIMING) as mirror:
        for at in range(3):
            await catch_up(mirror, shared_etcd, str(at))
            streams = proxy.streams
            proxy.end_streams_in_silence()
            await eventually(lambda: proxy.streams > streams, "another stream")  # noqa: B023
        await catch_up(mirror, shared_etcd, "end")


async def test_a_watch_that_says_nothing_is_given_up(shared_etcd: EtcdServer) -> None:
    """The connection is fine and every other call is answered."""
    async with proxied(shared_etcd) as (proxy, client), mirror_of(client, PREFIX, TIMING) as mirror:
        await catch_up(mirror, shared_etcd, "begin")
        streams = proxy.streams
        proxy.flowing.clear()
        shared_etcd.put(f"{PREFIX}/unheard", "1")
        await eventually(lambda: proxy.streams > streams, "another stream")
        proxy.flowing.set()
        await catch_up(mirror, shared_etcd, "end")


async def test_answers_that_come_twice_count_once(shared_etcd: EtcdServer) -> None:
    async with proxied(shared_etcd) as (proxy, client):
        proxy.is_stuttering = True
        async with mirror_of(client, PREFIX, WatchTiming(delay_s=0)) as mirror:
            for at in range(10):
                shared_etcd.put(f"{PREFIX}/{at % 3}", str(at))
                if at % 2:
                    shared_etcd.delete(f"{PREFIX}/{at % 3}")
            await catch_up(mirror, shared_etcd, "end")
            assert len(mirror.updates) <= 1 + 15 + 1


async def test_answers_from_the_past_are_asked_for_again(tmp_path: Path) -> None:
    """An etcd before 3.5.28 may give some after it was paused. Nothing was wiped, so nothing ends."""
    with etcd_server(tmp_path) as server:
        server.put(f"{PREFIX}/a", "1")
        timing = replace(TIMING, confirm_s=1.0)
        async with proxied(server) as (proxy, client), mirror_of(client, PREFIX, timing) as mirror:
            await catch_up(mirror, server, "begin")
            reloads = metric("gazette_keyspace_reloads_total")
            # Both when it looks whether this is the etcd that it was, and when it lists everything.
            proxy.answer_from_the_past(2)
            # A watch that began before the compaction would have no need to list anything.
            proxy.opening.clear()
            proxy.end_streams_in_silence()
            await eventually(lambda: 1 in proxy.repeats.values(), "a repeat")
            server.put(f"{PREFIX}/a", "2")
            server.put(f"{PREFIX}/a", "3")
            server.compact()
            proxy.opening.set()
            await eventually(lambda: not any(proxy.repeats.values()), "all repeats")
            await eventually(lambda: metric("gazette_keyspace_reloads_total") > reloads, "a reload")
            mirror.check(server)
            await catch_up(mirror, server, "end")


# Three nodes.


async def test_the_leader_of_etcd_is_killed_and_comes_back(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as cluster:
        leader = cluster.leader()
        others = [member for member in cluster.members if member is not leader]
        # The watch is at the leader.
        endpoints = [leader.endpoint, *(member.endpoint for member in others)]
        async with client_of(*endpoints) as client, client_of(*endpoints) as writer:
            lease = await client.grant_lease(10)
            async with mirror_of(client, PREFIX, TIMING) as mirror:
                stop = asyncio.Event()
                async with asyncio.TaskGroup() as tasks:
                    writing = tasks.create_task(churn(writer, stop))
                    await some_updates(mirror)
                    leader.kill()
                    await some_updates(mirror)
                    await client.keep_alive(lease.lease_id, PATIENCE_S)
                    await asyncio.to_thread(leader.start)
                    stop.set()
                assert writing.result() > 0
                await catch_up(mirror, others[0], "end")
                mirror.check(others[1])
                if not cluster.is_of_one_mind(PREFIX):
                    pytest.skip("this etcd lost transactions of the member that was killed (etcd-io/etcd#13766)")
                mirror.check(leader)


async def test_the_member_that_the_watch_is_at_stands_still(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as cluster:
        leader = cluster.leader()
        first, other = (member for member in cluster.members if member is not leader)
        endpoints = [first.endpoint, other.endpoint, leader.endpoint]
        async with client_of(*endpoints) as client, mirror_of(client, PREFIX, TIMING) as mirror:
            await catch_up(mirror, leader, "begin")
            first.pause()
            # Writes go on, and arrive by another member.
            await catch_up(mirror, leader, "meanwhile")
            first.resume()
            await catch_up(mirror, leader, "end")
