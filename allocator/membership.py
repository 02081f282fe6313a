"""Membership: a process as a member of the cluster, from its first key in etcd to its last.

``begin`` gets a lease, ``run`` keeps it, ``announce`` makes the process a member; ``drain`` and ``leave`` end it well.
If the lease is lost it ends badly, and at once: ``run`` raises, ``lost`` is set, and before either of them
``is_certain`` no longer holds.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import EtcdUnavailableError, LeaseNotFoundError
from allocator.key_event import StoredKey
from allocator.key_value import KeyValue, ValueT
from allocator.keyspace_view import KeySpaceView, Update
from allocator.keyspace_watch import KeySpaceWatch
from allocator.lease_keeper import LeaseKeeper, LeaseLostError, boot_clock
from allocator.transaction import KEEP_LEASE, Compare, Put, Target, Transaction

log = logging.getLogger(__name__)

TTL_S = 20
ANNOUNCE_RETRY_S = 10.0
_FORGET_S = 5.0
"""A process may leave because its disk hangs, which must not keep it."""
_PAUSE_S = 0.1
_PAUSE_S_MAX = 10.0

P = ParamSpec("P")
T = TypeVar("T")


class LeaseMemory(Protocol):
    """Keeps a lease's id from one process to the next. ``LeaseFile`` is one."""

    async def recall(self) -> int | None: ...

    async def remember(self, lease_id: int | None) -> None: ...


