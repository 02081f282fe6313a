"""A SpoolWorker whose disk hangs: who waits is told, and the spool stays with the thread until that goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker.disk_watch import END_TIMES
from broker.durable_head import CutAt
from broker.spool_worker import QUEUED_BYTES_MAX
from fragment.spool import Proposal
from fragment.spool_directory import SpoolDirectory
from fragment.spool_file import SpoolFile
from protocol.errors import Status, UnavailableError
from tests.support.broker_cores import NOW_NS, fragment
from tests.support.driven_spool_worker import HUNG_S, TIMEOUT_S, Held, Stalled, X, committed


async def test_whoever_waits_for_a_disk_that_hangs_is_told_and_the_spool_stays_with_the_thread(
    directory: SpoolDirectory,
) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        # It goes alone, and those behind it wait for it.
        held.worker.content(b"abc", 0)
        sealed, replied = held.seal(), held.propose(fragment(0, b"abc"))
        held.look(HUNG_S - 1)
        assert (held.failures, held.observed.stalls) == ([], [])
        held.look(1)
        with pytest.raises(UnavailableError, match="the disk of broker local/broker hangs"):
            await sealed
        assert "the disk of broker local/broker hangs" in str(held.failures[0])
        held.worker.release()
        held.look(1)
        assert (len(held.failures), held.observed.stalls, held.releases) == (1, held.failures, [])
        done = asyncio.Event()
        held.on_release = done.set
        executor.go.set()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        assert held.observed.stalls == [*held.failures, None]
        # What was asked for behind it is not done any more.
        assert isinstance(replied.exception(), UnavailableError)
        assert held.releases[0].next() == fragment(0)


async def test_what_a_hung_disk_does_after_all_is_kept_and_told_to_observers(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.seal(lambda _: None)
        held.worker.content(b"abc", 0)
        held.worker.propose(Proposal(fragment(0, b"abc"), X, NOW_NS), lambda _: None)
        write, begun = SpoolFile.write, threading.Event()
        go = threading.Event()

        def hang(self: SpoolFile, position: int, data: bytes | memoryview) -> None:
            begun.set()
            assert go.wait(TIMEOUT_S)
            write(self, position, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SpoolFile, "write", hang)
            executor.go.set()
            await asyncio.to_thread(begun.wait, TIMEOUT_S)
            # Nobody holds it any more: the last one gave it back before the disk was found to hang.
            held.worker.release()
            held.look()
            done = asyncio.Event()
            held.on_release = done.set
            go.set()
            await asyncio.wait_for(done.wait(), TIMEOUT_S)
        assert held.failures == []
        assert held.observed.shown == [fragment(0, b"abc")]
        assert held.releases[0].fragment == fragment(0, b"abc")


async def test_the_holder_after_a_hung_disk_has_a_spool_that_works(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.content(b"abc", 0)
        held.look()
        held.worker.release()
        done = asyncio.Event()
        held.on_release = done.set
        executor.go.set()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        second: list[Exception] = []
        held.worker.watch(second.append)
        held.look(100 * HUNG_S)
        held.worker.content(b"def", 0)
        assert (await held.propose(fragment(0, b"def"))).status is Status.OK
        assert second == []


async def test_who_waits_for_room_is_let_go_when_the_disk_hangs(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.content(bytes(QUEUED_BYTES_MAX + 1), 0)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(held.worker.wait_room())
            await asyncio.sleep(0)
            assert not waiting.done()
            held.look()
            await asyncio.wait_for(waiting, TIMEOUT_S)
        assert not held.worker.has_room
        await asyncio.wait_for(held.worker.wait_room(), TIMEOUT_S)
        executor.go.set()
        await held.released()
        assert held.worker.has_room


async def test_whoever_cannot_get_the_spool_ready_for_a_hung_disk_is_told_once_and_nothing_is_retired(
    directory: SpoolDirectory,
) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        executor.go.set()
        copy = await committed(held)
        executor.go.clear()
        executor.submit(executor.go.wait)
        told: list[Exception | None] = []
        held.worker.prepare(CutAt(3), told.append)
        held.look()
        assert [type(failure) for failure in told] == [UnavailableError]
        executor.go.set()
        await held.released()
        assert len(told) == 1
        assert held.observed.retirements == []
        assert held.worker.spool.copy == copy


async def test_a_disk_that_hangs_for_long_ends_the_broker_with_a_reason(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        assert go.wait(TIMEOUT_S)

    monkeypatch.setattr(SpoolFile, "write", hang)
    held.worker.content(b"abc", 0)
    await asyncio.to_thread(begun.wait, TIMEOUT_S)
    held.look()
    with pytest.raises(UnavailableError, match="local/broker hangs: it has not done within 60 s"):
        held.look((END_TIMES - 1) * HUNG_S)
    go.set()
    await held.released()


async def test_a_disk_that_is_busy_with_other_things_fails_appends_but_does_not_end_the_broker(
    directory: SpoolDirectory,
) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.content(b"abc", 0)
        held.look(END_TIMES * HUNG_S)
        assert len(held.failures) == 1
        executor.go.set()
        await held.released()
