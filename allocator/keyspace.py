"""KeySpace: the mirror of a prefix of etcd. It is told what etcd says, and answers with what changed.

Two numbers are kept apart with care. The *revision* is the greatest ModRevision of any event seen, and goes out in
headers: peers wait until their own mirror has reached it, so it must never be one that no key of the prefix had.
*Through* is the revision up to which every event is in the mirror. It runs ahead of the revision when etcd reports
progress; waiting and resuming go by it.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple

from allocator.etcd_errors import EtcdHistoryError, EtcdUnavailableError
from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.key_value import KeyValue, ValueT
from allocator.keyspace_view import Change, KeySpaceView, Note, Update, by_key, changes_between, shown

Decode = Callable[[str, bytes], ValueT]
"""What a key and its bytes mean. Whatever it raises makes the value undecodable. Threads may call it."""

_REASON_MAX = 200
_mod_revision = attrgetter("mod_revision")


class Decoded(NamedTuple, Generic[ValueT]):
    """A listing after the slow part of loading it."""

    header: EtcdHeader
    key_values: Sequence[KeyValue[ValueT]]
    undecodable: dict[bytes, StoredKey]
    notes: list[Note]
    # Zero where there is no key.
    mod_revision_max: int
    # What there was before, and how this differs from it.
    before: KeySpaceView[ValueT]
    changes: list[Change[ValueT]]


class KeySpace(Generic[ValueT]):
    def __init__(self, prefix: str, decode: Decode[ValueT]) -> None:
        """`prefix` is watched as it is, with no slash at its end. That takes in siblings such as
        ``/gazette/cluster2``, whose keys do not decode but move the revision, here as in every Go member."""
        check_prefix(prefix)
        self.prefix = prefix
        self._decode = decode
        self._view: KeySpaceView[ValueT] = KeySpaceView(EtcdHeader(0, 0, 0, 0), [], {}, 0)

    @property
    def view(self) -> KeySpaceView[ValueT]:
        return self._view

    def decoded(self, listing: Listing) -> Decoded[ValueT]:
        """Alters nothing, so that it may be done in a thread."""
        key_values: list[KeyValue[ValueT]] = []
        undecodable: dict[bytes, StoredKey] = {}
        notes: list[Note] = []
        newest = 0
        for stored in listing.keys:
            newest = max(newest, stored.mod_revision)
            value = _decoded(self._decode, stored)
            if isinstance(value, Note):
                undecodable[stored.key] = stored._replace(raw=b"")
                notes.append(value)
            else:
                key_values.append(value)
        before = self._view
        key_values = sorted([*key_values, *_kept(undecodable, before)], key=by_key)
        changes = changes_between(before.key_values, key_values)
        return Decoded(listing.header, key_values, undecodable, notes, newest, before, changes)

    def load(self, decoded: Decoded[ValueT], announced: int | None = None) -> Update[ValueT]:
        """Begin with a listing. The revision is the one it was read at: if it is ever to go out in headers, read at
        one that a key of the prefix had, such as that of the announcement.

        Where that cannot be read any more, the listing is a later one, and `announced` says which it should have been.
        """
        if announced is None:
            return self._replace(decoded, decoded.header)
        _check_not_before(decoded.header, announced)
        revision = max(announced, decoded.mod_revision_max)
        return self._replace(decoded, decoded.header._replace(revision=revision))

    def reload(self, decoded: Decoded[ValueT]) -> Update[ValueT]:
        """Go on from a later listing, after events were lost.

        The revision is not that of the listing, which may be one that no key of the prefix had.
        """
        self._check_cluster(decoded.header)
        _check_not_before(decoded.header, self._view.through)
        revision = max(self._view.revision, decoded.mod_revision_max)
        return self._replace(decoded, decoded.header._replace(revision=revision))

    def apply(self, answers: Sequence[WatchEvents]) -> Update[ValueT]:
        """All events of some answers, as one change: nobody sees what was in between.

        Events that came before, or are older than what came, are passed over. Parts of one revision may come in
        several answers.
        """
        return self.publish(self.applied(answers))

    def applied(self, answers: Sequence[WatchEvents]) -> Update[ValueT]:
        """What would come of it. Alters nothing, so that it may be done in a thread, and published afterwards."""
        for answer in answers:
            self._check_cluster(answer.header)
            if answer.header.revision < self._view.through:
                # A watch on the future of a member that lags behind may be sent its past (etcd-io/etcd#20221).
                raise EtcdUnavailableError(
                    f"a member at revision {answer.header.revision} does not know of {self._view.through} yet",
                    maybe_applied=False,
                )
        batch = _Batch(self._view, self._decode)
        for answer in answers:
            batch.add(answer)
        return batch.update()

    def publish(self, update: Update[ValueT]) -> Update[ValueT]:
        """`update` is what is to be applied to the present view."""
        self._view = update.view
        return update

    def progress(self, header: EtcdHeader) -> None:
        """etcd has delivered every event up to the header's revision. That of the mirror stays as it is."""
        self._check_cluster(header)
        view = self._view
        if header.revision > view.through:
            self._view = KeySpaceView(view.header, view.key_values, view.undecodable, header.revision)

    def _replace(self, decoded: Decoded[ValueT], header: EtcdHeader) -> Update[ValueT]:
        assert decoded.before.key_values is self._view.key_values, "the mirror was altered during a listing"
        view = KeySpaceView(header, decoded.key_values, decoded.undecodable, decoded.header.revision)
        return self.publish(Update(view, decoded.changes, decoded.notes))

    def _check_cluster(self, header: EtcdHeader) -> None:
        known = self._view.header.cluster_id
        if known not in (0, header.cluster_id):
            raise EtcdHistoryError(f"this is etcd cluster {header.cluster_id:x}, and it was {known:x}")


