from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pytest

from allocator.etcd_errors import EtcdHistoryError, EtcdUnavailableError
from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.keys import Assignment, Item, Member
from allocator.keyspace import KeySpace, check_prefix
from allocator.keyspace_view import Change, KeySpaceView, Update, keys_that_differ
from protocol.gen import journal_pb2, shard_pb2
from protocol.journal import JournalSpec
from protocol.route import ProcessId, Route
from tests.support.gazette_keys import GazetteEntity, ItemSpec, Status, broker_keys, consumer_keys
from tests.support.golden import GOLDEN, Case, case_id, cases

CLUSTER = 7


def header(revision: int, cluster_id: int = CLUSTER) -> EtcdHeader:
    return EtcdHeader(cluster_id, 1, revision, 2)


def text(key: str, raw: bytes) -> str:
    if raw == b"bad":
        raise ValueError("it is bad")
    return raw.decode()


def put(key: str, value: str, revision: int, *, created: int | None = None, version: int = 1) -> StoredKey:
    return StoredKey(key.encode(), value.encode(), created or revision, revision, version, 0)


def delete(key: str, revision: int) -> DeletedKey:
    return DeletedKey(key.encode(), revision)


def events(*happened: StoredKey | DeletedKey, at: int | None = None) -> WatchEvents:
    return WatchEvents(header(at or max(event.mod_revision for event in happened)), happened)


def keyspace_of(*stored: StoredKey, at: int = 10) -> KeySpace[str]:
    keyspace = KeySpace("/root", text)
    keyspace.load(keyspace.decoded(Listing(header(at), stored)))
    return keyspace


def contents(view: KeySpaceView[str]) -> dict[str, str]:
    return {kv.key: kv.value for kv in view.key_values}


def whats(update: Update[Any]) -> list[str]:
    return [note.what for note in update.notes]


def test_a_listing_is_mirrored_at_the_revision_it_was_read_at() -> None:
    view = keyspace_of(put("/root/a", "1", 4), put("/root/b", "2", 5), at=10).view
    assert contents(view) == {"/root/a": "1", "/root/b": "2"}
    assert view.header == header(10)
    assert view.through == 10


def test_a_view_finds_keys_and_prefixes() -> None:
    keys = ["/root/a", "/root/a#1", "/root/a/b", "/root/aa", "/root/b", "/root/\u00e9", "/root/\U0001f600"]
    view = keyspace_of(*(put(key, "", 3) for key in keys)).view
    found = view.get("/root/aa")
    assert found is not None
    assert found.key == "/root/aa"
    assert view.get("/root/ab") is None
    assert view.get("/zzz") is None
    assert [kv.key for kv in view.prefixed("/root/a")] == ["/root/a", "/root/a#1", "/root/a/b", "/root/aa"]
    assert [kv.key for kv in view.prefixed("/root/a#")] == ["/root/a#1"]
    assert [kv.key for kv in view.prefixed("/root/\u00e9")] == ["/root/\u00e9"]
    assert [kv.key for kv in view.prefixed("/root/")] == keys
    assert list(view.prefixed("/root/ab")) == []
    assert list(view.prefixed("/zzz")) == []


def test_the_keys_of_a_view_are_in_the_order_of_etcd() -> None:
    keys = ["/root/\uffff", "/root/\U0001f600", "/root/z", "/root/\u00e9"]
    view = keyspace_of(*(put(key, "", 3) for key in keys)).view
    assert [kv.key.encode() for kv in view.key_values] == sorted(key.encode() for key in keys)


def test_events_move_the_mirror_and_its_revision() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4), put("/root/b", "2", 5))
    before = keyspace.view
    update = keyspace.apply([events(put("/root/a", "9", 12, created=4, version=2), delete("/root/b", 12), at=15)])
    assert contents(keyspace.view) == {"/root/a": "9"}
    # The header of the answer is ahead of what it brought.
    assert keyspace.view.header == header(12)
    assert [
        (change.before and change.before.value, change.after and change.after.value) for change in update.changes
    ] == [
        ("1", "9"),
        ("2", None),
    ]
    assert contents(before) == {"/root/a": "1", "/root/b": "2"}
    assert not update.notes


