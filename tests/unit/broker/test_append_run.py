from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from allocator.keys import item_key
from broker.append_event import AppendOpening, AppendOutcome, Chunk, End, Failed, Intent
from broker.append_run import AppendRun
from broker.append_state import State
from broker.pipeline import Pipeline
from broker.replica import Replica
from broker.replication_message import Acked, Content, Propose
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from broker.resolver import StoppedError
from fragment.index import Summary
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.journal import Suspend, SuspendLevel, SuspendMode
from protocol.label import LabelSet
from protocol.route import ProcessId
from protocol.selector import LabelSelector
from tests.support.broker_cores import (
    JOURNAL,
    OK,
    POLICY,
    ROOT,
    SPEC,
    A,
    B,
    C,
    D,
    RecordingPort,
    fragment,
    header_of,
    labels,
    replica_of,
    resolution_of,
    route_of,
    suspended,
)
from tests.support.mini_cluster import Client, MiniCluster

BROKEN = UnavailableError("it broke")


def three() -> MiniCluster:
    """Four brokers, of which three hold the journal."""
    return MiniCluster(A, B, C, D)


def settled(cluster: MiniCluster, *chunks: bytes) -> Client:
    """An append that went through, once all brokers have seen what is in etcd."""
    cluster.run()
    client = cluster.append(A, *chunks)
    cluster.run()
    assert client.status is Status.OK
    return client


def pipeline_of(cluster: MiniCluster) -> Pipeline:
    held: list[Pipeline | None] = []
    slot = cluster.brokers[A].replica.pipeline
    slot.take(held.append)
    assert held, "somebody has it"
    slot.put(held[0])
    assert held[0] is not None
    return held[0]


def heads_are_read(cluster: MiniCluster) -> None:
    while cluster.under_way:
        name, act = cluster.under_way.pop(0)
        assert name == "head is read"
        act()


def all_ends(cluster: MiniCluster) -> set[int]:
    return {cluster.brokers[member].spool.spool.fragment.end for member in (A, B, C)}


# A small cluster, as a client sees it.


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


def resolve_now(cluster: MiniCluster) -> Resolution:
    found = cluster.brokers[A].resolver.resolve_now(Wanted(JOURNAL, require_primary=True))
    assert isinstance(found, Resolution)
    return found


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


# Routes that change.


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


def test_once_an_operator_has_confirmed_a_reset_nobody_can_tell_from_a_failure() -> None:
    run, port = streaming()
    run.fsm.state = State.CONFIRM_RESET
    run.feed(Intent())
    assert not run.may_be_done
    run.feed(End())
    port.ready(BROKEN)
    assert port.outcomes == [BROKEN]
    assert run.may_be_done


def test_a_member_that_is_new_makes_all_begin_a_fragment() -> None:
    cluster = three()
    settled(cluster, b"first")
    settled(cluster, b"second")
    cluster.etcd.assign((A, 0), (B, 1), (D, 2))
    settled(cluster, b"third")
    assert cluster.brokers[A].spool.completed == [fragment(0, b"first"), fragment(5, b"second")]
    assert cluster.brokers[D].spool.spool.fragment == fragment(11, b"third")


def test_a_transaction_that_failed_on_what_is_known_by_now_is_not_waited_for_twice() -> None:
    """The one before has changed the assignments, and its client was gone before anybody here was told."""
    cluster = three()
    gone, client = cluster.append(A, b"gone"), cluster.append(A, b"hello")
    gone.cancel()
    cluster.run()
    assert client.is_over
    assert client.commit.end == 5


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


# One run alone, with a port that answers nothing by itself.


def recorded() -> tuple[AppendRun, RecordingPort]:
    port = RecordingPort()
    run = AppendRun(AppendOpening(JOURNAL), port, port)
    run.start()
    return run, port


def streaming() -> tuple[AppendRun, RecordingPort]:
    run, port = recorded()
    port.resolved(resolution_of(route_of(A, B, C), replica=replica_of()))
    pipeline, _ = port.opened[0]
    for peer in (B, C):
        pipeline.answered(peer, OK)
    port.ready()
    assert run.fsm.state is State.STREAM_CONTENT
    return run, port


