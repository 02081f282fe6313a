"""``gazctl journals list``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import click

from broker.client.client import Client
from gazctl.command import Command
from gazctl.connection import broker_options, patience, run, selector_option
from gazctl.output import json_text, proto_text
from gazctl.raw_calls import brokers_of, list_journals
from gazctl.table import table
from protocol import json_form
from protocol.gen import epoch_pb2
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.journal_tree import hoist
from protocol.selector import LabelSelector

NONE = "<none>"
HEADS_S = 2.0


@click.command("list", cls=Command)
@selector_option(required=False)
@click.option(
    "-o",
    "--format",
    "format",
    type=click.Choice(["table", "yaml", "json", "proto"]),
    default="table",
    show_default=True,
    help="table for people; yaml for `gazctl journals apply`; json and proto for programs.",
)
@click.option("-L", "--label-columns", "labels", multiple=True, help="Show this label too; may be repeated.")
@click.option("-p", "--primary", is_flag=True, help="Show the primary; <S> marks a suspended journal.")
@click.option("-r", "--replicas", is_flag=True, help="Show the other brokers that hold it.")
@click.option("--rf", is_flag=True, help="Show the replication factor.")
@click.option("--stores", is_flag=True, help="Show the first store.")
@click.option("--heads", is_flag=True, help="Show the epoch, who holds its bytes, and whether the end is proven.")
@click.option("--watch", is_flag=True, help="Stay, and list again whenever something changes.")
@broker_options
def list_command(selector: LabelSelector, watch: bool, **given: Any) -> None:
    """List journals and who holds them.

    \b
    All journals with their brokers:
      gazctl journals list -p -r --rf
    Where each journal ends, and who can prove it:
      gazctl journals list --heads
    Specs below a prefix, to be changed and applied again:
      gazctl journals list -l name:prefix=my/ -o yaml
    """
    followed = _watch_heads if given["heads"] else _watch
    run(given, lambda client: (followed if watch else _list)(client, selector, given))


async def _list(client: Client, selector: LabelSelector, given: dict[str, Any]) -> None:
    async with brokers_of(client.settings) as brokers, patience("the list of journals"):
        listed = await list_journals(brokers, selector, heads=given["heads"])
        click.echo(printed(listed, given), nl=False)


async def _watch_heads(client: Client, selector: LabelSelector, given: dict[str, Any]) -> None:
    """By asking again: a watch tells of journals and of who holds them, and not of heads."""
    shown = ""
    async with brokers_of(client.settings) as brokers:
        while True:
            async with patience("the list of journals"):
                text = printed(await list_journals(brokers, selector, heads=True), given)
            if text != shown:
                click.echo(text, nl=False)
                shown = text
            await asyncio.sleep(HEADS_S)


async def _watch(client: Client, selector: LabelSelector, given: dict[str, Any]) -> None:
    async with aclosing(client.watch(selector)) as listings:
        async for listing in listings:
            message = pb.ListResponse(
                header=pb.Header(etcd=pb.Header.Etcd(revision=listing.revision)),
                journals=[
                    pb.ListResponse.Journal(
                        spec=journal.spec.to_proto(),
                        mod_revision=journal.mod_revision,
                        create_revision=journal.create_revision,
                        route=journal.route.to_proto(),
                    )
                    for journal in listing
                ],
            )
            click.echo(printed(message, given), nl=False)


def printed(listed: pb.ListResponse, given: dict[str, Any]) -> str:
    """In the form that was asked for."""
    match given["format"]:
        case "json":
            return json_text(json_form.listing(listed)) + "\n"
        case "proto":
            return proto_text(listed)
        case "yaml":
            return hoist((JournalSpec.from_proto(each.spec), each.mod_revision) for each in listed.journals)
        case _:
            return _table(listed, given) + "\n"


def _table(listed: pb.ListResponse, given: dict[str, Any]) -> str:
    titles = ["Name"]
    titles += ["RF"] if given["rf"] else []
    titles += ["Primary"] if given["primary"] else []
    titles += ["Replicas"] if given["replicas"] else []
    titles += ["Stores"] if given["stores"] else []
    titles += ["Epoch", "Holders", "Head"] if given["heads"] else []
    rows = []
    for journal in listed.journals:
        spec = JournalSpec.from_proto(journal.spec)
        row = [spec.name]
        row += [str(spec.replication)] if given["rf"] else []
        row += [_primary(journal)] if given["primary"] else []
        row += [_replicas(journal)] if given["replicas"] else []
        row += [spec.fragment.stores[0] if spec.fragment.stores else NONE] if given["stores"] else []
        row += [str(journal.head.epoch), holders(journal.head), proof(journal.head)] if given["heads"] else []
        row += [",".join(spec.labels.values_of(label)) or NONE for label in given["labels"]]
        rows.append(row)
    return table([*titles, *given["labels"]], rows)


def holders(head: epoch_pb2.HeadStatus) -> str:
    """By name, where they are members, and else by the ids of their spool directories."""
    return ",".join(_holder(held) for held in head.holders) or NONE


def _holder(held: epoch_pb2.HeadStatus.Holder) -> str:
    name = held.member.rpartition("/")[2] or f"{held.spool_id.hex()[:8]} (missing)"
    return f"{name} (damaged)" if held.damaged else name


def witnesses(head: epoch_pb2.HeadStatus) -> list[str]:
    """The brokers each of which can tell where the last epoch ends."""
    return [held.member.rpartition("/")[2] for held in head.holders if held.member and not held.damaged]


def proof(head: epoch_pb2.HeadStatus) -> str:
    """Whether anybody can tell where the journal ends."""
    if head.void:
        return "void: a broker without epochs took part"
    if not head.epoch:
        return "none yet"
    if head.HasField("end"):
        return f"closed at {head.end}"
    count, there = len(head.holders), len(witnesses(head))
    missing = sum(not held.member for held in head.holders)
    damaged = count - there - missing
    if not there:
        return (
            f"unproven: all {count} holders are missing"
            if missing == count
            else (f"unproven: of {count} holders {missing} are missing and {damaged} damaged")
        )
    return "proven" if there == count else f"proven, by {there} of {count} holders"


def _primary(journal: pb.ListResponse.Journal) -> str:
    route = journal.route
    name = route.members[route.primary].suffix if route.primary >= 0 and route.members else NONE
    return f"{name} <S>" if journal.spec.suspend.level else name


def _replicas(journal: pb.ListResponse.Journal) -> str:
    route = journal.route
    return ",".join(member.suffix for at, member in enumerate(route.members) if at != route.primary)
