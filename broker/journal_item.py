"""JournalItem: a journal as the allocator sees it, which asks how many brokers are to hold it and where they may be.

A mirror holds a hundred thousand of them, so they are small: what is equal in many of them is one and the same object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.validation import validate

ZONES = "pygazette.dev/zones"
"""The label that binds a journal to zones, with a value for each. Unlike the region's, it is an order to the allocator,
and not a description for people."""

_SHARED_MAX = 1024


@dataclass(frozen=True, slots=True)
class JournalItem:
    """
    >>> from protocol.label import LabelSet
    >>> spec = JournalSpec("acme/orders", 3, LabelSet.of((ZONES, "zone-a"), (ZONES, "zone-b")))
    >>> item = JournalItem.of(spec, max_replication=2)
    >>> item.desired_replication, sorted(item.zones)
    (2, ['zone-a', 'zone-b'])
    """

    spec: JournalSpec
    # Of the spec, but for what suspension and the broker's own flag have to say about it.
    desired_replication: int
    # Where its replicas may be. None is anywhere.
    zones: frozenset[str] | None

    @classmethod
    def of(cls, spec: JournalSpec, max_replication: int) -> JournalItem:
        return cls(spec, spec.desired_replication(max_replication), _zones(tuple(spec.labels.values_of(ZONES))))

    @classmethod
    def decoded(cls, name: str, raw: bytes, max_replication: int) -> JournalItem:
        """The spec of the journal `name` as it is in etcd. Raises unless it is valid, and that journal's."""
        message = pb.JournalSpec.FromString(raw)
        validate(message)
        if message.name != name:
            raise ValidationError("the spec is of another journal than its key", "JournalSpec", "Name")
        # The name is held by the key's part already.
        return cls.of(replace(JournalSpec.from_proto(message), name=name), max_replication)


@lru_cache(maxsize=_SHARED_MAX)
def _zones(values: tuple[str, ...]) -> frozenset[str] | None:
    """A label without a value names no zone. As nobody can be in it, it is taken for none at all."""
    return frozenset(values) - {""} or None
