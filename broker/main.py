"""A broker as a process: what it is told, how it joins its cluster, and in which order it goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections, EtcdTls, EtcdUser
from allocator.etcd_errors import EtcdDeniedError, EtcdError
from allocator.keys import member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.lease_file import LeaseFile
from allocator.membership import Membership
from allocator.session import Session
from broker.background import Background
from broker.broker_member import EPOCHS, KIN, BrokerMember
from broker.cluster_keys import MAX_REPLICATION, broker_decoder, journal_consistency
from broker.debug_server import Diagnostics, debug_server
from broker.descriptors import raise_descriptor_limit
from broker.http_cors import Cors
from broker.http_gateway import HttpGateway
from broker.http_server import http_server, listening_socket
from broker.journal_broker import BrokerPolicy, JournalBroker, Surroundings
from broker.journal_item import JournalItem
from broker.peer_stream import answer_s
from broker.peers import PeerChannels
from broker.pool_threads import END_S, PoolThreads, end_process_soon
from broker.service import SERVICE, JournalService
from fragment.heap import keep_freed_memory
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory, machine_boot_id
from fragment.spool_syncing import sync_forever
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.auth import Keys
from protocol.route import ProcessId, Route
from protocol.rpc.authorization import Authorizer, TokenSigner
from protocol.rpc.server import STOP_S, RpcServer, ServerLimits
from protocol.rpc.tls import PeerTls, ServerTls, server_context

log = logging.getLogger(__name__)

# The one place where a broker gets its clock from. Everything else is given it.
_now_s = time.time  # noqa: TID251
_THREADS = 8
_SWEEP_S = 3600.0
# How long a broker that ends waits for its uploads; less if something is broken, as they may be too.
_UPLOAD_S = 300.0
_UPLOAD_BROKEN_S = 30.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    endpoints: tuple[str, ...] = ("http://localhost:2379",)
    prefix: str = "/gazette/cluster"
    lease_s: int = 20
    tls: EtcdTls | None = None
    user: EtcdUser | None = None
    # How long events are gathered before they are acted upon.
    watch_delay_s: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """All that can be set. ``gazctl serve --help`` says what for."""

    id: ProcessId
    # Under which the others reach it; the port is the one that it listens on.
    host: str
    spool_dir: Path
    # `host:port`, where port 0 is any that is free, or `unix:///path`.
    listen: str = "0.0.0.0:0"
    etcd: EtcdSettings = field(default_factory=EtcdSettings)
    limit: int = 1024
    max_replication: int = MAX_REPLICATION
    policy: BrokerPolicy = field(default_factory=BrokerPolicy)
    stores: StoreSettings = field(default_factory=StoreSettings)
    fsync: FsyncMode = field(default_factory=FsyncMode)
    spool_budget: int | None = None
    keys: Keys | None = None
    server_tls: ServerTls | None = None
    peer_tls: PeerTls | None = None
    receive_bytes_max: int = 4 << 20
    # How long a broker that is told to stop waits for others to take over.
    drain_s: float = 300.0
    # Of the HTTP gateway, as `host:port`; none if it is empty. Whose pages may use it.
    http_listen: str = ""
    allow_origins: tuple[str, ...] = ()
    # Of metrics and readiness, as the gateway's; and whether that alone has them.
    debug_listen: str = ""
    debug_private: bool = False


class BrokerProcess:
    """One broker. ``run`` it; ``stop`` it from a signal handler."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        # Set once it serves.
        self.serving = asyncio.Event()
        self.endpoint = ""
        self.http_endpoint = ""
        self._gateway: HttpGateway | None = None
        self._is_given_up = False
        # Whether it was ever a member.
        self.has_joined = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until it was told to stop and all is handed over, or until it cannot go on, which raises."""
        settings = self._settings
        chance = random.Random()
        budget = SpoolBudget(settings.spool_budget)
        directory = await asyncio.to_thread(
            SpoolDirectory, settings.spool_dir, settings.fsync, machine_boot_id(), budget
        )
        if directory.renewed:
            log.error(
                "the spool directory has a new identity: the machine was started anew, or its identity is gone, and "
                "what it holds may not be all that it held",
                extra={"directory": str(directory.path)},
            )
        stores = OpenStores(settings.stores)
        peers = PeerChannels(TokenSigner(settings.keys, _now_s), tls=settings.peer_tls)
        connections = EtcdConnections(settings.etcd.endpoints, user=settings.etcd.user, tls=settings.etcd.tls)
        executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")
        readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="read")
        async with EtcdClient(connections) as etcd:
            keyspace = KeySpace(settings.etcd.prefix, broker_decoder(settings.etcd.prefix, settings.max_replication))
            watch = KeySpaceWatch(etcd, keyspace, timing=WatchTiming(delay_s=settings.etcd.watch_delay_s))
            key = member_key(settings.etcd.prefix, *settings.id)
            membership = Membership(etcd, key, LeaseFile(directory.path / "lease"), ttl_s=settings.etcd.lease_s)
            session: Session[JournalItem, BrokerMember, Route] = Session(etcd, membership, watch, journal_consistency)
            surroundings = Surroundings(
                etcd=etcd,
                watch=watch,
                directory=directory,
                executor=executor,
                readers=readers,
                stores=stores,
                peers=peers,
                chance=chance,
                is_certain=session.is_certain,
                answer_s=answer_s(settings.etcd.lease_s),
                now_s=_now_s,
                now_ns=time.time_ns,
            )
            try:
                await self._serve(session, surroundings)
            finally:
                await peers.close()
                await stores.close()
                if await PoolThreads((executor, readers)).end(END_S):
                    directory.close()
                else:
                    # The lock stays: a thread whose disk comes back may still write.
                    end_process_soon()

    async def _serve(self, session: Session[JournalItem, BrokerMember, Route], surroundings: Surroundings) -> None:
        settings = self._settings
        service = JournalService()
        server = RpcServer(
            {SERVICE: service.methods()},
            Authorizer(settings.keys, _now_s),
            tls=settings.server_tls,
            limits=_limits(settings),
        )
        self.endpoint = self._endpoint(server.listen(settings.listen))
        tasks = Background()
        # A callback that fails has nobody else to tell: and what it was about is left half done.
        asyncio.get_running_loop().set_exception_handler(lambda _, context: _tell(tasks, context))
        try:
            async with self._http(service, server):
                await self._be_member(session, surroundings, tasks, service, server)
        finally:
            await tasks.close()
        log.warning("broker has stopped", extra={"id": "/".join(settings.id)})

    @asynccontextmanager
    async def _http(self, service: JournalService, server: RpcServer) -> AsyncIterator[None]:
        """The gateway and the debug port. They are there before the broker is, to say that it is not ready."""
        settings = self._settings
        own = CollectorRegistry()
        own.register(service.collector())
        diagnostics = Diagnostics((REGISTRY, own), self.serving.is_set)
        async with contextlib.AsyncExitStack() as stack:
            if settings.debug_listen:
                port = await stack.enter_async_context(debug_server(settings.debug_listen, diagnostics))
                log.info("metrics are served", extra={"port": port})
            if settings.http_listen:
                gateway = HttpGateway(
                    service,
                    server.authorizer,
                    diagnostics,
                    cors=Cors(settings.allow_origins),
                    is_private=settings.debug_private,
                    broke=server.broke,
                )
                tls = server_context(settings.server_tls) if settings.server_tls else None
                listening = listening_socket(settings.http_listen)
                self.http_endpoint = self._url(listening.getsockname()[1])
                await stack.enter_async_context(http_server(listening, gateway.handle, gateway.limits, tls))
                self._gateway = gateway
            yield

    async def _be_member(
        self,
        session: Session[JournalItem, BrokerMember, Route],
        surroundings: Surroundings,
        tasks: Background,
        service: JournalService,
        server: RpcServer,
    ) -> None:
        settings = self._settings
        spool_id = surroundings.directory.spool_id
        member = BrokerMember(
            settings.id,
            self.endpoint,
            settings.limit,
            capabilities=KIN | EPOCHS,
            spool_id=spool_id,
            http_endpoint=self.http_endpoint,
        )
        # What others would refuse to read must not get into etcd.
        BrokerMember.decoded(*settings.id, member.encoded())
        broker = JournalBroker(tasks, settings.id, surroundings, settings.policy)
        await self._recover(broker)
        try:
            async with session.joined(member.encoded()):
                self.has_joined = True
                broker.begin()
                service.begin(broker)
                self._tend(tasks, broker, server, surroundings)
                await server.start()
                server.health.set_all(is_serving=True)
                self.serving.set()
                serving = {"endpoint": self.endpoint, "http_endpoint": self.http_endpoint}
                log.warning("broker is serving", extra={"id": "/".join(settings.id), **serving})
                await self._until_stopped(tasks)
                log.warning("broker was told to stop", extra={"id": "/".join(settings.id)})
                # It goes on serving those who are there, and others are not to come.
                server.health.set_all(is_serving=False)
                self.serving.clear()
                await session.drain(replace(member, exiting=True).encoded(), settings.drain_s)
                # What nobody took over ends here, while this broker is a member beyond doubt.
                service.stop_proxying()
                await self._give_up(server, broker, STOP_S, _UPLOAD_S)
        finally:
            self.serving.clear()
            service.stop_proxying()
            # Without a lease nothing that is under way may be acknowledged, so nobody needs to wait for it.
            is_orderly = not (session.lost.is_set() or tasks.has_failed)
            upload_s = _UPLOAD_BROKEN_S if tasks.has_failed else _UPLOAD_S
            await self._give_up(server, broker, STOP_S if is_orderly else 0, upload_s)
            if broker.has_begun:
                await self._upload_rest(broker, upload_s)

    async def _recover(self, broker: JournalBroker) -> None:
        """Before anybody can ask: what an earlier process left proves where journals end. It takes etcd to do so."""
        while True:
            try:
                await broker.recover()
                return
            except* EtcdDeniedError:
                raise
            except* EtcdError as errors:
                extra = {"error": str(errors.exceptions[0])}
                log.warning("etcd does not answer: it has to, before spools can be recovered (will retry)", extra=extra)
            await asyncio.sleep(_RETRY_S)

    async def _until_stopped(self, tasks: Background) -> None:
        async with asyncio.TaskGroup() as waiting:
            failing = waiting.create_task(tasks.wait_failed())
            await self._stopping.wait()
            failing.cancel()

    def _tend(self, tasks: Background, broker: JournalBroker, server: RpcServer, surroundings: Surroundings) -> None:
        """What runs beside the calls."""
        broker.tend()
        tasks.create_task(surroundings.peers.run())
        tasks.create_task(server.wait_stopped())
        tasks.create_task(_sweep_forever(surroundings.stores))
        interval_s = self._settings.fsync.interval_s
        if interval_s is not None:
            tasks.create_task(sync_forever(surroundings.directory, interval_s))

    async def _give_up(self, server: RpcServer, broker: JournalBroker, grace_s: float, timeout_s: float) -> None:
        """Nothing is ours to serve any more. Calls end, replicas are given up, and where they end is recorded."""
        if self._is_given_up:
            return
        async with asyncio.TaskGroup() as stopping:
            giving_up = stopping.create_task(broker.stop())
            await self._stop_serving(server, grace_s)
            await _within(timeout_s, giving_up, "replicas were still in use when the broker stopped")
        self._is_given_up = True

    async def _upload_rest(self, broker: JournalBroker, timeout_s: float) -> None:
        async with asyncio.TaskGroup() as stopping:
            uploading = stopping.create_task(broker.persister.finish())
            if waiting := len(broker.ledger.waiting):
                log.warning("uploading what is left before the broker ends", extra={"fragments": waiting})
            await _within(timeout_s, uploading, "fragments are not uploaded (they stay on this disk)")

    async def _stop_serving(self, server: RpcServer, grace_s: float) -> None:
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(server.stop(grace_s))
            if self._gateway is not None:
                stopping.create_task(self._gateway.drain(grace_s))

    def _endpoint(self, port: int) -> str:
        settings = self._settings
        if settings.listen.startswith("unix:"):
            return f"unix://{settings.host}{settings.listen.removeprefix('unix://')}"
        return self._url(port)

    def _url(self, port: int) -> str:
        settings = self._settings
        return f"{'https' if settings.server_tls else 'http'}://{settings.host}:{port}"


async def _within(timeout_s: float, task: asyncio.Future[None], what: str) -> None:
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        log.error(what, extra={"waited_s": timeout_s})
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _sweep_forever(stores: OpenStores) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        try:
            await stores.sweep()
        except Exception as error:
            log.warning("a store could not be closed", extra={"error": repr(error)})


def _limits(settings: BrokerSettings) -> ServerLimits:
    """A peer may have a stream open for every journal that this broker holds."""
    known = ServerLimits()
    return ServerLimits(
        receive_bytes_max=settings.receive_bytes_max,
        streams_per_connection_max=known.streams_per_connection_max + settings.limit,
        calls_max=known.calls_max + 4 * settings.limit,
    )


def _tell(tasks: Background, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, Exception):
        tasks.fail(error)
    else:
        log.error("something went wrong on the event loop", extra={"what": str(context.get("message"))})


def serve(settings: BrokerSettings) -> None:
    """Be a broker, as all that this process is for, until SIGTERM or SIGINT. A second one ends it at once."""
    # A whole message, with what gRPC has around it, comes from the heap and returns to it.
    keep_freed_memory(2 * ServerLimits().receive_bytes_max)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: BrokerSettings) -> None:
    process = BrokerProcess(settings)
    running = asyncio.current_task()
    assert running is not None

    def stop() -> None:
        if process.is_stopping:
            log.error("told to stop again: ending at once")
            # What is written is on disk, and nothing else is worth waiting for.
            os._exit(1)
        process.stop()
        if not process.has_joined:
            # It has nothing to hand over, and what it waits for may never come.
            log.warning("broker was told to stop before it had joined its cluster")
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await process.run()
    except asyncio.CancelledError:
        if not process.is_stopping or process.has_joined:
            raise
