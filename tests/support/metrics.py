"""What the metrics of this process say."""

from __future__ import annotations

from prometheus_client import REGISTRY


def metric(name: str, **labels: str) -> float:
    """Zero for one that was never counted."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
