"""Persister: takes completed spools to the store, and their files off the disk once they are there.

One per process. ``complete`` and ``acked`` are told what happens to spools; ``run`` uploads, a bounded number at a
time; ``finish`` sees to it that nothing is left behind when the process exits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from prometheus_client import Counter, Gauge

from fragment.compressor import Compressor
from fragment.persist_queue import PersistQueue
from fragment.spool_compression import SpoolCompression
from fragment.spool_log import CommitRecord, decode, spec_of
from fragment.spool_recovery import fragment_at
from fragment.spool_writer import CompletedSpool
from fragment.stores.blob_store import BlobStore, StoreDeniedError
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, GazetteError, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.identifier import POSTFIX_BYTES, check_path_component
from protocol.journal import JournalSpec
from protocol.postfix_template import PostfixTemplate
from protocol.template.objects import PostfixData

PARALLEL_MAX = 32
_READ_BYTES = 1 << 20

log = logging.getLogger(__name__)

COMPLETED = Counter("gazette_spool_completed", "Spools that were completed and are to be persisted")
PERSISTED = Counter("gazette_spool_persisted", "Spools that are in a fragment store")
FAILED = Counter("gazette_spool_persist_failures", "Attempts to persist a spool that failed and will be retried")
WAITING_BYTES = Gauge("gazette_spool_unpersisted_bytes", "Bytes of completed spools that are not in a store yet")


@dataclass(frozen=True, slots=True)
class CurrentSpec:
    """A journal's spec as it is now, and the CreateRevision that tells one of that name from another."""

    spec: JournalSpec
    create_revision: int


@dataclass(eq=False, slots=True)
class Item:
    """A completed spool on its way to the store."""

    completed: CompletedSpool
    create_revision: int
    completed_s: float
    # Kept from one attempt to the next: what is compressed is not compressed again.
    compressor: Compressor | None = None
    # Where the epoch was closed, if that is below the end: the rest was never part of the journal.
    cut_at: int | None = None

    @property
    def fragment(self) -> Fragment:
        return self.completed.spool.fragment


