"""CopyKeeping: sees to the copies of a spool directory that no live replica has, when a broker starts and later on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError
from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.durable_head import EPOCHS_WARN, DurableHead, head_key, heads_prefix, voided
from broker.held_copies import JOURNAL_HASH, HeldCopies
from broker.journal_transaction import record
from broker.metrics import DAMAGED_COPIES, HELD_COPIES, LONG_HEADS, VOID_HEADS
from fragment.persister import Persister
from fragment.spool import CopyEnd
from fragment.spool_directory import RecoveredSpool, SpoolDirectory
from fragment.spool_recovery import Worth, spool_of
from fragment.spool_writer import CompletedSpool
from protocol.errors import UnavailableError, ValidationError

log = logging.getLogger(__name__)

PARALLEL_MAX = 64
LOOK_S = 5.0
"""How long a copy that was given up waits for others to go on, before it closes its epoch; and how often it is looked
after from then on."""
TRIES_MAX = 5
RETRY_S = 1.0
PROGRESS_EVERY = 1000


Known = tuple[DurableHead | None, int]
"""What is on record of a journal, and the ModRevision of that: zero where there is none."""


class CopyKeeping:
    def __init__(self, etcd: EtcdClient, root: str, directory: SpoolDirectory, persister: Persister) -> None:
        self.copies = HeldCopies(directory.spool_id)
        self._etcd = etcd
        self._root = root
        self._directory = directory
        self._persister = persister
        self._is_scanned = False
        self._is_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # When a replica of a journal was last given up, of those that were just so.
        self._given_up_s: dict[str, float] = {}
        HELD_COPIES.set_function(lambda: len(self.copies))
        DAMAGED_COPIES.set_function(lambda: self.copies.damaged_count)

    async def recover(self) -> None:
        """Before the broker announces itself: take in what an earlier process has left, and close what it left open.

        Raises unless etcd answers.
        """
        if not self._is_scanned:
            await self._scan()
        heads = await self._heads()
        listed = [
            journal
            for journal, (head, _) in heads.items()
            if head.open_epoch is not None and self.copies.spool_id in head.open_epoch.holders
        ]
        journals = dict.fromkeys([*self.copies.journals, *listed])
        if journals:
            log.warning("recovering journals", extra={"copies": len(self.copies), "journals": len(journals)})
        await self._settle_all(journals, heads, is_starting=True)
        if journals:
            log.warning("recovered journals", extra={"journals": len(journals), "unsettled": len(self.copies)})

    async def _scan(self) -> None:
        """Once, however often etcd has to be asked afterwards: files that are taken in twice would be two copies."""
        recovered = await asyncio.to_thread(lambda: list(self._directory.recover()))
        for at, spool in enumerate(recovered):
            await asyncio.to_thread(self._take_in, spool)
            if at % PROGRESS_EVERY == PROGRESS_EVERY - 1:
                log.warning("spools are being recovered", extra={"done": at + 1, "of": len(recovered)})
        self._is_scanned = True

    def _take_in(self, recovered: RecoveredSpool) -> None:
        """On a thread, while nothing else runs."""
        copy = recovered.copy
        if copy.worth is Worth.EMPTY:
            # It says nothing, so that it does no harm where it is.
            with suppress(OSError):
                recovered.remove()
            return
        self.copies.recover(recovered.stem.name[:JOURNAL_HASH], copy)
        if copy.worth is Worth.DAMAGED:
            extra = {"spool": recovered.stem.name, "reason": copy.reason, "journal": copy.last and copy.last.journal}
            log.error("a spool is damaged: it proves no end, and stays until its epoch is closed", extra=extra)
        if copy.last is None or (copy.worth is Worth.DAMAGED and copy.verified is None):
            return
        completed = CompletedSpool(spool_of(copy), recovered.reopened())
        sound_through = copy.verified.end if copy.verified is not None else copy.last.begin
        self._persister.adopt(completed, copy.last.epoch.create_revision, copy.worth, sound_through)

    def give_up(self, journal: str, copy: CopyEnd) -> None:
        self.copies.give_up(journal, copy)
        self._given_up_s[journal] = self._loop.time()
        self._is_changed.set()

    async def run(self) -> None:
        """Look after copies that were given up, until cancelled."""
        while True:
            if not len(self.copies):
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
        """Close what is open, and have what is decided uploaded. Raises unless etcd answers."""
        await self._look_after(self.copies.journals)

    async def _look_after(self, journals: Sequence[str]) -> None:
        if not journals:
            return
        heads = await self._heads() if len(journals) > PARALLEL_MAX else {}
        await self._settle_all(journals, heads, is_starting=False)

    async def read_head(self, journal: str) -> HeadRead:
        """Raises an UnavailableError."""
        try:
            head, mod_revision = await self._head(journal)
        except EtcdError as error:
            log.warning("etcd did not tell of a journal's head", extra={"error": str(error)})
            raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        except ValidationError as error:
            raise UnavailableError(f"{error}: restore the key {head_key(self._root, journal)}") from error
        if head is not None and len(head.epochs) > EPOCHS_WARN:
            LONG_HEADS.inc()
            extra = {"journal": journal, "epochs": len(head.epochs)}
            log.warning("the store does not get what many epochs of a journal hold: see to its uploads", extra=extra)
        return HeadRead(head, mod_revision)

    async def read_heads(self) -> Mapping[str, DurableHead]:
        """All that are on record. Raises an UnavailableError."""
        try:
            return {journal: head for journal, (head, _) in (await self._heads()).items()}
        except EtcdError as error:
            raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error

    async def void_head(self, journal: str, create_revision: int) -> None:
        """Have it on record that a member without epochs takes part. Raises an UnavailableError."""
        for _ in range(TRIES_MAX):
            read = await self.read_head(journal)
            head = voided(None if read.head is None else read.head.of(create_revision), create_revision)
            if head is None:
                return
            try:
                committed = await self._etcd.commit(record(self._root, journal, HeadChange(head, read.mod_revision)))
            except EtcdError as error:
                raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
            if committed.succeeded:
                VOID_HEADS.inc()
                extra = {"journal": journal}
                log.warning(
                    "a broker without epochs takes part: acknowledged bytes are as safe as in Gazette", extra=extra
                )
                return
        raise UnavailableError("the head of the journal is being changed by others: try again")

    async def _heads(self) -> dict[str, tuple[DurableHead, int]]:
        prefix = heads_prefix(self._root)
        heads = {}
        for stored in (await self._etcd.list_prefix(prefix)).keys:
            journal = stored.key.decode()[len(prefix) :]
            try:
                heads[journal] = DurableHead.decoded(stored.raw), stored.mod_revision
            except ValidationError as error:
                log.error("the head of a journal is not readable (it is left alone)", extra={"error": str(error)})
        return heads

    async def _head(self, journal: str) -> Known:
        stored = await self._etcd.get(head_key(self._root, journal))
        return (None, 0) if stored is None else (DurableHead.decoded(stored.raw), stored.mod_revision)

    async def _settle_all(
        self, journals: Iterable[str], heads: dict[str, tuple[DurableHead, int]], *, is_starting: bool
    ) -> None:
        room = asyncio.Semaphore(PARALLEL_MAX)

        async def settle(journal: str) -> None:
            async with room:
                known: Known | None = heads.get(journal)
                if known is None and not is_starting:
                    known = await self._known(journal)
                await self._settle(journal, known or (None, 0), is_starting)

        async with asyncio.TaskGroup() as tasks:
            for journal in journals:
                tasks.create_task(settle(journal))

    async def _known(self, journal: str) -> Known | None:
        try:
            return await self._head(journal)
        except ValidationError:
            return None

    async def _settle(self, journal: str, known: Known, is_starting: bool) -> None:
        """Until the record has nothing to be changed about: an answer that was lost, or somebody who was faster, is
        found by reading again."""
        for _ in range(TRIES_MAX):
            head, mod_revision = known
            judgement = self.copies.judged(journal, head, is_starting=is_starting)
            for mark in judgement.unknown:
                if self.copies.is_news(journal, mark):
                    extra = {"journal": journal, "epoch": mark.number, "create_revision": mark.create_revision}
                    log.error("a copy is ahead of what is on record (it is kept as it is)", extra=extra)
            if judgement.change is None:
                self.copies.perform(journal, judgement, self._persister)
                return
            try:
                await self._etcd.commit(record(self._root, journal, HeadChange(judgement.change, mod_revision)))
            except EtcdError as error:
                extra = {"journal": journal, "error": str(error)}
                log.warning("an epoch could not be closed (will retry)", extra=extra)
                await asyncio.sleep(RETRY_S)
            known = await self._head(journal)
        log.warning("the copies of a journal are not settled yet (will retry)", extra={"journal": journal})
