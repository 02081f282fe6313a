"""Appends that are put together, against real brokers and against one that does as it is told."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from broker.client.append_service import PendingAppend
from broker.client.client import Client
from broker.client.journal_change import Upsert
from broker.client.retry import AtLeastOnce
from protocol.errors import RefusedError, Status
from tests.support.broker_cluster import journal_spec

_NUMBERS = itertools.count()


@pytest.fixture
async def journals(client: Client) -> list[str]:
    names = [f"client/service-{next(_NUMBERS):03}" for _ in range(3)]
    await client.apply(*[Upsert(journal_spec(name, replication=1)) for name in names])
    return names


async def test_appends_are_in_order_and_share_calls(client: Client, journals: list[str]) -> None:
    chance = random.Random(7)
    service = client.append_service(pending_bytes_max=4000)
    written: dict[str, list[bytes]] = {name: [] for name in journals}
    pending: list[tuple[bytes, PendingAppend]] = []
    for at in range(2000):
        name, line = chance.choice(journals), b"%06d\n" % at
        pending.append((line, await service.append(name, line)))
        written[name].append(line)
    await service.flush()
    calls = set()
    for line, append in pending:
        done = await append
        assert done.end - done.begin == len(line)
        calls.add((done.journal, done.sum))
    assert len(calls) < 500
    for name in journals:
        content = await client.read(name, block=False).read()
        assert content == b"".join(written[name])
    done = await pending[-1][1]
    assert await client.read(done.journal, done.begin, end=done.end).read() == pending[-1][0]


async def test_an_append_comes_after_those_it_depends_on(client: Client, journals: list[str]) -> None:
    """Around in a circle, many times."""
    service = client.append_service()
    done: list[int] = []

    async def told(at: int, append: PendingAppend) -> None:
        await append
        done.append(at)

    async with asyncio.TaskGroup() as tasks:
        last: list[PendingAppend] = []
        for at in range(30):
            append = await service.append(journals[at % 3], b"%03d\n" % at, after=last)
            tasks.create_task(told(at, append))
            last = [append]
    assert done == list(range(30))


async def test_a_failed_append_fails_those_after_it_and_no_others(client: Client, journals: list[str]) -> None:
    service = client.append_service()
    missing = await service.append("client/no-such-journal", b"one\n")
    dependent = await service.append(journals[0], b"two\n", after=[missing])
    free = await service.append(journals[1], b"three\n")
    for append in (missing, dependent):
        with pytest.raises(RefusedError) as refused:
            await append
        assert refused.value.status is Status.JOURNAL_NOT_FOUND
    assert (await free).begin == 0
    # From now on, for both.
    for name in ("client/no-such-journal", journals[0]):
        with pytest.raises(RefusedError):
            await (await service.append(name, b"four\n"))
    with pytest.raises(RefusedError):
        await service.flush()
    assert any(append.is_done for append in service.pending_except(journals[1]))
    assert (await client.append(journals[0])).end == 0


async def test_an_empty_append_is_a_barrier(client: Client, journals: list[str]) -> None:
    async with client.append_service() as service:
        await service.append(journals[0], b"one\n")
        barrier = await service.append(journals[0])
    assert (await barrier).end == 4
    assert service.pending_except() == []


async def test_too_much_at_once_is_held_back(client: Client, journals: list[str]) -> None:
    service = client.append_service(retry=AtLeastOnce(), pending_bytes_max=10)
    # One alone is always let through.
    first = service.append_nowait(journals[0], b"more than ten bytes\n")
    with pytest.raises(asyncio.QueueFull):
        service.append_nowait(journals[1], b"x")
    await service.wait_room(1)
    assert first.is_done
    await (await service.append(journals[1], b"x"))
