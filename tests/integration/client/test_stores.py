"""Fragments that the client reads from their store by itself: over HTTP, from a folder, and not where that fails."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import zstandard
from aiohttp import web

from broker.client.client import Client
from broker.client.retry import Retry
from broker.client.settings import ClientSettings
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.route import EtcdRevision, Header, ProcessId, Route
from tests.support.metrics import metric
from tests.support.scripted_broker import ScriptedBroker, Turn, scripted_broker

JOURNAL = "acme/orders"
NONE, GZIP, ZSTANDARD = CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD
OFFLOAD = CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION


@dataclass
class Store:
    """Objects by path. It does as much of HTTP as a test lets it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    unpacks: bool = False
    gets: list[str] = field(default_factory=list)
    endpoint: str = ""

    async def get(self, request: web.Request) -> web.StreamResponse:
        # As signed: what a client changes about it would not be found.
        self.gets.append(request.headers.get("Range", ""))
        stored = self.objects.get(request.raw_path)
        if stored is None:
            return web.Response(status=403)
        headers = {}
        if request.raw_path.endswith("?offload"):
            if self.unpacks and "gzip" not in request.headers["Accept-Encoding"]:
                stored = gzip.decompress(stored)
            else:
                headers["Content-Encoding"] = "gzip"
        wanted = request.http_range
        if self.knows_ranges and (wanted.start is not None or wanted.stop is not None):
            begin, end = wanted.start or 0, min(wanted.stop or len(stored), len(stored))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(stored)}"
            return web.Response(status=206, body=stored[begin:end], headers=headers)
        return web.Response(body=stored, headers=headers)


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[Store]:
    app = web.Application()
    app.router.add_get("/{path:.*}", store.get)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None  # noqa: SLF001 -- there is no other way to learn the port
    store.endpoint = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined] # noqa: SLF001
    yield store
    await runner.cleanup()


def packed(codec: CompressionCodec, content: bytes) -> bytes:
    match codec:
        case CompressionCodec.GZIP | CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return gzip.compress(content)
        case CompressionCodec.ZSTANDARD:
            return zstandard.compress(content)
        case _:
            return content


def fragment_of(begin: int, content: bytes, codec: CompressionCodec = NONE) -> Fragment:
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return Fragment(JOURNAL, begin, begin + len(content), digest, codec, "s3://bucket/", 1_700_000_000)


def metadata(fragment: Fragment, url: str, offset: int, write_head: int, endpoint: str) -> bytes:
    route = Route((ProcessId("zone", "broker"),), 0, (endpoint,))
    header = Header(ProcessId("zone", "broker"), route, EtcdRevision(1, 2, 3, 4))
    return pb.ReadResponse(
        header=header.to_proto(),
        offset=offset,
        write_head=write_head,
        fragment=fragment.to_proto(),
        fragment_url=url,
    ).SerializeToString()


def at_head(offset: int) -> bytes:
    header = Header(ProcessId("zone", "broker"), Route(), EtcdRevision(1, 2, 3, 4))
    return pb.ReadResponse(
        status=pb.OFFSET_NOT_YET_AVAILABLE, header=header.to_proto(), offset=offset, write_head=offset
    ).SerializeToString()


@asynccontextmanager
async def client_of(broker: ScriptedBroker, file_root: Path | None = None) -> AsyncIterator[Client]:
    settings = ClientSettings.of(broker.endpoint, retry=Retry(within_s=5), file_root=file_root)
    async with asyncio.timeout(30), Client(settings=replace(settings, stall_s=5)) as client:
        yield client


def requests(broker: ScriptedBroker) -> list[pb.ReadRequest]:
    return [pb.ReadRequest.FromString(call.messages[0]) for call in broker.received]


def opened_length(codec: CompressionCodec) -> float:
    return metric("gazette_fragment_open_content_length_total", journal=JOURNAL, codec=codec.name)


