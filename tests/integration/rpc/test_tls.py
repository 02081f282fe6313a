"""TLS and mutual TLS, and files that are renewed under a running server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from broker.peers import PeerChannels
from protocol.errors import ValidationError
from protocol.rpc.authorization import Authorizer
from protocol.rpc.server import RpcServer
from protocol.rpc.tls import PeerCredentials, PeerTls, ServerTls, server_credentials
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.rpc_service import SERVICE, UNSIGNED, Echo, now_s, peer_at, serving, unary_unary_of


@pytest.fixture
def authority() -> Authority:
    return Authority.create()


def server_tls(folder: Path, *, is_mutual: bool = True) -> ServerTls:
    return ServerTls(folder / "certificate.pem", folder / "key.pem", folder / "ca.pem" if is_mutual else None)


def peer_tls(folder: Path) -> PeerTls:
    return PeerTls(folder / "certificate.pem", folder / "key.pem", folder / "ca.pem")


async def answer(port: int, credentials: grpc.ChannelCredentials | None) -> bytes:
    """On a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    address = f"127.0.0.1:{port}"
    channel = (
        grpc.aio.secure_channel(address, credentials, options=options)
        if credentials
        else grpc.aio.insecure_channel(address, options=options)
    )
    async with channel, asyncio.timeout(20):
        return await unary_unary_of(channel, "Apply")(b"x")


