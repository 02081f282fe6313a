"""``gazctl journals prune``."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from broker.client.client import Client
from broker.client.listing import ListedJournal
from fragment.retention import Expired, plan
from fragment.stores.open_stores import OpenStores, StoreSettings
from gazctl.command import Command
from gazctl.connection import broker_options, matched, patience, run, selector_option
from gazctl.output import result
from gazctl.progress import bar
from gazctl.table import size_text
from protocol.errors import RefusedError, Status
from protocol.fragment import Fragment
from protocol.selector import LabelSelector

_now_s = time.time  # noqa: TID251 -- ages of objects are told by the clock on the wall


@click.command(cls=Command)
@selector_option()
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@click.option(
    "--file-root",
    type=click.Path(file_okay=False, path_type=Path),
    help="The brokers' folder for file:/// stores, which this process removes files from.",
)
@broker_options
def prune(selector: LabelSelector, dry_run: bool, file_root: Path | None, **given: Any) -> None:
    """Remove fragments that are past the retention of their journal.

    Brokers of ours do that by themselves. A journal without a retention keeps everything. The newest fragment always
    stays. Stores are opened by this process, which needs credentials for them.

    \b
      gazctl journals prune -l name:prefix=my/ --dry-run
    """
    totals = run(given, lambda client: _prune(client, selector, dry_run, file_root))
    what = "would be removed" if dry_run else "removed"
    click.echo(
        f"{totals.removed} of {totals.fragments} fragments {what}, {size_text(totals.removed_bytes)} "
        f"of {size_text(totals.bytes)}, in {totals.journals} journals."
    )


@dataclass(slots=True)
class _Totals:
    journals: int = 0
    fragments: int = 0
    bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0


async def _prune(client: Client, selector: LabelSelector, dry_run: bool, file_root: Path | None) -> _Totals:
    stores = OpenStores(StoreSettings(file_root, environ=dict(os.environ)))
    totals = _Totals()
    listing = await matched(client, selector)
    try:
        with bar("Pruning", len(listing), is_bytes=False) as advance:
            for journal in listing:
                await _prune_one(client, journal, None if dry_run else stores, totals)
                advance(1)
    finally:
        await stores.close()
    return totals


async def _prune_one(client: Client, journal: ListedJournal, stores: OpenStores | None, totals: _Totals) -> None:
    """Without `stores` nothing is removed."""
    name = journal.spec.name
    totals.journals += 1
    try:
        async with patience(f"the fragments of {name}"):
            listed = [each.fragment async for each in client.fragments(name)]
    except RefusedError as error:
        if error.status is not Status.SUSPENDED:
            raise
        result(f"{name}: skipped, since it is suspended and empty")
        return
    expired = aged(journal, listed, _now_s())
    totals.fragments += len(listed)
    totals.bytes += sum(fragment.content_length for fragment in listed)
    for fragment in expired.fragments:
        if stores is not None:
            await (await stores.open(fragment.backing_store)).remove(fragment.content_path)
        totals.removed += 1
        totals.removed_bytes += fragment.content_length
    verb = "to remove" if stores is None else "removed"
    result(f"{name}: {len(expired.fragments)} of {len(listed)} fragments {verb}; {expired.kept_because}")


def aged(journal: ListedJournal, listed: list[Fragment], now_s: float) -> Expired:
    """Those that are past retention. What is only on a broker's disk yet is not ours to remove."""
    stored = [fragment for fragment in listed if fragment.mod_time]
    head = max((fragment.end for fragment in listed), default=0)
    return plan(journal.spec, stored, now_s, head=head)
