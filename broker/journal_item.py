"""JournalItem: a journal as the allocator sees it, which asks how many brokers are to hold it and where they may be.

A mirror holds a hundred thousand of them, so they are small: what is equal in many of them is one and the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.identifier import JOURNAL_BYTES, check_path_component
from protocol.journal import JournalSpec
from protocol.memo import remembered
from protocol.validation import validate

ZONES = "pygazette.dev/zones"
"""The label that binds a journal to zones, with a value for each. Unlike the region's, it is an order to the allocator,
and not a description for people."""

_SHARED_MAX = 1024
_ANY_NAME = "any/journal"


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
        return cls.of(_spec(name, raw), max_replication)


def _spec(name: str, raw: bytes) -> JournalSpec:
    # Go and we write the name first. What follows is the same for all journals that were applied alike, so it is read
    # and judged once: a hundred thousand journals to load then take a third of the time.
    head = pb.JournalSpec(name=name).SerializeToString()
    if raw.startswith(head) and (rest := _nameless(raw[len(head) :])):
        checked("Name", check_path_component, name, *JOURNAL_BYTES)
        return JournalSpec(
            name, rest.replication, rest.labels, rest.fragment, rest.flags, rest.max_append_rate, rest.suspend
        )
    message = pb.JournalSpec.FromString(raw)
    validate(message)
    if message.name != name:
        raise ValidationError("the spec names another journal than its key", "JournalSpec", "Name")
    return JournalSpec.from_proto(message)


@remembered
def _nameless(raw: bytes) -> JournalSpec | None:
    """A spec without its name, on which nothing else in it depends; None if it has one after all."""
    message = pb.JournalSpec.FromString(raw)
    if message.name:
        return None
    message.name = _ANY_NAME
    validate(message)
    return JournalSpec.from_proto(message)


@lru_cache(maxsize=_SHARED_MAX)
def _zones(values: tuple[str, ...]) -> frozenset[str] | None:
    """A label without a value names no zone. As nobody can be in it, it is taken for none at all."""
    return frozenset(values) - {""} or None