async def is_refused(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await answer(port, credentials)
    return failed.value.code() is grpc.StatusCode.UNAVAILABLE


def certificate_of(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=20)


async def test_tls_without_a_ca_asks_for_no_client_certificate(tmp_path: Path, authority: Authority) -> None:
    authority.issue(tmp_path)
    async with serving(Echo(), tls=server_tls(tmp_path, is_mutual=False)) as (_, port):
        assert await answer(port, PeerCredentials(PeerTls(ca_file=tmp_path / "ca.pem")).current) == b"x"
        assert await is_refused(port, None)
        # Trusts the authorities of the web, and ours is not one of them.
        assert await is_refused(port, PeerCredentials(PeerTls()).current)


async def test_with_a_ca_clients_need_a_certificate_of_it(tmp_path: Path, authority: Authority) -> None:
    for name in ("server", "client"):
        authority.issue(tmp_path / name)
    authority.issue(tmp_path / "expired", is_expired=True)
    Authority.create().issue(tmp_path / "stranger")
    trusted = tmp_path / "server" / "ca.pem"
    async with serving(Echo(), tls=server_tls(tmp_path / "server")) as (_, port):
        assert await answer(port, PeerCredentials(peer_tls(tmp_path / "client")).current) == b"x"
        assert await is_refused(port, PeerCredentials(PeerTls(ca_file=trusted)).current)
        for folder in (tmp_path / "stranger", tmp_path / "expired"):
            own = PeerTls(folder / "certificate.pem", folder / "key.pem", trusted)
            assert await is_refused(port, PeerCredentials(own).current)
        assert await answer(port, PeerCredentials(peer_tls(tmp_path / "client")).current) == b"x"


async def test_a_unix_socket_needs_no_tls(tmp_path: Path, authority: Authority) -> None:
    authority.issue(tmp_path)
    server = RpcServer({SERVICE: Echo().methods()}, Authorizer(None, now_s), tls=server_tls(tmp_path))
    server.listen(f"unix://{tmp_path}/socket")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix://{tmp_path}/socket") as channel:
        assert await unary_unary_of(channel, "Apply")(b"x") == b"x"
    await server.stop(0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("version", "is_served"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)], ids=["1.1", "1.2"]
)
async def test_tls_is_of_version_1_2_or_newer(
    version: ssl.TLSVersion, is_served: bool, tmp_path: Path, authority: Authority
) -> None:
    authority.issue(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    async with serving(Echo(), tls=server_tls(tmp_path, is_mutual=False)) as (_, port), asyncio.timeout(20):
        expectation = contextlib.nullcontext() if is_served else pytest.raises((ssl.SSLError, ConnectionError))
        with expectation:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.close()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                await writer.wait_closed()


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    authority.issue(tmp_path)
    async with serving(Echo(), tls=server_tls(tmp_path, is_mutual=False)) as (_, port):
        credentials = PeerCredentials(PeerTls(ca_file=tmp_path / "ca.pem")).current
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            assert await unary_unary_of(channel, "Apply")(b"x") == b"x"
            before = await asyncio.to_thread(certificate_of, port)
            authority.issue(tmp_path)
            assert await asyncio.to_thread(certificate_of, port) != before
            assert await asyncio.to_thread(certificate_of, port) == (tmp_path / "certificate.pem").read_text()
            # Who was connected stays so.
            assert await unary_unary_of(channel, "Apply")(b"x") == b"x"


async def test_an_authority_of_clients_can_be_replaced(tmp_path: Path, authority: Authority) -> None:
    authority.issue(tmp_path / "server")
    Authority.create().issue(tmp_path / "client")
    client = tmp_path / "client"
    credentials = PeerCredentials(
        PeerTls(client / "certificate.pem", client / "key.pem", tmp_path / "server" / "ca.pem")
    ).current
    (tmp_path / "clients.pem").write_bytes((tmp_path / "server" / "ca.pem").read_bytes())
    tls = ServerTls(tmp_path / "server/certificate.pem", tmp_path / "server/key.pem", tmp_path / "clients.pem")
    async with serving(Echo(), tls=tls) as (_, port):
        assert await is_refused(port, credentials)
        (tmp_path / "clients.pem").write_bytes((client / "ca.pem").read_bytes())
        assert await answer(port, credentials) == b"x"


async def test_half_renewed_files_are_left_alone_until_they_fit(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    authority.issue(tmp_path)
    authority.issue(tmp_path / "new")
    async with serving(Echo(), tls=server_tls(tmp_path, is_mutual=False)) as (_, port):
        before = await asyncio.to_thread(certificate_of, port)
        (tmp_path / "certificate.pem").write_bytes((tmp_path / "new" / "certificate.pem").read_bytes())
        assert await asyncio.to_thread(certificate_of, port) == before
        assert await asyncio.to_thread(certificate_of, port) == before
        assert caplog.text.count("cannot be used") == 1
        (tmp_path / "key.pem").unlink()
        assert await asyncio.to_thread(certificate_of, port) == before
        (tmp_path / "key.pem").write_bytes((tmp_path / "new" / "key.pem").read_bytes())
        assert await asyncio.to_thread(certificate_of, port) != before


@pytest.mark.parametrize("spoilt", ["certificate.pem", "key.pem", "ca.pem"])
def test_files_that_do_not_fit_are_refused_at_the_start(spoilt: str, tmp_path: Path, authority: Authority) -> None:
    authority.issue(tmp_path)
    (tmp_path / spoilt).write_text("not PEM")
    with pytest.raises(ValidationError, match=spoilt):
        server_credentials(server_tls(tmp_path))
    with pytest.raises(ValidationError, match=spoilt):
        PeerCredentials(peer_tls(tmp_path))


def test_a_peers_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="peer-cert-file"):
        PeerTls(certificate_file=tmp_path / "certificate.pem")


@asynccontextmanager
async def peer_channels(tls: PeerTls) -> AsyncIterator[PeerChannels]:
    channels = PeerChannels(UNSIGNED, tls=tls, idle_s=1.0)
    try:
        yield channels
    finally:
        await channels.close()


async def test_peers_connect_with_a_renewed_certificate_and_let_running_calls_be(
    tmp_path: Path, authority: Authority
) -> None:
    authority.issue(tmp_path / "server")
    authority.issue(tmp_path / "peer")
    async with (
        serving(Echo(), tls=server_tls(tmp_path / "server")) as (_, port),
        peer_channels(peer_tls(tmp_path / "peer")) as channels,
        asyncio.timeout(20),
    ):
        peer = peer_at(port, scheme="https")
        call = channels.replicate(peer, "a/journal")
        await call.write(b"before")
        assert await call.read() == b"before"
        channel = channels.channel(peer, "replicate")
        authority.issue(tmp_path / "peer")
        await eventually(lambda: channels.channel(peer, "replicate") is not channel, "another channel")
        assert await channels.list_fragments(peer, "a/journal", b"x") == b"x"
        await call.write(b"after")
        assert await call.read() == b"after"
        await channels.close_unused()
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        call.cancel()
        await eventually(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE, "the channel to be idle")
        await channels.close_unused()
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