class Membership:
    def __init__(
        self,
        etcd: EtcdClient,
        key: str,
        memory: LeaseMemory,
        *,
        ttl_s: int = TTL_S,
        announce_retry_s: float = ANNOUNCE_RETRY_S,
        clock: Callable[[], float] = boot_clock,
        chance: random.Random | None = None,
    ) -> None:
        """`key` is the member's. `memory` is ours alone: the lease it recalls belongs to a process that is gone."""
        self.key = key
        self._etcd = etcd
        self._memory = memory
        self._ttl_s = ttl_s
        self._announce_retry_s = announce_retry_s
        self._clock = clock
        self._chance = chance or random.Random()
        self._keeper: LeaseKeeper | None = None
        # Of the member's key, as we wrote it last.
        self._mod_revision: int | None = None
        self._updating = asyncio.Lock()
        self._is_leaving = False

    @property
    def lease_id(self) -> int:
        return self._held.lease_id

    @property
    def lost(self) -> asyncio.Event:
        return self._held.lost

    @property
    def _held(self) -> LeaseKeeper:
        assert self._keeper is not None, "a membership begins with begin()"
        return self._keeper

    def is_certain(self) -> bool:
        """Whether the process is a member beyond doubt. Look at this last, before anything is acknowledged."""
        return self._keeper is not None and self._keeper.is_certain()

    async def begin(self) -> None:
        """End what a former process has left, and get a lease. ``run`` has to follow at once."""
        if (previous := await self._memory.recall()) is not None:
            await self.persist(self._revoke, previous)
        self._keeper = await self.persist(LeaseKeeper.grant, self._etcd, self._ttl_s, self._clock)
        # Before the first key is put under it: a lease without keys is in nobody's way.
        await self._memory.remember(self._keeper.lease_id)

    async def run(self) -> None:
        """Keep the lease until ``leave``. Raises a LeaseLostError when it is lost."""
        await self._held.run()

    async def announce(self, value: bytes) -> int:
        """Put the member's key; the revision of that is the one to load the KeySpace at.

        While another process has the key, which may be an earlier one of ours whose lease has yet to run out, wait.
        """
        absent = Compare(self.key, Target.VERSION, 0)
        transaction = Transaction((absent,), (Put(self.key, value, self.lease_id),))
        while True:
            committed = await self.persist(self._etcd.commit, transaction)
            if committed.succeeded:
                return self._put_at(committed.header.revision)
            existing = await self.persist(self._etcd.get, self.key)
            if existing is not None:
                # The answer to an earlier attempt may have been lost.
                if existing.lease == self.lease_id:
                    return self._put_at(existing.mod_revision)
                log.warning("another process has our place (will wait for it to go)", extra={"key": self.key})
                await asyncio.sleep(self._announce_retry_s)

    async def update(self, value: bytes) -> int:
        """Put another value, such as one that says that the member is exiting; the revision of that.

        Of several at once, the one that was asked for last has the last word.
        """
        async with self._updating:
            while True:
                assert self._mod_revision is not None, "a member is announced before it is updated"
                unchanged = Compare(self.key, Target.MOD, self._mod_revision)
                transaction = Transaction((unchanged,), (Put(self.key, value, KEEP_LEASE),))
                committed = await self.persist(self._etcd.commit, transaction)
                if committed.succeeded:
                    return self._put_at(committed.header.revision)
                existing = self._ours(await self.persist(self._etcd.get, self.key))
                self._put_at(existing.mod_revision)
                if existing.raw == value:
                    return existing.mod_revision

    async def drain(
        self,
        exiting_value: bytes,
        keyspace: KeySpaceWatch[ValueT],
        is_drained: Callable[[KeySpaceView[ValueT]], bool],
        timeout_s: float | None = None,
    ) -> bool:
        """Say that the member is exiting, and wait until `is_drained`; False if that did not happen in time."""
        revision = await self.update(exiting_value)
        try:
            await keyspace.wait_until(lambda view: view.through >= revision and is_drained(view), timeout_s)
        except TimeoutError:
            return False
        return True

    async def leave(self) -> None:
        """Revoke the lease: the member's key and all its assignments go, in one revision. Once is enough."""
        if self._is_leaving:
            return
        self._is_leaving = True
        self._held.release()
        try:
            await self._revoke(self.lease_id)
            async with asyncio.timeout(_FORGET_S):
                await self._memory.remember(None)
        except EtcdUnavailableError as error:
            log.warning("lease was not revoked (it will run out)", extra={"error": str(error)})
        except TimeoutError:
            log.warning("the disk does not forget the lease (which is revoked, and so does no harm)")

    def observe(self, update: Update[ValueT]) -> None:
        """For ``KeySpaceWatch.observe``: a member whose key is gone is none, whatever becomes of its keep-alives.

        An etcd before 3.5.23 may go on to answer those of a lease that was revoked.
        """
        if self._mod_revision is None or self._is_leaving or update.view.through < self._mod_revision:
            return
        # Whoever spoilt its value may have taken it from us as well.
        member = update.view.undecodable.get(self.key.encode()) or update.view.get(self.key)
        if member is None or member.lease != self.lease_id:
            self._give_up(member)

    def _put_at(self, revision: int) -> int:
        self._mod_revision = revision
        return revision

    def _ours(self, existing: StoredKey | None) -> StoredKey:
        if existing is None or existing.lease != self.lease_id:
            raise self._give_up(existing)
        return existing

    def _give_up(self, member: StoredKey | KeyValue[ValueT] | None) -> LeaseLostError:
        why = f"the member's key {'is gone from etcd' if member is None else 'has another lease'}"
        self._held.give_up(why)
        return LeaseLostError(why)

    async def _revoke(self, lease_id: int) -> None:
        try:
            await self._etcd.revoke_lease(lease_id)
        except LeaseNotFoundError:
            return

    async def persist(self, attempt: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Try until etcd answers: there is nothing else that a process could do on its way into the cluster or out of
        it. A lost lease ends it."""
        failures = 0
        while True:
            if self._keeper is not None and self._keeper.lost.is_set():
                raise LeaseLostError("the lease of this process is lost")
            try:
                return await attempt(*args, **kwargs)
            except LeaseNotFoundError as error:
                self._held.give_up(str(error))
                raise LeaseLostError("the lease of this process is lost") from error
            except EtcdUnavailableError as error:
                log.warning("membership waits for etcd (will retry)", extra={"key": self.key, "error": str(error)})
            longest_s = min(_PAUSE_S_MAX, _PAUSE_S * (1 << min(failures, 16)))
            failures += 1
            await asyncio.sleep(longest_s * self._chance.uniform(0.5, 1.0))
