"""FlowControl: how fast content may come, and how slow it may get.

While an append streams, nobody else appends to the journal. So a client has to keep up a least rate, or is sent away;
and a journal may have a greatest one, above which content is held back before it is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

CREDIT_S = 1.0
"""How long a client may be silent when it has kept up so far."""
BURST_S = 10.0
"""How long a journal saves up what it was allowed but did not use."""


@dataclass(slots=True)
class FlowControl:
    """Of one journal. Times are those of a clock that does not go back; should it, nothing happens."""

    # Bytes that may pass at once. None before the first append.
    _balance: float | None = None
    _balanced_s: float = 0.0
    # What the present client is ahead of the least rate, in bytes.
    _spare: float = 0.0
    _spared_s: float = 0.0
    _min_rate: float = 0.0
    _max_rate: float = 0.0

    def begin(self, max_rate: int, min_rate: int, now_s: float) -> None:
        """An append begins to stream. Rates are in bytes a second; zero is none."""
        self._max_rate, self._min_rate = max_rate, min_rate
        if self._balance is None:
            self._balance, self._balanced_s = max_rate * CREDIT_S, now_s
        self._top_up(now_s)
        # What an append was held back for and then never passed on is not for the next one to wait off.
        self._balance = max(0.0, self._balance)
        self._spare, self._spared_s = min_rate * CREDIT_S, now_s

    def arrived(self, count: int, now_s: float) -> float:
        """So many bytes have come. For how many seconds they have to be held back."""
        self._spend(now_s)
        self._spare = min(self._spare + count, self._min_rate * CREDIT_S)
        if not self._max_rate:
            return 0.0
        self._top_up(now_s)
        assert self._balance is not None
        self._balance -= count
        return max(0.0, -self._balance / self._max_rate)

    def passed(self, now_s: float) -> None:
        """What was held back was passed on. That it took so long is not the client's fault."""
        self._spared_s = max(self._spared_s, now_s)

    def unlimited(self) -> None:
        """For the rest of this append there is no greatest rate: others wait for it to end."""
        self._max_rate = 0.0
        if self._balance is not None:
            self._balance = max(0.0, self._balance)

    def patience_s(self, now_s: float) -> float | None:
        """For how long the client may be silent from now on; None is for ever."""
        if not self._min_rate:
            return None
        self._spend(now_s)
        return max(0.0, self._spare / self._min_rate)

    def _top_up(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._balanced_s)
        assert self._balance is not None
        self._balance = min(self._balance + self._max_rate * elapsed_s, self._max_rate * BURST_S)
        self._balanced_s = max(self._balanced_s, now_s)

    def _spend(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._spared_s)
        self._spare = max(0.0, self._spare - self._min_rate * elapsed_s)
        self._spared_s = max(self._spared_s, now_s)


def effective_max_rate(spec_rate: int, broker_rate: int) -> int:
    """The greatest rate of a journal: its own, or the broker's if that is less.

    A journal without one of its own is not limited by the broker's, as with Gazette.
    """
    return broker_rate if 0 < broker_rate < spec_rate else spec_rate