def test_a_batch_is_one_change_per_key() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    update = keyspace.apply(
        [
            events(delete("/root/a", 11), put("/root/c", "x", 11)),
            events(put("/root/a", "2", 12)),
            events(delete("/root/c", 13)),
        ]
    )
    (change,) = update.changes
    assert change.before is not None
    assert change.after is not None
    assert (change.before.create_revision, change.after.create_revision) == (4, 12)
    assert keyspace.view.revision == 13
    assert not update.notes


def test_events_that_come_again_change_nothing() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    batch = [events(put("/root/b", "2", 11), delete("/root/a", 11)), events(put("/root/c", "3", 12))]
    keyspace.apply(batch)
    view = keyspace.view
    again = keyspace.apply([WatchEvents(header(12), answer.events) for answer in batch])
    assert keyspace.view is view
    assert again.changes == []
    assert len(again.notes) == 3


def test_a_put_that_comes_late_does_not_bring_back_a_deleted_key() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    keyspace.apply([events(delete("/root/a", 12))])
    update = keyspace.apply([events(put("/root/a", "old", 11, created=4, version=2), at=12)])
    assert contents(update.view) == {}
    assert whats(update) == ["an event of revision 11 came late or twice"]


def test_both_halves_of_a_revision_count() -> None:
    """One transaction came in two answers of the same revision, and the second was ignored: a hang in Gazette."""
    keyspace = keyspace_of()
    keyspace.apply([events(put("/root/a", "1", 11))])
    keyspace.apply([events(put("/root/b", "2", 11), delete("/root/c", 11))])
    assert contents(keyspace.view) == {"/root/a": "1", "/root/b": "2"}
    assert keyspace.view.revision == 11


def test_events_of_one_answer_may_be_out_of_order() -> None:
    keyspace = keyspace_of()
    keyspace.apply([events(put("/root/b", "2", 12), put("/root/a", "1", 11))])
    assert contents(keyspace.view) == {"/root/a": "1", "/root/b": "2"}


def test_an_undecodable_value_leaves_the_old_one() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    update = keyspace.apply([events(put("/root/a", "bad", 11, created=4, version=2))])
    (kept,) = keyspace.view.key_values
    assert (kept.value, kept.mod_revision) == ("1", 4)
    assert keyspace.view.revision == 11
    assert update.changes == []
    assert whats(update) == ["the value was ignored: ValueError: it is bad"]
    later = keyspace.apply([events(put("/root/a", "2", 12, created=4, version=3))])
    assert contents(keyspace.view) == {"/root/a": "2"}
    assert not later.notes
    assert not keyspace.view.undecodable


def test_a_new_undecodable_value_is_invisible_until_it_is_repaired() -> None:
    keyspace = keyspace_of(put("/root/a", "bad", 4))
    assert contents(keyspace.view) == {}
    assert list(keyspace.view.undecodable) == [b"/root/a"]
    keyspace.apply([events(put("/root/a", "good", 11, created=4, version=2))])
    assert contents(keyspace.view) == {"/root/a": "good"}


def test_the_delete_of_an_undecodable_key_is_no_surprise() -> None:
    keyspace = keyspace_of(put("/root/a", "bad", 4))
    update = keyspace.apply([events(delete("/root/a", 11))])
    assert not update.notes
    assert not keyspace.view.undecodable
    assert keyspace.view.revision == 11


def test_a_key_recreated_as_garbage_is_gone() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    keyspace.apply([events(delete("/root/a", 11)), events(put("/root/a", "bad", 12))])
    assert contents(keyspace.view) == {}


@pytest.mark.parametrize("key", [b"/root/\xff", b"/root\x002", b"/root/" + b"x" * 5000])
def test_keys_of_others_are_ignored_but_move_the_revision(key: bytes) -> None:
    def refuse(key: str, raw: bytes) -> str:
        raise ValueError(key)

    keyspace = KeySpace("/root", refuse)
    keyspace.load(keyspace.decoded(Listing(header(10), [])))
    update = keyspace.apply([WatchEvents(header(11), [StoredKey(key, b"", 11, 11, 1, 0)])])
    assert not keyspace.view.key_values
    assert keyspace.view.revision == 11
    assert len(str(update.notes)) < 1000
    keyspace.apply([WatchEvents(header(12), [DeletedKey(key, 12)])])
    assert not keyspace.view.undecodable


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (put("/root/new", "1", 11, created=9, version=3), "a key appeared at version 3"),
        (put("/root/a", "2", 11, created=11, version=1), "a key was created anew, but never deleted"),
        (put("/root/a", "2", 11, created=4, version=3), "a key went from version 1 to 3"),
        (delete("/root/unknown", 11), "a key was deleted that was not known"),
    ],
)
def test_what_does_not_follow_is_noted_and_applied(event: StoredKey | DeletedKey, what: str) -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    update = keyspace.apply([events(event)])
    assert whats(update) == [what]
    assert keyspace.view.revision == 11
    if isinstance(event, StoredKey):
        assert contents(keyspace.view)[event.key.decode()] == event.raw.decode()


