"""What the gateways of live Gazette brokers were recorded to answer, and what ours do in the same state.

Where they differ it is on purpose. ``docs/differences.md`` gives the reasons, case by case.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from protocol.auth import Capability, Claims, Keys
from protocol.codec import CompressionCodec
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.broker_cluster import BrokerCluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.golden import GOLDEN
from tests.support.raw_http import RawAnswer, connected, exchange

pytestmark = pytest.mark.asyncio(loop_scope="module")

Row = dict[str, Any]
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="
FRAGMENTS = GOLDEN / "live" / "fragments"


def rows(name: str) -> list[Row]:
    with (GOLDEN / "live" / "http" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


GATEWAY, REST, AUTH = rows("gateway"), rows("rest"), rows("auth")

# Codes that are others than Gazette's.
CODES = {
    "GET suspended (full)": 409,
    "PUT with query (rejected)": 409,
    "PUT not found": 404,
    "PUT full suspended (resumes)": 204,
    "POST": 405,
    "DELETE": 405,
    "REST read invalid": 400,
    "auth: GET without a token": 401,
    "auth: PUT without a token": 401,
    "auth: GET with a bad token": 401,
}
# Those that ended by the recording client's own decision. What it got until then is told by tests of their own.
ENDLESS = {"GET blocking at head, client gives up", "REST watch, client gives up"}
# How an answer is delimited, who gives it and when, what browsers make of it.
TRANSPORT = {"connection", "content-length", "content-type", "date", "server", "transfer-encoding"}
OURS = {"allow", "x-content-type-options", "www-authenticate"}
THEIRS = {"grpc-metadata-content-type", "x-content-type-options"}


def recorded(row: Row) -> RawAnswer:
    if "response" in row:
        return RawAnswer.parse(row["response"].encode("latin-1"))
    # Of a long body only the end is kept, and in it the last chunk.
    last = row["response_tail"][row["response_tail"].rindex("\r\n0\r\n") + 2 :]
    return RawAnswer.parse((row["response_head"] + last).encode("latin-1"))


def content(name: str) -> bytes:
    """Of a journal, as it was read before anything was appended by these requests."""
    return recorded(next(row for row in GATEWAY if row["name"] == name)).body


async def ask(port: int, row: Row, token: str = "") -> RawAnswer:
    head = row["request"].replace("Bearer <token>", f"Bearer {token}")
    return await exchange(port, head, row["body"].encode("latin-1"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(
    shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, RawAnswer]]:
    """Ours to all requests, asked in the order in which they were recorded."""
    cluster = BrokerCluster(tmp_path_factory.mktemp("recorded"), shared_etcd.endpoint, "/recorded")
    shutil.copytree(FRAGMENTS / "store", cluster.fragments / "store")
    for path, mtime in json.loads((FRAGMENTS / "mtimes.json").read_text()).items():
        if (cluster.fragments / "store" / path).is_file():
            os.utime(cluster.fragments / "store" / path, (mtime, mtime))
    try:
        await cluster.start("broker-1", zone="zone-a")
        await cluster.start("broker-3", "broker-4", zone="zone-b")
        await apply_recorded(cluster)
        port = cluster.brokers["broker-1"].http_port
        yield {row["name"]: await ask(port, row) for row in (*GATEWAY, *REST) if row["name"] not in ENDLESS}
    finally:
        await cluster.close()


async def apply_recorded(cluster: BrokerCluster) -> None:
    expected = json.loads((FRAGMENTS / "expected.json").read_text())
    specs = {
        name: JournalSpec.from_proto(pb.JournalSpec.FromString(bytes.fromhex(expected[name]["spec_hex"])))
        for name in ("golden/zstd", "golden/hive")
    }
    like = partial(journal_spec, codec=CompressionCodec.GZIP, stores=("file:///store/",))
    await cluster.apply(*specs.values(), like("golden/empty", 3), like("cli/a1", 2))
    whole = content("GET local content")
    # The first bytes of a journal are in a fragment of their own, which goes to the store once there are others.
    await cluster.append("broker-1", "cli/a1", whole[:21])
    await cluster.append("broker-1", "cli/a1", whole[21:])
    await cluster.append("broker-1", "golden/empty")
    await cluster.try_append("broker-1", "golden/empty", suspend=pb.AppendRequest.Suspend.SUSPEND_NOW)

    async def is_as_recorded() -> bool:
        first = (await cluster.responses("broker-1", "cli/a1"))[0]
        listed = await cluster.list("name=golden/empty")
        reads = [await cluster.responses("broker-1", name, -1) for name in specs]
        return (
            bool(first.fragment_url)
            and not listed[0].route.members
            and all(read[0].write_head == expected[name]["length"] for name, read in zip(specs, reads, strict=True))
        )

    await eventually(is_as_recorded, "the journals to be as they were when they were recorded")


def significant(answer: RawAnswer, ignored: set[str]) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in TRANSPORT | ignored}


@pytest.mark.parametrize("row", [row for row in GATEWAY if row["name"] not in ENDLESS], ids=lambda row: row["name"])
async def test_the_gateway_answers_as_gazettes_or_better(answers: dict[str, RawAnswer], row: Row) -> None:
    name, theirs = row["name"], recorded(row)
    ours = answers[name]
    if name in CODES:
        assert ours.code == CODES[name] != theirs.code
        return
    assert ours.code == theirs.code
    if name == "GET with Range header (ignored)":
        assert ours.body == theirs.body[3:6]
        return
    own, other = significant(ours, OURS), significant(theirs, THEIRS)
    if ours.code == 416:
        assert own.pop("content-range") == f"bytes */{own['x-write-head']}"
    assert own.keys() == other.keys()
    for header in ("content-range", "x-write-head", "trailer", "x-commit-begin", "x-commit-end", "x-commit-sha1-sum"):
        assert own.get(header) == other.get(header)
    # Ours compress by another library, but what is in the store is as it was.
    for header in ("x-fragment-name", "x-fragment-last-modified", "x-fragment-location"):
        if "golden/" in row["request"]:
            assert own.get(header) == other.get(header)
    shape = r'(members:<zone:"zone-[ab]" suffix:"broker-[134]" > )+(primary:[12] )?(endpoints:"http://[0-9.:]+"( |$))+'
    assert all(re.fullmatch(shape, headers.get("x-route-token", "")) for headers in (own, other)) or (
        "x-route-token" not in own
    )
    assert own.get("location", "/x/x/x").split("/")[3:] == other.get("location", "/x/x/x").split("/")[3:]
    assert ours.trailers == theirs.trailers
    if ours.code == 206 and "response" in row:
        assert ours.body == theirs.body
    elif ours.code != 400 and theirs.body:
        assert ours.body.startswith(theirs.body.strip())


def keys(document: Any) -> Any:
    """The structure of a document: names and kinds of values, those of lists from the first of them."""
    if isinstance(document, dict):
        return {name: keys(value) for name, value in document.items()}
    if isinstance(document, list):
        return [keys(document[0])] if document else []
    return type(document).__name__


@pytest.mark.parametrize("row", [row for row in REST if row["name"] not in ENDLESS], ids=lambda row: row["name"])
async def test_json_is_as_gazettes(answers: dict[str, RawAnswer], row: Row) -> None:
    name, ours = row["name"], answers[row["name"]]
    if name in CODES:
        assert ours.code == CODES[name]
        return
    assert ours.code == (recorded(row).code if "response" in row else 200)
    if name == "REST list bad JSON":
        assert json.loads(ours.body)["error"]["grpcCode"] == json.loads(recorded(row).body)["code"]
        return
    if "response" not in row or name.startswith("OPTIONS") or name == "REST list all":
        assert not ours.body or all("result" in json.loads(line) for line in ours.body.splitlines())
        return
    own = [json.loads(line) for line in ours.body.splitlines()]
    other = [json.loads(line) for line in recorded(row).body.splitlines()]
    assert [keys(document) for document in own] == [keys(document) for document in other]
    for mine, their in zip(own, other, strict=True):
        for field in ("status", "offset", "writeHead", "content"):
            assert mine.get("result", {}).get(field) == their.get("result", {}).get(field)


async def test_a_watch_begins_as_gazettes(shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    row = next(row for row in REST if row["name"] == "REST watch, client gives up")
    theirs = [json.loads(line) for line in recorded(row).body.split(b"\n") if line]
    cluster = BrokerCluster(tmp_path_factory.mktemp("watched"), shared_etcd.endpoint, "/watched")
    try:
        await cluster.start("broker-1")
        labels = LabelSet.of(("content-type", "application/x-ndjson"))
        await cluster.apply(dataclasses.replace(journal_spec("cli/a1", 1), labels=labels))
        await cluster.append("broker-1", "cli/a1")
        async with connected(cluster.brokers["broker-1"].http_port) as connection:
            await connection.send(row["request"].replace("\n", "\r\n").encode() + b"\r\n\r\n" + row["body"].encode())
            raw = await connection.until(b'"journals":[]}}\n')
        ours = [json.loads(line) for line in RawAnswer.parse(raw + b"\r\n0\r\n\r\n").body.splitlines()]
        assert [keys(document) for document in ours] == [keys(document) for document in theirs]
    finally:
        await cluster.close()


async def test_tokens_are_asked_for_where_gazette_lets_everybody_in(
    shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    now_s = int(datetime.datetime.now(datetime.UTC).timestamp())
    token = Keys.parse(SECRET).sign(Claims(Capability.ALL, LabelSelector(), now_s + 600))
    flags = ("--broker.auth-keys", SECRET)
    cluster = BrokerCluster(tmp_path_factory.mktemp("auth"), shared_etcd.endpoint, "/auth", flags)
    cluster.token = token
    try:
        await cluster.start("auth-1", zone="zone-b")
        await cluster.apply(journal_spec("auth/one", 1), journal_spec("auth/two", 1))
        await cluster.append("auth-1", "auth/one", b"x\n")
        for row in AUTH:
            ours, theirs = await ask(cluster.brokers["auth-1"].http_port, row, token), recorded(row)
            assert ours.code == CODES.get(row["name"], theirs.code), row["name"]
            if ours.code == 401 and row["name"].startswith("auth: REST"):
                assert json.loads(ours.body).keys() == json.loads(theirs.body).keys()
        # Nothing of the intruder's got in.
        assert await cluster.read("auth-1", "auth/one") == b"x\n"
    finally:
        await cluster.close()
