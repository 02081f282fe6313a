from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from allocator.converge import converge
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, Member, item_key, slot_key
from allocator.transaction import COMPARES_MAX, KEEP_LEASE, OPERATIONS_MAX, Compare, Delete, Put, Target, Transaction
from tests.support.allocation import (
    CAUGHT_UP,
    GARBAGE,
    Cluster,
    ItemSpec,
    MemberSpec,
    all_agree,
    all_or_nothing,
    each_by_itself,
    route_of,
)
from tests.support.golden import Case, case_id, cases


@pytest.mark.parametrize("case", cases("allocator", "converge"), ids=case_id)
def test_transactions_are_those_of_gazette_where_the_same_is_desired(case: Case) -> None:
    """To the last comparison, in the same order, at the same revisions."""
    cluster = Cluster(case["root"])
    for step in case["steps"]:
        bring_to(cluster, step["before"])
        for expected in step["rounds"]:
            if "desired" in expected:
                cluster.desired = {
                    item: tuple(each.replace("/", "#") for each in held) for item, held in expected["desired"].items()
                }
            assert list(map(as_golden, cluster.step())) == expected["txns"]
            if step["marked_consistent_between_rounds"]:
                cluster.catch_up()
        assert cluster.assigned == assigned(step["after"])
        assert cluster.state.leader == cluster.keys[f"{cluster.root}/members/{step['leader']}"]


def as_golden(transaction: Transaction) -> dict[str, Any]:
    def operation(each: Put | Delete) -> dict[str, Any]:
        if isinstance(each, Delete):
            return {"op": "delete", "key": each.key}
        return {"op": "put", "key": each.key, "value": each.value.decode(), "lease_of_member": each.lease}

    return {
        "compares": [{"key": c.key, "target": c.target.name, "equals": c.equals} for c in transaction.compares],
        "ops": list(map(operation, transaction.operations)),
    }


def assigned(golden: dict[str, list[str]]) -> dict[str, list[str]]:
    return {item: sorted(each.replace("/", "#") for each in held) for item, held in golden.items() if held}


def bring_to(cluster: Cluster, given: Case) -> None:
    """What happens between the steps of a golden case, each event at a revision of its own."""
    members = {f"{each['zone']}#{each['suffix']}": each for each in given["members"]}
    known = {kv.value.id for kv in cluster.state.members}
    for gone in sorted(known - set(members)):
        cluster.leave(gone)
    for kv in cluster.state.items:
        if kv.value.id not in {each["id"] for each in given["items"]}:
            cluster.delete_item(kv.value.id)
    for name, each in sorted(members.items(), key=lambda pair: pair[1]["create_revision"]):
        if name not in known:
            cluster.join(name, each["limit"], lease=1000 + int(each["suffix"].rpartition("-")[2]))
    for name, each in members.items():
        if cluster.keys[f"{cluster.root}/members/{name}"].value != Member(name, spec_of(each)):
            cluster.change_member(name, each["limit"], each["exiting"])
    for each in given["items"]:
        key = item_key(cluster.root, each["id"])
        if key not in cluster.keys or cluster.keys[key].value != Item(each["id"], ItemSpec(each["replication"])):
            cluster.put_item(each["id"], each["replication"])
    vanish(cluster, assigned(given["current"]))


def vanish(cluster: Cluster, wanted: dict[str, list[str]]) -> None:
    """Assignments other than these."""
    vanished = [
        slot_key(cluster.root, item, *member_and_slot(each))
        for item, held in cluster.assigned.items()
        for each in held
        if each not in wanted.get(item, ())
    ]
    if vanished:
        cluster.keys.delete(vanished)
    assert cluster.assigned == wanted


def spec_of(member: dict[str, Any]) -> MemberSpec:
    return MemberSpec(member["limit"], member["exiting"])


def member_and_slot(text: str) -> tuple[str, int]:
    member, _, slot = text.rpartition(":")
    return member, int(slot)


def cluster_of(*members: str, limit: int = 10, item: int | None = None) -> Cluster:
    """Members that join in the order given, and perhaps an item ``i`` of some replication."""
    cluster = Cluster()
    for member in members:
        cluster.join(member, limit)
    if item is not None:
        cluster.put_item("i", item)
    return cluster


