from __future__ import annotations

import asyncio
import itertools
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator import etcd_client
from allocator.etcd_client import EtcdClient, prefix_end
from allocator.etcd_connections import EtcdConnections, EtcdTls, EtcdUser
from allocator.etcd_errors import (
    CompactedError,
    EtcdDeniedError,
    EtcdError,
    EtcdFullError,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseNotFoundError,
)
from allocator.key_event import DeletedKey, StoredKey, WatchEvents, WatchProgress
from allocator.transaction import KEEP_LEASE, Compare, Delete, Put, Target, Transaction
from tests.support.certificates import Certificates
from tests.support.etcd_proxy import etcd_proxy
from tests.support.etcd_server import EtcdCluster, EtcdServer, etcd_cluster, etcd_server

PASSWORD = "correct horse battery staple"


async def test_what_is_put_can_be_read_and_deleted(etcd: EtcdClient, prefix: str) -> None:
    put = await etcd.put(f"{prefix}/a", b"1")
    found = await etcd.get(f"{prefix}/a")
    assert found == StoredKey(f"{prefix}/a".encode(), b"1", put.revision, put.revision, 1, 0)
    deleted = await etcd.delete(f"{prefix}/a")
    assert deleted.revision == put.revision + 1
    assert await etcd.get(f"{prefix}/a") is None
    assert (await etcd.header(prefix)).revision == deleted.revision


async def test_a_listing_is_of_one_revision_however_many_pages_it_takes(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_client, "PAGE_KEYS", 3)
    puts = tuple(Put(f"{prefix}/{at:03}", b"old") for at in range(20))
    first = (await etcd.commit(Transaction((), puts))).header.revision
    for at in range(0, 20, 2):
        await etcd.put(f"{prefix}/{at:03}", b"new")
    await etcd.delete(f"{prefix}/001")
    before = await etcd.list_prefix(prefix, first)
    assert before.header.revision == first
    assert [(stored.key, stored.raw) for stored in before.keys] == [(put.key.encode(), b"old") for put in puts]
    now = await etcd.list_prefix(prefix)
    assert now.header.revision == first + 11
    assert {stored.key.decode(): (stored.raw, stored.mod_revision) for stored in now.keys} == shared_etcd.listing(
        prefix
    )


async def test_a_listing_without_values_has_everything_else(etcd: EtcdClient, prefix: str) -> None:
    header = await etcd.put(f"{prefix}/a", b"1")
    (stored,) = (await etcd.list_prefix(prefix, keys_only=True)).keys
    assert stored == StoredKey(f"{prefix}/a".encode(), b"", header.revision, header.revision, 1, 0)


async def test_pages_shrink_until_they_fit_into_a_message(etcd: EtcdClient, prefix: str) -> None:
    big = b"x" * 1_400_000
    for at in range(25):
        await etcd.put(f"{prefix}/{at:02}", big)
    listing = await etcd.list_prefix(prefix)
    assert [len(stored.raw) for stored in listing.keys] == [len(big)] * 25
    for stored in listing.keys:
        await etcd.delete(stored.key.decode())


@pytest.mark.parametrize("target", Target)
async def test_a_transaction_happens_only_if_every_comparison_holds(
    etcd: EtcdClient, prefix: str, target: Target
) -> None:
    key, other = f"{prefix}/a", f"{prefix}/b"
    absent = Compare(key, target, 0)
    first = await etcd.commit(Transaction((absent,), (Put(key, b"1"), Put(other, b"2"))))
    assert first.succeeded
    again = await etcd.commit(Transaction((absent,), (Put(key, b"never"),)))
    assert not again.succeeded
    assert again.header.revision == first.header.revision
    stored = await etcd.get(key)
    assert stored is not None
    exact = Compare(key, target, getattr(stored, target.value))
    third = await etcd.commit(Transaction((exact, Compare(other, Target.MOD, stored.mod_revision)), (Delete(key),)))
    assert third.succeeded
    assert await etcd.get(key) is None


async def test_a_put_can_keep_or_drop_the_lease_of_a_key(etcd: EtcdClient, prefix: str) -> None:
    key, lease = f"{prefix}/a", await etcd.grant_lease(60)
    await etcd.commit(Transaction((), (Put(key, b"1", lease.lease_id),)))
    await etcd.commit(Transaction((), (Put(key, b"2", KEEP_LEASE),)))
    kept = await etcd.get(key)
    assert kept is not None
    assert kept.lease == lease.lease_id
    await etcd.put(key, b"3")
    dropped = await etcd.get(key)
    assert dropped is not None
    assert dropped.lease == 0
    await etcd.revoke_lease(lease.lease_id)
    assert await etcd.get(key) is not None


