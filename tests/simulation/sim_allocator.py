"""The leader's loop in the simulator: the shipped State, solver and steps, with transactions over a simulated network.

It does what ``allocate.Allocator`` does, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from allocator.converge import Batch, converge
from allocator.etcd_client import Committed
from allocator.etcd_errors import EtcdError, EtcdRefusedError, LeaseNotFoundError
from allocator.key_event import StoredKey
from allocator.keyspace_view import KeySpaceView
from allocator.solve import Desired, desired_assignment
from allocator.state import State, leader_of, members_of
from broker.broker_member import BrokerMember
from broker.cluster_keys import BrokerEntity, journal_consistency
from broker.journal_item import JournalItem
from protocol.route import Route
from tests.simulation.etcd import EtcdAccess
from tests.simulation.world import Timer

CATCH_UP_S = 10.0
_PAUSE_S = 1.0

_REFUSALS = (EtcdRefusedError, LeaseNotFoundError)


class SimulatedAllocator:
    def __init__(
        self, access: EtcdAccess, root: str, own_key: str, view: Callable[[], KeySpaceView[BrokerEntity]]
    ) -> None:
        self._access = access
        self._root = root
        self._own_key = own_key
        self._view = view
        self._desired: Desired = {}
        self._solved_for: int | None = None
        self._is_busy = False
        self._is_stopped = False
        # Of the present step.
        self._batches: deque[Batch] = deque()
        self._revision: int | None = None
        self._is_held_up = False
        self._unfreed: set[str] = set()
        # Up to where the view has to be before the next one.
        self._awaited = 0
        self._timer: Timer | None = None
        # Of the view that the last step was made from, or found that there is nothing to do.
        self._looked_at: object = None

    def stop(self) -> None:
        self._is_stopped = True

    def changed(self) -> None:
        """The view has, or etcd said that there was nothing new."""
        view = self._view()
        if self._is_busy or self._is_stopped or view.through < self._awaited:
            return
        if view.key_values is not self._looked_at or self._awaited:
            self._look()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._awaited = 0
        view = self._view()
        self._looked_at = view.key_values
        leader = leader_of(members_of(self._root, view.key_values, view.undecodable))
        if self._is_stopped or leader is None or leader.key != self._own_key:
            return
        state: State[JournalItem, BrokerMember, Route] = State.of(self._root, view.key_values, view.undecodable)
        if state.network_hash != self._solved_for:
            self._desired, self._solved_for = desired_assignment(state), state.network_hash
        self._batches = deque(converge(state, self._desired, journal_consistency))
        self._revision, self._is_held_up, self._unfreed = None, False, set()
        self._is_busy = True
        self._go_on(view)

    def _go_on(self, view: KeySpaceView[BrokerEntity]) -> None:
        while self._batches:
            batch = self._batches.popleft().without_adding_to(self._unfreed)
            if batch.changes:
                self._access.commit(batch.transaction, partial(self._done, view, batch))
                return
        self._is_busy = False
        if self._revision is not None:
            self._awaited = self._revision
            self._again_in(CATCH_UP_S)
        elif self._is_held_up:
            self._again_in(CATCH_UP_S)
        if self._view() is not view:
            self.changed()

    def _done(self, view: KeySpaceView[BrokerEntity], batch: Batch, answer: Committed | EtcdError) -> None:
        if isinstance(answer, EtcdError) and not isinstance(answer, _REFUSALS):
            self._is_busy = False
            self._again_in(_PAUSE_S)
        elif isinstance(answer, Committed) and answer.succeeded:
            self._revision = answer.header.revision
            self._go_on(view)
        elif len(batch.changes) == 1:
            self._is_held_up = True
            self._unfreed |= batch.changes[0].frees
            self._go_on(view)
        else:
            self._is_held_up = True
            self._access.get(self._own_key, lambda own: self._take_apart(view, batch, own))

    def _take_apart(self, view: KeySpaceView[BrokerEntity], batch: Batch, own: StoredKey | EtcdError | None) -> None:
        if isinstance(own, StoredKey) and own.mod_revision == batch.leadership.equals:
            self._batches.extendleft(reversed(batch.apart()))
        else:
            self._batches.clear()
        self._go_on(view)

    def _again_in(self, seconds: float) -> None:
        self._timer = self._access.node.timer(seconds, self._again)

    def _again(self) -> None:
        if not self._is_busy:
            self._look()
