"""``gazctl top``."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import click

from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.retry import NEVER
from broker.client.retrying_read import WRITE_HEAD
from gazctl.command import Command, Duration
from gazctl.connection import broker_options, run, selector_option
from gazctl.table import size_text, table
from protocol.errors import GazetteError
from protocol.journal import SuspendLevel
from protocol.selector import LabelSelector

AT_ONCE_MAX = 16
TITLES = ("Journal", "Primary", "Replicas", "Head", "Append rate", "Not stored")


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a journal at one moment."""

    at_s: float
    head: int | None
    # Bytes that are on brokers' disks alone.
    debt: int | None


@click.command(cls=Command)
@selector_option(required=False)
@click.option("--interval", type=Duration(), default="2s", show_default=True, help="Between two looks.")
@click.option("--limit", type=click.IntRange(min=1), default=40, show_default=True, help="Journals to show.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="End after so many tables; 0 goes on.")
@broker_options
def top(selector: LabelSelector, **given: Any) -> None:
    """Watch journals: who holds them, how fast they grow, and how much of them is not in a store yet.

    The fastest come first. On a terminal the table stays in place; elsewhere tables follow each other.

    \b
      gazctl top
      gazctl top -l name:prefix=my/ --interval 5s
    """
    try:
        run(given, lambda client: _top(client, selector, given))
    except KeyboardInterrupt:
        sys.exit(0)


async def _top(client: Client, selector: LabelSelector, given: dict[str, Any]) -> None:
    before: dict[str, Sample] = {}
    shown = 0
    with _Screen() as screen:
        while True:
            journals = (await client.list(selector)).journals
            samples = await _samples(client, journals)
            screen.show(rows_of(journals, before, samples)[: given["limit"]], len(journals))
            before = samples
            shown += 1
            if shown == given["count"]:
                return
            await asyncio.sleep(given["interval"])


async def _samples(client: Client, journals: tuple[ListedJournal, ...]) -> dict[str, Sample]:
    at_once = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(journal: ListedJournal) -> Sample:
        now_s = asyncio.get_running_loop().time()
        if journal.spec.suspend is not None and journal.spec.suspend.level == SuspendLevel.FULL:
            return Sample(now_s, 0, 0)
        try:
            async with at_once:
                head = (await client.read_metadata(journal.spec.name, WRITE_HEAD, retry=NEVER)).write_head
                local = [
                    each.fragment.content_length
                    async for each in client.fragments(journal.spec.name, retry=NEVER)
                    if not each.fragment.mod_time
                ]
        except GazetteError:
            # The row says that nobody answers for it; the next look may find somebody.
            return Sample(now_s, None, None)
        return Sample(now_s, head, sum(local))

    sampled = await asyncio.gather(*(one(journal) for journal in journals))
    return {journal.spec.name: sample for journal, sample in zip(journals, sampled, strict=True)}


def rows_of(
    journals: tuple[ListedJournal, ...], before: dict[str, Sample], now: dict[str, Sample]
) -> list[tuple[str, ...]]:
    """The fastest first."""

    def rate(name: str) -> float | None:
        old, new = before.get(name), now[name]
        if old is None or old.head is None or new.head is None or new.at_s <= old.at_s:
            return None
        return (new.head - old.head) / (new.at_s - old.at_s)

    rows: list[tuple[str, ...]] = []
    for journal in sorted(journals, key=lambda each: (-(rate(each.spec.name) or 0.0), each.spec.name)):
        name, route, sample = journal.spec.name, journal.route, now[journal.spec.name]
        speed = rate(name)
        rows.append(
            (
                name,
                route.primary_id.suffix if route.primary_id else "<none>",
                f"{len(route.members)}/{journal.spec.desired_replication(sys.maxsize)}",
                "no answer" if sample.head is None else size_text(sample.head),
                "" if speed is None else f"{size_text(speed)}/s",
                "" if sample.debt is None else size_text(sample.debt),
            )
        )
    return rows


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
