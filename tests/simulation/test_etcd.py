from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from allocator.etcd_client import Committed, GrantedLease
from allocator.etcd_errors import CompactedError, EtcdError, EtcdRefusedError, EtcdUnavailableError, LeaseNotFoundError
from allocator.key_event import DeletedKey, EtcdHeader, Listing, StoredKey
from allocator.keyspace import KeySpace
from allocator.keyspace_view import Update
from allocator.transaction import KEEP_LEASE, Compare, Delete, Put, Target, Transaction
from tests.simulation.etcd import Etcd, EtcdAccess, EtcdFaults
from tests.simulation.etcd_watch import Mirror, WatchServer
from tests.simulation.network import Network
from tests.simulation.world import Node, World


def etcd_of(world: World, faults: EtcdFaults | None = None) -> Etcd:
    return Etcd(world.node("etcd"), faults)


def committed(etcd: Etcd, *operations: Put | Delete, compares: Sequence[Compare] = ()) -> bool:
    done = etcd.commit(Transaction(tuple(compares), operations))
    assert isinstance(done, Committed)
    return done.succeeded


def keys(listing: Listing | EtcdError) -> dict[str, bytes]:
    assert isinstance(listing, Listing)
    return {stored.key.decode(): stored.raw for stored in listing.keys}


def test_a_transaction_happens_at_one_revision() -> None:
    etcd = etcd_of(World(0))
    assert committed(etcd, Put("/a", b"1"), Put("/b", b"2"))
    assert etcd.get("/a") == StoredKey(b"/a", b"1", 2, 2, 1, 0)
    assert committed(etcd, Put("/a", b"3"), Delete("/b"))
    assert etcd.get("/a") == StoredKey(b"/a", b"3", 2, 3, 2, 0)
    assert etcd.get("/b") is None
    assert etcd.history("/", 3, 3) == [(3, (StoredKey(b"/a", b"3", 2, 3, 2, 0), DeletedKey(b"/b", 3)))]


@pytest.mark.parametrize(
    ("target", "equals"), [(Target.CREATE, 2), (Target.MOD, 3), (Target.VERSION, 2)], ids=lambda value: str(value)
)
def test_a_comparison_holds_or_nothing_happens(target: Target, equals: int) -> None:
    etcd = etcd_of(World(0))
    committed(etcd, Put("/a", b"1"))
    committed(etcd, Put("/a", b"2"))
    assert not committed(etcd, Put("/a", b"no"), compares=[Compare("/a", target, equals + 1)])
    assert etcd.revision == 3
    assert committed(etcd, Put("/a", b"yes"), compares=[Compare("/a", target, equals)])
    assert committed(etcd, Put("/new", b""), compares=[Compare("/new", target, 0)])


def test_what_changes_nothing_uses_up_no_revision() -> None:
    etcd = etcd_of(World(0))
    assert committed(etcd, Delete("/a"))
    assert etcd.revision == 1


def test_what_etcd_refuses_is_refused() -> None:
    etcd = etcd_of(World(0))
    twice = etcd.commit(Transaction((), (Put("/a", b""), Delete("/a"))))
    many = etcd.commit(Transaction((), tuple(Put(f"/{number}", b"") for number in range(129))))
    keeping = etcd.commit(Transaction((), (Put("/a", b"", KEEP_LEASE),)))
    for answer in (twice, many, keeping):
        assert isinstance(answer, EtcdRefusedError)
    assert isinstance(etcd.commit(Transaction((), (Put("/a", b"", 99),))), LeaseNotFoundError)
    assert etcd.revision == 1


def test_listings_tell_of_any_revision_that_is_kept() -> None:
    etcd = etcd_of(World(0))
    for number in range(4):
        etcd.put("/a/x", b"%d" % number)
    etcd.put("/a/y", b"")
    etcd.delete("/a/x")
    assert keys(etcd.list_prefix("/a/x", 3)) == {"/a/x": b"1"}
    assert keys(etcd.list_prefix("/a")) == {"/a/y": b""}
    etcd.compact(4)
    assert isinstance(etcd.list_prefix("/a", 3), CompactedError)
    assert keys(etcd.list_prefix("/a", 4)) == {"/a/x": b"2"}
    etcd.compact(etcd.revision)
    assert keys(etcd.list_prefix("/a", etcd.revision)) == {"/a/y": b""}
    assert isinstance(etcd.list_prefix("/a", etcd.revision + 1), EtcdRefusedError)


def test_a_lease_ends_by_etcds_clock_and_takes_its_keys_at_one_revision() -> None:
    world = World(0)
    etcd = etcd_of(world)
    lease = etcd.grant(10).lease_id
    committed(etcd, Put("/a", b"", lease), Put("/b", b"", lease), Put("/c", b""))
    world.run(8.0)
    assert etcd.keep_alive(lease) == 10
    world.run(17.9)
    assert etcd.get("/a") is not None, "it never ends early"
    world.run(30.0)
    assert keys(etcd.list_prefix("/")) == {"/c": b""}
    assert etcd.history("/", 3, 9) == [(3, (DeletedKey(b"/a", 3), DeletedKey(b"/b", 3)))]
    assert isinstance(etcd.keep_alive(lease), LeaseNotFoundError)
    assert etcd.leases == []


