"""Brokers that ask who is there: with tokens, and with TLS on both sides."""

from __future__ import annotations

import asyncio
import base64
import datetime
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from protocol.auth import Capability, Claims, Keys
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.gen.journal_pb2_grpc import JournalStub
from protocol.selector import LabelSelector
from tests.support.broker_cluster import Broker, broker_cluster, journal_spec
from tests.support.certificates import Certificates
from tests.support.etcd_server import EtcdServer, etcd_server

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="
KEYS = Keys.parse(SECRET)
JOURNAL = "test/journal"
NAMES = ("broker-0", "broker-1", "broker-2")


PASSWORD = "correct-horse-battery-staple"


def token(capability: int, selector: str = "") -> str:
    now_s = int(datetime.datetime.now(datetime.UTC).timestamp())
    return KEYS.sign(Claims(capability, LabelSelector.parse(selector), now_s + 600))


async def test_every_call_needs_a_token_that_grants_it(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> None:
    flags = ("--broker.auth-keys", SECRET)
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, *NAMES, flags=flags, token=token(Capability.ALL)
    ) as cluster:
        await cluster.apply(journal_spec())
        # Brokers sign for what they ask of each other: at R=3 they have to.
        for name in NAMES:
            await cluster.append(name, JOURNAL, b"line\n")
            assert (await cluster.read(name, JOURNAL)).endswith(b"line\n")

        cluster.token = token(Capability.READ | Capability.LIST)
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await cluster.try_append("broker-0", JOURNAL, b"x")
        assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await cluster.read("broker-0", JOURNAL) == b"line\n" * 3

        cluster.token = token(Capability.ALL, "name:prefix=other/")
        response = await cluster.try_append("broker-0", JOURNAL, b"x")
        assert response.status == pb.JOURNAL_NOT_FOUND
        assert not response.header.route.members
        assert await cluster.list() == []
        change = pb.ApplyRequest.Change(expect_mod_revision=-1, delete=JOURNAL)
        with pytest.raises(grpc.aio.AioRpcError) as foreign:
            await cluster.stub("broker-0").Apply(
                pb.ApplyRequest(changes=[change]), timeout=10, metadata=cluster.metadata
            )
        assert foreign.value.code() is grpc.StatusCode.PERMISSION_DENIED

        store = pb.FragmentStoreHealthRequest(fragment_store="file:///")
        stub = cluster.stub("broker-0")
        # A client of Gazette signs the first of them.
        for granted in (token(Capability.READ), token(Capability.READ | Capability.APPLY, "name:prefix=other/")):
            cluster.token = granted
            health = await stub.FragmentStoreHealth(store, timeout=10, metadata=cluster.metadata)
            assert health.status == pb.OK
        cluster.token = token(Capability.READ, "name:prefix=other/")
        with pytest.raises(grpc.aio.AioRpcError, match="a store belongs to none of them") as kept_out:
            await stub.FragmentStoreHealth(store, timeout=10, metadata=cluster.metadata)
        assert kept_out.value.code() is grpc.StatusCode.PERMISSION_DENIED

        for bad in ("", "not-a-token", token(Capability.ALL)[:-4] + "AAAA"):
            cluster.token = bad
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await cluster.try_append("broker-0", JOURNAL, b"x")
            assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for broker in cluster.brokers.values():
            assert SECRET not in broker.log.read_text()


BAD_NAME = "/a//b"
# Which capability each of the seven needs, and a message that is well-formed and makes no sense.
RPCS: dict[str, tuple[Capability, Message]] = {
    "List": (
        Capability.LIST,
        pb.ListRequest(selector=pb.LabelSelector(include=pb.LabelSet(labels=[pb.Label(name="")]))),
    ),
    "Apply": (Capability.APPLY, pb.ApplyRequest(changes=[pb.ApplyRequest.Change()])),
    "Read": (Capability.READ, pb.ReadRequest(journal=BAD_NAME)),
    "Append": (Capability.APPEND, pb.AppendRequest(journal=BAD_NAME)),
    "Replicate": (Capability.REPLICATE, pb.ReplicateRequest(content=b"without a proposal")),
    "ListFragments": (Capability.READ, pb.FragmentsRequest(journal=BAD_NAME)),
    "FragmentStoreHealth": (Capability.READ, pb.FragmentStoreHealthRequest(fragment_store="nowhere")),
}


async def test_every_rpc_tells_bad_tokens_missing_capabilities_and_bad_requests_apart(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    assert set(RPCS) == {method.name for method in pb.DESCRIPTOR.services_by_name["Journal"].methods}
    flags = ("--broker.auth-keys", SECRET)
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, NAMES[0], flags=flags, token=token(Capability.ALL)
    ) as cluster:
        async with grpc.aio.insecure_channel(cluster.brokers[NAMES[0]].address) as channel:

            async def code(method: str, request: bytes, bearer: str | None) -> grpc.StatusCode:
                # One message and the end, at once: to write to a call that has ended meanwhile is INTERNAL in grpc.aio.
                call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
                call = channel.unary_stream(f"/protocol.Journal/{method}")
                metadata = () if bearer is None else (("authorization", f"Bearer {bearer}"),)
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    async for _ in call(request, timeout=10, metadata=metadata):
                        pass
                return failed.value.code()

            answers = {
                method: [
                    await code(method, bad.SerializeToString(), None),
                    await code(method, bad.SerializeToString(), token(Capability.ALL)[:-4] + "AAAA"),
                    await code(method, bad.SerializeToString(), token(Capability.ALL & ~needed)),
                    await code(method, bad.SerializeToString(), token(needed)),
                    await code(method, b"\xff\xff", token(needed)),
                ]
                for method, (needed, bad) in RPCS.items()
            }
        told = grpc.StatusCode
        expected = [told.UNAUTHENTICATED] * 2 + [told.PERMISSION_DENIED] + [told.INVALID_ARGUMENT] * 2
        assert answers == dict.fromkeys(RPCS, expected)


