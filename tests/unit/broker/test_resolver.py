from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.keys import item_key, member_key
from allocator.keyspace import KeySpace
from allocator.keyspace_view import Update
from broker.cluster_keys import BrokerEntity, broker_decoder
from broker.replica import Replica
from broker.resolution import MisdirectedError, Resolution, Wanted
from broker.resolver import Resolver, StoppedError
from broker.slot import Wait
from protocol.errors import GazetteError, Status
from protocol.route import EtcdRevision, Header, ProcessId, Route
from tests.support.broker_cores import CLUSTER_ID, JOURNAL, POLICY, ROOT, SPEC, A, B, C, D, replica_of
from tests.support.golden import GOLDEN
from tests.support.live_count import live_count
from tests.support.mini_cluster import ClusterKeys


class Watched:
    """A Resolver of one broker, and every replica that it ever made."""

    def __init__(self, etcd: ClusterKeys, own_id: ProcessId = A) -> None:
        self.etcd = etcd
        self.made: list[Replica[bytearray]] = []
        self.resolver: Resolver[bytearray] = Resolver(ROOT, own_id, etcd.view(), self._started)

    def _started(self, journal: str, create_revision: int) -> Replica[bytearray]:
        replica = replica_of(create_revision=create_revision)
        replica.journal = journal
        self.made.append(replica)
        return replica

    def observe(self) -> None:
        self.resolver.observe(self.etcd.update_from(self.resolver.view))

    @property
    def replica(self) -> Replica[bytearray] | None:
        return self.resolver.replicas.get(JOURNAL)

    def resolve(self, wanted: Wanted | None = None) -> list[Resolution | GazetteError]:
        answered: list[Resolution | GazetteError] = []
        self.resolver.resolve(wanted or Wanted(JOURNAL), answered.append)
        return answered


def cluster(*slots: tuple[ProcessId, int]) -> ClusterKeys:
    etcd = ClusterKeys()
    for member in (A, B, C, D):
        etcd.add_member(member)
    etcd.apply(SPEC)
    if slots:
        etcd.assign(*slots)
    return etcd


THREE = ((A, 0), (B, 1), (C, 2))


def heard(replica: Replica[bytearray]) -> list[str]:
    """Grows by one when the replica is invalidated; told once."""
    told: list[str] = []
    replica.invalidation.listen(lambda: told.append("told"))
    return told


# Which replicas there are.


def test_there_is_a_replica_of_each_journal_that_is_assigned_here_from_the_start() -> None:
    etcd = cluster(*THREE)
    etcd.apply(replace(SPEC, name="acme/other"))
    etcd.assign((B, 0), (C, 1), journal="acme/other")
    watched = Watched(etcd)
    assert set(watched.resolver.replicas) == {JOURNAL}
    assert watched.replica is not None
    assert watched.replica.is_primary
    assert watched.replica.create_revision == etcd.keys[item_key(ROOT, JOURNAL)].create_revision
    assert set(Watched(etcd, B).resolver.replicas) == {JOURNAL, "acme/other"}


def test_an_assignment_that_comes_or_goes_starts_or_stops_a_replica() -> None:
    etcd = cluster()
    watched = Watched(etcd)
    assert watched.resolver.replicas == {}
    etcd.assign(*THREE)
    watched.observe()
    (replica,) = watched.resolver.replicas.values()
    etcd.assign((B, 0), (C, 1))
    watched.observe()
    assert watched.resolver.replicas == {}
    assert replica.given_up.is_fired


def test_an_assignment_without_a_journal_makes_no_replica_until_there_is_one() -> None:
    etcd = ClusterKeys()
    etcd.add_member(A)
    etcd.assign((A, 0))
    watched = Watched(etcd)
    assert watched.made == []
    etcd.apply(SPEC)
    watched.observe()
    assert len(watched.made) == 1


def test_a_journal_that_is_deleted_is_given_up_even_before_its_assignments_are_gone() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    etcd.remove(item_key(ROOT, JOURNAL))
    watched.observe()
    assert watched.replica is None
    assert watched.made[0].is_stopped


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_journal_that_is_deleted_and_created_again_has_a_new_replica(is_one_batch: bool) -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    etcd.remove(item_key(ROOT, JOURNAL))
    if not is_one_batch:
        watched.observe()
    etcd.apply(SPEC)
    watched.observe()
    old, new = watched.made
    assert watched.replica is new
    assert old.is_stopped
    assert new.create_revision > old.create_revision


