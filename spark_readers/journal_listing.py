"""JournalListing: the journals of a streaming query as they were lately. An idle query asks some eighty times a second:
brokers and stores are asked once an interval, and less often if it takes them long to answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from spark_readers.catalogue import CataloguedJournal, listed
from spark_readers.loop_thread import loop_thread
from spark_readers.read_options import ReadOptions

REST = 9
"""For how many times as long as a listing took the next one is put off: it takes a tenth of the time at most."""


class JournalListing:
    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._due_s: float | None = None
        self.journals: dict[str, CataloguedJournal] = {}
        # Of listings so far.
        self.count = 0

    def refresh(self, read: Mapping[str, int]) -> dict[str, CataloguedJournal]:
        """The journals, listed anew if it is time to. `read` is how far they were read: what has nothing more is not
        looked into."""
        begin_s = self._clock()
        if self._due_s is None or begin_s >= self._due_s:
            self.journals = listed(self._options, loop_thread(), dict(os.environ), read)
            self.count += 1
            end_s = self._clock()
            self._due_s = end_s + max(self._options.listing_interval_s, REST * (end_s - begin_s))
        return self.journals

    def expire(self) -> None:
        """The next one to ask is given a new listing."""
        self._due_s = None
