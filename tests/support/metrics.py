"""What the metrics of this process say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import REGISTRY


def metric(name: str, **labels: str) -> float:
    """Zero for one that was never counted."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """For what nobody announces, such as the change of a metric."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
