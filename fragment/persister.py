"""Persister: takes completed spools to the store, and their files off the disk once they are there.

One per process. A PersistLedger decides what goes when and where; ``run`` uploads that, a bounded number at a time;
``finish`` sees to it that nothing is left behind when the process exits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NoReturn, assert_never

from prometheus_client import Counter

from fragment.compressor import Compressor
from fragment.persist_destination import Destination
from fragment.persist_item import CommitAt, Item, Removal
from fragment.persist_ledger import PersistLedger
from fragment.spool import Spool
from fragment.spool_compression import SpoolCompression
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobStore, StoreDeniedError
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, UnavailableError
from protocol.fragment import Fragment

_READ_BYTES = 1 << 20

log = logging.getLogger(__name__)

PERSISTED = Counter("gazette_spool_persisted", "Spools that are in a fragment store")
FAILED = Counter("gazette_spool_persist_failures", "Attempts to persist a spool that failed and will be retried")
CORRUPT = Counter("gazette_spool_corrupt", "Spools that are not persisted because their content is damaged")
CUT_BYTES = Counter("gazette_spool_cut_bytes", "Bytes dropped because their epoch was closed below them")

SpoolItem = Item[SpoolFile]


class Persister:
    def __init__(
        self,
        ledger: PersistLedger[SpoolFile],
        open_store: Callable[[str], Awaitable[BlobStore]],
        compression: SpoolCompression,
        joined: Callable[[Fragment, SpoolFile, int], None] = lambda *_: None,
    ) -> None:
        """`joined` hears of what is decided after its replica was given up: a fragment, where it is, and of which
        incarnation."""
        self._ledger = ledger
        self._open_store = open_store
        self._compression = compression
        self._joined = joined
        # Set when there may be something to start, and when an attempt has ended.
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        ledger.listen(self._changed.set)
        # Kept from one attempt to the next: what is compressed is not compressed again.
        self._compressors: dict[SpoolItem, Compressor] = {}
        self._warned: set[str] = set()

    async def run(self) -> NoReturn:
        """Upload what is due, until cancelled."""
        async with asyncio.TaskGroup() as uploads:
            while True:
                self._changed.clear()
                await self._join()
                for item in self._ledger.start():
                    uploads.create_task(self._attempt(item))
                try:
                    async with asyncio.timeout(self._ledger.due_in_s()):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def finish(self) -> None:
        """Return once everything that may be uploaded is. ``run`` must be running beside it."""
        self._ledger.leave()
        while not self._ledger.is_idle:
            self._settled.clear()
            await self._settled.wait()

    async def _join(self) -> None:
        """Have readers know of what was decided late."""
        while (item := self._ledger.next_to_join()) is not None:
            try:
                decided = await _decided(item)
            except (OSError, UnavailableError) as error:
                # Whoever uploads it will find the same, and says more.
                log.warning("a spool cannot be read", extra={**_fields(item), "error": str(error)})
                continue
            if decided is not None:
                self._joined(decided, item.file, item.create_revision)

    async def _attempt(self, item: SpoolItem) -> None:
        file = item.file
        try:
            resident = await self._persist(item)
        except CorruptError:
            self._ledger.spoiled(item)
            self._compressors.pop(item, None)
            CORRUPT.inc()
            log.exception("spool is damaged and will not be persisted", extra=_fields(item))
        except Exception as error:
            # Whatever it is, it must not end the uploads of all others.
            if isinstance(error, InvariantError):
                raise
            pause_s = self._ledger.failed(item)
            FAILED.inc()
            extra = {**_fields(item), "error": str(error), "retry_s": round(pause_s, 1)}
            log.warning("fragment could not be persisted (will retry)", extra=extra)
        else:
            self._ledger.done(item, resident)
            self._compressors.pop(item, None)
        self._compression.forget(file)
        self._changed.set()
        self._settled.set()

    async def _persist(self, item: SpoolItem) -> Fragment | None:
        """Have the item's object in a store, and its files gone. Returns what stays here, as its journal has none."""
        if item.stored is None:
            self._ledger.check_free(item)
            decided = await _decided(item)
            if decided is not None:
                destination = self._ledger.destination(item, decided)
                self._tell_of_detour(item, destination)
                if destination.is_resident:
                    item.file.keep_for_good()
                    self._tell_of_cut(item, decided)
                    return decided
                if destination.stores:
                    await self._store(item, destination)
            self._tell_of_cut(item, decided)
        # The epoch may end while the content is removed: then the log goes, too.
        while (removal := item.removal()) is not Removal.NOTHING:
            left = await asyncio.to_thread(_remove, item.file, item.spool, removal)
            self._ledger.removed(item, removal, left)
        return None

    async def _store(self, item: SpoolItem, destination: Destination) -> None:
        fragment = destination.fragment
        for at, url in enumerate(destination.stores):
            try:
                store = await self._open_store(url)
                if not await store.exists(fragment.content_path):
                    await self._put(item, store, fragment)
                self._ledger.stored(item, replace(fragment, backing_store=url))
                PERSISTED.inc()
                return
            except StoreDeniedError as error:
                if not self._ledger.passes_over(destination, at):
                    raise
                log.warning(
                    "store turned a fragment away: trying the next one, since this broker is exiting",
                    extra={"fragment": fragment.content_path, "error": str(error)},
                )

    async def _put(self, item: SpoolItem, store: BlobStore, fragment: Fragment) -> None:
        file = item.file
        if file.has_ended:
            await asyncio.to_thread(_verify, file, fragment)
        if fragment.codec is CompressionCodec.NONE:
            self._ledger.check_free(item)
            await store.put(fragment.content_path, file.content_fileno(), size=fragment.content_length)
        else:
            compressor = self._compressors.get(item)
            if compressor is None:
                compressor = self._compressors[item] = await self._compression.take(file, fragment.codec)
            if compressor.compressed_through > fragment.end:
                compressor.rebuild()
            size = await compressor.finish(fragment.end, file.commit_ends)
            self._ledger.check_free(item)
            encoding = "gzip" if fragment.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION else None
            await store.put(fragment.content_path, file.packed_path, size=size, content_encoding=encoding)
        # The files go only when the store itself says that it has the object.
        if not await store.exists(fragment.content_path):
            raise UnavailableError(f"the store took {fragment.content_path} but does not show it")

    def _tell_of_detour(self, item: SpoolItem, destination: Destination) -> None:
        if destination.detour is not None:
            aside = destination.fragment.journal
            under = {"under": aside} if aside != item.fragment.journal else {}
            log.warning(destination.detour.value, extra={**_fields(item), **under})
        spec = destination.spec
        if spec is not None and destination.template_error is not None:
            self._warn_of_template(spec.name, spec.fragment.path_postfix_template, destination.template_error)

    def _tell_of_cut(self, item: SpoolItem, decided: Fragment | None) -> None:
        begin, end = item.dropped_from(decided), item.fragment.end
        if begin is not None:
            CUT_BYTES.inc(end - begin)
            extra = {"journal": item.fragment.journal, "begin": begin, "end": end}
            log.warning("bytes that were never acknowledged were cut: their epoch was closed below them", extra=extra)

    def _warn_of_template(self, journal: str, template: str, error: Exception) -> None:
        if template not in self._warned and len(self._warned) < 1024:
            self._warned.add(template)
            log.warning(
                "path postfix template cannot be used: fragments are stored without a postfix",
                extra={"journal": journal, "template": template[:256], "error": str(error)},
            )


async def _decided(item: SpoolItem) -> Fragment | None:
    decided = item.decided()
    return await asyncio.to_thread(item.file.commit_at, decided.end) if isinstance(decided, CommitAt) else decided


def _remove(file: SpoolFile, spool: Spool, removal: Removal) -> SpoolFile:
    """Returns what is left of the files."""
    match removal:
        case Removal.ALL:
            file.remove()
        case Removal.CONTENT:
            file.remove_content(spool)
            return file.log_only()
        case Removal.NOTHING:
            pass
        case _:
            assert_never(removal)
    return file


def _fields(item: SpoolItem) -> dict[str, object]:
    return {"journal": item.fragment.journal, "begin": item.fragment.begin, "end": item.fragment.end}


def _verify(file: SpoolFile, fragment: Fragment) -> None:
    """Read the content back: after a failed sync the file may hold something else than was written."""
    digest, position = hashlib.sha1(), 0
    while position < fragment.content_length:
        data = file.read(position, min(_READ_BYTES, fragment.content_length - position))
        if not data:
            break
        digest.update(data)
        position += len(data)
    if digest.digest() != fragment.sum:
        raise CorruptError(f"the spool of {fragment.content_path} does not match its SHA-1 any more")
