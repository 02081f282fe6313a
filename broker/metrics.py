"""What a broker counts and measures. Names that Gazette has too mean the same.

Nothing here is labelled by journal but the write heads, and those of a bounded number of journals: a broker has
thousands of them, and each label is a time series that somebody pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from broker.exact_counter import ExactCounter
from broker.unpersisted import Unpersisted

HEADS_MAX = 1000

STARTED = ExactCounter("gazette_journal_server_started_totals", "RPCs that were begun.", ("operation",))
COMPLETED = ExactCounter(
    "gazette_journal_server_completed_totals", "RPCs that ended, and how.", ("operation", "status")
)
COMMITS = Counter("gazette_spool_commits", "Commits of content to a spool.")
COMMIT_BYTES = Counter("gazette_spool_commit_bytes", "Bytes of content that were committed to a spool.")
ROLLBACKS = Counter("gazette_spool_rollbacks", "Contents of a spool that were rolled back.")
ROLLBACK_BYTES = Counter("gazette_spool_rollback_bytes", "Bytes of content that were rolled back.")
STAGES = Histogram(
    "gazette_append_stage_seconds",
    "How long appends take: until their turn has come, while they stream, and until all members have answered.",
    ("stage",),
    buckets=(0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2, 10, 60),
)
HELD_BACK = Counter("gazette_append_held_back_seconds", "For how long content was held back by greatest append rates.")

HELD_COPIES = Gauge("gazette_held_copies", "Copies of epochs that no replica has, and whose fate is not known yet.")
DAMAGED_COPIES = Gauge("gazette_damaged_copies", "Of these, copies that are damaged: they prove no end.")
UNPROVEN_HEADS = Counter(
    "gazette_unproven_heads", "Times a journal was found to be one whose end nobody who is there can prove."
)
VOID_HEADS = Gauge(
    "gazette_void_heads",
    "Journals held here in which a broker without epochs takes part: their bytes are as safe as in Gazette.",
)
LONG_HEADS = Counter(
    "gazette_long_heads", "Times a record was read with more epochs than the store should leave there."
)

Heads = Callable[[], Iterable[tuple[str, int]]]


class BrokerCollector(Collector):
    """What is looked up when somebody asks, and costs nothing otherwise."""

    def __init__(
        self,
        heads: Heads,
        unpersisted: Callable[[], Unpersisted],
        replicas: Callable[[], tuple[int, int]],
    ) -> None:
        """`heads` are journals and their ends; `replicas` is how many there are, and of how many this broker is the
        primary."""
        self._heads = heads
        self._unpersisted = unpersisted
        self._replicas = replicas

    def collect(self) -> Iterator[GaugeMetricFamily]:
        heads = GaugeMetricFamily(
            "gazette_write_head", f"End of what can be read, of at most {HEADS_MAX} journals.", labels=["journal"]
        )
        for journal, head in islice(self._heads(), HEADS_MAX):
            heads.add_metric([journal], head)
        yield heads
        waiting = self._unpersisted()
        yield GaugeMetricFamily(
            "gazette_spool_unpersisted_bytes",
            "Bytes that are not in a store yet: of spools that are complete, and of those that are written.",
            value=waiting.content_bytes,
        )
        yield GaugeMetricFamily(
            "gazette_spool_unpersisted_oldest_seconds",
            "How long ago the oldest of them was appended.",
            value=waiting.oldest_s,
        )
        total, primary = self._replicas()
        yield GaugeMetricFamily("gazette_replicas", "Journals that this broker holds.", value=total)
        yield GaugeMetricFamily("gazette_replicas_primary", "Journals that it is the primary of.", value=primary)
