"""A gateway on a socket, in front of journals in memory: its bounds, and what becomes of what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest

from broker.http_exchange import GatewayLimits
from protocol.auth import Capability, Claims, Keys
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector
from tests.support.memory_journals import NAME, MemoryJournals, served_gateway
from tests.support.raw_http import RawAnswer, connected, exchange

KEYS = Keys.parse("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")
NOW_S = 1_800_000_000
# So small that nobody waits, and for what is given up on only.
BRIEF = GatewayLimits(head_s=0.05, body_s=0.05, write_s=0.05, linger_s=0.05, primary_s=0.01)
GET, PUT = f"GET /{NAME} HTTP/1.1\nHost: x", f"PUT /{NAME} HTTP/1.1\nHost: x"


def bearer(capability: int, life_s: int = 600, selector: str = "") -> str:
    token = KEYS.sign(Claims(capability, LabelSelector.parse(selector), NOW_S + life_s))
    return f"\nAuthorization: Bearer {token}"


@pytest.mark.parametrize(
    "start",
    [b"", b"GET /test", f"GET /{NAME} HTTP/1.1\r\nHost: x\r\nX-Slow:".encode()],
    ids=["says nothing", "half a line", "half a head"],
)
async def test_a_client_that_does_not_finish_its_head_is_cut(start: bytes) -> None:
    async with served_gateway(MemoryJournals(), limits=BRIEF) as served, connected(served.port) as connection:
        await connection.send(start)
        assert await connection.rest() == b""


async def test_a_head_that_trickles_in_is_cut() -> None:
    async with served_gateway(MemoryJournals(), limits=BRIEF) as served, connected(served.port) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                while not connection.reader.at_eof():
                    await connection.send(b"X: y\r\n")
                    await asyncio.sleep(0)


async def test_a_body_that_stalls_is_cut_and_nothing_appended() -> None:
    journals = MemoryJournals()
    async with served_gateway(journals, limits=BRIEF) as served, connected(served.port) as connection:
        await connection.send(f"PUT /{NAME} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf".encode())
        answer = RawAnswer.parse(await connection.rest())
    assert (answer.code, answer.headers["connection"]) == (408, "close")
    assert journals.fragments == []


async def test_a_body_without_an_announced_length_is_cut_when_it_is_too_large() -> None:
    journals, limits = MemoryJournals(), GatewayLimits(body_bytes_max=10, linger_s=0.05)
    async with served_gateway(journals, limits=limits) as served:
        fits = await exchange(served.port, f"{PUT}\nTransfer-Encoding: chunked", b"a\r\n0123456789\r\n0\r\n\r\n")
        large = await exchange(served.port, f"{PUT}\nTransfer-Encoding: chunked", b"b\r\n0123456789x\r\n0\r\n\r\n")
    assert (fits.code, large.code) == (204, 413)
    assert journals.fragments == [(0, b"0123456789")]


async def test_documents_are_small() -> None:
    async with served_gateway(MemoryJournals(), limits=GatewayLimits(document_bytes_max=10)) as served:
        answer = await exchange(served.port, "POST /v1/journals/list HTTP/1.1\nHost: x", b" " * 11)
    assert answer.code == 413


async def test_a_client_that_does_not_read_is_cut_in_the_end() -> None:
    journals = MemoryJournals([(at << 20, b"x" * (1 << 20)) for at in range(64)])
    async with served_gateway(journals, limits=BRIEF) as served, connected(served.port) as connection:
        connection.reader._limit = 1024  # type: ignore[attr-defined] # noqa: SLF001, to read no more by itself
        await connection.send(f"GET /{NAME} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(30):
            await journals.read_ended.wait()


async def test_more_connections_than_there_may_be_are_told_to_come_again() -> None:
    limits = GatewayLimits(connections_max=1)
    async with served_gateway(MemoryJournals(), limits=limits) as served, connected(served.port) as first:
        await first.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await first.until(b"alive\n")
        async with connected(served.port) as second:
            answer = RawAnswer.parse(await second.rest())
        assert (answer.code, answer.headers["retry-after"]) == (503, "1")
        assert len(answer.body) == int(answer.headers["content-length"])


async def test_a_read_stops_when_its_client_goes() -> None:
    journals = MemoryJournals()
    async with served_gateway(journals) as served:
        async with connected(served.port) as connection:
            await connection.send(f"GET /{NAME}?block=true HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            async with asyncio.timeout(30):
                await journals.read_begun.wait()
        async with asyncio.timeout(30):
            await journals.read_ended.wait()


async def test_a_read_ends_when_its_token_does() -> None:
    journals = MemoryJournals([(0, b"content")])
    async with served_gateway(journals, keys=KEYS, now_s=NOW_S + 0.99) as served:
        answer = await exchange(served.port, f"GET /{NAME}?block=true HTTP/1.1" + bearer(Capability.READ, 1))
    assert answer.body == b"content"
    assert answer.trailers == {"x-close-error": "the token has expired: get a fresh one"}


async def test_an_append_ends_when_its_token_does() -> None:
    journals = MemoryJournals()
    async with served_gateway(journals, keys=KEYS, now_s=NOW_S) as served, connected(served.port) as connection:
        authorization = bearer(Capability.APPEND, -3).strip()
        await connection.send(
            f"PUT /{NAME} HTTP/1.1\r\nHost: x\r\n{authorization}\r\nContent-Length: 9\r\n\r\nhalf".encode()
        )
        head = await connection.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert journals.fragments == []


@pytest.mark.parametrize(
    ("request_", "capability"),
    [(GET, Capability.READ), (GET.replace("GET", "HEAD"), Capability.READ), (PUT, Capability.APPEND)],
    ids=["GET", "HEAD", "PUT"],
)
async def test_everything_needs_a_token_that_grants_it(request_: str, capability: Capability) -> None:
    async with served_gateway(MemoryJournals([(0, b"x")]), keys=KEYS, now_s=NOW_S) as served:
        for wrong in ("", "\nAuthorization: Bearer nonsense", "\nAuthorization: Basic eDp5", 2 * bearer(capability)):
            refused = await exchange(served.port, request_ + wrong)
            assert (refused.code, refused.headers["www-authenticate"]) == (401, "Bearer")
        denied = await exchange(served.port, request_ + bearer(Capability.ALL & ~capability & 0xFFFFFFFF))
        assert denied.code == 403
        assert (await exchange(served.port, request_ + bearer(capability))).code in (204, 206)
        assert (await exchange(served.port, "GET /healthz HTTP/1.1")).code == 200


@pytest.mark.parametrize(("path", "capability"), [("list", Capability.LIST), ("read", Capability.READ)])
async def test_json_needs_a_token_too(path: str, capability: Capability) -> None:
    head, body = f"POST /v1/journals/{path} HTTP/1.1", json.dumps({"journal": NAME}).encode()
    async with served_gateway(MemoryJournals(), keys=KEYS, now_s=NOW_S) as served:
        missing = await exchange(served.port, head, body)
        assert json.loads(missing.body)["error"]["grpcCode"] == 16
        assert missing.code == 401
        assert (await exchange(served.port, head + bearer(Capability.APPEND), body)).code == 403
        assert (await exchange(served.port, head + bearer(capability), body)).code == 200


async def test_a_gap_ends_a_read_where_it_would_go_unnoticed() -> None:
    async with served_gateway(MemoryJournals([(5, b"abc"), (10, b"def")])) as served:
        answer = await exchange(served.port, GET)
        assert (answer.headers["content-range"].split("-")[0], answer.body) == ("bytes 5", b"abc")
        assert answer.trailers["x-close-error"] == "there is a gap: the next bytes are at offset 10"
        async with connected(served.port) as connection:
            heads = (f"GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in (f"{NAME}?end_offset=12", "healthz"))
            await connection.send("".join(heads).encode())
            cut = RawAnswer.parse(await connection.rest())
        # A length was announced, so that every client notices: nothing else may come in its place.
        assert (cut.headers["content-length"], cut.body) == ("7", b"abc")
        before = await exchange(served.port, f"{GET}\nRange: bytes=0-3")
        assert (before.code, before.headers["content-range"]) == (416, "bytes */13")


async def test_a_head_has_what_its_get_would_have() -> None:
    async with served_gateway(MemoryJournals([(0, b"0123456789")])) as served:
        for extra in ("", "\nRange: bytes=2-4", "\nRange: bytes=20-"):
            read = await exchange(served.port, GET + extra)
            head = await exchange(served.port, GET.replace("GET", "HEAD") + extra)
            ignored = {"date", "transfer-encoding", "trailer"}
            assert head.code == read.code
            assert {k: v for k, v in head.headers.items() if k not in ignored} == {
                k: v for k, v in read.headers.items() if k not in ignored
            }
            assert head.body == b""


async def test_old_clients_get_a_body_that_ends_with_the_connection() -> None:
    async with served_gateway(MemoryJournals([(0, b"0123"), (4, b"4567")])) as served:
        answer = await exchange(served.port, f"GET /{NAME} HTTP/1.0")
    assert (answer.code, answer.body) == (206, b"01234567")
    assert not {"trailer", "transfer-encoding"} & set(answer.headers)


async def test_content_is_of_the_type_that_the_journal_names() -> None:
    journals = MemoryJournals([(0, b"<script>")], content_type="text/html")
    async with served_gateway(journals) as served:
        answer = await exchange(served.port, GET)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        journals.content_type = "application/x-ndjson"
        assert (await exchange(served.port, GET)).headers["content-type"] == "application/x-ndjson"


async def test_an_append_of_which_the_outcome_is_unknown_is_not_to_be_repeated() -> None:
    async with served_gateway(MemoryJournals(loses_commits=True)) as served:
        answer = await exchange(served.port, PUT, b"x")
    assert answer.code == 500
    assert "retry-after" not in answer.headers
    assert b"may be committed or not" in answer.body


async def test_an_append_that_surely_was_not_done_may_be_repeated() -> None:
    async with served_gateway(MemoryJournals(loses_commits=True, marks_failures=True)) as served:
        answer = await exchange(served.port, PUT, b"x")
    assert (answer.code, answer.headers["retry-after"]) == (503, "1")


async def test_a_put_waits_a_moment_for_a_primary() -> None:
    journals = MemoryJournals(status=pb.NO_JOURNAL_PRIMARY_BROKER)
    async with served_gateway(journals) as served, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(exchange(served.port, PUT, b"x"))
        refused = await exchange(served.port, GET)
        assert (refused.code, refused.headers["retry-after"]) == (503, "1")
        journals.status = pb.OK
        assert (await asking).code == 204
    assert journals.fragments == [(0, b"x")]


async def test_a_broker_that_is_not_there_yet_says_so() -> None:
    async with served_gateway(MemoryJournals(is_serving=False)) as served:
        for path in (NAME, "readyz", "debug/ready"):
            assert (await exchange(served.port, f"GET /{path} HTTP/1.1")).code == 503
        assert (await exchange(served.port, "GET /healthz HTTP/1.1")).code == 200


async def test_draining_ends_reads_and_lets_appends_finish() -> None:
    journals = MemoryJournals([(0, b"content")])
    async with served_gateway(journals) as served, asyncio.TaskGroup() as tasks:
        async with connected(served.port) as reader, connected(served.port) as writer:
            await reader.send(f"GET /{NAME}?block=true HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            await reader.until(b"content\r\n")
            head = f"PUT /{NAME} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n"
            await writer.send(f"{head}Connection: close\r\n\r\n".encode())
            await writer.until(b"\r\n\r\n")
            draining = tasks.create_task(served.gateway.drain(30))
            assert b"X-Close-Error: this broker stops" in await reader.rest()
            await writer.send(b"more")
            assert RawAnswer.parse(await writer.rest()).code == 204
            await draining
        late = await exchange(served.port, GET)
        assert (late.code, late.headers["retry-after"]) == (503, "1")
        assert (await exchange(served.port, "GET /metrics HTTP/1.1")).code == 200


async def test_draining_does_not_wait_for_ever() -> None:
    async with served_gateway(MemoryJournals()) as served, connected(served.port) as writer:
        await writer.send(
            f"PUT /{NAME} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode()
        )
        await writer.until(b"\r\n\r\n")
        await served.gateway.drain(0.01)
        assert await writer.rest() == b""


async def test_metrics_that_are_private_are_not_on_this_port() -> None:
    async with served_gateway(MemoryJournals(), is_private=True) as served:
        for path, code in (("metrics", 404), ("debug/metrics", 404), ("debug/ready", 404), ("readyz", 200)):
            assert (await exchange(served.port, f"GET /{path} HTTP/1.1")).code == code


async def test_malformed_requests_are_not_worth_a_line_of_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with served_gateway(MemoryJournals()) as served:
            assert (await exchange(served.port, "GET /a b HTTP/1.1\nBad Header")).code == 400
            assert (await exchange(served.port, "\x16\x03\x01\x02")).code == 400
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


@pytest.mark.parametrize(
    "body", [b"{nope", b"[]", b"\xff", b'{"watch": 7}', b"[" * 5000, b'{"journal":"' + b"x" * 1000 + b'"}']
)
async def test_bad_documents_are_refused(body: bytes) -> None:
    async with served_gateway(MemoryJournals()) as served:
        answer = await exchange(served.port, "POST /v1/journals/read HTTP/1.1", body)
    assert answer.code == 400
    assert json.loads(answer.body)["error"]["grpcCode"] == 3
