from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from broker.content_sum import BESIDE_BYTES_MIN
from broker.durable_head import CutAt, Fate
from broker.pipeline import Sealed
from broker.spool_worker import QUEUED_BYTES_MAX
from fragment.spool import Proposal, Reply, Spool
from fragment.spool_directory import SpoolDirectory
from fragment.spool_file import SpoolFile
from protocol.errors import Status, UnavailableError
from protocol.label import LabelSet
from tests.support.broker_cores import JOURNAL, NOW_NS, fragment
from tests.support.driven_spool_worker import TIMEOUT_S, Held, Stalled, X, awaited, committed


def fail_writes(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """The disk is full, for all but the first writes of content."""
    write, writes = SpoolFile.write, 0

    def failing(self: SpoolFile, position: int, data: bytes | memoryview) -> None:
        nonlocal writes
        writes += 1
        if writes > after:
            raise UnavailableError(f"could not write: {errno.errorcode[errno.ENOSPC]}")
        write(self, position, data)

    monkeypatch.setattr(SpoolFile, "write", failing)


async def test_steps_are_done_and_answered_in_the_order_they_are_asked_for(held: Held) -> None:
    replies = [held.propose(fragment(0), LabelSet())]
    content = b""
    for part in (b"one ", b"two ", b"three"):
        held.worker.content(part, 0)
        content += part
        replies.append(held.propose(fragment(0, content)))
    statuses = [(await reply).status for reply in replies]
    assert statuses == [Status.OK] * 4
    assert held.order == [fragment(0), fragment(0, b"one "), fragment(0, b"one two "), fragment(0, content)]
    assert held.worker.spool.fragment == fragment(0, content)


async def test_what_is_committed_is_shown_once_it_is_acknowledged_and_on_the_event_loop(held: Held) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    assert held.observed.shown == []
    await held.acked(3)
    assert held.observed.shown == [fragment(0, b"abc")]
    assert held.observed.contents == [b"abc"]
    assert held.observed.told[-1] == 3
    assert held.observed.threads == {threading.get_ident()}
    await held.acked(3)
    assert held.observed.shown == [fragment(0, b"abc")]


async def test_an_acknowledgement_waits_for_the_commit_that_was_asked_for_before_it(held: Held) -> None:
    held.worker.content(b"abc", 0)
    committed = held.propose(fragment(0, b"abc"))
    await held.acked(3)
    assert committed.done()
    assert held.observed.shown == [fragment(0, b"abc")]


async def test_a_primary_that_does_not_tell_shows_what_it_commits(held: Held) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"), acked=None)
    assert held.observed.shown == [fragment(0, b"abc")]


async def test_content_is_sealed_with_its_own_sum_and_the_fragments(held: Held) -> None:
    held.worker.sums_content = True
    held.worker.content(b"first", 0)
    sealed = await held.seal()
    assert sealed == Sealed(fragment(0, b"first"), hashlib.sha1(b"first").digest())
    await held.propose(sealed.fragment)
    for delta, part in ((0, b"sec"), (3, memoryview(b"ond"))):
        held.worker.content(part, delta)
    sealed = await held.seal()
    assert sealed == Sealed(fragment(0, b"firstsecond"), hashlib.sha1(b"second").digest())
    await held.propose(fragment(0, b"first"))
    held.worker.content(b"third", 0)
    sealed = await held.seal()
    assert sealed == Sealed(fragment(0, b"firstthird"), hashlib.sha1(b"third").digest())


async def test_the_event_loop_does_not_wait_for_the_sum_of_large_content(
    held: Held, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.worker.sums_content = True
    held.worker.content(b"first", 0)
    await held.propose(fragment(0, b"first"))
    large, go, waits, submit = b"x" * BESIDE_BYTES_MIN, threading.Event(), list[bool](), executor.submit

    def waiting(work: Callable[[], None]) -> None:
        waits.append(go.wait(TIMEOUT_S))
        work()

    def summing_waits(*work: Any) -> Future[Any]:
        is_ours = threading.current_thread() is threading.main_thread()
        return submit(*work) if is_ours else submit(waiting, *work)

    monkeypatch.setattr(executor, "submit", summing_waits)
    held.worker.content(large, 0)
    # The content is written when this is told.
    await held.acked(0)
    sealed = held.seal()
    go.set()
    assert (await sealed).content_sum == hashlib.sha1(large).digest()
    assert waits == [True]


async def test_content_that_comes_while_a_thread_is_at_content_is_written_in_the_same_go(
    held: Held, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go, goes = threading.Event(), threading.Event(), []
    write, submit = SpoolFile.write, executor.submit

    def slow(self: SpoolFile, position: int, data: bytes | memoryview) -> None:
        writing.set()
        go.wait(TIMEOUT_S)
        write(self, position, data)

    def counted(*work: Any) -> Future[Any]:
        goes.append(work)
        return submit(*work)

    monkeypatch.setattr(SpoolFile, "write", slow)
    monkeypatch.setattr(executor, "submit", counted)
    held.worker.content(b"abc", 0)
    await asyncio.to_thread(writing.wait, TIMEOUT_S)
    held.worker.content(b"def", 3)
    sealed = held.seal()
    go.set()
    assert (await sealed).fragment == fragment(0, b"abcdef")
    assert len(goes) == 1


async def test_a_fragment_that_is_begun_hands_the_one_before_it_on(held: Held) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    await held.propose(fragment(3))
    assert held.observed.handed == [fragment(0, b"abc")]
    held.worker.content(b"def", 0)
    assert (await held.seal()).content_sum == hashlib.sha1(b"def").digest()


async def test_what_is_given_back_is_rolled_back(held: Held) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    held.worker.content(b"pending", 0)
    await held.released()
    assert held.releases[0].next() == fragment(0, b"abc")
    assert held.releases[0].registers == X


async def test_it_is_given_back_only_after_all_that_was_asked_for(held: Held) -> None:
    held.worker.content(b"abc", 0)
    committed = held.propose(fragment(0, b"abc"))
    await held.released()
    assert committed.done()
    assert held.releases == [held.worker.spool]
    assert held.releases[0].fragment == fragment(0, b"abc")


async def test_a_write_that_fails_fails_all_that_follows_and_its_holder_is_told(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    fail_writes(monkeypatch, after=1)
    held.worker.content(b"fits", 0)
    held.worker.content(b"does not", 4)
    with pytest.raises(UnavailableError):
        await held.seal()
    with pytest.raises(UnavailableError):
        await held.propose(fragment(0, b"abcfits"))
    await held.acked(3)
    assert held.failures
    assert set(map(str, held.failures)) == {"could not write: ENOSPC"}
    assert held.worker.spool.fragment == fragment(0, b"abc")


async def test_after_a_failure_the_next_holder_has_a_spool_as_it_was_committed(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    with monkeypatch.context() as patch:
        fail_writes(patch)
        held.worker.content(b"lost", 0)
        with pytest.raises(UnavailableError):
            await held.propose(fragment(0, b"abclost"))
        await held.released()
    assert held.releases[0].next() == fragment(0, b"abc")
    second: list[Exception] = []
    held.worker.watch(second.append)
    held.worker.content(b"def", 0)
    assert (await held.propose(fragment(0, b"abcdef"))).status is Status.OK
    await held.acked(6)
    assert held.observed.contents[-1] == b"abcdef"
    assert second == []


async def test_what_failed_for_one_holder_is_not_told_to_the_next(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several steps fail in one go, and the first of them already makes the holder let go."""
    with Stalled() as executor:
        held = Held(directory, executor)
        fail_writes(monkeypatch)
        ended: list[str] = []
        replies: list[Reply | Exception] = []
        served = asyncio.Event()

        def let_go(failure: Exception) -> None:
            ended.append(f"first: {failure}")
            held.worker.release()

        def take_over() -> None:
            held.worker.watch(lambda failure: ended.append(f"second: {failure}"))
            held.worker.propose(Proposal(fragment(0), LabelSet(), NOW_NS), lambda reply: take(reply))

        def take(reply: Reply | Exception) -> None:
            replies.append(reply)
            served.set()

        held.worker.watch(let_go)
        held.on_release = take_over
        # The first step goes alone, and those behind it together.
        held.worker.seal(lambda _: None)
        held.worker.content(b"abc", 0)
        held.worker.content(b"def", 3)
        asked = held.propose(fragment(0, b"abcdef"))
        executor.go.set()
        await asyncio.wait_for(served.wait(), TIMEOUT_S)
        assert isinstance(asked.exception(), UnavailableError)
        assert ended == ["first: could not write: ENOSPC"]
        assert replies == [Reply(Status.OK)]
        assert len(held.releases) == 1


async def test_what_a_callback_asks_for_is_done_after_what_was_asked_for_before(
    directory: SpoolDirectory,
) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        order: list[str] = []
        done = asyncio.Event()

        def first(_: Reply | Exception) -> None:
            order.append("first")
            held.worker.acked(9, lambda: order.append("acked by the first"))
            held.worker.release()

        def released() -> None:
            order.append("released")
            done.set()

        held.on_release = released
        # It goes alone, and those behind it together.
        held.worker.seal(lambda _: None)
        held.worker.propose(Proposal(fragment(0), LabelSet(), NOW_NS, acked_through=0), first)
        held.worker.content(b"abc", 0)
        held.worker.propose(Proposal(fragment(0, b"abc"), X, NOW_NS, acked_through=0), lambda _: order.append("second"))
        executor.go.set()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        assert order == ["first", "second", "acked by the first", "released"]


async def test_whoever_fails_when_told_keeps_no_others_of_the_same_batch_from_being_told(
    directory: SpoolDirectory,
) -> None:
    """The spool is given back and room is made all the same, and the first error gets to the event loop."""
    heard = awaited(BaseException)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.set_result(context["exception"]))

    def fail(_: Reply | Exception) -> None:
        raise AssertionError("whoever was told failed")

    with Stalled() as executor:
        held = Held(directory, executor)
        done = asyncio.Event()
        held.on_release = done.set
        # It goes alone, and those behind it together.
        held.worker.content(b"", 0)
        held.worker.propose(Proposal(fragment(0), LabelSet(), NOW_NS, acked_through=0), fail)
        held.worker.content(bytes(QUEUED_BYTES_MAX), 0)
        had_room = held.worker.has_room
        held.worker.release()
        executor.go.set()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        assert (had_room, held.worker.has_room) == (False, True)
        assert str(await heard) == "whoever was told failed"


async def test_who_takes_over_at_once_does_not_work_beside_the_thread(held: Held) -> None:
    """Each holder asks for something on the disk and something that needs none, in the very moment it takes over."""
    rounds, done = 200, asyncio.Event()
    content = b""
    order: list[int] = []
    expected: list[int] = []

    def take_over() -> None:
        nonlocal content
        turn = len(held.releases)
        if turn > rounds:
            done.set()
            return
        held.worker.content(b"x", 0)
        content += b"x"
        ended = len(content)
        held.worker.propose(
            Proposal(fragment(0, content), X, NOW_NS, acked_through=0), lambda _: order.append(2 * ended)
        )
        held.worker.acked(ended, lambda: order.append(2 * ended + 1))
        expected.extend((2 * ended, 2 * ended + 1))
        held.worker.release()

    held.on_release = take_over
    held.worker.release()
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
    assert order == expected
    assert held.worker.spool.fragment == fragment(0, content)
    assert held.observed.shown[-1] == fragment(0, content)


async def test_content_out_of_order_is_told_to_the_holder(held: Held) -> None:
    held.worker.content(b"abc", 0)
    held.worker.content(b"def", 5)
    with pytest.raises(Exception, match="out of order"):
        await held.propose(fragment(0, b"abcdef"))
    assert "out of order" in str(held.failures[0])


async def test_who_has_given_it_back_hears_of_no_failure(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.content(b"abc", 7)
        held.worker.release()
        executor.go.set()
        done = asyncio.Event()
        held.on_release = done.set
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        assert held.failures == []


async def test_who_sends_more_than_the_disk_takes_waits_for_room(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        chunk = bytes(1 << 20)
        for at in range(QUEUED_BYTES_MAX // len(chunk)):
            held.worker.content(chunk, at * len(chunk))
        held.worker.content(b"x", QUEUED_BYTES_MAX)
        assert not held.worker.has_room
        waiting = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await held.worker.wait_room()
            waiting.set_result(None)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            executor.go.set()
            await asyncio.wait_for(waiting, TIMEOUT_S)
        assert (await held.seal()).fragment.end == QUEUED_BYTES_MAX + 1


async def test_content_that_could_not_be_written_makes_room_too(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        fail_writes(monkeypatch)
        held.worker.content(bytes(QUEUED_BYTES_MAX + 1), 0)
        assert not held.worker.has_room
        executor.go.set()
        await asyncio.wait_for(held.worker.wait_room(), TIMEOUT_S)


async def test_what_is_handed_on_goes_to_the_persister_without_what_is_pending(held: Held) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    held.worker.content(b"pending", 0)
    done = asyncio.Event()
    held.worker.hand_on(done.set)
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
    assert held.observed.handed == [fragment(0, b"abc")]
    assert held.observed.given_ups == 1


async def test_a_spool_that_failed_can_still_be_handed_on(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    held.worker.content(b"abc", 0)
    await held.propose(fragment(0, b"abc"))
    fail_writes(monkeypatch)
    held.worker.content(b"lost", 0)
    done = asyncio.Event()
    held.worker.hand_on(done.set)
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
    assert held.observed.handed == [fragment(0, b"abc")]


# Getting ready for a synchronisation (DH-5, DH-8).


def prepared(held: Held, fate: Fate | None) -> asyncio.Future[list[Exception | None]]:
    done = awaited(list[Exception | None])
    held.worker.prepare(fate, lambda failure: done.set_result([failure]))
    return done


async def test_a_spool_with_a_fate_is_handed_on_and_retired_to_it(held: Held) -> None:
    copy = await committed(held)
    assert await prepared(held, CutAt(3)) == [None]
    assert held.observed.handed == [fragment(0, b"hello")]
    assert held.observed.retirements == [(copy, CutAt(3))]
    assert held.worker.spool == Spool.fresh(JOURNAL)
    await held.released()
    assert held.observed.given_ups == 0


async def test_a_spool_without_a_fate_takes_part_as_it_is(held: Held) -> None:
    copy = await committed(held)
    held.worker.content(b"never", 0)
    assert await prepared(held, None) == [None]
    assert held.worker.spool.fragment == fragment(0, b"hello")
    assert held.worker.spool.pending == 0
    assert held.worker.spool.copy == copy
    assert (held.observed.handed, held.observed.retirements) == ([], [])


async def test_a_retired_spool_that_had_no_copy_has_no_fate_to_tell(held: Held) -> None:
    assert await prepared(held, CutAt(3)) == [None]
    assert held.observed.retirements == []


async def test_whoever_cannot_get_the_spool_ready_is_told_and_nothing_is_retired(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    await committed(held)
    fail_writes(monkeypatch)
    held.worker.content(b"x", 0)
    (failure,) = await prepared(held, CutAt(3))
    assert isinstance(failure, UnavailableError)
    assert held.observed.retirements == []
    assert held.worker.spool.fragment == fragment(0, b"hello")


async def test_a_spool_that_is_given_up_tells_how_far_its_copy_goes(held: Held) -> None:
    """DH-7."""
    copy = await committed(held)
    done = awaited(int)
    held.worker.hand_on(lambda: done.set_result(1))
    await done
    assert held.observed.given_up_copy == copy


# What is said of acknowledgements while the disk is busy.


async def test_any_number_of_acknowledgements_while_the_disk_is_busy_is_one_step(directory: SpoolDirectory) -> None:
    with Stalled() as executor:
        held = Held(directory, executor)
        held.worker.content(b"abc", 0)
        committed = held.propose(fragment(0, b"abc"))
        first = held.acked(1)
        before = len(held.worker._steps)  # noqa: SLF001
        for through in range(1000):
            held.worker.acked(through % 4)
        assert len(held.worker._steps) == before  # noqa: SLF001
        executor.go.set()
        await committed
        await first
        assert held.observed.shown == [fragment(0, b"abc")]


# A file that takes no more writes.


async def test_what_giving_back_does_to_files_is_done_on_a_thread(
    held: Held, directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fragment that never held a byte, the files are removed."""
    removing: list[int] = []
    remove = SpoolFile.remove

    def removed(file: SpoolFile) -> None:
        removing.append(threading.get_ident())
        remove(file)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "it is broken")

    held.worker.content(b"abc", 0)
    await held.seal()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        assert len(directory.sync_dirty()) == 1
    monkeypatch.setattr(SpoolFile, "remove", removed)
    await held.released()
    assert removing
    assert threading.get_ident() not in removing
