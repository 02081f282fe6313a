"""What etcd tells of keys, before anybody has decoded a value: listings, and events in the order they happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class EtcdHeader(NamedTuple):
    """Who answered. `revision` is the store's own wherever etcd answers, and the mirror's in a KeySpaceView."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


class StoredKey(NamedTuple):
    """A key as etcd holds it, or as an event left it. Any bytes may be a key: others write to this etcd too."""

    key: bytes
    raw: bytes
    create_revision: int
    mod_revision: int
    version: int
    # Zero is none.
    lease: int


class DeletedKey(NamedTuple):
    key: bytes
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Every key of a prefix at the one revision that `header` names, in the order of keys."""

    header: EtcdHeader
    keys: Sequence[StoredKey]


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """One answer of a watch. The header may be ahead of the events: it says what the member had, not what it sent."""

    header: EtcdHeader
    events: Sequence[StoredKey | DeletedKey]


@dataclass(frozen=True, slots=True)
class WatchProgress:
    """A sign of life without events."""

    header: EtcdHeader
    # Whether every event up to the header's revision has been delivered. True of what etcd sends on its own; an
    # answer to a request may overtake events (etcd-io/etcd#15220, repaired in 3.5.8).
    is_complete: bool
