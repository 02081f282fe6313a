from __future__ import annotations

import pytest

from protocol.gen import journal_pb2 as pb
from protocol.route import EtcdRevision, Header, ProcessId, Route
from tests.support.golden import Case, case_id, cases

A, B = ProcessId("zone-a", "broker-1"), ProcessId("zone-b", "broker-2")
ROUTE_HEX = "0a120a067a6f6e652d61120862726f6b65722d310a120a067a6f6e652d62120862726f6b65722d32"


@pytest.mark.parametrize(
    ("route", "wire"),
    [
        (Route((A, B), 1), ROUTE_HEX + "1001"),
        (Route((A, B), 0), ROUTE_HEX),
        (Route(), "10ffffffffffffffffff01"),
    ],
)
def test_routes_on_the_wire_are_those_of_the_reference(route: Route, wire: str) -> None:
    assert route.to_proto().SerializeToString().hex() == wire
    assert Route.from_proto(pb.Route.FromString(bytes.fromhex(wire))) == route


@pytest.mark.parametrize("case", cases("etcd-keys", "broker-consistency"), ids=case_id)
def test_a_route_follows_from_the_slots_of_assignments(case: Case) -> None:
    parts = [held["key"].split("#") for held in case["assignments"]]
    route = Route.of_slots((ProcessId(zone, suffix), int(slot)) for _, zone, suffix, slot in parts)
    derived = case["derived_route"]
    assert route.members == tuple(ProcessId(member["zone"], member["suffix"]) for member in derived["members"])
    assert route.to_proto().primary == derived["primary"]
    stored = [bytes.fromhex(held["value"] or "10ffffffffffffffffff01") for held in case["assignments"]]
    values = [pb.Route.FromString(value) for value in stored]
    assert all(route.equivalent(Route.from_proto(value)) for value in values) == case["consistent"]


def test_routes_are_equivalent_whatever_their_endpoints() -> None:
    route = Route((A, B), 1)
    assert route.equivalent(route.with_endpoints({A: "http://a", B: "http://b"}))
    assert not route.equivalent(Route((A, B), 0))
    assert not route.equivalent(Route((A, B)))
    assert not route.equivalent(Route((A,), 0))


def test_an_unrouted_header_says_that_it_has_no_primary() -> None:
    header = Header(A, Route(), EtcdRevision(1, 2, 3, 4))
    assert header.to_proto().route.primary == -1
    assert Header.from_proto(header.to_proto()) == header


def test_a_header_for_any_member_keeps_an_empty_process_id_present() -> None:
    message = Header(None, Route((A, B), 1), EtcdRevision(1, 2, 3, 4)).to_proto()
    assert message.HasField("process_id")
    assert Header.from_proto(message).process_id is None
