"""gazctl as people run it, which is as a process; and a cluster by ``gazctl up``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually_blocking

WAIT_S = 60.0
GAZCTL = (sys.executable, "-m", "gazctl.main")


@dataclass
class Ran:
    code: int
    stdout: str
    stderr: str


@dataclass
class Gazctl:
    """Runs gazctl against one broker."""

    address: str
    folder: Path

    def environ(self, **more: str) -> dict[str, str]:
        own = {"BROKER_ADDRESS": self.address, "HOME": str(self.folder)}
        return {**os.environ, **own, **more}

    def __call__(self, *arguments: str, stdin: str | bytes = "", **environ: str) -> Ran:
        ran = subprocess.run(
            [*GAZCTL, *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=WAIT_S,
            cwd=self.folder,
            env=self.environ(PYTHONPATH=os.getcwd(), **environ),
            check=False,
        )
        return Ran(ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace"))

    def ok(self, *arguments: str, stdin: str | bytes = "", **environ: str) -> str:
        """Its stdout. It must go well."""
        ran = self(*arguments, stdin=stdin, **environ)
        assert ran.code == 0, ran
        return ran.stdout

    def begin(self, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        environ = self.environ(PYTHONPATH=os.getcwd(), PYTHONUNBUFFERED="1")
        return subprocess.Popen([*GAZCTL, *arguments], cwd=self.folder, env=environ, **settings)

    def create(self, *names: str, replication: int = 1, policy: str = "") -> None:
        for name in names:
            self.ok("journals", "apply", stdin=spec(name, replication, policy))


def spec(name: str, replication: int = 1, policy: str = "") -> str:
    return f"""
name: {name}
revision: -1
replication: {replication}
labels:
- name: content-type
  value: application/x-ndjson
fragment:
  length: 1048576
  compression_codec: NONE
  stores: ["file:///"]
  refresh_interval: 1s
{policy}
"""


@dataclass
class Up:
    """A ``gazctl up`` that runs."""

    folder: Path
    port: int
    brokers: int = 1
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> dict[str, Any]:
        """What its cluster.json says."""
        command = [*GAZCTL, "up", "--brokers", str(self.brokers), "--dir", str(self.folder), "--port", str(self.port)]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        eventually_blocking(self._is_ready, lambda: f"the cluster: {self.said()}")
        return self.cluster()

    def _is_ready(self) -> bool:
        """What one before it may have left behind does not count."""
        assert self.process is not None
        return (self.folder / "cluster.json").exists() and self.cluster()["pid"] == self.process.pid

    @property
    def output(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.out"

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text(encoding="utf-8"))
        return found

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
