"""Calls of Append that were recorded with Gazette's own brokers, made to ours; and what answers must have in common."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster
from tests.support.golden import GOLDEN

RECORDED = GOLDEN / "live" / "wire"
CODES = {
    # Where Gazette has but UNKNOWN, ours say whose fault it is.
    "UNKNOWN": {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION},
    "DEADLINE_EXCEEDED": {grpc.StatusCode.DEADLINE_EXCEEDED},
    # The recording client ran into its own deadline by cancelling.
    "CANCELLED": {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED},
    "UNAVAILABLE": {grpc.StatusCode.UNAVAILABLE},
    "OK": {grpc.StatusCode.OK},
}


@dataclass
class Conversation:
    title: str
    method: str
    requests: list[bytes] = field(default_factory=list)
    responses: list[bytes] = field(default_factory=list)
    code: str = ""
    is_half_closed: bool = False
    is_cancelled: bool = False


def conversations(name: str) -> list[Conversation]:
    had: dict[str, Conversation] = {}
    for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        one = had.setdefault(row["conv"], Conversation(row["conv"], row["method"].rpartition("/")[2]))
        match row.get("event"):
            case None:
                (one.requests if row["dir"] == ">" else one.responses).append(bytes.fromhex(row["hex"]))
            case "status":
                one.code = row["code_name"]
            case "half-close":
                one.is_half_closed = True
            case "cancel":
                one.is_cancelled = True
            case _:
                pass
    return list(had.values())


async def had_with(cluster: BrokerCluster, name: str, one: Conversation, timeout_s: float = 10) -> tuple[Any, Any]:
    """The code of the call, and its answer if it has one."""

    async def requests() -> AsyncIterator[bytes]:
        for request in one.requests:
            yield request
        if one.is_cancelled:
            call.cancel()
        if not one.is_half_closed:
            # What never ends, the server has to.
            await call.code()

    async with grpc.aio.insecure_channel(cluster.brokers[name].address) as channel:
        append: grpc.aio.StreamUnaryMultiCallable[bytes, bytes]
        append = channel.stream_unary("/protocol.Journal/Append")
        call = append(requests(), timeout=timeout_s)
        try:
            return grpc.StatusCode.OK, pb.AppendResponse.FromString(await call)
        except grpc.aio.AioRpcError as error:
            return error.code(), None
        except BaseException as error:
            if one.is_cancelled:
                return grpc.StatusCode.CANCELLED, None
            raise error


def compare(one: Conversation, code: grpc.StatusCode, answer: pb.AppendResponse | None) -> None:
    assert code in CODES[one.code], (one.title, code)
    if not one.responses:
        return
    theirs = pb.AppendResponse.FromString(one.responses[0])
    assert answer is not None
    assert answer.status == theirs.status, one.title
    for part in ("header", "commit", "registers"):
        assert answer.HasField(part) == theirs.HasField(part), (one.title, part)
    assert (answer.commit.begin, answer.commit.end) == (theirs.commit.begin, theirs.commit.end), one.title
    assert answer.commit.sum == theirs.commit.sum
    assert answer.commit.journal == theirs.commit.journal
    assert answer.registers == theirs.registers
    assert answer.total_chunks == theirs.total_chunks
    assert len(answer.header.route.members) == len(theirs.header.route.members), one.title
    assert (answer.header.route.primary == -1) == (theirs.header.route.primary == -1)
    assert bool(answer.store_health_error) == bool(theirs.store_health_error)
