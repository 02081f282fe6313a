"""Appends to a small cluster, as their clients see them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from broker.append_event import AppendOpening, AppendOutcome, End, Failed, Intent
from broker.append_run import AppendRun
from broker.append_state import State
from broker.replication_message import Acked, Content, Propose
from broker.resolution import Resolution, Wanted
from fragment.index import Summary
from protocol.errors import Status, UnavailableError, ValidationError
from protocol.journal import Suspend, SuspendLevel, SuspendMode
from protocol.selector import LabelSelector
from tests.support.broker_cores import JOURNAL, POLICY, A, B, C, D, RecordingPort, fragment, labels, suspended
from tests.support.four_brokers import all_ends, settled, three
from tests.support.mini_cluster import MiniCluster

BROKEN = UnavailableError("it broke")


def resolve_now(cluster: MiniCluster) -> Resolution:
    found = cluster.brokers[A].resolver.resolve_now(Wanted(JOURNAL, require_primary=True))
    assert isinstance(found, Resolution)
    return found


def test_an_append_is_held_by_all_members_when_it_is_answered() -> None:
    cluster = three()
    client = settled(cluster, b"hello ", b"world")
    assert (client.commit.begin, client.commit.end) == (0, 11)
    for member in (A, B, C):
        assert cluster.brokers[member].reads(0, 11) == b"hello world"


def test_what_is_answered_can_be_read_at_once_at_the_primary_and_soon_at_its_peers() -> None:
    cluster = three()
    client = settled(cluster, b"hello")
    assert cluster.brokers[A].replica.index.summary() == Summary(0, 5, 0)
    for member in (B, C):
        assert cluster.brokers[member].replica.index.summary() == Summary(0, client.commit.end, 0)


def test_nothing_is_shown_before_all_members_have_it() -> None:
    cluster = three()
    settled(cluster)
    client = cluster.append(A, b"hello")
    while not client.is_over:
        for member in (A, B, C):
            assert cluster.brokers[member].replica.index.summary() == Summary(0, 0, 0)
        cluster.actions()[0][1]()
    assert cluster.brokers[A].replica.index.summary() == Summary(0, 5, 0)


def test_appends_follow_on_each_other() -> None:
    cluster = three()
    ends = [settled(cluster, bytes([65 + turn]) * 10).commit for turn in range(5)]
    assert [(commit.begin, commit.end) for commit in ends] == [(at, at + 10) for at in range(0, 50, 10)]
    assert all_ends(cluster) == {50}


def test_an_append_to_a_member_that_is_not_the_primary_is_proxied() -> None:
    cluster = three()
    client = cluster.append(B, b"hello")
    assert client.proxied is not None
    assert client.proxied.header.process_id == A


def test_all_assignments_advertise_the_route_after_the_first_append() -> None:
    cluster = three()
    settled(cluster, b"hello")
    assert resolve_now(cluster).is_consistent
    revision = cluster.etcd.keys.revision
    settled(cluster, b"more")
    assert cluster.etcd.keys.revision == revision, "what is advertised is not written again"


def test_no_byte_of_an_append_without_the_clients_word_is_ever_read_and_the_streams_stay() -> None:
    cluster = three()
    first = settled(cluster, b"first")
    wires = list(cluster.wires)
    dropped = cluster.append(A, b"secret", ends="drop")
    cluster.run()
    assert isinstance(dropped.outcome, ValidationError)
    after = settled(cluster, b"after")
    assert after.commit.begin == first.commit.end
    assert cluster.wires == wires, "no stream was opened for it"
    for member in (A, B, C):
        for held in cluster.brokers[member].spools:
            assert all(b"secret" not in held.bytes_of(commit) for commit in held.committed)


@pytest.mark.parametrize("chunks", [(), (b"half",)])
def test_a_client_that_goes_away_leaves_nothing_and_the_streams_stay(chunks: tuple[bytes, ...]) -> None:
    cluster = three()
    settled(cluster, b"first")
    wires = list(cluster.wires)
    gone = cluster.append(A, *chunks, ends="open")
    cluster.run()
    assert gone.run.fsm.state is State.STREAM_CONTENT
    gone.cancel()
    cluster.run()
    assert gone.outcome is None
    assert settled(cluster, b"after").commit.begin == 5
    assert cluster.wires == wires


def test_policy_of_these_tests_is_one_fragment() -> None:
    assert POLICY.length > 100_000


def test_the_second_append_to_a_journal_closes_the_fragment_of_the_first() -> None:
    cluster = three()
    settled(cluster, b"first")
    settled(cluster, b"second")
    settled(cluster, b"third")
    for member in (A, B, C):
        held = cluster.brokers[member].spool
        assert held.completed == [fragment(0, b"first")]
        assert held.spool.fragment == fragment(5, b"secondthird")


def test_a_barrier_says_where_the_head_is_and_moves_nothing() -> None:
    cluster = three()
    settled(cluster, b"first")
    barrier = settled(cluster)
    assert (barrier.commit.begin, barrier.commit.end) == (5, 5)
    assert settled(cluster, b"x").commit.begin == 5


def test_a_barrier_waits_for_the_appends_before_it() -> None:
    cluster = three()
    settled(cluster, b"first")
    append, barrier = cluster.append(A, b"second"), cluster.append(A)
    cluster.run()
    assert append.ended_at < barrier.ended_at
    assert barrier.commit.begin == append.commit.end


def test_the_next_append_sends_before_the_one_before_it_is_acknowledged_and_answers_keep_the_order() -> None:
    cluster = three()
    settled(cluster, b"first")
    clients = [cluster.append(A, bytes([65 + turn])) for turn in range(3)]
    while any(client.can_feed for client in clients):
        next(client for client in clients if client.can_feed).feed()
    assert [client.is_over for client in clients] == [False] * 3
    (wire, _) = cluster.wires
    contents = [message for message in wire.requests if isinstance(message, Content)]
    assert [bytes(content.data) for content in contents] == [b"A", b"B", b"C"]
    assert [content.delta for content in contents] == [0, 0, 0]
    cluster.run()
    assert [client.ended_at for client in clients] == sorted(client.ended_at for client in clients)
    assert [client.commit.begin for client in clients] == [5, 6, 7]


def test_one_round_trip_for_an_append_of_a_synchronised_journal() -> None:
    cluster = three()
    settled(cluster, b"first")
    settled(cluster, b"second")
    (wire, _) = cluster.wires
    wire.messages.clear()
    settled(cluster, b"third")
    content, commit, acked = wire.messages
    assert isinstance(content, Content)
    assert isinstance(commit, Propose)
    assert commit.acknowledge
    assert acked == Acked(16)


def test_a_thousand_appends_that_wait_for_their_turn_do_not_nest() -> None:
    cluster = three()
    settled(cluster, b"first")
    clients = [cluster.append(A, b"x") for _ in range(1000)]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        cluster.run()
    finally:
        sys.setrecursionlimit(limit)
    assert [client.commit.begin for client in clients] == list(range(5, 1005))


# Registers and offsets.


def test_registers_are_changed_with_an_append_and_checked_by_the_next() -> None:
    cluster = three()
    opening = AppendOpening(JOURNAL, union_registers=labels(author="me"))
    client = cluster.append(A, b"x", opening=opening)
    cluster.run()
    assert isinstance(client.outcome, AppendOutcome)
    assert client.outcome.registers == labels(author="me")
    fence = AppendOpening(JOURNAL, check_registers=LabelSelector(labels(author="other")))
    refused = cluster.append(A, b"y", opening=fence)
    cluster.run()
    assert isinstance(refused.outcome, AppendOutcome)
    assert refused.status is Status.REGISTER_MISMATCH
    assert refused.outcome.registers == labels(author="me")
    assert {cluster.brokers[member].spool.spool.registers for member in (A, B, C)} == {labels(author="me")}
    assert all_ends(cluster) == {1}


def test_a_check_passes_where_there_are_no_registers() -> None:
    cluster = three()
    opening = AppendOpening(JOURNAL, check_registers=LabelSelector(labels(author="me")))
    client = cluster.append(A, b"x", opening=opening)
    cluster.run()
    assert client.status is Status.OK


def test_of_two_appends_for_the_same_offset_one_succeeds() -> None:
    cluster = three()
    settled(cluster, b"first")
    both = [cluster.append(A, b"second", opening=AppendOpening(JOURNAL, offset=5)) for _ in range(2)]
    cluster.run()
    assert [client.status for client in both] == [Status.OK, Status.WRONG_APPEND_OFFSET]


def test_an_index_that_is_further_is_met_with_an_explicit_offset() -> None:
    cluster = three()
    index = cluster.brokers[A].replica.index
    index.commit(replace(fragment(0, b"x" * 30)), bytearray(b"x" * 30))
    refused = cluster.append(A, b"no")
    cluster.run()
    assert refused.status is Status.INDEX_HAS_GREATER_OFFSET
    reset = cluster.append(A, opening=AppendOpening(JOURNAL, offset=30))
    cluster.run()
    assert (reset.status, reset.commit.begin) == (Status.OK, 30)
    assert settled(cluster, b"yes").commit.begin == 30


# Peers that fail.


def test_a_peer_that_dies_before_it_acknowledged_fails_the_append_and_a_retry_succeeds() -> None:
    cluster = three()
    settled(cluster, b"first")
    client = cluster.append(A, b"second")
    while client.can_feed:
        client.feed()
    (to_b, to_c) = cluster.wires
    to_c.break_off()
    cluster.run()
    assert isinstance(client.outcome, UnavailableError)
    assert not to_b.is_broken
    retried = settled(cluster, b"second")
    # The failed one was committed by A and B, so that all go on behind it.
    assert retried.commit.begin == 11
    assert cluster.brokers[C].reads(11, 17) == b"second"


def test_a_peer_that_died_while_the_pipeline_was_idle_costs_nobody_an_append() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.wires[0].break_off()
    assert settled(cluster, b"second").commit.begin == 5


def test_appends_that_were_sent_behind_a_failure_fail_too_and_those_that_waited_do_not() -> None:
    cluster = three()
    settled(cluster, b"first")
    sent = [cluster.append(A, b"1"), cluster.append(A, b"2")]
    while any(client.can_feed for client in sent):
        next(client for client in sent if client.can_feed).feed()
    holder = cluster.append(A, b"held", ends="open")
    holder.feed()
    waiting = cluster.append(A, b"3")
    cluster.wires[1].break_off()
    cluster.run()
    assert all(isinstance(client.outcome, UnavailableError) for client in sent)
    assert not holder.is_over, "its client has not said more yet"
    holder.script += [Intent(), End()]
    cluster.run()
    assert isinstance(holder.outcome, UnavailableError)
    assert waiting.status is Status.OK


def test_a_disk_that_fails_at_the_primary_fails_the_append_and_the_next_goes_on() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.brokers[A].spool.fault = OSError("disk full")
    client = cluster.append(A, b"second")
    cluster.run()
    assert isinstance(client.outcome, UnavailableError)
    assert settled(cluster, b"third").commit.begin == 5


def test_a_disk_that_fails_at_a_peer_fails_the_append_and_the_next_goes_on() -> None:
    cluster = three()
    settled(cluster, b"first")
    cluster.brokers[B].spool.fault = OSError("disk full")
    client = cluster.append(A, b"second")
    cluster.run()
    assert isinstance(client.outcome, UnavailableError)
    after = settled(cluster, b"third")
    assert after.commit.begin == 5


# Whether an append that failed was surely not done.


def test_before_the_commit_is_proposed_a_failure_means_that_it_was_not_done() -> None:
    cluster = three()
    settled(cluster, b"first")
    client = cluster.append(A, b"second")
    cluster.brokers[A].spool.fault = OSError("disk full")
    cluster.run()
    assert isinstance(client.outcome, UnavailableError)
    assert not client.run.may_be_done
    too_slow = cluster.append(A, b"third", ends="open")
    too_slow.script.append(Failed(BROKEN))
    cluster.run()
    assert too_slow.outcome is BROKEN
    assert not too_slow.run.may_be_done, "to roll back is not to commit"
    refused = RecordingPort()
    run = AppendRun(AppendOpening(JOURNAL), refused, refused)
    run.start()
    refused.resolved(BROKEN)
    assert not run.may_be_done


def test_once_the_commit_is_proposed_nobody_can_tell_from_a_failure() -> None:
    cluster = three()
    settled(cluster, b"first")
    client = cluster.append(A, b"second")
    while client.can_feed:
        client.feed()
    cluster.wires[1].break_off()
    cluster.run()
    assert isinstance(client.outcome, UnavailableError)
    assert client.run.may_be_done
    assert settled(cluster).commit.begin == 11, "it was done, at those who are left"


# Suspension.


def test_a_journal_is_suspended_now_and_resumed_where_it_was() -> None:
    cluster = three()
    settled(cluster, b"first")
    now = cluster.append(A, opening=AppendOpening(JOURNAL, suspend=SuspendMode.NOW))
    cluster.run()
    assert not now.is_over, "it waits for the other members to go"
    assert resolve_now(cluster).suspend == Suspend(SuspendLevel.PARTIAL, 5)
    cluster.etcd.assign((A, 0))
    cluster.run()
    assert now.status is Status.SUSPENDED
    keep = cluster.append(A, opening=AppendOpening(JOURNAL, suspend=SuspendMode.KEEP))
    cluster.run()
    assert keep.status is Status.OK
    refused = cluster.append(A, b"no", opening=AppendOpening(JOURNAL, suspend=SuspendMode.KEEP))
    cluster.run()
    assert refused.status is Status.NOT_ALLOWED
    resuming = cluster.append(A, b"second")
    cluster.run()
    assert resuming.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    cluster.etcd.assign((A, 0), (B, 1), (C, 2))
    assert settled(cluster, b"second").commit.begin == 5


def test_an_empty_journal_is_suspended_fully_and_resumed_at_its_offset() -> None:
    cluster = MiniCluster(A, B, C, D, spec=suspended(SuspendLevel.NONE, 40))
    flushed = cluster.append(A, opening=AppendOpening(JOURNAL, suspend=SuspendMode.IF_FLUSHED))
    cluster.run()
    assert flushed.status is Status.SUSPENDED
    cluster.etcd.assign()
    cluster.run()
    resuming = cluster.append(D, b"x")
    cluster.run()
    assert resuming.status is Status.NO_JOURNAL_PRIMARY_BROKER
    cluster.etcd.assign((A, 0), (B, 1), (C, 2))
    assert settled(cluster, b"x").commit.begin == 40


def test_a_journal_with_bytes_that_are_still_on_their_way_to_readers_is_not_suspended_as_an_empty_one() -> None:
    """The disk of the primary is slow to show them, and the fragment that holds them is closed already."""
    cluster = MiniCluster(A, B, C, D, has_slow_disks=True)
    settled(cluster)
    first = cluster.append(A, b"first")
    now = cluster.append(A, opening=AppendOpening(JOURNAL, suspend=SuspendMode.NOW))
    slow = cluster.brokers[A].spool
    while not cluster.under_way:
        actions = [
            act
            for name, act in cluster.actions()
            if name != "disk of broker-a" or (slow.spool.fragment.end < 5 or slow.spool.fragment.content_length)
        ]
        assert actions, now.run.fsm.state
        actions[0]()
    cluster.run()
    assert first.status is Status.OK
    assert resolve_now(cluster).suspend == Suspend(SuspendLevel.PARTIAL, 5)
