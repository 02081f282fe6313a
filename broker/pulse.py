"""The pulse of a replica: an empty append, now and then and whenever the journal's assignments have changed.

It is what synchronises a new Route, advertises it, and closes fragments whose time is over, on journals to which nobody
appends. Only that of the primary comes to anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from broker.append_event import AppendOpening, AppendOutcome, End, Intent
from broker.append_run import AppendHost, AppendRun
from broker.local_replica import LocalReplica
from broker.metrics import UNPROVEN_HEADS
from broker.notice import Withdraw
from broker.proposal import rolled
from broker.resolution import Resolution, Wanted
from broker.resolver import Resolver, StoppedError
from fragment.spool_file import SpoolFile
from protocol.errors import GazetteError, Status
from protocol.journal import SuspendMode

log = logging.getLogger(__name__)

PULSE_S = 60.0
UNPROVEN_PULSE_S = 5.0
"""For a journal whose end nobody can prove: a holder that returns says so on record, and nobody is told of that."""
QUIET_PULSES = 15
"""After so many in a row with nothing else going on, a journal may be suspended, if the broker does that."""

_EXPECTED = frozenset(
    (
        Status.OK,
        Status.NOT_JOURNAL_PRIMARY_BROKER,
        Status.NO_JOURNAL_PRIMARY_BROKER,
        Status.JOURNAL_NOT_FOUND,
        Status.SUSPENDED,
        Status.INSUFFICIENT_JOURNAL_BROKERS,
    )
)


class PulseBroker(AppendHost, Protocol):
    """What a pulse needs of the broker it is in."""

    @property
    def resolver(self) -> Resolver[SpoolFile]: ...


class _Beat:
    """An AppendCaller without a client."""

    def __init__(
        self,
        broker: PulseBroker,
        journal: str,
        suspend: SuspendMode,
        over: Callable[[AppendOutcome | GazetteError | None], None],
    ) -> None:
        self.run = AppendRun(AppendOpening(journal, do_not_proxy=True, suspend=suspend), broker, self)
        self._over = over
        self._has_intent = False

    def next_chunk(self) -> None:
        has_intent, self._has_intent = self._has_intent, True
        self.run.feed(End() if has_intent else Intent())

    def proxy(self, resolution: Resolution) -> None:
        raise AssertionError("a pulse is not to be proxied")

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self._over(outcome)


class Pulse:
    """Of one replica, from its start until it is stopped. It costs a timer, and no task: there are thousands."""

    __slots__ = (
        "_auto_suspend",
        "_beat",
        "_broker",
        "_chance",
        "_is_hurried",
        "_loop",
        "_quiet",
        "_refused",
        "_replica",
        "_timer",
        "_withdraw",
    )

    def __init__(
        self, broker: PulseBroker, replica: LocalReplica, auto_suspend: bool, chance: Callable[[], float]
    ) -> None:
        self._broker = broker
        self._replica = replica
        self._auto_suspend = auto_suspend
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        # The one that is under way, and when it is given up; or when the next one is due.
        self._beat: _Beat | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._withdraw: Withdraw = _nothing
        # How many in a row there were with nothing else going on, and whether the assignments changed since the last.
        self._quiet = 0
        self._is_hurried = False
        # With what the last one was refused that should not have been.
        self._refused: Status | None = None

    def start(self) -> None:
        """At once, and then for as long as the replica lives."""
        self._timer = self._loop.call_later(0, self._go_on)

    def _go_on(self) -> None:
        self._withdraw()
        if self._replica.is_stopped:
            return
        self._is_hurried = False
        self._withdraw = self._replica.invalidation.listen(self._hurry)
        is_idle = self._auto_suspend and self._quiet >= QUIET_PULSES
        if not self._replica.is_primary or (not is_idle and _is_in_step(self._broker, self._replica)):
            self._refused = None
            self._rest()
            return
        suspend = SuspendMode.IF_FLUSHED if is_idle else SuspendMode.NO_RESUME
        self._beat = _Beat(self._broker, self._replica.journal, suspend, self._over)
        self._timer = self._loop.call_later(PULSE_S, self._give_up)
        self._beat.run.start()

    def _rest(self) -> None:
        # Thousands of journals that start together are not to pulse together.
        pause_s = UNPROVEN_PULSE_S if self._refused is Status.INDEX_HAS_GREATER_OFFSET else PULSE_S
        self._timer = self._loop.call_later(pause_s * (0.9 + 0.2 * self._chance()), self._due)

    def _due(self) -> None:
        self._quiet += 1
        self._go_on()

    def _hurry(self) -> None:
        """The assignments of the journal have changed. In the next turn: others are being told of it too."""
        self._quiet, self._is_hurried = 0, True
        if self._beat is None:
            self._cancel_timer()
            self.start()

    def _give_up(self) -> None:
        log.warning("pulse of a journal took too long (will retry)", extra={"journal": self._replica.journal})
        assert self._beat is not None
        self._beat.run.cancel()

    def _over(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self._beat = None
        self._cancel_timer()
        self._tell(outcome)
        if self._is_hurried or self._replica.is_stopped:
            self.start()
        else:
            self._rest()

    def _tell(self, outcome: AppendOutcome | GazetteError | None) -> None:
        journal, refused = self._replica.journal, None
        if isinstance(outcome, GazetteError) and not isinstance(outcome, StoppedError):
            log.warning("pulse of a journal failed (will retry)", extra={"journal": journal, "error": str(outcome)})
        elif isinstance(outcome, AppendOutcome) and outcome.status not in _EXPECTED:
            refused = outcome.status
            # Once, and not each time that it is still so.
            if refused is not self._refused:
                if refused is Status.INDEX_HAS_GREATER_OFFSET:
                    UNPROVEN_HEADS.inc()
                extra = {"journal": journal, "status": refused.name}
                log.warning("pulse of a journal was refused (will retry)", extra=extra)
        self._refused = refused

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_in_step(broker: PulseBroker, replica: LocalReplica) -> bool:
    """Whether a pulse would change nothing: the pipeline fits the Route, all know of it, and no fragment is due."""
    pipeline = replica.pipeline.peek()
    resolution = broker.resolver.resolve_now(Wanted(replica.journal, False, True))
    if pipeline is None or pipeline.is_broken or not pipeline.is_open or not isinstance(resolution, Resolution):
        return False
    route, held = resolution.header.route, pipeline.head.fragment
    if resolution.status is not Status.OK:
        return False
    policy = resolution.spec.fragment
    return (
        resolution.is_consistent
        and len(route.members) == resolution.desired_replication
        and pipeline.header.route.equivalent(route)
        and (not held.content_length or rolled(pipeline.head, None, policy, broker.now_ns()) is held)
    )


def _nothing() -> None:
    """There is nothing to withdraw."""
