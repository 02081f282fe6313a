"""``gazctl journals store-health``."""

from __future__ import annotations

from typing import Any

import click

from broker.client.client import Client
from gazctl.command import Command
from gazctl.connection import broker_options, patience, run
from protocol.errors import RefusedError


@click.command("store-health", cls=Command)
@click.argument("store_url")
@click.option("--check-delete-prefix", default="", help="Also write and delete an object below this; ends in a slash.")
@broker_options
def store_health(store_url: str, check_delete_prefix: str, **given: Any) -> None:
    """Have a broker try whether it can use a store.

    \b
      gazctl journals store-health s3://my-bucket/prefix/
    """
    problem = run(given, lambda client: _problem(client, store_url, check_delete_prefix))
    if problem:
        raise click.ClickException(
            f"fragment store {store_url} is unhealthy: {problem}. Check that it exists, and what brokers may do there"
        )
    click.echo(f"Fragment store {store_url} is healthy")


async def _problem(client: Client, store_url: str, prefix: str) -> str:
    try:
        async with patience("the store to be tried"):
            await client.store_health(store_url, check_delete=bool(prefix), check_delete_prefix=prefix)
    except RefusedError as error:
        return error.detail or error.status.name
    return ""
