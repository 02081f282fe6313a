"""The limit of a batch is passed by less than a cut, shares are fair, and nobody waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_readers.admission import Cut, admit, refined, shares, straddled

COSTS = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(1, 50), min_size=1, max_size=12), min_size=1)


def cuts_of(costs: list[int]) -> list[Cut]:
    return [Cut(sum(costs[: at + 1]), cost) for at, cost in enumerate(costs)]


@given(COSTS, st.integers(1, 300), st.sampled_from(["", *"abcdefghz"]))
def test_the_limit_is_used_up_and_passed_by_less_than_one_cut(
    costs: dict[str, list[int]], limit: int, turn: str
) -> None:
    waiting = {journal: cuts_of(of) for journal, of in costs.items()}
    ends, _ = admit(waiting, limit, turn)
    taken = sum(ends.values())
    total = sum(map(sum, costs.values()))
    assert taken >= min(limit, total)
    # Without the last cut of some journal it would be below the limit.
    last = [next(cut.cost for cut in waiting[journal] if cut.end == end) for journal, end in ends.items()]
    assert taken <= limit or taken - max(last) < limit
    for journal, end in ends.items():
        assert end in [cut.end for cut in waiting[journal]]


@given(COSTS, st.integers(1, 300), st.sampled_from(["", *"abcdefghz"]))
def test_each_has_what_its_share_is_good_for(costs: dict[str, list[int]], limit: int, turn: str) -> None:
    waiting = {journal: cuts_of(of) for journal, of in costs.items()}
    total = sum(map(sum, costs.values()))
    ends, _ = admit(waiting, limit, turn)
    for journal, of in costs.items():
        share = min(sum(of), limit * sum(of) // total)
        reached = max((cut.end for cut in waiting[journal] if cut.end <= share), default=0)
        assert ends.get(journal, 0) >= reached


@given(COSTS, st.integers(1, 300))
def test_every_journal_has_its_turn_before_another_has_had_two_for_nothing(
    costs: dict[str, list[int]], limit: int
) -> None:
    """While others are written to without end, none waits for more batches than there are journals."""
    turn = ""
    waited = dict.fromkeys(costs, 0)
    at = dict.fromkeys(costs, 0)
    for _ in range(30):
        # Each has its costs over and over again, so that it always has as much left.
        waiting = {}
        for journal, of in costs.items():
            turned = of[at[journal] % len(of) :] + of[: at[journal] % len(of)]
            waiting[journal] = cuts_of(turned)
        ends, turn = admit(waiting, limit, turn)
        assert ends
        for journal in costs:
            waited[journal] = 0 if journal in ends else waited[journal] + 1
            assert waited[journal] < len(costs)
            at[journal] += next((n + 1 for n, cut in enumerate(waiting[journal]) if cut.end == ends.get(journal)), 0)


def test_a_large_backlog_does_not_starve_a_small_one() -> None:
    waiting = {"large": cuts_of([10] * 90), "small": cuts_of([10] * 10)}
    assert admit(waiting, 100, "").ends == {"large": 90, "small": 10}
    assert shares(waiting, 100) == {"large": 90, "small": 10}
    assert admit(waiting, None, "").ends == {"large": 900, "small": 100}


def test_where_a_fragment_is_longer_than_the_share_its_frames_are_cuts() -> None:
    cuts = cuts_of([100, 400, 50])
    assert straddled(cuts, 99) == 0
    assert straddled(cuts, 100) == 1
    assert straddled(cuts, 550) == 3
    assert refined(cuts, 1, [0, 100, 200, 350, 500, 510]) == [
        Cut(100, 100),
        Cut(200, 100),
        Cut(350, 150),
        Cut(500, 150),
        Cut(550, 50),
    ]
