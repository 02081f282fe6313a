"""Schedule: something that happens to a cluster, acted out on a stage, and the mistakes that it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.spans import Span
from tests.simulation.stage import Stage
from tests.simulation.world import Node

Act = Callable[[], None]
Plant = Callable[[pytest.MonkeyPatch], None]

Schedules = list[tuple[Act, tuple[Plant, ...]]]

UNPROVEN = "INDEX_HAS_GREATER_OFFSET"


def kept_in(schedules: Schedules) -> Callable[..., Callable[[Act], Act]]:
    """Decorates each of a module's schedules, with the mistakes that have to break it."""

    def broken_by(*mistakes: Plant) -> Callable[[Act], Act]:
        def keep(act: Act) -> Act:
            schedules.append((act, mistakes))
            return act

        return keep

    return broken_by


def committed_alone(stage: Stage, first: Node, others: list[Node]) -> Span:
    """What `first` sends does not get to the others: it alone commits two appends. Which bytes these are."""
    stage.clog([first], others)
    begin = stage.end_at(first)
    stage.send(first)
    stage.send(first)
    stage.until(lambda: stage.end_at(first) == begin + 100, "the primary has committed them")
    stage.arose(all(stage.end_at(other) == begin for other in others), "nobody else has")
    return Span(begin, stage.end_at(first))
