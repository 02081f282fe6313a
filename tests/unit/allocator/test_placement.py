from __future__ import annotations

from allocator.augmenting_path import AugmentingPaths
from allocator.placement import NOBODY, Placement, Problem


def placement_of(*current: list[int], limits: list[int], zones: list[int] | None = None, wanted: int = 1) -> Placement:
    """Of items of one replica or more, and members that are all in one zone unless told."""
    zone_of = zones or [0] * len(limits)
    every = tuple(sorted(set(zone_of)))
    return Placement(
        Problem(
            zone_of=zone_of,
            limits=limits,
            fair=limits,
            members=[[at for at, own in enumerate(zone_of) if own == zone] for zone in every],
            wanted=[wanted] * len(current),
            zones=[every] * len(current),
            current=current,
        )
    )


class TestLightest:
    def test_is_the_least_loaded_that_has_room(self) -> None:
        placement = placement_of([0], [0], [1], limits=[9, 9, 0])
        assert placement.lightest(0, without=()) == 1
        assert placement.lightest(0, without=(1,)) == 0
        assert placement.lightest(0, without=(0, 1)) == NOBODY

    def test_follows_every_change_of_load(self) -> None:
        placement = placement_of([0], [0], [0], [1], [], limits=[3, 3])
        assert placement.lightest(0, ()) == 1
        for item in (0, 1):
            placement.change(item, 0, 1)
        assert placement.lightest(0, ()) == 0
        placement.change(2, 0, NOBODY)
        placement.change(4, NOBODY, 0)
        placement.change(4, 0, NOBODY)
        assert (placement.load, placement.lightest(0, ())) == ([0, 3], 0)

    def test_is_found_again_after_it_was_full(self) -> None:
        placement = placement_of([0], [0], [], limits=[2])
        assert placement.lightest(0, ()) == NOBODY
        placement.change(0, 0, NOBODY)
        assert placement.lightest(0, ()) == 0


class TestGroups:
    def test_hold_items_by_where_they_could_go(self) -> None:
        placement = placement_of([0, 2], [0, 3], [0, 1], limits=[9] * 4, zones=[0, 0, 1, 1], wanted=2)
        groups = {(each.somewhere, each.spread): list(items) for each, items in placement.items_of(0, True).items()}
        # The third is in one zone, so that it would span two if it went to the other.
        assert groups == {((0, 1), ()): [0, 1], ((1,), (1,)): [2]}
        assert placement.items_of(0, is_kept=False) == {}

    def test_follow_every_change(self) -> None:
        placement = placement_of([0], [0], limits=[9, 9])
        placement.items_of(0, is_kept=True)
        placement.change(0, 0, 1)
        assert [list(items) for items in placement.items_of(0, is_kept=True).values()] == [[1]]
        assert [list(items) for items in placement.items_of(1, is_kept=False).values()] == [[0]]
        placement.change(0, 1, 0)
        assert [list(items) for items in placement.items_of(0, is_kept=True).values()] == [[1, 0]]
        assert not placement.astray


class TestAugmentingPaths:
    def test_lead_over_as_many_members_as_it_takes(self) -> None:
        """Items 1 and 2 have two zones each, so that the way for item 0 is from zone to zone."""
        placement = Placement(
            Problem(
                zone_of=[0, 1, 2],
                limits=[1, 1, 1],
                fair=[1, 1, 1],
                members=[[0], [1], [2]],
                wanted=[1, 1, 1],
                zones=[(0,), (0, 1), (1, 2)],
                current=[[], [0], [1]],
            )
        )
        assert AugmentingPaths(placement).place(0)
        assert placement.held == [[0], [1], [2]]

    def test_lead_nowhere_when_all_are_full_and_are_not_looked_for_twice(self) -> None:
        placement = placement_of([0], [1], [], [], limits=[1, 1])
        paths = AugmentingPaths(placement)
        assert not paths.place(2)
        assert not paths.is_hopeful(0)
        assert not paths.place(3)
        placement.change(0, 0, NOBODY)
        paths.vacated(0)
        assert paths.place(3)
        assert placement.held == [[], [1], [], [0]]

    def test_move_nothing_that_is_where_it_was_if_they_are_to_be_cheap(self) -> None:
        placement = placement_of([0], [0], limits=[1, 1])
        assert not AugmentingPaths(placement, cheap=True).relieve(0)
        assert AugmentingPaths(placement).relieve(0)
        assert sorted(placement.held) == [[0], [1]]

    def test_move_what_was_placed_anew_before_what_was_there(self) -> None:
        placement = placement_of([0], [], limits=[1, 1])
        placement.change(1, NOBODY, 0)
        assert AugmentingPaths(placement).relieve(0)
        assert placement.held == [[0], [1]]

    def test_never_take_an_item_into_one_zone_by_moving_two_of_its_replicas(self) -> None:
        """Item 0 could return to member 1, and from member 4 go to member 3: but it is with member 2 already."""
        placement = Placement(
            Problem(
                zone_of=[0, 1, 1, 1, 2],
                limits=[1, 1, 1, 2, 1],
                fair=[1, 1, 1, 2, 1],
                members=[[0], [1, 2, 3], [4]],
                wanted=[3, 2, 1],
                zones=[(0, 1, 2), (0, 1, 2), (0,)],
                current=[[0, 1, 2], [], [0]],
            )
        )
        placement.change(0, 1, 4)
        placement.change(1, NOBODY, 1)
        placement.change(1, NOBODY, 3)
        AugmentingPaths(placement).relieve(0)
        assert not placement.is_in_one_zone(0)
