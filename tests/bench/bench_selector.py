from __future__ import annotations

from collections.abc import Iterator

from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.bench.harness import Contest, benchmark

SPECS = [
    (
        f"acme/orders/part-{at:06d}",
        LabelSet.of(
            ("app.gazette.dev/message-type", "Order"),
            ("content-type", "application/x-ndjson"),
            ("region", "eu-west"),
            ("tier", ("gold", "blue", "lead")[at % 3]),
        ),
    )
    for at in range(100_000)
]


@benchmark("selector: match 100,000 specs against 3 labels")
def selector_match() -> Iterator[Contest]:
    selector = LabelSelector.parse("name:prefix=acme/orders/, content-type=application/x-ndjson, tier in (gold, blue)")

    def ours() -> int:
        match = selector.matcher("name")
        return sum(match(name, labels) for name, labels in SPECS)

    def floor() -> int:
        return sum(name.startswith("acme/orders/") and len(labels.labels) > 0 for name, labels in SPECS)

    assert ours() == 66_667
    yield Contest(ours, floor, "look at each spec once", len(SPECS), "specs", seconds_max=0.5)
