"""As ``broker.copy_keeping``: the shipped HeldCopies over the simulated etcd and disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from allocator.etcd_errors import EtcdError
from allocator.key_event import Listing, StoredKey
from allocator.keys import item_key
from broker.append_effect import HeadChange
from broker.append_event import HeadRead
from broker.copy_settling import AskItem, CopySettling, Settled, Unsettled
from broker.durable_head import DurableHead, head_key, heads_prefix
from broker.held_copies import HeldCopies
from broker.journal_transaction import record
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd
from fragment.spool_file import SpoolFile
from fragment.spool_recovery import Worth, spool_of
from fragment.spool_writer import CompletedSpool
from protocol.errors import GazetteError, UnavailableError
from tests.simulation.disk import RecoveredCopy, SimulatedDirectory
from tests.simulation.etcd import EtcdAccess

LOOK_S = 5.0
_RETRY_S = 0.5


class CopyKeeping:
    def __init__(
        self,
        access: EtcdAccess,
        root: str,
        directory: SimulatedDirectory,
        ledger: PersistLedger[SpoolFile],
        has_replica: Callable[[str], bool],
    ) -> None:
        self.has_replica = has_replica
        self._damaged: dict[str, RecoveredCopy] = {}
        self.copies = HeldCopies(directory.spool_id)
        self.access = access
        self.root = root
        self._node = access.node
        self._directory = directory
        self._ledger = ledger

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
        self._ledger.adopt(CompletedSpool(spool_of(copy), recovered.reopened()), copy)

    def _list(self, done: Callable[[], None]) -> None:
        prefix = heads_prefix(self.root)

        def listed(answer: Listing | EtcdError) -> None:
            if isinstance(answer, EtcdError):
                self._node.after(_RETRY_S, self._list, done)
                return
            heads = {stored.key.decode()[len(prefix) :]: DurableHead.decoded(stored.raw) for stored in answer.keys}
            for name, through in self.copies.bound(heads).items():
                self._damaged[name].doubt(through)
            self._settle_each(self.copies.journals, True, done)

        self.access.list_prefix(prefix, listed)

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

    def _settle(self, journal: str, is_starting: bool, done: Callable[[], None]) -> None:
        def settled(over: Sequence[str] | None) -> None:
            if over is None and is_starting:
                # A process that starts goes on until it is known where its journals end.
                self._node.after(_RETRY_S, self._settle, journal, is_starting, done)
                return
            self._forget(over or ())
            done()

        _Settling(self, CopySettling(self.copies, journal, self._ledger), journal, settled).read()

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            recovered = self._damaged.pop(name, None)
            if recovered is not None and recovered.copy.last is None:
                with suppress(GazetteError):
                    recovered.remove()

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        def answered(stored: StoredKey | EtcdError | None) -> None:
            if isinstance(stored, EtcdError):
                done(UnavailableError(f"etcd: {stored}"))
            elif stored is None:
                done(HeadRead(None, 0))
            else:
                done(HeadRead(DurableHead.decoded(stored.raw), stored.mod_revision))

        self.access.get(head_key(self.root, journal), answered)


class _Settling:
    """What ``copy_keeping`` does in a loop: reads, and does what the shipped CopySettling says."""

    def __init__(
        self,
        keeping: CopyKeeping,
        settling: CopySettling,
        journal: str,
        done: Callable[[Sequence[str] | None], None],
    ) -> None:
        """`done` is given the names of damaged spools of no more use, or None if it could not be settled."""
        self._keeping = keeping
        self._settling = settling
        self._journal = journal
        self._done = done

    def read(self) -> None:
        self._keeping.read_head(self._journal, self._on_read)

    def _on_read(self, found: HeadRead | GazetteError, item_revision: int | None = None) -> None:
        if isinstance(found, GazetteError):
            self._done(None)
            return
        keeping, journal = self._keeping, self._journal
        step = self._settling.step(found, has_replica=keeping.has_replica(journal), item_revision=item_revision)
        match step:
            case AskItem():
                keeping.access.get(item_key(keeping.root, journal), partial(self._on_item, found))
            case HeadChange():
                # Whatever comes of it, the record tells.
                keeping.access.commit(record(keeping.root, journal, step), lambda _: self.read())
            case Settled(over, _):
                self._done(over)
            case Unsettled():
                self._done(None)

    def _on_item(self, found: HeadRead, item: StoredKey | EtcdError | None) -> None:
        if isinstance(item, EtcdError):
            self._done(None)
        else:
            self._on_read(found, 0 if item is None else item.create_revision)
