"""``gazctl journals reset-head``."""

from __future__ import annotations

from typing import Any

import click

from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.retrying_read import WRITE_HEAD
from gazctl.command import Command
from gazctl.connection import broker_options, matched, patience, run, selector_option, told
from gazctl.output import notice
from protocol.errors import GazetteError
from protocol.journal import SuspendLevel, SuspendMode
from protocol.selector import LabelSelector


@click.command("reset-head", cls=Command)
@selector_option()
@broker_options
def reset_head(selector: LabelSelector, **given: Any) -> None:
    """Let appends go on after all brokers of a journal were lost at once.

    Brokers refuse appends to a journal whose store holds more than they know of (INDEX_HAS_GREATER_OFFSET): what was
    not in the store yet may still come back with a disk. Once it is certain that it does not, this has appends go on at
    the end of what there is.

    \b
      gazctl journals reset-head -l name=my/journal
    """
    if not run(given, lambda client: _reset(client, selector)):
        raise SystemExit(1)


async def _reset(client: Client, selector: LabelSelector) -> bool:
    went_well = True
    for journal in await matched(client, selector):
        try:
            click.echo(f"{journal.spec.name}: {await _reset_one(client, journal)}")
        except GazetteError as error:
            went_well = False
            notice(f"{journal.spec.name}: {told(error)}")
    return went_well


async def _reset_one(client: Client, journal: ListedJournal) -> str:
    name = journal.spec.name
    level = SuspendLevel.NONE if journal.spec.suspend is None else journal.spec.suspend.level
    if level == SuspendLevel.FULL:
        return "skipped, since it is suspended and empty"
    async with patience(f"the end of {name}"):
        head = (await client.read_metadata(name, WRITE_HEAD)).write_head
    if head == 0:
        return "skipped, since it is empty"
    # One that is suspended stays so: that is no reason to wake it.
    mode = SuspendMode.RESUME if level == SuspendLevel.NONE else SuspendMode.KEEP
    async with patience(f"{name} to take an append"):
        await client.append(name, offset=head, suspend=mode)
    return f"appends go on at {head}"
