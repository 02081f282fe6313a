"""AppendFSM: what request and journal demand before there is content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.append_demands import UNFLUSHED_AGE_S
from broker.append_effect import (
    AwaitReady,
    Commit,
    Effect,
    Fail,
    GiveBack,
    NextChunk,
    Resolve,
    SetSuspend,
    ShutDown,
    Synchronise,
    TakeSpool,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    Chunk,
    End,
    Failed,
    Intent,
    PipelineTaken,
    Ready,
    Transacted,
)
from fragment.index import Summary
from protocol.errors import Status
from protocol.fragment import HEAD_MAX
from protocol.journal import Flag, SuspendLevel, SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.broker_cores import (
    JOURNAL,
    POLICY,
    SPEC,
    B,
    committed_spool,
    fragment,
    labels,
    suspended,
)
from tests.support.driven_append import (
    BROKEN,
    EMPTY,
    LOCAL,
    NOW_S,
    ROUTE,
    ROUTE_ALONE,
    Driven,
    refused,
    streaming,
    validating,
)

# Preconditions, in their order.

BAD = AppendOpening(JOURNAL, check_registers=LabelSelector(labels(k="other")), offset=3)


def test_an_unhealthy_store_comes_before_everything_else() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    effects = driven.step(Ready(Summary(0, 50, 1), "store unhealthy"))
    outcome = refused(effects[-1])
    assert outcome.status is Status.FRAGMENT_STORE_UNHEALTHY
    assert outcome.store_health_error == "store unhealthy"
    assert effects[0] == GiveBack(driven.pipe.pipeline)


def test_registers_come_before_the_suspended_offset() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    outcome = refused(driven.step(Ready(Summary(0, 50, 1)))[-1])
    assert outcome.status is Status.REGISTER_MISMATCH
    assert outcome.registers == labels(k="v")


def test_the_suspended_offset_comes_before_what_the_index_holds() -> None:
    held = committed_spool(b"x" * 10, acked=10)
    driven = validating(opening=BAD, held=held, spec=suspended(SuspendLevel.NONE, 500))
    effects = driven.step(Ready(Summary(0, 600, 1)))
    assert effects == (Synchronise(driven.pipe.pipeline, fragment(500), LabelSet(), False),)
    assert driven.answered() == (AwaitReady(),)
    assert refused(driven.step(Ready(Summary(0, 600, 1)))[-1]).status is Status.WRONG_APPEND_OFFSET


def test_a_spec_that_is_suspended_where_no_journal_ends_fails_appends_and_nothing_else() -> None:
    """Gazette takes such a spec for valid: with one more append, offsets would not fit the wire."""
    driven = validating(spec=suspended(SuspendLevel.NONE, HEAD_MAX + 1))
    given_back, failed = driven.step(Ready(EMPTY))
    assert given_back == GiveBack(driven.pipe.pipeline)
    assert isinstance(failed, Fail)
    assert "suspended beyond" in str(failed.error)


def test_an_index_that_is_further_refuses_an_append_that_names_no_offset() -> None:
    driven = validating()
    assert refused(driven.step(Ready(Summary(0, 600, 1)))[-1]).status is Status.INDEX_HAS_GREATER_OFFSET


def test_a_journal_that_is_only_read_takes_barriers_below_what_the_index_holds() -> None:
    driven = validating(spec=replace(SPEC, flags=Flag.O_RDONLY))
    assert driven.step(Ready(Summary(0, 600, 1)))[-1] == NextChunk()


@pytest.mark.parametrize("offset", [1, 9, 11, 600])
def test_an_offset_that_is_not_the_greatest_known_is_refused(offset: int) -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=offset), held=committed_spool(b"x" * 10, acked=10))
    assert refused(driven.step(Ready(Summary(0, 10, 0)))[-1]).status is Status.WRONG_APPEND_OFFSET


def test_an_offset_at_the_head_passes() -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=10), held=committed_spool(b"x" * 10, acked=10))
    assert driven.step(Ready(Summary(0, 10, 0)))[-1] == NextChunk()


def test_an_offset_at_the_head_passes_before_readers_were_shown_it() -> None:
    driven = validating(opening=AppendOpening(JOURNAL, offset=10), held=committed_spool(b"x" * 10, acked=0))
    assert driven.step(Ready(EMPTY))[-1] == NextChunk()


def test_an_offset_at_the_end_of_the_index_moves_the_head_there() -> None:
    held = committed_spool(b"x" * 10, registers=labels(k="v"), acked=10)
    driven = validating(opening=AppendOpening(JOURNAL, offset=600), held=held)
    effects = driven.step(Ready(Summary(0, 600, 1)))
    assert effects == (Synchronise(driven.pipe.pipeline, fragment(600), labels(k="v"), False),)
    driven.answered()
    assert driven.step(Ready(Summary(0, 600, 1)))[-1] == NextChunk()
    driven.step(Intent())
    assert driven.step(End())[0] == Commit(driven.pipe.pipeline, fragment(600), labels(k="v"))


@pytest.mark.parametrize(
    ("held", "check", "passes"),
    [
        (LabelSet(), labels(k="v"), True),
        (labels(k="v"), labels(k="v"), True),
        (labels(k="w"), labels(k="v"), False),
        (labels(j="v"), labels(k="v"), False),
    ],
)
def test_registers_are_checked_unless_there_are_none(held: LabelSet, check: LabelSet, passes: bool) -> None:
    opening = AppendOpening(JOURNAL, check_registers=LabelSelector(check))
    driven = validating(opening=opening, held=committed_spool(b"x", registers=held, acked=1))
    last = driven.step(Ready(Summary(0, 1, 0)))[-1]
    assert last == NextChunk() if passes else refused(last).status is Status.REGISTER_MISMATCH


def test_an_excluding_check_of_registers_refuses_too() -> None:
    opening = AppendOpening(JOURNAL, check_registers=LabelSelector(exclude=labels(k="")))
    driven = validating(opening=opening, held=committed_spool(b"x", registers=labels(k="v"), acked=1))
    assert refused(driven.step(Ready(Summary(0, 1, 0)))[-1]).status is Status.REGISTER_MISMATCH


def test_a_pipeline_that_breaks_while_stores_are_listed_is_rebuilt_and_nobody_is_told() -> None:
    driven = validating()
    old = driven.pipe.pipeline
    old.failed(B, BROKEN)
    assert driven.step(Ready(EMPTY)) == (ShutDown(old), TakeSpool())
    driven.open()
    assert isinstance(driven.answered()[-1], AwaitReady)


def test_stores_that_cannot_be_waited_for_end_the_append_and_not_the_pipeline() -> None:
    driven = validating()
    assert driven.step(Failed(BROKEN)) == (GiveBack(driven.pipe.pipeline), Fail(BROKEN))


# Suspension: each mode at each level.

LEVELS = (SuspendLevel.NONE, SuspendLevel.PARTIAL)
OLD = Summary(0, 10, NOW_S - UNFLUSHED_AGE_S)
RECENT = Summary(0, 10, NOW_S - UNFLUSHED_AGE_S + 1)


def judged_suspend(mode: SuspendMode, level: SuspendLevel, summary: Summary, end: int = 10) -> tuple[Driven, Effect]:
    """An append to a journal whose spool is empty at `end`, with all replicas that its level demands."""
    spec = suspended(level, 0)
    driven = Driven(AppendOpening(JOURNAL, suspend=mode), spec=spec, held=committed_spool(begin=end, acked=end))
    route = ROUTE_ALONE if level is SuspendLevel.PARTIAL else ROUTE
    driven.resolve(route=route)
    driven.step(PipelineTaken(None))
    driven.open()
    driven.answered()
    return driven, driven.step(Ready(summary))[-1]


@pytest.mark.parametrize(
    ("mode", "level", "summary", "expected"),
    [
        (SuspendMode.RESUME, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.RESUME, SuspendLevel.PARTIAL, OLD, SuspendLevel.NONE),
        (SuspendMode.RESUME, SuspendLevel.NONE, EMPTY, "proceed"),
        (SuspendMode.NO_RESUME, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.NO_RESUME, SuspendLevel.PARTIAL, OLD, Status.SUSPENDED),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, EMPTY, SuspendLevel.FULL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, OLD, SuspendLevel.PARTIAL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, RECENT, "proceed"),
        (SuspendMode.IF_FLUSHED, SuspendLevel.NONE, LOCAL, "proceed"),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, EMPTY, SuspendLevel.FULL),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, OLD, Status.SUSPENDED),
        (SuspendMode.IF_FLUSHED, SuspendLevel.PARTIAL, LOCAL, Status.SUSPENDED),
        (SuspendMode.NOW, SuspendLevel.NONE, EMPTY, SuspendLevel.FULL),
        (SuspendMode.NOW, SuspendLevel.NONE, LOCAL, SuspendLevel.PARTIAL),
        (SuspendMode.NOW, SuspendLevel.NONE, OLD, SuspendLevel.PARTIAL),
        (SuspendMode.NOW, SuspendLevel.PARTIAL, EMPTY, SuspendLevel.FULL),
        (SuspendMode.NOW, SuspendLevel.PARTIAL, RECENT, Status.SUSPENDED),
        (SuspendMode.KEEP, SuspendLevel.NONE, OLD, "proceed"),
        (SuspendMode.KEEP, SuspendLevel.PARTIAL, OLD, "proceed"),
        (SuspendMode.KEEP, SuspendLevel.PARTIAL, EMPTY, "proceed"),
    ],
)
def test_each_mode_at_each_level_of_suspension(
    mode: SuspendMode, level: SuspendLevel, summary: Summary, expected: object
) -> None:
    driven, effect = judged_suspend(mode, level, summary)
    if expected == "proceed":
        assert effect == NextChunk()
    elif isinstance(expected, Status):
        assert refused(effect).status is expected
        assert not driven.pipe.pipeline.is_owned
    else:
        assert effect == SetSuspend(driven.resolution_held, expected, 10)  # type: ignore[arg-type]
        assert driven.step(Transacted(33)) == (Resolve(33),)


def test_a_flush_interval_says_when_a_journal_is_idle() -> None:
    flushed = replace(SPEC, fragment=replace(POLICY, flush_interval_ns=60_000_000_000))
    for age_s, is_idle in ((59, False), (60, True)):
        opening = AppendOpening(JOURNAL, suspend=SuspendMode.IF_FLUSHED)
        driven = validating(opening=opening, spec=flushed, held=committed_spool(begin=10, acked=10))
        (effect,) = driven.step(Ready(Summary(0, 10, NOW_S - age_s)))
        assert isinstance(effect, SetSuspend) == is_idle


def test_to_suspend_now_what_the_spool_holds_is_handed_on_first() -> None:
    opening = AppendOpening(JOURNAL, suspend=SuspendMode.NOW)
    driven = validating(opening=opening, held=committed_spool(b"x" * 10, registers=labels(k="v"), acked=10))
    pipeline = driven.pipe.pipeline
    assert driven.step(Ready(LOCAL)) == (Synchronise(pipeline, fragment(10), labels(k="v"), False),)
    assert driven.held.completed == [fragment(0, b"x" * 10)]
    driven.answered()
    assert driven.step(Ready(LOCAL)) == (SetSuspend(driven.resolution_held, SuspendLevel.PARTIAL, 10),)


def test_a_journal_with_bytes_that_no_reader_was_shown_is_not_empty() -> None:
    opening = AppendOpening(JOURNAL, suspend=SuspendMode.IF_FLUSHED)
    driven = validating(opening=opening, held=committed_spool(b"x" * 10, acked=0))
    assert driven.step(Ready(EMPTY))[-1] == NextChunk()


def test_a_journal_whose_closed_fragment_no_reader_was_shown_is_not_empty() -> None:
    for mode in (SuspendMode.IF_FLUSHED, SuspendMode.NOW):
        driven = validating(opening=AppendOpening(JOURNAL, suspend=mode), held=committed_spool(begin=10, acked=10))
        driven.pipe.pipeline.shown_through = 5
        last = driven.step(Ready(EMPTY))[-1]
        if mode is SuspendMode.IF_FLUSHED:
            assert last == NextChunk()
        else:
            assert last == SetSuspend(driven.resolution_held, SuspendLevel.PARTIAL, 10)


def test_the_append_that_suspended_waits_until_the_other_replicas_are_gone_and_then_says_so() -> None:
    driven, effect = judged_suspend(SuspendMode.NOW, SuspendLevel.NONE, LOCAL)
    assert isinstance(effect, SetSuspend)
    driven.step(Transacted(33))
    partial = suspended(SuspendLevel.PARTIAL, 10)
    driven.is_consistent = False
    assert driven.resolve(spec=partial, revision=33, is_consistent=True) == (Resolve(34),)
    old = driven.pipe.pipeline
    assert driven.resolve(spec=partial, revision=34, route=ROUTE_ALONE, is_consistent=True) == (
        ShutDown(old),
        TakeSpool(),
    )
    driven.open()
    driven.step(Answered(driven.asks.pop()))
    assert refused(driven.step(Ready(LOCAL))[-1]).status is Status.SUSPENDED


@pytest.mark.parametrize("mode", [SuspendMode.IF_FLUSHED, SuspendMode.NOW, SuspendMode.KEEP])
def test_what_is_about_suspension_takes_no_content(mode: SuspendMode) -> None:
    # Of the three only KEEP gets so far with every index; the other two do while there is something unflushed.
    held = committed_spool(b"x" * 10, acked=10)
    level = SuspendLevel.NONE
    opening = AppendOpening(JOURNAL, suspend=mode)
    driven = validating(opening=opening, held=held, spec=suspended(level))
    if mode is SuspendMode.NOW:
        # It suspends whatever comes, so that content never gets here.
        assert isinstance(driven.step(Ready(LOCAL))[0], Synchronise)
        return
    driven.step(Ready(LOCAL))
    before = driven.held.spool.fragment
    effects = driven.step(Chunk(b"no"))
    assert effects[0] == GiveBack(driven.pipe.pipeline)
    assert refused(effects[1]).status is Status.NOT_ALLOWED
    assert driven.held.spool.fragment == before


def test_a_journal_that_is_only_read_takes_no_content() -> None:
    driven = streaming(spec=replace(SPEC, flags=Flag.O_RDONLY))
    effects = driven.step(Chunk(b"no"))
    assert refused(effects[-1]).status is Status.NOT_ALLOWED
    assert driven.pipe.streams[B].contents == []
