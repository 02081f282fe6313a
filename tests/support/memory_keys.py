"""MemoryKeys: etcd's keys and revisions in a dict, for simulations of what only plans transactions.

It stands in for etcd nowhere else: the client, the mirror and membership are tested with a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic

from allocator.key_event import StoredKey
from allocator.key_value import KeyValue, ValueT
from allocator.transaction import COMPARES_MAX, KEEP_LEASE, OPERATIONS_MAX, Compare, Delete, Put, Transaction


class MemoryKeys(Generic[ValueT]):
    def __init__(self, decode: Callable[[str, bytes], ValueT]) -> None:
        self.revision = 0
        self._decode = decode
        # What there is, and what a mirror makes of it: where a value cannot be decoded, the one before stays.
        self._stored: dict[str, StoredKey] = {}
        self._mirrored: dict[str, KeyValue[ValueT]] = {}

    @property
    def key_values(self) -> list[KeyValue[ValueT]]:
        return [self._mirrored[key] for key in sorted(self._mirrored)]

    @property
    def undecodable(self) -> dict[bytes, StoredKey]:
        return {
            stored.key: stored
            for key, stored in self._stored.items()
            if key not in self._mirrored or self._mirrored[key].mod_revision != stored.mod_revision
        }

    def __getitem__(self, key: str) -> KeyValue[ValueT]:
        return self._mirrored[key]

    def __contains__(self, key: str) -> bool:
        return key in self._mirrored

    def is_stored(self, key: str) -> bool:
        return key in self._stored

    def stored(self, key: str) -> StoredKey:
        return self._stored[key]

    def forget(self) -> None:
        """As one that loads anew: it has no former values."""
        for key in self.undecodable:
            self._mirrored.pop(key.decode(), None)

    def put(self, *puts: Put) -> None:
        """All at one revision."""
        self.revision += 1
        for put in puts:
            self._put(put)

    def delete(self, keys: Iterable[str]) -> None:
        """All at one revision, as when a lease ends."""
        for key in keys:
            del self._stored[key]
            self._mirrored.pop(key, None)
        self.revision += 1

    def end_lease(self, lease: int) -> None:
        self.delete([key for key, stored in self._stored.items() if stored.lease == lease])

    def apply(self, transaction: Transaction) -> bool:
        """Whether it held. What etcd would refuse to look at is an error."""
        assert transaction.operations, "a transaction that does nothing"
        assert len(transaction.compares) <= COMPARES_MAX
        assert len(transaction.operations) <= OPERATIONS_MAX
        keys = [operation.key for operation in transaction.operations]
        assert len(set(keys)) == len(keys), "etcd takes no key twice in a transaction"
        if not all(map(self._holds, transaction.compares)):
            return False
        self.revision += 1
        for operation in transaction.operations:
            match operation:
                case Put():
                    self._put(operation)
                case Delete(key):
                    self._stored.pop(key, None)
                    self._mirrored.pop(key, None)
        return True

    def _holds(self, compare: Compare) -> bool:
        known = self._stored.get(compare.key)
        return (getattr(known, compare.target.value) if known else 0) == compare.equals

    def _put(self, put: Put) -> None:
        known = self._stored.get(put.key)
        lease = put.lease
        if lease == KEEP_LEASE:
            assert known, "there is no lease to keep"
            lease = known.lease
        created, version = (known.create_revision, known.version) if known else (self.revision, 0)
        stored = StoredKey(put.key.encode(), put.value, created, self.revision, version + 1, lease)
        self._stored[put.key] = stored
        try:
            value = self._decode(put.key, put.value)
        except ValueError:
            return
        self._mirrored[put.key] = KeyValue(put.key, value, *stored[1:])