def check_prefix(prefix: str) -> None:
    """As every Go member does.

    >>> check_prefix("/gazette/cluster")
    >>> check_prefix("/gazette/cluster/")
    Traceback (most recent call last):
    ValueError: a prefix of etcd is a clean path, without a slash at its end
    """
    # Two slashes at the beginning are clean to Python, but not to Go.
    if prefix != posixpath.normpath(prefix) or prefix.startswith("//"):
        raise ValueError("a prefix of etcd is a clean path, without a slash at its end")


def _check_not_before(header: EtcdHeader, revision: int) -> None:
    if header.revision < revision:
        raise EtcdHistoryError(
            f"etcd is at revision {header.revision} and was at {revision}: has it been restored from a backup?"
        )


def _kept(undecodable: dict[bytes, StoredKey], before: KeySpaceView[ValueT]) -> list[KeyValue[ValueT]]:
    """The former values of keys whose present one cannot be decoded, if they still are the same keys."""
    return [
        known
        for key, stored in undecodable.items()
        if (text := _text(key)) is not None
        and (known := before.get(text)) is not None
        and known.create_revision == stored.create_revision
    ]


class _Batch(Generic[ValueT]):
    """Events on their way into a view, one after the other."""

    def __init__(self, view: KeySpaceView[ValueT], decode: Decode[ValueT]) -> None:
        self._view = view
        self._decode = decode
        self._header = view.header
        self._through = view.through
        self._changed: dict[str, KeyValue[ValueT] | None] = {}
        self._undecodable = dict(view.undecodable)
        self._notes: list[Note] = []
        self._is_news = False

    def add(self, answer: WatchEvents) -> None:
        # In order as etcd sends them; what was out of order would be taken for something that comes again.
        for event in sorted(answer.events, key=_mod_revision):
            if self._add(event):
                self._is_news = True
                self._through = event.mod_revision
                self._header = answer.header._replace(revision=event.mod_revision)

    def update(self) -> Update[ValueT]:
        if not self._is_news:
            return Update(self._view, [], self._notes)
        key_values, changes = self._merged()
        return Update(KeySpaceView(self._header, key_values, self._undecodable, self._through), changes, self._notes)

    def _add(self, event: StoredKey | DeletedKey) -> bool:
        """Whether the event is news."""
        key = _text(event.key)
        known = None if key is None else self._known(key)
        spoilt = self._undecodable.get(event.key)
        latest = max(known.mod_revision if known else 0, spoilt.mod_revision if spoilt else 0)
        # An event of the very last revision may be a further part of it, if its key has not seen that revision.
        if event.mod_revision < self._through or event.mod_revision <= latest:
            self._note(event, f"an event of revision {event.mod_revision} came late or twice")
            return False
        match event:
            case DeletedKey():
                if known is None and spoilt is None:
                    self._note(event, "a key was deleted that was not known")
                self._undecodable.pop(event.key, None)
                if key is not None and known is not None:
                    self._changed[key] = None
            case StoredKey():
                self._put(event, spoilt or known)
        return True

    def _put(self, event: StoredKey, latest: StoredKey | KeyValue[ValueT] | None) -> None:
        value = _decoded(self._decode, event)
        if isinstance(value, Note):
            # The last value that could be decoded stays, until a good one comes or the key goes.
            self._notes.append(value)
            self._undecodable[event.key] = event._replace(raw=b"")
            return
        self._check_succession(event, latest)
        self._undecodable.pop(event.key, None)
        self._changed[value.key] = value

    def _check_succession(self, event: StoredKey, latest: StoredKey | KeyValue[ValueT] | None) -> None:
        """Say so if something happened to the key that was never told. The event counts all the same."""
        if latest is None:
            if event.version != 1 or event.create_revision != event.mod_revision:
                self._note(event, f"a key appeared at version {event.version}")
        elif latest.create_revision != event.create_revision:
            self._note(event, "a key was created anew, but never deleted")
        elif latest.version + 1 != event.version:
            self._note(event, f"a key went from version {latest.version} to {event.version}")

    def _known(self, key: str) -> KeyValue[ValueT] | None:
        return self._changed[key] if key in self._changed else self._view.get(key)

    def _note(self, event: StoredKey | DeletedKey, what: str) -> None:
        self._notes.append(Note(shown(event.key), what))

    def _merged(self) -> tuple[Sequence[KeyValue[ValueT]], list[Change[ValueT]]]:
        """One pass over old and new; what lies between two changes is copied whole."""
        old = self._view.key_values
        if not self._changed:
            return old, []
        merged: list[KeyValue[ValueT]] = []
        changes: list[Change[ValueT]] = []
        at = 0
        for key in sorted(self._changed):
            place = bisect_left(old, key, at, key=by_key)
            before = old[place] if place < len(old) and old[place].key == key else None
            after = self._changed[key]
            merged.extend(old[at:place])
            if after is not None:
                merged.append(after)
            if before is not after:
                changes.append(Change(before, after))
            at = place if before is None else place + 1
        merged.extend(old[at:])
        return merged, changes


def _decoded(decode: Decode[ValueT], stored: StoredKey) -> KeyValue[ValueT] | Note:
    try:
        key = stored.key.decode()
        value = decode(key, stored.raw)
    except Exception as error:
        # Anyone may write anything under the prefix, and every member reads it at the same moment: nothing that a
        # decoder trips over may stop them all.
        return Note(shown(stored.key), f"the value was ignored: {type(error).__name__}: {str(error)[:_REASON_MAX]}")
    _, raw, create_revision, mod_revision, version, lease = stored
    return KeyValue(key, value, raw, create_revision, mod_revision, version, lease)


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
