"""As ``broker.copy_keeping``: the shipped HeldCopies over the simulated etcd and disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from allocator.etcd_client import Committed
from allocator.etcd_errors import EtcdError
from allocator.key_event import Listing, StoredKey
from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.durable_head import DurableHead, head_key, heads_prefix
from broker.held_copies import HeldCopies
from broker.journal_transaction import record
from fragment.spool import CopyEnd
from fragment.spool_recovery import Worth, spool_of
from fragment.spool_writer import CompletedSpool
from protocol.errors import GazetteError, UnavailableError
from tests.simulation.disk import RecoveredCopy, SimulatedDirectory
from tests.simulation.etcd import EtcdAccess
from tests.simulation.sim_persister import SimulatedPersister

LOOK_S = 5.0
_RETRY_S = 0.5


class CopyKeeping:
    def __init__(
        self,
        access: EtcdAccess,
        root: str,
        directory: SimulatedDirectory,
        persister: SimulatedPersister,
        has_replica: Callable[[str], bool],
    ) -> None:
        self._has_replica = has_replica
        self._damaged: dict[str, RecoveredCopy] = {}
        self.copies = HeldCopies(directory.spool_id)
        self._access = access
        self._root = root
        self._node = access.node
        self._directory = directory
        self._persister = persister

    def recover(self, done: Callable[[], None]) -> None:
        for recovered in list(self._directory.recover()):
            self._take_in(recovered)
        self._list(done)

    def _take_in(self, recovered: RecoveredCopy) -> None:
        copy = recovered.copy
        if copy.worth is Worth.EMPTY:
            with suppress(GazetteError):
                recovered.remove()
            return
        self.copies.recover(recovered.name, copy, recovered.doubted_through)
        if copy.worth is Worth.DAMAGED:
            self._damaged[recovered.name] = recovered
        if copy.last is None:
            return
        completed = CompletedSpool(spool_of(copy), recovered.reopened())
        sound_through = copy.verified.end if copy.verified is not None else copy.last.begin
        self._persister.adopt(completed, copy.last.create_revision, copy.worth, sound_through)

    def _list(self, done: Callable[[], None]) -> None:
        prefix = heads_prefix(self._root)

        def listed(answer: Listing | EtcdError) -> None:
            if isinstance(answer, EtcdError):
                self._node.after(_RETRY_S, self._list, done)
                return
            heads = {stored.key.decode()[len(prefix) :]: DurableHead.decoded(stored.raw) for stored in answer.keys}
            for name, through in self.copies.bound(heads).items():
                self._damaged[name].doubt(through)
            listed = [
                journal
                for journal, head in heads.items()
                if head.open_epoch is not None and self.copies.spool_id in head.open_epoch.holders
            ]
            self._settle_each(list(dict.fromkeys([*self.copies.journals, *listed])), True, done)

        self._access.list_prefix(prefix, listed)

    def give_up(self, journal: str, copy: CopyEnd | None, acked_through: int) -> None:
        self.copies.give_up(journal, copy, acked_through)
        self._node.after(LOOK_S, self._look, journal)

    def _look(self, journal: str) -> None:
        """Until nothing of the journal is left to be looked after."""

        def looked() -> None:
            if journal in self.copies.journals:
                self._node.after(LOOK_S, self._look, journal)

        if journal in self.copies.journals:
            self._settle(journal, False, looked)

    def look_after(self) -> None:
        """What could not be settled at the start."""
        for journal in self.copies.journals:
            self._node.after(LOOK_S, self._look, journal)

    def settle(self, done: Callable[[], None]) -> None:
        self._settle_each(self.copies.journals, False, done)

    def _settle_each(self, journals: Sequence[str], is_starting: bool, done: Callable[[], None]) -> None:
        if not journals:
            done()
        else:
            self._settle(journals[0], is_starting, lambda: self._settle_each(journals[1:], is_starting, done))

    def _settle(self, journal: str, is_starting: bool, done: Callable[[], None], tries: int = 5) -> None:
        def read(found: HeadRead | GazetteError) -> None:
            if isinstance(found, GazetteError):
                self._again(journal, is_starting, done, tries)
                return
            judgement = self.copies.judged(journal, found.head, has_replica=self._has_replica(journal))
            if judgement.change is None:
                self.copies.perform(journal, judgement, self._persister)
                self._forget(judgement.over)
                done()
                return
            change = HeadChange(judgement.change, found.mod_revision)
            self._access.commit(record(self._root, journal, change), committed)

        def committed(_: Committed | EtcdError) -> None:
            # Whatever came of it, the record tells.
            self._again(journal, is_starting, done, tries)

        self.read_head(journal, read)

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            recovered = self._damaged.pop(name, None)
            if recovered is not None and recovered.copy.last is None:
                with suppress(GazetteError):
                    recovered.remove()

    def _again(self, journal: str, is_starting: bool, done: Callable[[], None], tries: int) -> None:
        if tries > 1 or is_starting:
            self._node.after(0.05, self._settle, journal, is_starting, done, tries - 1)
        else:
            done()

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        def answered(stored: StoredKey | EtcdError | None) -> None:
            if isinstance(stored, EtcdError):
                done(UnavailableError(f"etcd: {stored}"))
            elif stored is None:
                done(HeadRead(None, 0))
            else:
                done(HeadRead(DurableHead.decoded(stored.raw), stored.mod_revision))

        self._access.get(head_key(self._root, journal), answered)