def mod(cluster: Cluster, key: str) -> Compare:
    return Compare(key, Target.MOD, cluster.keys[key].mod_revision)


def key(member: str, slot: int) -> str:
    return f"/root/assign/i#{member}#{slot}"


class TestAdding:
    def test_a_new_item_gets_its_slots_in_the_order_of_members(self) -> None:
        cluster = cluster_of("b#m1", "a#m0", item=2)
        cluster.desired = {"i": ("a#m0", "b#m1")}
        [transaction] = cluster.plan()
        first, second = "/root/members/a#m0", "/root/members/b#m1"
        assert transaction.compares == (mod(cluster, second), mod(cluster, first), mod(cluster, second))
        assert transaction.operations == (
            Put(key("a#m0", 0), b"", cluster.keys[first].lease),
            Put(key("b#m1", 1), b"", cluster.keys[second].lease),
        )

    def test_slots_are_beyond_all_in_use(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=3)
        cluster.assign("i", "a#m1:0", "a#m2:4")
        cluster.desired = {"i": ("a#m0", "a#m1", "a#m2")}
        [transaction] = cluster.step()
        assert [operation.key for operation in transaction.operations] == [key("a#m0", 5)]

    def test_a_member_at_its_limit_is_passed_over_and_its_slot_stays_free(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", limit=1, item=2)
        cluster.put_item("other", 1)
        cluster.assign("other", "a#m0:0")
        cluster.desired = {"i": ("a#m0", "a#m1"), "other": ("a#m0",)}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m1:1"]

    def test_what_one_item_takes_the_next_cannot_have(self) -> None:
        cluster = cluster_of("a#m0", limit=2)
        for at in range(4):
            cluster.put_item(f"i{at}", 1)
        cluster.desired = {f"i{at}": ("a#m0",) for at in range(4)}
        cluster.step()
        assert sorted(cluster.assigned) == ["i0", "i1"]

    def test_what_one_item_gives_up_the_next_can_have_at_once(self) -> None:
        cluster = cluster_of("a#m0", limit=1)
        cluster.put_item("first", 0)
        cluster.assign("first", "a#m0:0")
        cluster.put_item("second", 1)
        cluster.desired = {"second": ("a#m0",)}
        cluster.step()
        assert cluster.assigned == {"second": ["a#m0:0"]}

    def test_members_that_are_gone_are_not_added(self) -> None:
        """What is desired may be older than the state."""
        cluster = cluster_of("a#m0", item=1)
        cluster.desired = {"i": ("a#gone",)}
        assert cluster.step() == []


class TestRemoving:
    @pytest.fixture
    def moving(self) -> Cluster:
        """From the first to the third, of which the second knows nothing."""
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=2)
        cluster.assign("i", "a#m0:0", "a#m1:1")
        cluster.desired = {"i": ("a#m1", "a#m2")}
        return cluster

    def test_waits_until_the_replacement_has_caught_up(self, moving: Cluster) -> None:
        moving.step()
        assert moving.assigned["i"] == ["a#m0:0", "a#m1:1", "a#m2:2"]
        assert moving.step() == []
        moving.catch_up()
        compares = (mod(moving, "/root/items/i"), mod(moving, key("a#m0", 0)), mod(moving, key("a#m1", 1)))
        lease = moving.keys[key("a#m1", 1)].lease
        [transaction] = moving.step()
        assert transaction.compares[1:] == compares
        assert transaction.operations == (
            Delete(key("a#m0", 0)),
            Delete(key("a#m1", 1)),
            Put(key("a#m1", 0), CAUGHT_UP, lease),
        )

    def test_waits_for_all_where_none_is_in_order_before_all_are(self, moving: Cluster) -> None:
        moving.step()
        assert moving.plan(all_or_nothing) == []
        moving.catch_up()
        assert moving.plan(all_or_nothing) != []

    def test_takes_what_is_not_in_order_as_long_as_enough_others_are(self, moving: Cluster) -> None:
        moving.assign("i", "a#m2:2")
        moving.keys.put(Put(key("a#m0", 0), b"", KEEP_LEASE))
        moving.step()
        assert "a#m0:0" not in moving.assigned["i"]

    def test_takes_nothing_from_an_item_that_has_too_little(self, moving: Cluster) -> None:
        moving.keys.put(Put(key("a#m1", 1), b"", KEEP_LEASE))
        moving.desired = {"i": ("a#m1",)}
        assert moving.step() == []

    def test_takes_all_at_once_from_an_item_that_wants_none(self, moving: Cluster) -> None:
        moving.put_item("i", 0)
        moving.desired = {}
        moving.step()
        assert moving.assigned == {}

    def test_takes_from_the_most_loaded_first(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=1)
        cluster.put_item("other", 1)
        cluster.assign("i", "a#m0:0", "a#m1:1", "a#m2:2")
        cluster.assign("other", "a#m1:0")
        cluster.keys.put(Put(key("a#m0", 0), b"", KEEP_LEASE))
        cluster.desired = {"i": ("a#m0",), "other": ("a#m1",)}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m2:2"]

    def test_takes_second_assignments_of_one_member(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m0:0", "a#m0:1", "a#m1:2")
        cluster.desired = {"i": ("a#m0", "a#m1")}
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]


