from __future__ import annotations

import json
from dataclasses import replace

import pytest

from allocator.key_event import EtcdHeader, Listing, StoredKey
from allocator.keys import member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView
from broker.cluster_keys import BrokerEntity, broker_decoder
from broker.resolution import MISSING_ID, MisdirectedError, Resolution, Wanted, resolved
from protocol.errors import Status
from protocol.journal import SuspendLevel
from protocol.label import LabelSet
from protocol.route import EtcdRevision, Header, ProcessId, Route
from protocol.selector import LabelSelector
from tests.support.broker_cores import CLUSTER_ID, JOURNAL, ROOT, SPEC, A, B, C, D, labels, suspended
from tests.support.golden import GOLDEN
from tests.support.mini_cluster import ClusterKeys

LABELLED = replace(SPEC, labels=LabelSet.of(("team", "blue")))


def keys_of(*slots: tuple[ProcessId, int]) -> ClusterKeys:
    etcd = ClusterKeys()
    for member in (A, B, C, D):
        etcd.add_member(member, is_kin=member != C)
    etcd.apply(LABELLED)
    if slots:
        etcd.assign(*slots)
    return etcd


THREE = ((A, 0), (B, 1), (C, 2))


def resolve(etcd: ClusterKeys, own_id: ProcessId, wanted: Wanted) -> Resolution:
    return resolved(etcd.view(), ROOT, own_id, wanted)


def status_of(etcd: ClusterKeys, own_id: ProcessId, **wanted: bool) -> Status:
    return resolve(etcd, own_id, Wanted(JOURNAL, **wanted)).status  # type: ignore[arg-type]


# The order of statuses.


@pytest.mark.parametrize("require_primary", [False, True])
@pytest.mark.parametrize("may_proxy", [False, True])
def test_a_journal_that_does_not_exist_comes_first(may_proxy: bool, require_primary: bool) -> None:
    etcd = keys_of()
    wanted = Wanted("no/such", may_proxy, require_primary)
    found = resolve(etcd, A, wanted)
    assert found.status is Status.JOURNAL_NOT_FOUND
    assert found.header.route == Route(endpoints=())
    assert found.header.route.to_proto().primary == -1
    assert found.header.process_id == A


@pytest.mark.parametrize("slots", [(), ((B, 1),), THREE])
def test_a_fully_suspended_journal_comes_second(slots: tuple[tuple[ProcessId, int], ...]) -> None:
    etcd = keys_of(*slots)
    etcd.apply(suspended(SuspendLevel.FULL, 7))
    for require_primary in (False, True):
        assert status_of(etcd, A, may_proxy=False, require_primary=require_primary) is Status.SUSPENDED
    etcd.apply(suspended(SuspendLevel.PARTIAL, 7))
    assert status_of(etcd, A) is not Status.SUSPENDED


def test_no_primary_comes_before_no_members_where_one_is_required() -> None:
    etcd = keys_of()
    assert status_of(etcd, A, require_primary=True) is Status.NO_JOURNAL_PRIMARY_BROKER
    assert status_of(etcd, A) is Status.INSUFFICIENT_JOURNAL_BROKERS
    etcd.assign((A, 1), (B, 2))
    assert status_of(etcd, A, require_primary=True, may_proxy=False) is Status.NO_JOURNAL_PRIMARY_BROKER
    assert status_of(etcd, A) is Status.OK
    assert status_of(etcd, D, may_proxy=False) is Status.NOT_JOURNAL_BROKER


def test_who_may_not_proxy_serves_only_what_is_its_own() -> None:
    etcd = keys_of(*THREE)
    assert status_of(etcd, A, may_proxy=False, require_primary=True) is Status.OK
    assert status_of(etcd, B, may_proxy=False, require_primary=True) is Status.NOT_JOURNAL_PRIMARY_BROKER
    assert status_of(etcd, B, may_proxy=False) is Status.OK
    assert status_of(etcd, D, may_proxy=False) is Status.NOT_JOURNAL_BROKER
    assert status_of(etcd, D, may_proxy=False, require_primary=True) is Status.NOT_JOURNAL_PRIMARY_BROKER
    for own_id in (A, B, D):
        assert status_of(etcd, own_id, require_primary=True) is Status.OK
        assert status_of(etcd, own_id) is Status.OK


def test_who_serves_is_the_primary_or_this_broker_or_any_member() -> None:
    etcd = keys_of(*THREE)
    primary = resolve(etcd, B, Wanted(JOURNAL, require_primary=True))
    assert (primary.header.process_id, primary.is_local) == (A, False)
    own = resolve(etcd, B, Wanted(JOURNAL))
    assert (own.header.process_id, own.is_local) == (B, True)
    any_member = resolve(etcd, D, Wanted(JOURNAL))
    assert (any_member.header.process_id, any_member.is_local) == (None, False)


@pytest.mark.parametrize("own_id", [B, D])
def test_a_refusal_names_who_refuses_and_still_tells_the_route(own_id: ProcessId) -> None:
    found = resolve(keys_of(*THREE), own_id, Wanted(JOURNAL, may_proxy=False, require_primary=True))
    assert found.status is Status.NOT_JOURNAL_PRIMARY_BROKER
    assert found.header.process_id == own_id
    assert found.header.route.members == (A, B, C)


