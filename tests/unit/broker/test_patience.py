"""Waits that end, and clients that are not blamed for a loop that was busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from broker.patience import LATE_S, Patience
from tests.support.turned_loop import TurnedLoop, run_turned


async def told(future: asyncio.Future[str]) -> str:
    return await future


async def never() -> str:
    return await told(asyncio.get_running_loop().create_future())


async def at_once() -> str:
    return "here"


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many timers were set."""
    loop = asyncio.get_running_loop()
    call_at, count = loop.call_at, 0

    def counted(*args: object, **named: object) -> asyncio.TimerHandle:
        nonlocal count
        count += 1
        return call_at(*args, **named)  # type: ignore[arg-type]

    if isinstance(loop, uvloop.Loop):
        pytest.skip("the methods of uvloop's loop cannot be replaced")
    monkeypatch.setattr(loop, "call_at", counted)
    return lambda: count


async def test_what_comes_in_time_is_returned() -> None:
    with Patience() as patience:
        assert await patience.wait(at_once(), 60) == "here"
        assert await patience.wait(at_once(), None) == "here"


async def test_a_wait_that_takes_too_long_ends_and_the_task_goes_on() -> None:
    with Patience() as patience:
        with pytest.raises(TimeoutError):
            await patience.wait(never(), 0.01)
        assert await patience.wait(at_once(), 60) == "here"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_every_wait_has_its_own_time() -> None:
    with Patience() as patience:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await patience.wait(never(), 0.01)


async def test_a_shorter_wait_after_a_longer_one_ends_in_its_own_time() -> None:
    with Patience() as patience:
        assert await patience.wait(at_once(), 3600) == "here"
        with pytest.raises(TimeoutError):
            await patience.wait(never(), 0.01)


async def test_waits_that_are_not_for_long_share_one_timer(timers: Callable[[], int]) -> None:
    with Patience() as patience:
        for _ in range(100):
            await patience.wait(at_once(), 60)
    assert timers() == 1


def test_what_came_while_the_loop_was_busy_is_in_time() -> None:
    async def wait(loop: TurnedLoop) -> None:
        chunk: asyncio.Future[str] = loop.create_future()

        def busy() -> None:
            # Nothing else is told meanwhile.
            loop.forward(LATE_S * 4)
            loop.call_soon(lambda: loop.call_soon(chunk.set_result, "it was there all along"))

        loop.call_soon(busy)
        with Patience() as patience:
            assert await patience.wait(told(chunk), LATE_S) == "it was there all along"

    run_turned(wait)


def test_a_loop_that_was_busy_is_no_excuse_for_ever() -> None:
    async def wait(loop: TurnedLoop) -> None:
        loop.call_soon(loop.forward, LATE_S * 4)
        with Patience() as patience, pytest.raises(TimeoutError):
            await patience.wait(never(), LATE_S)

    run_turned(wait)


async def test_a_task_that_is_cancelled_by_another_is_cancelled() -> None:
    waiting = asyncio.Event()

    async def work() -> None:
        with Patience() as patience:
            waiting.set()
            await patience.wait(never(), 60)

    task = asyncio.get_running_loop().create_task(work())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_wait_without_any_time_ends() -> None:
    with Patience() as patience, pytest.raises(TimeoutError):
        await patience.wait(never(), 0.0)


async def test_a_task_that_has_gone_on_is_left_alone() -> None:
    with Patience() as patience:
        await patience.wait(at_once(), 0.01)
    with Patience() as later, pytest.raises(TimeoutError):
        await later.wait(never(), 0.02)
