"""The journals of a scan and their fragments: as brokers tell, or from the listing of a store alone."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from broker.client.client import Client
from broker.client.listing import ListedJournal
from broker.client.retrying_read import WRITE_HEAD
from broker.client.settings import ClientSettings
from fragment.index_refresh import list_journal
from fragment.remote_listing import RemoteListing
from fragment.stores.blob_store import ListedObject
from fragment.stores.bucket_store import BucketStore
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.errors import ValidationError
from protocol.fragment import OFFSET_MAX
from protocol.identifier import check_journal
from protocol.label import LabelSet
from spark_readers.broker_connection import advised, client_settings
from spark_readers.fragment_table import FragmentTable
from spark_readers.journal_selectors import journal_selectors
from spark_readers.loop_thread import LoopThread
from spark_readers.read_options import Bound, JournalChoice, ReadOptions
from spark_readers.scan_plan import JournalState

log = logging.getLogger(__name__)
_A = TypeVar("_A")
_T = TypeVar("_T")

AT_ONCE_MAX = 16
# Path keys that brokers add below a journal's folder. Others, such as region=eu, are parts of journals' names.
_TIME_KEY = re.compile(r"(?:utc_?)?(?:date|year|month|day|hour|minute)=.*", re.I).fullmatch


@dataclass(slots=True)
class CataloguedJournal:
    """A journal, with its fragments packed."""

    fragments: FragmentTable
    fresh: FragmentTable
    write_head: int | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> JournalState:
        """Unpacked, for as long as it is planned."""
        return self.since(0)

    @property
    def earliest(self) -> int:
        """Where its first fragment begins. One of which there are none left begins where the next is written."""
        begins = [table.begin for table in (self.fragments, self.fresh) if table.begin is not None]
        return min(begins, default=self.write_head or 0)

    def since(self, offset: int) -> JournalState:
        """The same, without fragments that end before `offset`."""
        return JournalState(
            self.fragments.journal,
            list(self.fragments.since(offset)),
            list(self.fresh.since(offset)),
            self.write_head,
            self.labels,
        )


def catalogue(
    options: ReadOptions, loop: LoopThread, environ: dict[str, str], most: int | None = None
) -> Iterator[CataloguedJournal]:
    """Every journal that was asked for, or so many of them, in the order of names. One that was named and is not there
    is an error."""
    if most is not None:
        names = options.journals.names[:most]
        options = replace(options, journals=replace(options.journals, names=names))
    found = listed(options, loop, environ, most=most)
    check_chosen(found.keys(), options, is_all=most is None)
    for name in sorted(found):
        # Given away one by one, so that what was planned already takes no more room.
        yield found.pop(name)


def listed(
    options: ReadOptions,
    loop: LoopThread,
    environ: dict[str, str],
    read: Mapping[str, int] | None = None,
    most: int | None = None,
) -> dict[str, CataloguedJournal]:
    """Those that are there. Of those `read` up to their ends, as brokers tell, fragments are not asked for; nor of more
    than `most`."""
    if options.broker is None:
        return loop.run(_of_store(options, environ))
    with advised(options.broker):
        settings = client_settings(options.broker, environ, options.file_root)
        return loop.run(_of_brokers(options, settings, read or {}, most))


def check_chosen(found: Set[str], options: ReadOptions, is_all: bool = True) -> None:
    """Raises a ValidationError if a journal that was named is not there. Offsets may be of journals that were not
    looked for, unless all were."""
    for option, names in (
        ("journal", options.journals.names),
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
    ):
        if isinstance(names, Bound) or (names is not options.journals.names and not is_all):
            continue
        missing = sorted(set(names) - found)
        if missing:
            where = "the brokers have" if options.broker else "the store has fragments of"
            raise ValidationError(f"{where} no journal {missing[0]!r} that was chosen: check its name", option)


async def _of_brokers(
    options: ReadOptions, settings: ClientSettings, read: Mapping[str, int], most: int | None
) -> dict[str, CataloguedJournal]:
    async with Client(settings=settings) as client:
        selectors = journal_selectors(options.journals)
        listings = await _at_once(client.list, selectors)
        chosen = {
            journal.spec.name: journal
            for listing in listings
            for journal in listing
            if options.journals.matches(journal.spec.name)
        }
        listed = [chosen[name] for name in sorted(chosen)[:most]]
        # Ends first: what is stored afterwards is in the listings as well, and what is not is read through brokers.
        heads = await _write_heads(client, listed) if options.tail else {}

        async def catalogued(journal: ListedJournal) -> CataloguedJournal:
            name = journal.spec.name
            of = CataloguedJournal(FragmentTable(name), FragmentTable(name), heads.get(name), _labels(journal))
            if name in read and heads.get(name, OFFSET_MAX) <= read[name]:
                return of
            async with aclosing(client.fragments(name)) as fragments:
                async for one in fragments:
                    (of.fragments if one.fragment.backing_store else of.fresh).extend((one.fragment,))
            return of

        return {of.fragments.journal: of for of in await _at_once(catalogued, listed)}


async def _at_once(ask: Callable[[_A], Awaitable[_T]], about: Sequence[_A]) -> list[_T]:
    """The answers, in order. Of those that fail, one error is enough."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(of: _A) -> _T:
        async with slots:
            return await ask(of)

    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(one(of)) for of in about]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in asked]