# What a Resolution tells.


def test_the_header_tells_the_route_with_endpoints_and_the_revision_of_the_mirror() -> None:
    etcd = keys_of(*THREE)
    found = resolve(etcd, A, Wanted(JOURNAL))
    assert found.header.route.primary_id == A
    assert found.header.route.endpoints == tuple(f"http://{member.suffix}:8080" for member in (A, B, C))
    assert found.header.etcd == EtcdRevision(CLUSTER_ID, 0x3E, etcd.keys.revision, 2)
    assert found.revision == etcd.keys.revision


def test_a_member_whose_key_is_gone_has_no_endpoint() -> None:
    etcd = keys_of(*THREE)
    etcd.remove(member_key(ROOT, *B))
    endpoints = resolve(etcd, A, Wanted(JOURNAL)).header.route.endpoints
    assert endpoints is not None
    assert endpoints[1] == ""


def test_members_of_our_kind_are_known_by_their_capability() -> None:
    assert resolve(keys_of(*THREE), A, Wanted(JOURNAL)).kin == {A, B}


def test_a_broker_whose_own_key_is_gone_is_nobody() -> None:
    etcd = keys_of(*THREE)
    etcd.remove(member_key(ROOT, *A))
    found = resolve(etcd, A, Wanted(JOURNAL, require_primary=True))
    assert (found.status, found.header.process_id, found.is_local) == (Status.OK, A, False)
    refused = resolve(etcd, A, Wanted(JOURNAL, may_proxy=False, require_primary=True))
    assert refused.status is Status.NOT_JOURNAL_PRIMARY_BROKER
    assert refused.header.process_id == MISSING_ID


def test_a_journal_is_consistent_when_all_assignments_advertise_the_route() -> None:
    etcd = keys_of(*THREE)
    assert not resolve(etcd, A, Wanted(JOURNAL)).is_consistent


def test_replication_is_that_of_the_spec_and_of_its_suspension() -> None:
    etcd = keys_of(*THREE)
    assert resolve(etcd, A, Wanted(JOURNAL)).desired_replication == 3
    etcd.apply(suspended(SuspendLevel.PARTIAL, 7))
    found = resolve(etcd, A, Wanted(JOURNAL))
    assert (found.desired_replication, found.suspend.offset) == (1, 7)


# What the caller may see.


@pytest.mark.parametrize(
    ("selector", "is_seen"),
    [
        (LabelSelector(labels(team="blue")), True),
        (LabelSelector(labels(team="red")), False),
        (LabelSelector(labels(name=JOURNAL)), True),
        (LabelSelector(labels(name="acme/other")), False),
        (LabelSelector(exclude=labels(team="")), False),
        (LabelSelector(), True),
    ],
)
def test_a_journal_beyond_the_callers_claims_is_as_one_that_does_not_exist(
    selector: LabelSelector, is_seen: bool
) -> None:
    etcd = keys_of(*THREE)
    found = resolve(etcd, A, Wanted(JOURNAL, selector=selector))
    if is_seen:
        assert found.status is Status.OK
        return
    missing = resolve(etcd, A, Wanted("no/such", selector=selector))
    assert found == missing
    assert found.assignments == ()
    assert found.header.route.members == ()


def test_a_suspended_journal_beyond_the_callers_claims_does_not_exist_either() -> None:
    etcd = keys_of(*THREE)
    etcd.apply(suspended(SuspendLevel.FULL))
    selector = LabelSelector(labels(team="red"))
    assert resolve(etcd, A, Wanted(JOURNAL, selector=selector)).status is Status.JOURNAL_NOT_FOUND


def test_a_journal_whose_name_begins_with_that_of_another_is_another() -> None:
    etcd = keys_of(*THREE)
    etcd.apply(replace(SPEC, name=JOURNAL + "/more"))
    etcd.assign((D, 0), journal=JOURNAL + "/more")
    assert resolve(etcd, A, Wanted(JOURNAL)).header.route.members == (A, B, C)
    assert resolve(etcd, A, Wanted(JOURNAL + "/more")).header.route.members == (D,)


# Forwarded requests.


def forwarded(process_id: ProcessId | None, cluster_id: int = CLUSTER_ID, revision: int = 1) -> Header:
    return Header(process_id, Route(), EtcdRevision(cluster_id, 1, revision, 1))


@pytest.mark.parametrize("header", [forwarded(A), forwarded(None)])
def test_a_request_that_was_forwarded_to_us_is_served(header: Header) -> None:
    assert resolve(keys_of(*THREE), A, Wanted(JOURNAL, header=header)).status is Status.OK


@pytest.mark.parametrize(
    "header", [forwarded(B), forwarded(A, cluster_id=0xBAD), forwarded(ProcessId("other", A.suffix)), forwarded(B, 0)]
)
def test_a_request_that_was_forwarded_to_another_is_refused_even_for_a_journal_that_does_not_exist(
    header: Header,
) -> None:
    for journal in (JOURNAL, "no/such"):
        with pytest.raises(MisdirectedError):
            resolve(keys_of(*THREE), A, Wanted(journal, header=header))