def test_progress_moves_where_to_resume_but_not_the_revision() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    keyspace.progress(header(50))
    assert (keyspace.view.revision, keyspace.view.through) == (10, 50)
    keyspace.progress(header(40))
    assert keyspace.view.through == 50
    keyspace.apply([events(put("/root/b", "2", 51))])
    assert (keyspace.view.revision, keyspace.view.through) == (51, 51)


def test_a_reload_takes_the_newest_revision_of_a_key_and_no_other() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4), put("/root/b", "2", 5))
    listing = Listing(header(99), [put("/root/a", "3", 60, created=4, version=2), put("/root/c", "4", 70)])
    update = keyspace.reload(keyspace.decoded(listing))
    assert contents(keyspace.view) == {"/root/a": "3", "/root/c": "4"}
    assert (keyspace.view.revision, keyspace.view.through) == (70, 99)
    assert [change.key for change in update.changes] == ["/root/a", "/root/b", "/root/c"]


def test_a_reload_keeps_the_value_of_a_key_that_was_spoilt_but_not_of_one_that_was_recreated() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4), put("/root/b", "2", 5))
    spoilt = put("/root/a", "bad", 60, created=4, version=2)
    keyspace.reload(keyspace.decoded(Listing(header(99), [spoilt, put("/root/b", "bad", 70)])))
    assert contents(keyspace.view) == {"/root/a": "1"}
    assert keyspace.view.revision == 70


def test_another_cluster_is_never_believed() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    other = header(99, cluster_id=8)
    with pytest.raises(EtcdHistoryError, match="cluster 8"):
        keyspace.apply([WatchEvents(other, [delete("/root/a", 99)])])
    with pytest.raises(EtcdHistoryError, match="cluster 8"):
        keyspace.reload(keyspace.decoded(Listing(other, [])))
    with pytest.raises(EtcdHistoryError, match="cluster 8"):
        keyspace.progress(other)
    assert contents(keyspace.view) == {"/root/a": "1"}


def test_a_store_that_went_back_is_never_believed() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    with pytest.raises(EtcdHistoryError, match="backup"):
        keyspace.reload(keyspace.decoded(Listing(header(9), [])))
    assert contents(keyspace.view) == {"/root/a": "1"}


def test_an_answer_from_a_member_that_lags_behind_is_refused_whole() -> None:
    keyspace = keyspace_of(put("/root/a", "1", 4))
    with pytest.raises(EtcdUnavailableError, match="does not know of 10"):
        keyspace.apply([events(put("/root/b", "2", 11)), events(delete("/root/a", 9))])
    assert contents(keyspace.view) == {"/root/a": "1"}


def test_a_comparison_names_the_keys_that_differ() -> None:
    stored = [put("/root/a", "1", 4), put("/root/b", "bad", 5), put("/root/c", "3", 6)]
    view = keyspace_of(*stored).view
    assert keys_that_differ(view, stored) == []
    assert keys_that_differ(view, stored[1:]) == ["/root/a"]
    assert keys_that_differ(view, [stored[0], stored[2]]) == ["/root/b"]
    newer = [put("/root/a", "1", 4), put("/root/b", "bad", 7), put("/root/c", "9", 8), put("/root/d", "", 9)]
    assert keys_that_differ(view, newer) == ["/root/b", "/root/c", "/root/d"]


@pytest.mark.parametrize("case", cases("etcd-keys", "root"), ids=case_id)
def test_prefixes_are_those_that_go_accepts(case: Case) -> None:
    if case["ok"]:
        check_prefix(case["root"])
    else:
        with pytest.raises(ValueError, match="clean path"):
            check_prefix(case["root"])