@pytest.mark.parametrize("slot", [1, 2])
def test_a_primary_that_is_demoted_has_a_new_replica(slot: int) -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    etcd.assign((B, 0), (A, slot), (C, 3))
    watched.observe()
    old, new = watched.made
    assert watched.replica is new
    assert not new.is_primary
    assert old.is_stopped


def test_a_replica_that_is_promoted_stays_and_so_does_one_whose_slot_changes() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd, C)
    replica = watched.replica
    assert replica is not None
    assert not replica.is_primary
    etcd.assign((A, 0), (B, 3), (C, 1))
    watched.observe()
    etcd.assign((B, 3), (C, 0))
    watched.observe()
    assert watched.made == [replica]
    assert replica.is_primary


def test_a_demotion_and_promotion_that_are_seen_as_one_leave_the_replica() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    etcd.assign((B, 0), (A, 1), (C, 2))
    etcd.assign(*THREE)
    watched.observe()
    assert len(watched.made) == 1


def test_a_journal_that_is_assigned_here_twice_has_one_replica() -> None:
    etcd = cluster((A, 0), (A, 1), (B, 2))
    watched = Watched(etcd)
    assert len(watched.made) == 1
    assert watched.replica is not None
    assert watched.replica.is_primary
    etcd.assign((A, 1), (B, 2))
    watched.observe()
    assert len(watched.made) == 2, "it was the primary and is it no more"


# Who is told that what they know is out of date.


def test_whatever_changes_about_the_assignments_invalidates() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    replica = watched.replica
    assert replica is not None
    changes: list[Callable[[], None]] = [
        lambda: etcd.assign((A, 0), (B, 1), (D, 2)),
        lambda: etcd.assign((A, 0), (B, 1)),
        lambda: etcd.assign((A, 0), (B, 2)),
    ]
    for change in changes:
        told = heard(replica)
        change()
        watched.observe()
        assert told == ["told"]
    assert watched.made == [replica]


def test_other_stores_invalidate_and_nothing_else_of_a_spec_does() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    replica = watched.replica
    assert replica is not None
    told = heard(replica)
    etcd.apply(replace(SPEC, replication=2, max_append_rate=7, fragment=replace(POLICY, length=9999)))
    watched.observe()
    etcd.add_member(D)
    watched.observe()
    etcd.assign((D, 0), journal="acme/other")
    watched.observe()
    assert told == []
    etcd.apply(replace(SPEC, fragment=replace(POLICY, stores=("file:///other/",))))
    watched.observe()
    assert told == ["told"]


def test_who_is_told_finds_the_replica_that_came_instead() -> None:
    """It asks in the very moment in which the old one is given up."""
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    assert watched.replica is not None
    found: list[list[Resolution | GazetteError]] = []
    watched.replica.invalidation.listen(lambda: found.append(watched.resolve()))
    etcd.remove(item_key(ROOT, JOURNAL))
    etcd.apply(SPEC)
    watched.observe()
    ((resolution,),) = found
    assert isinstance(resolution, Resolution)
    assert resolution.status is Status.OK
    assert resolution.replica is watched.made[1]
    assert resolution.replica is not watched.made[0]


# Resolving.


def test_a_resolution_has_the_replica_of_this_broker_whoever_serves() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd, B)
    for wanted in (Wanted(JOURNAL), Wanted(JOURNAL, require_primary=True)):
        (resolution,) = watched.resolve(wanted)
        assert isinstance(resolution, Resolution)
        assert resolution.replica is watched.replica
    (elsewhere,) = Watched(etcd, D).resolve()
    assert isinstance(elsewhere, Resolution)
    assert elsewhere.replica is None


def test_a_request_waits_for_the_revision_that_it_demands_and_is_answered_at_no_earlier_one() -> None:
    etcd = cluster()
    watched = Watched(etcd)
    at = etcd.keys.revision
    answered = [watched.resolve(Wanted(JOURNAL, min_revision=at + ahead)) for ahead in (2, 0, 1)]
    assert [len(answers) for answers in answered] == [0, 1, 0]
    etcd.assign(*THREE)
    watched.observe()
    assert [len(answers) for answers in answered] == [0, 1, 1]
    etcd.assign((A, 0), (B, 1))
    watched.observe()
    for answers, ahead in zip(answered, (2, 0, 1), strict=True):
        (resolution,) = answers
        assert isinstance(resolution, Resolution)
        assert resolution.revision >= at + ahead


