"""ServedBytes: how much of each journal this process has handed to readers, for those who watch rates."""

from __future__ import annotations

from collections import OrderedDict

JOURNALS_MAX = 4096
TOLD_AS = "gazette-served-bytes"
"""What a broker tells beside the answer to a Read of metadata, of the journal that was asked for."""


class ServedBytes:
    """Of the journals that were read latest. One that was forgotten begins anew, as after a restart.

    >>> served = ServedBytes()
    >>> served.add("acme/orders", 5)
    >>> served.add("acme/orders", 4)
    >>> served.of("acme/orders"), served.of("acme/clicks")
    (9, 0)
    """

    def __init__(self, journals_max: int = JOURNALS_MAX) -> None:
        self._journals_max = journals_max
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, journal: str, count: int) -> None:
        self._counts[journal] = self._counts.get(journal, 0) + count
        self._counts.move_to_end(journal)
        if len(self._counts) > self._journals_max:
            self._counts.popitem(last=False)

    def of(self, journal: str) -> int:
        return self._counts.get(journal, 0)
