"""Resolution: who serves a journal, as one view of etcd has it, and whether a request may be served here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, Member, assignments_prefix, item_key, member_key
from allocator.keyspace_view import KeySpaceView
from broker.broker_member import EPOCHS, KIN, BrokerMember
from broker.cluster_keys import BrokerEntity, route_of
from broker.journal_item import JournalItem
from protocol.errors import PreconditionError, Status
from protocol.journal import JournalSpec, Suspend, SuspendLevel
from protocol.route import EtcdRevision, Header, ProcessId, Route
from protocol.selector import LabelSelector

EVERYTHING = LabelSelector()

MISSING_ID = ProcessId("local-BrokerSpec", "missing-from-Etcd")
"""The id of a broker whose member key is gone: one that nobody has."""

_NOT_SUSPENDED = Suspend()


REVISION_WAIT_S = 30.0
"""A broker lags etcd by fractions of a second. A request that names a revision far ahead is mistaken, or forged."""


class MisdirectedError(PreconditionError):
    """A request that was forwarded to another broker, or to another cluster, than this."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of whoever is to serve it."""

    # Without what may follow a semicolon.
    journal: str
    may_proxy: bool = True
    require_primary: bool = False
    min_revision: int = 0
    # Of the broker that forwarded the request.
    header: Header | None = None
    # What the caller may see. A journal beyond it is as one that does not exist.
    selector: LabelSelector = EVERYTHING

    @property
    def revision(self) -> int:
        """At which it may be resolved, at the earliest."""
        return max(self.min_revision, self.header.etcd.revision if self.header else 0)


@dataclass(frozen=True, slots=True)
class Resolution:
    status: Status
    # Who serves the request, if it is not refused: None if any member may. If it is refused, that is us.
    header: Header
    local_id: ProcessId
    item: KeyValue[Item[JournalItem]] | None = None
    assignments: Sequence[KeyValue[Assignment[Route]]] = ()
    # Members of our own kind; and the spool directories of those that keep epochs.
    kin: frozenset[ProcessId] = frozenset()
    spool_ids: Mapping[ProcessId, bytes] = field(default_factory=dict, compare=False)
    # What we hold of the journal, be it for this request or not. Whose that is, only its owner knows.
    replica: object = field(default=None, compare=False)

    @property
    def is_local(self) -> bool:
        return self.header.process_id == self.local_id

    @property
    def revision(self) -> int:
        return self.header.etcd.revision

    @property
    def spec(self) -> JournalSpec:
        assert self.item is not None
        return self.item.value.value.spec

    @property
    def suspend(self) -> Suspend:
        return self.spec.suspend or _NOT_SUSPENDED

    @property
    def desired_replication(self) -> int:
        assert self.item is not None
        return self.item.value.value.desired_replication

    @property
    def root(self) -> str:
        """Of the cluster's keys."""
        assert self.item is not None
        return self.item.key.removesuffix(item_key("", self.item.value.id))

    @property
    def keeps_epochs(self) -> bool:
        """Whether all members do: with one that does not, Gazette's rules hold for all."""
        return len(self.spool_ids) == len(self.header.route.members)

    @property
    def create_revision(self) -> int:
        """Of the journal's item: its incarnation."""
        assert self.item is not None
        return self.item.create_revision

    @property
    def is_consistent(self) -> bool:
        """Whether every assignment advertises the Route."""
        return all(kv.value.value.equivalent(self.header.route) for kv in self.assignments)


