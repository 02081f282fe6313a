"""Random histories of a store, and a mirror that is told of them in every way a watch may tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView, changes_between, keys_that_differ

KEYS = [f"/root/{name}".encode() for name in ("a", "a#0", "a#1", "aa", "b", "\u00e9")] + [b"/root2/x", b"/root/\xff"]


def decode(key: str, raw: bytes) -> bytes:
    if raw == b"bad" or not key.startswith("/root/"):
        raise ValueError("undecodable")
    return raw


def is_decodable(stored: StoredKey) -> bool:
    return stored.raw != b"bad" and stored.key.startswith(b"/root/") and stored.key != b"/root/\xff"


@dataclass
class Store:
    """An etcd, as far as a mirror can tell."""

    revision: int = 1
    keys: dict[bytes, StoredKey] = field(default_factory=dict)
    # What each key was when it could last be decoded; gone with the key.
    good: dict[bytes, StoredKey] = field(default_factory=dict)
    history: list[list[StoredKey | DeletedKey]] = field(default_factory=list)

    def commit(self, writes: dict[bytes, bytes | None]) -> None:
        """None deletes."""
        happened: list[StoredKey | DeletedKey] = []
        for key, raw in writes.items():
            old = self.keys.get(key)
            if raw is None:
                if old is not None:
                    happened.append(DeletedKey(key, self.revision + 1))
            else:
                created, version = (old.create_revision, old.version + 1) if old else (self.revision + 1, 1)
                happened.append(StoredKey(key, raw, created, self.revision + 1, version, len(raw)))
        if happened:
            self.revision += 1
            self.history.append(happened)
            for event in happened:
                self._apply(event)

    def _apply(self, event: StoredKey | DeletedKey) -> None:
        if isinstance(event, DeletedKey):
            del self.keys[event.key]
            self.good.pop(event.key, None)
        else:
            self.keys[event.key] = event
            if is_decodable(event):
                self.good[event.key] = event

    @property
    def header(self) -> EtcdHeader:
        return EtcdHeader(7, 1, self.revision, 2)

    def listing(self) -> Listing:
        return Listing(self.header, sorted(self.keys.values()))


values = st.sampled_from([b"1", b"2", b"bad", None])
commits = st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4)


def raws(view: KeySpaceView[bytes]) -> list[tuple[bytes, ...]]:
    return [(kv.key.encode(), *kv[2:]) for kv in view.key_values]  # type: ignore[misc]


def answers_of(
    data: st.DataObject, history: list[list[StoredKey | DeletedKey]], header: EtcdHeader
) -> list[WatchEvents]:
    """Events as a watch may group them: several revisions in one answer, or one revision in parts."""
    answers: list[list[StoredKey | DeletedKey]] = [[]]
    for revision in history:
        for event in revision:
            is_next: bool = data.draw(st.booleans())
            if answers[-1] and is_next:
                answers.append([])
            answers[-1].append(event)
    return [WatchEvents(header, data.draw(st.permutations(events))) for events in answers if events]


class Mirrored(RuleBasedStateMachine):
    """AL-13, AL-16: whatever a watch does, the mirror is what a listing at its revision would show."""

    @initialize(before=st.lists(commits, max_size=5))
    def begin(self, before: list[dict[bytes, bytes | None]]) -> None:
        self.store = Store()
        for writes in before:
            self.store.commit(writes)
        self.keyspace = KeySpace("/root", decode)
        self.keyspace.load(self.keyspace.decoded(self.store.listing()))
        # What could not be decoded when it was first seen has no former value.
        self.store.good = {key: kept for key, kept in self.store.good.items() if kept == self.store.keys[key]}
        self.told = len(self.store.history)

    @rule(writes=commits)
    def commit(self, writes: dict[bytes, bytes | None]) -> None:
        self.store.commit(writes)

    @rule(data=st.data(), again=st.integers(0, 3))
    def tell(self, data: st.DataObject, again: int) -> None:
        """All that is new, and some of what was told before."""
        history = self.store.history[max(0, self.told - again) :]
        before = self.keyspace.view
        answers = answers_of(data, history, self.store.header)
        update = self.keyspace.apply(answers)
        self.told = len(self.store.history)
        assert update.changes == changes_between(before.key_values, update.view.key_values)

    @precondition(lambda self: self.told == len(self.store.history))
    @rule(ahead=st.integers(0, 3))
    def progress(self, ahead: int) -> None:
        self.store.revision += ahead
        self.keyspace.progress(self.store.header)

    @rule()
    def reload(self) -> None:
        before = self.keyspace.view
        # Of keys that were recreated as garbage behind the mirror's back, nothing is known.
        unseen = {event.key for events in self.store.history[self.told :] for event in events}
        update = self.keyspace.reload(self.keyspace.decoded(self.store.listing()))
        for key in unseen:
            good, now = self.store.good.get(key), self.store.keys.get(key)
            if good is not None and good != now:
                known = before.get(key.decode())
                if known is None or known.create_revision != good.create_revision:
                    del self.store.good[key]
                else:
                    self.store.good[key] = StoredKey(key, *known[2:])
        self.told = len(self.store.history)
        assert update.changes == changes_between(before.key_values, update.view.key_values)

    @invariant()
    def is_mirrored(self) -> None:
        if self.told < len(self.store.history):
            return
        view = self.keyspace.view
        assert raws(view) == [tuple(kept) for kept in sorted(self.store.good.values())]
        assert keys_that_differ(view, self.store.keys.values()) == []
        assert set(view.undecodable) == {key for key, stored in self.store.keys.items() if not is_decodable(stored)}

    @invariant()
    def revision_is_one_of_the_prefix(self) -> None:
        view = self.keyspace.view
        assert view.revision <= view.through <= self.store.revision
        for kv in view.key_values:
            assert view.get(kv.key) is kv


TestMirrored = Mirrored.TestCase


@given(before=st.lists(commits, max_size=5), after=st.lists(commits, min_size=1, max_size=8), data=st.data())
def test_a_batch_is_the_same_as_its_answers_one_by_one(
    before: list[dict[bytes, bytes | None]], after: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    """AL-14."""
    store = Store()
    for writes in before:
        store.commit(writes)
    at_once, one_by_one = KeySpace("/root", decode), KeySpace("/root", decode)
    for keyspace in (at_once, one_by_one):
        keyspace.load(keyspace.decoded(store.listing()))
    told = len(store.history)
    loaded = at_once.view
    for writes in after:
        store.commit(writes)
    # Some of it comes twice.
    again = data.draw(st.integers(0, 2))
    answers = answers_of(data, store.history[max(0, told - again) :], store.header)
    update = at_once.apply(answers)
    seen = [one_by_one.apply([answer]) for answer in answers]
    assert at_once.view == one_by_one.view
    assert update.notes == [note for each in seen for note in each.notes]
    # The changes on the way add up to those of the batch.
    steps: dict[str, list[object]] = {}
    for change in (change for each in seen for change in each.changes):
        steps.setdefault(change.key, [change.before]).append(change.after)
    expected = [
        (path[0], path[-1]) for _, path in sorted(steps.items()) if path[0] is not path[-1] and path[0] != path[-1]
    ]
    assert [tuple(change) for change in update.changes] == expected
    assert loaded.key_values is not at_once.view.key_values or not update.changes


@given(
    keys=st.sets(st.text(st.characters(codec="utf-8"), max_size=4)),
    prefix=st.text(st.characters(codec="utf-8"), max_size=3),
)
def test_a_prefix_is_found_like_one_by_one(keys: set[str], prefix: str) -> None:
    keyspace = KeySpace("/root", lambda key, raw: key)
    stored = [StoredKey(key.encode(), b"", 1, 1, 1, 0) for key in keys]
    keyspace.load(keyspace.decoded(Listing(EtcdHeader(7, 1, 1, 1), stored)))
    found = [kv.key for kv in keyspace.view.prefixed(prefix)]
    assert found == sorted((key for key in keys if key.startswith(prefix)), key=str.encode)
    assert all((keyspace.view.get(key) is not None) == (key in keys) for key in {*keys, prefix})
