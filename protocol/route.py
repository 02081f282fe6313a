"""ProcessId, Route and Header: which brokers hold a journal, and under which etcd revision that was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.gen import journal_pb2 as pb


class ProcessId(NamedTuple):
    """Orders by zone, then suffix, which is the order of member keys in etcd."""

    zone: str
    suffix: str

    @classmethod
    def from_proto(cls, message: pb.ProcessSpec.ID) -> ProcessId:
        return cls(message.zone, message.suffix)

    def to_proto(self) -> pb.ProcessSpec.ID:
        return pb.ProcessSpec.ID(zone=self.zone, suffix=self.suffix)


@dataclass(frozen=True, slots=True)
class Route:
    """Members in ascending order, and which of them is primary.

    >>> route = Route.of_slots([(ProcessId("zone-b", "broker-2"), 0), (ProcessId("zone-a", "broker-1"), 1)])
    >>> route.primary_id
    ProcessId(zone='zone-b', suffix='broker-2')
    """

    members: tuple[ProcessId, ...] = ()
    primary: int | None = None
    # None where they are not known. A Route that goes out to clients must have them: a Go client that meets
    # members without endpoints exits.
    endpoints: tuple[str, ...] | None = None

    @classmethod
    def of_slots(cls, slots: Iterable[tuple[ProcessId, int]]) -> Route:
        """The Route of an item's assignments: slot 0 is the primary."""
        held = sorted(slots)
        primary = next((at for at, (_, slot) in enumerate(held) if slot == 0), None)
        return cls(tuple(member for member, _ in held), primary)

    @property
    def primary_id(self) -> ProcessId | None:
        return None if self.primary is None else self.members[self.primary]

    def equivalent(self, other: Route) -> bool:
        """Whether both name the same members and primary. Where they can be reached does not matter."""
        return self.primary == other.primary and self.members == other.members

    def with_endpoints(self, endpoints: Mapping[ProcessId, str]) -> Route:
        return Route(self.members, self.primary, tuple(endpoints[member] for member in self.members))

    @classmethod
    def from_proto(cls, message: pb.Route) -> Route:
        return cls(
            tuple(ProcessId.from_proto(member) for member in message.members),
            None if message.primary == -1 else message.primary,
            tuple(message.endpoints) if message.endpoints else None,
        )

    def to_proto(self) -> pb.Route:
        """Without a primary the field is -1, never left out: its default would name the first member."""
        return pb.Route(
            members=[member.to_proto() for member in self.members],
            primary=-1 if self.primary is None else self.primary,
            endpoints=self.endpoints or (),
        )


class EtcdRevision(NamedTuple):
    """What the sender knew of etcd. `revision` is that of its KeySpace, never the store's own.

    A receiver waits until its own KeySpace has got there: were it the store's, that could be for ever.
    """

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


@dataclass(frozen=True, slots=True)
class Header:
    # Whom the request is meant for, or who answered; None where any member will do.
    process_id: ProcessId | None
    route: Route
    etcd: EtcdRevision

    @classmethod
    def from_proto(cls, message: pb.Header) -> Header:
        named = message.process_id.zone or message.process_id.suffix
        etcd = message.etcd
        return cls(
            ProcessId.from_proto(message.process_id) if named else None,
            Route.from_proto(message.route),
            EtcdRevision(etcd.cluster_id, etcd.member_id, etcd.revision, etcd.raft_term),
        )

    def to_proto(self) -> pb.Header:
        """Every part is present, as Go writes it."""
        return pb.Header(
            process_id=self.process_id.to_proto() if self.process_id else pb.ProcessSpec.ID(),
            route=self.route.to_proto(),
            etcd=pb.Header.Etcd(**self.etcd._asdict()),
        )