async def test_what_a_token_does_not_match_looks_to_every_rpc_as_if_it_did_not_exist(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    flags = ("--broker.auth-keys", SECRET)
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, NAMES[0], flags=flags, token=token(Capability.ALL)
    ) as cluster:
        await cluster.apply(journal_spec(JOURNAL, 1))
        header = (await cluster.append(NAMES[0], JOURNAL, b"line\n")).header
        stub = cluster.stub(NAMES[0])

        async def answers(journal: str) -> list[Message]:
            replicating = stub.Replicate(timeout=10, metadata=cluster.metadata)
            proposal = Fragment(journal, 0, 0, bytes(20), CompressionCodec.NONE).to_proto()
            await replicating.write(pb.ReplicateRequest(header=header, proposal=proposal, acknowledge=True))
            replicated = await replicating.read()
            assert isinstance(replicated, pb.ReplicateResponse)
            request = pb.FragmentsRequest(journal=journal)
            found: list[Message] = [
                *await cluster.responses(NAMES[0], journal),
                await cluster.try_append(NAMES[0], journal, b"x"),
                await stub.ListFragments(request, timeout=10, metadata=cluster.metadata),
                replicated,
                *await cluster.list(f"name={journal}"),
            ]
            return found

        cluster.token = token(Capability.ALL, "name:prefix=other/")
        hidden, missing = await answers(JOURNAL), await answers("test/missing")
        assert hidden == missing
        assert [answer.status for answer in hidden] == [pb.JOURNAL_NOT_FOUND] * 4  # type: ignore[attr-defined]
        cluster.token = token(Capability.ALL, "name:prefix=test/")
        assert await cluster.read(NAMES[0], JOURNAL) == b"line\n"


async def test_brokers_and_clients_show_each_other_certificates(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates.create(tmp_path)
    certificate, key, ca = (str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca"))
    flags = (
        *("--broker.server-cert-file", certificate, "--broker.server-cert-key-file", key),
        *("--broker.server-ca-file", ca, "--broker.peer-ca-file", ca),
        *("--broker.peer-cert-file", certificate, "--broker.peer-cert-key-file", key),
    )
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, *NAMES, flags=flags, credentials=certificates.grpc_credentials()
    ) as cluster:
        await cluster.apply(journal_spec())
        response = await cluster.append("broker-0", JOURNAL, b"line\n")
        assert all(endpoint.startswith("https://") for endpoint in response.header.route.endpoints)
        for name in NAMES:
            assert await cluster.read(name, JOURNAL) == b"line\n"
        anonymous = grpc.ssl_channel_credentials(certificates.ca)
        async with grpc.aio.secure_channel(cluster.brokers["broker-0"].address, anonymous) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await JournalStub(channel).Apply(pb.ApplyRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def grant(server: EtcdServer, role: str, prefix: str) -> None:
    key, end = (base64.b64encode(text.encode()).decode() for text in (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))
    server.call("auth/role/grant", name=role, perm={"permType": "READWRITE", "key": key, "range_end": end})


@pytest.mark.parametrize("where", ["file", "variable"])
async def test_brokers_are_users_of_an_etcd_that_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """With no other rights than docs/brokers.md tells to grant."""
    flags = ["--etcd.user", "broker"]
    if where == "file":
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        flags += ["--etcd.password-file", str(tmp_path / "password")]
    else:
        monkeypatch.setenv("ETCD_PASSWORD", PASSWORD)
    with etcd_server(tmp_path) as server:
        for name in ("root", "broker"):
            server.call("auth/user/add", name=name, password=PASSWORD)
            server.call("auth/role/add", name=name)
            server.call("auth/user/grant", user=name, role=name)
        for keys in ("/acme", "pygazette/heads/acme/"):
            grant(server, "broker", keys)
        server.call("auth/enable")
        async with broker_cluster(tmp_path, server.endpoint, "/acme", "broker-0", flags=flags) as cluster:
            await cluster.apply(journal_spec(replication=1))
            await cluster.append("broker-0", JOURNAL, b"line\n")
            assert (await cluster.head(JOURNAL)).epoch
            ran = await asyncio.to_thread(
                subprocess.run,
                [
                    *(sys.executable, "-m", "gazctl.main", "brokers", "list", *flags),
                    *("--broker.address", f"http://{cluster.brokers['broker-0'].address}"),
                    *("--etcd.address", server.endpoint, "--etcd.prefix", "/acme"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (ran.returncode, "1024" in ran.stdout) == (0, True), ran.stderr
            broker = cluster.brokers["broker-0"]
            broker.signal(signal.SIGTERM)
            assert await broker.wait_exit() == 0
            assert PASSWORD not in broker.log.read_text()
        stranger = Broker(tmp_path, "stranger", server.endpoint, "/acme", flags=[*flags, "--etcd.user", "nobody"])
        stranger.spawn()
        assert await stranger.wait_exit() == 1
        assert stranger.log.read_text().splitlines()[-1].startswith("Error: ")
        assert stranger.tail().endswith(": look at --etcd.user, its password and its role\n")
