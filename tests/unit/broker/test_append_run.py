"""One AppendRun alone, with a port that answers nothing by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.append_event import AppendOpening, Chunk, End, Failed, Intent
from broker.append_run import AppendRun
from broker.append_state import State
from broker.pipeline import Pipeline
from broker.replica import Replica
from broker.resolution import REVISION_WAIT_S, Wanted
from protocol.errors import GazetteError, UnavailableError
from tests.support.broker_cores import (
    JOURNAL,
    OK,
    SPEC,
    A,
    B,
    C,
    RecordingPort,
    header_of,
    replica_of,
    resolution_of,
    route_of,
)

BROKEN = UnavailableError("it broke")


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


def test_once_an_operator_has_confirmed_a_reset_nobody_can_tell_from_a_failure() -> None:
    run, port = streaming()
    run.fsm.state = State.CONFIRM_RESET
    run.feed(Intent())
    assert not run.may_be_done
    run.feed(End())
    port.ready(BROKEN)
    assert port.outcomes == [BROKEN]
    assert run.may_be_done


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
