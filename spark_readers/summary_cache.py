"""SummaryCache: what runs of fragments do to their producers, for the next plan of this process.

Fragments are named by their content, so what was found in one holds for ever. Spark keeps the processes in which it
plans: the second query over a table, or the same batch planned again, reads no UUIDs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from protocol.fragment import NO_SUM
from spark_readers.clock_summary import Summary
from spark_readers.fragment_task import Run
from spark_readers.read_options import ReadOptions

PRODUCERS_MAX = 64 << 10
"""Of all summaries together. Each takes some three hundred bytes."""


def run_key(run: Run, options: ReadOptions) -> bytes | None:
    """All that determines a run's summary; None if its bytes are not known by their sums, or those who passed over
    something once might find it the next time."""
    if options.descriptor_file or not options.fail_on_data_loss:
        return None
    digest = hashlib.sha1(repr((options.framing, options.mode, options.uuid_field)).encode(), usedforsecurity=False)
    for piece in run.pieces:
        of = piece.fragment
        if of is None or of.sum == NO_SUM:
            return None
        # Where frames are, at which a piece is cut, is not told by the sum: the object has to be the same one.
        named = (of.content_path, of.backing_store, of.mod_time, *piece[1:])
        digest.update(repr(named).encode())
    return digest.digest()


class SummaryCache:
    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._producers = 0
        # The one used last is the last to go.
        self._found: dict[bytes, Sequence[Summary]] = {}

    def get(self, key: bytes | None) -> Sequence[Summary] | None:
        found = self._found.pop(key, None) if key is not None else None
        if key is not None and found is not None:
            self._found[key] = found
        return found

    def put(self, key: bytes | None, summaries: Sequence[Summary]) -> None:
        if key is None or key in self._found:
            return
        self._found[key] = summaries
        self._producers += _size(summaries)
        while self._producers > self._producers_max:
            self._producers -= _size(self._found.pop(next(iter(self._found))))


def _size(summaries: Sequence[Summary]) -> int:
    # A summary takes room even if it has no producers.
    return sum(1 + len(summary) for summary in summaries)
