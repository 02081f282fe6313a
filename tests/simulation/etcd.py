"""Etcd: one linearizable map with revisions and leases, as a simulated cluster of etcd behaves towards its clients.

It stands for all members at once, so there are no stale reads. To pause its node is to stop the leader: requests wait
and leases run out late. Watches are in ``etcd_watch``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from typing import TypeVar

from allocator.etcd_client import Committed, GrantedLease
from allocator.etcd_errors import (
    CompactedError,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseNotFoundError,
)
from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey
from allocator.transaction import COMPARES_MAX, KEEP_LEASE, OPERATIONS_MAX, Compare, Delete, Put, Transaction
from tests.simulation.network import Network
from tests.simulation.remote_call import Loss, call
from tests.simulation.world import Node

T = TypeVar("T")

KeyEvent = StoredKey | DeletedKey

CLUSTER_ID = 0xE7CD
REQUEST_TIMEOUT_S = 5.0
_LEASE_FIRST = 1 << 40
_REVISION_FIRST = 1

_mod_revision = attrgetter("mod_revision")
_revision = itemgetter(0)


@dataclass(slots=True)
class EtcdFaults:
    # Of each request: that it never gets there, and that it is done but nobody hears of it.
    request_loss_rate: float = 0.0
    answer_loss_rate: float = 0.0
    # A lease never ends early, but up to this much late.
    lease_late_s: float = 1.0
    # How long a watch may wait until it is sent what happened; events of that time come together.
    watch_delay_s: float = 0.01
    # Of each delivery: that it stops short of what has happened already, that a revision in it comes in two answers,
    # and that those two are applied one after the other and not together. The last is more than etcd does to clients
    # that put fragments together, as ours does.
    watch_lag_rate: float = 0.0
    watch_split_rate: float = 0.0
    watch_tear_rate: float = 0.0
    # Of each delivery: that the watch ends instead.
    watch_drop_rate: float = 0.0
    progress_s: float = 2.0


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    # Never earlier than this.
    deadline_s: float
    keys: dict[bytes, None] = field(default_factory=dict)


class Etcd:
    def __init__(self, node: Node, faults: EtcdFaults | None = None) -> None:
        self.node = node
        self.faults = faults or EtcdFaults()
        self.revision = _REVISION_FIRST
        # Revisions below are gone.
        self.compacted = 0
        self._keys: dict[bytes, StoredKey] = {}
        # Of every key that ever was, oldest first.
        self._versions: dict[bytes, list[KeyEvent]] = {}
        self._history: list[tuple[int, tuple[KeyEvent, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_next = _LEASE_FIRST
        # Called after every change.
        self.observers: list[Callable[[], None]] = []

    @property
    def header(self) -> EtcdHeader:
        return EtcdHeader(CLUSTER_ID, 1, self.revision, 1)

    # Keys.

    def get(self, key: str) -> StoredKey | None:
        return self._keys.get(key.encode())

    def list_prefix(self, prefix: str, revision: int | None = None) -> Listing | EtcdError:
        """As of a revision, now if none is given."""
        begin = prefix.encode()
        if revision is None or revision == self.revision:
            found = [self._keys[key] for key in sorted(self._keys) if key.startswith(begin)]
            return Listing(self.header, found)
        if revision > self.revision:
            return EtcdRefusedError("a revision that is yet to come")
        if revision < self.compacted:
            return CompactedError(self.compacted)
        found = [then for key in sorted(self._versions) if key.startswith(begin) and (then := self._at(key, revision))]
        return Listing(self.header._replace(revision=revision), found)

    def history(self, prefix: str, begin: int, through: int) -> list[tuple[int, tuple[KeyEvent, ...]]]:
        """What happened below `prefix` from revision `begin` to `through`, both included, by revision."""
        key = prefix.encode()
        at = bisect_left(self._history, begin, key=_revision)
        end = bisect_right(self._history, through, lo=at, key=_revision)
        found = []
        for revision, events in self._history[at:end]:
            if matching := tuple(event for event in events if event.key.startswith(key)):
                found.append((revision, matching))
        return found

    def commit(self, transaction: Transaction) -> Committed | EtcdError:
        """All of it, at one revision, or nothing."""
        if refusal := self._refusal(transaction):
            return refusal
        if not all(map(self._holds, transaction.compares)):
            return Committed(False, self.header)
        if error := self._missing(transaction):
            return error
        revision = self.revision + 1
        events = [event for operation in transaction.operations if (event := self._operate(operation, revision))]
        self._publish(events)
        return Committed(True, self.header)

    def put(self, key: str, value: bytes, lease: int = 0) -> EtcdHeader:
        """At once, for what a run begins with."""
        done = self.commit(Transaction((), (Put(key, value, lease),)))
        assert isinstance(done, Committed)
        return done.header

    def delete(self, key: str) -> EtcdHeader:
        done = self.commit(Transaction((), (Delete(key),)))
        assert isinstance(done, Committed)
        return done.header

    def compact(self, revision: int) -> None:
        """Forget what was before `revision`. Listings at it are still possible."""
        self.compacted = max(self.compacted, min(revision, self.revision))
        del self._history[: bisect_left(self._history, self.compacted, key=_revision)]
        for key, versions in list(self._versions.items()):
            kept = versions[max(0, bisect_right(versions, self.compacted, key=_mod_revision) - 1) :]
            if kept and isinstance(kept[0], DeletedKey) and kept[0].mod_revision <= self.compacted:
                del kept[0]
            if kept:
                self._versions[key] = kept
            else:
                del self._versions[key]

    # Leases.

    def grant(self, ttl_s: int) -> GrantedLease:
        lease_id, self._lease_next = self._lease_next, self._lease_next + 1
        self._leases[lease_id] = _Lease(ttl_s, self.node.world.now_s + ttl_s)
        self._schedule_end(lease_id)
        return GrantedLease(lease_id, ttl_s)

    def keep_alive(self, lease_id: int) -> int | EtcdError:
        lease = self._leases.get(lease_id)
        if lease is None:
            return LeaseNotFoundError("the lease has run out or was revoked")
        lease.deadline_s = self.node.world.now_s + lease.ttl_s
        return lease.ttl_s

    def lengthen_leases(self, ttl_s: int) -> None:
        """Each time one is kept alive from now on, it is for so long: what is kept alive less often costs less."""
        for lease in self._leases.values():
            lease.ttl_s = max(ttl_s, lease.ttl_s)

    def revoke(self, lease_id: int) -> EtcdHeader | EtcdError:
        if lease_id not in self._leases:
            return LeaseNotFoundError("the lease has run out or was revoked")
        self._end_lease(lease_id)
        return self.header

    @property
    def leases(self) -> list[int]:
        return list(self._leases)

    def _schedule_end(self, lease_id: int) -> None:
        late_s = self.node.world.chance.random() * self.faults.lease_late_s
        left_s = self._leases[lease_id].deadline_s - self.node.world.now_s
        self.node.after(left_s + late_s, self._look_at_lease, lease_id)

    def _look_at_lease(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        if lease.deadline_s <= self.node.world.now_s:
            self.node.note("lease ran out", lease_id, [key.decode() for key in lease.keys])
            self._end_lease(lease_id)
        else:
            self._schedule_end(lease_id)

    def _end_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id)
        revision = self.revision + 1
        self._publish([self._remove(key, revision) for key in sorted(lease.keys)])

    # How a change is made.

    def _refusal(self, transaction: Transaction) -> EtcdError | None:
        if len(transaction.compares) > COMPARES_MAX or len(transaction.operations) > OPERATIONS_MAX:
            return EtcdRefusedError("too many operations in one transaction")
        keys = [operation.key for operation in transaction.operations]
        return EtcdRefusedError("a key twice in one transaction") if len(set(keys)) != len(keys) else None

    def _missing(self, transaction: Transaction) -> EtcdError | None:
        for operation in transaction.operations:
            if not isinstance(operation, Put):
                continue
            if operation.lease == KEEP_LEASE:
                if operation.key.encode() not in self._keys:
                    return EtcdRefusedError("there is no key whose lease could be kept")
            elif operation.lease and operation.lease not in self._leases:
                return LeaseNotFoundError("the lease has run out or was revoked")
        return None

    def _holds(self, compare: Compare) -> bool:
        known = self._keys.get(compare.key.encode())
        return (getattr(known, compare.target.value) if known else 0) == compare.equals

    def _operate(self, operation: Put | Delete, revision: int) -> KeyEvent | None:
        key = operation.key.encode()
        if isinstance(operation, Put):
            return self._store(key, operation, revision)
        return self._remove(key, revision) if key in self._keys else None

    def _store(self, key: bytes, put: Put, revision: int) -> StoredKey:
        known = self._keys.get(key)
        created, version, held = (known.create_revision, known.version, known.lease) if known else (revision, 0, 0)
        lease = held if put.lease == KEEP_LEASE else put.lease
        if lease != held:
            self._detach(key, held)
            if lease:
                self._leases[lease].keys[key] = None
        stored = self._keys[key] = StoredKey(key, put.value, created, revision, version + 1, lease)
        return stored

    def _remove(self, key: bytes, revision: int) -> DeletedKey:
        self._detach(key, self._keys.pop(key).lease)
        return DeletedKey(key, revision)

    def _detach(self, key: bytes, lease: int) -> None:
        if lease in self._leases:
            self._leases[lease].keys.pop(key, None)

    def _publish(self, events: list[KeyEvent] | list[DeletedKey]) -> None:
        """A revision is only used up by what changes something."""
        if not events:
            return
        self.revision += 1
        self._history.append((self.revision, tuple(events)))
        for event in events:
            self._versions.setdefault(event.key, []).append(event)
        for observer in self.observers:
            observer()

    def _at(self, key: bytes, revision: int) -> StoredKey | None:
        versions = self._versions[key]
        at = bisect_right(versions, revision, key=_mod_revision)
        then = versions[at - 1] if at else None
        return then if isinstance(then, StoredKey) else None


class EtcdAccess:
    """How a node asks etcd: every question gets one answer, which may be that there is none."""

    def __init__(self, network: Network, etcd: Etcd, node: Node) -> None:
        self.network = network
        self.etcd = etcd
        self.node = node

    def get(self, key: str, answered: Callable[[StoredKey | EtcdError | None], None]) -> None:
        # The value of a key may be None, which is also how a call says that it was lost.
        self._ask(
            lambda: (self.etcd.get(key),), lambda found: answered(found[0] if isinstance(found, tuple) else found)
        )

    def list_prefix(
        self, prefix: str, answered: Callable[[Listing | EtcdError], None], revision: int | None = None
    ) -> None:
        self._ask(partial(self.etcd.list_prefix, prefix, revision), answered)

    def commit(self, transaction: Transaction, answered: Callable[[Committed | EtcdError], None]) -> None:
        self._ask(partial(self.etcd.commit, transaction), answered)

    def grant_lease(self, ttl_s: int, answered: Callable[[GrantedLease | EtcdError], None]) -> None:
        self._ask(partial(self.etcd.grant, ttl_s), answered)

    def keep_alive(self, lease_id: int, timeout_s: float, answered: Callable[[int | EtcdError], None]) -> None:
        self._ask(partial(self.etcd.keep_alive, lease_id), answered, timeout_s)

    def revoke_lease(self, lease_id: int, answered: Callable[[EtcdHeader | EtcdError], None]) -> None:
        self._ask(partial(self.etcd.revoke, lease_id), answered)

    def _ask(
        self, perform: Callable[[], T], answered: Callable[[T | EtcdError], None], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        faults = self.etcd.faults

        def told(answer: T | None) -> None:
            answered(EtcdUnavailableError("etcd did not answer", maybe_applied=True) if answer is None else answer)

        loss = Loss(faults.request_loss_rate, faults.answer_loss_rate)
        call(self.network, self.node, self.etcd.node, perform, told, timeout_s=timeout_s, loss=loss)
