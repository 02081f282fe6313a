"""What Go brokers wrote to etcd, as a broker of ours reads it."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.key_value import KeyValue
from allocator.keys import Assignment, InvalidKeyError, Item, Member
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from allocator.state import State
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


def test_the_life_of_a_live_cluster_is_followed_at_every_revision() -> None:
    states = live_states()
    keyspace = KeySpace(ROOT, broker_decoder(ROOT))
    begun = EtcdHeader(**states[0]["header"])
    keyspace.load(keyspace.decoded(Listing(begun, [stored(kv) for kv in states[0]["kvs"]])))
    happened = [event(json.loads(line)) for line in (LIVE / "watch.jsonl").read_text().splitlines()]
    by_revision = {
        revision: list(events) for revision, events in groupby(happened, key=lambda event: event.mod_revision)
    }
    views: dict[int, KeySpaceView[BrokerEntity]] = {}
    for revision, events in by_revision.items():
        update = keyspace.apply([WatchEvents(begun._replace(revision=revision), events)])
        assert not update.notes
        check_encodings(update.view)
        views[revision] = update.view
    for state in states[1:]:
        view = views[state["header"]["revision"]]
        assert [(kv.key.encode(), *kv[2:]) for kv in view.key_values] == sorted(map(stored, state["kvs"]))


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
