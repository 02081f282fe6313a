"""MemoryKeys: etcd's keys and revisions in a dict, for simulations of what only plans transactions.

It stands in for etcd nowhere else: the client, the mirror and membership are tested with a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic

from allocator.key_value import KeyValue, ValueT
from allocator.transaction import COMPARES_MAX, KEEP_LEASE, OPERATIONS_MAX, Compare, Delete, Put, Transaction


class MemoryKeys(Generic[ValueT]):
    def __init__(self, decode: Callable[[str, bytes], ValueT]) -> None:
        self.revision = 0
        self._decode = decode
        self._keys: dict[str, KeyValue[ValueT]] = {}

    @property
    def key_values(self) -> list[KeyValue[ValueT]]:
        return [self._keys[key] for key in sorted(self._keys)]

    def __getitem__(self, key: str) -> KeyValue[ValueT]:
        return self._keys[key]

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def put(self, *puts: Put) -> None:
        """All at one revision."""
        self.revision += 1
        for put in puts:
            self._put(put)

    def delete(self, keys: Iterable[str]) -> None:
        """All at one revision, as when a lease ends."""
        for key in keys:
            del self._keys[key]
        self.revision += 1

    def end_lease(self, lease: int) -> None:
        self.delete([kv.key for kv in self.key_values if kv.lease == lease])

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
                    self._keys.pop(key, None)
        return True

    def _holds(self, compare: Compare) -> bool:
        known = self._keys.get(compare.key)
        return (getattr(known, compare.target.value) if known else 0) == compare.equals

    def _put(self, put: Put) -> None:
        known = self._keys.get(put.key)
        lease = put.lease
        if lease == KEEP_LEASE:
            assert known, "there is no lease to keep"
            lease = known.lease
        created, version = (known.create_revision, known.version) if known else (self.revision, 0)
        value = self._decode(put.key, put.value)
        self._keys[put.key] = KeyValue(put.key, value, put.value, created, self.revision, version + 1, lease)