def test_a_broker_whose_own_key_is_gone_serves_nothing_that_was_forwarded_to_it_by_name() -> None:
    etcd = keys_of(*THREE)
    etcd.remove(member_key(ROOT, *A))
    with pytest.raises(MisdirectedError):
        resolve(etcd, A, Wanted(JOURNAL, header=forwarded(A)))


def test_the_revision_that_is_waited_for_is_the_later_of_both() -> None:
    assert Wanted(JOURNAL).revision == 0
    assert Wanted(JOURNAL, min_revision=5).revision == 5
    assert Wanted(JOURNAL, min_revision=5, header=forwarded(A, revision=9)).revision == 9
    assert Wanted(JOURNAL, min_revision=11, header=forwarded(A, revision=9)).revision == 11


# States of a real cluster.

LIVE = sorted((GOLDEN / "live" / "etcd").glob("[0-9]*.json"))


def live_view(name: str) -> KeySpaceView[BrokerEntity]:
    state = json.loads((GOLDEN / "live" / "etcd" / f"{name}.json").read_text(encoding="utf-8"))
    keyspace: KeySpace[BrokerEntity] = KeySpace(ROOT, broker_decoder(ROOT))
    stored = [
        StoredKey(
            kv["key"].encode(),
            bytes.fromhex(kv["value_hex"]),
            kv["create_revision"],
            kv["mod_revision"],
            kv["version"],
            kv["lease"],
        )
        for kv in state["kvs"]
    ]
    update = keyspace.load(keyspace.decoded(Listing(EtcdHeader(**state["header"]), stored)))
    assert not update.notes
    return update.view


ONE, TWO, THIRD = (
    ProcessId(zone, suffix) for zone, suffix in (("zone-a", "broker-1"), ("zone-a", "broker-2"), ("zone-b", "broker-3"))
)


@pytest.mark.parametrize("name", [path.stem for path in LIVE])
def test_every_journal_of_a_real_cluster_resolves_as_its_keys_say(name: str) -> None:
    view = live_view(name)
    assigned: dict[str, list[tuple[ProcessId, int]]] = {}
    for kv in view.prefixed(f"{ROOT}/assign/"):
        journal, zone, suffix, slot = kv.key.removeprefix(f"{ROOT}/assign/").split("#")
        assigned.setdefault(journal, []).append((ProcessId(zone, suffix), int(slot)))
    journals = [kv.key.removeprefix(f"{ROOT}/items/") for kv in view.prefixed(f"{ROOT}/items/")]
    for journal in journals:
        holders = dict(assigned.get(journal, []))
        primary = next((member for member, slot in holders.items() if slot == 0), None)
        for own_id in (ONE, TWO, THIRD):
            found = resolved(view, ROOT, own_id, Wanted(journal, may_proxy=False, require_primary=True))
            assert found.header.route.members == tuple(sorted(holders))
            assert found.header.route.primary_id == primary
            if found.suspend.level == SuspendLevel.FULL:
                assert found.status is Status.SUSPENDED
            elif primary is None:
                assert found.status is Status.NO_JOURNAL_PRIMARY_BROKER
            elif own_id != primary or view.get(member_key(ROOT, *own_id)) is None:
                assert found.status is Status.NOT_JOURNAL_PRIMARY_BROKER
            else:
                assert found.status is Status.OK


def test_a_converged_cluster_is_consistent_and_one_on_the_way_is_not() -> None:
    view = live_view("04-converged")
    for kv in view.prefixed(f"{ROOT}/items/"):
        found = resolved(view, ROOT, ONE, Wanted(kv.key.removeprefix(f"{ROOT}/items/")))
        assert found.is_consistent
        assert len(found.header.route.members) == found.desired_replication == 3
        assert all(found.header.route.endpoints or ())
        assert found.kin == frozenset(), "brokers of Gazette are not of our kind"
    view = live_view("03-applied-in-flight")
    assert not all(
        resolved(view, ROOT, ONE, Wanted(kv.key.removeprefix(f"{ROOT}/items/"))).is_consistent
        for kv in view.prefixed(f"{ROOT}/items/")
    )


def test_a_real_cluster_shows_journals_that_are_suspended_in_part_and_in_full() -> None:
    view = live_view("17-suspended")
    found = [
        resolved(view, ROOT, ONE, Wanted(kv.key.removeprefix(f"{ROOT}/items/")))
        for kv in view.prefixed(f"{ROOT}/items/")
    ]
    full = [resolution for resolution in found if resolution.suspend.level == SuspendLevel.FULL]
    partial = [resolution for resolution in found if resolution.suspend.level == SuspendLevel.PARTIAL]
    assert [resolution.status for resolution in full] == [Status.SUSPENDED]
    assert [(resolution.status, resolution.desired_replication) for resolution in partial] == [(Status.OK, 1)]
