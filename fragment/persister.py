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

from prometheus_client import Counter

from fragment.compressor import Compressor
from fragment.persist_queue import PersistQueue
from fragment.spool import NO_EPOCH, EpochMark
from fragment.spool_compression import SpoolCompression
from fragment.spool_file import SpoolFile
from fragment.spool_recovery import Copy, Worth
from fragment.spool_writer import CompletedSpool
from fragment.stores.blob_store import BlobStore, StoreDeniedError
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2
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
CORRUPT = Counter("gazette_spool_corrupt", "Spools that are not persisted because their content is damaged")
CUT_BYTES = Counter("gazette_spool_cut_bytes", "Bytes dropped because their epoch was closed below them")


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
    # Whoever wrote it, until it gives it up.
    owner: object = None
    # Kept from one attempt to the next: what is compressed is not compressed again, what is stored not stored.
    compressor: Compressor | None = None
    stored: Fragment | None = None
    # Where the epoch was closed, if that is below the end: the rest was never part of the journal.
    cut_at: int | None = None
    # Up to where its content is sound, if it is damaged.
    sound_through: int | None = None
    # Whether the store has it already, from another.
    is_spare: bool = False
    is_closed: bool = False
    is_counted_off: bool = False
    # Whether it was given up with bytes of which nobody here can tell whether they were acknowledged: its files stay.
    is_left: bool = False
    # Whether nobody can tell if it is part of the journal: it must not get in the way of what is.
    is_aside: bool = False
    # What of it is part of a journal that has no store: its files are all there is of it, and stay.
    resident: Fragment | None = None

    @property
    def fragment(self) -> Fragment:
        return self.completed.spool.fragment

    @property
    def place(self) -> tuple[tuple[str, int], int]:
        """Which incarnation of which journal it is of, and where it begins there."""
        return (self.fragment.journal, self.create_revision), self.fragment.begin

    @property
    def needs_no_log(self) -> bool:
        return self.mark == NO_EPOCH or self.completed.is_superseded or self.is_closed

    @property
    def mark(self) -> EpochMark:
        """The epoch whose acknowledgements and whose close decide this spool."""
        return self.completed.spool.epoch

    def decided(self) -> Fragment | None:
        """What of it is part of the journal; None if nothing is. If it was cut, its log is read."""
        end = self.fragment.end if self.cut_at is None else self.cut_at
        if self.sound_through is not None:
            end = min(end, self.sound_through)
        if self.is_spare or end <= self.fragment.begin:
            return None
        return self.fragment if end >= self.fragment.end else self.completed.file.commit_at(end)


