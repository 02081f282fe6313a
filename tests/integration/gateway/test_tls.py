"""A gateway of brokers with TLS: with the certificate of the broker, and asking for one where the broker does."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest

from allocator.etcd_client import EtcdClient
from allocator.keys import member_key
from broker.broker_member import BrokerMember
from tests.support.broker_cluster import broker_cluster, journal_spec
from tests.support.certificates import Authority, Certificates
from tests.support.etcd_server import EtcdServer
from tests.support.raw_http import WAIT_S, exchange

HEAD = "GET /test/journal HTTP/1.1"


def client_context(folder: Path, *, has_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.check_hostname = False
    if has_certificate:
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


async def test_a_gateway_shows_the_brokers_certificate_and_asks_for_one(
    shared_etcd: EtcdServer, etcd: EtcdClient, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates.create(tmp_path)
    certificate, key, ca = (str(tmp_path / f"{name}.pem") for name in ("certificate", "key", "ca"))
    flags = (
        *("--broker.server-cert-file", certificate, "--broker.server-cert-key-file", key),
        *("--broker.server-ca-file", ca, "--broker.peer-ca-file", ca),
        *("--broker.peer-cert-file", certificate, "--broker.peer-cert-key-file", key),
    )
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, "broker-0", flags=flags, credentials=certificates.grpc_credentials()
    ) as cluster:
        await cluster.apply(journal_spec("test/journal", 1))
        await cluster.append("broker-0", "test/journal", b"line\n")
        port = cluster.brokers["broker-0"].http_port
        answer = await exchange(port, HEAD, tls=client_context(tmp_path))
        assert (answer.code, answer.body) == (206, b"line\n")
        assert answer.headers["location"] == f"https://127.0.0.1:{port}/test/journal"

        stored = await etcd.get(member_key(prefix, "local", "broker-0"))
        assert stored is not None
        assert BrokerMember.decoded("local", "broker-0", stored.raw).http_endpoint == f"https://127.0.0.1:{port}"

        with pytest.raises((OSError, ValueError, IndexError)):
            await exchange(port, HEAD, tls=client_context(tmp_path, has_certificate=False))
        with pytest.raises((OSError, ValueError, IndexError)):
            await exchange(port, HEAD)


async def test_a_renewed_certificate_is_shown_without_a_restart(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    authority = Authority.create()
    authority.issue(tmp_path)
    flags = (
        *("--broker.server-cert-file", str(tmp_path / "certificate.pem")),
        *("--broker.server-cert-key-file", str(tmp_path / "key.pem")),
        *("--broker.peer-ca-file", str(tmp_path / "ca.pem")),
    )
    credentials = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
    async with broker_cluster(
        tmp_path, shared_etcd.endpoint, prefix, "broker-0", flags=flags, credentials=credentials
    ) as cluster:
        port = cluster.brokers["broker-0"].http_port
        before = await shown_certificate(port)
        authority.issue(tmp_path)
        # The handshake that finds the new files has begun with the old ones.
        await shown_certificate(port)
        assert await shown_certificate(port) != before


async def shown_certificate(port: int) -> str:
    async with asyncio.timeout(WAIT_S):
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
