"""Brokers that die while a client appends and reads: nothing is lost, and nothing is there twice but by request."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest

from broker.client.client import Client
from broker.client.journal_change import ANY_REVISION, Upsert
from broker.client.outcome import REFUSED_MARK, UnknownOutcomeError
from broker.client.retry import NEVER, AtLeastOnce, Retry
from broker.client.settings import ClientSettings
from protocol.auth import Capability, Claims, Keys
from protocol.errors import UnauthenticatedError, UnavailableError
from protocol.rpc.tls import PeerTls
from protocol.selector import LabelSelector
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.certificates import Certificates
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually

JOURNAL = "client/faults"
NAMES = ("broker-0", "broker-1", "broker-2", "broker-3")
LONG = 60.0
SLOW = pytest.mark.slow
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="


@asynccontextmanager
async def client_of(cluster: BrokerCluster, retry: Retry | AtLeastOnce) -> AsyncIterator[Client]:
    addresses = [broker.address for broker in cluster.brokers.values()]
    settings = ClientSettings.of(*addresses, retry=retry, file_root=cluster.fragments)
    async with Client(settings=settings) as client:
        yield client


class Writer:
    """Appends numbered lines until it is told to stop, and keeps account of what became of each."""

    def __init__(self, client: Client, name: str) -> None:
        self.done: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.is_stopped = False
        self._client = client
        self._name = name

    async def run(self) -> None:
        at = 0
        while not self.is_stopped:
            line = b"%s-%05d" % (self._name.encode(), at)
            at += 1
            try:
                appended = await self._client.append(JOURNAL, line + b"\n")
                assert appended.end - appended.begin == len(line) + 1
                self.done.add(line)
            except UnknownOutcomeError:
                self.unknown.add(line)


@pytest.mark.parametrize("role", ["primary", "replica"])
@pytest.mark.parametrize(
    "retry",
    [pytest.param(Retry(LONG), id="never twice"), pytest.param(AtLeastOnce(LONG), id="at least once", marks=SLOW)],
)
async def test_a_killed_broker_loses_nothing(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path, retry: Retry | AtLeastOnce, role: str
) -> None:
    async with (
        broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES) as cluster,
        client_of(cluster, retry) as client,
    ):
        await client.apply(Upsert(journal_spec(JOURNAL)))
        writers = [Writer(client, name) for name in ("a", "b", "c")]
        tailed: list[bytes] = []

        async def tail() -> None:
            async with client.read_lines(JOURNAL, retry=Retry(LONG)) as lines:
                async for line in lines:
                    tailed.append(line)

        async with asyncio.TaskGroup() as tasks:
            tailing = tasks.create_task(tail())
            for writer in writers:
                tasks.create_task(writer.run())
            await eventually(lambda: all(len(writer.done) > 20 for writer in writers), "appends")
            primary, others = await cluster.route(JOURNAL)
            assert primary is not None
            victim = primary if role == "primary" else sorted(others)[0]
            cluster.brokers[victim].kill()
            before = [len(writer.done) for writer in writers]
            await eventually(
                lambda: all(len(writer.done) > count + 20 for writer, count in zip(writers, before, strict=True)),
                "appends after the kill",
            )
            for writer in writers:
                writer.is_stopped = True
            await eventually(
                lambda: set(tailed) >= set().union(*(writer.done for writer in writers)), "the reader to have all"
            )
            tailing.cancel()
        lines = [line async for line in client.read_lines(JOURNAL, block=False)]
    counts = {line: lines.count(line) for line in set(lines)}
    done, unknown = set().union(*(w.done for w in writers)), set().union(*(w.unknown for w in writers))
    assert done <= set(lines), "what was acknowledged is there"
    assert set(lines) <= done | unknown
    # The reader that was there all along has seen the same bytes, each of them once.
    assert tailed == lines[: len(tailed)]
    if isinstance(retry, Retry):
        assert all(count == 1 for count in counts.values()), "nothing was written twice"
        # One append a writer was under way, and perhaps another through the broker that did not know yet.
        assert len(unknown) <= 2 * len(writers)
    else:
        assert not unknown
    for name in ("a", "b", "c"):
        own = [line for line in lines if line.startswith(name.encode())]
        assert own == sorted(own), "a writer's lines are in its order"


async def test_an_append_for_which_there_is_no_room_is_known_not_to_be_done(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    """All of it is sent before the broker says so. It says so through another broker, too, and over HTTP."""
    flags, module = ("--broker.spool-budget", "1000"), "tests.support.planted_broker waits-little-for-room"
    async with (
        broker_cluster(tmp_path, shared_etcd.endpoint, prefix, *NAMES[:2], flags=flags, module=module) as cluster,
        client_of(cluster, NEVER) as client,
    ):
        await cluster.apply(journal_spec(JOURNAL, 1))
        await cluster.append(NAMES[0], JOURNAL, bytes(2000))
        for _ in range(2):
            with pytest.raises(UnavailableError, match="the budget is 1000"):
                await client.append(JOURNAL, b"more")
        for name in NAMES[:2]:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await cluster.try_append(name, JOURNAL, b"more")
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert REFUSED_MARK in tuple(failed.value.trailing_metadata())
            async with aiohttp.ClientSession() as session:
                answer = await session.put(f"{cluster.brokers[name].gateway}/{JOURNAL}", data=b"more")
                assert answer.status == 503
        assert await cluster.read(NAMES[0], JOURNAL) == bytes(2000)


async def test_a_cluster_that_wants_tokens_and_certificates_gets_them(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates.create(tmp_path)
    certificate, key, ca = (tmp_path / f"{name}.pem" for name in ("certificate", "key", "ca"))
    flags = (
        *("--broker.auth-keys", SECRET),
        *("--broker.server-cert-file", str(certificate), "--broker.server-cert-key-file", str(key)),
        *("--broker.server-ca-file", str(ca), "--broker.peer-ca-file", str(ca)),
        *("--broker.peer-cert-file", str(certificate), "--broker.peer-cert-key-file", str(key)),
    )
    now_s = int(datetime.datetime.now(datetime.UTC).timestamp())
    token = Keys.parse(SECRET).sign(Claims(Capability.ALL, LabelSelector(), now_s + 600))
    async with broker_cluster(
        tmp_path,
        shared_etcd.endpoint,
        prefix,
        *NAMES[:3],
        flags=flags,
        credentials=certificates.grpc_credentials(),
        token=token,
    ) as cluster:
        address = f"https://{cluster.brokers['broker-0'].address}"
        tls = PeerTls(certificate, key, ca)
        for with_ in (
            ClientSettings.of(address, keys=SECRET, tls=tls),
            ClientSettings.of(address, token=token, tls=tls),
        ):
            async with Client(settings=with_) as client:
                await client.apply(Upsert(journal_spec(JOURNAL), ANY_REVISION))
                begin = (await client.append(JOURNAL, b"line\n")).begin
                assert await client.read(JOURNAL, begin, block=False).read() == b"line\n"
                assert (await client.list()).names == [JOURNAL]
                assert [one async for one in client.fragments(JOURNAL)]
                await client.store_health("file:///")
        async with Client(settings=ClientSettings.of(address, tls=tls)) as client:
            with pytest.raises(UnauthenticatedError):
                await client.append(JOURNAL, b"line\n")
        untrusted = ClientSettings.of(address, keys=SECRET, retry=Retry(within_s=0.5))
        async with Client(settings=untrusted) as client:
            with pytest.raises(UnavailableError):
                await client.append(JOURNAL, b"line\n")
