"""Appends while their Route changes, and while journals and replicas are made anew."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from allocator.keys import item_key
from broker.append_event import AppendOpening, AppendOutcome, End, Intent
from broker.append_state import State
from broker.replication_message import Content, Propose
from broker.resolver import StoppedError
from protocol.errors import Status
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import JOURNAL, ROOT, SPEC, A, B, C, D, fragment, labels
from tests.support.four_brokers import all_ends, settled, three
from tests.support.mini_cluster import MiniCluster


def test_with_too_many_members_an_append_waits_and_sends_no_content() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 0), (B, 1), (C, 2), (D, 3))
    cluster.run()
    client = cluster.append(A, b"second")
    queued = cluster.append(A, b"third")
    cluster.run()
    assert not client.is_over
    assert client.run.fsm.state is State.RESOLVE
    assert queued.run.fsm.state is State.ACQUIRE_PIPELINE
    assert not any(isinstance(message, Content) for wire in cluster.wires[2:] for message in wire.messages)
    cluster.etcd.assign((A, 0), (B, 1), (D, 2))
    cluster.run()
    assert [client.status, queued.status] == [Status.OK, Status.OK]
    assert cluster.brokers[D].reads(5, 11) == b"second"


def test_an_append_that_waits_for_fewer_members_may_be_cancelled_and_the_next_gets_the_pipeline() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 0), (B, 1), (C, 2), (D, 3))
    cluster.run()
    client, queued = cluster.append(A, b"second"), cluster.append(A, b"third")
    cluster.run()
    client.cancel()
    cluster.run()
    assert queued.run.fsm.state is State.RESOLVE
    cluster.etcd.assign((A, 0), (B, 1), (C, 2))
    cluster.run()
    assert queued.status is Status.OK


def test_with_too_few_members_an_append_is_refused_and_nothing_written() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 0), (B, 1))
    cluster.run()
    client = cluster.append(A, b"second")
    cluster.run()
    assert client.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert {cluster.brokers[member].spool.spool.fragment.end for member in (A, B)} == {5}


def test_after_a_change_of_the_route_new_streams_begin_with_a_header_and_old_ones_are_ended() -> None:
    cluster = three()
    settled(cluster, b"first")
    old = list(cluster.wires)
    cluster.etcd.assign((A, 0), (B, 1), (D, 2))
    settled(cluster, b"second")
    new = [wire for wire in cluster.wires if wire not in old]
    assert {wire.to.id for wire in new} == {B, D}
    for wire in new:
        assert wire.opened_with is not None
        assert wire.opened_with.acknowledge
        assert wire.opened_with.header is not None
        assert wire.opened_with.header.process_id == wire.to.id
        later = [message for message in wire.messages[1:] if isinstance(message, Propose)]
        assert [message.header for message in later] == [None] * len(later)
    assert cluster.brokers[D].reads(5, 11) == b"second"


def test_a_member_that_is_new_makes_all_begin_a_fragment() -> None:
    cluster = three()
    settled(cluster, b"first")
    settled(cluster, b"second")
    cluster.etcd.assign((A, 0), (B, 1), (D, 2))
    settled(cluster, b"third")
    assert cluster.brokers[A].spool.completed == [fragment(0, b"first"), fragment(5, b"second")]
    assert cluster.brokers[D].spool.spool.fragment == fragment(11, b"third")


def test_a_journal_moves_to_another_primary_and_goes_on_where_it_was() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 1), (B, 0), (C, 2))
    cluster.run()
    client = cluster.append(B, b"second")
    cluster.run()
    assert (client.status, client.commit.begin) == (Status.OK, 5)
    assert cluster.brokers[A].reads(5, 11) == b"second"


def test_an_append_that_streams_while_its_route_changes_still_commits_under_the_old_one() -> None:
    cluster = three()
    settled(cluster, b"first")
    client = cluster.append(A, b"second", ends="open")
    cluster.run()
    cluster.etcd.assign((B, 0), (C, 1), (D, 2))
    cluster.run()
    assert JOURNAL not in cluster.brokers[A].resolver.replicas
    client.script += [Intent(), End()]
    cluster.run()
    assert client.status is Status.OK
    assert isinstance(client.outcome, AppendOutcome)
    assert client.outcome.header.route.members == (A, B, C)
    old = cluster.brokers[A].spools[0]
    assert old.is_handed_on
    assert old.completed == [fragment(0, b"first"), fragment(5, b"second")]
    after = cluster.append(B, b"third")
    cluster.run()
    assert (after.status, after.commit.begin) == (Status.OK, 11)


def test_an_append_that_waits_behind_it_is_proxied_to_the_new_primary() -> None:
    cluster = three()
    settled(cluster, b"first")
    client = cluster.append(A, b"second", ends="open")
    cluster.run()
    waiting = cluster.append(A, b"third")
    cluster.etcd.assign((B, 0), (C, 1), (D, 2))
    cluster.run()
    assert waiting.proxied is not None
    assert waiting.proxied.header.process_id == B
    client.cancel()
    cluster.run()


def test_a_broker_that_stops_tells_those_who_wait_and_does_not_go_round_in_circles() -> None:
    cluster = three()
    settled(cluster, b"first")
    holder = cluster.append(A, b"held", ends="open")
    cluster.run()
    waiting = cluster.append(A, b"second")
    cluster.brokers[A].resolver.stop()
    assert isinstance(waiting.outcome, StoppedError)
    holder.script += [Intent(), End()]
    cluster.run()
    assert holder.status is Status.OK
    assert cluster.brokers[A].all_replicas[0].given_up.is_fired
    late = cluster.append(A, b"late")
    assert isinstance(late.outcome, StoppedError)


def test_two_who_take_themselves_for_the_primary_do_not_both_commit() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 1), (B, 0), (C, 2))
    cluster.brokers[B].observe()
    mine, theirs = cluster.append(A, b"mine"), cluster.append(B, b"theirs")
    while mine.can_feed or theirs.can_feed:
        next(client for client in (mine, theirs) if client.can_feed).feed()
    cluster.run()
    assert theirs.status is Status.OK
    assert mine.is_over
    assert all_ends(cluster) == {cluster.brokers[B].spool.spool.fragment.end}


def test_a_transaction_that_failed_on_what_is_known_by_now_is_not_waited_for_twice() -> None:
    """The one before has changed the assignments, and its client was gone before anybody here was told."""
    cluster = three()
    gone, client = cluster.append(A, b"gone"), cluster.append(A, b"hello")
    gone.cancel()
    cluster.run()
    assert client.is_over
    assert client.commit.end == 5


def test_a_thousand_appends_that_are_told_of_a_new_route_do_not_nest() -> None:
    cluster = three()
    settled(cluster, b"first")
    holder = cluster.append(A, b"holds", ends="open")
    cluster.run()
    clients = [cluster.append(A, b"x") for _ in range(1000)]
    cluster.etcd.assign((A, 0), (B, 1), (D, 2))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        cluster.run()
        holder.script += [Intent(), End()]
        cluster.run()
    finally:
        sys.setrecursionlimit(limit)
    assert holder.status is Status.OK
    assert all(client.status is Status.OK for client in clients)
    assert cluster.brokers[D].spool.spool.fragment.end == 10 + 1000


# Journals and replicas that are made anew.


def test_a_journal_that_is_deleted_and_created_again_begins_at_zero_even_for_who_had_the_pipeline() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign((A, 0), (B, 1), (C, 2), (D, 3))
    cluster.run()
    client, queued = cluster.append(A, b"second"), cluster.append(A, b"third")
    cluster.run()
    assert client.run.fsm.state is State.RESOLVE
    old = cluster.brokers[A].replica
    cluster.etcd.remove(item_key(ROOT, JOURNAL))
    cluster.etcd.apply(SPEC)
    cluster.etcd.assign((A, 0), (B, 1), (C, 2))
    cluster.run()
    assert cluster.brokers[A].replica is not old
    assert [client.status, queued.status] == [Status.OK, Status.OK]
    assert sorted((client.commit.begin, queued.commit.begin)) == [0, 5] or (
        sorted((client.commit.begin, queued.commit.begin)) == [0, 6]
    )
    assert old.given_up.is_fired
    assert cluster.brokers[A].spools[0].completed == [fragment(0, b"first")]


def test_an_append_that_waits_for_a_replica_that_is_made_anew_gets_the_new_one() -> None:
    """It asks again in the very moment in which the old one is given up."""
    cluster = three()
    settled(cluster, b"first")
    holder = cluster.append(A, b"held", ends="open")
    cluster.run()
    waiting = cluster.append(A, b"second")
    cluster.etcd.remove(item_key(ROOT, JOURNAL))
    cluster.etcd.apply(SPEC)
    cluster.run()
    assert waiting.status is Status.OK
    assert waiting.commit.begin == 0
    holder.cancel()
    cluster.run()
    assert cluster.brokers[A].all_replicas[0].given_up.is_fired


@pytest.mark.parametrize("between", [((A, 0), (B, 1), (D, 2)), ((B, 0), (A, 1), (C, 2))], ids=["removed", "demoted"])
def test_a_peer_that_made_a_new_replica_is_synchronised_with_though_the_route_is_the_same_again(
    between: tuple[tuple[ProcessId, int], ...],
) -> None:
    """The primary sees both changes as one, and its stream goes to a replica that its peer has given up."""
    cluster = three()
    settled(cluster, b"first")
    cluster.etcd.assign(*between)
    for member in (B, C, D):
        cluster.brokers[member].observe()
    cluster.etcd.assign((A, 0), (B, 1), (C, 2))
    settled(cluster, b"second")
    for member in (A, B, C):
        assert cluster.brokers[member].spool.reads(5, 11) == b"second"
        assert all(replica.given_up.is_fired for replica in cluster.brokers[member].all_replicas[:-1])


def test_a_replica_that_is_made_anew_waits_for_the_one_before_it_that_still_streams() -> None:
    """What the one before it has committed is in nobody's hands yet: the new one must not speak for it."""
    cluster = MiniCluster(A, spec=replace(SPEC, replication=1))
    first = settled(cluster, b"acknowledged")
    slow = cluster.append(A, b"slow", ends="open")
    cluster.run()
    cluster.etcd.assign()
    cluster.run()
    cluster.etcd.assign((A, 0))
    cluster.run()
    early = cluster.append(A, b"other bytes")
    cluster.run()
    assert early.status is Status.INDEX_HAS_GREATER_OFFSET
    head = cluster.etcd.head().head
    assert head is not None
    assert [epoch.begin for epoch in head.epochs] == [0], "nobody has begun again where the epoch did"
    slow.cancel()
    cluster.run()
    after = cluster.append(A, b"other bytes")
    cluster.run()
    assert after.commit.begin == first.commit.end


