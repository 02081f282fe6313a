"""Signed URLs as an executor meets them: run out, or broken off in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, GazetteError, UnavailableError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.route import EtcdRevision, Header, ProcessId, Route
from spark_readers.fragment_access import ATTEMPTS_MAX, FragmentAccess
from spark_readers.fragment_task import FragmentTask
from spark_readers.scan import plan_tasks
from spark_readers.scan_plan import DataLossError
from spark_readers.task_rows import task_rows
from tests.support.coding import encoded
from tests.support.counting_s3 import PATIENCE_S, counting_s3
from tests.support.fragment_bag import options_of
from tests.support.scripted_broker import Turn, scripted_broker

JOURNAL = "acme/orders"
CONTENT = b"".join(b"%07d\n" % at for at in range(800_000))


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Serves one object: whole at ``/good``, the first half at ``/broken``, and to none at ``/expired``.

    ``/short`` is one that has lost all of its bytes. Numbers are the status of an answer.
    """
    packed = encoded(request.param, [CONTENT])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, _, told = self.path.removeprefix("/").partition("/")
            if status == "expired" or status.isdigit():
                self.send_error(403 if status == "expired" else int(status), explain=told)
                return
            if status == "short":
                self.send_error(416)
                return
            begin = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Length", str(len(packed) - begin))
            self.send_header("Content-Range", f"bytes {begin}-{len(packed) - 1}/{len(packed)}")
            self.end_headers()
            self.wfile.write(packed[begin : len(packed) // 2 if self.path == "/broken" else None])

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def told(of: Fragment, url: str, offset: int, endpoint: str) -> Turn:
    broker = ProcessId("zone", "broker")
    header = Header(broker, Route((broker,), 0, (endpoint,)), EtcdRevision(1, 2, 3, 4))
    return Turn(
        [
            pb.ReadResponse(
                header=header.to_proto(), offset=offset, write_head=of.end, fragment=of.to_proto(), fragment_url=url
            ).SerializeToString()
        ]
    )


@pytest.mark.parametrize("store", [CompressionCodec.NONE, CompressionCodec.ZSTANDARD], indirect=True)
@pytest.mark.parametrize("first", ["/expired", "/broken"])
async def test_a_url_that_no_longer_works_is_renewed_and_the_read_goes_on(
    store: str, first: str, request: pytest.FixtureRequest
) -> None:
    codec = request.node.callspec.params["store"]
    of = Fragment(JOURNAL, 0, len(CONTENT), hashlib.sha1(CONTENT).digest(), codec, "s3://bucket/", 1)
    async with scripted_broker() as broker:
        await broker.add(told(of, store + first, 0, broker.endpoint), told(of, store + "/good", 0, broker.endpoint))
        access = FragmentAccess(options_of(broker=broker.endpoint, journal=JOURNAL))
        with closing(access):
            assert b"".join(await asyncio.to_thread(lambda: list(access.content(of, 0, of.end)))) == CONTENT
        asked = [pb.ReadRequest.FromString(call.messages[0]) for call in broker.received]
    assert [call.metadata_only for call in asked] == [True, True]
    if first == "/broken" and codec is CompressionCodec.NONE:
        assert asked[1].offset > 0


@pytest.mark.parametrize("store", [CompressionCodec.NONE, CompressionCodec.ZSTANDARD], indirect=True)
async def test_all_that_was_read_is_verified_even_if_no_attempt_has_read_it_all(
    store: str, request: pytest.FixtureRequest
) -> None:
    codec = request.node.callspec.params["store"]
    named = hashlib.sha1(CONTENT[:-1]).digest()
    of = Fragment(JOURNAL, 0, len(CONTENT), named, codec, "s3://bucket/", 1)
    async with scripted_broker() as broker:
        await broker.add(*(told(of, store + path, 0, broker.endpoint) for path in ("/broken", "/good")))
        access = FragmentAccess(options_of(broker=broker.endpoint, journal=JOURNAL, verifySha1="true"))
        with closing(access), pytest.raises(CorruptError, match=f"{of.content_name} holds other content"):
            await asyncio.to_thread(lambda: list(access.content(of, 0, of.end)))


@pytest.mark.parametrize("store", [CompressionCodec.NONE], indirect=True)
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/404/NoSuchKey", DataLossError),
        ("/410", DataLossError),
        ("/404/NoSuchBucket", UnavailableError),
        ("/403", UnavailableError),
        ("/503", UnavailableError),
        ("/short", CorruptError),
    ],
)
async def test_what_has_vanished_is_told_from_what_is_out_of_reach(
    store: str, path: str, error: type[GazetteError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_readers.fragment_access.PAUSE_S", 0.001)
    of = Fragment(JOURNAL, 0, len(CONTENT), hashlib.sha1(CONTENT).digest(), CompressionCodec.NONE, "s3://bucket/", 1)
    async with scripted_broker() as broker:
        attempts = ATTEMPTS_MAX if error is UnavailableError else 1
        await broker.add(*(told(of, store + path, 0, broker.endpoint) for _ in range(attempts)))
        access = FragmentAccess(options_of(broker=broker.endpoint, journal=JOURNAL))
        with closing(access), pytest.raises(error, match=of.content_name):
            await asyncio.to_thread(lambda: list(access.content(of, 0, of.end)))
        assert len(broker.received) == attempts


@pytest.mark.parametrize("store", [CompressionCodec.NONE], indirect=True)
async def test_a_store_that_never_answers_fails_by_the_name_of_the_object(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_readers.fragment_access.PAUSE_S", 0.001)
    of = Fragment(JOURNAL, 0, 10, bytes(20), CompressionCodec.NONE, "s3://bucket/?profile=secret", 1)
    async with scripted_broker() as broker:
        await broker.add(*(told(of, store + "/expired", 0, broker.endpoint) for _ in range(ATTEMPTS_MAX)))
        access = FragmentAccess(options_of(broker=broker.endpoint, journal=JOURNAL))
        with closing(access), pytest.raises(UnavailableError, match=of.content_name) as raised:
            await asyncio.to_thread(lambda: list(access.content(of, 0, 10)))
    assert "secret" not in str(raised.value)


def content_of(number: int) -> bytes:
    return b"".join(json.dumps({"n": n, "of": number}).encode() + b"\n" for n in range(30_000))


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.ZSTANDARD])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_next_object_is_opened_while_one_is_read_and_no_other(codec: CompressionCodec, isolation: str) -> None:
    """Each object stops in its middle until the next one is asked for: to read them one by one takes for ever."""
    begin = 0
    keys: list[str] = []
    objects = {}
    # Two journals: a task goes on from one to the other.
    for number in range(6):
        begin = 0 if number == 3 else begin
        content = content_of(number)
        of = Fragment(
            f"acme/{number // 3}", begin, begin + len(content), hashlib.sha1(content).digest(), codec, "s3://bucket/", 1
        )
        objects[of.content_path] = encoded(codec, [content])
        keys.append(of.content_path)
        begin = of.end
    rows: list[dict[str, Any]] = []
    with counting_s3(objects) as store:
        opened = threading.Condition()
        early: list[str] = []

        def until_the_next_is_opened(key: str) -> None:
            at = keys.index(key)
            with opened:
                opened.notify_all()
                if keys[at + 1 :]:
                    assert opened.wait_for(lambda: keys[at + 1] in store.opened, PATIENCE_S), f"only {key} is open"
                # While this one is still being sent.
                early.extend(other for other in keys[at + 2 :] if other in store.opened)

        store.within_object = until_the_next_is_opened
        options = options_of(path=store.url, framing="json", isolation=isolation)
        [task] = plan_tasks(options)
        for batch in task_rows(FragmentTask.unpack(task), pa.schema([("n", pa.int64()), ("of", pa.int64())]), options):
            rows.extend(batch.to_pylist())
        # Of the first two, which are asked for together, either may come first.
        assert sorted(store.opened) == sorted(keys)
        assert early == []
    assert rows == [{"n": n, "of": number} for number in range(6) for n in range(30_000)]


def test_what_was_expected_and_is_not_asked_for_is_closed() -> None:
    content = content_of(0)
    of = Fragment(JOURNAL, 0, len(content), hashlib.sha1(content).digest(), CompressionCodec.NONE, "", 1)
    with counting_s3({of.content_path: content}) as store:
        of = replace(of, backing_store=store.url)
        access = FragmentAccess(options_of(path=store.url))
        with closing(access):
            access.expect(of, 0, of.end)
            access.expect(of, 0, of.end)
            assert b"".join(access.content(of, 0, of.end)) == content
            assert len(store.opened) == 1
            access.expect(of, 0, of.end)
            access.expect_nothing()
            assert b"".join(access.content(of, 0, of.end)) == content
            # Whether the one in between was opened before it was closed is chance.
            assert 2 <= len(store.opened) <= 3