class TestOrder:
    def test_the_primary_is_replaced_by_one_that_has_caught_up(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m0:1", "a#m1:2")
        cluster.keys.put(Put(key("a#m0", 1), b"", KEEP_LEASE))
        cluster.desired = {"i": ("a#m0", "a#m1")}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:1", "a#m1:0"]

    def test_the_primary_is_replaced_by_whoever_is_primary_of_the_least(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.put_item("other", 1)
        cluster.assign("other", "a#m0:0")
        cluster.assign("i", "a#m0:1", "a#m1:2")
        cluster.desired = {"i": ("a#m0", "a#m1"), "other": ("a#m0",)}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:1", "a#m1:0"]

    def test_primaries_chosen_in_one_step_are_spread(self) -> None:
        cluster = cluster_of("a#m0", "a#m1")
        for at in range(6):
            cluster.put_item(f"i{at}", 2)
            cluster.assign(f"i{at}", "a#m0:1", "a#m1:2")
            cluster.desired[f"i{at}"] = ("a#m0", "a#m1")
        cluster.step()
        assert cluster.state.primaries == [3, 3]

    def test_slots_close_up_one_by_one(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=3)
        cluster.assign("i", "a#m0:0", "a#m1:3", "a#m2:7")
        cluster.desired = {"i": ("a#m0", "a#m1", "a#m2")}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1", "a#m2:7"]
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1", "a#m2:2"]
        assert cluster.step() == []

    @pytest.mark.parametrize("slots", [(-1, 0, 2), (0, 0, 0), (-3, -2, -1), (5, 5, 0), (0, 1, 10**17)])
    def test_strange_slots_are_put_in_order(self, slots: tuple[int, ...]) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", item=3)
        cluster.assign("i", *(f"a#m{at}:{slot}" for at, slot in enumerate(slots)))
        cluster.desired = {"i": ("a#m0", "a#m1", "a#m2")}
        before = [each for each in cluster.assigned["i"] if each.endswith(":0")]
        cluster.settle()
        assert sorted(each.rpartition(":")[2] for each in cluster.assigned["i"]) == ["0", "1", "2"]
        if len(before) == 1:
            assert before[0] in cluster.assigned["i"], "a primary stays one"

    def test_a_promotion_is_all_that_happens_to_slots_in_a_step(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m0:3", "a#m1:5")
        cluster.desired = {"i": ("a#m0", "a#m1")}
        cluster.step()
        assert cluster.assigned["i"] == ["a#m0:0", "a#m1:5"]

    @pytest.mark.parametrize("slot", [2**63 - 1, 2**40, -1, -5, -(2**63)])
    def test_a_new_slot_is_one_that_all_members_can_read(self, slot: int) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", f"a#m0:{slot}")
        cluster.desired = {"i": ("a#m0", "a#m1")}
        [transaction] = cluster.plan()
        assert key("a#m1", 0) in [each.key for each in transaction.operations]
        cluster.settle()
        assert sorted(each[-2:] for each in cluster.assigned["i"]) == [":0", ":1"]

    def test_a_move_takes_value_and_lease_along(self) -> None:
        cluster = cluster_of("a#m0", item=1)
        cluster.keys.put(Put(key("a#m0", 4), b"some status", 77))
        cluster.desired = {"i": ("a#m0",)}
        [transaction] = cluster.step()
        assert transaction.operations == (Delete(key("a#m0", 4)), Put(key("a#m0", 0), b"some status", 77))


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


def test_an_item_that_cannot_be_judged_stays_as_it_is() -> None:
    cluster = cluster_of("a#m0", "a#m1", item=2)
    cluster.assign("i", "a#m0:3")
    cluster.put_item("good", 1)
    cluster.desired = {"i": ("a#m0", "a#m1"), "good": ("a#m0",)}

    def rule(item: Item[ItemSpec], assigned: Sequence[KeyValue[Assignment[bytes]]]) -> list[bool] | None:
        return None if item.id == "i" else each_by_itself(item, assigned)

    [transaction] = cluster.plan(rule)
    assert [each.key for each in transaction.operations] == ["/root/assign/good#a#m0#0"]


class TestDeadItems:
    @pytest.fixture
    def cluster(self) -> Cluster:
        cluster = cluster_of("a#m0", "a#m1", item=2)
        cluster.assign("i", "a#m0:0", "a#m1:1")
        cluster.delete_item("i")
        return cluster

    def test_leave_no_assignments(self, cluster: Cluster) -> None:
        [transaction] = cluster.plan()
        assert transaction.compares[1:] == (
            Compare("/root/items/i", Target.CREATE, 0),
            mod(cluster, key("a#m0", 0)),
            mod(cluster, key("a#m1", 1)),
        )
        assert cluster.keys.apply(transaction)
        assert cluster.assigned == {}

    def test_keep_theirs_if_they_come_back_first(self, cluster: Cluster) -> None:
        [transaction] = cluster.plan()
        cluster.put_item("i", 2)
        assert not cluster.keys.apply(transaction)

    def test_may_have_more_than_fit_into_a_transaction(self, cluster: Cluster) -> None:
        cluster.keys.put(*(Put(f"/root/assign/i#z#m{at}#0", b"") for at in range(120)))
        cluster.keys.put(*(Put(f"/root/assign/i#y#m{at}#0", b"") for at in range(120)))
        cluster.step()
        assert cluster.assigned == {}

    def test_may_have_names_that_no_item_can_have(self) -> None:
        cluster = cluster_of("a#m0")
        cluster.keys.put(Put("/root/assign/with space#a#m0#0", b""))
        cluster.step()
        assert cluster.assigned == {}


class TestTransactions:
    def test_hold_only_while_the_leader_is_as_it_was(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", item=1)
        cluster.desired = {"i": ("a#m1",)}
        [transaction] = cluster.plan()
        assert transaction.compares[0] == mod(cluster, "/root/members/a#m0")
        cluster.change_member("a#m0", 10, exiting=True)
        assert not cluster.keys.apply(transaction)

    def test_are_as_large_as_etcd_takes_and_never_split_an_item(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", limit=1000)
        for at in range(200):
            cluster.put_item(f"i{at:03}", 3)
        cluster.solve()
        transactions = cluster.step()
        assert [len(each.operations) for each in transactions] == [126, 126, 126, 126, 96]
        for each in transactions:
            assert each.compares[0].key == "/root/members/a#m0"
            assert len(each.compares) == 1 + len(each.operations) <= COMPARES_MAX
            assert len(each.operations) <= OPERATIONS_MAX
            items = [operation.key.split("#")[0] for operation in each.operations]
            assert all(items.count(item) == 3 for item in items)

    def test_stay_small_enough_whatever_an_item_has(self) -> None:
        cluster = cluster_of(*(f"a#m{at:03}" for at in range(150)), item=150)
        for begin in (0, 100):
            cluster.keys.put(*(Put(f"/root/assign/i#z#m{at}#{at}", CAUGHT_UP) for at in range(begin, begin + 100)))
        cluster.settle(rounds_max=500)
        assert len(cluster.assigned["i"]) == 150
        assert all(each.startswith("a#") for each in cluster.assigned["i"])

    def test_can_be_taken_apart_by_item(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", limit=1000)
        for at in range(100):
            cluster.put_item(f"i{at:03}", 2)
        cluster.solve()
        cluster.assign("gone", "a#m0:0")
        for batch in converge(cluster.state, cluster.desired, each_by_itself):
            whole, apart = batch.transaction, [single.transaction for single in batch.apart()]
            items = {each.key.split("#")[0].removeprefix("/root/assign/") for each in whole.operations}
            assert [change.item for change in batch.changes] == sorted(items)
            assert {each.compares[0] for each in apart} == {whole.compares[0]} == {mod(cluster, "/root/members/a#m0")}
            assert [each for single in apart for each in single.operations] == list(whole.operations)
            assert [each for single in apart for each in single.compares[1:]] == list(whole.compares[1:])
            for each in apart:
                assert cluster.keys.apply(each)
        assert cluster.plan() == []

    def test_can_do_without_what_needs_the_room_of_some_members(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "a#m2", limit=1)
        for item, member in (("frees", "a#m0"), ("moves", "a#m1")):
            cluster.put_item(item, int(item == "moves"))
            cluster.assign(item, f"{member}:4")
        cluster.put_item("takes", 1)
        cluster.put_item("other", 1)
        cluster.desired = {"moves": ("a#m1",), "takes": ("a#m0",), "other": ("a#m2",)}
        [batch] = converge(cluster.state, cluster.desired, each_by_itself)
        assert {change.item: (change.frees, change.fills) for change in batch.changes} == {
            "frees": ({"a#m0"}, set()),
            "moves": (set(), set()),
            "takes": (set(), {"a#m0"}),
            "other": (set(), {"a#m2"}),
        }
        kept = batch.without_adding_to({"a#m0", "a#m1"})
        assert [change.item for change in kept.changes] == ["frees", "moves", "other"]

    def test_are_none_without_a_leader_or_anything_to_do(self) -> None:
        cluster = cluster_of(item=1)
        assert cluster.plan() == []
        cluster.join("a#m0", 1)
        cluster.settle()
        assert cluster.step() == []


class TestDraining:
    def test_a_replica_is_handed_over_without_ever_having_fewer(self) -> None:
        cluster = cluster_of("a#m0", "a#m1", "b#m2", "b#m3", item=3)
        cluster.settle()
        leaving = cluster.assigned["i"][0].partition(":")[0]
        cluster.change_member(leaving, 10, exiting=True)
        cluster.solve()
        counts = []
        while cluster.step():
            counts.append(len(cluster.assigned["i"]))
            cluster.catch_up()
        assert counts == [4, 3, 3, 3]
        assert leaving not in str(cluster.assigned)

    def test_the_leader_drains_itself(self) -> None:
        cluster = cluster_of("a#leader", "a#m1", item=1)
        cluster.assign("i", "a#leader:0")
        cluster.change_member("a#leader", 10, exiting=True)
        cluster.settle()
        assert cluster.assigned["i"] == ["a#m1:0"]
        cluster.leave("a#leader")
        assert cluster.settle() == 0

    def test_of_two_that_exit_the_older_goes_first_if_only_one_can(self) -> None:
        cluster = cluster_of("a#older", "a#younger", "a#stays", item=2)
        cluster.settle()
        for member in ("a#younger", "a#older"):
            cluster.change_member(member, 10, exiting=True)
        cluster.settle()
        assert sorted(each.partition(":")[0] for each in cluster.assigned["i"]) == ["a#stays", "a#younger"]
        cluster.leave("a#older")
        assert cluster.settle() == 0
        cluster.join("a#new", 10)
        cluster.settle()
        assert sorted(each.partition(":")[0] for each in cluster.assigned["i"]) == ["a#new", "a#stays"]

    def test_all_but_one_can_drain_at_once(self) -> None:
        cluster = cluster_of(*(f"a#m{at}" for at in range(6)))
        for at in range(9):
            cluster.put_item(f"i{at}", 1)
        cluster.settle()
        for at in range(6):
            cluster.change_member(f"a#m{at}", 10, exiting=True)
        cluster.settle()
        assert cluster.state.totals == [0, 0, 0, 0, 0, 9]


def test_a_dead_members_assignments_that_remain_are_replaced() -> None:
    """They go with its lease, but another's tool may have written one without."""
    cluster = cluster_of("a#m0", "a#m1", item=2)
    cluster.assign("i", "a#m0:1")
    cluster.keys.put(Put(key("z#gone", 0), CAUGHT_UP))
    cluster.settle()
    assert cluster.assigned["i"] == ["a#m0:0", "a#m1:1"]
