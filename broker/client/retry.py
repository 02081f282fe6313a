"""Retry: for how long a call is tried again, and what may be repeated at all.

Nothing here waits: ``Attempts`` says after which pause to go on, or that it is time to give up.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.client.outcome import UnknownOutcomeError
from protocol.errors import GazetteError, RefusedError, Remedy, UnavailableError

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Retry:
    """What surely was not done is tried again for so many seconds. Nothing is ever done twice.

    A broker that dies is succeeded once its lease has run out, which takes some 20 seconds, so by default that is
    waited for.
    """

    within_s: float = 60.0


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """Also what may have been done is tried again: its content may then be in the journal more than once."""

    within_s: float = 60.0


RetryPolicy = Retry | AtLeastOnce
Errors = tuple[type[GazetteError], ...]

NEVER = Retry(within_s=0.0)
"""To be sent to another broker is no failure, and not counted."""


class Attempts:
    """The attempts at one call, or those of a reader since its last success.

    >>> attempts = Attempts(Retry(within_s=10), now_s=0.0)
    >>> lost = UnavailableError("the broker is out of reach")
    >>> attempts.again(lost, now_s=1.0, jitter=1.0), attempts.again(lost, now_s=2.0, jitter=0.0)
    (0.05, 0.05)
    >>> attempts.again(lost, now_s=10.5, jitter=1.0) is None
    True
    >>> Attempts(Retry(), now_s=0.0).again(UnknownOutcomeError("no answer came"), now_s=1.0, jitter=1.0) is None
    True
    """

    def __init__(self, policy: RetryPolicy, now_s: float, repeatable: Errors = (UnavailableError,)) -> None:
        """`repeatable` are the errors besides refusals after which another attempt makes sense."""
        self.failed = 0
        self._repeatable = repeatable
        self._policy = policy
        self._since_s: float | None = now_s
        self._has_rerouted = False

    def succeeded(self) -> None:
        """From now on the time counts from the next failure."""
        self.failed = 0
        self._since_s = None
        self._has_rerouted = False

    def again(self, error: GazetteError, now_s: float, jitter: float) -> float | None:
        """The pause before the next attempt; None if there is to be none. `jitter` is chance, from 0 to 1."""
        if not self._may_repeat(error):
            return None
        if self._since_s is None:
            self._since_s = now_s
        self.failed += 1
        if self._is_sent_elsewhere(error):
            return 0.0
        pause_s = self._pause_s(jitter)
        return None if now_s + pause_s > self._since_s + self._policy.within_s else pause_s

    def _may_repeat(self, error: GazetteError) -> bool:
        match error:
            case UnknownOutcomeError():
                return isinstance(self._policy, AtLeastOnce)
            case RefusedError():
                return error.remedy in (Remedy.RETRY, Remedy.REROUTE)
            case _:
                return isinstance(error, self._repeatable)

    def _is_sent_elsewhere(self, error: GazetteError) -> bool:
        """Whoever is sent elsewhere goes there at once; but if that one sends us on as well, it is time to wait."""
        is_rerouted = isinstance(error, RefusedError) and error.remedy is Remedy.REROUTE
        self._has_rerouted = is_rerouted and not self._has_rerouted
        return self._has_rerouted

    def _pause_s(self, jitter: float) -> float:
        # A cluster that comes back must not meet all its clients at the same moment.
        longest = min(PAUSE_S_MIN * 2.0 ** min(self.failed - 1, 16), PAUSE_S_MAX)
        return longest * (0.5 + 0.5 * jitter)