class Persister:
    def __init__(  # noqa: PLR0913 -- whom it asks and whom it tells
        self,
        open_store: Callable[[str], Awaitable[BlobStore]],
        compression: SpoolCompression,
        spec_now: Callable[[str], CurrentSpec | None],
        clock: Callable[[], float],
        chance: random.Random,
        *,
        joined: Callable[[Fragment, SpoolFile, int], None] = lambda *_: None,
        may_upload: Callable[[], bool] = lambda: True,
        discard_deleted: bool = False,
    ) -> None:
        """`spec_now` raises an UnavailableError where nobody can tell. `joined` hears of what is decided after its
        replica was given up: a fragment, where it is, and of which incarnation. While `may_upload` is false, nothing is
        uploaded of an epoch that is not known to be closed: this broker may have lost its lease, and its journals be
        elsewhere. `discard_deleted` is the operator's word that bytes of deleted journals that are not uploaded yet may
        be thrown away."""
        self._open_store = open_store
        self._compression = compression
        self._spec_now = spec_now
        self._clock = clock
        self._joined = joined
        self._may_upload = may_upload
        self._discard_deleted = discard_deleted
        # All that are not done, by journal; and those that readers have yet to be told of.
        self._held: dict[str, dict[Item, None]] = {}
        self._to_join: list[Item] = []
        self._queue: PersistQueue[Item] = PersistQueue(PARALLEL_MAX, chance)
        # Spools with commits that are not known to be acknowledged, by journal.
        self._undecided: dict[str, list[Item]] = {}
        # Spools that are stored, but whose log is the last word on an epoch that is not known to be closed.
        self._kept: dict[str, list[Item]] = {}
        # Set when there may be something to start, and when an attempt has ended.
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._is_exiting = False
        self._warned: set[str] = set()
        # Of all that is not in a store yet.
        self.waiting_bytes = 0

    @property
    def waiting(self) -> list[Fragment]:
        """What is not in a store yet, oldest first."""
        return [item.fragment for item in self._queue.items()]

    def oldest_append_ns(self) -> int | None:
        """When the oldest byte of them was appended, as Unix time; None if there is none. For those who measure: it
        looks at each of them."""
        spools = [item.completed.spool for item in self._queue.items() if not item.is_counted_off]
        return min((spool.first_append_ns for spool in spools if spool.first_append_ns is not None), default=None)

    def complete(self, completed: CompletedSpool, create_revision: int, *, primary: bool, owner: object = None) -> None:
        """Take over a spool. `owner` is whoever may ``give_up`` what it has completed."""
        spool = completed.spool
        item = Item(completed, create_revision, self._clock(), owner)
        is_decided = spool.acked_through is None or spool.acked_through >= spool.fragment.end
        self._add(item, is_decided=is_decided, primary=primary)
        COMPLETED.inc()

    def adopt(self, completed: CompletedSpool, copy: Copy) -> None:
        """Take over what an earlier process left behind. What is to become of it is for its epoch to tell."""
        assert copy.last is not None, "nothing was ever committed to it"
        item = Item(completed, copy.last.create_revision, self._clock(), sound_through=copy.sound_through)
        if copy.worth is Worth.STORED:
            item.is_counted_off, item.stored = True, item.fragment
            self._kept.setdefault(item.fragment.journal, []).append(item)
            return
        self._add(item, is_decided=False, primary=True)

    def _add(self, item: Item, *, is_decided: bool, primary: bool) -> None:
        journal = item.fragment.journal
        if not is_decided:
            self._undecided.setdefault(journal, []).append(item)
        self._held.setdefault(journal, {})[item] = None
        self._queue.add(item, self._clock(), primary=primary, is_open=is_decided, at=item.place)
        self.waiting_bytes += item.fragment.content_length
        self._changed.set()

    def local(self, journal: str, create_revision: int) -> list[tuple[Fragment, SpoolFile]]:
        """What there is of a journal here that is decided and not in a store: for a replica that starts. What was cut
        is told later, by ``joined``."""
        undecided = self._undecided.get(journal, ())
        return [
            (item.resident or item.fragment, item.completed.file)
            for item in self._held.get(journal, ())
            if item.create_revision == create_revision and item not in undecided and _is_shown(item)
        ]

    def holds(self, journal: str) -> bool:
        """Whether anything of it is here that is not done with."""
        return journal in self._held or journal in self._kept

    def revisit(self) -> None:
        """Journals without stores may have got some by now, or be deleted."""
        for item in [item for items in self._held.values() for item in items if item.resident is not None]:
            try:
                current = self._spec_now(item.fragment.journal)
            except UnavailableError:
                continue
            is_there = current is not None and current.create_revision == item.create_revision
            if (current is None or not is_there or current.spec.fragment.stores) and not self._queue.has(item):
                self._queue.add(item, self._clock(), primary=True, is_open=True, at=item.place)
        self._changed.set()

    def acked(self, journal: str, epoch: EpochMark, through: int) -> None:
        """All holders of that epoch have the bytes below `through`."""
        undecided = self._undecided.get(journal, ())
        self._decide(journal, [item for item in undecided if item.mark == epoch and item.fragment.end <= through])

    def closed(self, journal: str, epoch: EpochMark, end: int, owner: object = None) -> None:
        """An epoch was closed at `end`: what its spools hold beyond was never part of the journal. Those of `owner`
        alone, if there is one."""

        def is_meant(item: Item) -> bool:
            return item.mark == epoch and (owner is None or item.owner is owner)

        items = [item for item in self._undecided.get(journal, ()) if is_meant(item)]
        for item in items:
            item.cut_at = end if end < item.fragment.end else None
        self._to_join.extend(items)
        self._decide(journal, items)
        self._release(journal, is_meant)
        if owner is None:
            self._hasten(journal, is_meant)

    def spared(self, journal: str, epoch: EpochMark) -> None:
        """The store has all that there was of an epoch."""
        items = [item for item in self._undecided.get(journal, ()) if item.mark == epoch]
        for item in items:
            item.is_spare = True
        self._decide(journal, items)
        self._release(journal, lambda item: item.mark == epoch)

    def acked_only(self, journal: str, epoch: EpochMark, through: int, *, is_over: bool = True) -> None:
        """What there is of an epoch counts as far as it is known to be acknowledged: below `through`. Unless the epoch
        is over, what is left stays on disk, for what it tells of it.

        Of what came without an epoch each spool knows but for itself. If it does not, because its primary did not tell,
        nobody knows whether it is part of the journal: it is set aside.
        """
        items = [item for item in self._undecided.get(journal, ()) if item.mark == epoch]
        for item in items:
            acked_through = item.completed.spool.acked_through
            if epoch == NO_EPOCH and acked_through is None:
                item.is_aside = True
            else:
                known = (acked_through or 0) if epoch == NO_EPOCH else max(through, acked_through or 0)
                item.cut_at = known if known < item.fragment.end else None
        self._to_join.extend(item for item in items if not item.is_aside)
        self._decide(journal, items)
        if is_over:
            self._release(journal, lambda item: item.mark == epoch)
        self._hasten(journal, lambda item: item.mark == epoch)

    def give_up(self, journal: str, owner: object, through: int) -> None:
        """`owner` will hear of no more acknowledgements: what it holds beyond `through` is for others to tell.

        They have it if it was acknowledged. If it was not, it may be part of the journal or not, and a copy that says
        otherwise than theirs must not get into the store.
        """
        items = [item for item in self._undecided.get(journal, ()) if item.owner is owner and item.mark == NO_EPOCH]
        for item in items:
            item.cut_at = through if through < item.fragment.end else None
            item.is_left = item.cut_at is not None
        self._decide(journal, items)

    def _release(self, journal: str, is_over: Callable[[Item], bool]) -> None:
        """The epoch of some spools is over: those under way need no last word, and those kept for it may go."""
        for item in self._held.get(journal, ()):
            item.is_closed = item.is_closed or is_over(item)
        kept = self._kept.pop(journal, [])
        for item in kept:
            if is_over(item):
                item.is_closed = True
                self._queue.add(item, self._clock(), primary=True, is_open=True, at=item.place)
        if others := [item for item in kept if not item.is_closed]:
            self._kept[journal] = others
        self._changed.set()

    def _hasten(self, journal: str, is_meant: Callable[[Item], bool]) -> None:
        """What no replica has any more is not insurance: nobody else may be there to upload it."""
        undecided = self._undecided.get(journal, ())
        for item in self._held.get(journal, ()):
            if is_meant(item) and item not in undecided:
                self._queue.open(item, self._clock())

    def _decide(self, journal: str, items: list[Item]) -> None:
        for item in items:
            self._undecided[journal].remove(item)
            self._queue.open(item)
        if not self._undecided.get(journal, True):
            del self._undecided[journal]
        self._changed.set()

    async def run(self) -> NoReturn:
        """Upload what is due, until cancelled."""
        async with asyncio.TaskGroup() as uploads:
            while True:
                self._changed.clear()
                await self._join()
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
        while len(self._queue) > self._queue.shut_count + self._held_back:
            self._settled.clear()
            await self._settled.wait()

    @property
    def _held_back(self) -> int:
        """How many wait for a lease, which a process that is about to end does not get again."""
        if self._may_upload():
            return 0
        undecided = {item for items in self._undecided.values() for item in items}
        return sum(not self._is_free(item) and item not in undecided for item in self._queue.items())

    def _is_free(self, item: Item) -> bool:
        """Whether it may be uploaded whoever has the journal."""
        return item.mark == NO_EPOCH or item.is_closed or item.is_spare or self._may_upload()

    def _check_free(self, item: Item) -> None:
        if not self._is_free(item):
            raise UnavailableError("this broker may have lost its lease of etcd: others may have the journal by now")

    async def _join(self) -> None:
        """Have readers know of what was decided late, before it is uploaded: a store may be long down."""
        while self._to_join:
            item = self._to_join.pop()
            try:
                decided = await asyncio.to_thread(item.decided)
            except (OSError, UnavailableError) as error:
                # Whoever uploads it will find the same, and says more.
                log.warning("a spool cannot be read", extra={**_fields(item), "error": str(error)})
                continue
            self._tell_of(item, decided)

    def _tell_of(self, item: Item, decided: Fragment | None) -> None:
        if decided is not None:
            self._joined(decided, item.completed.file, item.create_revision)

    async def _attempt(self, item: Item) -> None:
        file = item.completed.file
        try:
            await self._persist(item)
        except CorruptError:
            # It will not get better. The files stay where they are, for whoever looks into it, or for a restart.
            self._done(item)
            CORRUPT.inc()
            log.exception("spool is damaged and will not be persisted", extra=_fields(item))
        except Exception as error:
            # Whatever it is, it must not end the uploads of all others.
            if isinstance(error, InvariantError):
                raise
            pause_s = self._queue.failed(item, self._clock())
            FAILED.inc()
            extra = {**_fields(item), "error": str(error), "retry_s": round(pause_s, 1)}
            log.warning("fragment could not be persisted (will retry)", extra=extra)
        else:
            self._done(item)
            self._count_off(item)
        self._compression.forget(file)
        self._changed.set()
        self._settled.set()

    def _done(self, item: Item) -> None:
        self._queue.done(item)
        if item.resident is not None:
            return
        held = self._held.get(item.fragment.journal, {})
        held.pop(item, None)
        if not held:
            self._held.pop(item.fragment.journal, None)

    def _count_off(self, item: Item) -> None:
        if not item.is_counted_off:
            item.is_counted_off = True
            self.waiting_bytes -= item.fragment.content_length

    async def _persist(self, item: Item) -> None:
        """Have the item's object in a store, and its files gone."""
        if item.stored is None:
            self._check_free(item)
            decided = await asyncio.to_thread(item.decided) if item.cut_at is not None else item.decided()
            if decided is not None:
                spec, fragment = self._destination(item, decided)
                if spec is not None and not spec.fragment.stores:
                    # Such a journal lives on its brokers alone, for as long as there is one of that name.
                    item.completed.file.keep_for_good()
                    item.resident = decided
                    self._tell_of_cut(item, decided)
                    return
                if spec is not None:
                    await self._store(item, spec, replace(fragment, path_postfix=self._postfix(spec, item, decided)))
            self._tell_of_cut(item, decided)
        item.resident = None
        await self._let_go_of_files(item)

    async def _let_go_of_files(self, item: Item) -> None:
        await asyncio.to_thread(self._let_go, item)
        self._keep_log(item)

    def _let_go(self, item: Item) -> None:
        """Of all files that are of no more use."""
        file = item.completed.file
        if item.is_left:
            return
        if item.needs_no_log:
            file.remove()
        # The directory must not seem to have no commit of an epoch that may still be open. An ended spool takes no
        # further record, and a damaged one must not seem to be sound: they stay as they are.
        elif not file.has_ended and item.sound_through is None:
            file.remove_content(item.completed.spool)
            item.completed = replace(item.completed, file=file.log_only())

    def _keep_log(self, item: Item) -> None:
        if not item.is_left and not item.needs_no_log:
            self._kept.setdefault(item.fragment.journal, []).append(item)

    def _tell_of_cut(self, item: Item, decided: Fragment | None) -> None:
        kept_to = decided.end if decided else item.fragment.begin
        if kept_to == item.fragment.end or item.is_spare:
            return
        CUT_BYTES.inc(item.fragment.end - kept_to)
        extra = {"journal": item.fragment.journal, "begin": kept_to, "end": item.fragment.end}
        log.warning("bytes that were never acknowledged were cut: their epoch was closed below them", extra=extra)

    def _destination(self, item: Item, fragment: Fragment) -> tuple[JournalSpec | None, Fragment]:
        """The spec to go by, and the fragment under the name it is to have."""
        current = self._spec_now(fragment.journal)
        if current is not None and current.create_revision == item.create_revision:
            if item.is_aside:
                aside = f".undecided/{item.create_revision}/{fragment.journal}"
                extra = {**_fields(item), "under": aside}
                log.warning("nobody can tell whether bytes are part of their journal: they are set aside", extra=extra)
                return current.spec, replace(fragment, journal=aside)
            return current.spec, fragment
        if item.resident is not None and not _last_spec(item).fragment.stores:
            # It never had a place to be set aside in, and went with its journal.
            return None, fragment
        if self._discard_deleted:
            log.warning("bytes of a deleted journal were discarded, as this broker was told to do", extra=_fields(item))
            return None, fragment
        spec = _last_spec(item)
        if not spec.fragment.stores:
            raise UnavailableError(
                f"{fragment.journal} was deleted and its last spec names no store to set its bytes aside in: start the "
                "broker with --broker.discard-deleted, or create the journal again"
            )
        # A journal of that name may exist again, or soon: its offsets are not these.
        aside = f".deleted/{item.create_revision}/{fragment.journal}"
        log.warning(
            "the journal was deleted before its bytes were persisted: they are set aside",
            extra={**_fields(item), "under": aside},
        )
        return spec, replace(fragment, journal=aside)

    async def _store(self, item: Item, spec: JournalSpec, fragment: Fragment) -> None:
        for at, url in enumerate(spec.fragment.stores):
            try:
                store = await self._open_store(url)
                if not await store.exists(fragment.content_path):
                    await self._put(item, store, fragment)
                item.stored = replace(fragment, backing_store=url)
                PERSISTED.inc()
                return
            except StoreDeniedError as error:
                if not self._is_exiting or at + 1 == len(spec.fragment.stores):
                    raise
                log.warning(
                    "store turned a fragment away: trying the next one, since this broker is exiting",
                    extra={"fragment": fragment.content_path, "error": str(error)},
                )

    async def _put(self, item: Item, store: BlobStore, fragment: Fragment) -> None:
        file = item.completed.file
        if file.has_ended:
            await asyncio.to_thread(_verify, item.completed, fragment)
        if fragment.codec is CompressionCodec.NONE:
            self._check_free(item)
            await store.put(fragment.content_path, file.content_fileno(), size=fragment.content_length)
        else:
            if item.compressor is None:
                item.compressor = await self._compression.take(file, fragment.codec)
            if item.compressor.compressed_through > fragment.end:
                item.compressor.rebuild()
            size = await item.compressor.finish(fragment.end, file.commit_ends)
            self._check_free(item)
            encoding = "gzip" if fragment.codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION else None
            await store.put(fragment.content_path, file.packed_path, size=size, content_encoding=encoding)
        # The files go only when the store itself says that it has the object.
        if not await store.exists(fragment.content_path):
            raise UnavailableError(f"the store took {fragment.content_path} but does not show it")

    def _postfix(self, spec: JournalSpec, item: Item, fragment: Fragment) -> str:
        """The rendered postfix, or none with a warning: a spec that a Go broker took may be beyond us."""
        template = spec.fragment.path_postfix_template
        if not template:
            return ""
        spool = item.completed.spool
        data = PostfixData(fragment, spool.first_append_ns, spool.registers, spec)
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


def _last_spec(item: Item) -> JournalSpec:
    return JournalSpec.from_proto(journal_pb2.JournalSpec.FromString(item.completed.file.last_spec))


def _is_shown(item: Item) -> bool:
    return _is_whole(item) if item.resident is None else not item.is_aside


def _is_whole(item: Item) -> bool:
    return (
        item.cut_at is None and item.sound_through is None and not item.is_spare and bool(item.fragment.content_length)
    )


def _fields(item: Item) -> dict[str, object]:
    return {"journal": item.fragment.journal, "begin": item.fragment.begin, "end": item.fragment.end}


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
