from __future__ import annotations

from broker.client.dispatch import AVOIDED_S, PROXIED_S, SEEN_MAX, Dispatch, Target
from broker.client.route_cache import RouteCache
from protocol.route import ProcessId, Route

ANY = "http://any:80"
ONE, TWO, THREE = "http://one:80", "http://two:80", "http://three:80"
JOURNAL = "acme/orders"
ROUTE = Route((ProcessId("a", "one"), ProcessId("b", "three"), ProcessId("b", "two")), 0, (ONE, THREE, TWO))


def learned(*addresses: str, zone: str = "") -> Dispatch:
    dispatch = Dispatch(addresses or (ANY,), zone)
    dispatch.learn(JOURNAL, ROUTE, 0.0)
    return dispatch


def test_without_a_route_any_broker_is_asked() -> None:
    dispatch = Dispatch((ANY,))
    assert dispatch.for_append(JOURNAL, 0.0) == dispatch.for_read(JOURNAL, 0.0) == Target(ANY, may_proxy=False)


def test_appends_go_to_the_primary_wherever_we_are() -> None:
    assert learned(zone="b").for_append(JOURNAL, 0.0) == Target(ONE, may_proxy=False)


def test_reads_go_to_a_member_of_our_zone() -> None:
    assert learned(zone="a").for_read(JOURNAL, 0.0).endpoint == ONE
    assert learned(zone="b").for_read(JOURNAL, 0.0).endpoint in (TWO, THREE)


def test_readers_of_many_journals_ask_many_brokers() -> None:
    dispatch = Dispatch((ANY,))
    names = [f"acme/part-{at}" for at in range(50)]
    for name in names:
        dispatch.learn(name, ROUTE, 0.0)
    assert {dispatch.for_read(name, 0.0).endpoint for name in names} == {ONE, TWO, THREE}


def test_a_member_that_failed_is_avoided_for_a_while() -> None:
    dispatch = learned(ANY, zone="a")
    dispatch.reached(ONE)
    dispatch.failed(ONE, JOURNAL, 10.0)
    # The route is forgotten, and comes back with the next answer.
    assert dispatch.for_append(JOURNAL, 10.0).endpoint == ANY
    dispatch.learn(JOURNAL, ROUTE, 10.0)
    assert dispatch.for_read(JOURNAL, 10.0).endpoint != ONE
    assert dispatch.for_append(JOURNAL, 10.0).endpoint == ONE
    assert dispatch.for_read(JOURNAL, 10.0 + AVOIDED_S).endpoint == ONE


def test_when_all_addresses_fail_brokers_that_were_met_are_asked() -> None:
    dispatch = learned(ANY)
    dispatch.reached(TWO)
    dispatch.failed(ANY, None, 1.0)
    assert dispatch.for_any(1.0) == TWO
    dispatch.failed(TWO, None, 2.0)
    # All have failed: the one that did so longest ago.
    assert dispatch.for_any(2.0) == ANY


def test_where_members_cannot_be_reached_brokers_are_to_proxy() -> None:
    dispatch = learned(ANY)
    dispatch.failed(ONE, JOURNAL, 1.0)
    dispatch.learn(JOURNAL, ROUTE, 1.0)
    assert dispatch.for_append(JOURNAL, 1.0) == dispatch.for_read(JOURNAL, 1.0) == Target(ANY, may_proxy=True)
    assert dispatch.for_append(JOURNAL, 1.0 + PROXIED_S) == Target(ONE, may_proxy=False)


def test_a_dead_member_is_no_sign_of_that_once_another_was_reached() -> None:
    dispatch = learned(ANY)
    dispatch.reached(TWO)
    dispatch.failed(ONE, JOURNAL, 1.0)
    assert not dispatch.for_append(JOURNAL, 1.0).may_proxy
    only_addresses = learned(ONE, TWO, THREE)
    only_addresses.failed(ONE, JOURNAL, 1.0)
    assert only_addresses.for_append(JOURNAL, 1.0) == Target(TWO, may_proxy=False)


def test_a_route_without_a_primary_leads_appends_anywhere() -> None:
    dispatch = Dispatch((ANY,))
    dispatch.learn(JOURNAL, Route(ROUTE.members, None, ROUTE.endpoints), 0.0)
    assert dispatch.for_append(JOURNAL, 0.0).endpoint == ANY
    assert dispatch.for_read(JOURNAL, 0.0).endpoint != ANY


def test_a_route_that_leads_nowhere_is_forgotten() -> None:
    for nowhere in (Route(), Route(ROUTE.members, 0), Route(ROUTE.members, 0, (ONE, "", TWO))):
        dispatch = learned(ANY)
        dispatch.learn(JOURNAL, nowhere, 0.0)
        assert dispatch.for_append(JOURNAL, 0.0).endpoint == ANY


def test_routes_are_bounded_and_age() -> None:
    cache = RouteCache(size=2, ttl_s=10.0)
    for name in ("a", "b"):
        cache.update(name, ROUTE, 0.0)
    assert cache.get("a", 5.0) == ROUTE
    cache.update("c", ROUTE, 5.0)
    assert [cache.get(name, 6.0) for name in ("a", "b", "c")] == [ROUTE, None, ROUTE]
    assert cache.get("a", 10.0) is None
    assert len(cache) == 1


def test_brokers_that_were_met_are_bounded() -> None:
    dispatch = Dispatch((ANY,))
    for at in range(SEEN_MAX + 10):
        dispatch.reached(f"http://broker-{at}:80")
    dispatch.failed(ANY, None, 1.0)
    assert dispatch.for_any(1.0) == f"http://broker-{SEEN_MAX + 9}:80"
