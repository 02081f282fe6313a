from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

from allocator.key_event import StoredKey
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item
from allocator.state import State, leader_of, members_of
from allocator.transaction import KEEP_LEASE, Put
from tests.support.allocation import GARBAGE, Cluster, ClusterState, ItemSpec, MemberSpec, golden_cluster
from tests.support.golden import Case, case_id, cases


def cluster_of(*limits: int, replication: tuple[int, ...] = ()) -> Cluster:
    """Members ``a#m0``, ``a#m1`` and so on, which join in that order, and items ``i0`` and so on."""
    cluster = Cluster()
    for at, limit in enumerate(limits):
        cluster.join(f"a#m{at}", limit)
    for at, count in enumerate(replication):
        cluster.put_item(f"i{at}", count)
    return cluster


def shed(state: ClusterState) -> dict[str, int]:
    taken = zip(state.members, state.limits, strict=True)
    return {kv.value.id: kv.value.value.limit - limit for kv, limit in taken if limit < kv.value.value.limit}


@pytest.mark.parametrize("case", cases("allocator", "solve"), ids=case_id)
def test_slots_zones_and_what_exiting_members_shed_are_as_in_gazette(case: Case) -> None:
    state, quality = golden_cluster(case["input"]).state, case["quality"]
    assert {member.replace("#", "/"): count for member, count in shed(state).items()} == quality["shed"]
    assert state.zones == quality["zones"]
    assert state.item_slots == quality["item_slots"]
    assert state.member_slots == quality["member_slots_after_shed"]
    assert sum(state.totals) == quality["current_assignments"]


class TestShedding:
    """Appendix C, vector 8."""

    def test_the_oldest_shed_first_and_no_more_than_the_others_can_take(self) -> None:
        cluster = cluster_of(3, 3, 3, 3, replication=(1, 1, 1, 1, 1))
        for member in ("a#m2", "a#m0", "a#m1"):
            cluster.change_member(member, 3, exiting=True)
        assert cluster.state.limits == [0, 0, 2, 3]
        assert cluster.state.member_slots == 5

    def test_as_many_keep_their_limit_as_an_item_has_replicas(self) -> None:
        cluster = cluster_of(3, 3, 3, 3, replication=(3, 1))
        for member in ("a#m2", "a#m0", "a#m1"):
            cluster.change_member(member, 3, exiting=True)
        assert shed(cluster.state) == {"a#m0": 3}

    def test_nobody_sheds_in_an_overloaded_cluster(self) -> None:
        cluster = cluster_of(1, 1, replication=(1, 1, 1))
        cluster.change_member("a#m0", 1, exiting=True)
        assert shed(cluster.state) == {}

    def test_the_last_member_never_sheds_while_there_is_an_item(self) -> None:
        cluster = cluster_of(5, replication=(1,))
        cluster.change_member("a#m0", 5, exiting=True)
        assert shed(cluster.state) == {}
        cluster.delete_item("i0")
        assert shed(cluster.state) == {"a#m0": 5}

    def test_who_is_oldest_is_a_matter_of_revisions_and_not_of_names(self) -> None:
        cluster = Cluster()
        cluster.join("a#younger-name", 2)
        cluster.join("a#older", 2)
        cluster.put_item("i0", 1)
        for member in ("a#older", "a#younger-name"):
            cluster.change_member(member, 2, exiting=True)
        assert shed(cluster.state) == {"a#younger-name": 2}


def test_the_member_that_joined_first_leads_until_it_is_gone() -> None:
    cluster = Cluster()
    for member in ("b#first", "a#second", "c#third"):
        cluster.join(member, 1)
    cluster.change_member("b#first", 5)
    assert leader_id(cluster.state) == "b#first"
    cluster.leave("b#first")
    assert leader_id(cluster.state) == "a#second"
    assert leader_of(members_of(cluster.root, cluster.keys.key_values)) == cluster.state.leader


def leader_id(state: ClusterState) -> str | None:
    return state.leader.value.id if state.leader else None


def test_of_members_with_one_revision_the_first_in_the_order_of_keys_leads() -> None:
    members = cluster_of(1, 1, 1).state.members
    same = [kv._replace(create_revision=7) for kv in members]
    assert leader_of(same) == same[0]


