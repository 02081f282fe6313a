from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from fragment.stores.blob_store import BlobStore
from fragment.stores.bucket_store import BucketStore
from fragment.stores.health import (
    DELETE_PROBE,
    HEALTHY_S,
    PROBE,
    PROBE_CONTENT,
    Health,
    StoreHealth,
    check_delete,
    check_store,
    next_check_s,
)
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.errors import UnavailableError, ValidationError
from protocol.fragment_store import FragmentStore
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bucket import MemoryBucket

URL = "s3://bucket/prefix/?find=.test/&replace=probes/"


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def store(bucket: MemoryBucket) -> FaultyStore:
    return FaultyStore(BucketStore(FragmentStore.parse(URL), bucket))


@given(failures=st.integers(0, 100), chance=st.floats(0, 1, exclude_max=True))
def test_a_check_is_due_within_a_fifth_of_its_time(failures: int, chance: float) -> None:
    due = next_check_s(failures, 0.5)
    assert due in (0, 0.1, 1, 10, 100, HEALTHY_S)
    assert 0.8 * due <= next_check_s(failures, chance) <= 1.2 * due


def test_checks_of_a_bad_store_come_ever_later() -> None:
    due = [next_check_s(failures, 0.5) for failures in range(1, 20)]
    assert due == sorted(due)
    assert next_check_s(0, 0.99) > next_check_s(0, 0.01)


async def test_a_good_store_passes_and_keeps_the_probe(store: FaultyStore, bucket: MemoryBucket) -> None:
    await check_store(store)
    await check_store(store)
    assert {key: content for key, (content, _) in bucket.objects.items()} == {
        "prefix/probes/health-check": PROBE_CONTENT
    }


@pytest.mark.parametrize("operation", ["put", "get", "list", "sign_get"])
async def test_a_store_that_fails_at_anything_does_not_pass(store: FaultyStore, operation: str) -> None:
    store.fail_next(operation=operation)
    with pytest.raises(UnavailableError, match="as the test wants it"):
        await check_store(store)
    assert store.calls[operation] == 1


async def test_a_store_that_gives_back_something_else_does_not_pass(store: FaultyStore) -> None:
    store.cut_reads_at = 5
    with pytest.raises(UnavailableError, match="reads differently"):
        await check_store(store)


async def test_a_store_that_does_not_list_what_it_has_does_not_pass() -> None:
    class Forgetful(MemoryBucket):
        async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
            content, _ = self.objects.pop(key)
            yield content

    with pytest.raises(UnavailableError, match="is not listed"):
        await check_store(BucketStore(FragmentStore.parse(URL), Forgetful()))


async def test_the_delete_probe_leaves_nothing(store: FaultyStore, bucket: MemoryBucket) -> None:
    await check_delete(store, "acme/orders/")
    assert bucket.objects == {}
    assert store.calls == {"put": 1, "remove": 1}
    store.fail_next(operation="remove")
    with pytest.raises(UnavailableError):
        await check_delete(store, "acme/orders/")
    assert list(bucket.objects) == [f"prefix/acme/orders/{DELETE_PROBE}"]


class Clock:
    """Sleeps end when the test says so, and not otherwise."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._turns: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        await self._turns.get()

    def turn(self) -> None:
        self._turns.put_nowait(None)


class Middle(Random):
    """Without jitter."""

    def random(self) -> float:
        return 0.5


def health_of(open_store: Callable[[], Awaitable[BlobStore]], clock: Clock) -> StoreHealth:
    return StoreHealth("s3://bucket", open_store, Middle(), clock.sleep)


async def test_writers_learn_when_a_store_fails_and_when_it_is_well_again(store: FaultyStore) -> None:
    async def open_store() -> BlobStore:
        return store

    clock = Clock()
    health = health_of(open_store, clock)
    assert health.current == Health()
    assert not health.current.is_healthy
    async with asyncio.TaskGroup() as group:
        running = group.create_task(health.run())
        assert (await health.wait_first()).is_healthy
        assert (await health.wait_first()) is health.current
        store.fail_next(8, operation="put")
        for failures in range(1, 9):
            clock.turn()
            found = await health.wait_next()
            assert found.checks == failures + 1
            assert found.problem == "faulty store: out of reach, as the test wants it"
            assert not found.is_final
        clock.turn()
        assert (await health.wait_next()).is_healthy
        await asyncio.sleep(0)
        assert clock.slept == [1800, 0, 0.1, 1, 1, 10, 10, 100, 100, 1800]
        waiting = group.create_task(health.wait_next())
        await asyncio.sleep(0)
        running.cancel()
        ended = await waiting
    assert ended.is_final
    assert "have ended" in str(ended.problem)
    assert await health.wait_next() == ended


async def test_nobody_waits_for_a_store_that_cannot_be_opened(store: FaultyStore) -> None:
    opened: list[BlobStore] = []

    async def open_store() -> BlobStore:
        if not opened:
            raise ValidationError("expected only query arguments that s3 stores know")
        return opened[0]

    checked = asyncio.Event()

    async def check(store: BlobStore) -> None:
        checked.set()

    clock = Clock()
    health = StoreHealth("s3://bucket", open_store, Middle(), clock.sleep, check)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(health.run())
        found = await health.wait_first()
        assert found.is_final
        assert "query arguments" in str(found.problem)
        assert await health.wait_next() == found
        # Its operator may have mended it: every check tries anew.
        opened.append(store)
        clock.turn()
        await checked.wait()
        assert health.current.is_healthy
        running.cancel()


async def test_checks_do_not_keep_a_store_open_that_nobody_uses(bucket: MemoryBucket) -> None:
    stores = OpenStores(StoreSettings(), open_bucket=lambda *_: bucket)
    clock = Clock()
    health = health_of(lambda: stores.open("s3://bucket/"), clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(health.run())
        assert (await health.wait_first()).is_healthy
        await stores.sweep()
        clock.turn()
        assert (await health.wait_next()).is_healthy
        await stores.sweep()
        clock.turn()
        ended = await health.wait_next()
    assert ended.is_final
    assert "have ended" in str(ended.problem)


async def test_a_check_that_hangs_is_given_up(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragment.stores.health.CHECK_S_MAX", 0.01)

    async def open_store() -> BlobStore:
        return store

    store.hang()
    health = health_of(open_store, Clock())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(health.run())
        found = await health.wait_first()
        running.cancel()
    assert "took longer than" in str(found.problem)
    assert PROBE == ".test/health-check"


async def test_checks_are_counted_by_store_and_outcome(store: FaultyStore) -> None:
    async def open_store() -> BlobStore:
        return store

    def counted(status: str) -> float | None:
        labels = {"store": "s3://counted", "status": status}
        return REGISTRY.get_sample_value("gazette_store_health_check_total", labels)

    health = StoreHealth("s3://counted", open_store, Middle(), (clock := Clock()).sleep)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(health.run())
        await health.wait_first()
        store.fail_next()
        clock.turn()
        await health.wait_next()
        running.cancel()
    assert (counted("ok"), counted("error")) == (1, 1)
