"""CopyKeeping: sees to the copies of a spool directory that no live replica has, when a broker starts and later on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError, EtcdUnavailableError
from allocator.keys import item_key
from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.copy_settling import TRIES_MAX, AskItem, CopySettling, Settled, Unsettled
from broker.durable_head import EPOCHS_WARN, DurableHead, head_key, heads_prefix, voided
from broker.held_copies import HeldCopies
from broker.journal_transaction import record, unrecord
from broker.metrics import DAMAGED_COPIES, HELD_COPIES, LONG_HEADS
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd
from fragment.spool_directory import RecoveredSpool, SpoolDirectory
from fragment.spool_file import SpoolFile
from fragment.spool_recovery import Worth, spool_of
from fragment.spool_writer import CompletedSpool
from protocol.errors import UnavailableError, ValidationError

log = logging.getLogger(__name__)

PARALLEL_MAX = 64
LOOK_S = 5.0
"""How long a copy that was given up waits for others to go on, before it closes its epoch; and how often it is looked
after from then on."""
RETRY_S = 1.0
GONE_S = 3600.0
"""For how long a deleted journal is on record whose last epoch is open: those who have it may return and close it."""
PROGRESS_EVERY = 1000
CONTENDED = "the head of the journal is being changed by others: try again"


class CopyKeeping:
    def __init__(
        self,
        etcd: EtcdClient,
        root: str,
        directory: SpoolDirectory,
        ledger: PersistLedger[SpoolFile],
        has_replica: Callable[[str], bool],
    ) -> None:
        """`has_replica` is whether a journal has a replica here that is not given up."""
        self.copies = HeldCopies(directory.spool_id)
        self._etcd = etcd
        self._root = root
        self._directory = directory
        self._ledger = ledger
        self._has_replica = has_replica
        self._is_scanned = False
        # Damaged spools by name, including those of which nothing can be read.
        self._damaged: dict[str, RecoveredSpool] = {}
        self._is_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # When a replica of a journal was last given up, of those that were just so.
        self._given_up_s: dict[str, float] = {}
        # Since when it is known that a journal on record does not exist any more.
        self._gone_since_s: dict[str, float] = {}
        HELD_COPIES.set_function(lambda: len(self.copies))
        DAMAGED_COPIES.set_function(lambda: self.copies.damaged_count)

    async def recover(self) -> None:
        """Before the broker announces itself: take in what an earlier process has left, and close what it left open.

        Raises an EtcdError unless etcd answers.
        """
        if not self._is_scanned:
            await self._scan()
        heads, unreadable = await self._heads()
        found = self.copies.bound({**{journal: read.head for journal, read in heads.items()}, **unreadable})
        for name, through in found.items():
            await asyncio.to_thread(self._damaged[name].doubt, through)
        if journals := self.copies.journals:
            log.warning("recovering journals", extra={"copies": len(self.copies), "journals": len(journals)})
            await self._settle_all(journals, heads, "journals are being recovered")
            log.warning("recovered journals", extra={"journals": len(journals), "unsettled": len(self.copies)})

    async def _scan(self) -> None:
        """Once, however often etcd has to be asked afterwards: files that are taken in twice would be two copies."""
        progress = _Progress("spools are being read", await asyncio.to_thread(self._directory.stem_count))
        spools = self._directory.recover()
        while (spool := await asyncio.to_thread(next, spools, None)) is not None:
            await asyncio.to_thread(self._take_in, spool)
            progress.one_more()
        self._is_scanned = True

    def _take_in(self, recovered: RecoveredSpool) -> None:
        """On a thread, while nothing else runs."""
        copy, name = recovered.copy, recovered.stem.name
        if copy.worth is Worth.EMPTY:
            # It says nothing, so that it does no harm where it is.
            with suppress(OSError):
                recovered.remove()
            return
        self.copies.recover(name, copy, recovered.doubted_through)
        if copy.worth is Worth.DAMAGED:
            self._damaged[name] = recovered
            extra = {"spool": name, "reason": copy.reason, "journal": copy.last and copy.last.journal}
            log.error("a spool is damaged: it proves no end, and stays until its epoch is closed", extra=extra)
        if copy.last is None:
            return
        self._ledger.adopt(CompletedSpool(spool_of(copy), recovered.reopened()), copy)

    def give_up(self, journal: str, copy: CopyEnd | None, acked_through: int) -> None:
        """A replica is given up: what it had of the journal's last epoch, and how much of that is acknowledged."""
        self.copies.give_up(journal, copy, acked_through)
        self._given_up_s[journal] = self._loop.time()
        self._is_changed.set()

    async def run(self) -> None:
        """Look after copies that were given up, until cancelled."""
        while True:
            if not self.copies.journals:
                self._is_changed.clear()
                await self._is_changed.wait()
            await asyncio.sleep(LOOK_S)
            now_s, given_up_s = self._loop.time(), self._given_up_s
            due = [journal for journal in self.copies.journals if given_up_s.get(journal, 0.0) + LOOK_S <= now_s]
            self._given_up_s = {journal: at_s for journal, at_s in given_up_s.items() if journal not in due}
            try:
                await self._look_after(due)
            except EtcdError as error:
                log.warning("copies could not be looked after (will retry)", extra={"error": str(error)})

    async def settle(self) -> None:
        """Close what is open, and have what is decided uploaded. Raises an EtcdError unless etcd answers."""
        await self._look_after(self.copies.journals)

    async def _look_after(self, journals: Sequence[str]) -> None:
        if not journals:
            return
        heads = (await self._heads())[0] if len(journals) > PARALLEL_MAX else {}
        await self._settle_all(journals, heads)

    async def read_head(self, journal: str) -> HeadRead:
        """Raises an UnavailableError."""
        try:
            read = await self._head(journal)
        except EtcdError as error:
            log.warning("etcd did not tell of a journal's head", extra={"error": str(error)})
            raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        except ValidationError as error:
            raise UnavailableError(f"{error}: restore the key {head_key(self._root, journal)}") from error
        if read.head is not None and len(read.head.epochs) > EPOCHS_WARN:
            LONG_HEADS.inc()
            extra = {"journal": journal, "epochs": len(read.head.epochs)}
            log.warning("the store does not get what many epochs of a journal hold: see to its uploads", extra=extra)
        return read

    async def read_heads(self) -> Mapping[str, DurableHead]:
        """All that are on record. Raises an UnavailableError."""
        try:
            heads, _ = await self._heads()
        except EtcdError as error:
            raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        return {journal: read.head for journal, read in heads.items() if read.head is not None}

    async def change_head(
        self, journal: str, create_revision: int, changed: Callable[[DurableHead | None], DurableHead | None]
    ) -> HeadRead:
        """What is on record of that incarnation, after it was changed if that is called for. Raises an
        UnavailableError."""
        for _ in range(TRIES_MAX):
            read = await self.read_head(journal)
            head = None if read.head is None else read.head.of(create_revision)
            wanted = changed(head)
            if wanted is None:
                return HeadRead(head, read.mod_revision)
            try:
                await self._etcd.commit(record(self._root, journal, HeadChange(wanted, read.mod_revision)))
            except EtcdError as error:
                raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        raise UnavailableError(CONTENDED)

    async def void_head(self, journal: str, create_revision: int) -> None:
        """Have it on record that a member without epochs takes part. Raises an UnavailableError."""
        await self.change_head(journal, create_revision, partial(voided, create_revision=create_revision))

    async def _heads(self) -> tuple[dict[str, HeadRead], dict[str, None]]:
        """All that are on record, and the journals of those that cannot be read."""
        prefix = heads_prefix(self._root)
        heads: dict[str, HeadRead] = {}
        unreadable: dict[str, None] = {}
        for stored in (await self._etcd.list_prefix(prefix)).keys:
            journal = stored.key.decode()[len(prefix) :]
            try:
                heads[journal] = HeadRead(DurableHead.decoded(stored.raw), stored.mod_revision)
            except ValidationError as error:
                unreadable[journal] = None
                log.error("the head of a journal is not readable (it is left alone)", extra={"error": str(error)})
        return heads, unreadable

    async def _head(self, journal: str) -> HeadRead:
        stored = await self._etcd.get(head_key(self._root, journal))
        return HeadRead(None, 0) if stored is None else HeadRead(DurableHead.decoded(stored.raw), stored.mod_revision)

    async def _settle_all(self, journals: Collection[str], heads: Mapping[str, HeadRead], told: str = "") -> None:
        """Raises an EtcdError once all were tried, if one could not be settled for that."""
        room = asyncio.Semaphore(PARALLEL_MAX)
        failures: list[EtcdError] = []
        progress = _Progress(told, len(journals))

        async def settle(journal: str) -> None:
            async with room:
                try:
                    known = heads.get(journal) or await self._head(journal)
                    await self._settle(journal, known)
                except EtcdError as error:
                    failures.append(error)
                except ValidationError:
                    # Somebody was told of it, and has to restore the key first.
                    pass
            progress.one_more()

        async with asyncio.TaskGroup() as tasks:
            for journal in journals:
                tasks.create_task(settle(journal))
        if failures:
            raise failures[0]

    async def _settle(self, journal: str, known: HeadRead) -> None:
        """Raises an EtcdError if the record could not be changed: whoever asked has to try again."""
        settling = CopySettling(self.copies, journal, self._ledger)
        item_revision: int | None = None
        while True:
            step = settling.step(known, has_replica=self._has_replica(journal), item_revision=item_revision)
            match step:
                case AskItem():
                    item = await self._etcd.get(item_key(self._root, journal))
                    item_revision = 0 if item is None else item.create_revision
                case HeadChange():
                    await self._change(journal, step)
                    known, item_revision = await self._head(journal), None
                case Settled(over, ahead):
                    for mark in ahead:
                        extra = {"journal": journal, "epoch": mark.number, "create_revision": mark.create_revision}
                        log.error("a copy is ahead of what is on record (it is kept as it is)", extra=extra)
                    await asyncio.to_thread(self._forget, over)
                    return
                case Unsettled():
                    raise EtcdUnavailableError(f"an epoch of {journal} could not be closed", maybe_applied=False)

    async def _change(self, journal: str, change: HeadChange) -> None:
        """Whatever comes of it, the record tells."""
        try:
            await self._etcd.commit(record(self._root, journal, change))
        except EtcdError as error:
            log.warning("an epoch could not be closed (will retry)", extra={"journal": journal, "error": str(error)})
            await asyncio.sleep(RETRY_S)

    def _forget(self, names: Iterable[str]) -> None:
        """Damaged spools that are of no more use: the persister has the others."""
        for name in names:
            spool = self._damaged.pop(name, None)
            if spool is not None and spool.copy.last is None:
                with suppress(OSError):
                    spool.remove()

    async def sweep(self, exists: Callable[[str], bool]) -> None:
        """Remove the records of journals that do not exist any more, unless something of them is here. Whoever still
        has a copy goes by the journal's absence.

        One whose last epoch is open stays for a while: holders that return know best where it ended. Raises an
        EtcdError.
        """
        heads, _ = await self._heads()
        now_s, known_s = self._loop.time(), self._gone_since_s
        self._gone_since_s = {name: known_s.get(name, now_s) for name in heads if not exists(name)}
        for journal, since_s in self._gone_since_s.items():
            head, mod_revision = heads[journal].head, heads[journal].mod_revision
            assert head is not None
            is_over = head.open_epoch is None or head.is_void or now_s - since_s >= GONE_S
            is_here = journal in self.copies.journals or self._ledger.holds(journal)
            if is_over and not is_here:
                committed = await self._etcd.commit(unrecord(self._root, journal, mod_revision))
                if committed.succeeded:
                    log.info("the head of a deleted journal is off the record", extra={"journal": journal})


class _Progress:
    """A line in the log, now and then, of what takes long."""

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._done = 0

    def one_more(self) -> None:
        self._done += 1
        if self._what and self._done % PROGRESS_EVERY == 0:
            log.warning(self._what, extra={"done": self._done, "of": self._count})
