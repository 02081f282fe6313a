"""CopyKeeping: sees to the copies of a spool directory that no live replica has, when a broker starts and later on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError
from allocator.keys import item_key
from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.durable_head import EPOCHS_WARN, DurableHead, head_key, heads_prefix, voided
from broker.held_copies import HeldCopies
from broker.journal_transaction import record, unrecord
from broker.metrics import DAMAGED_COPIES, HELD_COPIES, LONG_HEADS
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
CONTENDED = "the head of the journal is being changed by others: try again"


Known = tuple[DurableHead | None, int]
"""What is on record of a journal, and the ModRevision of that: zero where there is none."""


class CopyKeeping:
    def __init__(
        self,
        etcd: EtcdClient,
        root: str,
        directory: SpoolDirectory,
        persister: Persister,
        has_replica: Callable[[str], bool],
    ) -> None:
        """`has_replica` is whether a journal has a replica here that is not given up."""
        self.copies = HeldCopies(directory.spool_id)
        self._etcd = etcd
        self._root = root
        self._directory = directory
        self._persister = persister
        self._has_replica = has_replica
        self._is_scanned = False
        # Damaged ones, by name; and of these such as nothing at all can be read of.
        self._damaged: dict[str, RecoveredSpool] = {}
        self._is_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # When a replica of a journal was last given up, of those that were just so.
        self._given_up_s: dict[str, float] = {}
        HELD_COPIES.set_function(lambda: len(self.copies))
        DAMAGED_COPIES.set_function(lambda: self.copies.damaged_count)

    async def recover(self) -> None:
        """Before the broker announces itself: take in what an earlier process has left, and close what it left open.

        Raises an EtcdError unless etcd answers.
        """
        if not self._is_scanned:
            await self._scan()
        heads, unreadable = await self._heads()
        found = self.copies.bound({**{journal: head for journal, (head, _) in heads.items()}, **unreadable})
        for name, through in found.items():
            await asyncio.to_thread(self._damaged[name].doubt, through)
        listed = [
            journal
            for journal, (head, _) in heads.items()
            if head.open_epoch is not None and self.copies.spool_id in head.open_epoch.holders
        ]
        journals = dict.fromkeys([*self.copies.journals, *listed])
        if journals:
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
        completed = CompletedSpool(spool_of(copy), recovered.reopened())
        sound_through = copy.verified.end if copy.verified is not None else copy.last.begin
        self._persister.adopt(completed, copy.last.create_revision, copy.worth, sound_through)

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
            heads, _ = await self._heads()
        except EtcdError as error:
            raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        return {journal: head for journal, (head, _) in heads.items()}

    async def change_head(
        self, journal: str, create_revision: int, changed: Callable[[DurableHead], DurableHead | None]
    ) -> HeadRead:
        """What is on record of that incarnation, after it was changed if that is called for. Raises an
        UnavailableError."""
        for _ in range(TRIES_MAX):
            read = await self.read_head(journal)
            head = None if read.head is None else read.head.of(create_revision)
            wanted = None if head is None else changed(head)
            if wanted is None:
                return HeadRead(head, read.mod_revision)
            try:
                await self._etcd.commit(record(self._root, journal, HeadChange(wanted, read.mod_revision)))
            except EtcdError as error:
                raise UnavailableError("etcd cannot be reached, or does not answer: try again") from error
        raise UnavailableError(CONTENDED)

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
                return
        raise UnavailableError(CONTENDED)

    async def _heads(self) -> tuple[dict[str, tuple[DurableHead, int]], dict[str, None]]:
        """All that are on record, and the journals of those that cannot be read."""
        prefix = heads_prefix(self._root)
        heads: dict[str, tuple[DurableHead, int]] = {}
        unreadable: dict[str, None] = {}
        for stored in (await self._etcd.list_prefix(prefix)).keys:
            journal = stored.key.decode()[len(prefix) :]
            try:
                heads[journal] = DurableHead.decoded(stored.raw), stored.mod_revision
            except ValidationError as error:
                unreadable[journal] = None
                log.error("the head of a journal is not readable (it is left alone)", extra={"error": str(error)})
        return heads, unreadable

    async def _head(self, journal: str) -> Known:
        stored = await self._etcd.get(head_key(self._root, journal))
        return (None, 0) if stored is None else (DurableHead.decoded(stored.raw), stored.mod_revision)

    async def _settle_all(
        self, journals: Collection[str], heads: Mapping[str, tuple[DurableHead, int]], told: str = ""
    ) -> None:
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

    async def _settle(self, journal: str, known: Known) -> None:
        """Until the record has nothing to be changed about: an answer that was lost, or somebody who was faster, is
        found by reading again."""
        for _ in range(TRIES_MAX):
            head, mod_revision = known
            judgement = self.copies.judged(journal, head, has_replica=self._has_replica(journal))
            if judgement.unknown:
                # Not of this journal, perhaps, but of one of its name that is gone.
                item = await self._etcd.get(item_key(self._root, journal))
                item_revision = 0 if item is None else item.create_revision
                judgement = self.copies.judged(
                    journal, head, has_replica=self._has_replica(journal), item_revision=item_revision
                )
            for mark in judgement.unknown:
                if self.copies.is_news(journal, mark):
                    extra = {"journal": journal, "epoch": mark.number, "create_revision": mark.create_revision}
                    log.error("a copy is ahead of what is on record (it is kept as it is)", extra=extra)
            if judgement.change is None:
                self.copies.perform(journal, judgement, self._persister)
                await asyncio.to_thread(self._forget, judgement.over)
                return
            try:
                await self._etcd.commit(record(self._root, journal, HeadChange(judgement.change, mod_revision)))
            except EtcdError as error:
                extra = {"journal": journal, "error": str(error)}
                log.warning("an epoch could not be closed (will retry)", extra=extra)
                await asyncio.sleep(RETRY_S)
            known = await self._head(journal)
        log.warning("the copies of a journal are not settled yet (will retry)", extra={"journal": journal})

    def _forget(self, names: Iterable[str]) -> None:
        """Damaged spools that are of no more use: the persister has the others."""
        for name in names:
            spool = self._damaged.pop(name, None)
            if spool is not None and spool.copy.last is None:
                with suppress(OSError):
                    spool.remove()

    async def sweep(self, exists: Callable[[str], bool]) -> None:
        """Remove the records of journals that do not exist any more, once their last epoch is closed and nothing of it
        is here. Whoever still has a copy goes by the journal's absence. Raises an EtcdError."""
        for journal, (head, mod_revision) in (await self._heads())[0].items():
            is_over = head.open_epoch is None or head.is_void
            is_here = journal in self.copies.journals or self._persister.holds(journal)
            if is_over and not is_here and not exists(journal):
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
