"""Appends through brokers that are processes of their own, against a bare grpc.aio server that discards everything."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from protocol.gen import journal_pb2 as pb
from tests.bench.harness import Contest, benchmark, use_memory
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import etcd_server

JOURNAL = "bench/journal"
_MIB = bytes(range(256)) * 4096
_SMALL = b"x" * 100

_RAW_SERVER = """
import asyncio, grpc
async def append(requests, context):
    async for _ in requests:
        pass
    return b""
async def main():
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", 4 << 20),))
    handler = grpc.stream_unary_rpc_method_handler(append)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("protocol.Journal", {"Append": handler})])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""

Append = Callable[[Sequence[bytes]], Coroutine[Any, Any, bytes]]

CHUNK_BYTES = 256 << 10
"""As our client sends it: large enough to cost little, small enough for a broker to write one while the next comes."""

MEMORY_BYTES = 1 << 30
"""What is used before each turn. With four times the content of a turn, most of the files' pages still were new to the
machine's host, and a broker was measured at half its speed."""


def _append_through(channel: grpc.aio.Channel) -> Append:
    """With messages that are serialised already, so that the client costs as little as it can."""
    call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/protocol.Journal/Append")
    opening = pb.AppendRequest(journal=JOURNAL).SerializeToString()

    async def append(chunks: Sequence[bytes]) -> bytes:
        return await call(iter((opening, *chunks, b"")), timeout=60)

    return append


@contextmanager
def _raw(runner: asyncio.Runner) -> Iterator[Append]:
    process = subprocess.Popen([sys.executable, "-c", _RAW_SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = f"127.0.0.1:{process.stdout.readline().strip()}"

        async def connect() -> grpc.aio.Channel:
            return grpc.aio.insecure_channel(address)

        channel = runner.run(connect())
        yield _append_through(channel)
        runner.run(channel.close())
    finally:
        process.kill()
        process.wait()


@contextmanager
def _brokers(runner: asyncio.Runner, replication: int, module: str = "gazctl.main") -> Iterator[Append]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "etcd").mkdir()
        etcd = stack.enter_context(etcd_server(folder / "etcd"))
        names = [f"broker-{at}" for at in range(replication)]
        opened = broker_cluster(folder, etcd.endpoint, "/bench", *names, module=module)
        cluster = runner.run(opened.__aenter__())
        stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
        primary = runner.run(_created(cluster, replication))

        async def connect() -> grpc.aio.Channel:
            return grpc.aio.insecure_channel(cluster.brokers[primary].address)

        channel = runner.run(connect())
        yield _append_through(channel)
        runner.run(channel.close())


async def _created(cluster: BrokerCluster, replication: int) -> str:
    # Nothing is uploaded meanwhile: that is measured elsewhere.
    await cluster.apply(journal_spec(JOURNAL, replication, length=1 << 30))
    await cluster.append("broker-0", JOURNAL, b"first")
    primary, _ = await cluster.route(JOURNAL)
    assert primary is not None
    return primary


async def _one_by_one(append: Append, chunks: Sequence[bytes], count: int) -> None:
    for _ in range(count):
        await append(chunks)


async def _at_once(append: Append, chunks: Sequence[bytes], count: int, streams: int) -> None:
    await asyncio.gather(*(_one_by_one(append, chunks, count // streams) for _ in range(streams)))


def _contest(replication: int, content: bytes, count: int, streams: int, **goal: Any) -> Iterator[Contest]:
    parts = [content[begin : begin + CHUNK_BYTES] for begin in range(0, len(content), CHUNK_BYTES)]
    chunks = [pb.AppendRequest(content=part).SerializeToString() for part in parts]
    with asyncio.Runner() as runner, _raw(runner) as raw, _brokers(runner, replication) as ours:
        big = len(content) >= 1 << 20
        yield Contest(
            ours=lambda: runner.run(_at_once(ours, chunks, count, streams)),
            peer=lambda: runner.run(_at_once(raw, chunks, count, streams)),
            peer_name="bare grpc.aio server",
            work=count * len(content) / (1 << 20) if big else count,
            unit="MiB" if big else "appends",
            rounds=7,
            before=partial(use_memory, MEMORY_BYTES) if big else None,
            **goal,
        )


@benchmark("append 1 MiB, R=1")
def append_large() -> Iterator[Contest]:
    yield from _contest(1, _MIB, 64, 1, ratio_min=0.7)


@benchmark("append 1 MiB, R=1, 4 at once")
def append_large_at_once() -> Iterator[Contest]:
    yield from _contest(1, _MIB, 64, 4)


@benchmark("append 1 MiB, R=3")
def append_large_replicated() -> Iterator[Contest]:
    yield from _contest(3, _MIB, 32, 1)


@benchmark("append 100 B, R=1")
def append_small() -> Iterator[Contest]:
    yield from _contest(1, _SMALL, 300, 1)


@benchmark("append 100 B, R=1, 32 at once")
def append_small_at_once() -> Iterator[Contest]:
    yield from _contest(1, _SMALL, 640, 32)


@benchmark("append 100 B, R=3, 32 at once")
def append_small_replicated() -> Iterator[Contest]:
    yield from _contest(3, _SMALL, 640, 32)


def _durable_contest(count: int, streams: int) -> Iterator[Contest]:
    """What commit records and epochs cost: the same broker without them is the peer."""
    chunks = [pb.AppendRequest(content=b"x" * 1024).SerializeToString()]
    with (
        asyncio.Runner() as runner,
        _brokers(runner, 3) as ours,
        _brokers(runner, 3, "tests.bench.bare_broker") as bare,
    ):
        yield Contest(
            ours=lambda: runner.run(_at_once(ours, chunks, count, streams)),
            peer=lambda: runner.run(_at_once(bare, chunks, count, streams)),
            peer_name="without durable heads",
            work=count,
            unit="appends",
            rounds=7,
            ratio_min=0.9,
        )


@benchmark("durable heads: append 1 KiB, R=3")
def durable_one_by_one() -> Iterator[Contest]:
    yield from _durable_contest(200, 1)


@benchmark("durable heads: append 1 KiB, R=3, 32 at once")
def durable_at_once() -> Iterator[Contest]:
    yield from _durable_contest(640, 32)
