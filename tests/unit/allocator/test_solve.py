from __future__ import annotations

import pytest

from allocator.solve import Desired, desired_assignment
from allocator.transaction import Put
from tests.support.allocation import Cluster, Quality, golden_cluster, zone_of
from tests.support.golden import Case, case_id, cases
from tests.support.push_relabel import gazette_assignment


def cluster_of(members: dict[str, int], items: dict[str, int]) -> Cluster:
    cluster = Cluster()
    for member, limit in members.items():
        cluster.join(member, limit)
    for item, replication in items.items():
        cluster.put_item(item, replication)
    return cluster


def items(count: int, replication: int) -> dict[str, int]:
    return {f"i{at:03}": replication for at in range(count)}


def by_slot(cluster: Cluster) -> dict[str, list[str]]:
    """Members by item without their zones, the primary first."""
    return {
        item: [each.partition("#")[2].partition(":")[0] for each in sorted(held, key=lambda each: each.split(":")[1])]
        for item, held in cluster.assigned.items()
    }


def loads(desired: Desired) -> dict[str, int]:
    count: dict[str, int] = {}
    for held in desired.values():
        for member in held:
            count[member] = count.get(member, 0) + 1
    return count


class TestGolden:
    """Our choice may differ from Gazette's among equally good ones, but never be a worse one."""

    @pytest.mark.parametrize("case", cases("allocator", "solve"), ids=case_id)
    def test_an_assignment_is_never_worse_than_that_of_gazette(self, case: Case) -> None:
        state = golden_cluster(case["input"]).state
        ours = Quality.of(state, desired_assignment(state))
        theirs = Quality.of(state, golden_desired(case))
        assert (theirs.unmet_replicas, theirs.single_zone_items) == (
            case["quality"]["unmet_replicas"],
            case["quality"]["single_zone_items"],
        )
        assert ours.flaws <= theirs.flaws
        assert ours.members_over_limit == 0
        assert ours.moved <= theirs.moved
        assert ours.most_loaded <= theirs.most_loaded
        assert ours.least_loaded >= theirs.least_loaded

    @pytest.mark.parametrize("case", cases("allocator", "solve"), ids=case_id)
    def test_what_is_desired_stays_so_once_it_is_there(self, case: Case) -> None:
        cluster = golden_cluster(case["input"])
        desired = desired_assignment(cluster.state)
        for key in [kv.key for kv in cluster.keys.key_values if kv.key.startswith("/root/assign/")]:
            cluster.keys.delete([key])
        for item, held in desired.items():
            cluster.assign(item, *(f"{member}:{slot}" for slot, member in enumerate(held)))
        assert desired_assignment(cluster.state) == desired

    @pytest.mark.parametrize("case", cases("allocator", "solve"), ids=case_id)
    def test_the_model_of_the_peer_that_ours_is_compared_with_is_exact(self, case: Case) -> None:
        assert gazette_assignment(golden_cluster(case["input"]).state) == golden_desired(case)


def golden_desired(case: Case) -> Desired:
    return {item: tuple(each.replace("/", "#") for each in held) for item, held in case["desired"].items() if held}