def test_a_client_that_is_gone_is_not_heard_any_more() -> None:
    for late in (Chunk(b"late"), Intent(), End(), Failed(BROKEN)):
        run, port = streaming()
        run.feed(Chunk(b"hello"))
        run.cancel()
        assert run.fsm.state is State.READ_ROLLBACK_ACKS
        run.feed(late)
        run.cancel()
        pipeline, _ = port.opened[0]
        for peer in (B, C):
            pipeline.answered(peer, OK)
        assert port.outcomes == [None]
        run.feed(late)
        run.cancel()
        assert port.outcomes == [None]


def all_answer(port: RecordingPort) -> None:
    for peer in (B, C):
        port.opened[0][0].answered(peer, OK)


def steps_of(run: AppendRun, port: RecordingPort, replica: Replica[bytearray]) -> list[Callable[[], None]]:
    """All that happens to an append, from the answer to where its journal is, to the end of its stream."""
    return [
        lambda: port.resolved(resolution_of(route_of(A, B, C), replica=replica)),
        lambda: all_answer(port),
        port.ready,
        lambda: run.feed(Chunk(b"hello")),
        lambda: run.feed(Intent()),
        lambda: run.feed(End()),
    ]


@pytest.mark.parametrize("steps", range(6))
def test_a_cancellation_at_any_time_gives_everything_back(steps: int) -> None:
    replica = replica_of()
    port = RecordingPort()
    run = AppendRun(AppendOpening(JOURNAL), port, port)
    run.start()
    held: list[Pipeline | None] = []
    todo = steps_of(run, port, replica)
    for step in todo[:steps]:
        step()
    run.cancel()
    if port.opened and not run.fsm.is_over:
        all_answer(port)
    assert port.outcomes == [None]
    replica.pipeline.take(held.append)
    assert len(held) == 1, "the pipeline is free"
    if held[0] is not None:
        assert not held[0].is_broken
        assert held[0].held.spool.next().end == 0


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_fault_of_ours_costs_the_journal_neither_its_pipeline_nor_its_spool(steps: int) -> None:
    replica, port = replica_of(), RecordingPort()
    run = AppendRun(AppendOpening(JOURNAL), port, port)
    run.start()
    todo = steps_of(run, port, replica)
    for step in todo[:steps]:
        step()
    port.fault = RuntimeError("of ours")
    with pytest.raises(RuntimeError):
        todo[steps]()
    assert isinstance(port.outcomes[-1], UnavailableError)
    pipelines: list[Pipeline | None] = []
    spools: list[object] = []
    replica.pipeline.take(pipelines.append)
    replica.spool.take(spools.append)
    assert (pipelines, len(spools)) == ([None], 1)


def test_a_fault_of_ours_leaves_alone_what_another_append_has() -> None:
    replica, port = replica_of(), RecordingPort()
    replica.pipeline.take(lambda _: None)
    run = AppendRun(AppendOpening(JOURNAL), port, port)
    run.start()
    port.resolved(resolution_of(route_of(A, B, C), replica=replica))
    port.fault = RuntimeError("of ours")
    with pytest.raises(RuntimeError):
        replica.invalidate()
    assert replica.pipeline.is_taken


def test_a_wait_that_is_over_is_withdrawn() -> None:
    run, port = recorded()
    run.cancel()
    assert port.resolves[0][2].is_withdrawn
    assert port.outcomes == [None]


def test_who_waits_for_the_pipeline_is_told_of_an_invalidation_that_came_with_the_resolution() -> None:
    replica = replica_of()
    run, port = recorded()
    resolution = resolution_of(route_of(A, B, C), replica=replica)
    replica.pipeline.take(lambda _: None)
    port.resolved(resolution)
    replica.invalidate()
    assert len(port.resolves) == 2
    assert run.fsm.state is State.RESOLVE