async def test_a_request_that_can_never_succeed_is_refused(etcd: EtcdClient, prefix: str) -> None:
    with pytest.raises(EtcdRefusedError, match="key not found"):
        await etcd.commit(Transaction((), (Put(f"{prefix}/none", b"", KEEP_LEASE),)))
    with pytest.raises(EtcdRefusedError, match="too many operations"):
        await etcd.commit(Transaction((), tuple(Put(f"{prefix}/{at}", b"") for at in range(129))))
    with pytest.raises(EtcdRefusedError, match="future revision"):
        await etcd.list_prefix(prefix, 10**9)


async def test_a_revoked_lease_takes_its_keys_along_in_one_revision(etcd: EtcdClient, prefix: str) -> None:
    lease = await etcd.grant_lease(60)
    assert lease.ttl_s == 60
    assert await etcd.keep_alive(lease.lease_id, 5) == 60
    keys = [f"{prefix}/{at}" for at in range(5)]
    begun = (await etcd.commit(Transaction((), tuple(Put(key, b"", lease.lease_id) for key in keys)))).header.revision
    async with etcd.watch(prefix, begun + 1) as stream:
        await etcd.revoke_lease(lease.lease_id)
        answer = await stream.read(5)
        assert isinstance(answer, WatchEvents)
        assert sorted(answer.events) == [DeletedKey(key.encode(), begun + 1) for key in keys]
    for gone in (etcd.keep_alive(lease.lease_id, 5), etcd.revoke_lease(lease.lease_id)):
        with pytest.raises(LeaseNotFoundError):
            await gone
    with pytest.raises(LeaseNotFoundError):
        await etcd.put(keys[0], b"", lease.lease_id)


async def test_a_watch_tells_history_and_goes_on(etcd: EtcdClient, prefix: str) -> None:
    first = await etcd.put(f"{prefix}/a", b"1")
    await etcd.put(f"{prefix}/a", b"2")
    async with etcd.watch(prefix, first.revision) as stream:
        answer = await stream.read(5)
        assert isinstance(answer, WatchEvents)
        assert [event.mod_revision for event in answer.events] == [first.revision, first.revision + 1]
        await etcd.delete(f"{prefix}/a")
        assert await stream.read(5) == WatchEvents(
            first._replace(revision=first.revision + 2), [DeletedKey(f"{prefix}/a".encode(), first.revision + 2)]
        )
        await stream.request_progress()
        assert await stream.read(5) == WatchProgress(first._replace(revision=first.revision + 2), is_complete=False)


async def test_a_watch_puts_the_parts_of_a_large_answer_together(etcd: EtcdClient, prefix: str) -> None:
    begun = (await etcd.header(prefix)).revision
    for at in range(8):
        await etcd.put(f"{prefix}/{at}", b"x" * 1_000_000)
    async with etcd.watch(prefix, begun + 1) as stream:
        answer = await stream.read(10)
        assert isinstance(answer, WatchEvents)
        assert [event.mod_revision for event in answer.events] == list(range(begun + 1, begun + 9))


async def test_silence_ends_the_wait_for_events(etcd: EtcdClient, prefix: str) -> None:
    begun = (await etcd.header(prefix)).revision
    async with etcd.watch(prefix, begun + 1) as stream:
        with pytest.raises(EtcdUnavailableError, match="nothing heard"):
            await stream.read(0.05)


async def test_a_status_tells_of_the_member(etcd: EtcdClient, shared_etcd: EtcdServer) -> None:
    status = await etcd.status()
    said = shared_etcd.call("maintenance/status")
    assert status.version == said["version"]
    assert str(status.leader_id) == said["leader"]
    assert str(status.header.cluster_id) == said["header"]["cluster_id"]
    assert status.db_bytes > 0
    assert status.errors == ()


@pytest.mark.parametrize("prefix", [b"", b"/a", b"a\xff", b"\xff\xff"])
def test_a_prefix_ends_where_other_keys_begin(prefix: bytes) -> None:
    end = prefix_end(prefix)
    assert end == b"\0" or prefix + b"\xff" * 9 < end
    assert end == b"\0" or end[:-1] + bytes([end[-1] - 1]) == prefix.rstrip(b"\xff")


