from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from fragment.cover_set import CoverSet
from fragment.index import JUMP_AGE_S, WRITE_HEAD, Found, NotYetAvailable
from fragment.live_index import LiveIndex, jittered
from protocol.codec import CompressionCodec
from protocol.errors import InvariantError, UnavailableError
from protocol.fragment import Fragment

NOW = 1_700_000_000


def local(begin: int, end: int, tag: int = 0) -> Fragment:
    return Fragment("acme/orders", begin, end, bytes([tag] * 20), CompressionCodec.NONE)


def remote(begin: int, end: int, mod_time: int = NOW, tag: int = 0) -> Fragment:
    return replace(local(begin, end, tag), backing_store="s3://bucket/", mod_time=mod_time)


class Clock:
    def __init__(self) -> None:
        self.now_s = float(NOW)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveIndex[str]:
    return LiveIndex("acme/orders", clock, random.Random(1))


def listing(*fragments: Fragment) -> Callable[[], Awaitable[CoverSet]]:
    async def list_remote() -> CoverSet:
        return CoverSet(fragments)

    return list_remote


async def settle() -> None:
    """Until every task has run as far as it can. None of those here waits for anything but the index."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestQueries:
    async def test_that_do_not_block_are_answered_at_once(self, live: LiveIndex[str]) -> None:
        assert await live.query(3) == NotYetAvailable(3, 0)
        live.commit(local(0, 10), "file")
        assert await live.query(3) == Found(3, 10, local(0, 10), "file")

    async def test_that_find_something_do_not_block(self, live: LiveIndex[str]) -> None:
        live.commit(local(0, 10), "file")
        assert await live.query(3, block=True) == Found(3, 10, local(0, 10), "file")

    async def test_that_block_wake_up_with_a_commit(self, live: LiveIndex[str]) -> None:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(live.query(offset, block=True)) for offset in (0, 5, 15)]
            await settle()
            live.commit(local(0, 10), "file")
            await settle()
            assert [reader.done() for reader in readers] == [True, True, False]
            live.commit(local(0, 20), "file")
        assert readers[1].result() == Found(5, 10, local(0, 10), "file")
        assert readers[2].result() == Found(15, 20, local(0, 20), "file")

    async def test_that_block_wake_up_with_a_refresh(self, live: LiveIndex[str]) -> None:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(live.query(0, block=True))
            await settle()
            await live.refresh(listing(remote(5, 10)))
        assert reader.result() == Found(5, 10, remote(5, 10), None)

    async def test_of_the_write_head_get_the_bytes_after_it(self, live: LiveIndex[str]) -> None:
        live.commit(local(0, 10), "file")
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(live.query(WRITE_HEAD, block=True))
            await settle()
            # Both before the reader gets its turn: the head it asked for is still that of then.
            live.commit(local(0, 15), "file")
            live.commit(local(0, 20), "file")
        assert reader.result() == Found(10, 20, local(0, 20), "file")

    async def test_that_passed_over_old_fragments_do_not_go_back(self, live: LiveIndex[str]) -> None:
        await live.refresh(listing(remote(0, 10, mod_time=5)))
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(live.query(0, begin_mod_time=NOW, block=True))
            await settle()
            await live.refresh(listing(remote(0, 10), remote(10, 20)))
        assert reader.result() == Found(10, 20, remote(10, 20), None)

    async def test_jump_over_a_hole_at_the_first_change_after_it_grew_old(
        self, live: LiveIndex[str], clock: Clock
    ) -> None:
        fragments = remote(0, 10), remote(20, 30)
        await live.refresh(listing(*fragments))
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(live.query(10, block=True))
            await settle()
            clock.now_s += JUMP_AGE_S + 0.9
            await live.refresh(listing(*fragments))
            await settle()
            assert not reader.done()
            clock.now_s += 0.1
            live.commit(local(30, 31), "file")
        assert reader.result() == Found(20, 31, remote(20, 30), None)

    async def test_leave_nothing_behind_when_cancelled(self, live: LiveIndex[str]) -> None:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(live.query(5, block=True)) for _ in range(100)]
            await settle()
            assert len(live.index._subscribers) == 100  # noqa: SLF001
            for reader in readers[1:]:
                reader.cancel()
            await settle()
            assert len(live.index._subscribers) == 1  # noqa: SLF001
            live.commit(local(0, 10), "file")
        assert not live.index._subscribers  # noqa: SLF001

    async def test_cancelled_in_the_very_moment_of_a_change_end_quietly(self, live: LiveIndex[str]) -> None:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(live.query(5, block=True))
            await settle()
            reader.cancel()
            live.commit(local(0, 10), "file")
        assert reader.cancelled()


class TestFirstRefresh:
    async def test_is_waited_for(self, live: LiveIndex[str]) -> None:
        async with asyncio.TaskGroup() as group:
            waiter = group.create_task(live.wait_first_refresh())
            live.commit(local(0, 10), "file")
            await settle()
            assert not waiter.done()
            await live.refresh(listing())
        await live.wait_first_refresh()

    async def test_is_not_one_that_failed(self, live: LiveIndex[str]) -> None:
        async def fail() -> CoverSet:
            raise UnavailableError("no route to the store")

        async with asyncio.TaskGroup() as group:
            waiter = group.create_task(live.wait_first_refresh())
            with pytest.raises(UnavailableError):
                await live.refresh(fail)
            await settle()
            assert not waiter.done()
            await live.refresh(listing(remote(0, 10)))
        assert live.index.summary().end == 10


class TestRefreshing:
    async def test_goes_on_after_failures_which_are_logged(
        self, live: LiveIndex[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        outcomes: list[CoverSet | Exception] = [
            UnavailableError("no route to the store"),
            TimeoutError("too late"),
            CoverSet([remote(0, 10)]),
            KeyError("a store's own bug"),
            CoverSet([remote(0, 20)]),
        ]
        intervals_asked = 0
        done = asyncio.Event()

        async def list_remote() -> CoverSet:
            if not outcomes:
                done.set()
                await asyncio.Event().wait()
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        def interval_s() -> float:
            nonlocal intervals_asked
            intervals_asked += 1
            return 0.0

        with caplog.at_level(logging.WARNING):
            async with asyncio.TaskGroup() as group:
                refreshing = group.create_task(live.refresh_forever(list_remote, interval_s))
                await live.wait_first_refresh()
                assert live.index.summary().end == 10
                await done.wait()
                assert live.index.summary().end == 20
                refreshing.cancel()
        assert intervals_asked == 5
        errors = [record.__dict__["error"] for record in caplog.records]
        assert [error.split("(")[0] for error in errors] == ["UnavailableError", "TimeoutError", "KeyError"]
        assert {record.__dict__["journal"] for record in caplog.records} == {"acme/orders"}

    async def test_tries_again_soon_until_it_has_succeeded_once(
        self, live: LiveIndex[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody can append before. Later on, an interval more or less does not matter."""
        failed = UnavailableError("no route to the store")
        outcomes: list[CoverSet | Exception] = [*[failed] * 7, CoverSet([remote(0, 10)]), failed, CoverSet()]
        problems: list[str | None] = []
        pauses_s: list[float] = []

        async def list_remote() -> CoverSet:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        async def sleep(pause_s: float) -> None:
            pauses_s.append(pause_s)
            problems.append(live.problem)
            if not outcomes:
                raise InvariantError("enough")

        monkeypatch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(InvariantError):
            await live.refresh_forever(list_remote, lambda: 300.0)
        expected_s = [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0, 300.0, 300.0, 300.0]
        assert pauses_s == pytest.approx(expected_s, rel=0.1)
        assert len(set(pauses_s)) == len(pauses_s), "journals that start together drift apart"
        assert problems == [*["no route to the store"] * 7, None, "no route to the store", None]

    async def test_tries_a_first_time_no_later_than_in_due_time(
        self, live: LiveIndex[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def list_remote() -> CoverSet:
            raise OSError("a word of somebody else's, which may show what is secret")

        async def sleep(pause_s: float) -> None:
            assert pause_s == pytest.approx(0.5, rel=0.1)
            raise InvariantError("enough")

        monkeypatch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(InvariantError):
            await live.refresh_forever(list_remote, lambda: 0.5)
        assert live.problem == "it cannot be used: OSError"

    async def test_ends_with_a_bug_of_ours(self, live: LiveIndex[str]) -> None:
        async def list_remote() -> CoverSet:
            raise InvariantError("this cannot be")

        with pytest.raises(InvariantError):
            await live.refresh_forever(list_remote, lambda: 0.0)

    async def test_never_lets_an_older_listing_undo_a_newer_one(self, live: LiveIndex[str]) -> None:
        """Else a fragment whose local copy has gone would be nowhere until the next refresh."""
        begun, proceed = asyncio.Event(), asyncio.Event()
        stored: list[Fragment] = []

        async def slow() -> CoverSet:
            seen = CoverSet(stored)
            begun.set()
            await proceed.wait()
            return seen

        async def quick() -> CoverSet:
            return CoverSet(stored)

        live.commit(local(0, 10), "file")
        async with asyncio.TaskGroup() as group:
            group.create_task(live.refresh(slow))
            await begun.wait()
            stored.append(remote(0, 10))
            group.create_task(live.refresh(quick))
            await settle()
            proceed.set()
        assert await live.query(0) == Found(0, 10, remote(0, 10), None)

    async def test_keeps_what_is_committed_while_a_listing_is_under_way(self, live: LiveIndex[str]) -> None:
        begun, proceed = asyncio.Event(), asyncio.Event()

        async def slow() -> CoverSet:
            begun.set()
            await proceed.wait()
            return CoverSet([remote(0, 10)])

        live.commit(local(0, 10), "first")
        async with asyncio.TaskGroup() as group:
            group.create_task(live.refresh(slow))
            await begun.wait()
            live.commit(local(10, 20), "second")
            proceed.set()
        assert await live.query(0) == Found(0, 20, remote(0, 10), None)
        assert await live.query(10) == Found(10, 20, local(10, 20), "second")

    def test_journals_that_start_together_drift_apart(self) -> None:
        chance = random.Random(7)
        pauses = [jittered(100.0, chance) for _ in range(200)]
        assert 90.0 <= min(pauses) < 95.0 < 105.0 < max(pauses) <= 110.0
        assert len(set(pauses)) > 190


class TestDivergence:
    async def test_of_a_listing_is_logged_with_both_fragments(
        self, live: LiveIndex[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        await live.refresh(listing(remote(0, 10, tag=1), remote(0, 10, tag=2)))
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert repr(bytes([1] * 20)) in record.__dict__["latest"]
        assert repr(bytes([2] * 20)) in record.__dict__["latest"]

    async def test_of_a_commit_is_logged_once(self, live: LiveIndex[str], caplog: pytest.LogCaptureFixture) -> None:
        await live.refresh(listing(remote(0, 10, tag=1)))
        live.commit(local(0, 10, tag=2), "file")
        live.commit(local(10, 20), "file")
        assert len(caplog.records) == 1
