"""``gazctl journals fragments``."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from broker.client.brokers import Brokers
from broker.client.client import Client
from gazctl.command import Command, Duration
from gazctl.connection import broker_options, patience, run, selector_option
from gazctl.output import json_text, proto_text
from gazctl.raw_calls import brokers_of, list_fragments
from gazctl.table import ago_text, size_text, table
from protocol import duration, json_form
from protocol.codec import CompressionCodec
from protocol.errors import RefusedError, Status
from protocol.fragment import sum_from_proto
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector

AT_ONCE_MAX = 16

_now_s = time.time  # noqa: TID251 -- ages are told by the clock on the wall


@click.command(cls=Command)
@selector_option(required=False)
@click.option(
    "-o", "--format", "format", type=click.Choice(["table", "json", "proto"]), default="table", show_default=True
)
@click.option("--from", "from_unix", type=int, default=0, help="Stored at this time or later, in Unix seconds.")
@click.option("--to", "to_unix", type=int, default=0, help="Stored before this time, in Unix seconds.")
@click.option(
    "--url-ttl", "sig_ttl", type=Duration(), default="0s", help="Show URLs by which anyone may read them for so long."
)
@broker_options
def fragments(selector: LabelSelector, **given: Any) -> None:
    """List the fragments of journals.

    \b
    Of one journal:
      gazctl journals fragments -l name=my/journal
    With URLs that are good for an hour:
      gazctl journals fragments -l name:prefix=my/ --url-ttl 1h -o json
    """
    answers = run(given, lambda client: _list(client, selector, given))
    match given["format"]:
        case "json":
            for answer in answers:
                for each in answer.fragments:
                    click.echo(json_text(json_form.plain(each)))
        case "proto":
            for answer in answers:
                click.echo(proto_text(answer), nl=False)
        case _:
            found = [each for answer in answers for each in answer.fragments]
            click.echo(table_of(found, given["sig_ttl"] > 0, _now_s()))


async def _list(client: Client, selector: LabelSelector, given: dict[str, Any]) -> list[pb.FragmentsResponse]:
    """Of each journal that matches, in the order of their names, but for those that have none to ask for."""
    at_once = asyncio.Semaphore(AT_ONCE_MAX)
    async with patience("the lists of fragments"), brokers_of(client.settings) as brokers:
        names = (await client.list(selector)).names

        async def one(name: str) -> pb.FragmentsResponse | None:
            async with at_once:
                return await _of_journal(brokers, name, given)

        answers = await asyncio.gather(*(one(name) for name in names))
    return [answer for answer in answers if answer is not None]


async def _of_journal(brokers: Brokers, name: str, given: dict[str, Any]) -> pb.FragmentsResponse | None:
    request = pb.FragmentsRequest(journal=name, begin_mod_time=given["from_unix"], end_mod_time=given["to_unix"])
    if given["sig_ttl"]:
        request.signatureTTL.CopyFrom(duration.to_proto(int(given["sig_ttl"] * 1e9)))
    try:
        return await list_fragments(brokers, request)
    except RefusedError as error:
        # A journal that is fully suspended is empty; one that is gone by now has none either.
        if error.status in (Status.SUSPENDED, Status.JOURNAL_NOT_FOUND):
            return None
        raise


def table_of(listed: list[pb.FragmentsResponse._Fragment], with_urls: bool, now_s: float) -> str:
    titles = ["Journal", "Offset", "Length", "Persisted", "SHA1", "Compression"]
    rows = []
    for each in listed:
        spec = each.spec
        row = [
            spec.journal,
            str(spec.begin),
            size_text(spec.end - spec.begin),
            ago_text(now_s - spec.mod_time) if spec.mod_time else "",
            f"{sum_from_proto(spec.sum).hex()[:12]}...",
            CompressionCodec.of_number(spec.compression_codec).name,
        ]
        rows.append([*row, each.signed_url] if with_urls else row)
    return table([*titles, "URL"] if with_urls else titles, rows)
