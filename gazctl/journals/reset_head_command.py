"""``gazctl journals reset-head``."""

from __future__ import annotations

from typing import Any

import click

from broker.client.client import Client
from broker.client.retrying_read import WRITE_HEAD
from gazctl.command import Command
from gazctl.connection import broker_options, nothing_matches, patience, run, selector_option, told
from gazctl.journals.list_command import holders, proof, witnesses
from gazctl.output import notice
from gazctl.raw_calls import brokers_of, list_journals
from protocol.errors import GazetteError, RefusedError, Status
from protocol.fragment import HEAD_MAX
from protocol.gen import journal_pb2 as pb
from protocol.journal import SuspendLevel, SuspendMode
from protocol.selector import LabelSelector


@click.command("reset-head", cls=Command)
@selector_option()
@click.option(
    "--offset",
    type=click.IntRange(0, HEAD_MAX),
    help="Go on here, and not at the end of what is known. Well above anything that was written nothing of a directory "
    "that returns later is dropped: there is a hole instead.",
)
@broker_options
def reset_head(selector: LabelSelector, offset: int | None, **given: Any) -> None:
    """Let appends go on after all spool directories of a journal were lost.

    Brokers refuse appends to a journal whose end nobody who is there can prove (INDEX_HAS_GREATER_OFFSET): what was not
    in the store yet may still come back with a spool directory, and the journal then goes on by itself. Once it is
    certain that none comes back, this has appends go on at the end of what there is. What a directory has beyond that,
    and returns later with, is dropped. The processes of missing holders have to be stopped: one that only hangs may
    acknowledge appends that are then lost.

    \b
    Which holders are missing:
      gazctl journals list -l name=my/journal --heads
      gazctl journals reset-head -l name=my/journal
    """
    if not run(given, lambda client: _reset(client, selector, offset)):
        raise SystemExit(1)


async def _reset(client: Client, selector: LabelSelector, offset: int | None) -> bool:
    async with brokers_of(client.settings) as brokers, patience("the list of journals"):
        listed = await list_journals(brokers, selector, heads=True)
    if not listed.journals:
        raise nothing_matches(selector)
    if offset is not None and len(listed.journals) > 1:
        raise click.UsageError(f"--offset is for one journal, and {len(listed.journals)} match")
    went_well = True
    for journal in listed.journals:
        try:
            click.echo(f"{journal.spec.name}: {await _reset_one(client, journal, offset)}")
        except GazetteError as error:
            went_well = False
            notice(f"{journal.spec.name}: {told(error)}")
    return went_well


async def _reset_one(client: Client, journal: pb.ListResponse.Journal, offset: int | None) -> str:
    name, level, head = journal.spec.name, SuspendLevel(journal.spec.suspend.level), journal.head
    if level == SuspendLevel.FULL:
        return "skipped, since it is suspended and empty"
    is_open = bool(head.epoch) and not head.HasField("end") and not head.void
    there = witnesses(head)
    is_unproven = is_open and not there
    if offset is not None and not is_unproven:
        raise RefusedError(Status.WRONG_APPEND_OFFSET, f"its end is known: {proof(head)}")
    async with patience(f"the end of {name}"):
        end = (await client.read_metadata(name, WRITE_HEAD)).write_head
    if is_unproven:
        end = max(end, head.begin, head.floor) if offset is None else offset
    elif is_open and len(there) < len(head.holders):
        notice(f"{name}: {proof(head)} ({holders(head)})")
    if end == 0 and not is_unproven:
        return "skipped, since it is empty"
    # One that is suspended stays so: that is no reason to wake it.
    mode = SuspendMode.RESUME if level == SuspendLevel.NONE else SuspendMode.KEEP
    async with patience(f"{name} to take an append"):
        try:
            await client.append(name, offset=end, suspend=mode)
        except RefusedError as error:
            if error.status is Status.INDEX_HAS_GREATER_OFFSET and there:
                error.add_note(
                    f"{', '.join(there)} can tell where it ends, and does within seconds of its start: see its log if "
                    "not. A reset is for when nobody can."
                )
            raise
    lost = f"; nobody who holds its last bytes can tell where they end: {holders(head)}" if is_unproven else ""
    return f"appends go on at {end}{lost}"
