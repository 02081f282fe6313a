from __future__ import annotations

from pathlib import Path

import pytest

from examples.pipeline_state import PipelineState, Plan
from protocol.errors import PreconditionError

RAW = "acme/visits"


def test_a_state_is_kept_as_it_is(tmp_path: Path) -> None:
    state = PipelineState(2, {RAW: 30}, 1.5, Plan({RAW: (30, 50)}, closes=True))
    state.save(tmp_path / "state.json")
    assert PipelineState.load(tmp_path / "state.json") == state
    assert state.finished(2.5) == PipelineState(3, {RAW: 50}, 2.5)


@pytest.mark.parametrize(
    "state",
    [
        PipelineState(),
        PipelineState(1, {RAW: 20}),
        PipelineState(1, {RAW: 50}),
        PipelineState(1, {RAW: 20}, plan=Plan({RAW: (20, 50)}, closes=False)),
        PipelineState(1, {"acme/other": 99}),
    ],
)
def test_a_journal_that_has_grown_is_the_one_that_was_read(state: PipelineState) -> None:
    state.check({RAW: (10, 50)})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (PipelineState(1, {RAW: 51}), "ends at 50, but was seen to reach 51"),
        (PipelineState(1, {RAW: 20}, plan=Plan({RAW: (20, 51)}, closes=False)), "ends at 50, but was seen to reach 51"),
        (PipelineState(1, {RAW: 9}), "begins at 10 now, and was read up to 9 only"),
        (PipelineState(0, {}, plan=Plan({RAW: (9, 40)}, closes=False)), "begins at 10 now, and was read up to 9 only"),
    ],
)
def test_one_that_is_another_now_is_told_with_what_to_do(state: PipelineState, why: str) -> None:
    with pytest.raises(PreconditionError, match=rf"^{RAW} {why}.*another --table and --commits"):
        state.check({RAW: (10, 50)})
