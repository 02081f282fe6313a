"""ExactCounter: a Counter whose samples have its name as it is.

Prometheus' own library ends the name of every counter in `_total`, and two of Gazette's end in `_totals`: whoever has
rules and dashboards for those would look for them in vain.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric


class ExactCounter(Counter):
    """It is told as of no known type: of a counter the library would change the name again, in the line of its type."""

    def describe(self) -> Iterator[Metric]:
        for described in super().describe():
            yield Metric(described.name, described.documentation, "unknown")

    def collect(self) -> Iterator[Metric]:
        for counted in super().collect():
            exact = Metric(counted.name, counted.documentation, "unknown")
            for sample in counted.samples:
                # Beside the count there is the time since when it counts, under another name.
                if sample.name == f"{counted.name}_total":
                    exact.add_sample(counted.name, sample.labels, sample.value)
            yield exact