@pytest.mark.parametrize("endpoint", ["ftp://host:1", "http://", "http://host:1/path", "unix://"])
async def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        EtcdConnections([endpoint])


async def test_an_etcd_can_be_reached_by_a_socket(tmp_path: Path) -> None:
    """The flag of Go brokers takes such URLs too."""
    with etcd_server(tmp_path, socket_name="etcd:0"):
        async with EtcdClient(EtcdConnections([f"unix://{tmp_path}/etcd:0"])) as client:
            assert (await client.put("/a", b"1")).revision == 2


# Servers of their own, since they are harmed or have rules.


async def test_a_compacted_revision_is_gone(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint])) as client:
            first = await client.put("/a", b"1")
            await client.put("/a", b"2")
            await client.put("/a", b"3")
            server.compact()
            with pytest.raises(CompactedError):
                await client.list_prefix("/", first.revision)
            with pytest.raises(CompactedError, match="the oldest is 4"):
                async with client.watch("/", first.revision) as stream:
                    await stream.read(5)


async def test_an_etcd_that_is_out_of_space_says_what_to_do(tmp_path: Path) -> None:
    with etcd_server(tmp_path, "--quota-backend-bytes", "65536") as server:
        async with EtcdClient(EtcdConnections([server.endpoint])) as client:
            with pytest.raises(EtcdFullError, match="raise its quota") as caught:
                await put_many(client)
            assert not caught.value.maybe_applied
            with pytest.raises(EtcdFullError, match="raise its quota"):
                await client.grant_lease(10)
            # What is there can still be read.
            assert await client.get("/0") is not None


async def put_many(client: EtcdClient) -> None:
    """etcd looks at its size only now and then."""
    async with asyncio.timeout(20):
        for at in itertools.count():
            await client.put(f"/{at % 10}", b"x" * 10_000)


async def test_an_etcd_that_is_down_is_waited_for(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=20) as client:
            header = await client.put("/a", b"1")
            server.kill()
            async with asyncio.TaskGroup() as tasks:
                put = tasks.create_task(client.put("/a", b"2"))
                await asyncio.to_thread(server.start)
            assert put.result().revision == header.revision + 1


async def test_an_etcd_that_stays_down_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        server.kill()
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=0.5) as client:
            with pytest.raises(EtcdUnavailableError) as caught:
                async with asyncio.timeout(60):
                    await client.put("/a", b"1")
            assert not caught.value.maybe_applied


async def test_a_write_that_was_not_answered_is_never_repeated_in_silence(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        async with EtcdClient(EtcdConnections([server.endpoint]), timeout_s=1) as client:
            await client.put("/a", b"1")
            server.pause()
            with pytest.raises(EtcdUnavailableError) as caught:
                await client.put("/a", b"2")
            assert caught.value.maybe_applied
            server.resume()
            # Once if at all.
            found = await client.get("/a")
            assert found is not None
            assert found.version <= 2


async def test_a_write_whose_answer_was_lost_happens_once(shared_etcd: EtcdServer, prefix: str) -> None:
    async with (
        etcd_proxy(shared_etcd.endpoint) as proxy,
        EtcdClient(EtcdConnections([proxy.endpoint])) as client,
    ):
        proxy.lost_answers.add("/etcdserverpb.KV/Put")
        with pytest.raises(EtcdUnavailableError, match="the answer was lost") as caught:
            await client.put(f"{prefix}/a", b"1")
        assert caught.value.maybe_applied
        found = await client.get(f"{prefix}/a")
        assert found is not None
        assert found.version == 1
        # A read may be repeated, and is.
        proxy.lost_answers.add("/etcdserverpb.KV/Range")
        assert await client.get(f"{prefix}/a") == found


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("three")) as cluster:
        yield cluster


async def test_calls_move_on_to_an_endpoint_that_works(three_nodes: EtcdCluster) -> None:
    endpoints = ["http://127.0.0.1:1", *three_nodes.endpoints]
    async with EtcdClient(EtcdConnections(endpoints)) as client:
        header = await client.put("/a", b"1")
        assert (await client.delete("/a")).revision == header.revision + 1


