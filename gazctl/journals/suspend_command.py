"""``gazctl journals suspend``."""

from __future__ import annotations

from typing import Any

import click

from broker.client.client import Client
from gazctl.command import Command
from gazctl.connection import broker_options, matched, patience, run, selector_option, told
from gazctl.output import notice
from protocol.errors import GazetteError, RefusedError, Status
from protocol.journal import SuspendLevel, SuspendMode
from protocol.selector import LabelSelector


@click.command(cls=Command)
@selector_option()
@click.option("-f", "--force", is_flag=True, help="Also if not all of it is in the store yet.")
@broker_options
def suspend(selector: LabelSelector, force: bool, **given: Any) -> None:
    """Suspend journals that nobody appends to: they need fewer brokers then, or none.

    A journal whose content is all in its store is left to one broker, an empty one to none. The next append resumes it.

    \b
      gazctl journals suspend -l name:prefix=my/old/
    """
    if not run(given, lambda client: _suspend(client, selector, force)):
        raise SystemExit(1)


async def _suspend(client: Client, selector: LabelSelector, force: bool) -> bool:
    mode = SuspendMode.NOW if force else SuspendMode.IF_FLUSHED
    went_well = True
    for journal in await matched(client, selector):
        name = journal.spec.name
        if journal.spec.suspend is not None and journal.spec.suspend.level == SuspendLevel.FULL:
            click.echo(f"{name}: SUSPENDED")
            continue
        try:
            async with patience(f"{name} to be suspended"):
                await client.append(name, suspend=mode)
            click.echo(f"{name}: OK (not suspended: not all of it is in its store yet, see --force)")
        except RefusedError as error:
            if error.status is not Status.SUSPENDED:
                went_well = False
                notice(f"{name}: {told(error)}")
                continue
            click.echo(f"{name}: SUSPENDED")
        except GazetteError as error:
            went_well = False
            notice(f"{name}: {told(error)}")
    return went_well