class TestAppendixC:
    def test_1_limits_are_used_up(self) -> None:
        cluster = cluster_of({"a#A1": 2, "a#A2": 2, "b#B": 4}, {"i1": 1, "i2": 2, "i3": 3})
        assert cluster.settle() == 1
        assert by_slot(cluster) == {"i1": ["A1"], "i2": ["A2", "B"], "i3": ["A1", "A2", "B"]}

    def test_2_all_members_hold_what_needs_all_of_them(self) -> None:
        cluster = cluster_of({"a#A1": 1024, "a#A2": 1024, "b#B1": 1024}, items(7, 3))
        assert cluster.settle() == 1
        assert set(map(tuple, by_slot(cluster).values())) == {("A1", "A2", "B1")}

    def test_3_members_join_one_by_one(self) -> None:
        cluster = cluster_of({"a#A1": 1}, {"i1": 1, "i2": 2, "i3": 3})
        cluster.settle()
        assert by_slot(cluster) == {"i1": ["A1"]}
        cluster.join("a#A2", 2)
        cluster.settle()
        assert by_slot(cluster) == {"i1": ["A2"], "i2": ["A2", "A1"]}
        cluster.join("a#A3", 3)
        cluster.settle()
        assert by_slot(cluster) == {"i1": ["A3"], "i2": ["A2", "A3"], "i3": ["A3", "A1", "A2"]}

    def test_4_a_small_member_in_a_second_zone_is_filled(self) -> None:
        cluster = cluster_of({"a#A1": 100, "a#A2": 100, "a#A3": 100}, items(3, 3))
        cluster.settle()
        for limit in (2, 3):
            if limit == 2:
                cluster.join("b#B", limit)
            else:
                cluster.change_member("b#B", limit)
            cluster.settle()
            held = list(by_slot(cluster).values())
            assert [len(each) for each in held] == [3, 3, 3]
            assert sum("B" in each for each in held) == limit
        cluster.put_item("i9", 1)
        cluster.settle()
        assert by_slot(cluster)["i9"][0].startswith("A")

    def test_5_a_member_gets_nothing_while_all_are_fairly_loaded(self) -> None:
        cluster = cluster_of({"a#A1": 3, "a#A2": 2, "a#A3": 1}, {"i1": 1, "i2": 2, "i3": 3})
        cluster.settle()
        before = by_slot(cluster)
        assert before == {"i1": ["A1"], "i2": ["A1", "A2"], "i3": ["A1", "A2", "A3"]}
        cluster.join("a#A4", 1)
        assert cluster.settle() == 0
        cluster.change_member("a#A4", 3)
        assert Quality.of(cluster.state, desired_assignment(cluster.state)).moved == 1
        cluster.settle()
        assert sum("A4" in held for held in by_slot(cluster).values()) == 1

    def test_6_what_a_dead_member_held_goes_to_those_that_are_left(self) -> None:
        cluster = cluster_of({"a#A1": 4, "a#A2": 2, "a#A3": 1, "b#B1": 4}, {"i1": 1, "i2": 2, "i3": 3})
        cluster.assign("i1", "a#A1:0")
        cluster.assign("i2", "b#B1:0", "a#A2:1")
        cluster.assign("i3", "a#A3:0", "b#B1:1", "a#A1:2")
        assert cluster.settle() == 0
        cluster.leave("b#B1")
        assert cluster.settle() == 3
        assert by_slot(cluster) == {"i1": ["A1"], "i2": ["A2", "A1"], "i3": ["A3", "A1", "A2"]}

    def test_7_exiting_members_drain(self) -> None:
        cluster = cluster_of({"a#A2": 4, "a#A1": 4, "b#B1": 4, "b#B2": 4}, items(4, 1))
        cluster.settle()
        for member in ("a#A1", "b#B1"):
            cluster.change_member(member, 4, exiting=True)
        cluster.settle()
        assert sorted(member for held in by_slot(cluster).values() for member in held) == ["A2", "A2", "B2", "B2"]


class TestBalance:
    def test_equal_members_are_loaded_alike(self) -> None:
        cluster = cluster_of({f"{'abc'[at % 3]}#m{at}": 100 for at in range(9)}, items(60, 3))
        assert set(loads(desired_assignment(cluster.state)).values()) == {20}

    def test_unequal_members_are_loaded_in_proportion(self) -> None:
        cluster = cluster_of({"a#m0": 10, "a#m1": 20, "b#m2": 30, "b#m3": 60}, items(60, 1))
        assert loads(desired_assignment(cluster.state)) == {"a#m0": 5, "a#m1": 10, "b#m2": 15, "b#m3": 30}

    def test_a_fourth_of_three_equal_members_takes_a_fourth_from_each(self) -> None:
        cluster = cluster_of({f"a#m{at}": 100 for at in range(3)}, items(40, 3))
        cluster.settle()
        cluster.join("a#m3", 100)
        desired = desired_assignment(cluster.state)
        assert set(loads(desired).values()) == {30}
        assert Quality.of(cluster.state, desired).moved == 30

    def test_a_zone_that_is_not_needed_moves_nothing_but_fair_shares(self) -> None:
        cluster = cluster_of({"a#m0": 100, "a#m1": 100, "b#m2": 100, "b#m3": 100}, items(30, 2))
        cluster.settle()
        cluster.join("c#m4", 100)
        desired = desired_assignment(cluster.state)
        assert set(loads(desired).values()) == {12}
        assert Quality.of(cluster.state, desired).moved == 12

    def test_zones_matter_more_than_balance(self) -> None:
        cluster = cluster_of({"a#m0": 100, "a#m1": 100, "a#m2": 100, "b#m3": 100}, items(30, 2))
        desired = desired_assignment(cluster.state)
        assert loads(desired) == {"a#m0": 10, "a#m1": 10, "a#m2": 10, "b#m3": 30}

    def test_of_members_beyond_their_fair_share_each_takes_what_its_limit_allows(self) -> None:
        members = {f"a#m{at}": 40 for at in range(8)} | {"b#small": 10, "b#large": 30}
        desired = desired_assignment(cluster_of(members, items(20, 2)).state)
        assert (loads(desired)["b#small"], loads(desired)["b#large"]) == (5, 15)

    def test_replicas_are_in_as_many_zones_as_there_are(self) -> None:
        members = {f"{zone}#m{zone}{at}": 100 for zone in "abc" for at in range(3)}
        desired = desired_assignment(cluster_of(members, items(30, 3)).state)
        assert all(sorted(map(zone_of, held)) == ["a", "b", "c"] for held in desired.values())


