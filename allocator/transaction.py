"""Transaction: comparisons that must all hold, and the operations that then happen, as plain values.

Planners return them, the etcd client performs them, the simulator applies them to its own store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

COMPARES_MAX = OPERATIONS_MAX = 128
"""What an etcd takes in one transaction unless it is told otherwise."""


class Target(Enum):
    """Which number of a key is compared. Each is zero where the key does not exist."""

    CREATE = "create_revision"
    MOD = "mod_revision"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Compare:
    key: str
    target: Target
    equals: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    # The lease to attach: zero is none. KEEP_LEASE leaves the one the key has.
    lease: int = 0


KEEP_LEASE = -1


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Transaction:
    compares: tuple[Compare, ...]
    operations: tuple[Put | Delete, ...]
