"""Decodes the keys of a cluster of Go brokers or consumers, as tests of the allocator's mirror need it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from allocator.keyspace import Decode
from protocol.gen import journal_pb2, shard_pb2
from protocol.journal import JournalSpec
from protocol.validation import validate

M = TypeVar("M", bound=Message)

Member = journal_pb2.BrokerSpec | shard_pb2.ConsumerSpec


@dataclass(frozen=True)
class DecodedItem:
    id: str
    spec: journal_pb2.JournalSpec | shard_pb2.ShardSpec

    @property
    def desired_replication(self) -> int:
        if isinstance(self.spec, journal_pb2.JournalSpec):
            return JournalSpec.from_proto(self.spec).desired_replication(9)
        return 0 if self.spec.disable else 1 + min(self.spec.hot_standbys, 3)


@dataclass(frozen=True)
class DecodedMember:
    zone: str
    suffix: str
    spec: Member

    @property
    def limit(self) -> int:
        return self.spec.journal_limit if isinstance(self.spec, journal_pb2.BrokerSpec) else self.spec.shard_limit


@dataclass(frozen=True)
class DecodedAssignment:
    item: str
    zone: str
    suffix: str
    slot: int
    status: journal_pb2.Route | shard_pb2.ReplicaStatus


Entity = DecodedItem | DecodedMember | DecodedAssignment


def broker_keys(root: str) -> Decode[Entity]:
    return _decoder(root, journal_pb2.JournalSpec, journal_pb2.BrokerSpec, journal_pb2.Route)


def consumer_keys(root: str) -> Decode[Entity]:
    return _decoder(root, shard_pb2.ShardSpec, shard_pb2.ConsumerSpec, shard_pb2.ReplicaStatus)


def _decoder(
    root: str,
    item_type: type[journal_pb2.JournalSpec] | type[shard_pb2.ShardSpec],
    member_type: type[journal_pb2.BrokerSpec] | type[shard_pb2.ConsumerSpec],
    status_type: type[journal_pb2.Route] | type[shard_pb2.ReplicaStatus],
) -> Decode[Entity]:
    def decode(key: str, raw: bytes) -> Entity:
        for branch, parts in (("items", 1), ("members", 2), ("assign", 4)):
            if key.startswith(f"{root}/{branch}/"):
                names = key.removeprefix(f"{root}/{branch}/").split("#")
                _check(len(names) == parts, f"a key of {branch} has {parts} parts")
                return of[branch](names, raw)
        raise ValueError("no item, member or assignment")

    def item(names: list[str], raw: bytes) -> Entity:
        spec = _parsed(item_type, raw)
        named = spec.name if isinstance(spec, journal_pb2.JournalSpec) else spec.id
        _check(named == names[0], "the item's name is not that of its key")
        return DecodedItem(named, spec)

    def member(names: list[str], raw: bytes) -> Entity:
        spec = _parsed(member_type, raw)
        named = spec.process_spec.id
        _check([named.zone, named.suffix] == names, "the member's id is not that of its key")
        return DecodedMember(named.zone, named.suffix, spec)

    def assignment(names: list[str], raw: bytes) -> Entity:
        _check(re.fullmatch(r"[+-]?[0-9]+", names[3]) is not None, "the slot is not a number")
        status = _parsed(status_type, raw)
        if isinstance(status, journal_pb2.Route) and not raw:
            status.primary = -1
        return DecodedAssignment(names[0], names[1], names[2], int(names[3]), status)

    of = {"items": item, "members": member, "assign": assignment}
    return decode


def _parsed(kind: type[M], raw: bytes) -> M:
    message = kind.FromString(raw)
    if raw or not isinstance(message, journal_pb2.Route | shard_pb2.ReplicaStatus):
        validate(message)
    return message


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