def test_a_paused_etcd_ends_leases_late() -> None:
    world = World(0)
    etcd = etcd_of(world)
    lease = etcd.grant(5).lease_id
    world.pause(etcd.node)
    world.run(20.0)
    assert etcd.leases == [lease]
    world.resume(etcd.node)
    world.run(20.0)
    assert etcd.leases == []


def test_a_key_follows_the_lease_it_was_last_put_with() -> None:
    etcd = etcd_of(World(0))
    first, second = etcd.grant(10).lease_id, etcd.grant(10).lease_id
    committed(etcd, Put("/a", b"", first), Put("/b", b"", first))
    committed(etcd, Put("/a", b"", second), Put("/b", b"kept", KEEP_LEASE))
    etcd.revoke(first)
    assert keys(etcd.list_prefix("/")) == {"/a": b""}
    etcd.put("/a", b"", 0)
    etcd.revoke(second)
    assert keys(etcd.list_prefix("/")) == {"/a": b""}
    assert isinstance(etcd.revoke(second), LeaseNotFoundError)


# Over the network.


@dataclass
class Cluster:
    world: World
    network: Network
    etcd: Etcd
    node: Node
    access: EtcdAccess


def cluster(seed: int = 0, faults: EtcdFaults | None = None) -> Cluster:
    world = World(seed)
    network = Network(world)
    etcd = etcd_of(world, faults)
    WatchServer(network, etcd)
    node = world.node("b0")
    return Cluster(world, network, etcd, node, EtcdAccess(network, etcd, node))


def test_every_question_is_answered() -> None:
    it = cluster()
    answers: list[object] = []
    it.access.grant_lease(10, answers.append)
    it.access.commit(Transaction((), (Put("/a", b"1"),)), answers.append)
    it.world.run(1.0)
    granted = next(answer for answer in answers if isinstance(answer, GrantedLease))
    assert Committed(True, EtcdHeader(0xE7CD, 1, 2, 1)) in answers
    answers.clear()
    it.access.keep_alive(granted.lease_id, 1.0, answers.append)
    it.access.get("/a", answers.append)
    it.access.get("/none", answers.append)
    it.access.list_prefix("/", answers.append)
    it.access.revoke_lease(granted.lease_id, answers.append)
    it.world.run(2.0)
    assert len(answers) == 5
    assert not [answer for answer in answers if isinstance(answer, EtcdError)]


@pytest.mark.parametrize(
    ("faults", "is_done"),
    [(EtcdFaults(request_loss_rate=1.0), False), (EtcdFaults(answer_loss_rate=1.0), True)],
    ids=["request lost", "answer lost"],
)
def test_a_transaction_that_is_not_answered_may_have_happened(faults: EtcdFaults, is_done: bool) -> None:
    it = cluster(faults=faults)
    answers: list[Committed | EtcdError] = []
    it.access.commit(Transaction((), (Put("/a", b"1"),)), answers.append)
    it.world.run(20.0)
    (answer,) = answers
    assert isinstance(answer, EtcdUnavailableError)
    assert answer.maybe_applied
    assert (it.etcd.get("/a") is not None) is is_done


# Watches.


def decode(_: str, raw: bytes) -> bytes:
    return raw


@dataclass
class Follower:
    keyspace: KeySpace[bytes]
    mirror: Mirror[bytes]
    updates: list[Update[bytes]]


def follow(it: Cluster, prefix: str = "/p") -> Follower:
    keyspace = KeySpace(prefix, decode)
    updates: list[Update[bytes]] = []
    mirror = Mirror(it.access, keyspace, updates.append)
    mirror.start(lambda: None)
    return Follower(keyspace, mirror, updates)


def mutate(it: Cluster, chance: Random, seconds: float) -> None:
    """Random transactions over a few keys, some of them elsewhere."""
    until_s = it.world.now_s + seconds

    def step() -> None:
        names = chance.sample([f"/p/{number}" for number in range(6)] + ["/elsewhere"], chance.randint(1, 4))
        it.etcd.commit(
            Transaction((), tuple(Put(name, b"v") if chance.random() < 0.6 else Delete(name) for name in names))
        )
        if it.world.now_s < until_s:
            it.world.after(chance.random() * 0.1, step)

    step()


def is_mirror_true(it: Cluster, follower: Follower) -> bool:
    listing = it.etcd.list_prefix("/p")
    assert isinstance(listing, Listing)
    expected = [(stored.key.decode(), stored.raw, stored.mod_revision) for stored in listing.keys]
    return [(kv.key, kv.raw, kv.mod_revision) for kv in follower.keyspace.view.key_values] == expected


