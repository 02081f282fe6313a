"""Real brokers for tests, each a process of ``gazctl serve`` that can be killed, paused, stopped and started again.

What tests want to know they ask over gRPC, with stubs made by protobuf: none of our own client.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc

from protocol.codec import CompressionCodec
from protocol.gen import epoch_pb2
from protocol.gen import journal_pb2 as pb
from protocol.gen.journal_pb2_grpc import JournalStub
from protocol.journal import Flag, FragmentPolicy, JournalSpec
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.etcd_server import free_port
from tests.support.eventually import WAIT_S, eventually

if TYPE_CHECKING:
    # There is no such class but in the type stubs.
    from protocol.gen.journal_pb2_grpc import JournalAsyncStub

TRY_S = 10.0


@dataclass
class Broker:
    """One process. It keeps its port and its spools when it is started again."""

    folder: Path
    name: str
    etcd: str
    prefix: str
    zone: str = "local"
    flags: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    # What serves, with arguments: another one than the shipped is for benchmarks, and for what is planted.
    module: str = "gazctl.main"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def gateway(self) -> str:
        """The URL of its HTTP gateway, where there is no TLS."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def spool_dir(self) -> Path:
        return self.folder / f"{self.name}.spool"

    def spawn(self) -> None:
        command = [
            *(sys.executable, "-m", *self.module.split(), "serve"),
            *("--broker.zone", self.zone, "--broker.id", self.name, "--broker.host", "127.0.0.1"),
            *("--broker.port", str(self.port), "--broker.http-port", str(self.http_port)),
            *("--broker.spool-dir", str(self.spool_dir)),
            *("--broker.file-root", str(self.folder / "fragments"), "--broker.watch-delay", "1ms"),
            *("--etcd.address", self.etcd, "--etcd.prefix", self.prefix, "--etcd.lease", "5s"),
            *("--log.level", "info", "--log.format", "json"),
            *self.flags,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def wait_exit(self) -> int:
        """The code it exits with."""
        assert self.process is not None
        async with asyncio.timeout(WAIT_S):
            return await asyncio.to_thread(self.process.wait)

    def tail(self) -> str:
        return self.log.read_text()[-4000:]


class BrokerCluster:
    """Brokers that share an etcd, and a way to talk to them."""

    def __init__(self, folder: Path, etcd: str, prefix: str, flags: Sequence[str] = ()) -> None:
        self.module = "gazctl.main"
        self._folder = folder
        self._etcd = etcd
        self._prefix = prefix
        self._flags = flags
        # How to connect, and what each call says of who makes it.
        self.credentials: grpc.ChannelCredentials | None = None
        self.token = ""
        self.brokers: dict[str, Broker] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        (folder / "fragments").mkdir(exist_ok=True)

    @property
    def fragments(self) -> Path:
        return self._folder / "fragments"

    async def start(self, *names: str, zone: str = "local", flags: Sequence[str] = ()) -> list[Broker]:
        """Start brokers, or start them again, and wait until they serve."""
        for name in names:
            known = self.brokers.get(name)
            broker = known or Broker(self._folder, name, self._etcd, self._prefix, zone, (*self._flags, *flags))
            self.brokers[name] = broker
            broker.module = self.module
            broker.spawn()
        for name in names:
            await self._wait_serving(self.brokers[name])
        return [self.brokers[name] for name in names]

    async def _wait_serving(self, broker: Broker) -> None:
        async def is_ready() -> bool:
            assert broker.process is not None
            assert broker.process.poll() is None, f"{broker.name} has ended: {broker.tail()}"
            try:
                await self.stub(broker.name).List(pb.ListRequest(), timeout=TRY_S, metadata=self.metadata).read()
            except grpc.aio.AioRpcError as error:
                # One that does not know the method serves too.
                return error.code() is grpc.StatusCode.UNIMPLEMENTED
            return True

        await eventually(is_ready, f"{broker.name} to serve")

    def stub(self, name: str) -> JournalAsyncStub:
        if name not in self._channels:
            options = [("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 50)]
            address = self.brokers[name].address
            self._channels[name] = (
                grpc.aio.secure_channel(address, self.credentials, options=options)
                if self.credentials
                else grpc.aio.insecure_channel(address, options=options)
            )
        return JournalStub(self._channels[name])

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    async def apply(self, *specs: JournalSpec) -> pb.ApplyResponse:
        """Create journals, or change them whatever they were."""
        changes = [pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=spec.to_proto()) for spec in specs]
        response = await self._any().Apply(pb.ApplyRequest(changes=changes), timeout=TRY_S, metadata=self.metadata)
        assert response.status == pb.OK, response
        return response

    async def delete(self, journal: str) -> None:
        change = pb.ApplyRequest.Change(expect_mod_revision=-1, delete=journal)
        response = await self._any().Apply(pb.ApplyRequest(changes=[change]), timeout=TRY_S, metadata=self.metadata)
        assert response.status == pb.OK, response

    def _any(self) -> JournalAsyncStub:
        return self.stub(next(name for name, broker in self.brokers.items() if broker.process is not None))

    async def try_append(
        self, name: str, journal: str, *chunks: bytes, timeout_s: float = TRY_S, **opening: Any
    ) -> pb.AppendResponse:
        """One append. Raises an AioRpcError."""
        requests = [
            pb.AppendRequest(journal=journal, **opening),
            *(pb.AppendRequest(content=chunk) for chunk in chunks),
            pb.AppendRequest(),
        ]
        return await self.stub(name).Append(iter(requests), timeout=timeout_s, metadata=self.metadata)

    async def append(self, name: str, journal: str, *chunks: bytes, **opening: Any) -> pb.AppendResponse:
        """Until it is OK: so the content may be there more than once."""
        last: pb.AppendResponse | grpc.aio.AioRpcError | None = None

        async def is_ok() -> bool:
            nonlocal last
            try:
                last = response = await self.try_append(name, journal, *chunks, **opening)
                return response.status == pb.OK
            except grpc.aio.AioRpcError as error:
                last = error
                return False

        await eventually(is_ok, lambda: f"an append to {journal}: {last}")
        assert isinstance(last, pb.AppendResponse)
        return last

    async def read(self, name: str, journal: str, offset: int = 0, **request: Any) -> bytes:
        """All there is, as this broker has it or relays it."""
        responses = await self.responses(name, journal, offset, **request)
        assert responses[0].status in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE), responses[0]
        return b"".join(response.content for response in responses)

    async def responses(self, name: str, journal: str, offset: int = 0, **request: Any) -> list[pb.ReadResponse]:
        call = self.stub(name).Read(
            pb.ReadRequest(journal=journal, offset=offset, **request), timeout=TRY_S, metadata=self.metadata
        )
        return [response async for response in call]

    async def list(self, selector: str = "") -> list[pb.ListResponse.Journal]:
        request = pb.ListRequest(selector=LabelSelector.parse(selector).to_proto())
        return [
            journal
            async for response in self._any().List(request, timeout=TRY_S, metadata=self.metadata)
            for journal in response.journals
        ]

    async def head(self, journal: str) -> epoch_pb2.HeadStatus:
        """What is on record of its head."""
        request = pb.ListRequest(selector=LabelSelector.parse(f"name={journal}").to_proto(), heads=True)
        response = await self._any().List(request, timeout=TRY_S, metadata=self.metadata).read()
        assert isinstance(response, pb.ListResponse)
        return response.journals[0].head

    async def metric(self, name: str, metric: str) -> float:
        """The sum of a metric of that broker, over all of its labels."""
        url = f"{self.brokers[name].gateway}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{metric}(\{{.*)? ", line))

    async def route(self, journal: str) -> tuple[str | None, set[str]]:
        """The names of the primary and of the other members."""
        listed = await self.list(f"name={journal}")
        route = listed[0].route
        names = [member.suffix for member in route.members]
        primary = names[route.primary] if route.primary >= 0 else None
        return primary, set(names) - {primary or ""}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        for broker in self.brokers.values():
            broker.kill()


@asynccontextmanager
async def broker_cluster(
    folder: Path,
    etcd: str,
    prefix: str,
    *names: str,
    flags: Sequence[str] = (),
    credentials: grpc.ChannelCredentials | None = None,
    token: str = "",
    module: str = "gazctl.main",
) -> AsyncIterator[BrokerCluster]:
    cluster = BrokerCluster(folder, etcd, prefix, flags)
    cluster.module = module
    cluster.credentials, cluster.token = credentials, token
    try:
        await cluster.start(*names)
        yield cluster
    finally:
        await cluster.close()


def journal_spec(
    name: str = "test/journal",
    replication: int = 3,
    codec: CompressionCodec = CompressionCodec.NONE,
    flags: Flag = Flag.O_RDWR,
    **policy: Any,
) -> JournalSpec:
    fragment = FragmentPolicy(1 << 16, codec, ("file:///",), refresh_interval_ns=1_000_000_000)
    return JournalSpec(
        name,
        replication,
        LabelSet(),
        replace(fragment, **policy),
        flags,
    )
