"""AppendFSM: the common path, and what cannot happen. Its other tests are in files by what they are about."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from broker.append_content import AppendContent
from broker.append_effect import (
    Acknowledge,
    AwaitReady,
    Commit,
    GiveBack,
    NextChunk,
    Seal,
    Send,
    Show,
    ShutDown,
    Synchronise,
    TakePipeline,
    TakeSpool,
    Voided,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    AppendOutcome,
    Chunk,
    ContentSealed,
    End,
    Event,
    Failed,
    HeadRead,
    Intent,
    Invalidated,
    Opened,
    PipelineTaken,
    Prepared,
    Ready,
    Resolved,
    Shown,
    SpoolTaken,
    Transacted,
)
from broker.append_fsm import AppendFSM
from broker.append_state import State
from broker.head_opening import HeadOpening
from broker.pipeline import Ask, Sealed
from protocol.codec import CompressionCodec
from protocol.errors import Status
from protocol.label import LabelSet
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    POLICY,
    SPEC,
    VOID_HEAD,
    A,
    B,
    MemorySpool,
    built,
    committed_spool,
    fragment,
    labels,
    resolution_of,
    route_of,
)
from tests.support.driven_append import (
    BROKEN,
    EMPTY,
    ROUTE,
    STATES,
    Driven,
    acquiring,
    refused,
    starting,
)


def test_every_state_is_reached_by_a_builder_of_these_tests() -> None:
    assert set(STATES) == set(State)


# The common path.


def test_an_append_on_a_fresh_cluster_goes_from_resolution_to_ok() -> None:
    driven = Driven(AppendOpening(JOURNAL, min_revision=3))
    assert driven.resolve() == (TakePipeline(),)
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    (synchronise,) = driven.open()
    pipeline = driven.pipe.pipeline
    assert synchronise == Synchronise(pipeline, fragment(0), LabelSet(), True)
    assert driven.answered() == (Voided(), Acknowledge(pipeline, 0), AwaitReady())
    assert driven.step(Ready(EMPTY)) == (NextChunk(),)
    assert driven.step(Chunk(b"hel")) == (Send(pipeline, b"hel", 0), NextChunk())
    assert driven.step(Chunk(b"lo")) == (Send(pipeline, b"lo", 3), NextChunk())
    assert driven.step(Intent()) == (NextChunk(),)
    assert driven.step(End()) == (Seal(pipeline),)
    assert driven.sealed() == (Commit(pipeline, fragment(0, b"hello"), LabelSet()), GiveBack(pipeline))
    assert not pipeline.is_owned
    assert driven.answered() == (Show(pipeline, 5),)
    (verdict,) = driven.step(Shown())
    commit = fragment(0, b"hello")
    assert refused(verdict) == AppendOutcome(Status.OK, driven.resolution().header, commit, LabelSet())
    assert driven.fsm.is_over


def test_a_synchronised_pipeline_with_the_same_route_is_used_without_a_round_trip() -> None:
    driven = acquiring()
    driven.built = built(ROUTE, held=committed_spool(b"x" * 10, 5, labels(k="v"), acked=15))
    assert driven.step(PipelineTaken(driven.built.pipeline)) == (AwaitReady(),)
    assert driven.built.streams[B].sent == []


def test_an_equivalent_route_with_other_endpoints_is_the_same_route() -> None:
    driven = acquiring()
    driven.built = built(replace(ROUTE, endpoints=("http://x", "http://y", "http://z")))
    assert driven.step(PipelineTaken(driven.built.pipeline)) == (AwaitReady(),)


def test_a_pipeline_with_another_route_is_shut_down_and_rebuilt() -> None:
    driven = acquiring()
    old = built(route_of(A, B))
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())
    assert old.streams[B].is_half_closed
    assert old.held.releases == 1
    (synchronise,) = driven.open(old.held)
    assert isinstance(synchronise, Synchronise)
    assert synchronise.is_first


@pytest.mark.parametrize("member", [A, B])
def test_a_broken_pipeline_is_rebuilt_by_the_next_append_and_not_used(member: object) -> None:
    driven = acquiring()
    old = built(ROUTE)
    old.pipeline.failed(B if member == B else A, BROKEN)
    assert driven.step(PipelineTaken(old.pipeline)) == (ShutDown(old.pipeline), TakeSpool())


def test_the_first_proposal_of_a_pipeline_has_the_codec_of_the_spec() -> None:
    gzip = replace(SPEC, fragment=replace(POLICY, compression_codec=CompressionCodec.GZIP))
    driven = starting(spec=gzip)
    (synchronise,) = driven.open()
    assert isinstance(synchronise, Synchronise)
    assert synchronise.fragment == fragment(0, codec=CompressionCodec.GZIP)


# What cannot happen.

EVENTS: tuple[Event, ...] = (
    Resolved(resolution_of(ROUTE)),
    PipelineTaken(None),
    SpoolTaken(MemorySpool()),
    HeadRead(VOID_HEAD, 1),
    Prepared(),
    Opened(built().pipeline),
    Invalidated(),
    Answered(Ask(fragment(0), set(), lambda _: None)),
    Transacted(3),
    Ready(EMPTY),
    Chunk(b"x"),
    Intent(),
    End(),
    ContentSealed(Sealed(fragment(0), b"")),
    Shown(),
    Failed(BROKEN),
)
CLIENT = {Chunk, Intent, End, Failed}
AWAITED: dict[State, set[type]] = {
    State.RESOLVE: {Resolved, Failed},
    State.ACQUIRE_PIPELINE: {PipelineTaken, Invalidated},
    State.START_PIPELINE: {SpoolTaken, Invalidated, Failed},
    State.READ_HEAD: {HeadRead, Failed},
    State.PREPARE_SPOOL: {Prepared, Failed},
    State.OPEN_PIPELINE: {Opened},
    State.SYNCHRONISE: {Answered},
    State.CONFIRM_RESET: CLIENT,
    State.AWAIT_LISTING: {Ready, Invalidated, Failed},
    State.UPDATE_ASSIGNMENTS: {Transacted, Failed},
    State.UPDATE_SUSPEND: {Transacted, Failed},
    State.VALIDATE_PRECONDITIONS: {Ready, Invalidated, Failed},
    State.STREAM_CONTENT: CLIENT,
    State.SEAL_CONTENT: {ContentSealed, Failed},
    State.READ_ACKS: {Answered},
    State.READ_ROLLBACK_ACKS: {Answered},
    State.SHOW: {Shown},
    State.PROXY: set(),
    State.FINISHED: set(),
}


def remembered(fsm: AppendFSM) -> dict[str, object]:
    """All that it knows but the time, in itself and in its parts."""
    parts = HeadOpening | AppendContent
    known = {name: dict(vars(value)) if isinstance(value, parts) else value for name, value in vars(fsm).items()}
    assert sum(isinstance(value, dict) for value in known.values()) == len(get_args(parts))
    del known["_now_ns"]
    return known


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_an_event_that_is_not_waited_for_raises_and_changes_nothing(state: State) -> None:
    for event in EVENTS:
        if type(event) in AWAITED[state]:
            continue
        driven = STATES[state]()
        before = remembered(driven.fsm)
        with pytest.raises(AssertionError):
            driven.fsm.step(event, NOW_NS)
        assert remembered(driven.fsm) == before, type(event).__name__
