"""Apply: creates, changes and deletes journals, all of a request or nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from allocator.etcd_client import Committed, EtcdClient
from allocator.etcd_errors import EtcdError, EtcdRefusedError, EtcdUnavailableError
from allocator.keyspace_view import KeySpaceView
from broker.answer_header import own_header
from broker.apply_plan import (
    ANY_REVISION,
    CurrentSpec,
    JournalChange,
    changes_of,
    check_permitted,
    check_templates,
    transaction_of,
)
from broker.cluster_keys import BrokerEntity
from broker.resolution import EVERYTHING
from protocol.errors import UnavailableError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.route import ProcessId
from protocol.selector import LabelSelector

log = logging.getLogger(__name__)

VISIBLE_S_MAX = 10.0
# How often a change of whatever there is begins anew, since something else is there than was looked at.
_ATTEMPTS_MAX = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApplyApi:
    etcd: EtcdClient
    root: str
    own_id: ProcessId
    view: Callable[[], KeySpaceView[BrokerEntity]]
    # Until the mirror has every event up to a revision, within so many seconds. Raises TimeoutError.
    wait_revision: Callable[[int, float], Awaitable[object]]

    async def apply(self, request: pb.ApplyRequest, selector: LabelSelector = EVERYTHING) -> pb.ApplyResponse:
        """The answer to a request that was found valid, of one who may change what `selector` matches."""
        changes = changes_of(request, self.root)
        if not changes:
            return self._answer(pb.OK)
        for _ in range(_ATTEMPTS_MAX):
            current = await _told(self._looked_up(changes, selector), may_write=False)
            committed = await _told(self._committed(changes, current, selector), may_write=True)
            if committed.succeeded:
                return await self._applied(changes, current, committed)
            if all(change.expected != ANY_REVISION for change in changes):
                break
        return self._answer(pb.ETCD_TRANSACTION_FAILED)

    async def _looked_up(self, changes: list[JournalChange], selector: LabelSelector) -> dict[str, CurrentSpec]:
        """The current specs, by key, of those journals where they matter.

        Not as the mirror has it: what it does not know yet could be somebody else's.
        """
        wanted = [
            change
            for change in changes
            if selector != EVERYTHING or not change.is_sure_to_write or change.template_problem is not None
        ]
        return {change.key: await self._current(change.key) for change in wanted}

    async def _current(self, key: str) -> CurrentSpec:
        stored = await self.etcd.get(key)
        if stored is None:
            return CurrentSpec()
        try:
            spec = JournalSpec.from_proto(pb.JournalSpec.FromString(stored.raw))
        except (DecodeError, ValidationError):
            # Nobody's but that of whom the name belongs to.
            return CurrentSpec(mod_revision=stored.mod_revision)
        return CurrentSpec(spec.labels, stored.mod_revision, spec.fragment.path_postfix_template)

    async def _committed(
        self, changes: list[JournalChange], current: dict[str, CurrentSpec], selector: LabelSelector
    ) -> Committed:
        if selector != EVERYTHING:
            for change in changes:
                check_permitted(change, current[change.key], selector)
        check_templates(changes, current)
        return await self.etcd.commit(transaction_of(changes, current))

    async def _applied(
        self, changes: list[JournalChange], current: dict[str, CurrentSpec], committed: Committed
    ) -> pb.ApplyResponse:
        """Answered once this broker knows of it, so that a List that follows shows it.

        Where nothing was written, there is no such revision to wait for, or to tell of.
        """
        if not any(change.is_sure_to_write or current[change.key].mod_revision for change in changes):
            return self._answer(pb.OK)
        revision = committed.header.revision
        try:
            await self.wait_revision(revision, VISIBLE_S_MAX)
        except TimeoutError:
            log.warning("an Apply was done but this broker has not heard of it yet", extra={"revision": revision})
        return self._answer(pb.OK, revision)

    def _answer(self, status: pb.Status.ValueType, revision: int | None = None) -> pb.ApplyResponse:
        return pb.ApplyResponse(status=status, header=own_header(self.view(), self.root, self.own_id, revision))


async def _told(asked: Awaitable[T], *, may_write: bool) -> T:
    """What etcd says, with what goes wrong in our terms. What it said of it is not for clients: it names hosts."""
    try:
        return await asked
    except EtcdRefusedError as error:
        log.warning("etcd refused an Apply", extra={"error": str(error)})
        raise ValidationError("etcd refuses the change: if it is large, apply it in parts", "ApplyRequest") from error
    except EtcdError as error:
        log.warning("etcd did not do an Apply", extra={"error": str(error)})
        is_unknown = may_write and isinstance(error, EtcdUnavailableError) and error.maybe_applied
        done = "may or may not have been made: look before you try again" if is_unknown else "was not made: try again"
        raise UnavailableError(f"etcd is out of reach, and the change {done}") from error
