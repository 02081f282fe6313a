"""``gazctl journals apply``."""

from __future__ import annotations

import sys
from typing import Any

import click

from broker.client.client import Client
from gazctl.command import Command
from gazctl.connection import broker_options, patience, run
from gazctl.output import notice, proto_text
from gazctl.progress import bar
from protocol.errors import GazetteError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.journal_tree import parse
from protocol.postfix_template import check_within_subset


def txn_option(command: Any) -> Any:
    return click.option(
        "--max-txn-size",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Changes in one transaction of etcd, which takes 128 by default; 0 is all of them, at once or not at all.",
    )(command)


@click.command(cls=Command)
@click.option("--specs", "specs_path", default="-", show_default="stdin", help="File with a tree of journals.")
@click.option("--dry-run", is_flag=True, help="Show the request, and change nothing.")
@txn_option
@broker_options
def apply(specs_path: str, dry_run: bool, max_txn_size: int, **given: Any) -> None:
    """Create, change and delete journals by a YAML file.

    Directories end in a slash, and give what they set to all journals below. A journal without `revision` is created;
    with the one that `gazctl journals list -o yaml` shows it is changed, and with `revision: -1` either. `delete: true`
    deletes it.

    \b
    Create a journal:
      echo '{name: my/journal, replication: 1, fragment: {length: 1048576,
      compression_codec: GZIP, stores: ["file:///"], refresh_interval: 1m0s}}' | gazctl journals apply
    See what a file would do:
      gazctl journals apply --specs journals.yaml --dry-run
    """
    request = _read(specs_path)
    _check_templates(request)
    if dry_run:
        click.echo(proto_text(request), nl=False)
        return
    revision = run(given, lambda client: apply_changes(client, request, max_txn_size))
    click.echo(applied_text(request, revision))


def _read(path: str) -> pb.ApplyRequest:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"the specs cannot be read: {error}") from error
    try:
        return parse(text)
    except ValidationError as error:
        raise click.ClickException(f"{'stdin' if path == '-' else path}: {error}") from error


def _check_templates(request: pb.ApplyRequest) -> None:
    """Refuse what brokers would refuse, also in a dry run, which asks none.

    Of a journal that may exist only they know whether the template is new to it.
    """
    for change in request.changes:
        if not change.HasField("upsert"):
            continue
        try:
            check_within_subset(change.upsert.fragment.path_postfix_template, JournalSpec.from_proto(change.upsert))
        except ValidationError as error:
            problem = f"fragment.path_postfix_template of {change.upsert.name}: {error}"
            if change.expect_mod_revision == 0:
                raise click.ClickException(problem) from error
            notice(f"{problem}. Brokers refuse it, unless the journal has this template already.")


async def apply_changes(client: Client, request: pb.ApplyRequest, txn_size: int) -> int:
    """In one transaction, or in several of this size. The revision of the last."""
    changes = list(request.changes)
    size = txn_size or len(changes)
    revision = done = 0
    with bar("Applying", len(changes), is_bytes=False) as advance:
        for at in range(0, len(changes), size):
            batch = changes[at : at + size]
            try:
                async with patience("brokers to apply the changes"):
                    revision = await client.apply(*batch, changes_max=size)
            except GazetteError as error:
                if done:
                    error.add_note(f"The first {done} of {len(changes)} changes were made.")
                raise
            done += len(batch)
            advance(len(batch))
    return revision


def applied_text(request: pb.ApplyRequest, revision: int) -> str:
    deleted = sum(bool(change.delete) for change in request.changes)
    upserted = len(request.changes) - deleted
    parts = [f"{upserted} applied"] * bool(upserted) + [f"{deleted} deleted"] * bool(deleted)
    return f"Journals: {', '.join(parts)}, at revision {revision}."
