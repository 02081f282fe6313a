"""Steps of the leader over keys that no step makes: doubles, strangers, and what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item
from allocator.transaction import KEEP_LEASE, Compare, Delete, Put, Target
from tests.support.allocation import (
    CAUGHT_UP,
    GARBAGE,
    Cluster,
    ItemSpec,
    all_agree,
    all_or_nothing,
    cluster_of,
    each_by_itself,
    key,
    mod,
    route_of,
)


def put_raw(cluster: Cluster, member: str, slot: str, value: bytes = CAUGHT_UP) -> str:
    """An assignment of ``i`` whose slot is written in a way of its own."""
    written = f"/root/assign/i#{member}#{slot}"
    cluster.keys.put(Put(written, value, cluster.keys[f"/root/members/{member}"].lease))
    return written


class TestDoubles:
    """Assignments of one item to one member. Somebody else has written them: no step makes any."""

    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m1:1")
        cluster.desired = {"i": ("a#m0", "a#m1")}
        return cluster

    @pytest.mark.parametrize(
        ("slots", "first"),
        [
            (("0", "2"), "0"),
            (("2", "3"), "2"),
            (("-1", "0"), "0"),
            (("-1", "4"), "4"),
            (("-2", "-1"), "-2"),
            (("0", "+0"), "0"),
            (("00", "0", "-0"), "0"),
            (("+2", "02", "2"), "2"),
            (("+2", "002"), "+2"),
            (("1", "01"), "1"),
        ],
    )
    def test_that_of_the_lowest_slot_is_kept_and_moved_later(
        self, cluster: Cluster, slots: tuple[str, ...], first: str
    ) -> None:
        written = {slot: put_raw(cluster, "a#m0", slot) for slot in slots}
        [transaction] = cluster.step()
        deleted = {each.key for each in transaction.operations if isinstance(each, Delete)}
        assert deleted >= {key for slot, key in written.items() if slot != first}
        cluster.settle()
        assert cluster.assigned["i"] in (["a#m0:0", "a#m1:1"], ["a#m0:1", "a#m1:0"])

    def test_what_is_in_order_is_kept_before_what_is_not(self, cluster: Cluster) -> None:
        put_raw(cluster, "a#m0", "0", b"")
        put_raw(cluster, "a#m0", "3")
        cluster.step()
        assert "a#m0:3" in cluster.assigned["i"], "none is left with fewer than before"
        cluster.settle()
        assert len(cluster.assigned["i"]) == 2

    def test_they_go_even_where_none_is_in_order_before_all_are(self, cluster: Cluster) -> None:
        put_raw(cluster, "a#m0", "0")
        put_raw(cluster, "a#m0", "4", b"")
        [transaction] = cluster.plan(all_or_nothing)
        assert transaction.operations == (Delete(key("a#m0", 4)),)

    def test_the_rule_need_not_make_sense_of_them(self, cluster: Cluster) -> None:
        put_raw(cluster, "a#m0", "0")
        put_raw(cluster, "a#m0", "4")

        def rule(item: Item[ItemSpec], assigned: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool] | None:
            members = [kv.value.member for kv in assigned]
            return each_by_itself(item, assigned) if len(set(members)) == len(members) else None

        [transaction] = cluster.plan(rule)
        assert transaction.operations == (Delete(key("a#m0", 4)),)

    def test_no_key_is_put_that_is_deleted_in_the_same_step(self, cluster: Cluster) -> None:
        """The one in order moves to the slot of the other, once that is free."""
        put_raw(cluster, "a#m0", "0", b"")
        put_raw(cluster, "a#m0", "5")
        cluster.keys.delete([key("a#m1", 1)])
        cluster.put_item("i", 1)
        cluster.desired = {"i": ("a#m0",)}
        lease = cluster.keys["/root/members/a#m0"].lease
        [transaction] = cluster.step()
        assert transaction.operations == (Delete(key("a#m0", 0)),)
        [transaction] = cluster.step()
        assert transaction.operations == (Delete(key("a#m0", 5)), Put(key("a#m0", 0), CAUGHT_UP, lease))

    def test_there_may_be_any_number(self, cluster: Cluster) -> None:
        for slot in range(300):
            put_raw(cluster, "a#m0", f"{slot}")
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]


class TestUnknownMembers:
    @pytest.fixture
    def cluster(self) -> Cluster:
        """A journal with two replicas in order, and one of a stranger that never will be."""
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m0:1", "a#m1:2")
        for each in cluster.state.assignments[0]:
            cluster.keys.put(Put(each.key, route_of(cluster.state.assignments[0]), KEEP_LEASE))
        cluster.keys.put(Put(key("z#gone", 0), b""))
        cluster.desired = {"i": ("a#m0", "a#m1")}
        return cluster

    def test_lose_their_assignments_while_they_stay_away(self, cluster: Cluster) -> None:
        [transaction] = cluster.plan(all_agree)
        assert transaction.compares[1:4] == (
            mod(cluster, "/root/items/i"),
            mod(cluster, key("z#gone", 0)),
            Compare("/root/members/z#gone", Target.CREATE, 0),
        )
        assert transaction.operations[0] == Delete(key("z#gone", 0))
        cluster.join("z#gone", 1)
        assert not cluster.keys.apply(transaction), "one that has just joined is not robbed"

    def test_lose_them_however_few_others_are_in_order(self, cluster: Cluster) -> None:
        for member, slot in (("a#m0", 1), ("a#m1", 2)):
            cluster.keys.put(Put(key(member, slot), b"", KEEP_LEASE))
        cluster.step()
        assert not [each for each in cluster.assigned["i"] if each.startswith("z#")]

    def test_are_not_asked_about(self, cluster: Cluster) -> None:
        asked: list[str] = []

        def rule(_: Item[ItemSpec], assigned: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool]:
            asked.extend(kv.value.member for kv in assigned)
            return [False] * len(assigned)

        cluster.plan(rule)
        assert asked == ["a#m0", "a#m1"]

    def test_do_not_become_the_primary(self, cluster: Cluster) -> None:
        cluster.keys.delete([key("z#gone", 0)])
        cluster.keys.put(*(Put(key(f"z#gone{at:02}", 0 if at > 50 else at), CAUGHT_UP) for at in range(1, 99)))
        while any(each.startswith("z#") for each in cluster.assigned["i"]):
            [transaction] = cluster.step()
            assert not [each for each in transaction.operations if isinstance(each, Put) and "z#" in each.key]

    def test_may_be_any_number(self, cluster: Cluster) -> None:
        cluster.keys.put(*(Put(key(f"z#m{at}", at), b"") for at in range(200)))
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]


class TestMembersThatCannotBeRead:
    """They may be alive, and hold what nobody else does."""

    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.keys.put(Put("/root/members/b#odd", GARBAGE, 77))
        cluster.keys.put(Put(key("b#odd", 0), CAUGHT_UP, 77))
        return cluster

    def test_keep_their_assignments_until_others_have_them(self, cluster: Cluster) -> None:
        cluster.solve()
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:1", "a#m1:2", "b#odd:0"]
        revision = cluster.keys.stored("/root/members/b#odd").mod_revision
        [transaction] = cluster.step()
        assert Compare("/root/members/b#odd", Target.MOD, revision) in transaction.compares
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]

    def test_keep_them_where_there_is_nobody_else(self, cluster: Cluster) -> None:
        cluster.leave("a#m1")
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m0:1", "b#odd:0"]

    def test_are_not_robbed_of_them_once_they_can_be_read(self, cluster: Cluster) -> None:
        cluster.solve()
        cluster.step()
        [transaction] = cluster.plan()
        cluster.change_member("b#odd", 5)
        assert not cluster.keys.apply(transaction)


class TestValuesThatCannotBeRead:
    """AL-16. A mirror keeps the value before, and the cluster goes on with that."""

    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=2)
        cluster.assign("i", "a#m0:0", "a#m1:1")
        cluster.put_item("good", 1)
        cluster.desired = {"i": ("a#m1", "a#m2"), "good": ("a#m2",)}
        return cluster

    @pytest.mark.parametrize(
        "spoilt", ["items/i", "assign/i#a#m0#0", "assign/i#a#m1#1", "members/a#m0", "members/a#m2"]
    )
    def test_hold_nothing_up(self, cluster: Cluster, spoilt: str) -> None:
        cluster.keys.put(Put(f"/root/{spoilt}", GARBAGE, KEEP_LEASE))
        for _ in range(10):
            cluster.step()
            cluster.catch_up()
        assert cluster.assigned == {"good": ["a#m2:0"], "i": ["a#m1:0", "a#m2:1"]}

    def test_of_an_item_that_nobody_knows_let_its_assignments_be(self, cluster: Cluster) -> None:
        cluster.keys.put(Put("/root/items/i", GARBAGE))
        cluster.keys.forget()
        cluster.step()
        assert cluster.assigned == {"good": ["a#m2:0"], "i": ["a#m0:0", "a#m1:1"]}
        cluster.delete_item("i")
        cluster.step()
        assert cluster.assigned == {"good": ["a#m2:0"]}

    def test_of_an_assignment_are_replaced_by_the_one_before_when_it_moves(self) -> None:
        cluster = cluster_of("a#m0", item=1)
        cluster.assign("i", "a#m0:3")
        # The lease it had may be gone by now, and etcd takes nothing under one that is.
        cluster.keys.put(Put(key("a#m0", 3), GARBAGE, lease=77))
        cluster.desired = {"i": ("a#m0",)}
        [transaction] = cluster.step()
        assert transaction.operations == (Delete(key("a#m0", 3)), Put(key("a#m0", 0), CAUGHT_UP, lease=77))
        assert not cluster.keys.undecodable

    def test_of_an_assignment_that_nobody_knows_are_in_nobodys_way(self) -> None:
        cluster = cluster_of("a#m0", item=1)
        cluster.keys.put(Put(key("a#m0", 0), GARBAGE))
        cluster.settle()
        assert cluster.assigned == {"i": ["a#m0:0"]}
        assert not cluster.keys.undecodable


def test_a_dead_members_assignments_that_remain_are_replaced() -> None:
    """They go with its lease, but another's tool may have written one without."""
    cluster = cluster_of("a#m0", "a#m1", item=2)
    cluster.assign("i", "a#m0:1")
    cluster.keys.put(Put(key("z#gone", 0), CAUGHT_UP))
    cluster.settle()
    assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]
