from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from allocator.key_event import EtcdHeader, StoredKey
from allocator.keys import assignment_key, item_key, member_key
from broker.broker_member import BrokerMember
from broker.listing import JOURNALS_MAX
from broker.read_message import content_message
from broker.spool_chunks import CHUNK_BYTES_MAX
from protocol.gen import journal_pb2 as pb
from tests.bench.harness import Contest, benchmark
from tests.support.journal_cluster import ROOT, A, JournalCluster, journal_spec

JOURNAL = "acme/orders"
CONTENT_BYTES = 256 << 20
READERS = 50
SHARED_BYTES = 8 << 20
JOURNALS = 100_000

Serve = Callable[[pb.ReadRequest, Callable[[bytes], Awaitable[None]]], Awaitable[None]]


async def filled(folder: Path, content_bytes: int) -> JournalCluster:
    cluster = JournalCluster(folder, A)
    cluster.put_journal(journal_spec(JOURNAL), A)
    for _ in range(content_bytes >> 20):
        cluster.brokers[A].held[JOURNAL].append(os.urandom(1 << 20))
    return cluster


async def send_all(cluster: JournalCluster, send: Callable[[bytes], Awaitable[None]]) -> None:
    async with aclosing(cluster.brokers[A].reads.read(pb.ReadRequest(journal=JOURNAL))) as messages:
        async for message in messages:
            await send(message if isinstance(message, bytes) else message.SerializeToString())


def serve(folder: str, port: Connection) -> None:
    """A process that serves one journal, and beside it messages of the same size that are there already."""

    async def main() -> None:
        cluster = await filled(Path(folder), CONTENT_BYTES)
        chunk = content_message(0, bytes(CHUNK_BYTES_MAX))

        async def ours(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await send_all(cluster, context.write)

        async def floor(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            for _at in range(CONTENT_BYTES // CHUNK_BYTES_MAX):
                await context.write(chunk)

        server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Ours": grpc.unary_stream_rpc_method_handler(ours),
            "Floor": grpc.unary_stream_rpc_method_handler(floor),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
        port.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


async def received(port: int, method: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/bench/{method}")
        total = 0
        async for message in call(b""):
            total += len(message)
        assert total >= CONTENT_BYTES
        return total


@benchmark("read: a local spool of 256 MiB over gRPC")
def read_over_grpc() -> Iterator[Contest]:
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = spawn.Process(target=serve, args=(folder, far), daemon=True)
        process.start()
        port = near.recv()
        yield Contest(
            lambda: asyncio.run(received(port, "Ours")),
            lambda: asyncio.run(received(port, "Floor")),
            "the same messages, made before",
            CONTENT_BYTES >> 20,
            "MiB",
            ratio_min=0.7,
        )
        process.terminate()
        process.join()


@contextmanager
def serving(content_bytes: int) -> Iterator[tuple[asyncio.Runner, JournalCluster, Path]]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        cluster = runner.run(filled(Path(folder), content_bytes))
        (content,) = Path(folder, "spools").glob("*.content")
        yield runner, cluster, content
        runner.run(cluster.close())


def raw_read(content: Path) -> None:
    with content.open("rb", buffering=0) as file:
        while file.read(CHUNK_BYTES_MAX):
            pass


async def nowhere(_: bytes) -> None:
    pass


@benchmark("read: a local spool of 256 MiB, without a network")
def read_alone() -> Iterator[Contest]:
    with serving(CONTENT_BYTES) as (runner, cluster, content):
        yield Contest(
            lambda: runner.run(send_all(cluster, nowhere)),
            lambda: raw_read(content),
            "read the file",
            CONTENT_BYTES >> 20,
            "MiB",
            memory_bytes_max=32 << 20,
        )


@benchmark("read: 50 readers of the same 8 MiB")
def read_together() -> Iterator[Contest]:
    with serving(SHARED_BYTES) as (runner, cluster, content):

        async def together() -> None:
            await asyncio.gather(*[send_all(cluster, nowhere) for _ in range(READERS)])

        def one_by_one() -> None:
            for _ in range(READERS):
                raw_read(content)

        yield Contest(
            lambda: runner.run(together()),
            one_by_one,
            "read the file for each",
            READERS * SHARED_BYTES >> 20,
            "MiB",
        )


@benchmark("list: 100,000 journals")
def list_all() -> Iterator[Contest]:
    specs = [journal_spec(f"acme/part-{at:06}").to_proto() for at in range(JOURNALS)]
    raw = [spec.SerializeToString() for spec in specs]
    keys = [StoredKey(member_key(ROOT, *A).encode(), BrokerMember(A, "http://a:80", 9).encoded(), 1, 1, 1, 0)]
    for spec, value in zip(specs, raw, strict=True):
        keys.append(StoredKey(item_key(ROOT, spec.name).encode(), value, 1, 1, 1, 0))
        keys.append(StoredKey(assignment_key(ROOT, spec.name, "zone-b", "broker-9", 0).encode(), b"", 1, 1, 1, 0))
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:

        async def begun() -> JournalCluster:
            cluster = JournalCluster(Path(folder), header=EtcdHeader(1, 1, 1, 1), keys=sorted(keys))
            cluster.begin(A)
            return cluster

        cluster = runner.run(begun())

        async def ours() -> None:
            count = 0
            async for message in cluster.brokers[A].lists.list_journals(pb.ListRequest()):
                message.SerializeToString()
                count += len(message.journals)
            assert count == JOURNALS

        def floor() -> None:
            for at in range(0, JOURNALS, JOURNALS_MAX):
                response = pb.ListResponse()
                for value in raw[at : at + JOURNALS_MAX]:
                    response.journals.add().spec.MergeFromString(value)
                response.SerializeToString()

        yield Contest(
            lambda: runner.run(ours()), floor, "copy each spec", JOURNALS, "journals", seconds_max=3, rounds=3
        )
        runner.run(cluster.close())