def test_who_is_given_the_pipeline_by_one_that_was_told_first_is_told_once() -> None:
    """The first holds the pipeline and waits for the spool. Told, it leaves, and so the second has its turn."""
    replica = replica_of()
    replica.spool.take(lambda _: None)
    first, first_port = recorded()
    first_port.resolved(resolution_of(route_of(A, B, C), replica=replica))
    assert first.fsm.state is State.START_PIPELINE
    second, second_port = recorded()
    second_port.resolved(resolution_of(route_of(A, B, C), replica=replica))
    elsewhere = resolution_of(route_of(A, B, C, primary=B), revision=11, replica=replica)
    first_port.resolution = elsewhere
    replica.invalidate()
    assert first_port.proxied == [elsewhere]
    assert second.fsm.state is State.RESOLVE
    assert len(second_port.resolves) == 2
    second_port.resolved(elsewhere)
    assert second_port.proxied == [elsewhere]
    assert not replica.pipeline.is_taken


def test_a_header_of_the_broker_that_proxied_is_asked_with_every_time() -> None:
    port = RecordingPort()
    header = header_of(route_of(A, B, C), A, revision=9)
    run = AppendRun(AppendOpening(JOURNAL, header, do_not_proxy=True, min_revision=4), port, port)
    run.start()
    wanted = port.resolves[0][0]
    assert wanted == Wanted(JOURNAL, may_proxy=False, require_primary=True, min_revision=4, header=header)
    assert wanted.revision == 9


def test_a_resolution_is_bounded_unless_members_are_to_go_first() -> None:
    """What a request, a peer or a transaction names has happened in etcd. When members go, nobody knows."""
    run, port = recorded()
    many = resolution_of(route_of(A, B, C, primary=B), spec=replace(SPEC, replication=2))
    port.resolved(many)
    assert port.bounds_s == [REVISION_WAIT_S, None]
    replica = replica_of()
    replica.pipeline.take(lambda _: None)
    port.resolved(resolution_of(route_of(A, B, C), replica=replica))
    assert run.fsm.state is State.ACQUIRE_PIPELINE
    replica.invalidate()
    assert port.bounds_s == [REVISION_WAIT_S, None, REVISION_WAIT_S]


def test_an_error_of_a_resolution_is_the_answer() -> None:
    run, port = recorded()
    port.resolved(BROKEN)
    assert port.outcomes == [BROKEN]
    assert run.fsm.is_over


def test_who_is_not_certain_to_be_a_member_does_not_acknowledge() -> None:
    run, port = streaming()
    run.feed(Chunk(b"hello"))
    run.feed(Intent())
    run.feed(End())
    port.is_member = False
    pipeline, _ = port.opened[0]
    for peer in (B, C):
        pipeline.answered(peer, OK)
    assert isinstance(port.outcomes[0], GazetteError)
    assert pipeline.acked_through == 0


def test_policy_of_these_tests_is_one_fragment() -> None:
    assert POLICY.length > 100_000


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


# A spool whose disk hangs.


HUNG = UnavailableError("the disk hangs")


def test_who_waits_for_a_spool_whose_disk_hangs_is_told_and_so_is_who_comes_later() -> None:
    replica = replica_of()
    port = RecordingPort(resolution=resolution_of(route_of(A), replica=replica))
    # Somebody has it, and has given it back as far as he can: the disk is to be done with it first.
    replica.spool.take(lambda _: None)
    first = AppendRun(AppendOpening(JOURNAL), port, port)
    first.start()
    assert first.fsm.state is State.START_PIPELINE
    replica.stalled(HUNG)
    assert (port.outcomes, replica.pipeline.is_taken) == ([HUNG], False)
    AppendRun(AppendOpening(JOURNAL), port, port).start()
    assert (port.outcomes, replica.pipeline.is_taken) == ([HUNG, HUNG], False)
    # It goes on after all.
    replica.stalled(None)
    third = AppendRun(AppendOpening(JOURNAL), port, port)
    third.start()
    assert third.fsm.state is State.START_PIPELINE
    assert len(port.outcomes) == 2
