"""StoreHealths, on an event loop whose time passes only when nothing else is left to do."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from broker.background import Background
from broker.store_healths import SWEEP_S, StoreHealths
from fragment.stores.blob_store import Batch, ListedObject, StoreClosedError
from fragment.stores.health import HEALTHY_S
from protocol.errors import UnavailableError, ValidationError

URL = "s3://bucket/prefix/"
SECRET = "s3://bucket/prefix/?token=secret"
OTHER = "s3://bucket/other/"
T = TypeVar("T")


class SkippingSelector(selectors.DefaultSelector):
    """Instead of waiting, it says that the time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = SkippingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


class MemoryStore:
    """A BlobStore without threads, that fails as often as it is told to."""

    def __init__(self) -> None:
        self.checks = 0
        self._failures = 0
        self._error: Exception = UnavailableError("it is full")
        self._objects: dict[str, bytes] = {}

    def fail(self, times: int, error: Exception | None = None) -> None:
        self._failures, self._error = times, error or self._error

    async def exists(self, path: str) -> bool:
        return path in self._objects

    async def size(self, path: str) -> int:
        return len(self._objects[path])

    async def get(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        yield self._objects[path][offset:][:length]

    async def put(self, path: str, source: Path | int, *, size: int, content_encoding: str | None = None) -> None:
        self.checks += 1
        if self._failures:
            self._failures -= 1
            raise self._error
        assert isinstance(source, int)
        self._objects[path] = os.pread(source, size, 0)

    async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        matching = (path for path in self._objects if path.startswith(prefix))
        yield [ListedObject(path.removeprefix(prefix), 0, len(self._objects[path])) for path in matching]

    async def remove(self, path: str) -> None:
        self._objects.pop(path, None)

    async def sign_get(self, path: str, ttl_s: float) -> str:
        return f"memory://{path}"

    async def close(self) -> None: ...


class Stores:
    """What is opened by which URL, and how often it was."""

    def __init__(self) -> None:
        self.stores = {URL: MemoryStore(), OTHER: MemoryStore()}
        self.opened: Counter[str] = Counter()
        self.refusal: Exception | None = None

    async def open(self, url: str) -> MemoryStore:
        self.opened[url] += 1
        if self.refusal is not None:
            raise self.refusal
        return self.stores[url]


class Checking:
    def __init__(self, stores: Stores) -> None:
        self.tasks = Background()
        self.stores = stores
        self.healths = StoreHealths(self.tasks, stores.open, Random(1))

    async def __aenter__(self) -> Checking:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()
        assert not self.tasks.has_failed


def run(running: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(running)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_store_is_checked_from_when_it_is_first_asked_about() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            assert not it.stores.opened
            assert not it.healths.is_healthy(URL), "nothing is known yet"
            assert await it.healths.problem(URL) is None
            assert it.healths.is_healthy(URL)
            assert now_s() == 0

    run(asked())


def test_however_many_ask_about_a_store_it_is_opened_and_checked_once() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            problems = await asyncio.gather(*(it.healths.problem(URL) for _ in range(50)))
            assert problems == [None] * 50
            assert it.healths.of(URL) is it.healths.of(URL)
            assert (it.stores.opened[URL], it.stores.stores[URL].checks) == (1, 1)

    run(asked())


def test_each_store_has_a_health_of_its_own() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.stores.stores[OTHER].fail(1000)
            well, sick = await asyncio.gather(it.healths.problem(URL), it.healths.problem(OTHER))
            assert well is None
            assert sick is not None
            assert OTHER in sick

    run(asked())


def test_a_store_that_recovers_is_waited_for() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.stores.stores[URL].fail(3)
            assert await it.healths.problem(URL) is None
            assert it.stores.stores[URL].checks == 4
            assert 0 < now_s() < 5

    run(asked())


def test_after_seven_checks_in_vain_it_is_told() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            store = it.stores.stores[URL]
            store.fail(1000)
            assert await it.healths.problem(URL) == f"fragment store {URL} unhealthy: it is full"
            assert store.checks == 7
            assert 15 < now_s() < 30
            assert not it.healths.is_healthy(URL)

    run(asked())


def test_a_store_that_falls_ill_later_is_noticed_and_recovers() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            assert await it.healths.problem(URL) is None
            it.stores.stores[URL].fail(3)
            assert not (await it.healths.of(URL).wait_next()).is_healthy
            assert 0.8 * HEALTHY_S <= now_s() <= 1.2 * HEALTHY_S
            assert not it.healths.is_healthy(URL)
            assert await it.healths.problem(URL) is None
            assert now_s() < 1.2 * HEALTHY_S + 5

    run(asked())


def test_a_store_that_cannot_be_opened_is_told_at_once() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.stores.refusal = ValidationError("it takes no such argument")
            problem = await it.healths.problem(URL)
            assert problem is not None
            assert "it takes no such argument" in problem
            assert now_s() == 0

    run(asked())


def test_what_is_told_of_a_store_does_not_hold_its_arguments() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.stores.stores[SECRET] = MemoryStore()
            it.stores.stores[SECRET].fail(1000)
            problem = await it.healths.problem(SECRET)
            assert problem is not None
            assert problem.startswith(f"fragment store {URL} unhealthy")
            assert "secret" not in problem

    run(asked())


def test_only_what_is_checked_anyway_is_known_to_others() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            assert it.healths.watched(URL) is None
            assert not it.stores.opened, "to look is not to begin with it"
            it.healths.of(URL)
            watched = it.healths.watched(URL)
            assert watched is not None
            assert (await watched).is_healthy
            assert it.healths.watched(OTHER) is None

    run(asked())


def test_a_store_that_nobody_asks_about_for_long_is_not_checked_any_more() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.tasks.create_task(it.healths.sweep_forever())
            assert await it.healths.problem(URL) is None
            assert await it.healths.problem(OTHER) is None
            for _ in range(4):
                await asyncio.sleep(0.75 * SWEEP_S)
                assert it.healths.is_healthy(OTHER)
            assert it.healths.watched(URL) is None
            checks = it.stores.stores[URL].checks
            await asyncio.sleep(10 * HEALTHY_S)
            assert it.stores.stores[URL].checks == checks
            assert it.stores.opened == {URL: 1, OTHER: 1}

    run(asked())


def test_a_store_that_is_swept_is_checked_anew_when_it_is_asked_about() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            it.tasks.create_task(it.healths.sweep_forever())
            assert await it.healths.problem(URL) is None
            await asyncio.sleep(3 * SWEEP_S)
            assert it.healths.watched(URL) is None
            assert await it.healths.problem(URL) is None
            assert it.stores.opened[URL] == 2

    run(asked())


def test_one_that_was_closed_for_want_of_use_is_opened_anew() -> None:
    async def asked() -> None:
        async with Checking(Stores()) as it:
            assert await it.healths.problem(URL) is None
            it.stores.stores[URL].fail(1, StoreClosedError("closed"))
            assert (await it.healths.of(URL).wait_next()).is_final
            assert it.healths.watched(URL) is None
            assert not it.healths.is_healthy(URL)
            assert await it.healths.problem(URL) is None
            assert it.stores.opened[URL] == 2

    run(asked())
