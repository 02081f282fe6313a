"""``gazctl up``: a cluster on this machine, for as long as the command runs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from gazctl.local_cluster import BROKERS_MAX

DEFAULT_PORT = 8080


@click.command()
@click.option(
    "--brokers", type=click.IntRange(1, BROKERS_MAX), default=3, show_default=True, help="How many brokers to run."
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    show_default="pygazette/cluster in the user's state directory",
    help="Holds all of the cluster: etcd's data, spools, fragments and logs.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The first broker's gRPC port; the others have those above it.",
)
def up(brokers: int, folder: Path | None, port: int) -> None:
    """Run a whole cluster on this machine: etcd and some brokers.

    Stop it with Ctrl-C. Started again on the same folder, it has all that it had. A broker that dies is started again.
    DIR/cluster.json exists while all is up, and tells addresses and process ids. Stores `file:///` are in
    DIR/fragments. It listens on this machine only.

    \b
    A cluster of three brokers, the first of them on port 8080:
      gazctl up
    A single broker elsewhere:
      gazctl up --brokers 1 --dir /tmp/cluster --port 9000
    """
    from gazctl.local_cluster import LocalClusterError

    try:
        asyncio.run(_run(folder or _state_folder(), brokers, port))
    except (LocalClusterError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _run(folder: Path, brokers: int, port: int) -> None:
    from gazctl.local_cluster import LocalCluster

    cluster = LocalCluster(folder, brokers, port, click.echo)
    loop = asyncio.get_running_loop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cluster.stop)
    click.echo(f"Starting etcd and {brokers} broker{'s' * (brokers > 1)} in {cluster.folder.path} ...")
    await cluster.run(lambda url: click.echo(_welcome(cluster.folder.path, url, cluster.gateway_url, brokers)))
    click.echo("Stopped.")


def _welcome(folder: Path, url: str, gateway: str, brokers: int) -> str:
    """What a newcomer types next, ready to be copied."""
    elsewhere = "" if url.endswith(f":{DEFAULT_PORT}") else f"  export BROKER_ADDRESS={url}\n"
    return f"""
Ready: {brokers} broker{"s" * (brokers > 1)} from {url} on; HTTP at {gateway}. All is in {folder}.

In another terminal, create a journal, append to it, and read it:

{elsewhere}  echo '{{name: my/journal, revision: -1, replication: {min(brokers, 3)}, fragment: {{length: 1048576,
  compression_codec: GZIP, stores: ["file:///"], refresh_interval: 1m0s}}}}' | gazctl journals apply
  echo hello | gazctl journals append -l name=my/journal
  gazctl journals read -l name=my/journal
  curl {gateway}/my/journal

  gazctl journals read -l name=my/journal --block    follow it
  gazctl journals list -p -r                         who holds what
  gazctl brokers list                                the brokers
  gazctl --help                                      everything else

Ctrl-C stops it all. Your data stays in {folder}."""


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pygazette" / "cluster"
