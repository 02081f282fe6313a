"""A real etcd for tests: one node or several, which can be killed, paused, and started again with their data.

Whatever a test wants to know or to do behind the back of our own client goes through etcd's JSON gateway.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from allocator.etcd_binary import find_etcd
from tests.support.certificates import Certificates

START_S = 30
# Elections in a tenth of a second instead of one: that is what the start of an etcd takes.
QUICK = ("--heartbeat-interval", "10", "--election-timeout", "100", "--unsafe-no-fsync")
# Three nodes on two cores that others use too would hold elections all the time.
CALMER = ("--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync")


@dataclass
class EtcdServer:
    folder: Path
    name: str = "single"
    flags: Sequence[str] = QUICK
    certificates: Certificates | None = None
    # A socket in its folder, to listen on as well.
    socket_name: str | None = None
    client_port: int = field(default_factory=lambda: free_port())
    peer_port: int = field(default_factory=lambda: free_port())
    initial_cluster: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.certificates else 'http'}://127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def data(self) -> Path:
        return self.folder / f"{self.name}.data"

    def start(self) -> None:
        """Again as well, with the data that there is."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        sockets = [f"unix://{self.socket_name}"] if self.socket_name else []
        command = [
            str(find_etcd().path),
            *("--name", self.name, "--data-dir", str(self.data)),
            *("--listen-client-urls", ",".join([self.endpoint, *sockets]), "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", self.initial_cluster or f"{self.name}={self.peer_url}"),
            *("--log-level", "warn", "--log-outputs", "stderr"),
            *self.flags,
            *(self.certificates.etcd_flags() if self.certificates else ()),
        ]
        # A file and not a pipe: an etcd whose log is not read stands still.
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def wait_ready(self) -> None:
        """Serving begins when the node has found a leader."""
        assert self.process is not None
        target, options = f"127.0.0.1:{self.client_port}", [("grpc.max_reconnect_backoff_ms", 50)]
        if self.certificates:
            channel = grpc.secure_channel(target, self.certificates.grpc_credentials(), options)
        else:
            channel = grpc.insecure_channel(target, options)
        with channel:
            ready = grpc.channel_ready_future(channel)
            for _ in range(START_S * 4):
                try:
                    return ready.result(timeout=0.25)
                except grpc.FutureTimeoutError:
                    assert self.process.poll() is None, f"etcd has ended: {self.log.read_text()[-2000:]}"
        raise AssertionError(f"etcd did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def discard(self) -> None:
        """A fresh etcd takes 60 MB of disk at once: nobody wants to keep that."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # It does not stop at once, and could still answer.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def call(self, path: str, token: str | None = None, **request: Any) -> dict[str, Any]:
        """A call of the JSON gateway, such as ``call("kv/compaction", revision=7)``."""
        headers = {"Authorization": token} if token else {}
        url = f"{self.endpoint}/v3/{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(request).encode(), headers), timeout=10
        ) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    def put(self, key: str, value: str = "") -> int:
        """The revision at which it happened."""
        return int(self.call("kv/put", key=_b64(key), value=_b64(value))["header"]["revision"])

    def delete(self, key: str) -> int:
        return int(self.call("kv/deleterange", key=_b64(key))["header"]["revision"])

    def listing(self, prefix: str) -> dict[str, tuple[bytes, int]]:
        """Value and ModRevision of every key under `prefix`, as etcd has them now."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        answer = self.call("kv/range", key=_b64(prefix), range_end=_b64(end))
        return {
            base64.b64decode(kv["key"]).decode(): (base64.b64decode(kv.get("value", "")), int(kv["mod_revision"]))
            for kv in answer.get("kvs", ())
        }

    def revision(self) -> int:
        return int(self.call("kv/range", key=_b64("none"))["header"]["revision"])

    def compact(self, revision: int | None = None) -> None:
        self.call("kv/compaction", revision=revision or self.revision(), physical=True)

    def is_leader(self) -> bool:
        status = self.call("maintenance/status")
        return bool(status["leader"] == status["header"]["member_id"])


@dataclass(frozen=True)
class EtcdCluster:
    members: list[EtcdServer]

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def leader(self) -> EtcdServer:
        return next(member for member in self.members if member.process and member.is_leader())

    def is_of_one_mind(self, prefix: str) -> bool:
        """Whether its members hold the same. etcd 3.5.1 may lose transactions of a member that is killed under load
        (etcd-io/etcd#13766, repaired in 3.5.3); then no mirror can be right."""
        return len({str(sorted(member.listing(prefix).items())) for member in self.members}) == 1


@contextmanager
def etcd_server(
    folder: Path, *flags: str, certificates: Certificates | None = None, socket_name: str | None = None
) -> Iterator[EtcdServer]:
    server = EtcdServer(folder, flags=(*QUICK, *flags), certificates=certificates, socket_name=socket_name)
    try:
        server.start()
        yield server
    finally:
        server.discard()


@contextmanager
def etcd_cluster(folder: Path, size: int = 3) -> Iterator[EtcdCluster]:
    members = [EtcdServer(folder, f"node-{at}", flags=CALMER) for at in range(size)]
    try:
        for member in members:
            member.initial_cluster = ",".join(f"{each.name}={each.peer_url}" for each in members)
            member.spawn()
        for member in members:
            member.wait_ready()
        yield EtcdCluster(members)
    finally:
        for member in members:
            member.discard()


_PORTS = itertools.count(random.Random().randrange(20_000, 31_000))


def free_port() -> int:
    """Below those that the system gives to outgoing connections: a node that is started again needs its own back."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("unreachable")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
