"""Replica: what a broker has of one journal that is assigned to it.

Its spool and, if this broker is the primary, its pipeline, each in a Slot; its index; and a Notice that tells whoever
waits for either that what they know of the journal's assignments is out of date. A replica is never demoted: a primary
that becomes something else is given up for a new one, and so is a journal that was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol

from broker.durable_head import EpochTerms
from broker.notice import Notice, Withdraw
from broker.pipeline import HeldSpool, Pipeline
from broker.slot import Slot
from fragment.index import FileT, Index
from fragment.spool import EpochMark
from protocol.errors import UnavailableError
from protocol.route import Header, ProcessId

TAKE_WAIT_S = 5.0
"""How long a later synchronisation waits for an earlier primary, who is there, to end what it has under way."""


class ReplicaHost(Protocol):
    """What a replica needs of the broker that it is of."""

    @property
    def spool_id(self) -> bytes:
        """Of the spool directory."""
        ...

    def has_copy(self, journal: str, mark: EpochMark) -> bool:
        """Whether the directory has commits of that epoch in another spool, given up or about to be, or may have."""
        ...

    def later(self, delay_s: float, act: Callable[[], None]) -> Withdraw: ...

    def is_member(self, member: ProcessId, revision: int) -> bool:
        """Whether it is one, and has been since that revision."""
        ...

    def epoch_opened(self, replica: Replica[FileT], terms: EpochTerms, closed: EpochMark | None) -> None:
        """What this replica has of the epoch `closed` counts up to where the new one begins."""
        ...

    def voided(self, journal: str) -> None:
        """A member that keeps no epochs takes part in it, which is on record now."""
        ...


class SpoolHolder(Protocol):
    """A primary's stream that has the spool."""

    @property
    def header(self) -> Header:
        """That the stream was opened with."""
        ...

    def depose(self) -> None:
        """Give the spool back at once. Nothing that it asked for is answered any more."""
        ...


class Replica(Generic[FileT]):
    __slots__ = (
        "_holder",
        "_spool",
        "acked_end",
        "create_revision",
        "given_up",
        "host",
        "index",
        "invalidation",
        "is_primary",
        "is_stopped",
        "is_void",
        "journal",
        "pipeline",
        "stall",
        "stopped",
        "taken_revision",
    )

    def __init__(self, journal: str, create_revision: int, index: Index[FileT]) -> None:
        self.journal = journal
        # Tells one incarnation of the journal from another.
        self.create_revision = create_revision
        self.index = index
        self.is_primary = False
        self.is_stopped = False
        # Whether somebody takes part who keeps no epochs.
        self.is_void = False
        # Through where the journal is known to be acknowledged, whether or not the bytes are here. It never falls,
        # though a spool that is retired forgets it.
        self.acked_end = 0
        # Why nobody gets the spool for now: the disk that it is on hangs.
        self.stall: UnavailableError | None = None
        self.host: ReplicaHost | None = None
        self._spool: Slot[HeldSpool] | None = None
        self._holder: SpoolHolder | None = None
        # Of the latest Route for which somebody took the spool.
        self.taken_revision = 0
        self.pipeline: Slot[Pipeline | None] = Slot(None)
        # Fired, and replaced by another, when the assignments or the stores of the journal change.
        self.invalidation = Notice()
        # Fired when it is to be given up, and when all is given back and handed on.
        self.stopped = Notice()
        self.given_up = Notice()

    def start(self, held: HeldSpool) -> None:
        """With the spool, which has to know the replica that it is given back to."""
        self._spool = Slot(held)

    def spool_released(self, held: HeldSpool) -> None:
        """Whoever had the spool is done with it."""
        self.spool.put(held)

    @property
    def spool(self) -> Slot[HeldSpool]:
        assert self._spool is not None
        return self._spool

    def take_spool(self, header: Header, granted: Callable[[HeldSpool], None]) -> Withdraw:
        """Take the spool for a synchronisation under this Route, once whoever has it for an earlier one is done.

        Not longer than a while, and not at all if that primary is no member any more: one that was stopped, and does
        not know, must not keep a journal from going on (DH-4). What is returned ends the wait.
        """
        withdrawals: list[Withdraw] = []

        def taken(held: HeldSpool) -> None:
            for withdraw in withdrawals[1:]:
                withdraw()
            self.taken_revision = max(self.taken_revision, header.etcd.revision)
            granted(held)

        wait = self.spool.take(taken)
        withdrawals.append(wait.withdraw)
        holder, host = self._holder, self.host
        if wait.is_over or holder is None or host is None or not _overrules(header, holder.header):
            return wait.withdraw
        primary = holder.header.route.primary_id

        def depose() -> None:
            if self._holder is holder and not wait.is_over:
                holder.depose()

        if primary is None or not host.is_member(primary, holder.header.etcd.revision):
            depose()
        else:
            withdrawals.append(host.later(TAKE_WAIT_S, depose))
        return lambda: _call_all(withdrawals)

    def held_by(self, holder: SpoolHolder | None) -> None:
        """A primary's stream has the spool, or has it no more."""
        self._holder = holder

    def claimed_id(self, mark: EpochMark | None) -> bytes:
        """The spool directory's id, unless it has more of that epoch than is in the spool."""
        host = self.host
        if host is None or (mark is not None and host.has_copy(self.journal, mark)):
            return b""
        return host.spool_id

    def epoch_opened(self, terms: EpochTerms, closed: EpochMark | None) -> None:
        """The epoch before it, if it was one of ours, was closed where this one begins."""
        self.is_void = False
        self.index.await_range(terms.oldest_begin, terms.begin)
        if self.host is not None:
            self.host.epoch_opened(self, terms, closed)

    def voided(self) -> None:
        """A member that keeps no epochs takes part: for now there are none."""
        if not self.is_void:
            self.is_void = True
            if self.host is not None:
                self.host.voided(self.journal)

    def stalled(self, stall: UnavailableError | None) -> None:
        """The disk of the spool hangs, or goes on. Whoever waits for the spool looks again, and finds so."""
        self.stall = stall
        if stall is not None:
            self.invalidate()

    def invalidate(self) -> None:
        invalidation, self.invalidation = self.invalidation, Notice()
        if self.is_stopped:
            self.invalidation.fire()
        invalidation.fire()

    def stop(self) -> None:
        """Give the replica up, once the append and the stream that are under way have ended. Nobody else gets in."""
        if not self.is_stopped:
            self.is_stopped = True
            self.invalidate()
            self.stopped.fire()
            self.pipeline.take(self._close)

    def _close(self, pipeline: Pipeline | None) -> None:
        if pipeline is not None:
            pipeline.close()
        self.spool.take(self._hand_on)

    def _hand_on(self, held: HeldSpool) -> None:
        held.hand_on(self.given_up.fire)


def _overrules(header: Header, holder: Header) -> bool:
    """Whether a synchronisation may take the spool from a stream that has it."""
    if header.etcd.revision != holder.etcd.revision:
        return header.etcd.revision > holder.etcd.revision
    return header.route.primary_id == holder.route.primary_id


def _call_all(withdrawals: list[Withdraw]) -> None:
    for withdraw in withdrawals:
        withdraw()
