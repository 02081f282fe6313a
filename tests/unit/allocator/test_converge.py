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
    Cluster,
    ItemSpec,
    MemberSpec,
    all_or_nothing,
    cluster_of,
    each_by_itself,
    key,
    mod,
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
