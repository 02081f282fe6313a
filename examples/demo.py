"""``make demo``: three brokers, a good deal of orders, a broker that is killed, nothing lost, and a query of Spark.

All that is shown is done with commands that anybody can type, and is verified. The exit code is zero only if all of it
came out right.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from broker.client.client import Client
from broker.client.retrying_read import WRITE_HEAD
from gazctl.local_cluster import is_free
from gazctl.table import size_text
from protocol.errors import GazetteError

ROOT = Path(__file__).parent.parent
BROKERS = 3
ORDERS = "name:prefix=acme/orders/"
VICTIM_OF = "acme/orders/part-000"
STEP_S = 120.0
"""No step may take longer."""
LOG_LINES = 6
"""Of each process, if something goes wrong."""

_GAZCTL = (sys.executable, "-m", "gazctl.main")
_LOOK_S = 0.05


class DemoError(Exception):
    """Something did not come out as it should."""


@click.command()
@click.option("--events", default=300_000, show_default=True, help="Orders to append.")
@click.option("--keep", is_flag=True, help="Keep the folder of the cluster.")
def main(events: int, keep: bool) -> None:
    """Show a cluster at work, and that it loses nothing."""
    folder = Path(tempfile.mkdtemp(prefix="pygazette-demo-"))
    try:
        asyncio.run(_Demo(folder, events).run())
    except (DemoError, GazetteError, OSError, TimeoutError) as error:
        click.echo(click.style(f"\nThe demo failed: {str(error) or type(error).__name__}", fg="red"), err=True)
        _show_logs(folder / "cluster" / "logs")
        sys.exit(1)
    if keep:
        click.echo(f"\nAll of it is still in {folder}; `gazctl up --dir {folder / 'cluster'}` brings it back.")
    else:
        shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, folder: Path, events: int) -> None:
        self._folder = folder
        self._count = events
        self._orders = folder / "orders.ndjson"
        self._up_output = folder / "up.log"
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1"}

    async def run(self) -> None:
        await self._show_orders()
        async with self._cluster() as cluster:
            url = cluster["brokers"][0]["endpoint"]
            self._environ["BROKER_ADDRESS"] = url
            async with Client(url) as client:
                _say("Create journals for them, each on three brokers")
                await self._gazctl("journals", "apply", "--specs", "examples/journals.yaml")
                await self._gazctl("brokers", "list")
                await self._append_with_a_death(client)
                await self._gazctl("journals", "list", "-l", ORDERS, "-p", "-r", "--rf")
                await self._read_back()
                _say("The history of a journal is plain files in a store; the latest bytes are on the brokers' disks")
                await self._gazctl("journals", "fragments", "-l", f"name={VICTIM_OF}")
                self._show_files()
                await self._query(url)
            _say("Stop the cluster")
        click.echo(_NEXT)

    async def _show_orders(self) -> None:
        _say(f"{self._count:,} orders of a made-up shop")
        command = ("-m", "examples.order_events", "--count", str(self._count), "--keys")
        click.echo(f"$ python {' '.join(command)} > orders")
        with self._orders.open("wb") as file:
            await self._finished(await asyncio.create_subprocess_exec(sys.executable, *command, stdout=file, cwd=ROOT))
        with self._orders.open(encoding="utf-8") as lines:
            for _ in range(2):
                click.echo(f"{next(lines, '').strip():6} {next(lines, '').strip()}")

    @asynccontextmanager
    async def _cluster(self) -> AsyncIterator[dict[str, Any]]:
        port = next(port for port in range(8080, 65_000, 10) if all(map(is_free, range(port, port + BROKERS))))
        folder = self._folder / "cluster"
        _say(f"A cluster of etcd and {BROKERS} brokers, on this machine")
        click.echo(f"$ gazctl up --brokers {BROKERS} --dir {folder} --port {port}")
        command = (*_GAZCTL, "up", "--brokers", str(BROKERS), "--dir", str(folder), "--port", str(port))
        with self._up_output.open("wb") as output:
            up = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, cwd=ROOT)
        try:
            yield await self._ready(up)
            up.send_signal(signal.SIGINT)
            async with asyncio.timeout(STEP_S):
                code = await up.wait()
            if code != 0:
                raise DemoError(f"the cluster ended with code {code}: {self._up_said()}")
            click.echo("It has stopped, all processes with it.")
        finally:
            if up.returncode is None:
                up.send_signal(signal.SIGINT)
                try:
                    async with asyncio.timeout(30):
                        await up.wait()
                except TimeoutError:
                    up.kill()
                    await up.wait()

    async def _ready(self, up: asyncio.subprocess.Process) -> dict[str, Any]:
        async with asyncio.timeout(STEP_S):
            while not self._is_up():
                if up.returncode is not None:
                    raise DemoError(f"the cluster did not start: {self._up_said()}")
                await asyncio.sleep(_LOOK_S)
        cluster = self._cluster_now()
        for broker in cluster["brokers"]:
            click.echo(f"{broker['id']} at {broker['endpoint']}, process {broker['pid']}")
        return cluster

    def _is_up(self) -> bool:
        return (self._folder / "cluster" / "cluster.json").exists()

    def _cluster_now(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "cluster" / "cluster.json").read_text(encoding="utf-8"))
        return found

    def _up_said(self) -> str:
        return self._up_output.read_text(encoding="utf-8", errors="replace")[-2000:]

    async def _append_with_a_death(self, client: Client) -> None:
        _say("Append the orders, those of a customer to one journal; meanwhile kill a broker with -9")
        command = ("journals", "append", "-l", ORDERS, "-f", "lines", "-m", "modulo", "--at-least-once")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        appending = await self._begin(*command, "-i", str(self._orders))
        try:
            victim = await self._kill_primary(client, appending)
            await self._finished(appending)
        finally:
            if appending.returncode is None:
                appending.kill()
                await appending.wait()
        took_s = loop.time() - began_s
        size = self._orders.stat().st_size
        click.echo(f"All were acknowledged within {took_s:.0f} s ({size_text(size / took_s)} a second).")
        for line in self._up_said().splitlines():
            if line.startswith(f"{victim} "):
                click.echo(f"gazctl up: {line}")

    async def _kill_primary(self, client: Client, appending: asyncio.subprocess.Process) -> str:
        """In the middle of it. The name of the broker."""
        wanted = self._orders.stat().st_size // 12
        async with asyncio.timeout(STEP_S):
            while (await client.read_metadata(VICTIM_OF, WRITE_HEAD)).write_head < wanted:
                if appending.returncode is not None:
                    raise DemoError("the orders were appended before a broker could be killed: give more --events")
                await asyncio.sleep(_LOOK_S)
        route = (await client.list(f"name={VICTIM_OF}")).journals[0].route
        primary = route.primary_id
        if primary is None:
            raise DemoError(f"{VICTIM_OF} has no primary")
        cluster = self._cluster_now()
        pid = next(broker["pid"] for broker in cluster["brokers"] if broker["id"] == primary.suffix)
        click.echo(click.style(f"$ kill -9 {pid}    # {primary.suffix}, the primary of {VICTIM_OF}", fg="yellow"))
        os.kill(pid, signal.SIGKILL)
        return primary.suffix

    async def _read_back(self) -> None:
        _say("Read all orders back, and compare")
        read = self._folder / "read.ndjson"
        await self._gazctl("journals", "read", "-l", ORDERS, "-o", str(read))
        lost, strange, repeated = await asyncio.to_thread(self._compare, read)
        if lost or strange:
            raise DemoError(f"{lost} orders were lost, and {strange} lines are none of ours")
        click.echo(click.style(f"All {self._count:,} orders are there. Nothing was lost.", fg="green"))
        if repeated:
            click.echo(
                f"{repeated:,} of them are there twice: their acknowledgement died with the broker, and "
                "--at-least-once has appended them again."
            )

    def _compare(self, read: Path) -> tuple[int, int, int]:
        """How many were lost, are none of ours, and are there more than once."""
        with self._orders.open("rb") as lines:
            written = {line for at, line in enumerate(lines) if at % 2}
        with read.open("rb") as lines:
            found = Counter(lines)
        return (
            len(written - found.keys()),
            len(found.keys() - written),
            sum(times - 1 for times in found.values()),
        )

    def _show_files(self) -> None:
        fragments = self._folder / "cluster" / "fragments"
        files = sorted(path for path in fragments.rglob("*") if VICTIM_OF in str(path) and path.suffix == ".zst")
        click.echo(f"$ ls {fragments}/{VICTIM_OF}")
        for path in files[:3]:
            click.echo(f"{path.name}  {size_text(path.stat().st_size)}")
        if not files:
            raise DemoError("no fragment has come to the store")

    async def _query(self, url: str) -> None:
        """In a process of its own, as Spark is nothing that gazctl needs."""
        _say("Ask Spark, which reads those files itself")
        fragments = self._folder / "cluster" / "fragments"
        where = ("--broker", url, "--file-root", str(fragments))
        command = ("-m", "examples.order_totals", *where, "--expect", str(self._count))
        click.echo(f"$ python {shlex.join(command)}")
        sys.stdout.flush()
        querying = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, env=self._environ)
        try:
            await self._finished(querying)
        finally:
            if querying.returncode is None:
                querying.kill()
                await querying.wait()

    async def _gazctl(self, *arguments: str) -> None:
        await self._finished(await self._begin(*arguments))

    async def _begin(self, *arguments: str) -> asyncio.subprocess.Process:
        click.echo(f"$ gazctl {shlex.join(arguments)}")
        sys.stdout.flush()
        return await asyncio.create_subprocess_exec(*_GAZCTL, *arguments, cwd=ROOT, env=self._environ)

    async def _finished(self, process: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(STEP_S):
            code = await process.wait()
        if code != 0:
            raise DemoError(f"a command ended with code {code}")


def _show_logs(folder: Path) -> None:
    """The end of what each process has logged, and where the rest is."""
    click.echo(f"What the cluster logged is in {folder}. It ends with:", err=True)
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]:
            click.echo(f"{path.stem}: {line[:300]}", err=True)


def _say(title: str) -> None:
    click.echo(click.style(f"\n{title}", bold=True))


_NEXT = """
Where to look next:
  gazctl up                 a cluster of your own; it prints the first commands to try
  gazctl --help             all commands, with examples
  docs/gazctl.md            gazctl from the beginning
  examples/                 the journals, the orders and the query of this demo, and a pipeline on Spark
  ARCHITECTURE.md           how it works"""


if __name__ == "__main__":
    main()
