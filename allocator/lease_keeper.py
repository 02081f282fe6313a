"""LeaseKeeper: asks etcd to keep a lease, as ``Lease`` decides, and says when it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdError, LeaseNotFoundError
from allocator.lease import KeepAlive, Lease, Lost, Wait

log = logging.getLogger(__name__)

FAILED = Counter("gazette_etcd_keep_alive_failures", "Keep-alives of the lease that etcd did not answer.")
REMAINING = Gauge("gazette_etcd_lease_remaining_seconds", "For how long the lease is certain not to run out.")


# What waits here waits by the clock of the loop, which stands still while the machine sleeps. So that a lease which ran
# out meanwhile is noticed on waking, nothing waits for longer than this without a look at the other clock.
_LOOK_S = 1.0


class LeaseLostError(Exception):
    """The lease has run out, or may have. Others may hold what this process held: it must stop at once."""


def boot_clock() -> float:
    """Seconds, also of those in which the machine was asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    def __init__(self, etcd: EtcdClient, lease: Lease, clock: Callable[[], float]) -> None:
        self._etcd = etcd
        self._lease = lease
        self._clock = clock
        self.lost = asyncio.Event()
        """Set as soon as it is known."""
        self._released = asyncio.Event()
        # What the keeper waits for: that it is let go, or that somebody else found the lease lost.
        self._interrupted = asyncio.Event()

    @classmethod
    async def grant(cls, etcd: EtcdClient, ttl_s: int, clock: Callable[[], float]) -> LeaseKeeper:
        asked_s = clock()
        granted = await etcd.grant_lease(ttl_s)
        return cls(etcd, Lease(granted.lease_id, granted.ttl_s, asked_s), clock)

    @property
    def lease_id(self) -> int:
        return self._lease.lease_id

    def is_certain(self) -> bool:
        """Whether the lease cannot have run out yet. Look at this last, before anything is acknowledged."""
        return self._lease.is_certain(self._clock())

    def give_up(self, why: str) -> None:
        """The lease is known to be gone from other evidence than its keep-alives."""
        self._lease.gone(why)
        self._interrupted.set()
        self._lose(why)

    def release(self) -> None:
        """Keep it no longer: ``run`` returns, and nothing is certain from now on."""
        self._lease.gone("it was released")
        self._released.set()
        self._interrupted.set()

    async def run(self) -> None:
        """Until released. Raises a LeaseLostError when the lease is lost."""
        REMAINING.set_function(lambda: max(0.0, self._lease.deadline_s - self._clock()))
        while not self._released.is_set():
            match self._lease.next(self._clock()):
                case KeepAlive(timeout_s):
                    await self._keep_alive(timeout_s)
                case Wait(seconds):
                    await self._wait(seconds)
                case Lost(why):
                    self._lose(why)
                    raise LeaseLostError(f"the lease of this process is lost: {why}")

    def _lose(self, why: str) -> None:
        """At once, as others may take their time to stop."""
        if not self.lost.is_set():
            self.lost.set()
            log.error("lease is lost: this process is no member any more", extra={"why": why})

    async def _keep_alive(self, timeout_s: float) -> None:
        """Whatever else shows that the lease is gone, or makes it so, ends the wait for an answer."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask(timeout_s))
            interrupted = tasks.create_task(self._interrupted.wait())
            while not asking.done() and self.is_certain():
                await asyncio.wait((asking, interrupted), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
            interrupted.cancel()

    async def _ask(self, timeout_s: float) -> None:
        sent_s = self._clock()
        try:
            ttl_s = await self._etcd.keep_alive(self.lease_id, timeout_s)
        except LeaseNotFoundError as error:
            self._lease.gone(str(error))
        except EtcdError as error:
            FAILED.inc()
            self._lease.failed(self._clock())
            left_s = round(self._lease.deadline_s - self._clock(), 1)
            log.warning("keep-alive failed (will be retried)", extra={"error": str(error), "left_s": left_s})
        else:
            self._lease.answered(sent_s, ttl_s)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, _LOOK_S)):
                await self._interrupted.wait()
        except TimeoutError:
            return
