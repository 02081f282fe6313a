"""The shipped PersistLedger over the simulated store: as ``fragment.persister``, with callbacks where that waits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from fragment.persist_destination import Destination
from fragment.persist_item import CommitAt, Item, Removal
from fragment.persist_ledger import PersistLedger
from fragment.spool_file import SpoolFile
from protocol.errors import CorruptError, GazetteError, UnavailableError
from protocol.fragment import Fragment
from tests.simulation.store import Store, path_in_store
from tests.simulation.world import Node, Timer


class SimulatedPersister:
    def __init__(
        self,
        node: Node,
        store: Store,
        ledger: PersistLedger[SpoolFile],
        joined: Callable[[Fragment, SpoolFile, int], None],
    ) -> None:
        self.node = node
        self.store = store
        self._ledger = ledger
        self._joined = joined
        ledger.listen(self._wake)
        self._is_awake = False
        # Whether ``run`` runs: not before the broker knows which journals there are.
        self._is_running = False
        self._timer: Timer | None = None
        self._finished: Callable[[], None] | None = None
        # Hears of bytes that were dropped: journal, CreateRevision, begin and end.
        self.cut: Callable[[str, int, int, int], None] = lambda *_: None

    @property
    def items(self) -> list[Item[SpoolFile]]:
        return self._ledger.items

    def finish_then(self, done: Callable[[], None]) -> None:
        """As ``finish``, which waits."""
        if not self._is_running:
            done()
            return
        self._finished = done
        self._ledger.leave()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self.node.after(0.0, self._pump)

    def run_now(self) -> None:
        self._is_running = True
        self._wake()

    def _pump(self) -> None:
        self._is_awake = False
        if not self._is_running:
            return
        while (item := self._ledger.next_to_join()) is not None:
            if (decided := _decided(item)) is not None:
                self._joined(decided, item.file, item.create_revision)
        for item in self._ledger.start():
            self._begin(item)
        due_in_s = self._ledger.due_in_s()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_in_s is None else self.node.timer(due_in_s + 0.001, self._pump)
        if self._finished is not None and self._ledger.is_idle:
            finished, self._finished = self._finished, None
            finished()

    def _begin(self, item: Item[SpoolFile]) -> None:
        try:
            if item.stored is None:
                self._ledger.check_free(item)
                if (decided := _decided(item)) is not None:
                    _Upload(self, item, decided, self._ledger.destination(item, decided)).start()
                    return
                self._tell_of_cut(item, None)
        except GazetteError as error:
            self.failed(item, error)
        else:
            self._let_go_of(item)

    def stored(self, item: Item[SpoolFile], decided: Fragment, fragment: Fragment) -> None:
        self._ledger.stored(item, fragment)
        self._tell_of_cut(item, decided)
        self._let_go_of(item)

    def _tell_of_cut(self, item: Item[SpoolFile], decided: Fragment | None) -> None:
        if (begin := item.dropped_from(decided)) is not None:
            self.cut(item.fragment.journal, item.create_revision, begin, item.fragment.end)

    def _let_go_of(self, item: Item[SpoolFile]) -> None:
        try:
            while (removal := item.removal()) is not Removal.NOTHING:
                if removal is Removal.ALL:
                    item.file.remove()
                else:
                    item.file.remove_content(item.spool)
                self._ledger.removed(item, removal, item.file)
        except GazetteError as error:
            self.failed(item, error)
        else:
            self._ledger.done(item)
            self._wake()

    def failed(self, item: Item[SpoolFile], error: GazetteError) -> None:
        if isinstance(error, CorruptError):
            self._ledger.spoiled(item)
        else:
            self._ledger.failed(item)
        self._wake()


class _Upload:
    """Look whether it is there, put it, and look again."""

    def __init__(
        self, persister: SimulatedPersister, item: Item[SpoolFile], decided: Fragment, destination: Destination
    ) -> None:
        self._persister = persister
        self._item = item
        self._decided = decided
        self._fragment = destination.fragment
        self._url = destination.stores[0]
        self._path = path_in_store(self._url, self._fragment.content_path)
        self._has_put = False

    def start(self) -> None:
        self._persister.store.exists(self._persister.node, self._path, self._looked)

    def _looked(self, exists: bool | UnavailableError) -> None:
        if isinstance(exists, UnavailableError):
            self._persister.failed(self._item, exists)
        elif exists:
            self._persister.stored(self._item, self._decided, replace(self._fragment, backing_store=self._url))
        elif self._has_put:
            self._persister.failed(self._item, UnavailableError("the store took it but does not show it"))
        else:
            self._put()

    def _put(self) -> None:
        file = self._item.file
        content = file.read(0, self._fragment.content_length)
        if file.has_ended and hashlib.sha1(content).digest() != self._fragment.sum:
            self._persister.failed(self._item, CorruptError("the spool does not match its SHA-1 any more"))
            return
        self._has_put = True
        self._persister.store.put(self._persister.node, self._path, content, self._was_put)

    def _was_put(self, error: UnavailableError | None) -> None:
        if error is not None:
            self._persister.failed(self._item, error)
        else:
            self.start()


def _decided(item: Item[SpoolFile]) -> Fragment | None:
    decided = item.decided()
    return item.file.commit_at(decided.end) if isinstance(decided, CommitAt) else decided
