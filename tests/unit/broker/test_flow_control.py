"""FlowControl: A-16 and A-17, by example and for whatever comes when."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.flow_control import BURST_S, CREDIT_S, FlowControl, effective_max_rate

MAX, MIN = 1_000, 100
# Of times that are sums of floats.
NEARLY = 1e-6


def begun(max_rate: int = 0, min_rate: int = 0, now_s: float = 0.0) -> FlowControl:
    flow = FlowControl()
    flow.begin(max_rate, min_rate, now_s)
    return flow


@pytest.mark.parametrize(
    ("spec_rate", "broker_rate", "rate"),
    [
        pytest.param(0, 0, 0, id="neither"),
        pytest.param(100, 0, 100, id="the journal's alone"),
        pytest.param(100, 50, 50, id="the broker's is less"),
        pytest.param(100, 200, 100, id="the journal's is less"),
        pytest.param(100, 100, 100, id="the same"),
        pytest.param(0, 50, 0, id="a journal without one is not limited by the broker"),
    ],
)
def test_the_lesser_of_two_rates_counts_if_the_journal_has_one(spec_rate: int, broker_rate: int, rate: int) -> None:
    assert effective_max_rate(spec_rate, broker_rate) == rate


# The greatest rate.


def test_a_journal_begins_with_what_one_second_allows() -> None:
    flow = begun(MAX)
    assert flow.arrived(int(MAX * CREDIT_S), 0.0) == 0
    assert flow.arrived(MAX // 2, 0.0) == 0.5


def test_without_a_greatest_rate_nothing_is_held_back() -> None:
    flow = begun(max_rate=0, min_rate=MIN)
    assert [flow.arrived(1 << 40, 0.0) for _ in range(3)] == [0, 0, 0]


def test_n_seconds_worth_of_bytes_take_n_less_one_seconds() -> None:
    flow, now_s = begun(MAX), 0.0
    for _ in range(8 * 4):
        now_s += flow.arrived(MAX // 4, now_s)
    assert now_s == pytest.approx(7)


def test_a_chunk_beyond_any_burst_is_held_back_until_it_is_paid_for() -> None:
    assert begun(MAX).arrived(100 * MAX, 0.0) == 99


@pytest.mark.parametrize("idle_s", [BURST_S, 3600.0])
def test_an_idle_journal_saves_up_ten_seconds_and_no_more(idle_s: float) -> None:
    flow = begun(MAX)
    assert flow.arrived(MAX, 0.0) == 0
    flow.begin(MAX, 0, idle_s)
    assert flow.arrived(int(MAX * BURST_S), idle_s) == 0
    assert flow.arrived(MAX, idle_s) == 1


def test_what_an_append_used_up_is_missing_to_the_next_one() -> None:
    flow = begun(MAX)
    assert flow.arrived(MAX, 0.0) == 0
    flow.begin(MAX, 0, 0.25)
    assert flow.arrived(MAX, 0.25) == 0.75


def test_a_lesser_rate_takes_away_what_was_saved_up_for_a_greater_one() -> None:
    flow = begun(MAX)
    flow.begin(MAX, 0, 60.0)
    flow.begin(MAX // 10, 0, 60.0)
    assert flow.arrived(MAX, 60.0) == 0
    assert flow.arrived(MAX // 10, 60.0) == 1


def test_once_the_journal_is_to_change_hands_the_rest_of_the_append_is_not_held_back() -> None:
    flow = begun(MAX)
    assert flow.arrived(50 * MAX, 0.0) == 49
    flow.unlimited()
    assert [flow.arrived(50 * MAX, 0.0) for _ in range(3)] == [0, 0, 0]


def test_what_passed_without_limit_is_not_charged_to_the_next_append() -> None:
    flow = begun(MAX)
    flow.arrived(50 * MAX, 0.0)
    flow.unlimited()
    flow.arrived(50 * MAX, 0.0)
    flow.begin(MAX, 0, 0.5)
    assert flow.arrived(MAX, 0.5) == 0.5


def test_a_flow_that_has_not_begun_can_be_without_limit() -> None:
    flow = FlowControl()
    flow.unlimited()
    flow.begin(MAX, MIN, 5.0)
    assert flow.arrived(MAX, 5.0) == 0


def test_an_append_that_was_dropped_while_held_back_leaves_no_debt() -> None:
    flow = begun(MAX)
    assert flow.arrived(10_000 * MAX, 0.0) > 9_000
    # Its client went away, and nothing of it was passed on.
    flow.begin(MAX, 0, 1.0)
    assert flow.arrived(MAX, 1.0) <= 1


@dataclass(frozen=True)
class Step:
    gap_s: float
    count: int
    # Whether it is the first chunk of another append.
    begins: bool


steps = st.lists(
    st.builds(
        Step,
        gap_s=st.floats(0, 30, allow_nan=False),
        count=st.integers(0, 40 * MAX),
        begins=st.booleans(),
    ),
    max_size=40,
)


def passages(taken: list[Step], max_rate: int) -> list[tuple[float, int]]:
    """When chunks were passed on, if each is sent at its time or once the one before it has gone."""
    flow, now_s, passed = begun(max_rate), 0.0, []
    for step in taken:
        now_s += step.gap_s
        if step.begins:
            flow.begin(max_rate, 0, now_s)
        pause_s = flow.arrived(step.count, now_s)
        assert 0 <= pause_s <= step.count / max_rate + NEARLY, "nobody waits for longer than their own bytes take"
        now_s += pause_s
        flow.passed(now_s)
        passed.append((now_s, step.count))
    return passed


@given(steps, st.sampled_from([1, 333, MAX, 7 * MAX]))
def test_over_no_window_more_passes_than_is_allowed(taken: list[Step], max_rate: int) -> None:
    passed = passages(taken, max_rate)
    for at, (first_s, first) in enumerate(passed):
        total = 0
        for last_s, count in passed[at:]:
            total += count
            # One chunk may be more than any burst. It is passed on as a whole, after all of it is paid for.
            allowed = max(BURST_S * max_rate, first) + (last_s - first_s) * max_rate
            assert total <= allowed * (1 + NEARLY)


@given(steps)
def test_from_the_start_no_more_passes_than_a_second_ahead_of_the_rate(taken: list[Step]) -> None:
    total = 0
    for now_s, count in passages(taken, MAX):
        total += count
        assert total <= (CREDIT_S + now_s) * MAX * (1 + NEARLY)


@given(steps)
def test_whoever_stays_below_the_rate_is_never_held_back(taken: list[Step]) -> None:
    flow, now_s = begun(MAX), 0.0
    for step in taken:
        now_s += step.gap_s
        assert flow.arrived(int(min(step.gap_s, BURST_S) * MAX), now_s) <= NEARLY


# The least rate.


def test_a_client_may_be_silent_for_a_second() -> None:
    flow = begun(min_rate=MIN)
    assert flow.patience_s(0.0) == CREDIT_S
    assert flow.patience_s(0.75) == 0.25
    assert flow.patience_s(CREDIT_S) == 0
    assert flow.patience_s(60.0) == 0


def test_without_a_least_rate_it_may_be_silent_for_ever() -> None:
    flow = begun(max_rate=MAX)
    assert flow.patience_s(1e9) is None


def test_bytes_buy_time_but_no_more_than_a_second() -> None:
    flow = begun(min_rate=MIN)
    flow.arrived(MIN // 2, 0.75)
    assert flow.patience_s(0.75) == 0.75
    flow.arrived(1000 * MIN, 1.0)
    assert flow.patience_s(1.0) == CREDIT_S


def test_a_trickle_of_bytes_does_not_keep_an_append_alive() -> None:
    flow, now_s = begun(min_rate=MIN), 0.0
    for _ in range(20):
        now_s += 0.1
        flow.arrived(1, now_s)
    assert flow.patience_s(now_s) == pytest.approx(0, abs=0.02)


def test_time_in_which_the_broker_held_a_chunk_back_is_not_held_against_the_client() -> None:
    flow = begun(MAX, MIN)
    pause_s = flow.arrived(30 * MAX, 0.0)
    assert pause_s == 29
    flow.passed(pause_s)
    assert flow.patience_s(pause_s) == CREDIT_S


def test_an_append_begins_with_all_of_its_second_however_long_it_waited() -> None:
    flow = begun(min_rate=MIN)
    assert flow.patience_s(30.0) == 0
    flow.begin(0, MIN, 90.0)
    assert flow.patience_s(90.0) == CREDIT_S


def test_going_on_without_limit_leaves_the_least_rate_as_it_is() -> None:
    flow = begun(MAX, MIN)
    flow.unlimited()
    assert flow.patience_s(0.5) == 0.5


# A gap in seconds, and as many bytes in hundredths of the least rate.
trickles = st.lists(st.tuples(st.floats(0, 1.5, allow_nan=False), st.integers(0, 200)), max_size=60)


@given(trickles)
def test_whoever_is_not_sent_away_has_kept_up_the_least_rate(sent: list[tuple[float, int]]) -> None:
    flow, now_s, total = begun(min_rate=MIN), 0.0, 0
    for gap_s, count in sent:
        patience_s = flow.patience_s(now_s)
        assert patience_s is not None
        assert 0 <= patience_s <= CREDIT_S
        if gap_s > patience_s:
            return
        now_s += gap_s
        flow.arrived(count, now_s)
        total += count
        assert total >= MIN * (now_s - CREDIT_S) - NEARLY


@given(st.lists(st.floats(0, 0.999, allow_nan=False), max_size=60))
def test_whoever_keeps_it_up_is_not_sent_away(gaps_s: list[float]) -> None:
    flow, now_s = begun(min_rate=MIN), 0.0
    for gap_s in gaps_s:
        patience_s = flow.patience_s(now_s)
        assert patience_s is not None
        assert patience_s >= gap_s
        now_s += gap_s
        flow.arrived(MIN, now_s)


@given(st.lists(st.floats(0, 2, allow_nan=False), min_size=2, max_size=20))
def test_patience_runs_out_as_time_passes_however_often_it_is_asked_for(gaps_s: list[float]) -> None:
    flow, now_s, asked = begun(min_rate=MIN), 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        asked.append(flow.patience_s(now_s) or 0.0)
    assert all(later <= earlier for earlier, later in pairwise(asked))
    assert asked[-1] == pytest.approx(max(0.0, CREDIT_S - now_s), abs=NEARLY)


# A clock that goes back.


def test_when_the_clock_goes_back_nothing_is_added_or_taken_away() -> None:
    flow = begun(MAX, MIN, now_s=100.0)
    assert flow.patience_s(100.5) == 0.5
    assert flow.patience_s(3.0) == 0.5
    assert flow.arrived(MAX, 3.0) == 0
    assert flow.arrived(MAX, 3.0) == 1


@given(st.lists(st.tuples(st.floats(0, 100, allow_nan=False), st.integers(0, 5 * MAX)), max_size=30))
def test_a_clock_that_goes_back_gives_no_more_than_one_that_stands_still(chunks: list[tuple[float, int]]) -> None:
    flow, still, latest_s = begun(MAX, MIN), begun(MAX, MIN), 0.0
    for now_s, count in chunks:
        latest_s = max(latest_s, now_s)
        assert flow.arrived(count, now_s) == still.arrived(count, latest_s)
        assert flow.patience_s(now_s) == still.patience_s(latest_s)


def test_a_clock_that_goes_back_while_a_chunk_is_held_back_costs_the_client_nothing() -> None:
    flow = begun(MAX, MIN, now_s=100.0)
    flow.arrived(2 * MAX, 100.0)
    flow.passed(90.0)
    assert flow.patience_s(100.0) == CREDIT_S
