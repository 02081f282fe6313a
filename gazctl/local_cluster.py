"""LocalCluster: an etcd and some brokers on this machine, all below one folder, for trying things out.

It is what ``gazctl up`` runs. Brokers keep their names, ports and spools, so that a cluster that is started again on
its folder comes back with all that it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gazctl.supervised import EndedError, Say, Supervised
from protocol.errors import GazetteError

HOST = "127.0.0.1"
BROKERS_MAX = 32
GATEWAYS_ABOVE = 1000
"""A broker's gateway listens so far above its own port, if that port is free."""
START_S = 60.0
STOP_S = 20.0
ETCD_STOP_S = 5.0
DRAIN_S = 3
"""The last brokers have nobody to hand their journals over to, so they do not wait for that for long."""

_PORT_MAX = 65535
_LEASE_S = 10
# Nobody ever connects there: this etcd has no peers.
_ETCD_PEER = "http://localhost:2380"
_LOOK_S = 0.1


class LocalClusterError(GazetteError):
    """It cannot run, and what to do about that."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Where everything of a cluster is."""

    path: Path

    @property
    def cluster_file(self) -> Path:
        """Exists while all of the cluster is up, and says where it is reached."""
        return self.path / "cluster.json"

    @property
    def fragments(self) -> Path:
        """The root of ``file:///`` stores."""
        return self.path / "fragments"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def ports_file(self) -> Path:
        """Ports that were found free, to be had again by the next start."""
        return self.path / "ports.json"

    def spool(self, broker: str) -> Path:
        return self.path / "spools" / broker

    def make(self) -> None:
        for folder in (self.path, self.fragments, self.logs, self.path / "spools"):
            folder.mkdir(parents=True, exist_ok=True)
        # etcd complains of a folder that others may look into.
        (self.path / "etcd").mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No second cluster may use the folder meanwhile."""
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise LocalClusterError(
                    f"another `gazctl up` (process {file.read(20).strip() or 'unknown'}) runs in {self.path}: "
                    "use its cluster, stop it with Ctrl-C, or give another folder with --dir"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield


@dataclass(frozen=True, slots=True)
class Ports:
    brokers: tuple[int, ...]
    gateways: tuple[int, ...]
    etcd: int

    @classmethod
    def chosen(cls, first: int, count: int, remembered: dict[str, Any]) -> Ports:
        """Those of brokers as asked for, or an error; the others as they were, or any that are free."""
        brokers = tuple(range(first, first + count))
        if brokers[-1] > _PORT_MAX:
            raise LocalClusterError(f"there are no ports above {_PORT_MAX}: give a smaller one with --port")
        for port in brokers:
            if not is_free(port):
                raise LocalClusterError(
                    f"port {port} is in use: stop what listens there, or give another one with --port "
                    f"({count} in a row are used, from the one given on)"
                )
        taken = set(brokers)
        known = remembered.get("gateways")
        wishes = known if isinstance(known, list) and remembered.get("first") == first else []
        gateways = []
        for at, broker in enumerate(brokers):
            wish = wishes[at] if at < len(wishes) else broker + GATEWAYS_ABOVE
            gateways.append(_free_port(wish, taken))
        etcd = _free_port(remembered.get("etcd"), taken)
        return cls(brokers, tuple(gateways), etcd)

    def remembered(self) -> dict[str, Any]:
        return {"first": self.brokers[0], "gateways": list(self.gateways), "etcd": self.etcd}


class LocalCluster:
    """``run`` it; ``stop`` it from a signal handler, a second time to end it at once."""

    def __init__(self, folder: Path, brokers: int, port: int, say: Say) -> None:
        self.folder = Folder(folder.absolute())
        self._count = brokers
        self._port = port
        self._say = say
        self._stopping = asyncio.Event()
        self._is_ready = False
        self._ports = Ports((), (), 0)
        self._etcd: Supervised | None = None
        self._brokers: list[Supervised] = []

    @property
    def broker_urls(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self._ports.brokers]

    @property
    def gateway_url(self) -> str:
        return f"http://{HOST}:{self._ports.gateways[0]}"

    @property
    def etcd_url(self) -> str:
        return f"http://{HOST}:{self._ports.etcd}"

    def stop(self) -> None:
        if self._stopping.is_set():
            self._say("\nEnding everything at once.")
            for process in self._processes():
                process.kill()
            return
        self._say("\nStopping. A second Ctrl-C ends everything at once.")
        self._stopping.set()

    async def run(self, on_ready: Say) -> None:
        """Until it is stopped. `on_ready` is called with the URL of the first broker. Raises a LocalClusterError."""
        self.folder.make()
        with self.folder.locked():
            self.folder.cluster_file.unlink(missing_ok=True)
            self._ports = Ports.chosen(self._port, self._count, _read_json(self.folder.ports_file))
            _write_json(self.folder.ports_file, self._ports.remembered())
            try:
                await self._until_stopped(self._started())
                if not self._stopping.is_set():
                    self._is_ready = True
                    self._write_cluster_file()
                    on_ready(self.broker_urls[0])
                    await self._until_stopped(self._supervised())
            except EndedError as error:
                raise LocalClusterError(str(error)) from error
            finally:
                self._is_ready = False
                self.folder.cluster_file.unlink(missing_ok=True)
                await self._stop_all()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, but no longer than until ``stop``."""
        working = asyncio.ensure_future(work)  # noqa: TID251 -- it is waited for right here
        stopping = asyncio.ensure_future(self._stopping.wait())  # noqa: TID251 -- as well
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait({working, stopping})

    async def _started(self) -> None:
        self._etcd = Supervised("etcd", self._etcd_command(), self.folder.logs / "etcd.log", self._say)
        await self._etcd.spawn()
        await _wait_connectable(self._etcd, self._ports.etcd)
        for at in range(self._count):
            name = f"broker-{at + 1}"
            log = self.folder.logs / f"{name}.log"
            broker = Supervised(name, self._broker_command(name, at), log, self._say, self._write_cluster_file)
            self._brokers.append(broker)
            await broker.spawn()
        for broker, port in zip(self._brokers, self._ports.brokers, strict=True):
            await _wait_serving(broker, port)

    async def _supervised(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in self._processes():
                tasks.create_task(process.supervise())

    def _processes(self) -> list[Supervised]:
        return [*self._brokers, *([self._etcd] if self._etcd else ())]

    async def _stop_all(self) -> None:
        """Brokers first: they have things to write to etcd before they leave."""
        ended = await asyncio.gather(*(broker.stop(STOP_S) for broker in self._brokers))
        for broker, by_itself in zip(self._brokers, ended, strict=True):
            if not by_itself:
                self._say(f"{broker.name} took longer than {STOP_S:g} s and was ended. What it held is on its disk.")
        if self._etcd is not None:
            await self._etcd.stop(ETCD_STOP_S)

    def _etcd_command(self) -> list[str]:
        from allocator.etcd_binary import find_etcd

        return [
            str(find_etcd().path),
            *("--name", "local", "--data-dir", str(self.folder.path / "etcd")),
            *("--listen-client-urls", self.etcd_url, "--advertise-client-urls", self.etcd_url),
            *("--listen-peer-urls", f"http://{HOST}:0", "--initial-advertise-peer-urls", _ETCD_PEER),
            *("--initial-cluster", f"local={_ETCD_PEER}"),
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
            *("--log-level", "warn", "--log-outputs", "stderr"),
        ]

    def _broker_command(self, name: str, at: int) -> list[str]:
        return [
            *(sys.executable, "-m", "gazctl.main", "serve"),
            *("--broker.zone", "local", "--broker.id", name, "--broker.host", HOST),
            *("--broker.port", str(self._ports.brokers[at]), "--broker.bind", HOST),
            *("--broker.http-port", str(self._ports.gateways[at])),
            *("--broker.spool-dir", str(self.folder.spool(name)), "--broker.file-root", str(self.folder.fragments)),
            *("--broker.drain-timeout", f"{DRAIN_S}s"),
            *("--etcd.address", self.etcd_url, "--etcd.lease", f"{_LEASE_S}s"),
            *("--log.level", "info"),
        ]

    def _write_cluster_file(self) -> None:
        """Once all are there, and again whenever one has another process id."""
        if not self._is_ready:
            return
        brokers = [
            {"id": broker.name, "endpoint": url, "pid": broker.pid}
            for broker, url in zip(self._brokers, self.broker_urls, strict=True)
        ]
        _write_json(
            self.folder.cluster_file,
            {
                "pid": os.getpid(),
                "etcd": self.etcd_url,
                "gateway": self.gateway_url,
                "file_root": str(self.folder.fragments),
                "brokers": brokers,
            },
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that connections of those before that are still being closed do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            return True
        except OSError:
            return False


def _free_port(wish: Any, taken: set[int]) -> int:
    """`wish`, if that is a port nobody has, or any other."""
    if isinstance(wish, int) and 0 < wish <= _PORT_MAX and wish not in taken and is_free(wish):
        taken.add(wish)
        return wish
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            taken.add(port)
            return port


async def _wait_connectable(process: Supervised, port: int) -> None:
    """etcd listens once it has a leader."""
    import grpc

    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel, _start_limit(process):
        while True:
            process.check()
            if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                return
            await asyncio.sleep(_LOOK_S)


async def _wait_serving(process: Supervised, port: int) -> None:
    import grpc

    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    async with grpc.aio.insecure_channel(f"{HOST}:{port}", options=options) as channel, _start_limit(process):
        listing: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/protocol.Journal/List")
        while True:
            process.check()
            try:
                await listing(b"", timeout=2).read()
                return
            except grpc.aio.AioRpcError as error:
                # One that asks for a token serves too.
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    return
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def _start_limit(process: Supervised) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(START_S):
            yield
    except TimeoutError:
        raise EndedError(
            f"{process.name} did not get ready within {START_S:g} s: its log may tell why, or try again"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    """Of a file that is only a help: what cannot be read is as good as nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, whoever looks."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    new.replace(path)
