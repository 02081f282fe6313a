"""AppendFSM: who takes an append, and how long it waits for its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.append_effect import (
    Abandon,
    AwaitReady,
    Commit,
    Fail,
    GiveBack,
    Proxy,
    Resolve,
    SetSuspend,
    Show,
    ShutDown,
    TakePipeline,
    TakeSpool,
)
from broker.append_event import (
    AppendOpening,
    AppendOutcome,
    Cancelled,
    Chunk,
    Failed,
    Invalidated,
    Opened,
    PipelineTaken,
    Shown,
    Transacted,
)
from broker.append_state import State
from protocol.errors import Status
from protocol.journal import SuspendLevel, SuspendMode
from protocol.label import LabelSet
from tests.support.broker_cores import (
    JOURNAL,
    SPEC,
    A,
    B,
    C,
    MemorySpool,
    built,
    fragment,
    route_of,
    suspended,
)
from tests.support.driven_append import (
    BROKEN,
    ROUTE,
    STATES,
    Driven,
    acquiring,
    advertising,
    refused,
    starting,
    streaming,
    validating,
)

# Resolution.


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_refused_resolution_is_the_answer(status: Status) -> None:
    driven = Driven(AppendOpening(JOURNAL, suspend=SuspendMode.NO_RESUME))
    (verdict,) = driven.resolve(status=status)
    outcome = refused(verdict)
    assert outcome == AppendOutcome(status, driven.resolution_held.header)
    assert outcome.header.process_id == A
    assert outcome.registers is None
    assert outcome.commit is None


def test_a_resolution_that_fails_ends_the_append() -> None:
    driven = Driven()
    assert driven.step(Failed(BROKEN)) == (Fail(BROKEN),)


def test_a_fully_suspended_journal_is_resumed_at_its_stored_offset_and_resolved_again() -> None:
    driven = Driven()
    full = suspended(SuspendLevel.FULL, 77)
    (effect,) = driven.resolve(status=Status.SUSPENDED, spec=full)
    assert effect == SetSuspend(driven.resolution_held, SuspendLevel.NONE, 77)
    assert driven.step(Transacted(20)) == (Resolve(20),)
    (verdict,) = driven.resolve(status=Status.NO_JOURNAL_PRIMARY_BROKER)
    assert refused(verdict).status is Status.NO_JOURNAL_PRIMARY_BROKER


@pytest.mark.parametrize("mode", [mode for mode in SuspendMode if mode is not SuspendMode.RESUME])
def test_a_fully_suspended_journal_refuses_all_who_do_not_resume_it(mode: SuspendMode) -> None:
    driven = Driven(AppendOpening(JOURNAL, suspend=mode))
    (verdict,) = driven.resolve(status=Status.SUSPENDED, spec=suspended(SuspendLevel.FULL, 77))
    assert refused(verdict).status is Status.SUSPENDED


def test_an_append_whose_primary_is_elsewhere_is_proxied() -> None:
    driven = Driven()
    (effect,) = driven.resolve(route=route_of(A, B, C, primary=B))
    assert effect == Proxy(driven.resolution_held)
    assert driven.fsm.is_over


def test_replicas_are_counted_before_an_append_is_proxied_and_the_answer_names_the_primary() -> None:
    driven = Driven()
    (verdict,) = driven.resolve(route=route_of(A, B, primary=B))
    outcome = refused(verdict)
    assert outcome.status is Status.INSUFFICIENT_JOURNAL_BROKERS
    assert outcome.header.process_id == B


def test_an_append_to_be_proxied_waits_while_there_are_too_many_members() -> None:
    driven = Driven(spec=replace(SPEC, replication=2))
    assert driven.resolve(route=route_of(A, B, C, primary=B), revision=30) == (Resolve(31),)
    (effect,) = driven.resolve(route=route_of(B, C, primary=B), revision=31)
    assert isinstance(effect, Proxy)


def test_who_is_primary_no_more_gives_the_pipeline_back_shut_down_before_it_is_proxied() -> None:
    driven = advertising()
    driven.step(Transacted(12))
    effects = driven.resolve(route=route_of(A, B, C, primary=B), is_consistent=True, revision=12)
    pipeline = driven.pipe.pipeline
    assert effects == (ShutDown(pipeline), GiveBack(None), Proxy(driven.resolution_held))


def test_an_append_that_holds_the_pipeline_keeps_it_when_it_resolves_again() -> None:
    driven = advertising()
    driven.is_consistent = True
    assert driven.step(Transacted(12)) == (Resolve(12),)
    assert driven.resolve(revision=12) == (AwaitReady(),)


def test_the_pipeline_of_a_replica_that_is_no_more_is_given_back_and_that_of_the_new_one_taken() -> None:
    driven = advertising()
    driven.step(Transacted(12))
    old = driven.pipe.pipeline
    driven.replica = object()
    driven.is_consistent = True
    assert driven.resolve(revision=12) == (ShutDown(old), GiveBack(None), TakePipeline())
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    driven.open(MemorySpool())
    assert driven.pipe.pipeline is not old
    assert isinstance(driven.answered()[-1], AwaitReady)


def test_an_empty_slot_of_a_replica_that_is_no_more_is_given_back_too() -> None:
    driven = starting()
    assert driven.step(Invalidated()) == (Resolve(0),)
    driven.replica = object()
    assert driven.resolve() == (GiveBack(None), TakePipeline())


# Waiting.


def test_an_append_that_waits_for_the_pipeline_resolves_again_when_it_is_invalidated() -> None:
    driven = acquiring()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (TakePipeline(),)


def test_an_append_that_waits_for_the_spool_resolves_again_and_keeps_the_pipeline() -> None:
    driven = starting()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (TakeSpool(),)


def test_an_append_that_waits_for_stores_resolves_again_and_keeps_the_pipeline() -> None:
    driven = validating()
    assert driven.step(Invalidated()) == (Resolve(0),)
    assert driven.resolve() == (AwaitReady(),)


def test_the_pipeline_is_rebuilt_if_the_route_changed_while_an_append_waited_for_stores() -> None:
    driven = validating()
    two = replace(SPEC, replication=2)
    assert driven.step(Invalidated()) == (Resolve(0),)
    old = driven.pipe.pipeline
    assert driven.resolve(route=route_of(A, B), spec=two) == (ShutDown(old), TakeSpool())


@pytest.mark.parametrize("state", [State.RESOLVE, State.ACQUIRE_PIPELINE])
def test_a_cancelled_append_that_has_nothing_leaves_without_a_trace(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == (Abandon(),)
    assert driven.fsm.is_over


def test_a_cancelled_append_that_waits_for_the_spool_gives_the_empty_slot_back() -> None:
    assert starting().step(Cancelled()) == (GiveBack(None), Abandon())


def test_a_cancelled_append_that_waits_for_stores_gives_the_pipeline_back_whole() -> None:
    driven = validating()
    pipeline = driven.pipe.pipeline
    assert driven.step(Cancelled()) == (GiveBack(pipeline), Abandon())
    assert not pipeline.is_broken
    assert not pipeline.is_owned


@pytest.mark.parametrize(
    "state",
    [State.OPEN_PIPELINE, State.SYNCHRONISE, State.UPDATE_ASSIGNMENTS, State.UPDATE_SUSPEND, State.SEAL_CONTENT],
)
def test_what_is_under_way_is_seen_through_and_then_nothing_more_is_done(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    assert driven.fsm.state is state
    match state:
        case State.OPEN_PIPELINE:
            driven.built = built(ROUTE, held=driven.held, terms=None)
            driven.step(Opened(driven.built.pipeline))
            effects = driven.answered()
        case State.SYNCHRONISE:
            effects = driven.answered()
        case State.SEAL_CONTENT:
            effects = driven.sealed()
            assert effects == (
                Commit(driven.pipe.pipeline, fragment(0), LabelSet()),
                GiveBack(driven.pipe.pipeline),
            )
            assert driven.answered() == (Abandon(),)
            assert driven.held.spool.fragment.end == 0
            return
        case _:
            effects = driven.step(Transacted(12))
    given = () if driven.built is None else (GiveBack(driven.built.pipeline),)
    assert effects[-1 - len(given) :] == (*given, Abandon())
    assert driven.fsm.is_over


@pytest.mark.parametrize("state", [State.READ_ACKS, State.SHOW])
def test_a_commit_that_is_proposed_is_seen_through_though_nobody_waits_for_it(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    if state is State.READ_ACKS:
        assert driven.answered() == (Show(driven.pipe.pipeline, 5),)
    (verdict,) = driven.step(Shown())
    assert refused(verdict).status is Status.OK


def test_a_cancelled_append_rolls_back_what_it_has_sent_and_gives_the_pipeline_back() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    pipeline = driven.pipe.pipeline
    assert driven.step(Cancelled()) == (Commit(pipeline, fragment(0), LabelSet()), GiveBack(pipeline))
    assert driven.answered() == (Abandon(),)
    assert driven.held.spool.next() == fragment(0)


def test_a_cancelled_append_that_has_sent_nothing_needs_no_roll_back() -> None:
    driven = streaming()
    assert driven.step(Cancelled()) == (GiveBack(driven.pipe.pipeline), Abandon())


@pytest.mark.parametrize("state", [State.PROXY, State.FINISHED, State.READ_ROLLBACK_ACKS])
def test_a_cancellation_comes_too_late_for_what_is_over(state: State) -> None:
    driven = STATES[state]()
    assert driven.step(Cancelled()) == ()
    assert driven.fsm.state is state


def test_a_cancelled_append_that_is_resolved_again_ends_there() -> None:
    driven = advertising()
    driven.step(Cancelled())
    effects = driven.step(Transacted(None))
    assert effects == (GiveBack(driven.pipe.pipeline), Abandon())
