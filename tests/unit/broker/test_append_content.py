"""AppendFSM: content, how it is committed or rolled back, and pipelines that break under it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import pytest

from broker.append_effect import (
    Abandon,
    Begin,
    Commit,
    Fail,
    GiveBack,
    NextChunk,
    Show,
    ShutDown,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    Cancelled,
    Chunk,
    ContentSealed,
    End,
    Event,
    Failed,
    Intent,
    PipelineTaken,
    Ready,
    Shown,
)
from broker.pipeline import Sealed
from broker.replication_message import Answer
from fragment.index import Summary
from protocol.errors import Status, UnavailableError, ValidationError
from protocol.label import LabelSet
from tests.support.broker_cores import (
    JOURNAL,
    OK,
    POLICY,
    SPEC,
    A,
    B,
    C,
    built,
    committed_spool,
    fragment,
    labels,
)
from tests.support.driven_append import (
    BROKEN,
    LOCAL,
    ROUTE,
    acquiring,
    failed,
    reading_acks,
    refused,
    rolling_back,
    sealing,
    streaming,
    validating,
)

# Content.


def test_the_first_fragment_of_a_journal_is_closed_by_the_second_append() -> None:
    driven = validating(held=committed_spool(b"x" * 10, acked=10))
    pipeline = driven.pipe.pipeline
    effects = driven.step(Ready(LOCAL))
    assert effects == (Begin(pipeline, fragment(10), LabelSet()), NextChunk())
    assert [proposal.acknowledge for proposal in driven.pipe.streams[B].proposals] == [True, False]


def test_a_fragment_that_is_not_the_first_is_gone_on_with() -> None:
    held = committed_spool(b"x" * 10, 5, acked=15)
    driven = validating(held=held)
    assert driven.step(Ready(Summary(0, 15, 0))) == (NextChunk(),)


def test_a_fragment_that_is_longer_than_wanted_is_closed_before_content() -> None:
    short = replace(SPEC, fragment=replace(POLICY, length=1))
    driven = acquiring(spec=short)
    driven.built = built(ROUTE, held=committed_spool(b"x" * 10, 5, acked=15))
    driven.held = driven.built.held
    driven.step(PipelineTaken(driven.built.pipeline))
    effects = driven.step(Ready(Summary(0, 15, 0)))
    assert effects == (Begin(driven.built.pipeline, fragment(15), LabelSet()), NextChunk())
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    assert driven.sealed()[0] == Commit(driven.built.pipeline, fragment(15, b"abc"), LabelSet())


def test_the_answer_has_the_sum_of_this_append_alone_and_the_fragments_codec() -> None:
    held = committed_spool(b"x" * 10, 5, acked=15)
    driven = validating(held=held)
    driven.step(Ready(Summary(0, 15, 0)))
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    assert driven.sealed()[0] == Commit(driven.pipe.pipeline, fragment(5, b"x" * 10 + b"abc"), LabelSet())
    driven.answered()
    commit = refused(driven.step(Shown())[0]).commit
    assert commit is not None
    assert (commit.begin, commit.end, commit.sum) == (15, 18, hashlib.sha1(b"abc").digest())


def test_a_barrier_is_answered_with_the_head_and_the_sum_of_nothing() -> None:
    held = committed_spool(b"x" * 10, 5, labels(k="v"), acked=15)
    driven = validating(held=held)
    driven.step(Ready(Summary(0, 15, 0)))
    driven.step(Intent())
    pipeline = driven.pipe.pipeline
    assert driven.step(End()) == (Commit(pipeline, fragment(5, b"x" * 10), labels(k="v")), GiveBack(pipeline))
    assert driven.answered() == (Show(pipeline, 15),)
    outcome = refused(driven.step(Shown())[0])
    assert outcome.registers == labels(k="v")
    assert outcome.commit is not None
    assert (outcome.commit.begin, outcome.commit.end) == (15, 15)
    assert outcome.commit.sum == hashlib.sha1(b"").digest()


def test_registers_are_subtracted_and_then_united() -> None:
    opening = AppendOpening(
        JOURNAL, union_registers=labels(a="2", d="4"), subtract_registers=LabelSet.of(("b", "1"), ("c", "9"))
    )
    before = labels(a="1", b="1", c="1")
    driven = validating(opening=opening, held=committed_spool(b"x", 5, before, acked=6))
    driven.step(Ready(Summary(0, 6, 0)))
    driven.step(Chunk(b"abc"))
    driven.step(Intent())
    driven.step(End())
    after = labels(a="2", c="1", d="4")
    commit = driven.sealed()[0]
    assert isinstance(commit, Commit)
    assert commit.registers == after
    driven.answered()
    assert refused(driven.step(Shown())[0]).registers == after
    assert driven.held.spool.registers == after


@pytest.mark.parametrize(
    "opening",
    [AppendOpening(JOURNAL, union_registers=labels(a="1")), AppendOpening(JOURNAL, subtract_registers=labels(a="1"))],
)
def test_registers_do_not_change_without_content(opening: AppendOpening) -> None:
    driven = streaming(opening=opening)
    driven.step(Intent())
    effects = driven.step(End())
    assert effects[0] == GiveBack(driven.pipe.pipeline)
    assert isinstance(failed(effects[1]), ValidationError)


def test_an_end_without_the_clients_word_rolls_back() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    pipeline = driven.pipe.pipeline
    assert driven.step(End()) == (Commit(pipeline, fragment(0), LabelSet()), GiveBack(pipeline))
    (verdict,) = driven.answered()
    assert isinstance(failed(verdict), ValidationError)
    assert not pipeline.is_broken


@pytest.mark.parametrize("event", [Chunk(b"more"), Intent()])
def test_whatever_follows_the_clients_word_rolls_back(event: Event) -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.step(Intent())
    assert driven.step(event)[0] == Commit(driven.pipe.pipeline, fragment(0), LabelSet())
    assert isinstance(failed(driven.answered()[0]), ValidationError)


@pytest.mark.parametrize("has_intent", [False, True])
def test_a_client_that_fails_is_rolled_back_and_hears_why(has_intent: bool) -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    if has_intent:
        driven.step(Intent())
    driven.step(Failed(BROKEN))
    assert driven.answered() == (Fail(BROKEN),)
    assert driven.held.spool.next() == fragment(0)


def test_a_refusal_of_a_roll_back_breaks_the_pipeline_but_the_client_hears_of_its_own_error() -> None:
    driven = rolling_back()
    (verdict,) = driven.answered(Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0)))
    assert isinstance(failed(verdict), ValidationError)
    assert driven.pipe.pipeline.is_broken


# Broken pipelines, in each phase.


def test_a_chunk_for_a_broken_pipeline_fails_the_append_and_empties_the_slot() -> None:
    driven = streaming()
    driven.step(Chunk(b"hel"))
    pipeline = driven.pipe.pipeline
    pipeline.failed(B, BROKEN)
    effects = driven.step(Chunk(b"lo"))
    assert effects[:2] == (ShutDown(pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), UnavailableError)
    assert driven.held.spool.next() == fragment(0)
    assert driven.pipe.streams[C].is_half_closed


def test_an_end_over_a_broken_pipeline_fails_the_append() -> None:
    for sent in (True, False):
        driven = streaming()
        if sent:
            driven.step(Chunk(b"hello"))
        driven.step(Intent())
        driven.pipe.pipeline.failed(B, BROKEN)
        effects = driven.step(End())
        assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
        assert isinstance(effects[2], Fail)


def test_a_roll_back_over_a_broken_pipeline_needs_no_answers() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.pipe.pipeline.failed(B, BROKEN)
    effects = driven.step(End())
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(failed(effects[2]), ValidationError)


def test_a_cancellation_over_a_broken_pipeline_empties_the_slot() -> None:
    driven = streaming()
    driven.step(Chunk(b"hello"))
    driven.pipe.pipeline.failed(B, BROKEN)
    assert driven.step(Cancelled()) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Abandon())


def test_a_pipeline_that_breaks_while_content_is_sealed_fails_the_append() -> None:
    driven = sealing()
    driven.pipe.pipeline.failed(B, BROKEN)
    effects = driven.sealed()
    assert effects[:2] == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert isinstance(effects[2], Fail)


def test_content_that_cannot_be_sealed_fails_the_append_and_empties_the_slot() -> None:
    driven = sealing()
    assert driven.step(Failed(BROKEN)) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Fail(BROKEN))


def test_a_stream_that_breaks_before_it_acknowledged_fails_the_append() -> None:
    driven = reading_acks()
    driven.pipe.pipeline.answered(C, OK)
    driven.pipe.pipeline.failed(B, BROKEN)
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert isinstance(failed(verdict), UnavailableError)
    assert driven.pipe.pipeline.is_broken


def test_a_peer_that_refuses_a_commit_fails_the_append_and_breaks_the_pipeline() -> None:
    driven = reading_acks()
    driven.pipe.pipeline.answered(C, OK)
    driven.pipe.pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(0)))
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert re.search(r"PROPOSAL_MISMATCH to a commit\. Try again; .* the log of that broker$", str(failed(verdict)))
    assert driven.pipe.pipeline.is_broken


def test_an_own_spool_that_cannot_commit_fails_the_append() -> None:
    driven = sealing()
    sealed: list[Sealed | Exception] = []
    driven.held.seal(sealed.append)
    driven.held.fault = OSError("disk full")
    assert isinstance(sealed[0], Sealed)
    driven.step(ContentSealed(sealed[0]))
    driven.pipe.answer_all(OK)
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert isinstance(failed(verdict), UnavailableError)
    assert A in driven.pipe.pipeline.failures