def test_those_who_wait_are_served_by_revision_and_then_in_their_order_after_all_replicas_are_there() -> None:
    etcd = cluster()
    watched = Watched(etcd)
    at = etcd.keys.revision
    order: list[tuple[int, object]] = []
    for name, ahead in enumerate((3, 1, 2, 1, 3)):

        def answer(found: Resolution | GazetteError, name: int = name) -> None:
            assert isinstance(found, Resolution)
            order.append((name, found.replica))

        watched.resolver.resolve(Wanted(JOURNAL, min_revision=at + ahead), answer)
    etcd.assign((A, 1))
    etcd.assign((A, 1), (B, 2))
    etcd.assign(*THREE)
    watched.observe()
    assert [name for name, _ in order] == [1, 3, 2, 0, 4]
    assert {replica for _, replica in order} == {watched.replica}


def test_who_does_not_wait_any_more_is_not_answered() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    answered: list[object] = []
    wait = watched.resolver.resolve(Wanted(JOURNAL, min_revision=etcd.keys.revision + 1), answered.append)
    assert not wait.is_over
    wait.withdraw()
    etcd.assign((A, 0))
    watched.observe()
    assert answered == []


def test_who_asks_again_while_it_is_answered_waits_for_the_next_revision() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    seen: list[int] = []

    def again(found: Resolution | GazetteError) -> None:
        assert isinstance(found, Resolution)
        seen.append(found.revision)
        watched.resolver.resolve(Wanted(JOURNAL, min_revision=found.revision + 1), again)

    watched.resolver.resolve(Wanted(JOURNAL), again)
    first = etcd.keys.revision
    for _ in range(2):
        etcd.apply(SPEC)
        watched.observe()
    assert seen == [first, first + 1, first + 2]


def forwarded(process_id: ProcessId | None, cluster_id: int = CLUSTER_ID, revision: int = 1) -> Header:
    return Header(process_id, Route(), EtcdRevision(cluster_id, 1, revision, 1))


def test_a_forwarded_request_is_resolved_at_its_headers_revision_or_later() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    header = forwarded(A, revision=etcd.keys.revision + 1)
    answered = watched.resolve(Wanted(JOURNAL, header=header))
    assert answered == []
    etcd.assign((A, 0))
    watched.observe()
    (resolution,) = answered
    assert isinstance(resolution, Resolution)
    assert resolution.revision == header.etcd.revision


@pytest.mark.parametrize("header", [forwarded(B, revision=1 << 60), forwarded(A, 0xBAD, 1 << 60)])
def test_a_request_that_is_for_somebody_else_is_refused_and_not_kept_waiting(header: Header) -> None:
    watched = Watched(cluster(*THREE))
    (error,) = watched.resolve(Wanted(JOURNAL, header=header))
    assert isinstance(error, MisdirectedError)


def test_a_request_that_is_for_somebody_else_is_refused_although_its_journal_was_resolved_before() -> None:
    watched = Watched(cluster(*THREE))
    (known,) = watched.resolve()
    (error,) = watched.resolve(Wanted(JOURNAL, header=forwarded(B)))
    assert isinstance(error, MisdirectedError)
    (resolution,) = watched.resolve(Wanted(JOURNAL, header=forwarded(A)))
    assert resolution is known


@pytest.mark.parametrize("own_id", [A, D], ids=["held", "not held"])
def test_a_journal_is_resolved_anew_only_after_something_has_changed(own_id: ProcessId) -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd, own_id)
    (known,) = watched.resolve()
    # As when etcd says that there is nothing new.
    watched.resolver.observe(Update(watched.resolver.view, (), ()))
    assert watched.resolve()[0] is known
    etcd.assign((D, 0))
    watched.observe()
    (resolution,) = watched.resolve()
    assert isinstance(resolution, Resolution)
    assert resolution.header.route.primary_id == D
    assert resolution.replica is watched.replica


def test_requests_with_forged_revisions_that_were_given_up_are_not_kept() -> None:
    watched = Watched(cluster(*THREE))
    before = live_count(Wait)
    for _ in range(10_000):
        watched.resolver.resolve(Wanted(JOURNAL, min_revision=1 << 60), lambda _: None).withdraw()
    assert live_count(Wait) - before < 200