def resolved(view: KeySpaceView[BrokerEntity], root: str, own_id: ProcessId, wanted: Wanted) -> Resolution:
    """Resolve a request in a view that is at ``wanted.revision`` or later. Raises MisdirectedError."""
    known = view.get(member_key(root, *own_id))
    local_id = own_id if known is not None else MISSING_ID
    check_forwarded(view, local_id, wanted)
    item = _item(view, root, wanted)
    assigned = view.prefixed(assignments_prefix(root, wanted.journal)) if item is not None else ()
    assignments = cast("Sequence[KeyValue[Assignment[Route]]]", assigned)
    route, kin, spool_ids = _route(view, root, assignments)
    serves = _server(route, local_id, wanted)
    status = _status(item, route, serves, local_id, wanted)
    etcd = EtcdRevision(view.header.cluster_id, view.header.member_id, view.revision, view.header.raft_term)
    header = Header(serves if status is Status.OK else local_id, route, etcd)
    return Resolution(status, header, local_id, item, assignments, kin, spool_ids)


def check_forwarded(view: KeySpaceView[BrokerEntity], local_id: ProcessId, wanted: Wanted) -> None:
    """Raises a MisdirectedError if the request was forwarded to somebody else."""
    header = wanted.header
    if header is None:
        return
    if header.etcd.cluster_id != view.header.cluster_id:
        raise MisdirectedError(
            f"the request is for etcd cluster {header.etcd.cluster_id:x}, and this is {view.header.cluster_id:x}"
        )
    if header.process_id is not None and header.process_id != local_id:
        raise MisdirectedError(
            f"the request is for {header.process_id.zone}/{header.process_id.suffix}, and this is "
            f"{local_id.zone}/{local_id.suffix}"
        )


def _item(view: KeySpaceView[BrokerEntity], root: str, wanted: Wanted) -> KeyValue[Item[JournalItem]] | None:
    kv = cast("KeyValue[Item[JournalItem]] | None", view.get(item_key(root, wanted.journal)))
    if kv is None:
        return None
    spec = kv.value.value.spec
    if wanted.selector is not EVERYTHING and not wanted.selector.matches(spec.labels.assign("name", spec.name)):
        return None
    return kv


def _route(
    view: KeySpaceView[BrokerEntity], root: str, assignments: Sequence[KeyValue[Assignment[Route]]]
) -> tuple[Route, frozenset[ProcessId], dict[ProcessId, bytes]]:
    """The Route of these assignments with its endpoints, which members are of our kind, and who keeps epochs where."""
    route = route_of(assignments)
    endpoints: dict[ProcessId, str] = {}
    kin: set[ProcessId] = set()
    spool_ids: dict[ProcessId, bytes] = {}
    for member in route.members:
        kv = cast("KeyValue[Member[BrokerMember]] | None", view.get(member_key(root, *member)))
        endpoints[member] = kv.value.value.endpoint if kv is not None else ""
        if kv is not None and kv.value.value.capabilities & KIN:
            kin.add(member)
        if kv is not None and kv.value.value.capabilities & EPOCHS and kv.value.value.spool_id:
            spool_ids[member] = kv.value.value.spool_id
    return route.with_endpoints(endpoints), frozenset(kin), spool_ids


def _server(route: Route, local_id: ProcessId, wanted: Wanted) -> ProcessId | None:
    if wanted.require_primary:
        return route.primary_id
    return local_id if local_id in route.members else None


def _status(
    item: KeyValue[Item[JournalItem]] | None,
    route: Route,
    serves: ProcessId | None,
    local_id: ProcessId,
    wanted: Wanted,
) -> Status:
    """The first that fits, in the order that clients rely on."""
    if item is None:
        return Status.JOURNAL_NOT_FOUND
    suspend = item.value.value.spec.suspend
    if suspend is not None and suspend.level == SuspendLevel.FULL:
        return Status.SUSPENDED
    if wanted.require_primary and route.primary is None:
        return Status.NO_JOURNAL_PRIMARY_BROKER
    if not route.members:
        return Status.INSUFFICIENT_JOURNAL_BROKERS
    if not wanted.may_proxy and serves != local_id:
        return Status.NOT_JOURNAL_PRIMARY_BROKER if wanted.require_primary else Status.NOT_JOURNAL_BROKER
    return Status.OK