@pytest.mark.parametrize("unpacks", [False, True], ids=["as it is", "a store that unpacks"])
@pytest.mark.parametrize("knows_ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("begin", [0, 1234])
@pytest.mark.parametrize("codec", [NONE, GZIP, OFFLOAD, ZSTANDARD], ids=lambda codec: str(codec.name))
async def test_a_fragment_is_read_by_its_url(
    codec: CompressionCodec, begin: int, knows_ranges: bool, unpacks: bool
) -> None:
    content = b"".join(b"%07d\n" % at for at in range(300_000))
    fragment = fragment_of(0, content, codec)
    path = "/a%2Fb?offload" if codec is OFFLOAD else "/a%2Fb?X-Signature=%2F%2B"
    stored, length_before = packed(codec, content), opened_length(codec)
    async with (
        served(Store({path: stored}, knows_ranges, unpacks)) as store,
        scripted_broker() as broker,
        client_of(broker) as client,
    ):
        found = metadata(fragment, store.endpoint + path, begin, fragment.end, broker.endpoint)
        await broker.add(Turn([found]), Turn([at_head(fragment.end)]))
        assert await client.read(JOURNAL, begin, block=False).read() == content[begin:]
    assert [request.do_not_proxy for request in requests(broker)] == [True, True]
    assert len(store.gets) == 1
    sent = content if unpacks and codec is OFFLOAD else stored
    assert opened_length(codec) - length_before == len(sent)


async def test_the_next_fragment_is_opened_while_one_is_read() -> None:
    parts = [b"%d" % at * 100_000 for at in range(4)]
    paths = [f"/{at}" for at in range(4)]
    async with (
        served(Store(dict(zip(paths, parts, strict=True)))) as store,
        scripted_broker() as broker,
        client_of(broker) as client,
    ):
        for at, part in enumerate(parts):
            fragment = fragment_of(at * 100_000, part)
            await broker.add(
                Turn([metadata(fragment, store.endpoint + paths[at], fragment.begin, 400_000, broker.endpoint)])
            )
        await broker.add(Turn([at_head(400_000)]))
        assert await client.read(JOURNAL, block=False).read() == b"".join(parts)
    # Only the first was asked for in its own right.
    assert [request.metadata_only for request in requests(broker)] == [False, True, True, True, False]


async def test_an_end_within_a_fragment_is_where_reading_ends() -> None:
    content = bytes(range(256)) * 1000
    async with (
        served(Store({"/0": content})) as store,
        scripted_broker() as broker,
        client_of(broker) as client,
    ):
        found = metadata(fragment_of(0, content), store.endpoint + "/0", 100, 1 << 40, broker.endpoint)
        await broker.add(Turn([found]))
        assert await client.read(JOURNAL, 100, end=5000).read() == content[100:5000]
    assert store.gets == ["bytes=100-4999"]


@pytest.mark.parametrize("stored", [None, b"other bytes than those", b"short"], ids=["missing", "wrong", "short"])
async def test_where_the_store_fails_a_broker_reads_instead(stored: bytes | None) -> None:
    content = b"the bytes that are"
    fragment = fragment_of(0, content)
    objects = {} if stored is None else {"/0": stored[: len(content)]}
    async with (
        served(Store(objects)) as store,
        scripted_broker() as broker,
        client_of(broker) as client,
    ):
        found = metadata(fragment, store.endpoint + "/0", 0, fragment.end, broker.endpoint)
        proxied = pb.ReadResponse(offset=0, content=content).SerializeToString()
        await broker.add(Turn([found]), Turn([found, proxied]), Turn([at_head(fragment.end)]))
        assert await client.read(JOURNAL, block=False).read() == content
    asked = requests(broker)
    assert [(request.do_not_proxy, request.end_offset) for request in asked] == [
        (True, 0),
        (False, fragment.end),
        (True, 0),
    ]


async def test_wrong_bytes_that_were_handed_out_already_are_told() -> None:
    content = bytes(8 << 20)
    fragment = fragment_of(0, content)
    async with (
        served(Store({"/0": b"x" + content[1:]})) as store,
        scripted_broker() as broker,
        client_of(broker) as client,
    ):
        await broker.add(Turn([metadata(fragment, store.endpoint + "/0", 0, fragment.end, broker.endpoint)]))
        with pytest.raises(CorruptError):
            await client.read(JOURNAL, block=False).read()


async def test_files_are_read_below_their_root_and_nowhere_else(tmp_path: Path) -> None:
    content = b"the bytes that are"
    fragment = fragment_of(0, content)
    root = tmp_path / "root"
    root.mkdir()
    (root / "a file").write_bytes(content)
    (tmp_path / "secret").write_bytes(content)
    for url, is_direct in (("file:///a file", True), ("file:///../secret", False)):
        async with scripted_broker() as broker, client_of(broker, root) as client:
            found = metadata(fragment, url, 0, fragment.end, broker.endpoint)
            proxied = pb.ReadResponse(offset=0, content=content).SerializeToString()
            length_before = opened_length(NONE)
            turns = [Turn([found]), *([] if is_direct else [Turn([found, proxied])]), Turn([at_head(fragment.end)])]
            await broker.add(*turns)
            assert await client.read(JOURNAL, block=False).read() == content
            assert len(broker.received) == len(turns)
            assert opened_length(NONE) - length_before == (len(content) if is_direct else 0)


async def test_without_a_root_brokers_read_files_for_us() -> None:
    content = b"the bytes that are"
    fragment = fragment_of(0, content)
    async with scripted_broker() as broker, client_of(broker) as client:
        found = metadata(fragment, "file:///a", 0, fragment.end, broker.endpoint)
        proxied = pb.ReadResponse(offset=0, content=content).SerializeToString()
        await broker.add(Turn([found]), Turn([found, proxied, at_head(fragment.end)]))
        assert await client.read(JOURNAL, block=False).read() == content
    # From then on it does not ask for URLs any more.
    assert [request.do_not_proxy for request in requests(broker)] == [True, False]
