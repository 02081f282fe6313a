"""What the primary of a journal writes to etcd: the Route that its members agreed on, and whether it is suspended."""

from __future__ import annotations

from dataclasses import replace

from allocator.key_value import KeyValue, ValueT
from allocator.keys import item_key
from allocator.transaction import KEEP_LEASE, Compare, Delete, Put, Target, Transaction
from broker.append_effect import HeadChange
from broker.durable_head import head_key
from broker.resolution import Resolution
from protocol.gen import journal_pb2 as pb
from protocol.journal import Suspend, SuspendLevel


def advertise(resolution: Resolution, change: HeadChange | None = None) -> Transaction:
    """Have every assignment say the Route, which tells the allocator that all members are in step.

    Where the members can be reached is left out: that may change, and their own keys say it. An epoch is opened with
    it, if neither the head nor the journal has changed since.
    """
    route = replace(resolution.header.route, endpoints=None)
    encoded = route.to_proto().SerializeToString(deterministic=True)
    outdated = [kv for kv in resolution.assignments if not kv.value.value.equivalent(route)]
    compares, operations = _recorded(resolution, change)
    return Transaction(
        (*(_unchanged(kv) for kv in resolution.assignments), *compares),
        (*(Put(kv.key, encoded, KEEP_LEASE) for kv in outdated), *operations),
    )


def set_suspend(
    resolution: Resolution, level: SuspendLevel, offset: int, change: HeadChange | None = None
) -> Transaction:
    """Suspend or resume the journal, if neither its spec nor who holds it has changed."""
    item = resolution.item
    assert item is not None
    # Not from our own value of it: somebody's newer release may have put more into the spec than we know.
    spec = pb.JournalSpec.FromString(item.raw)
    spec.suspend.CopyFrom(Suspend(level, offset).to_proto())
    encoded = spec.SerializeToString(deterministic=True)
    compares, operations = _recorded(resolution, change)
    return Transaction(
        (_unchanged(item), *(_unchanged(kv) for kv in resolution.assignments), *compares),
        (Put(item.key, encoded), *operations),
    )


def record(root: str, journal: str, change: HeadChange) -> Transaction:
    """Change the head alone."""
    key = head_key(root, journal)
    return Transaction((Compare(key, Target.MOD, change.mod_revision),), (Put(key, change.head.encoded()),))


def unrecord(root: str, journal: str, mod_revision: int) -> Transaction:
    """Remove what is on record of a journal that does not exist."""
    key = head_key(root, journal)
    absent = Compare(item_key(root, journal), Target.VERSION, 0)
    return Transaction((absent, Compare(key, Target.MOD, mod_revision)), (Delete(key),))


def _recorded(resolution: Resolution, change: HeadChange | None) -> tuple[tuple[Compare, ...], tuple[Put, ...]]:
    if change is None:
        return (), ()
    item = resolution.item
    assert item is not None
    key = head_key(resolution.root, item.value.id)
    same = Compare(item.key, Target.CREATE, item.create_revision)
    return (same, Compare(key, Target.MOD, change.mod_revision)), (Put(key, change.head.encoded()),)


def _unchanged(kv: KeyValue[ValueT]) -> Compare:
    return Compare(kv.key, Target.MOD, kv.mod_revision)
