"""The HTTP gateways of real brokers, with requests as curl and others send them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from pathlib import Path

import pytest

from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.raw_http import RawAnswer, connected, exchange

pytestmark = pytest.mark.asyncio(loop_scope="package")

_NUMBERS = itertools.count()


async def ask(cluster: BrokerCluster, head: str, body: bytes = b"", broker: str = "broker-0") -> RawAnswer:
    return await exchange(cluster.brokers[broker].http_port, head, body)


async def put(cluster: BrokerCluster, path: str, body: bytes, broker: str = "broker-0") -> RawAnswer:
    return await ask(cluster, f"PUT /{path} HTTP/1.1\nHost: x", body, broker)


async def get(cluster: BrokerCluster, path: str, *headers: str, broker: str = "broker-0") -> RawAnswer:
    return await ask(cluster, "\n".join([f"GET /{path} HTTP/1.1", "Host: x", *headers]), broker=broker)


async def new_journal(cluster: BrokerCluster, content: bytes = b"", replication: int = 3) -> str:
    name = f"gateway/journal-{next(_NUMBERS):03}"
    await cluster.apply(journal_spec(name, replication))
    await cluster.append("broker-0", name)
    if content:
        await cluster.append("broker-0", name, content)
    return name


async def test_a_put_appends_and_a_get_reads_it_at_every_broker(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    for number, broker in enumerate(cluster.brokers):
        answer = await put(cluster, name, b"line\n", broker)
        assert answer.code == 204
        assert (answer.headers["x-commit-begin"], answer.headers["x-commit-end"]) == (
            str(5 * number),
            str(5 * number + 5),
        )
        assert answer.headers["x-commit-sha1-sum"] == hashlib.sha1(b"line\n").hexdigest()
        assert answer.headers["x-write-head"] == str(5 * number + 5)
    for broker in cluster.brokers:
        read = await get(cluster, name, broker=broker)
        assert (read.code, read.body) == (206, b"line\n" * 3)
        assert read.headers["content-range"] == "bytes 0-9223372036854775807/9223372036854775807"
        assert read.trailers == {"x-close-error": "OFFSET_NOT_YET_AVAILABLE"}
        assert read.headers["x-write-head"] == "15"


async def test_a_location_leads_to_the_gateway_of_the_primary(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"x")
    primary, _ = await cluster.route(name)
    assert primary is not None
    for broker in cluster.brokers:
        answer = await get(cluster, name, broker=broker)
        assert answer.headers["location"] == f"{cluster.brokers[primary].gateway}/{name}"
        assert answer.headers["x-route-token"].count("members:<") == 3


async def test_a_large_body_is_one_append(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    body = b"0123456789abcdef" * (3 << 16)
    for broker in cluster.brokers:
        answer = await put(cluster, name, body, broker)
        assert answer.code == 204
        assert answer.headers["x-commit-sha1-sum"] == hashlib.sha1(body).hexdigest()
    read = await get(cluster, name)
    assert read.body == body * 3


async def test_a_body_in_chunks_waits_for_the_brokers_word_to_go_on(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    async with connected(cluster.brokers["broker-0"].http_port) as connection:
        head = f"PUT /{name} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
        await connection.send(f"{head}Connection: close\r\n\r\n".encode())
        assert await connection.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
        answer = RawAnswer.parse(await connection.rest())
    assert (answer.code, answer.headers["x-commit-end"]) == (204, "7")
    assert (await get(cluster, name)).body == b"abcdefg"


@pytest.mark.parametrize("broker", ["broker-0", "broker-1", "broker-2"])
@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
async def test_a_put_that_is_cut_off_appends_nothing(cluster: BrokerCluster, broker: str, framing: str) -> None:
    name = await new_journal(cluster, b"before")
    async with connected(cluster.brokers[broker].http_port) as connection:
        head = f"PUT /{name} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"
        await connection.send(head.encode())
        await connection.until(b"\r\n\r\n")
        await connection.send(b"4\r\nhalf\r\n")
    # The next append is only served once the one that was cut off is out of the way.
    answer = await put(cluster, name, b" after", broker)
    assert answer.headers["x-commit-begin"] == "6"
    assert (await get(cluster, name)).body == b"before after"


@pytest.mark.parametrize("broker", ["broker-0", "broker-1", "broker-2"])
async def test_a_put_too_slow_is_answered_so_and_holds_nobody_up(cluster: BrokerCluster, broker: str) -> None:
    name = await new_journal(cluster)
    async with connected(cluster.brokers[broker].http_port) as connection:
        await connection.send(f"PUT /{name} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nslow".encode())
        answer = RawAnswer.parse(await connection.rest())
    assert answer.code == 408
    assert (await put(cluster, name, b"next")).headers["x-commit-begin"] == "0"


async def test_ranges_are_sent_with_their_length(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"0123456789")
    for query, header, begin, body in (
        ("", "Range: bytes=3-5", 3, b"345"),
        ("?offset=3&end_offset=6", "", 3, b"345"),
        ("", "Range: bytes=8-99", 8, b"89"),
        ("", "Range: bytes=-4", 6, b"6789"),
        ("", "Range: bytes=-99", 0, b"0123456789"),
    ):
        answer = await get(cluster, name + query, *([header] if header else []))
        assert (answer.code, answer.body) == (206, body)
        assert answer.headers["content-range"] == f"bytes {begin}-{begin + len(body) - 1}/10"
        assert answer.headers["content-length"] == str(len(body))
    rest = await get(cluster, name, "Range: bytes=7-")
    assert (rest.body, rest.trailers["x-close-error"]) == (b"789", "OFFSET_NOT_YET_AVAILABLE")
    beyond = await get(cluster, name, "Range: bytes=10-12")
    assert (beyond.code, beyond.headers["content-range"]) == (416, "bytes */10")
    # Units that are not known are as if they were not there.
    assert (await get(cluster, name, "Range: lines=1-2")).body == b"0123456789"


async def test_a_blocking_get_sends_what_comes_and_ends_where_it_was_asked_to(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"0123")
    async with connected(cluster.brokers["broker-0"].http_port) as connection:
        await connection.send(
            f"GET /{name}?offset=-1&end_offset=8&block=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        await put(cluster, name, b"45", "broker-1")
        await connection.until(b"45\r\n")
        await put(cluster, name, b"67", "broker-2")
        rest = await connection.rest()
    assert rest == b"2\r\n67\r\n0\r\nX-Close-Error: EOF\r\n\r\n"


async def test_preconditions_that_fail_are_conflicts(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    assert (await put(cluster, f"{name}?union-registers=author%3Dme", b"one")).code == 204
    wrong = await put(cluster, f"{name}?offset=99", b"two")
    assert (wrong.code, wrong.body.split(b":")[0]) == (409, b"WRONG_APPEND_OFFSET")
    other = await put(cluster, f"{name}?check-registers=author%3Dyou", b"two")
    assert (other.code, other.body.split(b":")[0]) == (409, b"REGISTER_MISMATCH")
    assert b"author=me" in other.body
    right = await put(cluster, f"{name}?offset=3&check-registers=author%3Dme&subtract-registers=author%3Dme", b"two")
    assert (right.code, right.headers["x-commit-begin"]) == (204, "3")
    # Registers that are not set let everybody pass.
    assert (await put(cluster, f"{name}?check-registers=author%3Dyou", b"three")).code == 204
    empty = await put(cluster, f"{name}?union-registers=author%3Dme", b"")
    assert empty.code == 400
    assert (await get(cluster, name)).body == b"onetwothree"


async def test_missing_journals_are_not_found(cluster: BrokerCluster) -> None:
    assert (await put(cluster, "gateway/absent", b"x")).code == 404
    assert (await get(cluster, "gateway/absent")).code == 404


async def test_a_journal_without_brokers_is_unavailable_for_now(cluster: BrokerCluster) -> None:
    await cluster.apply(journal_spec("gateway/too-many", 5))
    answer = await put(cluster, "gateway/too-many", b"x")
    assert (answer.code, answer.headers["retry-after"]) == (503, "1")
    assert answer.body.startswith(b"INSUFFICIENT_JOURNAL_BROKERS: ")
    await cluster.delete("gateway/too-many")


async def test_journals_that_are_only_read_or_written_say_which(cluster: BrokerCluster) -> None:
    await cluster.apply(
        journal_spec("gateway/only-read", 1, flags=Flag.O_RDONLY),
        journal_spec("gateway/only-write", 1, flags=Flag.O_WRONLY),
    )
    await cluster.append("broker-0", "gateway/only-write", b"x")
    await cluster.append("broker-0", "gateway/only-read")
    write, read = await put(cluster, "gateway/only-read", b"x"), await get(cluster, "gateway/only-write")
    assert (write.code, write.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (read.code, read.headers["allow"]) == (405, "PUT, OPTIONS")


async def test_an_append_wakes_up_a_suspended_journal(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    await cluster.try_append("broker-0", name, suspend=pb.AppendRequest.Suspend.SUSPEND_NOW)

    async def is_suspended() -> bool:
        return (await get(cluster, name)).code == 409

    await eventually(is_suspended, "the journal to be suspended")
    answer = await put(cluster, name, b"awake\n")
    assert answer.code == 204
    assert (await get(cluster, name)).body == b"awake\n"


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/a/../../b",
        "/a/%2e%2e/bcd",
        "/%2e%2e/bcd",
        "/a%2f..%2fbcd",
        "//abcd",
        "/abc//d",
        "/abc/",
        "/abc%00d",
        "/abc%0ad",
        "/abc%zz",
        "/abc%ff",
        "/abc%20d",
        "http://evil.example/abcd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_paths_that_are_no_names_are_refused(cluster: BrokerCluster, method: str, path: str) -> None:
    assert (await ask(cluster, f"{method} {path} HTTP/1.1\nHost: x\nContent-Length: 0")).code == 400


async def test_a_name_is_decoded_once(cluster: BrokerCluster) -> None:
    await cluster.apply(journal_spec("gateway/50%25", 1))
    await cluster.append("broker-0", "gateway/50%25", b"decoded once")
    answer = await get(cluster, "gateway/50%2525")
    assert answer.body == b"decoded once"
    assert answer.headers["location"].endswith("/gateway/50%2525")
    assert (await get(cluster, "gateway/50%25")).code == 404
    assert (await get(cluster, "a/%252e%252e/bcd")).code == 404


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("GET /abcd?offset=1&offset=2 HTTP/1.1", 400),
        ("GET /abcd?ofset=1 HTTP/1.1", 400),
        ("GET /abcd?block HTTP/1.1", 400),
        ("GET /abcd?offset=-2 HTTP/1.1", 400),
        ("GET /abcd?offset=9223372036854775808 HTTP/1.1", 400),
        ("GET /abcd?offset=5&end_offset=5 HTTP/1.1", 400),
        ("GET /abcd HTTP/1.1\nRange: bytes=-1,0-" + ",2-" * 1000, 400),
        ("GET /abcd HTTP/1.1\nRange: bytes=5-3", 400),
        ("GET /abcd?offset=1 HTTP/1.1\nRange: bytes=3-5", 400),
        ("PUT /abcd?offset=0 HTTP/1.1", 400),
        ("PUT /abcd?block=true HTTP/1.1", 400),
        ("PUT /abcd?check-registers=%3D HTTP/1.1", 400),
        ("PUT /abcd?union-registers=a!%3Db HTTP/1.1", 400),
        ("PUT /abcd HTTP/1.1\nContent-Range: bytes 0-1/2", 400),
        ("PUT /abcd HTTP/1.1\nContent-Encoding: gzip", 415),
        ("PUT /abcd HTTP/1.1\nContent-Length: 5000000000", 413),
        ("PUT /abcd HTTP/1.1\nExpect: a miracle", 417),
        ("PUT /abcd HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 3", 400),
        ("GET /abcd HTTP/1.1\nX-Large: " + "x" * 20_000, 400),
        ("TRACE /abcd HTTP/1.1", 405),
        ("DELETE /abcd HTTP/1.1", 405),
        ("POST /abcd HTTP/1.1", 405),
        ("PUT /metrics HTTP/1.1", 405),
        ("DELETE /v1/journals/list HTTP/1.1", 501),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_what_is_not_understood_is_refused(cluster: BrokerCluster, head: str, code: int) -> None:
    assert (await ask(cluster, f"{head}\nHost: x")).code == code


async def test_an_evil_host_gets_nowhere(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"x")
    answer = await ask(cluster, f"GET /{name} HTTP/1.1\nHost: evil.example")
    assert "evil" not in str(answer.headers)


async def test_pages_of_allowed_sites_only_may_use_it(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"x")
    for path in (f"/{name}", "/v1/journals/list"):
        request = f"OPTIONS {path} HTTP/1.1\nHost: x\nAccess-Control-Request-Method: PUT\nOrigin: "
        listed, other = await ask(cluster, f"{request}https://ui.example"), await ask(cluster, f"{request}https://e.x")
        assert listed.headers["access-control-allow-origin"] == "https://ui.example"
        assert "PUT" in listed.headers["access-control-allow-methods"]
        assert "access-control-allow-origin" not in other.headers
    for origin, allowed in (("https://ui.example", "https://ui.example"), ("https://e.x", None)):
        answer = await get(cluster, name, f"Origin: {origin}")
        assert (answer.body, answer.headers.get("access-control-allow-origin")) == (b"x", allowed)
        assert answer.headers["vary"] == "Origin"


async def test_operators_find_what_they_look_for(cluster: BrokerCluster) -> None:
    for path in ("/healthz", "/readyz", "/debug/ready"):
        assert (await ask(cluster, f"GET {path} HTTP/1.1\nHost: x")).code == 200
    for path in ("/metrics", "/debug/metrics"):
        answer = await ask(cluster, f"GET {path} HTTP/1.1\nHost: x")
        assert b"\ngazette_http_requests_total{" in answer.body
        assert b"\ngazette_journal_server_started_totals{" in answer.body


async def test_lists_and_reads_are_lines_of_json(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster, b"content")
    wanted = {"selector": {"include": {"labels": [{"name": "name", "value": name}]}}}
    listed = await ask(cluster, "POST /v1/journals/list HTTP/1.1\nHost: x", json.dumps(wanted).encode())
    (line,) = listed.body.splitlines()
    (journal,) = json.loads(line)["result"]["journals"]
    assert (journal["spec"]["name"], len(journal["route"]["members"])) == (name, 3)
    for broker in cluster.brokers:
        body = json.dumps({"journal": name, "end_offset": 3}).encode()
        read = await ask(cluster, "POST /v1/journals/read HTTP/1.1\nHost: x", body, broker)
        about, content = (json.loads(line)["result"] for line in read.body.splitlines())
        assert (about["writeHead"], content["content"]) == ("7", "Y29u")


async def test_a_watch_goes_on_until_its_client_is_gone(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    body = json.dumps({"watch": True, "selector": {"include": {"labels": [{"name": "name", "value": name}]}}}).encode()
    async with connected(cluster.brokers["broker-1"].http_port) as connection:
        head = f"POST /v1/journals/list HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        await connection.send(head.encode() + body)
        assert b'"journals":[{"spec"' in await connection.until(b'"journals":[]}}\n')
        await cluster.delete(name)
        assert b'"journals":[]' in await connection.until(b'"journals":[]}}\n')


async def test_clients_that_go_leave_nothing_behind(cluster: BrokerCluster) -> None:
    name = await new_journal(cluster)
    await put(cluster, name, b"x" * (8 << 20))
    port = cluster.brokers["broker-0"].http_port

    async def connections() -> int:
        """Of the broker's gateway, as the kernel has them."""
        count = 0
        for table in ("tcp", "tcp6"):
            text = await asyncio.to_thread(Path(f"/proc/net/{table}").read_text)
            rows = [row.split() for row in text.splitlines()[1:]]
            count += sum(row[1].endswith(f":{port:04X}") and row[3] in ("01", "08") for row in rows)
        return count

    for query in ("", "?offset=-1&block=true"):
        async with connected(port) as connection:
            # It reads no more than what the head and a little are.
            await connection.send(f"GET /{name}{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await put(cluster, name, b"more") if query else await connection.until(b"\r\n\r\n")

    async def are_gone() -> bool:
        return await connections() == 0

    await eventually(are_gone, "all connections to be closed")


async def test_a_broker_that_stops_ends_its_reads_and_another_takes_over(
    shared_etcd: EtcdServer, prefix: str, tmp_path: Path
) -> None:
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0", "broker-1") as cluster:
        await cluster.apply(journal_spec("test/journal", 1))
        await cluster.append("broker-0", "test/journal", b"0123")
        leaving, _ = await cluster.route("test/journal")
        assert leaving is not None
        broker = cluster.brokers[leaving]
        async with connected(broker.http_port) as connection:
            await connection.send(b"GET /test/journal?block=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await connection.until(b"0123\r\n")
            assert broker.process is not None
            broker.process.terminate()
            ended = RawAnswer.parse(b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n" + await connection.rest())
        assert "x-close-error" in ended.trailers
        assert await broker.wait_exit() == 0
        broker.process = None
        (other,) = set(cluster.brokers) - {leaving}

        async def is_read() -> bool:
            return (await get(cluster, "test/journal", broker=other)).body == b"0123"

        await eventually(is_read, "the other broker to have what was uploaded")