class TestPrimaries:
    """Somebody else would have to become one, and be told by everybody."""

    @pytest.mark.parametrize("primary", ["a#m0", "a#m1", "b#m2"])
    def test_stay_when_another_replica_can_go_as_well(self, primary: str) -> None:
        members = ["a#m0", "a#m1", "b#m2"]
        cluster = cluster_of(dict.fromkeys(members, 9), {"i": 1})
        others = [member for member in members if member != primary]
        cluster.assign("i", f"{primary}:0", f"{others[0]}:1", f"{others[1]}:2")
        assert desired_assignment(cluster.state)["i"] == (primary,)

    @pytest.mark.parametrize("primary", ["a#m0", "a#m1"])
    def test_stay_when_another_replica_can_go_to_a_second_zone(self, primary: str) -> None:
        cluster = cluster_of({"a#m0": 9, "a#m1": 9, "b#m2": 9}, {"i": 2})
        other = "a#m1" if primary == "a#m0" else "a#m0"
        cluster.assign("i", f"{primary}:0", f"{other}:1")
        assert desired_assignment(cluster.state)["i"] == (primary, "b#m2")


class TestShortage:
    def test_the_first_items_are_served(self) -> None:
        cluster = cluster_of({"a#m0": 2, "b#m1": 2, "b#m2": 2}, items(4, 2))
        assert list(desired_assignment(cluster.state)) == ["i000", "i001", "i002"]

    def test_replicas_share_a_zone_rather_than_be_missing(self) -> None:
        cluster = cluster_of({"a#m0": 9, "a#m1": 9, "b#m2": 1}, items(3, 2))
        quality = Quality.of(cluster.state, desired_assignment(cluster.state))
        assert (quality.unmet_replicas, quality.single_zone_items) == (0, 2)

    def test_no_member_is_given_more_than_its_limit_however_many_items_need_it(self) -> None:
        cluster = cluster_of({"a#m0": 3, "a#m1": 100}, items(9, 2))
        assert loads(desired_assignment(cluster.state)) == {"a#m0": 3, "a#m1": 9}

    def test_a_cluster_without_members_desires_nothing(self) -> None:
        assert desired_assignment(cluster_of({}, items(3, 2)).state) == {}

    def test_members_without_a_limit_hold_nothing(self) -> None:
        cluster = cluster_of({"a#m0": 5, "b#m1": 5}, items(2, 1))
        cluster.settle()
        cluster.change_member("b#m1", 0)
        assert set(loads(desired_assignment(cluster.state))) == {"a#m0"}
        cluster.change_member("a#m0", 0)
        assert desired_assignment(cluster.state) == {}


class TestRoomIsFoundByMovingOthers:
    def test_an_item_that_can_go_elsewhere_makes_way_for_one_that_cannot(self) -> None:
        cluster = cluster_of({"a#m0": 1, "b#m1": 1}, {"free": 1})
        cluster.assign("free", "a#m0:0")
        cluster.put_item("pinned", 1, zones={"a"})
        assert desired_assignment(cluster.state) == {"free": ("b#m1",), "pinned": ("a#m0",)}

    def test_along_a_chain_of_items(self) -> None:
        cluster = cluster_of({"a#m0": 1, "b#m1": 1, "c#m2": 1}, {})
        cluster.put_item("1", 1, zones={"a", "b"})
        cluster.put_item("2", 1, zones={"b", "c"})
        cluster.assign("1", "a#m0:0")
        cluster.assign("2", "b#m1:0")
        cluster.put_item("3", 1, zones={"a"})
        assert desired_assignment(cluster.state) == {"1": ("b#m1",), "2": ("c#m2",), "3": ("a#m0",)}

    def test_one_replica_moves_to_another_zone_by_trading_places(self) -> None:
        """Both zones are full, and nobody may hold a third."""
        cluster = cluster_of({"a#m0": 1, "a#m1": 1, "b#m2": 1, "b#m3": 1}, items(2, 2))
        cluster.assign("i000", "a#m0:0", "a#m1:1")
        cluster.assign("i001", "b#m2:0", "b#m3:1")
        quality = Quality.of(cluster.state, desired_assignment(cluster.state))
        assert (quality.unmet_replicas, quality.single_zone_items, quality.moved) == (0, 0, 2)


