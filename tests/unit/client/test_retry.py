from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.outcome import FailedCallError, UnknownOutcomeError
from broker.client.retry import NEVER, PAUSE_S_MAX, AtLeastOnce, Attempts, Retry, RetryPolicy
from protocol.errors import (
    CorruptError,
    GazetteError,
    RefusedError,
    Remedy,
    Status,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)

LOST = UnavailableError("the broker is out of reach")
UNKNOWN = UnknownOutcomeError("no answer came")
ELSEWHERE = RefusedError(Status.NOT_JOURNAL_PRIMARY_BROKER)
policies = pytest.mark.parametrize("policy", [Retry(10.0), AtLeastOnce(10.0)])


@policies
@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_refusals_are_tried_again_if_time_or_another_broker_can_help(policy: RetryPolicy, status: Status) -> None:
    error = RefusedError(status)
    pause = Attempts(policy, 0.0).again(error, 0.0, 0.5)
    assert (pause is not None) == (error.remedy in (Remedy.RETRY, Remedy.REROUTE))


@policies
@pytest.mark.parametrize(
    "error", [ValidationError("no"), UnauthenticatedError("no"), CorruptError("no"), FailedCallError("no")]
)
def test_what_will_fail_again_is_not_tried_again(policy: RetryPolicy, error: GazetteError) -> None:
    assert Attempts(policy, 0.0).again(error, 0.0, 0.5) is None


def test_an_unknown_outcome_is_repeated_only_by_those_who_asked_for_it() -> None:
    assert Attempts(Retry(10.0), 0.0).again(UNKNOWN, 0.0, 0.5) is None
    assert Attempts(AtLeastOnce(10.0), 0.0).again(UNKNOWN, 0.0, 0.5) is not None


def test_whoever_is_sent_elsewhere_goes_at_once_but_not_in_circles() -> None:
    attempts = Attempts(Retry(10.0), 0.0)
    assert attempts.again(ELSEWHERE, 0.0, 0.5) == 0.0
    assert attempts.again(ELSEWHERE, 0.0, 0.5) > 0.0  # type: ignore[operator]
    never = Attempts(NEVER, 0.0)
    assert never.again(ELSEWHERE, 1.0, 0.5) == 0.0
    assert never.again(ELSEWHERE, 1.0, 0.5) is None


def test_a_success_gives_the_next_failure_its_time_again() -> None:
    attempts = Attempts(Retry(10.0), 0.0)
    assert attempts.again(LOST, 9.0, 0.0) is not None
    assert attempts.again(LOST, 11.0, 0.0) is None
    attempts.succeeded()
    assert attempts.again(LOST, 1000.0, 0.0) is not None
    assert attempts.again(LOST, 1009.0, 0.0) is not None
    assert attempts.again(LOST, 1011.0, 0.0) is None


@given(
    within_s=st.floats(0.0, 100.0),
    steps=st.lists(
        st.tuples(st.sampled_from([LOST, ELSEWHERE]), st.floats(0.0, 5.0), st.floats(0.0, 1.0)), max_size=200
    ),
)
def test_nothing_goes_on_past_its_time(within_s: float, steps: list[tuple[GazetteError, float, float]]) -> None:
    attempts, now_s = Attempts(Retry(within_s), 0.0), 0.0
    for error, took_s, jitter in steps:
        now_s += took_s
        pause_s = attempts.again(error, now_s, jitter)
        if pause_s is None:
            return
        assert 0.0 <= pause_s <= PAUSE_S_MAX
        assert pause_s == 0.0 or now_s + pause_s <= within_s
        now_s += pause_s
