"""KeyValue: one key of etcd as a process mirrors it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

ValueT = TypeVar("ValueT")


class KeyValue(NamedTuple, Generic[ValueT]):
    key: str
    # As decoded by whoever owns the key space; `raw` is what etcd holds.
    value: ValueT
    raw: bytes
    create_revision: int
    mod_revision: int
    version: int
    # Zero where the key lives on without its writer.
    lease: int