def heads_are_read(cluster: MiniCluster) -> None:
    while cluster.under_way:
        name, act = cluster.under_way.pop(0)
        assert name == "head is read"
        act()


def test_two_pipelines_of_a_journal_that_was_created_again_do_not_wait_for_each_other() -> None:
    """Each has the spool of one peer: that of the journal that was deleted, and that of the one created again."""
    cluster = three()
    cluster.run()
    clients = [cluster.append(A, b"<1>"), cluster.append(A, b"<2>")]
    heads_are_read(cluster)
    (old_to_b, _) = cluster.wires
    assert old_to_b.to.id == B
    cluster.etcd.remove(item_key(ROOT, JOURNAL))
    cluster.etcd.apply(SPEC)
    cluster.brokers[A].observe()
    for member in (B, C):
        cluster.brokers[member].observe()
    heads_are_read(cluster)
    (*_, new_to_c) = cluster.wires
    assert new_to_c.to.id == C
    new_to_c.deliver_request()
    old_to_b.deliver_request()
    cluster.run()
    assert [client.status for client in clients] == [Status.OK, Status.OK]
    assert cluster.brokers[A].all_replicas[0].given_up.is_fired
    assert all_ends(cluster) == {6}


def test_nothing_of_a_journal_that_was_deleted_gets_into_the_one_that_was_created_again() -> None:
    cluster = three()
    fenced = AppendOpening(JOURNAL, union_registers=labels(author="old"))
    cluster.append(A, b"old", opening=fenced)
    cluster.run()
    # Its next append is about to synchronise anew.
    for wire in list(cluster.wires):
        wire.break_off()
    late = cluster.append(A, b"late")
    cluster.etcd.remove(item_key(ROOT, JOURNAL))
    cluster.etcd.apply(SPEC)
    for member in (B, C):
        cluster.brokers[member].observe()
    while any(wire.actions() for wire in cluster.wires):
        next(wire for wire in cluster.wires if wire.actions()).actions()[0][1]()
    cluster.run()
    assert late.is_over
    fresh = settled(cluster, b"new")
    assert isinstance(fresh.outcome, AppendOutcome)
    assert fresh.outcome.registers == LabelSet()
    assert fresh.commit.begin in (0, 4), "after the late one at most, if that came to the new journal"