THREE_ZONES = {f"{zone}#{zone}{at}": 20 for zone in "abc" for at in range(2)}


class TestMoves:
    """Cases in which the first repair that comes to mind moves one replica too many."""

    def moved(self, members: dict[str, int], **held: tuple[int, str]) -> int:
        """`held` gives the replication of an item and the numbers of members that hold it now."""
        cluster = cluster_of(members, {item: count for item, (count, _) in held.items()})
        for item, (_, holders) in held.items():
            for slot, holder in enumerate(holders):
                cluster.assign(item, f"{list(members)[int(holder)]}:{slot}")
        return Quality.of(cluster.state, desired_assignment(cluster.state)).moved

    def test_an_item_that_drops_one_of_two_replicas_drops_the_one_that_is_in_the_way(self) -> None:
        members = {"a#m0": 2, "b#m1": 3}
        assert self.moved(members, i0=(1, "01"), i1=(1, "0"), i2=(1, "01"), i3=(0, ""), i4=(2, "1")) == 1

    def test_a_replica_goes_back_when_a_later_repair_has_made_room_for_it(self) -> None:
        assert self.moved({"a#m0": 1, "a#m1": 2, "b#m2": 3}, i0=(2, "0"), i1=(0, "0"), i2=(2, "01")) == 2

    def test_what_was_full_is_tried_again_once_it_is_not(self) -> None:
        members = {"a#m0": 1, "a#m1": 1, "a#m2": 4}
        assert self.moved(members, i0=(2, "01"), i1=(0, ""), i2=(3, "0"), i3=(1, "0")) == 3

    def test_of_replicas_in_two_zones_the_one_that_is_not_alone_is_dropped(self) -> None:
        members = {"a#m0": 4, "a#m1": 4, "b#m2": 1}
        assert self.moved(members, i0=(1, "02"), i1=(2, "01"), i2=(2, "012"), i3=(1, ""), i4=(0, "")) == 1

    def test_those_who_lose_all_replicas_lose_them_first(self) -> None:
        cluster = cluster_of({"a#m0": 1, "b#m1": 4, "b#m2": 1}, {"i0": 3, "i1": 1, "i2": 2, "i3": 1})
        cluster.assign("i1", "a#m0:0", "b#m2:1")
        cluster.assign("i2", "a#m0:0", "b#m1:1", "b#m2:2")
        cluster.assign("i3", "a#m0:0")
        assert Quality.of(cluster.state, desired_assignment(cluster.state)).single_zone_items == 0

    def test_a_replica_is_taken_back_but_once(self) -> None:
        members = {f"{'b' if at else 'a'}#m{at}": 8 if at == 7 else 4 for at in range(8)}
        cluster = cluster_of(members, {})
        held = ["123", "456", "127", "345", "", "67", "1", "2", "", "3", "23567"]
        for at, (count, holders) in enumerate(zip((3, 3, 3, 3, 3, 2, 1, 1, 0, 1, 5), held, strict=True)):
            cluster.put_item(f"i{at:02}", count, {0: {"b"}, 4: {"a"}}.get(at))
            for slot, holder in enumerate(holders):
                cluster.assign(f"i{at:02}", f"{list(members)[int(holder)]}:{slot}")
        desired = desired_assignment(cluster.state)
        assert all(len(set(holders)) == len(holders) for holders in desired.values())
        assert Quality.of(cluster.state, desired).moved == 4


