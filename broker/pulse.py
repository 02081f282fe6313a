"""The pulse of a replica: an empty append, now and then and whenever the journal's assignments have changed.

It is what synchronises a new Route, advertises it, and closes fragments whose time is over, on journals to which nobody
appends. Only that of the primary comes to anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from allocator.transaction import Transaction
from broker.append_api import AppendBroker
from broker.append_event import AppendOpening, AppendOutcome, End, Intent, Ready, SuspendMode
from broker.append_run import AppendRun, Withdraw
from broker.local_replica import LocalReplica
from broker.pipeline import PeerStream, Pipeline
from broker.replica import Replica
from broker.resolution import Resolution, Wanted
from broker.resolver import StoppedError
from protocol.errors import GazetteError, Status
from protocol.route import ProcessId

log = logging.getLogger(__name__)

PULSE_S = 60.0
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


class _Beat:
    """An AppendPort without a client."""

    def __init__(self, broker: AppendBroker, journal: str, suspend: SuspendMode) -> None:
        self._broker = broker
        self.run = AppendRun(AppendOpening(journal, do_not_proxy=True, suspend=suspend), self)
        self.done: asyncio.Future[AppendOutcome | GazetteError | None] = asyncio.get_running_loop().create_future()
        self._has_intent = False

    def now_ns(self) -> int:
        return self._broker.now_ns()

    def is_certain(self) -> bool:
        return self._broker.is_certain()

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Withdraw:
        return self._broker.resolver.resolve(wanted, done).withdraw

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        self._broker.transact(transaction, done)

    def await_ready(self, replica: Replica[object], done: Callable[[Ready | GazetteError], None]) -> Withdraw:
        assert isinstance(replica, LocalReplica)
        return self._broker.await_ready(replica, done)

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        assert isinstance(replica, LocalReplica)
        return self._broker.open_streams(replica, pipeline)

    def next_chunk(self) -> None:
        has_intent, self._has_intent = self._has_intent, True
        self.run.feed(End() if has_intent else Intent())

    def proxy(self, resolution: Resolution) -> None:
        raise AssertionError("a pulse is not to be proxied")

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


async def pulse(broker: AppendBroker, replica: LocalReplica, suspend: SuspendMode) -> None:
    """One. What does not come to an end within the time to the next is given up."""
    beat = _Beat(broker, replica.journal, suspend)
    try:
        async with asyncio.timeout(PULSE_S):
            beat.run.start()
            outcome = await beat.done
    except TimeoutError:
        log.warning("pulse of a journal took too long (will retry)", extra={"journal": replica.journal})
        return
    finally:
        beat.run.cancel()
    if isinstance(outcome, GazetteError) and not isinstance(outcome, StoppedError):
        log.warning("pulse of a journal failed (will retry)", extra={"journal": replica.journal, "error": str(outcome)})
    elif isinstance(outcome, AppendOutcome) and outcome.status not in _EXPECTED:
        log.warning(
            "pulse of a journal was refused (will retry)",
            extra={"journal": replica.journal, "status": outcome.status.name},
        )


async def pulse_forever(
    broker: AppendBroker, replica: LocalReplica, auto_suspend: bool, chance: Callable[[], float]
) -> None:
    """Until the replica is given up."""
    quiet = 0
    while not replica.is_stopped:
        hurry = asyncio.Event()
        withdraw = replica.invalidation.listen(hurry.set)
        try:
            if replica.is_primary:
                is_idle = auto_suspend and quiet >= QUIET_PULSES
                await pulse(broker, replica, SuspendMode.IF_FLUSHED if is_idle else SuspendMode.NO_RESUME)
            # Thousands of journals that start together are not to pulse together.
            async with asyncio.timeout(PULSE_S * (0.9 + 0.2 * chance())):
                await hurry.wait()
            quiet = 0
        except TimeoutError:
            quiet += 1
        finally:
            withdraw()