def test_an_empty_cluster_has_no_leader_and_no_room() -> None:
    state = Cluster().state
    assert (state.leader, state.member_slots, state.item_slots, state.zones) == (None, 0, 0, [])


def test_loads_count_assignments_of_items_and_members_that_exist() -> None:
    cluster = cluster_of(5, 5, replication=(1, 2))
    cluster.assign("i0", "a#m0:0")
    cluster.assign("i1", "a#m1:0", "a#m0:1")
    cluster.assign("gone", "a#m0:0")
    cluster.keys.put(Put("/root/assign/i1#a#stranger#2", b""))
    state = cluster.state
    assert (state.totals, state.primaries) == ([2, 1], [1, 1])
    assert [kv.value.item for group in state.dead for kv in group] == ["gone"]
    assert [len(group) for group in state.assignments] == [1, 3]


def test_a_member_without_a_limit_makes_no_zone() -> None:
    cluster = Cluster()
    cluster.join("a#m0", 1)
    cluster.join("b#m1", 0)
    assert cluster.state.zones == ["a"]
    cluster.change_member("a#m0", 1, exiting=True)
    assert cluster.state.zones == ["a"]


def test_items_whose_names_begin_alike_have_their_own_assignments() -> None:
    cluster = cluster_of(9)
    names = ["a", "a-b", "a/b", "a/b/c", "ab"]
    for name in names:
        cluster.put_item(name, 1)
        cluster.assign(name, "a#m0:0")
    state = cluster.state
    assert [[kv.value.item for kv in group] for group in state.assignments] == [[kv.value.id] for kv in state.items]
    assert sorted(kv.value.id for kv in state.items) == sorted(names)


def test_keys_beside_the_cluster_are_passed_over() -> None:
    cluster = cluster_of(1, replication=(1,))

    def foreign(key: str) -> KeyValue[Entity[ItemSpec, MemberSpec, bytes]]:
        return KeyValue(key, Assignment("i0", "a#m0", 0, b""), b"", 1, 1, 1, 0)

    keys = [*cluster.keys.key_values]
    strangers = ["/root", "/root/assign", "/root/assign0", "/root/items", "/root2/assign/i0#a#m0#0", "/roo/items/x"]
    mixed = sorted([*keys, *map(foreign, strangers)], key=lambda kv: kv.key)
    assert State.of("/root", mixed) == State.of("/root", keys)


class TestValuesThatCannotBeRead:
    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = cluster_of(5, 5, replication=(1, 1))
        cluster.assign("i0", "a#m0:0")
        return cluster

    @pytest.mark.parametrize("key", ["/root/items/i0", "/root/members/a#m0", "/root/assign/i0#a#m0#0"])
    def test_leave_the_ones_before_at_the_revision_that_etcd_has(self, cluster: Cluster, key: str) -> None:
        before, known = cluster.state, cluster.keys[key]
        cluster.keys.put(Put(key, GARBAGE, KEEP_LEASE))
        after = cluster.state
        assert after.network_hash == before.network_hash
        assert (after.totals, after.dead) == (before.totals, [])
        assert by_key(after)[key] == known._replace(mod_revision=cluster.keys.revision)
        assert cluster.keys[key] == known, "what was given is not altered"

    def test_make_members_strangers_if_there_is_none_before(self, cluster: Cluster) -> None:
        cluster.keys.put(Put("/root/members/b#odd", GARBAGE))
        revision = cluster.keys.revision
        cluster.keys.put(Put("/root/assign/i1#b#odd#0", b""), Put("/root/assign/i1#b#none#1", b""))
        state = cluster.state
        assert [kv.value.member for kv in state.strangers] == ["b#none", "b#odd"]
        assert state.unreadable_members == {"b#odd": revision}
        assert state.zones == ["a"]
        assert leader_id(state) == "a#m0"

    def test_make_a_stranger_of_a_member_whose_lease_is_lost_with_it(self, cluster: Cluster) -> None:
        """It has given up when it saw that, and nothing can be put under the lease it had."""
        cluster.keys.put(Put("/root/members/a#m0", GARBAGE))
        state = cluster.state
        assert [kv.value.id for kv in state.members] == ["a#m1"]
        assert leader_id(state) == "a#m1"
        assert state.unreadable_members.keys() == {"a#m0"}
        assert members_of("/root", cluster.keys.key_values, cluster.keys.undecodable) == state.members

    def test_do_not_make_an_item_dead(self, cluster: Cluster) -> None:
        cluster.keys.put(Put("/root/items/odd", GARBAGE))
        cluster.assign("odd", "a#m0:0")
        cluster.assign("gone", "a#m0:0")
        state = cluster.state
        assert [kv.value.id for kv in state.items] == ["i0", "i1"]
        assert [kv.value.item for group in state.dead for kv in group] == ["gone"]

    def test_beside_the_cluster_are_passed_over(self, cluster: Cluster) -> None:
        keys = [b"/root2/items/i0", b"/root/items", b"/root/items/\xff", b"/elsewhere", b"/root/assign/x"]
        undecodable = {key: StoredKey(key, b"", 1, 99, 1, 0) for key in keys}
        assert State.of("/root", cluster.keys.key_values, undecodable) == cluster.state