class Persister:
    def __init__(
        self,
        open_store: Callable[[str], Awaitable[BlobStore]],
        compression: SpoolCompression,
        spec_now: Callable[[str], CurrentSpec | None],
        clock: Callable[[], float],
        chance: random.Random,
        *,
        persisted: Callable[[Fragment], None] = lambda _: None,
        discard_deleted: bool = False,
    ) -> None:
        """`persisted` hears of every fragment that is seen in a store. `discard_deleted` is the operator's word that
        bytes of deleted journals that are not uploaded yet may be thrown away."""
        self._open_store = open_store
        self._compression = compression
        self._spec_now = spec_now
        self._clock = clock
        self._persisted = persisted
        self._discard_deleted = discard_deleted
        self._queue: PersistQueue[Item] = PersistQueue(PARALLEL_MAX, chance)
        # Spools with commits that are not known to be acknowledged, by journal.
        self._undecided: dict[str, list[Item]] = {}
        # Set when there may be something to start, and when an attempt has ended.
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._is_exiting = False
        self._warned: set[str] = set()

    @property
    def waiting(self) -> list[Fragment]:
        """What is not in a store yet, oldest first."""
        return [item.fragment for item in self._queue.items()]

    @property
    def oldest_s(self) -> float:
        """For how many seconds the oldest of them has been waiting."""
        items = self._queue.items()
        return self._clock() - items[0].completed_s if items else 0.0

    def complete(self, completed: CompletedSpool, create_revision: int, *, primary: bool) -> None:
        """Take over a spool."""
        spool = completed.spool
        item = Item(completed, create_revision, self._clock())
        is_decided = spool.acked_through is None or spool.acked_through >= spool.fragment.end
        if not is_decided:
            self._undecided.setdefault(spool.fragment.journal, []).append(item)
        self._queue.add(item, self._clock(), primary=primary, is_open=is_decided)
        COMPLETED.inc()
        WAITING_BYTES.inc(spool.fragment.content_length)
        self._changed.set()

    def acked(self, journal: str, through: int) -> None:
        """All holders have the bytes below `through`."""
        if undecided := self._undecided.get(journal):
            self._decide(journal, [item for item in undecided if item.fragment.end <= through])

    def closed(self, journal: str, epoch: int, end: int) -> None:
        """An epoch was closed at `end`: what its spools hold beyond was never part of the journal."""
        items = [item for item in self._undecided.get(journal, ()) if item.completed.spool.epoch.number == epoch]
        for item in items:
            item.cut_at = end if end < item.fragment.end else None
        self._decide(journal, items)

    def _decide(self, journal: str, items: list[Item]) -> None:
        for item in items:
            self._undecided[journal].remove(item)
            self._queue.open(item)
        if not self._undecided[journal]:
            del self._undecided[journal]
        self._changed.set()

    async def run(self) -> NoReturn:
        """Upload what is due, until cancelled."""
        async with asyncio.TaskGroup() as uploads:
            while True:
                self._changed.clear()
                for item in self._queue.start(self._clock()):
                    uploads.create_task(self._attempt(item))
                due_s = self._queue.next_due_s()
                timeout_s = None if due_s is None else max(0.0, due_s - self._clock())
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def finish(self) -> None:
        """Return once everything that may be uploaded is. ``run`` must be running beside it.

        From now on a store that turns us away is passed over for the journal's next one: this process will not be
        there when somebody has mended it. What is not acknowledged yet stays on disk, for the next start.
        """
        self._is_exiting = True
        self._queue.hurry()
        self._changed.set()
        while len(self._queue) > sum(map(len, self._undecided.values())):
            self._settled.clear()
            await self._settled.wait()

    async def _attempt(self, item: Item) -> None:
        try:
            stored = await self._persist(item)
        except (GazetteError, OSError) as error:
            pause_s = self._queue.failed(item, self._clock())
            FAILED.inc()
            log.warning(
                "fragment could not be persisted (will retry)",
                extra={"fragment": item.fragment.content_path, "error": str(error), "retry_s": round(pause_s, 1)},
            )
        else:
            self._queue.done(item)
            self._compression.forget(item.completed.file)
            WAITING_BYTES.dec(item.fragment.content_length)
            if stored is not None:
                PERSISTED.inc()
                self._persisted(stored)
        self._changed.set()
        self._settled.set()

    async def _persist(self, item: Item) -> Fragment | None:
        """Have the item's object in a store, and its files gone. None: nothing was to be stored."""
        records = await asyncio.to_thread(_records_of, item.completed)
        record = _record_at(records, item)
        if record is None or record.end == record.begin:
            await asyncio.to_thread(item.completed.file.remove)
            return None
        spec, fragment = self._destination(item, record)
        if spec is None:
            await asyncio.to_thread(item.completed.file.remove)
            return None
        if not spec.fragment.stores:
            # Such a journal lives on its brokers alone, for as long as its index keeps the file.
            return None
        fragment = replace(fragment, path_postfix=self._postfix(spec, item, record))
        stored = await self._store(item, spec, fragment)
        await asyncio.to_thread(item.completed.file.remove)
        return stored

    def _destination(self, item: Item, record: CommitRecord) -> tuple[JournalSpec | None, Fragment]:
        """The spec to go by, and the fragment under the name it is to have."""
        fragment = fragment_at(record)
        current = self._spec_now(fragment.journal)
        if current is not None and current.create_revision == item.create_revision:
            return current.spec, fragment
        if self._discard_deleted:
            log.warning(
                "bytes of a deleted journal were discarded, as this broker was told to do",
                extra={"journal": fragment.journal, "begin": fragment.begin, "end": fragment.end},
            )
            return None, fragment
        # A journal of that name may exist again, or soon: its offsets are not these.
        aside = f".deleted/{item.create_revision}/{fragment.journal}"
        log.warning(
            "the journal was deleted before its bytes were persisted: they are set aside",
            extra={"journal": fragment.journal, "begin": fragment.begin, "end": fragment.end, "under": aside},
        )
        return JournalSpec.from_proto(spec_of(record)), replace(fragment, journal=aside)

    async def _store(self, item: Item, spec: JournalSpec, fragment: Fragment) -> Fragment:
        for at, url in enumerate(spec.fragment.stores):
            try:
                store = await self._open_store(url)
                if not await store.exists(fragment.content_path):
                    await self._put(item, store, fragment)
                return replace(fragment, backing_store=url)
            except StoreDeniedError as error:
                if not self._is_exiting or at + 1 == len(spec.fragment.stores):
                    raise
                log.warning(
                    "store turned a fragment away: trying the next one, since this broker is exiting",
                    extra={"fragment": fragment.content_path, "error": str(error)},
                )
        raise UnavailableError(f"no store would take {fragment.content_path}")

    async def _put(self, item: Item, store: BlobStore, fragment: Fragment) -> None:
        file = item.completed.file
        if file.has_ended:
            await asyncio.to_thread(_verify, item.completed, fragment)
        if fragment.codec is CompressionCodec.NONE:
            await store.put(fragment.content_path, file.content_fileno(), size=fragment.content_length)
        else:
            if item.compressor is None:
                item.compressor = await self._compression.take(file, fragment.codec)
            if item.compressor.compressed_through > fragment.end:
                item.compressor.rebuild()
            size = await item.compressor.finish(fragment.end, file.commit_ends)
            encoding = "gzip" if fragment.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION else None
            await store.put(fragment.content_path, file.packed_path, size=size, content_encoding=encoding)
        # The files go only when the store itself says that it has the object.
        if not await store.exists(fragment.content_path):
            raise UnavailableError(f"the store took {fragment.content_path} but does not show it")

    def _postfix(self, spec: JournalSpec, item: Item, record: CommitRecord) -> str:
        """The rendered postfix, or none with a warning: a spec that a Go client applied may be beyond us."""
        template = spec.fragment.path_postfix_template
        if not template:
            return ""
        data = PostfixData(fragment_at(record), item.completed.spool.first_append_ns, record.registers, spec)
        try:
            postfix = PostfixTemplate.compile(template).render(data)
            check_path_component(postfix, *POSTFIX_BYTES)
        except ValidationError as error:
            self._warn_of_template(spec.name, template, error)
            return ""
        return postfix

    def _warn_of_template(self, journal: str, template: str, error: ValidationError) -> None:
        if template not in self._warned and len(self._warned) < 1024:
            self._warned.add(template)
            log.warning(
                "path postfix template cannot be used: fragments are stored without a postfix",
                extra={"journal": journal, "template": template[:256], "error": str(error)},
            )


def _records_of(completed: CompletedSpool) -> tuple[CommitRecord, ...]:
    return decode(completed.file.log_path.read_bytes()).records


def _record_at(records: tuple[CommitRecord, ...], item: Item) -> CommitRecord | None:
    """The commit to upload: the last one, unless the epoch was closed below it."""
    end = item.fragment.end if item.cut_at is None else item.cut_at
    fitting = [record for record in records if record.end <= end]
    return fitting[-1] if fitting else None


def _verify(completed: CompletedSpool, fragment: Fragment) -> None:
    """Read the content back: after a failed sync the file may hold something else than was written."""
    digest, position = hashlib.sha1(), 0
    while position < fragment.content_length:
        data = completed.file.read(position, min(_READ_BYTES, fragment.content_length - position))
        if not data:
            break
        digest.update(data)
        position += len(data)
    if digest.digest() != fragment.sum:
        raise CorruptError(f"the spool of {fragment.content_path} does not match its SHA-1 any more")
