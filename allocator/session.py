"""Session: the stay of a process in a cluster, as a broker and a consumer have it alike.

It puts together what makes a member: a Membership that holds its place, the mirror of the cluster, and the Allocator
that leads it when its turn has come. The order matters and is written down here only: a lease that is kept, then the
announcement, then the mirror as of that very revision, and only then anything that acts upon it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, NoReturn, cast

from allocator.allocate import Allocator, may_leave_now
from allocator.converge import Consistent
from allocator.etcd_client import EtcdClient
from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, assignments_prefix, item_key, members_prefix
from allocator.keyspace_view import KeySpaceView
from allocator.keyspace_watch import KeySpaceWatch
from allocator.membership import Membership
from allocator.state import AssignmentT, ItemT, MemberT

log = logging.getLogger(__name__)

_REPORT_S = 10.0
_SAMPLE = 3


class Session(Generic[ItemT, MemberT, AssignmentT]):
    def __init__(
        self,
        etcd: EtcdClient,
        membership: Membership,
        watch: KeySpaceWatch[Entity[ItemT, MemberT, AssignmentT]],
        consistent: Consistent[ItemT, AssignmentT],
    ) -> None:
        """`watch` is of the cluster's root, and `membership` has a key in it. Whoever is to see everything from the
        beginning observes `watch` before the session is joined."""
        self.membership = membership
        self.watch = watch
        self._member = membership.key.removeprefix(members_prefix(watch.prefix))
        self._allocator = Allocator(etcd, watch, watch.prefix, membership.key, consistent)
        # Of everything that runs for it, while it is joined.
        self._tasks = asyncio.TaskGroup()
        self._is_exiting = False
        watch.observe(membership.observe)

    @property
    def view(self) -> KeySpaceView[Entity[ItemT, MemberT, AssignmentT]]:
        return self.watch.view

    @property
    def lost(self) -> asyncio.Event:
        """Set as soon as the lease is lost, by our own clock. Just after that, the body of ``joined`` is cancelled."""
        return self.membership.lost

    def is_certain(self) -> bool:
        """Whether the process is a member beyond doubt. Look at this last, before anything is acknowledged."""
        return self.membership.is_certain()

    @asynccontextmanager
    async def joined(self, value: bytes) -> AsyncIterator[None]:
        """Be a member, whose key has this `value`, within the body, which finds the mirror loaded.

        If the lease is lost, or anything else goes wrong that cannot be helped here, the body is cancelled and the
        reason is raised, in an ExceptionGroup. However it ends, the process is no member afterwards: a body that has
        not called ``exit`` leaves its items to others without a warning.
        """
        await self.membership.begin()
        async with self._tasks as tasks:
            children = [tasks.create_task(self.membership.run())]
            try:
                revision = await self.membership.announce(value)
                await self.membership.persist(self.watch.load, revision)
                children.append(tasks.create_task(self.watch.run()))
                children.append(tasks.create_task(self._allocator.run()))
                yield
            finally:
                # Once it is lost, others need not wait for it, and nobody here should wait for etcd.
                if not self.lost.is_set():
                    await self.membership.leave()
                for child in children:
                    child.cancel()

    async def update(self, value: bytes) -> int:
        """Put another value under the member's key; the revision of that."""
        if self._is_exiting:
            raise ValueError("a member that is exiting must not take that back")
        return await self.membership.update(value)

    async def drain(self, exiting_value: bytes, timeout_s: float | None) -> int:
        """Hand over all items, for `timeout_s` at most. How many are left: those that nobody took, or can take.

        `exiting_value` says that the member is exiting, and has the limit that it had: the leader takes its items away
        as fast as others can take them. If as many members stay as an item has replicas somebody can take it, and else
        it is not waited for. The end of ``joined`` is when the member leaves.
        """
        self._is_exiting = True
        may_leave = partial(may_leave_now, self.watch.prefix, self._member)
        reporting = self._tasks.create_task(self._report())
        try:
            await self.membership.drain(exiting_value, self.watch, may_leave, timeout_s)
        finally:
            reporting.cancel()
        left = len(self._held())
        if left:
            log.warning(
                "leaving with items still assigned (nobody took them, or could)",
                extra={"member": self._member, "items": left},
            )
        return left

    async def _report(self) -> NoReturn:
        while True:
            await asyncio.sleep(_REPORT_S)
            held = self._held()
            extra = {"member": self._member, "items": len(held), "sample": held[:_SAMPLE]}
            log.warning("draining (waits for others to take over)", extra=extra)

    def _held(self) -> list[str]:
        """The items that exist and are assigned to us."""
        root, view = self.watch.prefix, self.view
        assigned = cast("Sequence[KeyValue[Assignment[AssignmentT]]]", view.prefixed(assignments_prefix(root)))
        held = (kv.value.item for kv in assigned if kv.value.member == self._member)
        return [item for item in held if view.get(item_key(root, item)) is not None]