def test_two_slashes_are_not_a_clean_beginning() -> None:
    with pytest.raises(ValueError, match="clean path"):
        check_prefix("//a")


# What Go wrote.


def as_golden(entity: GazetteEntity) -> dict[str, Any]:
    match entity:
        case Item(id, spec):
            return {"entity": "item", "id": id, "desired_replication": desired_replication(spec)}
        case Member(id, spec):
            zone, suffix = id.split("#")
            limit = spec.journal_limit if isinstance(spec, journal_pb2.BrokerSpec) else spec.shard_limit
            return {"entity": "member", "zone": zone, "suffix": suffix, "limit": limit, "exiting": spec.exiting}
        case Assignment(item, member, slot, status):
            zone, suffix = member.split("#")
            place = {"entity": "assignment", "item": item, "zone": zone, "suffix": suffix, "slot": slot}
            return place | status_as_golden(status)


def desired_replication(spec: ItemSpec) -> int:
    if isinstance(spec, journal_pb2.JournalSpec):
        return JournalSpec.from_proto(spec).desired_replication(9)
    return 0 if spec.disable else 1 + min(spec.hot_standbys, 3)


def status_as_golden(status: Status) -> dict[str, Any]:
    if isinstance(status, shard_pb2.ReplicaStatus):
        code = shard_pb2.ReplicaStatus.Code.Name(status.code)
        return {"status": {"code": code, "errors": list(status.errors)}}
    return {
        "route": {
            "members": [{"zone": member.zone, "suffix": member.suffix} for member in status.members],
            "primary": status.primary,
            "endpoints": list(status.endpoints),
        }
    }


@pytest.mark.parametrize("case", cases("etcd-keys", "decode"), ids=case_id)
def test_keys_are_in_the_mirror_if_go_decodes_them(case: Case) -> None:
    decode = (broker_keys if case["flavour"] == "broker" else consumer_keys)(case["root"])
    keyspace = KeySpace(case["root"], decode)
    stored = StoredKey(case["key"].encode(), bytes.fromhex(case["value"]), 3, 4, 2, 5)
    keyspace.load(keyspace.decoded(Listing(header(10), [])))
    keyspace.apply([WatchEvents(header(11), [stored._replace(create_revision=11, mod_revision=11, version=1)])])
    by_event = keyspace.view.get(case["key"])
    update = keyspace.reload(keyspace.decoded(Listing(header(11), [stored])))
    by_listing = keyspace.view.get(case["key"])
    if not case["ok"]:
        assert by_event is None
        assert by_listing is None
        assert whats(update)
        return
    assert by_event is not None
    assert by_listing is not None
    assert as_golden(by_event.value) == case["decoded"]
    assert as_golden(by_listing.value) == case["decoded"]
    assert by_listing[2:] == stored[1:]


LIVE = GOLDEN / "live/etcd"
LIVE_ROOT = "/gazette/cluster"


def live_states() -> list[Case]:
    return [json.loads(path.read_text()) for path in sorted(LIVE.glob("[0-9]*.json"))]


def live_stored(case: Case) -> StoredKey:
    return StoredKey(
        case["key"].encode(),
        bytes.fromhex(case["value_hex"]),
        *(case[name] for name in ("create_revision", "mod_revision", "version", "lease")),
    )


def live_event(case: Case) -> StoredKey | DeletedKey:
    if case["type"] == "DELETE":
        return DeletedKey(case["key"].encode(), case["mod_revision"])
    return live_stored(case)


def live_answers() -> list[WatchEvents]:
    """One for each revision."""
    happened = [live_event(json.loads(line)) for line in (LIVE / "watch.jsonl").read_text().splitlines()]
    cluster = live_states()[0]["header"]
    return [
        WatchEvents(
            EtcdHeader(cluster["cluster_id"], cluster["member_id"], revision, cluster["raft_term"]), list(group)
        )
        for revision, group in groupby(happened, key=lambda event: event.mod_revision)
    ]


def loaded(state: Case) -> KeySpace[GazetteEntity]:
    keyspace = KeySpace(LIVE_ROOT, broker_keys(LIVE_ROOT))
    listing = Listing(EtcdHeader(**state["header"]), [live_stored(kv) for kv in state["kvs"]])
    update = keyspace.load(keyspace.decoded(listing))
    assert not update.notes
    return keyspace


