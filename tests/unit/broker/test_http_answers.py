"""The codes and headers of answers, as values."""

from __future__ import annotations

import grpc
import pytest

from broker.http_cors import Cors
from broker.http_exchange import json_bytes
from broker.http_headers import commit_headers, fragment_headers, route_token
from broker.http_read import content_of
from broker.http_status import failure_refusal, refusal_of
from broker.read_message import content_message
from protocol.errors import Status
from protocol.gen import journal_pb2 as pb


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_status_has_words_and_a_code_of_failure(status: Status) -> None:
    refusal = refusal_of(status)
    assert refusal.text.startswith(f"{status.name}: ")
    assert 400 <= refusal.code <= 503
    assert ("Retry-After" in refusal.headers) == (refusal.code == 503)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.JOURNAL_NOT_FOUND, 404),
        (Status.NO_JOURNAL_PRIMARY_BROKER, 503),
        (Status.INSUFFICIENT_JOURNAL_BROKERS, 503),
        (Status.OFFSET_NOT_YET_AVAILABLE, 416),
        (Status.WRONG_APPEND_OFFSET, 409),
        (Status.REGISTER_MISMATCH, 409),
        (Status.NOT_ALLOWED, 405),
    ],
)
def test_codes_of_statuses(status: Status, code: int) -> None:
    assert refusal_of(status).code == code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.UNAUTHENTICATED, 401),
        (grpc.StatusCode.PERMISSION_DENIED, 403),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.DATA_LOSS, 500),
        (grpc.StatusCode.INTERNAL, 500),
    ],
)
def test_codes_of_failures(code: grpc.StatusCode, expected: int) -> None:
    refusal = failure_refusal(code, "why")
    assert (refusal.code, refusal.text) == (expected, "why")
    assert refusal.headers.get("WWW-Authenticate") == ("Bearer" if expected == 401 else None)


def test_routes_are_written_as_gazette_writes_them() -> None:
    members = [pb.ProcessSpec.ID(zone="zone-a", suffix="broker-1"), pb.ProcessSpec.ID(zone="zone-b", suffix="broker-4")]
    route = pb.Route(members=members, primary=1, endpoints=["http://127.0.0.1:18081", "http://127.0.0.1:18084"])
    assert route_token(route) == (
        'members:<zone:"zone-a" suffix:"broker-1" > members:<zone:"zone-b" suffix:"broker-4" > '
        'primary:1 endpoints:"http://127.0.0.1:18081" endpoints:"http://127.0.0.1:18084"'
    )
    assert route_token(pb.Route(members=members[:1], primary=-1)).endswith(" primary:-1")


def test_no_name_of_a_broker_ends_a_header() -> None:
    route = pb.Route(members=[pb.ProcessSpec.ID(zone='a"\\', suffix="b\r\nSet-Cookie: é")])
    assert route_token(route) == 'members:<zone:"a\\"\\\\" suffix:"b\\015\\012Set-Cookie: \\303\\251" >'


def test_a_fragment_that_is_persisted_is_told_with_its_time_and_place() -> None:
    fragment = pb.Fragment(journal="a/b", begin=0, end=21, compression_codec=pb.GZIP, mod_time=1794805515)
    fragment.sum.CopyFrom(pb.SHA1Sum(part1=13673389382565664355, part2=16784691534293575294, part3=1379235344))
    message = pb.ReadResponse(write_head=106, fragment=fragment, fragment_url="https://bucket/key?signed")
    assert fragment_headers(message) == {
        "X-Write-Head": "106",
        "X-Fragment-Name": "0000000000000000-0000000000000015-bdc1a332df6c9663e8ef34057613267e52357610.gz",
        "X-Fragment-Last-Modified": "Mon, 16 Nov 2026 05:05:15 GMT",
        "X-Fragment-Location": "https://bucket/key?signed",
    }
    fragment.mod_time = 0
    assert set(fragment_headers(pb.ReadResponse(fragment=fragment))) == {"X-Write-Head", "X-Fragment-Name"}


def test_a_commit_is_told_with_its_sum() -> None:
    commit = pb.Fragment(journal="a/b", begin=106, end=117, sum=pb.SHA1Sum(part1=1, part2=2, part3=3))
    assert commit_headers(commit) == {
        "X-Commit-Begin": "106",
        "X-Commit-End": "117",
        "X-Commit-SHA1-Sum": "0000000000000001000000000000000200000003",
        "X-Write-Head": "117",
    }


def test_json_has_nothing_in_it_that_could_end_a_script() -> None:
    assert json_bytes({"a": "é&</script>"}) == '{"a":"é\\u0026\\u003c/script\\u003e"}'.encode()


def test_origins() -> None:
    allowed = Cors(("https://a.example", "https://b.example"))
    assert allowed.headers("https://b.example")["Access-Control-Allow-Origin"] == "https://b.example"
    assert allowed.headers("https://a.example.evil") == {"Vary": "Origin"}
    assert allowed.headers(None) == {"Vary": "Origin"}
    assert allowed.preflight_headers("null") == {"Vary": "Origin"}
    assert Cors().preflight_headers("https://a.example") == {}
    assert Cors(("*",)).preflight_headers("https://c.example")["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize(
    "message",
    [
        pb.ReadResponse(offset=5, write_head=7),
        pb.ReadResponse(offset=5),
        pb.ReadResponse(status=pb.JOURNAL_NOT_FOUND),
        pb.ReadResponse(content=b"x", fragment_url="y"),
    ],
)
def test_messages_of_more_than_content_are_not_taken_for_content(message: pb.ReadResponse) -> None:
    assert content_of(message.SerializeToString()) is None
    assert content_of(b"") is None
    assert bytes(content_of(content_message(1 << 40, b"x" * 300)) or b"") == b"x" * 300
