"""The schedules that durable heads were designed by, each acted out up to its decisive point.

A schedule reads as its row of the design: what happens, the situation that has to have arisen by then, and what must
come of it. Each is shown to find the mistakes that it is there for. Brokers without epochs have no part in the
simulator: they are in ``tests/unit/broker/test_append_epochs.py``, and with real brokers in
``tests/integration/broker/test_durable_heads.py``.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from tests.simulation import schedules_of_change, schedules_of_deaths
from tests.simulation.schedule import Act, Plant
from tests.simulation.stage import BrokenError

SCHEDULES = [*schedules_of_deaths.SCHEDULES, *schedules_of_change.SCHEDULES]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.mark.parametrize("act", [act for act, _ in SCHEDULES], ids=lambda act: act.__name__)
def test_a_schedule_is_acted_out(act: Act) -> None:
    act()


@pytest.mark.parametrize(
    ("act", "plant"),
    [(act, plant) for act, mistakes in SCHEDULES for plant in mistakes],
    ids=lambda part: part.__name__.lstrip("_"),
)
def test_a_schedule_breaks_with_a_planted_mistake(act: Act, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a promise that is not kept, and not because the schedule could not be acted out or the cores noticed."""
    plant(monkeypatch)
    with pytest.raises(BrokenError):
        act()