async def test_a_member_that_has_lost_the_others_is_left(three_nodes: EtcdCluster) -> None:
    """It could still be reached, but it says that it has no leader instead of keeping calls until their deadline."""
    alone, *others = three_nodes.members
    async with EtcdClient(EtcdConnections([alone.endpoint]), timeout_s=2) as client:
        begun = (await client.put("/a", b"1")).revision
        async with client.watch("/", begun + 1) as stream:
            for member in others:
                member.pause()
            with pytest.raises(EtcdUnavailableError, match="no leader"):
                await stream.read(20)
        with pytest.raises(EtcdUnavailableError, match="no leader") as caught:
            await client.put("/a", b"2")
        assert not caught.value.maybe_applied
        for member in others:
            member.resume()
        await wait_for_leader(client)


async def wait_for_leader(client: EtcdClient) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.header("/")
            except EtcdUnavailableError:
                continue
            return


# TLS and users.


async def test_tls_with_a_certificate_of_our_own(tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    with etcd_server(tmp_path, certificates=certificates) as server:
        tls = EtcdTls(certificates.ca, certificates.certificate, certificates.key)
        assert "PRIVATE" not in repr(tls)
        async with EtcdClient(EtcdConnections([server.endpoint], tls=tls)) as client:
            assert (await client.put("/a", b"1")).revision == 2
        for untrusted in (EtcdTls(), EtcdTls(certificates.ca)):
            async with EtcdClient(EtcdConnections([server.endpoint], tls=untrusted), timeout_s=1) as client:
                with pytest.raises(EtcdUnavailableError):
                    await client.put("/a", b"2")


def enable_users(server: EtcdServer) -> None:
    """A root, and a broker that may do as it likes under /mine."""
    for name, role in (("root", "root"), ("broker", "mine")):
        server.call("auth/user/add", name=name, password=PASSWORD)
        server.call("auth/role/add", name=role)
        server.call("auth/user/grant", user=name, role=role)
    key, end = "L21pbmU=", "L21pbmY="
    server.call("auth/role/grant", name="mine", perm={"permType": "READWRITE", "key": key, "range_end": end})
    server.call("auth/enable")


def invalidate_tokens(server: EtcdServer) -> None:
    """Those of a user go with a change of its password, be it to the same."""
    root = server.call("auth/authenticate", name="root", password=PASSWORD)["token"]
    server.call("auth/user/changepw", root, name="broker", password=PASSWORD)


def secrets_in(error: BaseException) -> list[str]:
    text = "".join(traceback.format_exception(error)) + repr(vars(error))
    return [secret for secret in (PASSWORD,) if secret in text]


async def test_users_tokens_and_their_renewal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    user = EtcdUser("broker", PASSWORD)
    assert PASSWORD not in repr(user)
    errors: list[EtcdError] = []
    with etcd_server(tmp_path) as server:
        connections = EtcdConnections([server.endpoint], user=user)
        async with EtcdClient(connections) as client:
            # Before there are users, a name does no harm.
            begun = (await client.put("/mine/a", b"1")).revision
            enable_users(server)
            assert (await client.put("/mine/a", b"2")).revision == begun + 1
            with pytest.raises(EtcdDeniedError) as denied:
                await client.put("/yours", b"1")
            errors.append(denied.value)
            with pytest.raises(EtcdDeniedError) as denied:
                async with client.watch("/yours", 1):
                    raise AssertionError("unreachable")
            errors.append(denied.value)
            invalidate_tokens(server)
            assert (await client.put("/mine/a", b"3")).revision == begun + 2
            invalidate_tokens(server)
            async with client.watch("/mine", begun + 1) as stream:
                answer = await stream.read(5)
                assert isinstance(answer, WatchEvents)
                assert len(answer.events) == 2
            invalidate_tokens(server)
            lease = await client.grant_lease(10)
            assert await client.keep_alive(lease.lease_id, 5) == 10
        async with EtcdClient(EtcdConnections([server.endpoint], user=EtcdUser("broker", PASSWORD + "!"))) as client:
            with pytest.raises(EtcdDeniedError, match="invalid user ID or password") as denied:
                await client.get("/mine/a")
            errors.append(denied.value)
        async with EtcdClient(EtcdConnections([server.endpoint])) as client:
            with pytest.raises(EtcdDeniedError, match="user name is empty") as denied:
                await client.get("/mine/a")
            errors.append(denied.value)
    assert [secrets_in(error) for error in errors] == [[]] * 4
    assert PASSWORD not in caplog.text


def test_no_name_of_etcds_own_is_registered() -> None:
    """Another library that brings them could otherwise not be loaded."""
    from google.protobuf import descriptor_pool

    pool: Any = descriptor_pool.Default()
    for name in ("etcdserverpb.RangeRequest", "mvccpb.KeyValue", "authpb.User"):
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName(name)
