"""``gazctl top``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click

from broker.client.brokers import Brokers
from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.read_message import ReadMetadata
from broker.client.retry import NEVER
from broker.client.retrying_read import WRITE_HEAD
from gazctl.command import Command, Duration
from gazctl.connection import broker_options, run, selector_option
from gazctl.raw_calls import MemberSaid, ask_member, brokers_of
from gazctl.table import size_text, table
from protocol.errors import GazetteError
from protocol.journal import SuspendLevel
from protocol.selector import LabelSelector

AT_ONCE_MAX = 16
TITLES = ("Journal", "Primary", "Replicas", "Head", "Append rate", "Read rate", "Not stored")


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a journal at one moment."""

    at_s: float
    head: int | None
    # Bytes that are on brokers' disks alone.
    debt: int | None
    # What each broker has handed to readers since it was started, of those that tell.
    served: Mapping[str, int]


@click.command(cls=Command)
@selector_option(required=False)
@click.option("--interval", type=Duration(), default="2s", show_default=True, help="Between two looks.")
@click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="Journals to show.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="End after so many tables; 0 goes on.")
@broker_options
def top(selector: LabelSelector, **given: Any) -> None:
    """Watch journals: who holds them, how fast they grow and are read, and how much of them is not in a store yet.

    The busiest come first. On a terminal the table stays in place; elsewhere tables follow each other. Of reads, those
    are seen that brokers serve, and not those that go straight to a store.

    \b
      gazctl top
      gazctl top -l name:prefix=my/ --interval 5s
      gazctl top --count 1 > rates.txt
    """
    try:
        run(given, lambda client: _top(client, selector, given))
    except KeyboardInterrupt:
        sys.exit(0)


async def _top(client: Client, selector: LabelSelector, given: dict[str, Any]) -> None:
    before: dict[str, Sample] = {}
    # Whoever wants but some tables wants rates in all of them, and these take two looks.
    shown = -1 if given["count"] else 0
    with _Screen() as screen:
        async with brokers_of(client.settings) as members:
            while True:
                journals = (await client.list(selector)).journals
                samples = await _samples(client, members, journals)
                if shown >= 0:
                    screen.show(rows_of(journals, before, samples)[: given["limit"]], len(journals))
                before = samples
                shown += 1
                if given["count"] and shown == given["count"]:
                    return
                await asyncio.sleep(given["interval"])


async def _samples(client: Client, members: Brokers, journals: tuple[ListedJournal, ...]) -> dict[str, Sample]:
    at_once = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(journal: ListedJournal) -> Sample:
        now_s = asyncio.get_running_loop().time()
        if journal.spec.suspend is not None and journal.spec.suspend.level == SuspendLevel.FULL:
            return Sample(now_s, 0, 0, {})
        try:
            async with at_once:
                said = await _members_say(members, journal)
                heads = [each.write_head for each in said.values()]
                # Behind a load balancer members cannot be asked one by one.
                head = max(heads) if heads else (await _metadata(client, journal)).write_head
                local = [
                    each.fragment.content_length
                    async for each in client.fragments(journal.spec.name, retry=NEVER)
                    if not each.fragment.mod_time
                ]
        except GazetteError:
            # The row says that nobody answers for it; the next look may find somebody.
            return Sample(now_s, None, None, {})
        served = {name: each.served_bytes for name, each in said.items() if each.served_bytes is not None}
        return Sample(now_s, head, sum(local), served)

    sampled = await asyncio.gather(*(one(journal) for journal in journals))
    return {journal.spec.name: sample for journal, sample in zip(journals, sampled, strict=True)}


async def _members_say(members: Brokers, journal: ListedJournal) -> dict[str, MemberSaid]:
    said: dict[str, MemberSaid] = {}
    for endpoint in journal.route.endpoints or ():
        with suppress(GazetteError):
            said[endpoint] = await ask_member(members, endpoint, journal.spec.name)
    return said


async def _metadata(client: Client, journal: ListedJournal) -> ReadMetadata:
    return await client.read_metadata(journal.spec.name, WRITE_HEAD, retry=NEVER)


def read_rate(old: Sample | None, new: Sample) -> float | None:
    """None if nobody has told. A broker that was started again counts from zero."""
    if old is None or new.at_s <= old.at_s or not new.served:
        return None
    grown = (
        count - old.served[name] if count >= old.served[name] else count
        for name, count in new.served.items()
        if name in old.served
    )
    return sum(grown) / (new.at_s - old.at_s)


def append_rate(old: Sample | None, new: Sample) -> float | None:
    if old is None or old.head is None or new.head is None or new.at_s <= old.at_s:
        return None
    return (new.head - old.head) / (new.at_s - old.at_s)


def rows_of(
    journals: tuple[ListedJournal, ...], before: dict[str, Sample], now: dict[str, Sample]
) -> list[tuple[str, ...]]:
    """The busiest first."""
    appended = {name: append_rate(before.get(name), sample) for name, sample in now.items()}
    read = {name: read_rate(before.get(name), sample) for name, sample in now.items()}

    def order(journal: ListedJournal) -> tuple[float, str]:
        name = journal.spec.name
        return -((appended[name] or 0.0) + (read[name] or 0.0)), name

    rows: list[tuple[str, ...]] = []
    for journal in sorted(journals, key=order):
        name, route, sample = journal.spec.name, journal.route, now[journal.spec.name]
        rows.append(
            (
                name,
                route.primary_id.suffix if route.primary_id else "<none>",
                f"{len(route.members)}/{journal.spec.desired_replication(sys.maxsize)}",
                "no answer" if sample.head is None else size_text(sample.head),
                _rate_text(appended[name]),
                _rate_text(read[name]),
                "" if sample.debt is None else size_text(sample.debt),
            )
        )
    return rows


def _rate_text(rate: float | None) -> str:
    return "" if rate is None else f"{size_text(rate)}/s"


class _Screen:
    """A table that stays in place on a terminal."""

    def __init__(self) -> None:
        self._live: Any = None

    def __enter__(self) -> _Screen:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(screen=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: list[tuple[str, ...]], total: int) -> None:
        if self._live is None:
            click.echo(table(TITLES, rows))
            return
        from rich.table import Table

        drawn = Table(*TITLES, title=f"{total} journals; Ctrl-C ends", expand=True)
        for row in rows:
            drawn.add_row(*row)
        self._live.update(drawn, refresh=True)