def check_state(view: KeySpaceView[GazetteEntity], state: Case) -> None:
    """Keys, revisions and leases, and what they decode to."""
    assert view.header == EtcdHeader(**state["header"])
    assert [(kv.key.encode(), *kv[2:]) for kv in view.key_values] == sorted(map(live_stored, state["kvs"]))
    for kv in view.key_values:
        _, branch, name = kv.key.removeprefix(LIVE_ROOT).split("/", 2)
        match kv.value:
            case Item(id, spec):
                assert (branch, id) == ("items", name)
                assert spec.SerializeToString() == kv.raw
            case Member(id, spec):
                assert (branch, id) == ("members", name)
                assert spec.SerializeToString() == kv.raw
            case Assignment(item, member, slot, status):
                assert (branch, f"{item}#{member}#{slot}") == ("assign", name)
                assert status.SerializeToString() == kv.raw or not kv.raw


def consistent_items(view: KeySpaceView[GazetteEntity]) -> dict[str, bool]:
    """Whether all of an item's assignments hold the Route that their keys make."""
    held: dict[str, list[Assignment[Status]]] = {}
    for kv in view.prefixed(f"{LIVE_ROOT}/assign/"):
        assert isinstance(kv.value, Assignment)
        held.setdefault(kv.value.item, []).append(kv.value)
    return {
        item: all(
            isinstance(one.value, journal_pb2.Route)
            and Route.from_proto(one.value).equivalent(
                Route.of_slots((ProcessId(*each.member.split("#")), each.slot) for each in assigned)
            )
            for one in assigned
        )
        for item, assigned in held.items()
    }


@pytest.mark.parametrize("step", [1, 1000], ids=["revision by revision", "in one batch"])
@pytest.mark.parametrize("state", live_states(), ids=lambda state: state["state"])
def test_a_live_cluster_is_followed_from_any_state(state: Case, step: int) -> None:
    keyspace = loaded(state)
    check_state(keyspace.view, state)
    begun, answers = state["header"]["revision"], live_answers()
    for later in live_states():
        reached, goal = keyspace.view.revision, later["header"]["revision"]
        if goal < begun:
            continue
        # As from a watch that was resumed too early: what is known comes again.
        due = [answer for answer in answers if reached - 2 < answer.header.revision <= goal]
        for batch in batches(due, step):
            newest = EtcdHeader(**later["header"])
            update = keyspace.apply([WatchEvents(newest, answer.events) for answer in batch])
            assert update.view.revision == max(reached, batch[-1].header.revision)
            assert all("late or twice" in note.what or "not known" in note.what for note in update.notes)
        check_state(keyspace.view, later)


def batches(answers: Sequence[WatchEvents], size: int) -> Iterable[Sequence[WatchEvents]]:
    return (answers[at : at + size] for at in range(0, len(answers), size))


@pytest.mark.parametrize(
    ("name", "consistent"), [("03-applied-in-flight", False), ("04-converged", True), ("19-deleted", True)]
)
def test_consistency_can_be_derived_from_the_mirror(name: str, consistent: bool) -> None:
    (state,) = [state for state in live_states() if state["state"] == name]
    assert set(consistent_items(loaded(state).view).values()) == {consistent}


def test_a_live_watch_is_followed_as_it_was_delivered() -> None:
    states = live_states()
    keyspace = loaded(states[0])
    changed: list[Change[GazetteEntity]] = []
    for answer in json.loads((LIVE / "watch-live-00-04.json").read_text()):
        if answer["created"]:
            continue
        arrived = WatchEvents(EtcdHeader(**answer["header"]), [live_event(event) for event in answer["events"]])
        update = keyspace.apply([arrived])
        assert not update.notes
        assert keyspace.view.header == arrived.header
        changed.extend(update.changes)
        for state in states:
            if state["header"]["revision"] == keyspace.view.revision:
                check_state(keyspace.view, state)
    assert keyspace.view.revision == states[4]["header"]["revision"]
    seen = [(change.after.key, change.after.mod_revision) for change in changed if change.after]
    assert len(set(seen)) == len(changed)
