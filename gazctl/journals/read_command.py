"""``gazctl journals read``."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, BinaryIO

import click

from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.retrying_read import WRITE_HEAD, Jump, log_jump
from gazctl.command import Command
from gazctl.connection import broker_options, patience, run, selector_option
from gazctl.offsets_file import read_offsets, write_offsets
from gazctl.output import notice
from gazctl.progress import Advance, bar
from gazctl.write_heads import write_heads
from protocol.errors import RefusedError, Status, ValidationError
from protocol.journal import SuspendLevel
from protocol.label import CONTENT_TYPE
from protocol.selector import LabelSelector

LAGGING_S = 90.0
"""A member that was started again has all by then: it is uploaded, and found in the store."""
LAGGING_PAUSE_S = 1.0

_LINES = ("application/x-ndjson", "text/csv")
_GONE = (Status.JOURNAL_NOT_FOUND, Status.SUSPENDED)


@click.command(cls=Command)
@selector_option()
@click.option("-b", "--block", is_flag=True, help="Stay, and read what is appended, also to journals yet to come.")
@click.option("--tail", is_flag=True, help="Begin at the end of journals that have no offset.")
@click.option("-o", "--output", default="-", show_default="stdout", help="File to write to.")
@click.option("--offsets", "offsets_path", type=click.Path(path_type=Path), help="JSON file: where to begin.")
@click.option("--offsets-out", "offsets_out_path", type=click.Path(path_type=Path), help="Gets the offsets at the end.")
@click.option(
    "--file-root",
    type=click.Path(file_okay=False, path_type=Path),
    help="The brokers' folder for file:/// stores, to read fragments from it directly.",
)
@click.option(
    "--from", "from_unix", type=int, default=0, help="Skip fragments stored before this time, in Unix seconds."
)
@broker_options
def read(selector: LabelSelector, file_root: Path | None, **given: Any) -> None:
    """Read journals as bytes, one after the other; or with --block all at once, for ever.

    \b
    All there is:
      gazctl journals read -l name=my/journal
    Follow all below a prefix, from now on:
      gazctl journals read -l name:prefix=my/ --block --tail
    What has come since the last time:
      gazctl journals read -l name:prefix=my/ --offsets at.json --offsets-out at.json
    """
    offsets = _given_offsets(given["offsets_path"])
    try:
        output = sys.stdout.buffer if given["output"] == "-" else open(given["output"], "wb")  # noqa: SIM115
    except OSError as error:
        raise click.ClickException(f"the output cannot be written: {error}") from error
    reading = _Reading(output, offsets, given)
    try:
        run(given, lambda client: reading.run(client, selector), file_root)
    finally:
        if out := given["offsets_out_path"]:
            write_offsets(out, reading.offsets, out == given["offsets_path"])


def _given_offsets(path: Path | None) -> dict[str, int]:
    if path is None:
        return {}
    try:
        return read_offsets(path)
    except (OSError, ValidationError) as error:
        raise click.ClickException(
            f"the offsets cannot be read: {error}. Without --offsets journals are read from their beginning"
        ) from error


class _Reading:
    """`offsets` are where each journal goes on, at any moment."""

    def __init__(self, output: BinaryIO, offsets: dict[str, int], given: dict[str, Any]) -> None:
        self.offsets = offsets
        self._output = output
        self._given = given
        self._turn = asyncio.Lock()

    async def run(self, client: Client, selector: LabelSelector) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._given["block"]:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
            with suppress(asyncio.CancelledError):
                await self._follow(client, selector)
        else:
            await self._read_all(client, selector)

    async def _read_all(self, client: Client, selector: LabelSelector) -> None:
        listing = await client.list(selector)
        if not len(listing):
            notice("No journals match the selector: `gazctl journals list` shows all that there are.")
        journals = [journal for journal in listing if not _is_asleep(journal)]
        heads = await write_heads(client, journals)
        total = sum(max(0, head - self._begin(name)) for name, head in heads.items())
        # Bytes on the terminal would scroll the bar away.
        shown = None if self._output.isatty() or self._given["from_unix"] else total
        with bar("Reading", shown) as advance:
            for journal in journals:
                await self._read_to(client, journal, heads.get(journal.spec.name), advance)

    def _begin(self, name: str) -> int:
        return self.offsets.get(name, sys.maxsize if self._given["tail"] else 0)

    async def _read_to(self, client: Client, journal: ListedJournal, head: int | None, advance: Advance) -> None:
        """As far as the primary has said that there is something to read, though not every member may have it yet."""
        name = journal.spec.name
        if head is None or (self._given["tail"] and name not in self.offsets):
            await self._read(client, journal, is_new=False, block=False)
            return
        clock = asyncio.get_running_loop().time
        until_s = clock() + LAGGING_S
        while True:
            before = self.offsets.get(name, 0)
            await self._read(client, journal, is_new=False, block=False, end=head)
            after = self.offsets.get(name, 0)
            advance(after - before)
            if after >= head or self._given["from_unix"]:
                return
            if after > before:
                until_s = clock() + LAGGING_S
            elif clock() > until_s:
                raise click.ClickException(
                    f"{name} ends at {head}, and from {after} on nothing could be read for {LAGGING_S:g} s: look for a "
                    "gap with `gazctl journals scrub`, and for members that are missing with `gazctl journals list -r`"
                )
            async with patience(f"a broker that has {name} from {after} on"):
                await asyncio.sleep(LAGGING_PAUSE_S)

    async def _follow(self, client: Client, selector: LabelSelector) -> None:
        """Those that there are, and those that come to be."""
        reading: set[str] = set()
        is_first = True

        async def follow(journal: ListedJournal, is_new: bool) -> None:
            name = journal.spec.name
            try:
                await self._read(client, journal, is_new=is_new, block=True)
            except RefusedError as error:
                # It will be listed again if it comes back.
                if error.status not in _GONE:
                    raise
            finally:
                reading.discard(name)

        async with asyncio.TaskGroup() as tasks, aclosing(client.watch(selector)) as listings:
            async for listing in listings:
                if is_first and not len(listing):
                    notice("No journals match the selector yet. Waiting for one ...")
                for journal in listing:
                    if journal.spec.name not in reading and not _is_asleep(journal):
                        reading.add(journal.spec.name)
                        tasks.create_task(follow(journal, not is_first))
                is_first = False

    async def _read(
        self, client: Client, journal: ListedJournal, *, is_new: bool, block: bool, end: int | None = None
    ) -> None:
        name = journal.spec.name
        begin = self.offsets.get(name)
        if begin is None:
            begin = WRITE_HEAD if self._given["tail"] and not is_new else 0
        # Where journals take turns in one output, lines stay in one piece.
        by_lines = block and journal.spec.labels.value_of(CONTENT_TYPE) in _LINES
        held = b""
        since = self._given["from_unix"]

        def jumped(jump: Jump) -> None:
            # What is older than was asked for is passed over on purpose.
            if not since or jump.begin != begin:
                log_jump(jump)

        async with client.read(name, begin, end=end, block=block, begin_mod_time_s=since, on_jump=jumped) as reader:
            async for piece in reader:
                if by_lines:
                    whole, newline, held = (held + piece).rpartition(b"\n")
                    piece = whole + newline
                await self._write(piece)
                self.offsets[name] = reader.offset - len(held)
            await self._write(held)
            if reader.offset != WRITE_HEAD:
                self.offsets[name] = reader.offset
            elif reader.write_head is not None:
                self.offsets[name] = reader.write_head

    async def _write(self, piece: bytes) -> None:
        if piece:
            async with self._turn:
                await asyncio.to_thread(self._write_now, piece)

    def _write_now(self, piece: bytes) -> None:
        self._output.write(piece)
        self._output.flush()


def _is_asleep(journal: ListedJournal) -> bool:
    """A fully suspended journal is empty, and nobody serves it."""
    return journal.spec.suspend is not None and journal.spec.suspend.level == SuspendLevel.FULL