class TestItemZones:
    def test_replicas_are_only_where_they_may_be(self) -> None:
        cluster = cluster_of(THREE_ZONES, {})
        for at, zones in enumerate([{"a"}, {"b"}, {"a", "c"}, {"a", "b", "c"}, None] * 4):
            cluster.put_item(f"i{at:03}", 2, zones)
        state = cluster.state
        desired = desired_assignment(state)
        for kv in state.items:
            allowed, held = kv.value.value.zones, desired[kv.value.id]
            assert len(held) == 2
            assert allowed is None or {zone_of(member) for member in held} <= allowed
            if allowed is None or len(allowed) > 1:
                assert len({zone_of(member) for member in held}) == 2

    def test_replicas_move_when_they_may_no_longer_be_where_they_are(self) -> None:
        cluster = cluster_of(THREE_ZONES, {"i": 2})
        cluster.assign("i", "a#a0:0", "b#b0:1")
        cluster.put_item("i", 2, {"b", "c"})
        cluster.settle()
        assert {zone_of(each) for each in cluster.assigned["i"]} == {"b", "c"}
        assert any(each.startswith("b#b0:") for each in cluster.assigned["i"])

    @pytest.mark.parametrize("zones", [{"nowhere"}, set()])
    def test_an_item_that_may_be_nowhere_keeps_what_it_has(self, zones: set[str]) -> None:
        cluster = cluster_of(THREE_ZONES, {"i": 2})
        cluster.settle()
        before = cluster.assigned
        cluster.put_item("i", 2, zones)
        assert desired_assignment(cluster.state) == {}
        assert cluster.settle() == 0
        assert cluster.assigned == before

    def test_other_items_leave_a_zone_to_those_that_may_only_be_there(self) -> None:
        cluster = cluster_of({"a#m0": 4, "b#m1": 4}, items(4, 1))
        for at in range(4):
            cluster.assign(f"i{at:03}", "a#m0:0")
        for at in range(4):
            cluster.put_item(f"pinned{at}", 1, {"a"})
        desired = desired_assignment(cluster.state)
        assert [desired[f"pinned{at}"] for at in range(4)] == [("a#m0",)] * 4
        assert [desired[f"i{at:03}"] for at in range(4)] == [("b#m1",)] * 4

    @pytest.mark.parametrize("zones", [{"nowhere"}, {"a"}, {"a", "nowhere"}])
    def test_what_has_no_place_anywhere_is_kept_from_nobody_else(self, zones: set[str]) -> None:
        """There is too little room for all, and the first ask for more than their zone has."""
        cluster = cluster_of({"a#m0": 2, "b#m1": 6}, {})
        for at in range(9):
            cluster.put_item(f"bound{at}", 1, zones)
        for at in range(6):
            cluster.put_item(f"free{at}", 1)
        desired = desired_assignment(cluster.state)
        assert sum(item.startswith("free") for item in desired) == 6
        assert sum(item.startswith("bound") for item in desired) == (2 if "a" in zones else 0)
        cluster.settle()
        assert desired_assignment(cluster.state) == desired


class TestSurplus:
    def test_a_lower_replication_keeps_what_leaves_loads_even(self) -> None:
        cluster = cluster_of({"a#m0": 8, "a#m2": 8, "b#m1": 8}, items(8, 2))
        for at in range(8):
            cluster.assign(f"i{at:03}", "a#m2:0" if at % 4 == 3 else "a#m0:0", "b#m1:1")
        for item in items(8, 1):
            cluster.put_item(item, 1)
        desired = desired_assignment(cluster.state)
        assert Quality.of(cluster.state, desired).moved == 0
        assert max(loads(desired).values()) == 3

    def test_the_second_zone_is_not_given_up(self) -> None:
        cluster = cluster_of({"a#m0": 9, "a#m1": 9, "b#m2": 9}, {"i": 2})
        cluster.assign("i", "a#m0:0", "a#m1:1", "b#m2:2")
        for at in range(6):
            cluster.put_item(f"other{at}", 1)
            cluster.assign(f"other{at}", "b#m2:0")
        assert len({zone_of(member) for member in desired_assignment(cluster.state)["i"]}) == 2

    def test_an_item_that_wants_no_replica_gets_none(self) -> None:
        cluster = cluster_of({"a#m0": 9}, {"i": 0})
        cluster.assign("i", "a#m0:0")
        assert desired_assignment(cluster.state) == {}


def test_strange_assignments_are_no_obstacle() -> None:
    """To one member twice, and to one that does not exist."""
    cluster = cluster_of({"a#m0": 5, "b#m1": 5}, {"i": 2})
    cluster.assign("i", "a#m0:0", "a#m0:7")
    cluster.keys.put(Put("/root/assign/i#z#stranger#3", b""))
    assert desired_assignment(cluster.state) == {"i": ("a#m0", "b#m1")}
    cluster.settle()
    assert cluster.assigned == {"i": ["a#m0:0", "b#m1:1"]}


def test_two_leaders_desire_the_same() -> None:
    def desired() -> Desired:
        cluster = cluster_of({f"{'ab'[at % 2]}#m{at}": 9 + at for at in range(7)}, items(25, 2))
        cluster.settle()
        cluster.leave("b#m3")
        cluster.change_member("a#m2", 3)
        return desired_assignment(cluster.state)

    assert desired() == desired()
