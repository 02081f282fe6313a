"""LeaseKeeping: asks the simulated etcd to keep a lease, as the shipped Lease decides."""

from __future__ import annotations

from collections.abc import Callable

from allocator.etcd_client import GrantedLease
from allocator.etcd_errors import EtcdError, LeaseNotFoundError
from allocator.lease import KeepAlive, Lease, Lost, Wait
from tests.simulation.etcd import EtcdAccess

_RETRY_S = 0.5


class LeaseKeeping:
    """For one life of a node."""

    def __init__(
        self, access: EtcdAccess, ttl_s: int, granted: Callable[[int], None], lost: Callable[[str], None]
    ) -> None:
        """`granted` gets the lease's id, once; `lost` why there is none any more, once."""
        self._access = access
        self._node = access.node
        self._ttl_s = ttl_s
        self._granted = granted
        self._lost = lost
        self._lease: Lease | None = None
        self._is_over = False

    def start(self) -> None:
        asked_s = self._node.world.now_s

        def answered(answer: GrantedLease | EtcdError) -> None:
            if isinstance(answer, EtcdError):
                self._node.after(_RETRY_S, self.start)
                return
            self._lease = Lease(answer.lease_id, answer.ttl_s, asked_s)
            self._step()
            if not self._is_over:
                self._granted(answer.lease_id)

        self._access.grant_lease(self._ttl_s, answered)

    def is_certain(self) -> bool:
        """Look at this last, before anything is acknowledged."""
        return self._lease is not None and self._lease.is_certain(self._node.world.now_s)

    def give_up(self, why: str) -> None:
        """It is known to be gone from other evidence, such as our member key that is not there any more."""
        if self._lease is not None:
            self._lease.gone(why)
            self._step()

    def release(self) -> None:
        """Keep it no longer. Nobody is told."""
        self._is_over = True
        if self._lease is not None:
            self._lease.gone("it was released")

    def _step(self) -> None:
        lease = self._lease
        if self._is_over or lease is None:
            return
        match lease.next(self._node.world.now_s):
            case KeepAlive(timeout_s):
                self._keep_alive(lease, timeout_s)
            case Wait(seconds):
                self._node.after(seconds, self._step)
            case Lost(why):
                self._is_over = True
                self._lost(why)

    def _keep_alive(self, lease: Lease, timeout_s: float) -> None:
        sent_s = self._node.world.now_s

        def answered(answer: int | EtcdError) -> None:
            if isinstance(answer, LeaseNotFoundError):
                lease.gone(str(answer))
            elif isinstance(answer, EtcdError):
                lease.failed(self._node.world.now_s)
            else:
                lease.answered(sent_s, answer)
            self._step()

        self._access.keep_alive(lease.lease_id, timeout_s, answered)
