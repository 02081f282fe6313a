from __future__ import annotations

from dataclasses import replace

from allocator.keys import assignment_key, item_key
from allocator.transaction import KEEP_LEASE, Compare, Put, Target
from broker.journal_transaction import advertise, set_suspend
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec, Suspend, SuspendLevel
from protocol.route import Route
from tests.support.broker_cores import JOURNAL, ROOT, SPEC, A, B, C, assigned, resolution_of, route_of

ROUTE = route_of(A, B, C)


def key_of(member: tuple[str, str], slot: int) -> str:
    return assignment_key(ROOT, JOURNAL, *member, slot)


def test_the_route_goes_without_endpoints_to_those_that_do_not_say_it_and_all_are_compared() -> None:
    resolution = resolution_of(ROUTE, is_consistent=False)
    stale, fresh = assigned(ROUTE, route_of(A, B)), assigned(ROUTE, ROUTE)
    resolution = replace(resolution, assignments=[stale[0], fresh[1], stale[2]])
    transaction = advertise(resolution)
    keys = [key_of(A, 0), key_of(B, 1), key_of(C, 2)]
    assert transaction.compares == tuple(Compare(key, Target.MOD, 9) for key in keys)
    value = replace(ROUTE, endpoints=None).to_proto().SerializeToString()
    assert transaction.operations == (Put(keys[0], value, KEEP_LEASE), Put(keys[2], value, KEEP_LEASE))
    assert Route.from_proto(pb.Route.FromString(value)).equivalent(ROUTE)


def test_suspension_is_written_if_neither_the_spec_nor_an_assignment_has_changed() -> None:
    transaction = set_suspend(resolution_of(ROUTE), SuspendLevel.PARTIAL, 77)
    item = item_key(ROOT, JOURNAL)
    assert transaction.compares == (
        Compare(item, Target.MOD, 6),
        *(Compare(key, Target.MOD, 9) for key in (key_of(A, 0), key_of(B, 1), key_of(C, 2))),
    )
    (put,) = transaction.operations
    assert isinstance(put, Put)
    assert (put.key, put.lease) == (item, 0)
    written = JournalSpec.from_proto(pb.JournalSpec.FromString(put.value))
    assert written == replace(SPEC, suspend=Suspend(SuspendLevel.PARTIAL, 77))


def test_a_journal_without_assignments_can_be_resumed() -> None:
    suspended = replace(SPEC, suspend=Suspend(SuspendLevel.FULL, 5))
    transaction = set_suspend(resolution_of(Route(), spec=suspended), SuspendLevel.NONE, 5)
    assert len(transaction.compares) == 1
    (put,) = transaction.operations
    assert isinstance(put, Put)
    assert pb.JournalSpec.FromString(put.value).suspend == pb.JournalSpec.Suspend(offset=5)


def test_what_we_do_not_know_of_a_spec_is_kept() -> None:
    resolution = resolution_of(ROUTE)
    assert resolution.item is not None
    # Field 999, a string.
    unknown = bytes.fromhex("ba3e036e6577")
    item = resolution.item._replace(raw=resolution.item.raw + unknown)
    (put,) = set_suspend(replace(resolution, item=item), SuspendLevel.FULL, 1).operations
    assert isinstance(put, Put)
    assert unknown in put.value