def by_key(state: ClusterState) -> dict[str, KeyValue[Any]]:
    key_values: list[KeyValue[Any]] = [*state.items, *state.members, *chain.from_iterable(state.assignments)]
    return {kv.key: kv for kv in key_values}


def test_an_item_that_does_not_say_what_it_wants_is_left_alone() -> None:
    class Bundle:
        def __init__(self, fails: bool) -> None:
            self.desired_replication = 2
            self._fails = fails

        @property
        def zones(self) -> frozenset[str] | None:
            if self._fails:
                raise LookupError("no such label")
            return None

    def kv(key: str, entity: Entity[Bundle, MemberSpec, bytes]) -> KeyValue[Entity[Bundle, MemberSpec, bytes]]:
        return KeyValue(f"/root/{key}", entity, b"", 1, 1, 1, 0)

    state = State.of(
        "/root",
        [
            kv("assign/bad#a#m0#0", Assignment("bad", "a#m0", 0, b"")),
            kv("items/bad", Item("bad", Bundle(fails=True))),
            kv("items/good", Item("good", Bundle(fails=False))),
        ],
    )
    assert [each.value.id for each in state.items] == ["good"]
    assert (state.replication, state.allowed, state.item_slots) == ([2], [None], 2)
    assert state.dead == []
    assert state.unusable == {"bad": "LookupError: no such label"}


class TestNetworkHash:
    @pytest.fixture
    def cluster(self) -> Cluster:
        return cluster_of(5, 5, 5, replication=(1, 2))

    def test_stays_while_only_assignments_change(self, cluster: Cluster) -> None:
        before = cluster.state.network_hash
        cluster.settle()
        cluster.change_member("a#m0", 5)
        cluster.put_item("i0", 1)
        assert cluster.state.network_hash == before

    @pytest.mark.parametrize(
        "change",
        [
            lambda cluster: cluster.join("a#m9", 5),
            lambda cluster: cluster.leave("a#m1"),
            lambda cluster: cluster.change_member("a#m1", 4),
            lambda cluster: cluster.change_member("a#m1", 5, exiting=True),
            lambda cluster: cluster.put_item("i9", 1),
            lambda cluster: cluster.put_item("i0", 2),
            lambda cluster: cluster.put_item("i0", 1, zones={"a"}),
            lambda cluster: cluster.delete_item("i0"),
        ],
        ids=["join", "leave", "limit", "exiting", "new item", "replication", "zones", "item gone"],
    )
    def test_changes_with_all_that_an_assignment_has_to_satisfy(self, cluster: Cluster, change: object) -> None:
        before = cluster.state.network_hash
        assert callable(change)
        change(cluster)
        assert cluster.state.network_hash != before


def test_values_need_no_more_than_what_is_asked_of_them() -> None:
    @dataclass
    class Bundle:
        desired_replication: int = 2
        zones: frozenset[str] | None = None

    bundle = Item("i0", Bundle())
    item: KeyValue[Entity[Bundle, MemberSpec, bytes]] = KeyValue("/root/items/i0", bundle, b"", 1, 1, 1, 0)
    assert State.of("/root", [item]).replication == [2]
