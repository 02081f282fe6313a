"""What Go brokers wrote to etcd, as a broker of ours reads it."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from allocator.converge import converge
from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.key_value import KeyValue
from allocator.keys import Assignment, InvalidKeyError, Item, Member
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from allocator.solve import desired_assignment
from allocator.state import State
from allocator.transaction import Put
from broker.cluster_keys import BrokerEntity, assigned_route, broker_decoder, journal_consistency, route_of
from broker.journal_item import JournalItem
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec, SuspendLevel
from protocol.route import ProcessId, Route
from tests.support.golden import GOLDEN, Case, case_id, cases

ROOT = "/gazette/cluster"
ITEM = Item("acme/orders", JournalItem.of(JournalSpec("acme/orders", 1), 9))


def as_golden(entity: BrokerEntity) -> dict[str, Any]:
    match entity:
        case Item(name, item):
            return {"entity": "item", "id": name, "desired_replication": item.desired_replication}
        case Member(name, member):
            zone, suffix = name.split("#")
            place = {"entity": "member", "zone": zone, "suffix": suffix}
            return place | {"limit": member.limit, "exiting": member.exiting}
        case Assignment(name, holder, slot, route):
            zone, suffix = holder.split("#")
            return {"entity": "assignment", "item": name, "zone": zone, "suffix": suffix, "slot": slot} | {
                "route": route_as_golden(route)
            }


def route_as_golden(route: Route) -> dict[str, Any]:
    return {
        "members": [member._asdict() for member in route.members],
        "primary": -1 if route.primary is None else route.primary,
        "endpoints": list(route.endpoints or ()),
    }


BROKER_CASES = [case for case in cases("etcd-keys", "decode") if case["flavour"] == "broker"]


@pytest.mark.parametrize("case", BROKER_CASES, ids=case_id)
def test_keys_decode_as_they_do_in_go(case: Case) -> None:
    decode, raw = broker_decoder(case["root"]), bytes.fromhex(case["value"])
    if case["ok"]:
        assert as_golden(decode(case["key"], raw)) == case["decoded"]
    else:
        with pytest.raises((InvalidKeyError, ValidationError, DecodeError)):
            decode(case["key"], raw)


@pytest.mark.parametrize("case", cases("etcd-keys", "broker-consistency"), ids=case_id)
def test_a_journal_is_consistent_where_it_is_in_go(case: Case) -> None:
    decode = broker_decoder(ROOT)
    assigned: list[KeyValue[Assignment[Route]]] = []
    for stored in case["assignments"]:
        value = decode(stored["key"], bytes.fromhex(stored["value"]))
        assert isinstance(value, Assignment)
        assigned.append(KeyValue(stored["key"], value, b"", 1, 1, 1, 1))
    route = route_of(assigned)
    assert route_as_golden(route) == case["derived_route"]
    assert route.to_proto().SerializeToString() == bytes.fromhex(case["derived_route_hex"])
    assert journal_consistency(ITEM, assigned) == [case["consistent"]] * len(assigned)


def test_where_brokers_can_be_reached_has_no_part_in_consistency() -> None:
    route = Route((ProcessId("zone-a", "broker-1"),), 0, ("http://host:1",))
    value = assigned_route(route.to_proto().SerializeToString())
    assert value == route
    kv = KeyValue("key", Assignment("acme/orders", "zone-a#broker-1", 0, value), b"", 1, 1, 1, 1)
    assert journal_consistency(ITEM, [kv]) == [True]


def test_routes_that_are_alike_share_what_they_have_in_common() -> None:
    ids = [ProcessId("zone-a", "broker-1"), ProcessId("zone-a", "broker-2")]
    two = Route.of_slots(zip(ids, (0, 1), strict=True)).to_proto().SerializeToString()
    one = Route.of_slots([(ids[0], 0)]).to_proto().SerializeToString()
    assert assigned_route(bytes(bytearray(two))) is assigned_route(bytes(bytearray(two)))
    assert assigned_route(one).members[0] is assigned_route(two).members[0]


# A cluster of three Go brokers, from its beginning to its end.

LIVE = GOLDEN / "live/etcd"


def live_states() -> list[Case]:
    return [json.loads(path.read_text()) for path in sorted(LIVE.glob("[0-9]*.json"))]


def stored(case: Case) -> StoredKey:
    numbers = (case[name] for name in ("create_revision", "mod_revision", "version", "lease"))
    return StoredKey(case["key"].encode(), bytes.fromhex(case["value_hex"]), *numbers)


def event(case: Case) -> StoredKey | DeletedKey:
    return DeletedKey(case["key"].encode(), case["mod_revision"]) if case["type"] == "DELETE" else stored(case)


def check_encodings(view: KeySpaceView[BrokerEntity]) -> None:
    """What was decoded, encoded again, is what Go wrote."""
    for kv in view.key_values:
        match kv.value:
            case Item(_, item):
                assert item.spec.to_proto().SerializeToString() == kv.raw
            case Member(_, member):
                assert member.encoded() == kv.raw
            case Assignment(_, _, _, route):
                assert route.to_proto() == (pb.Route.FromString(kv.raw) if kv.raw else pb.Route(primary=-1))


def consistent(view: KeySpaceView[BrokerEntity]) -> dict[str, bool]:
    state = State.of(ROOT, view.key_values)
    return {
        item.value.id: all(journal_consistency(item.value, assigned))
        for item, assigned in zip(state.items, state.assignments, strict=True)
    }


def live_views() -> dict[int, KeySpaceView[BrokerEntity]]:
    """The mirror of the live cluster at each of its revisions."""
    begun, before = EtcdHeader(**live_states()[0]["header"]), live_states()[0]["kvs"]
    keyspace = KeySpace(ROOT, broker_decoder(ROOT))
    keyspace.load(keyspace.decoded(Listing(begun, [stored(kv) for kv in before])))
    views: dict[int, KeySpaceView[BrokerEntity]] = {}
    for revision, events in live_events():
        update = keyspace.apply([WatchEvents(begun._replace(revision=revision), events)])
        assert not update.notes
        views[revision] = update.view
    return views


def live_events() -> list[tuple[int, list[StoredKey | DeletedKey]]]:
    """By revision."""
    happened = [event(json.loads(line)) for line in (LIVE / "watch.jsonl").read_text().splitlines()]
    return [(revision, list(events)) for revision, events in groupby(happened, key=lambda event: event.mod_revision)]


def test_the_life_of_a_live_cluster_is_followed_at_every_revision() -> None:
    views = live_views()
    for view in views.values():
        check_encodings(view)
    for state in live_states()[1:]:
        view = views[state["header"]["revision"]]
        assert [(kv.key.encode(), *kv[2:]) for kv in view.key_values] == sorted(map(stored, state["kvs"]))


# The leader was a Go broker. What it did, one of ours would have done.

# An item wanted fewer replicas. Go took that of the primary, and ours would have taken another that is as good.
OTHER_CHOICE = 17
# A plan is carried out a few revisions after the one that it was made of, as brokers go on to write meanwhile.
OVERTAKEN_MAX = 6


def planned(view: KeySpaceView[BrokerEntity]) -> set[tuple[str, bytes]]:
    state = State.of(ROOT, view.key_values)
    steps = converge(state, desired_assignment(state), journal_consistency)
    return {
        (operation.key, operation.value if isinstance(operation, Put) else b"deleted")
        for step in steps
        for operation in step.transaction.operations
    }


def done(events: list[StoredKey | DeletedKey]) -> set[tuple[str, bytes]]:
    """What a leader did, if it was one: it alone creates assignments, and deletes them while their member stays."""
    created = {(put.key.decode(), put.raw) for put in events if isinstance(put, StoredKey) and put.version == 1}
    deleted = {(gone.key.decode(), b"deleted") for gone in events if isinstance(gone, DeletedKey)}
    changes = created | deleted
    return changes if all(key.startswith(f"{ROOT}/assign/") for key, _ in changes) else set()


def test_what_the_leader_of_a_live_cluster_did_is_what_ours_would_have_done() -> None:
    views, followed = live_views(), 0
    for revision, events in live_events():
        if expected := done(events):
            plans = [planned(views[before]) for before in range(max(2, revision - OVERTAKEN_MAX), revision)]
            if revision == OTHER_CHOICE:
                assert plans[-1] == {(f"{ROOT}/assign/golden/overlap#zone-a#broker-2#1", b"deleted")}
            else:
                assert any(expected <= plan for plan in plans), revision
                followed += 1
    assert followed == 19


@pytest.mark.parametrize(
    "name",
    [
        *("04-converged", "09-after-lease-expiry", "10-member-back", "11-exiting-cannot-drain", "14-converged-again"),
        *("15-two-more-journals", "17-suspended", "18-resumed", "19-deleted"),
    ],
)
def test_where_the_leader_of_a_live_cluster_rested_so_would_ours(name: str) -> None:
    assert planned(view_of(name)) == set()


def view_of(name: str) -> KeySpaceView[BrokerEntity]:
    (state,) = [state for state in live_states() if state["state"] == name]
    keyspace = KeySpace(ROOT, broker_decoder(ROOT))
    listing = Listing(EtcdHeader(**state["header"]), [stored(kv) for kv in state["kvs"]])
    update = keyspace.load(keyspace.decoded(listing))
    assert not update.notes
    return update.view


@pytest.mark.parametrize("name", [state["state"] for state in live_states()])
def test_a_live_journal_is_consistent_unless_it_is_being_moved(name: str) -> None:
    journals = consistent(view_of(name))
    moving = {
        # None of them has been written to yet.
        "03-applied-in-flight": set(journals),
        # It has just lost a replica.
        "05-replication-lowered": {"golden/overlap"},
        # A fourth broker has just been assigned all that have three replicas.
        "12-draining": set(journals) - {"golden/overlap"},
    }.get(name, set())
    assert {journal for journal, is_consistent in journals.items() if not is_consistent} == moving


@pytest.mark.parametrize(
    ("name", "suspended"),
    [
        ("17-suspended", {"golden/empty": (SuspendLevel.FULL, 0), "golden/none": (SuspendLevel.PARTIAL, 1)}),
        ("18-resumed", {"golden/empty": (SuspendLevel.NONE, 3), "golden/none": (SuspendLevel.NONE, 3)}),
    ],
)
def test_the_suspension_of_a_live_journal_shows_in_its_replication(
    name: str, suspended: dict[str, tuple[SuspendLevel, int]]
) -> None:
    items = [kv.value for kv in State.of(ROOT, view_of(name).key_values).items]
    assert {
        item.id: (item.value.spec.suspend.level, item.value.desired_replication)
        for item in items
        if item.value.spec.suspend is not None
    } == suspended
