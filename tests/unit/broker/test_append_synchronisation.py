"""AppendFSM: how a new pipeline is synchronised, and what etcd is told of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from broker.append_effect import (
    Abandon,
    Acknowledge,
    Advertise,
    AwaitReady,
    Effects,
    Fail,
    GiveBack,
    Resolve,
    ShutDown,
    Synchronise,
    TakePipeline,
    TakeSpool,
    Voided,
)
from broker.append_event import (
    Answered,
    Cancelled,
    Failed,
    PipelineTaken,
    Transacted,
)
from broker.head_opening import SYNC_ROUNDS_MAX
from broker.replication_message import Answer
from protocol.errors import Status, UnavailableError
from protocol.label import LabelSet
from tests.support.broker_cores import (
    OK,
    SPEC,
    A,
    B,
    C,
    built,
    committed_spool,
    fragment,
    header_of,
    labels,
    route_of,
)
from tests.support.driven_append import (
    BROKEN,
    ROUTE,
    acquiring,
    advertising,
    failed,
    refused,
    starting,
    synchronising,
)

# Synchronisation.


def test_a_stream_that_breaks_while_synchronising_fails_the_append_and_empties_the_slot() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.answered(C, OK)
    pipeline.failed(B, BROKEN)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert "zone/broker-b" in str(failed(effects[2]))
    assert driven.held.releases == 1


def test_an_own_spool_that_fails_while_synchronising_fails_the_append() -> None:
    driven = starting()
    driven.held.fault = OSError("disk full")
    driven.open()
    driven.pipe.answer_all(OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), UnavailableError)


def test_a_peer_that_is_further_is_followed_with_its_registers() -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"y" * 15), registers=labels(k="v")))
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(15), labels(k="v"), False),)
    assert driven.pipe.streams[B].proposals[-1].header is None
    assert driven.answered() == (Voided(), Acknowledge(pipeline, 15), AwaitReady())
    assert driven.held.spool.registers == labels(k="v")


def test_a_peer_that_just_joined_makes_all_begin_a_fragment() -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10, registers=labels(k="v")))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(10), registers=labels(k="v")))
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(10), labels(k="v"), False),)
    assert driven.held.completed == [fragment(0, b"x" * 10)]


def test_peers_of_which_no_two_agree_end_the_append() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    effects: Effects = ()
    for round_ in range(SYNC_ROUNDS_MAX):
        pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(10 * (round_ + 1))))
        pipeline.answered(C, OK)
        effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert re.search(r"no agreement .*: try again; .* the logs of the journal's brokers$", str(failed(effects[2])))


def test_a_later_route_of_a_peer_is_waited_for() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    later = header_of(route_of(A, B), B, revision=44)
    pipeline.answered(B, Answer(Status.WRONG_ROUTE, later))
    pipeline.ended(B)
    pipeline.answered(C, OK)
    assert driven.step(Answered(driven.asks.pop())) == (ShutDown(pipeline), Resolve(44))
    two = replace(SPEC, replication=2)
    assert driven.resolve(route=route_of(A, B), spec=two, revision=44) == (TakeSpool(),)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(Status.WRONG_ROUTE, header_of(route_of(A, B), B, revision=10)),
        Answer(Status.WRONG_ROUTE, header_of(ROUTE, B, revision=99)),
        Answer(Status.WRONG_ROUTE),
        Answer(Status.JOURNAL_NOT_FOUND, header_of(ROUTE, B)),
        Answer(Status.PROPOSAL_MISMATCH),
        Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"z" * 10)),
        Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"z")),
    ],
    ids=["older", "same route", "no header", "not found", "no fragment", "other content", "behind"],
)
def test_a_peer_that_cannot_be_synchronised_with_ends_the_append(answer: Answer) -> None:
    driven = synchronising(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, answer)
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert re.match(r"zone/broker-b .*\. Try again; .* the log of that broker$", str(failed(effects[2])))


def test_a_peer_that_is_further_outweighs_a_later_route_and_then_the_stream_has_ended() -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.answered(B, Answer(Status.WRONG_ROUTE, header_of(route_of(A, B), B, revision=44)))
    pipeline.ended(B)
    pipeline.answered(C, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0, b"yy")))
    effects = driven.step(Answered(driven.asks.pop()))
    assert effects == (Synchronise(pipeline, fragment(2), LabelSet(), False),)
    pipeline.answered(C, OK)
    effects = driven.step(Answered(driven.asks.pop()))
    assert isinstance(effects[-1], Fail)


@pytest.mark.parametrize("answer", [OK, Answer(Status.WRONG_ROUTE), BROKEN])
def test_a_pipeline_whose_replica_is_given_up_while_it_synchronises_is_left_and_resolved_again(
    answer: Answer | UnavailableError,
) -> None:
    driven = synchronising()
    pipeline = driven.pipe.pipeline
    pipeline.close()
    for peer in (B, C):
        if isinstance(answer, Answer):
            pipeline.answered(peer, answer)
        else:
            pipeline.failed(peer, answer)
    assert driven.step(Answered(driven.asks.pop())) == (ShutDown(pipeline), Resolve(0))
    driven.replica = object()
    assert driven.resolve() == (GiveBack(None), TakePipeline())


def test_a_pipeline_that_is_older_than_an_assignment_is_rebuilt_though_the_route_is_the_same() -> None:
    """The member has been assigned anew since, and so has a replica to which the stream does not lead."""
    driven = acquiring()
    old = built(ROUTE, revision=4)
    assert [kv.create_revision for kv in driven.resolution_held.assignments] == [5, 5, 5]
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())


# Assignments and replicas.


def test_the_route_is_advertised_until_all_assignments_have_it() -> None:
    driven = synchronising(is_consistent=False)
    assert driven.answered()[-1] == Advertise(driven.resolution_held)
    assert driven.step(Transacted(12)) == (Resolve(12),)
    assert driven.resolve(revision=12) == (Advertise(driven.resolution_held),)


def test_an_advertisement_that_lost_its_race_waits_for_the_next_revision_and_not_for_etcds_own() -> None:
    driven = advertising()
    assert driven.step(Transacted(None)) == (Resolve(11),)


def test_an_etcd_that_fails_ends_the_append_but_not_the_pipeline() -> None:
    driven = advertising()
    pipeline = driven.pipe.pipeline
    assert driven.step(Failed(BROKEN)) == (GiveBack(pipeline), Fail(BROKEN))
    assert not pipeline.is_broken


def test_with_too_many_replicas_the_pipeline_is_held_and_no_content_sent() -> None:
    driven = synchronising(spec=replace(SPEC, replication=2))
    effects = driven.answered()
    assert effects[-1] == Resolve(11)
    assert not any(isinstance(effect, GiveBack) for effect in effects)
    assert driven.pipe.streams[B].contents == []
    old = driven.pipe.pipeline
    assert driven.resolve(route=route_of(A, B), revision=11) == (ShutDown(old), TakeSpool())


def test_a_cancelled_append_that_waits_for_fewer_replicas_gives_the_pipeline_back() -> None:
    driven = synchronising(spec=replace(SPEC, replication=2))
    driven.answered()
    assert driven.step(Cancelled()) == (GiveBack(driven.pipe.pipeline), Abandon())


def test_with_too_few_replicas_nothing_is_written_and_the_pipeline_given_back() -> None:
    driven = synchronising(spec=replace(SPEC, replication=4))
    effects = driven.answered()
    assert effects[-2] == GiveBack(driven.pipe.pipeline)
    assert refused(effects[-1]).status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert refused(effects[-1]).header.process_id == A
    assert driven.pipe.streams[B].contents == []


def test_what_too_few_members_hold_is_not_decided() -> None:
    """They could all be lost, fewer of them than the journal is to survive, after somebody had read it."""
    driven = synchronising(spec=replace(SPEC, replication=4))
    effects = driven.answered()
    assert not [effect for effect in effects if isinstance(effect, Acknowledge)]
    assert refused(effects[-1]).status is Status.INSUFFICIENT_JOURNAL_BROKERS