TROUBLE = EtcdFaults(
    request_loss_rate=0.2,
    answer_loss_rate=0.2,
    watch_delay_s=0.3,
    watch_lag_rate=0.5,
    watch_split_rate=0.7,
    watch_drop_rate=0.1,
)


@pytest.mark.parametrize("seed", range(12))
def test_a_mirror_ends_up_as_a_fresh_listing_whatever_its_watch_went_through(seed: int) -> None:
    it = cluster(seed, TROUBLE)
    chance = Random(seed)
    follower = follow(it)
    mutate(it, chance, 30.0)
    it.world.after(8.0, lambda: it.network.cut(it.etcd.node, it.node))
    it.world.after(12.0, lambda: it.etcd.compact(it.etcd.revision))
    it.world.after(25.0, it.network.heal)
    it.world.run(33.0)
    it.etcd.faults = EtcdFaults()
    it.world.run(60.0)
    assert it.etcd.revision > 50
    assert is_mirror_true(it, follower)
    assert not [note for update in follower.updates for note in update.notes], "nothing came twice or out of order"
    assert follower.mirror.resumed >= 1


def test_a_mirror_is_listed_afresh_where_etcd_has_forgotten_what_came_in_between() -> None:
    it = cluster()
    follower = follow(it)
    it.world.run(1.0)
    it.etcd.put("/p/a", b"")
    it.world.run(2.0)
    it.network.partition([it.node], [it.etcd.node])
    it.etcd.put("/p/b", b"")
    it.etcd.delete("/p/a")
    it.world.run(15.0)
    it.etcd.compact(it.etcd.revision)
    it.network.heal()
    it.world.run(40.0)
    assert follower.mirror.reloads == 1
    assert is_mirror_true(it, follower)
    changes = [[change.key for change in update.changes] for update in follower.updates if update.changes]
    assert changes == [["/p/a"], ["/p/a", "/p/b"]]


def test_a_mirror_never_goes_back_and_never_shows_a_revision_of_another_prefix() -> None:
    it = cluster(3, TROUBLE)
    follower = follow(it)
    mutate(it, Random(3), 20.0)
    it.world.run(40.0)
    revisions = [update.view.revision for update in follower.updates]
    assert revisions == sorted(revisions)
    below = {revision for revision, _ in it.etcd.history("/p", 0, it.etcd.revision)}
    assert set(revisions[1:]) <= below | {revisions[0]}


def test_events_that_come_together_are_one_update() -> None:
    it = cluster(faults=EtcdFaults(watch_delay_s=0.001))
    follower = follow(it)
    it.world.run(1.0)
    follower.updates.clear()
    for number in range(5):
        it.etcd.put(f"/p/{number}", b"")
    it.etcd.delete("/p/0")
    it.world.run(1.9)
    assert [len(update.changes) for update in follower.updates if update.changes] == [4]


def test_a_torn_revision_is_seen_in_two_updates() -> None:
    it = cluster(faults=EtcdFaults(watch_split_rate=1.0, watch_tear_rate=1.0))
    follower = follow(it)
    it.world.run(1.0)
    committed(it.etcd, *(Put(f"/p/{number}", b"") for number in range(4)))
    it.world.run(1.9)
    parts = [update for update in follower.updates if update.changes]
    assert len(parts) == 2
    assert [update.view.revision for update in parts] == [2, 2]
    assert is_mirror_true(it, follower)


def test_progress_moves_what_is_complete_and_not_the_revision() -> None:
    it = cluster()
    it.etcd.put("/p/a", b"")
    follower = follow(it)
    it.world.run(1.0)
    it.etcd.put("/elsewhere", b"")
    it.world.run(10.0)
    view = follower.keyspace.view
    assert (view.revision, view.through) == (2, 3)


def test_a_mirror_can_be_loaded_at_the_revision_of_an_announcement() -> None:
    it = cluster()
    header = it.etcd.put("/p/announcement", b"")
    it.etcd.put("/elsewhere", b"")
    keyspace = KeySpace("/p", decode)
    views: list[int] = []
    mirror = Mirror(it.access, keyspace, lambda update: None)
    mirror.start(lambda: views.append(keyspace.view.revision), header.revision)
    it.world.run(1.0)
    assert views == [header.revision]


def test_a_paused_client_catches_up_in_a_burst() -> None:
    it = cluster()
    follower = follow(it)
    it.world.run(1.0)
    it.world.pause(it.node)
    mutate(it, Random(1), 5.0)
    it.world.run(8.0)
    assert not is_mirror_true(it, follower)
    it.world.resume(it.node)
    it.world.run(9.0)
    assert is_mirror_true(it, follower)


def test_a_crashed_client_leaves_no_watch_behind() -> None:
    it = cluster()
    follow(it)
    it.world.run(1.0)
    assert len(it.network.streams_of(it.etcd.node)) == 1
    it.world.crash(it.node)
    it.world.run(5.0)
    assert it.network.streams_of(it.etcd.node) == []