# The end.


def test_a_broker_that_stops_gives_up_everything_and_serves_nothing_of_its_own() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd)
    watched.resolver.stop()
    assert all(replica.is_stopped for replica in watched.made)
    (error,) = watched.resolve(Wanted(JOURNAL, require_primary=True))
    assert isinstance(error, StoppedError)
    etcd.assign((B, 0), (A, 1), (C, 2))
    watched.observe()
    assert watched.replica is None
    (resolution,) = watched.resolve(Wanted(JOURNAL, require_primary=True))
    assert isinstance(resolution, Resolution)
    assert (resolution.status, resolution.header.process_id) == (Status.OK, B)


def test_who_is_told_that_a_broker_stops_finds_it_stopped() -> None:
    watched = Watched(cluster(*THREE))
    assert watched.replica is not None
    found: list[list[Resolution | GazetteError]] = []
    watched.replica.invalidation.listen(lambda: found.append(watched.resolve()))
    watched.resolver.stop()
    ((error,),) = found
    assert isinstance(error, StoppedError)


def test_a_broker_whose_own_key_is_gone_passes_on_what_it_can() -> None:
    etcd = cluster(*THREE)
    watched = Watched(etcd, B)
    etcd.remove(member_key(ROOT, *B))
    watched.observe()
    (resolution,) = watched.resolve(Wanted(JOURNAL, require_primary=True))
    assert isinstance(resolution, Resolution)
    assert resolution.header.process_id == A


# A real cluster, from its first event to its last.

LIVE = GOLDEN / "live" / "etcd"


def stored(kv: dict[str, Any]) -> StoredKey:
    numbers = (kv[name] for name in ("create_revision", "mod_revision", "version", "lease"))
    return StoredKey(kv["key"].encode(), bytes.fromhex(kv["value_hex"]), *numbers)


def batches(size: int) -> Iterator[list[WatchEvents]]:
    """The events of so many revisions at a time."""
    events = [
        DeletedKey(row["key"].encode(), row["mod_revision"]) if row["type"] == "DELETE" else stored(row)
        for row in map(json.loads, (LIVE / "watch.jsonl").read_text(encoding="utf-8").splitlines())
    ]
    answers = [
        WatchEvents(EtcdHeader(0x11, 0x22, revision, 2), list(group))
        for revision, group in groupby(events, key=lambda event: event.mod_revision)
    ]
    for at in range(0, len(answers), size):
        yield answers[at : at + size]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("own_id", [("zone-a", "broker-1"), ("zone-a", "broker-2"), ("zone-b", "broker-3")])
def test_replicas_follow_a_real_cluster(own_id: tuple[str, str], size: int) -> None:
    keyspace: KeySpace[BrokerEntity] = KeySpace(ROOT, broker_decoder(ROOT))
    keyspace.load(keyspace.decoded(Listing(EtcdHeader(0x11, 0x22, 1, 2), [])))
    made: list[Replica[bytearray]] = []

    def start(journal: str, create_revision: int) -> Replica[bytearray]:
        replica = replica_of(create_revision=create_revision)
        replica.journal = journal
        made.append(replica)
        return replica

    resolver: Resolver[bytearray] = Resolver(ROOT, ProcessId(*own_id), keyspace.view, start)
    for answers in batches(size):
        before = dict(resolver.replicas)
        was_primary = {journal for journal, replica in before.items() if replica.is_primary}
        resolver.observe(keyspace.apply(answers))
        view = keyspace.view
        mine: dict[str, int] = {}
        for kv in view.prefixed(f"{ROOT}/assign/"):
            journal, zone, suffix, slot = kv.key.removeprefix(f"{ROOT}/assign/").split("#")
            item = view.get(item_key(ROOT, journal))
            if (zone, suffix) == own_id and item is not None:
                mine[journal] = int(slot)
                replica = resolver.replicas[journal]
                assert replica.create_revision == item.create_revision
                if before.get(journal) not in (None, replica):
                    assert journal in was_primary or before[journal].create_revision != item.create_revision
        assert {journal: replica.is_primary for journal, replica in resolver.replicas.items()} == {
            journal: slot == 0 for journal, slot in mine.items()
        }
        assert {replica for replica in made if not replica.is_stopped} == set(resolver.replicas.values())
    # Whoever sees all at once sees that the cluster ended without this broker.
    assert made or size > 3
