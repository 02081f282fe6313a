"""The keys of a cluster of brokers in etcd: what their values mean, and when a journal's assignments agree.

An assignment holds the Route that its journal's primary saw when all of its brokers were last in step. Nobody else
writes it, and whatever changes about the assignments makes it wrong: so a journal is consistent if, and only if, all of
its assignments hold the Route that their keys make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Entity, Item, decoder
from broker.broker_member import BrokerMember
from broker.journal_item import JournalItem
from protocol.gen import journal_pb2 as pb
from protocol.memo import remembered
from protocol.route import ProcessId, Route
from protocol.validation import validate

MAX_REPLICATION = 9

BrokerEntity: TypeAlias = Entity[JournalItem, BrokerMember, Route]

_MEMBERS_MAX = 4096
_NOWHERE = Route()


def broker_decoder(root: str, max_replication: int = MAX_REPLICATION) -> Callable[[str, bytes], BrokerEntity]:
    """Decodes all keys under `root`. `max_replication` bounds what specs ask for, by this broker's own flag."""

    def journal(name: str, raw: bytes) -> JournalItem:
        return JournalItem.decoded(name, raw, max_replication)

    return decoder(root, journal, BrokerMember.decoded, assigned_route)


def assigned_route(raw: bytes) -> Route:
    """What the value of an assignment means. It is empty until its journal is consistent for the first time."""
    return _route(raw) if raw else _NOWHERE


# The assignments of a journal are neighbours, and hold the same Route.
@remembered
def _route(raw: bytes) -> Route:
    message = pb.Route.FromString(raw)
    validate(message)
    route = Route.from_proto(message)
    # Every Route of the cluster is made of the same few brokers.
    return replace(route, members=tuple([_process_id(*member) for member in route.members]))


@lru_cache(maxsize=_MEMBERS_MAX)
def _process_id(zone: str, suffix: str) -> ProcessId:
    return ProcessId(zone, suffix)


@lru_cache(maxsize=_MEMBERS_MAX)
def _member_id(member: str) -> ProcessId:
    zone, _, suffix = member.partition("#")
    return _process_id(zone, suffix)


def route_of(assigned: Sequence[KeyValue[Assignment[Route]]]) -> Route:
    """The Route that the keys of all assignments of a journal make, without endpoints."""
    return Route.of_slots([(_member_id(kv.value.member), kv.value.slot) for kv in assigned])


def journal_consistency(item: Item[JournalItem], assigned: Sequence[KeyValue[Assignment[Route]]]) -> list[bool]:
    """Which of all the assignments of a journal are in order: all of them or none."""
    route = route_of(assigned)
    return [all(kv.value.value.equivalent(route) for kv in assigned)] * len(assigned)
