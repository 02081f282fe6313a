"""Decodes the keys of a cluster of Go brokers or consumers, as tests of the allocator's mirror need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from allocator.keys import Entity, decoder
from protocol.gen import journal_pb2, shard_pb2
from protocol.validation import validate

M = TypeVar("M", bound=Message)

ItemSpec: TypeAlias = journal_pb2.JournalSpec | shard_pb2.ShardSpec
MemberSpec: TypeAlias = journal_pb2.BrokerSpec | shard_pb2.ConsumerSpec
Status: TypeAlias = journal_pb2.Route | shard_pb2.ReplicaStatus
GazetteEntity: TypeAlias = Entity[ItemSpec, MemberSpec, Status]


def broker_keys(root: str) -> Callable[[str, bytes], GazetteEntity]:
    def journal(name: str, raw: bytes) -> ItemSpec:
        spec = _valid(journal_pb2.JournalSpec, raw)
        return _named(spec, spec.name == name)

    def broker(zone: str, suffix: str, raw: bytes) -> MemberSpec:
        spec = _valid(journal_pb2.BrokerSpec, raw)
        return _named(spec, spec.process_spec.id == journal_pb2.ProcessSpec.ID(zone=zone, suffix=suffix))

    def route(raw: bytes) -> Status:
        return _valid(journal_pb2.Route, raw) if raw else journal_pb2.Route(primary=-1)

    return decoder(root, journal, broker, route)


def consumer_keys(root: str) -> Callable[[str, bytes], GazetteEntity]:
    def shard(name: str, raw: bytes) -> ItemSpec:
        spec = _valid(shard_pb2.ShardSpec, raw)
        return _named(spec, spec.id == name)

    def consumer(zone: str, suffix: str, raw: bytes) -> MemberSpec:
        spec = _valid(shard_pb2.ConsumerSpec, raw)
        return _named(spec, spec.process_spec.id == journal_pb2.ProcessSpec.ID(zone=zone, suffix=suffix))

    def status(raw: bytes) -> Status:
        return _valid(shard_pb2.ReplicaStatus, raw) if raw else shard_pb2.ReplicaStatus()

    return decoder(root, shard, consumer, status)


def _valid(kind: type[M], raw: bytes) -> M:
    message = kind.FromString(raw)
    validate(message)
    return message


def _named(spec: M, is_so: bool) -> M:
    if not is_so:
        raise ValueError("the value names another than its key")
    return spec