def _labels(journal: ListedJournal) -> dict[str, str]:
    """Values of the same name with commas in between."""
    labels: dict[str, list[str]] = defaultdict(list)
    spec_labels: LabelSet = journal.spec.labels
    for label in spec_labels:
        labels[label.name].append(label.value)
    return {name: ",".join(values) for name, values in labels.items()}


async def _write_heads(client: Client, journals: Sequence[ListedJournal]) -> dict[str, int]:
    """As the primaries know them: another member may not have been told of the latest appends yet."""
    by_primary: dict[str, list[str]] = defaultdict(list)
    for journal in journals:
        route = journal.route
        if route.primary is not None and route.endpoints:
            by_primary[route.endpoints[route.primary]].append(journal.spec.name)
    heads: dict[str, int] = {}
    at_once = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(asked: Client, name: str) -> None:
        async with at_once:
            heads[name] = (await asked.read_metadata(name, WRITE_HEAD)).write_head

    for endpoint, names in by_primary.items():
        # To a client that knows no routes there is but this one.
        alone = replace(client.settings, addresses=(endpoint,))
        async with Client(settings=alone) as primary, asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(primary, name))
    for journal in journals:
        if journal.spec.name not in heads:
            await one(client, journal.spec.name)
    return heads


async def _of_store(options: ReadOptions, environ: dict[str, str]) -> dict[str, CataloguedJournal]:
    stores = OpenStores(StoreSettings(file_root=Path("/"), environ=environ))
    try:
        store = await stores.open(options.path)
        if options.journals.names:
            listings = await _at_once(lambda name: _named(name, options, store), options.journals.names)
            tables = {listing.journal: FragmentTable(listing.journal, listing.fragments) for listing in listings}
        else:
            tables = await _discovered(options, store)
    finally:
        await stores.close()
    return {name: CataloguedJournal(table, FragmentTable(name)) for name, table in tables.items() if len(table)}


async def _named(name: str, options: ReadOptions, store: BucketStore) -> RemoteListing:
    return await list_journal(name, {options.path: store}, lambda: _nested(name, options.journals.names))


def _nested(name: str, names: Sequence[str]) -> Sequence[str]:
    return sorted(other for other in names if other.startswith(f"{name}/"))


async def _discovered(options: ReadOptions, store: BucketStore) -> dict[str, FragmentTable]:
    """Every folder with fragments is a journal, without the keys of time that brokers add to paths."""
    journals: dict[str, str | None] = {}
    tables: dict[str, FragmentTable] = {}
    foreign = 0
    async with aclosing(store.list("")) as batches:
        async for batch in batches:
            by_journal: dict[str, list[ListedObject]] = {}
            for listed in batch:
                folder = listed.path.rpartition("/")[0]
                if folder not in journals:
                    journals[folder] = _journal_of(folder, options.journals)
                name = journals[folder]
                if name is not None:
                    by_journal.setdefault(name, []).append(listed._replace(path=listed.path[len(name) + 1 :]))
            for name, objects in by_journal.items():
                listing = RemoteListing(name)
                listing.take(options.path, objects, ())
                foreign += listing.foreign_count
                if listing.fragments:
                    tables.setdefault(name, FragmentTable(name)).extend(listing.fragments)
            await asyncio.sleep(0)
    if foreign:
        log.info("objects that are no fragments were ignored", extra={"objects": foreign})
    return tables


def _journal_of(folder: str, choice: JournalChoice) -> str | None:
    parts = folder.split("/")
    while len(parts) > 1 and _TIME_KEY(parts[-1]):
        parts.pop()
    name = "/".join(parts)
    try:
        check_journal(name)
    except ValidationError:
        return None
    return name if choice.matches(name) else None
