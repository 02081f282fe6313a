"""KeySpaceView: a prefix of etcd at one moment, decoded, in the order of keys; and how one differs from another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Generic, NamedTuple

from allocator.key_event import EtcdHeader, StoredKey
from allocator.key_value import KeyValue, ValueT

_SHOWN_BYTES = 200

by_key = itemgetter(0)


@dataclass(frozen=True, slots=True)
class KeySpaceView(Generic[ValueT]):
    """Never altered: whoever holds one may keep it, hand it to a thread, or compare it with a later one."""

    # Its revision is the greatest ModRevision of any event seen, not the store's own.
    header: EtcdHeader
    # Ascending by key.
    key_values: Sequence[KeyValue[ValueT]]
    # The keys whose latest value could not be decoded, without that value.
    undecodable: Mapping[bytes, StoredKey]
    # Every event up to this revision is in the view. At or ahead of the header's revision.
    through: int

    @property
    def revision(self) -> int:
        return self.header.revision

    def get(self, key: str) -> KeyValue[ValueT] | None:
        at = bisect_left(self.key_values, key, key=by_key)
        if at < len(self.key_values) and self.key_values[at].key == key:
            return self.key_values[at]
        return None

    def prefixed(self, prefix: str) -> Sequence[KeyValue[ValueT]]:
        """All whose key begins with `prefix`."""
        length = len(prefix)
        begin = bisect_left(self.key_values, prefix, key=by_key)
        # There is no greatest text that begins with `prefix`, so the end is where keys cease to.
        end = bisect_left(self.key_values, True, begin, key=lambda kv: kv.key[:length] != prefix)
        return self.key_values[begin:end]


class Change(NamedTuple, Generic[ValueT]):
    """What became of one key between two views; None is where it did not exist."""

    before: KeyValue[ValueT] | None
    after: KeyValue[ValueT] | None

    @property
    def key(self) -> str:
        known = self.after or self.before
        assert known is not None
        return known.key


class Note(NamedTuple):
    """Something about a key that whoever runs the cluster may want to know. Nothing stops because of it."""

    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Update(Generic[ValueT]):
    """The view that came of something, and how it differs from the one before: by key, and none that is the same."""

    view: KeySpaceView[ValueT]
    changes: Sequence[Change[ValueT]]
    notes: Sequence[Note]


def changes_between(before: Sequence[KeyValue[ValueT]], after: Sequence[KeyValue[ValueT]]) -> list[Change[ValueT]]:
    """In the order of keys."""
    old = {kv.key: kv for kv in before}
    changes: list[Change[ValueT]] = []
    for kv in after:
        known = old.pop(kv.key, None)
        if known is None or known.mod_revision != kv.mod_revision:
            changes.append(Change(known, kv))
    if old:
        changes.extend(Change(kv, None) for kv in old.values())
        changes.sort(key=attrgetter("key"))
    return changes


def keys_that_differ(view: KeySpaceView[ValueT], listed: Iterable[StoredKey]) -> list[str]:
    """Those of which a listing at the very revision of `view` does not say what the view does.

    Values are not looked at, so that a listing without them will do: at one ModRevision a key has one value.
    """
    ours = {kv.key.encode(): kv.mod_revision for kv in view.key_values}
    ours.update((key, stored.mod_revision) for key, stored in view.undecodable.items())
    theirs = {stored.key: stored.mod_revision for stored in listed}
    return sorted({shown(key) for key, _ in ours.items() ^ theirs.items()})


def shown(key: bytes) -> str:
    """For people: the keys of others may be any bytes, at any length."""
    return key[:_SHOWN_BYTES].decode(errors="backslashreplace")
