"""Resolver: follows etcd, keeps a Replica of each journal that is assigned to this broker, and resolves requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Generic, cast

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, assignments_prefix, item_key, member_id
from allocator.keyspace_view import Change, KeySpaceView, Update
from broker.cluster_keys import BrokerEntity
from broker.journal_item import JournalItem
from broker.replica import Replica
from broker.resolution import EVERYTHING, MisdirectedError, Resolution, Wanted, check_forwarded, resolved
from broker.slot import Wait
from fragment.index import FileT
from protocol.errors import GazetteError, Status, UnavailableError
from protocol.route import ProcessId

_SWEPT_MIN = 64

_KNOWN_MAX = 10_000
_STOPPED = "this broker has stopped to serve its journals: retry, another one takes over"


class StoppedError(UnavailableError):
    """This broker is going away and does not serve its journals any more. Another one soon will."""


class Resolver(Generic[FileT]):
    def __init__(
        self,
        root: str,
        own_id: ProcessId,
        view: KeySpaceView[BrokerEntity],
        start: Callable[[str, int], Replica[FileT]],
    ) -> None:
        """`start` makes a replica of a journal, of which it is given the name and the CreateRevision."""
        self.replicas: dict[str, Replica[FileT]] = {}
        self.is_stopped = False
        self._root = root
        self._own_id = own_id
        self._member = member_id(*own_id)
        self._view = view
        self._start = start
        # By the revision that they wait for; the count keeps the order of those who wait for the same.
        self._waiting: list[tuple[int, int, Wait[None]]] = []
        self._count = count()
        # Of journals that there are, in the present view.
        self._known: dict[tuple[str, bool, bool], Resolution] = {}
        self._swept_at = _SWEPT_MIN
        self._follow([Change(None, kv) for kv in view.key_values])

    @property
    def view(self) -> KeySpaceView[BrokerEntity]:
        return self._view

    def observe(self, update: Update[BrokerEntity]) -> None:
        """Take in a later view. Whoever waited for its revision is served after all replicas are up to date."""
        # Where etcd has only said that there is nothing new, all that is known still holds.
        is_new = update.view.key_values is not self._view.key_values or update.view.header != self._view.header
        self._view = update.view
        if is_new:
            self._known.clear()
            self._follow(update.changes)
            # Whoever was told meanwhile may have asked for a journal whose replica was yet to follow.
            self._known.clear()
        while self._waiting and self._waiting[0][0] <= self._view.revision:
            _, _, wait = heapq.heappop(self._waiting)
            if not wait.is_over:
                wait.serve(None)

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Wait[None]:
        """Call `done` with the Resolution once this broker knows of etcd what the request demands, which may be now."""
        wait: Wait[None] = Wait(lambda _: done(self._resolved(wanted)))
        # The revision of another cluster's etcd would be waited for in vain.
        if wanted.revision <= self._view.revision or self._is_misdirected(wanted):
            wait.serve(None)
            return wait
        if len(self._waiting) >= self._swept_at:
            self._sweep()
        heapq.heappush(self._waiting, (wanted.revision, next(self._count), wait))
        return wait

    def _is_misdirected(self, wanted: Wanted) -> bool:
        try:
            check_forwarded(self._view, self._own_id, wanted)
        except MisdirectedError:
            return True
        return False

    def _sweep(self) -> None:
        """Forget who has given up: what they waited for may never come."""
        self._waiting = [waiting for waiting in self._waiting if not waiting[2].is_over]
        heapq.heapify(self._waiting)
        self._swept_at = max(_SWEPT_MIN, 2 * len(self._waiting))

    def _resolved(self, wanted: Wanted) -> Resolution | GazetteError:
        if self.is_stopped and wanted.revision > self._view.revision:
            return StoppedError(_STOPPED)
        return self.resolve_now(wanted)

    def resolve_now(self, wanted: Wanted) -> Resolution | GazetteError:
        """Most requests of a journal are alike, and between two changes of etcd so is their Resolution."""
        if wanted.selector is not EVERYTHING and wanted.selector != EVERYTHING:
            return self._resolve_now(wanted)
        key = (wanted.journal, wanted.may_proxy, wanted.require_primary)
        known = self._known.get(key)
        if known is None:
            resolution = self._resolve_now(wanted)
            if isinstance(resolution, Resolution) and resolution.item is not None and len(self._known) < _KNOWN_MAX:
                self._known[key] = resolution
            return resolution
        try:
            check_forwarded(self._view, known.local_id, wanted)
        except MisdirectedError as error:
            return error
        return known

    def _resolve_now(self, wanted: Wanted) -> Resolution | GazetteError:
        try:
            resolution = resolved(self._view, self._root, self._own_id, wanted)
        except GazetteError as error:
            return error
        replica = self.replicas.get(wanted.journal) if resolution.item is not None else None
        if resolution.status is Status.OK and resolution.is_local and replica is None:
            return StoppedError(_STOPPED)
        return replace(resolution, replica=replica)

    def stop(self) -> None:
        """Give up all replicas, and take on no others."""
        self.is_stopped = True
        self._known.clear()
        # They are gone before anybody who waits for one of them asks again.
        replicas, self.replicas = self.replicas, {}
        for replica in replicas.values():
            replica.stop()
        # Who waits for what etcd has yet to tell may hold a pipeline, and there is nothing more to be learned here.
        waiting, self._waiting = self._waiting, []
        for _, _, wait in waiting:
            if not wait.is_over:
                wait.serve(None)

    def _follow(self, changes: Iterable[Change[BrokerEntity]]) -> None:
        if self.is_stopped:
            return
        touched: dict[str, bool] = {}
        for change in changes:
            entity = (change.after or cast("KeyValue[BrokerEntity]", change.before)).value
            if isinstance(entity, Assignment):
                touched[entity.item] = True
            elif isinstance(entity, Item):
                touched[entity.id] = touched.get(entity.id, False) or _are_other_stores(change)
        for journal, is_invalid in touched.items():
            self._follow_journal(journal, is_invalid)

    def _follow_journal(self, journal: str, is_invalid: bool) -> None:
        """Have the replica that the journal calls for. A change that leaves it as it is may still invalidate."""
        item = self._view.get(item_key(self._root, journal))
        slot = self._assigned_slot(journal) if item is not None else None
        known, kept = self.replicas.pop(journal, None), None
        if item is not None and slot is not None:
            is_same = known is not None and known.create_revision == item.create_revision
            is_demoted = known is not None and known.is_primary and slot != 0
            kept = known if is_same and not is_demoted else self._start(journal, item.create_revision)
            assert kept is not None
            kept.is_primary = slot == 0
            self.replicas[journal] = kept
        # Only now: those who waited for the old one ask again at once, and find the new one.
        if known is not None and known is not kept:
            known.stop()
        elif known is not None and is_invalid:
            known.invalidate()

    def _assigned_slot(self, journal: str) -> int | None:
        """Ours; the lowest, if somebody has assigned the journal to us twice."""
        slots = [
            kv.value.slot
            for kv in cast(
                "Iterable[KeyValue[Assignment[object]]]", self._view.prefixed(assignments_prefix(self._root, journal))
            )
            if kv.value.member == self._member
        ]
        return min(slots, default=None)


def _are_other_stores(change: Change[BrokerEntity]) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    known = cast("Item[JournalItem]", before.value).value.spec.fragment.stores
    return cast("Item[JournalItem]", after.value).value.spec.fragment.stores != known
