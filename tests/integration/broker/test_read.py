"""Reads over gRPC, of a journal that is written, rolled and taken to its store meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.validation import validate
from tests.support.eventually import eventually
from tests.support.journal_cluster import (
    NOW_S,
    STORE,
    A,
    C,
    HeldJournal,
    JournalCluster,
    fragment_of,
    journal_spec,
)

JOURNAL = "acme/orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[JournalCluster]:
    made = JournalCluster(tmp_path, A, C)
    made.put_journal(journal_spec(JOURNAL), A)
    yield made
    await made.close()


class Journal:
    """One that grows by random appends. What is rolled goes to the store sooner or later."""

    def __init__(self, cluster: JournalCluster, chance: random.Random) -> None:
        self.content = bytearray()
        self._cluster = cluster
        self._held: HeldJournal = cluster.brokers[A].held[JOURNAL]
        self._chance = chance
        self._complete: list[Fragment] = []
        self._stored: list[Fragment] = []

    def append(self) -> None:
        data = self._chance.randbytes(self._chance.choice((1, 100, 70_000)))
        self._held.append(data)
        self.content += data

    def roll(self) -> None:
        if (held := self._held.writer.spool.fragment).content_length:
            self._complete.append(held)
            self._held.roll()

    async def persist(self) -> None:
        for fragment in self._complete:
            stored = replace(fragment, backing_store=STORE, mod_time=NOW_S)
            self._cluster.put_object(stored, bytes(self.content[fragment.begin : fragment.end]))
            self._stored.append(stored)
        self._complete.clear()
        await self._held.refresh(*self._stored)

    async def live(self, end: int) -> None:
        while len(self.content) < end:
            match self._chance.randrange(8):
                case 0:
                    self.roll()
                case 1:
                    await self.persist()
                case _:
                    self.append()
            await asyncio.sleep(0)


@asynccontextmanager
async def served(cluster: JournalCluster, at: object = A) -> AsyncIterator[grpc.aio.Channel]:
    """The Read of one broker, and a channel to it."""
    broker = cluster.brokers[A if at is A else C]

    async def handler(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async with aclosing(broker.reads.read(pb.ReadRequest.FromString(request))) as messages:
            async for message in messages:
                await context.write(message if isinstance(message, bytes) else message.SerializeToString())

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Read": grpc.unary_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("protocol.Journal", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def read(channel: grpc.aio.Channel, **fields: object) -> bytes:
    call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/protocol.Journal/Read")
    request = pb.ReadRequest(journal=JOURNAL, **fields)  # type: ignore[arg-type]
    content = bytearray()
    at = request.offset
    async for raw in call(request.SerializeToString()):
        message = pb.ReadResponse.FromString(raw)
        validate(message)
        assert message.offset == at
        content += message.content
        at += len(message.content)
    return bytes(content)


@pytest.mark.parametrize("at", [A, C], ids=["at a member", "through another broker"])
@pytest.mark.parametrize("seed", range(3))
async def test_readers_get_every_byte_once_while_fragments_move_to_the_store(
    cluster: JournalCluster, at: object, seed: int
) -> None:
    chance = random.Random(seed)
    journal = Journal(cluster, chance)
    end = 1_000_000
    wanted = [(chance.randrange(end // 2), chance.randrange(end // 2, end)) for _ in range(10)]
    async with served(cluster, at) as channel, asyncio.TaskGroup() as tasks:
        reading = [
            tasks.create_task(read(channel, offset=begin, end_offset=upto, block=True)) for begin, upto in wanted
        ]
        await journal.live(end)
        await asyncio.wait(reading)
        got = [task.result() for task in reading]
    assert [len(content) for content in got] == [upto - begin for begin, upto in wanted]
    assert all(content == journal.content[begin:upto] for content, (begin, upto) in zip(got, wanted, strict=True))


async def test_a_read_ends_well_when_its_journal_moves_away(cluster: JournalCluster) -> None:
    cluster.brokers[A].held[JOURNAL].append(b"hello")
    async with served(cluster) as channel, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(channel, block=True))
        index = cluster.brokers[A].held[JOURNAL].replica.index
        await eventually(lambda: bool(index._subscribers), "the read to wait for more")  # noqa: SLF001
        cluster.unassign(JOURNAL, A, 0)
        await asyncio.wait([reading])
    assert reading.result() == b"hello"


async def test_a_missing_object_fails_the_call(cluster: JournalCluster) -> None:
    await cluster.brokers[A].held[JOURNAL].refresh(fragment_of(JOURNAL, 0, b"hello"))
    async with served(cluster) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await read(channel)
