"""The shipped Persister over the simulated store: its rules and its queue, with callbacks where it waits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from fragment.persister import CurrentSpec, Item, Persister
from fragment.spool_compression import SpoolCompression
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobStore
from protocol.errors import CorruptError, GazetteError, UnavailableError
from protocol.fragment import Fragment
from tests.simulation.store import Store, path_in_store
from tests.simulation.world import Node, Timer


class _Wake(asyncio.Event):
    """Calls somebody where the shipped one wakes a task."""

    def __init__(self, woken: Callable[[], None]) -> None:
        super().__init__()
        self._woken = woken

    def set(self) -> None:
        self._woken()


class SimulatedPersister(Persister):
    def __init__(
        self,
        node: Node,
        store: Store,
        spec_now: Callable[[str], CurrentSpec | None],
        joined: Callable[[Fragment, SpoolFile, int], None],
        may_upload: Callable[[], bool],
    ) -> None:
        world = node.world
        super().__init__(
            _no_store,
            SpoolCompression(),
            spec_now,
            lambda: world.now_s,
            world.chance,
            joined=joined,
            may_upload=may_upload,
        )
        self._node = node
        self._store_now = store
        self._changed = _Wake(self._wake)
        self._is_awake = False
        # Whether ``run`` runs: not before the broker knows which journals there are.
        self._is_running = False
        self._timer: Timer | None = None
        self._finished: Callable[[], None] | None = None
        # Hears of bytes that were dropped: journal, CreateRevision, begin and end.
        self.cut: Callable[[str, int, int, int], None] = lambda *_: None

    def _tell_of_cut(self, item: Item, decided: Fragment | None) -> None:
        super()._tell_of_cut(item, decided)
        begin = decided.end if decided else item.fragment.begin
        if begin < item.fragment.end and not item.is_spare:
            self.cut(item.fragment.journal, item.create_revision, begin, item.fragment.end)

    @property
    def items(self) -> list[Item]:
        return self._queue.items()

    def finish_then(self, done: Callable[[], None]) -> None:
        """As ``finish``, which waits."""
        if not self._is_running:
            done()
            return
        self._is_exiting = True
        self._finished = done
        self._queue.hurry()
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._node.after(0.0, self._pump)

    def run_now(self) -> None:
        self._is_running = True
        self._wake()

    def _pump(self) -> None:
        self._is_awake = False
        if not self._is_running:
            return
        now_s = self._clock()
        while self._to_join:
            item = self._to_join.pop()
            self._tell_of(item, item.decided())
        for item in self._queue.start(now_s):
            self._begin(item)
        due_s = self._queue.next_due_s()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_s is None else self._node.timer(max(0.0, due_s - now_s) + 0.001, self._pump)
        if self._finished is not None and len(self._queue) <= self._queue.shut_count + self._held_back:
            finished, self._finished = self._finished, None
            finished()

    def _begin(self, item: Item) -> None:
        try:
            if item.stored is None and not self._is_free(item):
                raise UnavailableError("this broker may have lost its lease")
            decided = None if item.stored is not None else item.decided()
            if decided is None:
                if item.stored is None:
                    self._tell_of_cut(item, None)
                self._let_go_of(item)
                return
            spec, fragment = self._destination(item, decided)
            assert spec is not None
            _Upload(self, item, fragment, spec.fragment.stores).start()
        except GazetteError as error:
            self.settle(item, error)

    def stored(self, item: Item, fragment: Fragment) -> None:
        item.stored = fragment
        self._tell_of_cut(item, replace(fragment, journal=item.fragment.journal))
        self._let_go_of(item)

    def _let_go_of(self, item: Item) -> None:
        try:
            self._let_go(item)
        except GazetteError as error:
            self.settle(item, error)
        else:
            self._keep_log(item)
            self.settle(item, None)

    def settle(self, item: Item, error: GazetteError | None) -> None:
        if error is None or isinstance(error, CorruptError):
            self._done(item)
        else:
            self._queue.failed(item, self._clock())
        self._wake()

    @property
    def place(self) -> tuple[Node, Store]:
        return self._node, self._store_now


class _Upload:
    """Look whether it is there, put it, and look again."""

    def __init__(self, persister: SimulatedPersister, item: Item, fragment: Fragment, stores: Sequence[str]) -> None:
        self._persister = persister
        self._item = item
        self._fragment = fragment
        self._path = path_in_store(stores[0], fragment.content_path)
        self._url = stores[0]
        self._has_put = False

    def start(self) -> None:
        node, store = self._persister.place
        store.exists(node, self._path, self._looked)

    def _looked(self, exists: bool | UnavailableError) -> None:
        if isinstance(exists, UnavailableError):
            self._persister.settle(self._item, exists)
        elif exists:
            self._persister.stored(self._item, replace(self._fragment, backing_store=self._url))
        elif self._has_put:
            self._persister.settle(self._item, UnavailableError("the store took it but does not show it"))
        else:
            self._put()

    def _put(self) -> None:
        node, store = self._persister.place
        file = self._item.completed.file
        content = file.read(0, self._fragment.content_length)
        if file.has_ended and hashlib.sha1(content).digest() != self._fragment.sum:
            self._persister.settle(self._item, CorruptError("the spool does not match its SHA-1 any more"))
            return
        self._has_put = True
        store.put(node, self._path, content, self._was_put)

    def _was_put(self, error: UnavailableError | None) -> None:
        if error is not None:
            self._persister.settle(self._item, error)
        else:
            self.start()


async def _no_store(_: str) -> BlobStore:
    raise AssertionError("the simulated store is not opened")
