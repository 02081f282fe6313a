"""The keys of a cluster in etcd: built, taken apart, and joined with what the values under them mean.

A cluster lives under a root. ``<root>/items`` says what is to be held, ``<root>/members`` who can hold it, and
``<root>/assign`` who does. Parts of a key are joined by ``#``, and no part may hold it or a character before it: so the
order of keys is the order of their parts, and all assignments of an item are neighbours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeAlias, TypeVar

ItemT = TypeVar("ItemT")
MemberT = TypeVar("MemberT")
AssignmentT = TypeVar("AssignmentT")

_SEPARATOR = "#"
_RESERVED = re.compile(r"[\x00-#]")
# Zeros may lead, as many as one likes; no number that fits has more than nineteen digits beside them.
_SLOT = re.compile(r"([+-]?)0*([0-9]{1,19})", re.ASCII)
_SLOT_BITS = 63


class InvalidKeyError(ValueError):
    """A key that is none of a cluster's, or a part that cannot be in one."""


class Item(NamedTuple, Generic[ItemT]):
    """What is assigned. Today it is a journal or a shard, each with its own key; nothing here depends on it."""

    id: str
    value: ItemT


class Member(NamedTuple, Generic[MemberT]):
    # The zone and the suffix, as the key joins them.
    id: str
    value: MemberT

    @property
    def zone(self) -> str:
        return self.id.partition(_SEPARATOR)[0]


class Assignment(NamedTuple, Generic[AssignmentT]):
    # The ids of both, of which neither need exist.
    item: str
    member: str
    # Zero is the primary's.
    slot: int
    value: AssignmentT


Entity: TypeAlias = Item[ItemT] | Member[MemberT] | Assignment[AssignmentT]


def member_id(zone: str, suffix: str) -> str:
    """
    >>> member_id("zone-a", "broker-1")
    'zone-a#broker-1'
    """
    return f"{_part(zone)}{_SEPARATOR}{_part(suffix)}"


def items_prefix(root: str) -> str:
    return f"{root}/items/"


def members_prefix(root: str) -> str:
    return f"{root}/members/"


def assignments_prefix(root: str, item: str | None = None) -> str:
    """Of one item, or of them all."""
    return f"{root}/assign/" if item is None else f"{root}/assign/{_part(item)}{_SEPARATOR}"


def item_key(root: str, item: str) -> str:
    """
    >>> item_key("/gazette/cluster", "acme/orders")
    '/gazette/cluster/items/acme/orders'
    """
    return items_prefix(root) + _part(item)


def member_key(root: str, zone: str, suffix: str) -> str:
    return members_prefix(root) + member_id(zone, suffix)


def assignment_key(root: str, item: str, zone: str, suffix: str, slot: int) -> str:
    """
    >>> assignment_key("/gazette/cluster", "acme/orders", "zone-a", "broker-1", 0)
    '/gazette/cluster/assign/acme/orders#zone-a#broker-1#0'
    """
    return f"{assignments_prefix(root, item)}{member_id(zone, suffix)}{_SEPARATOR}{slot}"


def slot_key(root: str, item: str, member: str, slot: int) -> str:
    """The key of an assignment between two that have keys of their own, so that their ids need no check."""
    return f"{root}/assign/{item}{_SEPARATOR}{member}{_SEPARATOR}{slot}"


def holder(key: str) -> str:
    """The id of the member that an assignment's key names.

    >>> holder("/gazette/cluster/assign/acme/orders#zone-a#broker-1#0")
    'zone-a#broker-1'
    """
    return _SEPARATOR.join(key.rsplit(_SEPARATOR, 3)[1:3])


def decoder(
    root: str,
    item: Callable[[str, bytes], ItemT],
    member: Callable[[str, str, bytes], MemberT],
    assignment: Callable[[bytes], AssignmentT],
) -> Callable[[str, bytes], Entity[ItemT, MemberT, AssignmentT]]:
    """Decodes all keys under `root`.

    The callables decode values: that of an item is given its id, that of a member its zone and suffix, since a value
    that names another than its key does is to be refused. Whatever they raise is raised.
    """
    items, members, assignments = items_prefix(root), members_prefix(root), assignments_prefix(root)

    def decode(key: str, raw: bytes) -> Entity[ItemT, MemberT, AssignmentT]:
        if key.startswith(assignments):
            name, member_name, slot = _assignment_parts(key[len(assignments) :])
            # Members are few and assignments many: all that name one share its text.
            return Assignment(name, sys.intern(member_name), slot, assignment(raw))
        if key.startswith(items):
            (name,) = _parts(key[len(items) :], 1)
            return Item(name, item(name, raw))
        if key.startswith(members):
            zone, suffix = _parts(key[len(members) :], 2)
            return Member(f"{zone}{_SEPARATOR}{suffix}", member(zone, suffix, raw))
        raise InvalidKeyError("the key is under none of items/, members/ and assign/ of the cluster")

    return decode


def _assignment_parts(text: str) -> tuple[str, str, int]:
    item, zone, suffix, slot = _parts(text, 4)
    return item, f"{zone}{_SEPARATOR}{suffix}", _slot(slot)


def _slot(text: str) -> int:
    """As Gazette reads one: a slot that only some members of a cluster could read would be assigned again and again."""
    match = _SLOT.fullmatch(text)
    if match is None:
        raise InvalidKeyError("the slot of an assignment is a whole number")
    sign, digits = match.groups()
    slot = int(sign + digits)
    if not -(1 << _SLOT_BITS) <= slot < 1 << _SLOT_BITS:
        raise InvalidKeyError("the slot of an assignment is a number of 64 bits")
    return slot


def _parts(text: str, count: int) -> list[str]:
    parts = text.split(_SEPARATOR)
    if len(parts) != count:
        raise InvalidKeyError(f"the key should have {count} parts, each separated by #, and has {len(parts)}")
    return parts


def _part(text: str) -> str:
    if _RESERVED.search(text):
        raise InvalidKeyError("a part of a key holds # or a character that sorts before it")
    return text
