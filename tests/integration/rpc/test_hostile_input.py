"""Bytes that no gRPC client would send. Whatever they are, the server goes on serving others."""

from __future__ import annotations

import asyncio
import gzip
import logging
import struct

import pytest

from protocol.auth import Keys
from protocol.rpc.keepalive import KeepAlive
from protocol.rpc.server import ServerLimits
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    answer,
    call,
    dropped,
    frame,
    header_block,
    message,
)
from tests.support.rpc_service import SERVICE, Echo, serving

APPLY = f"/{SERVICE}/Apply".encode()
GOOD = call(APPLY, message(b"hello"))
KEYS = Keys.parse("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")
OPENED = PREFACE + frame(SETTINGS)


def status(code: int) -> bytes:
    text = str(code).encode()
    return b"grpc-status" + bytes([len(text)]) + text


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (call(b"/\xff\xfe", message(b"")), status(12)),
        (call(b"/protocol.Journal/\xc3\x28", message(b"")), status(12)),
        (call(b"/protocol.Journal/Unknown", message(b"")), status(12)),
        (call(b"/", message(b"")), status(12)),
        (call(APPLY, b""), status(3)),
        (call(APPLY, message(b"\x01", is_compressed=True)), status(13)),
        (call(APPLY, message(b"not gzip", is_compressed=True), [(b"grpc-encoding", b"gzip")]), status(13)),
        (call(APPLY, message(b"x", is_compressed=True), [(b"grpc-encoding", b"unheard-of")]), b"grpc-status"),
        (call(APPLY, b"\0" + struct.pack(">I", (1 << 32) - 1)), status(8)),
        (call(APPLY, b"\x07\0\0\0\1x"), b"grpc-status"),
        (
            call(APPLY, message(gzip.compress(bytes(12 << 20), 9), is_compressed=True), [(b"grpc-encoding", b"gzip")]),
            status(8),
        ),
        (call(APPLY, message(b"x"), [(b"grpc-timeout", b"soon")]), b"grpc-status"),
        (call(APPLY, message(b"x"), [(b"x-bin", b"!!! not base64")]), b"grpc-status"),
    ],
)
async def test_a_strange_call_fails_alone(sent: bytes, answered: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Echo()) as (_, port):
        assert answered in await answer(port, sent)
        assert b"hello" in await answer(port, GOOD)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "sent",
    [
        OPENED + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        OPENED + frame(DATA, END_STREAM, 1, message(b"x")),
        OPENED + frame(HEADERS, END_HEADERS, 2, header_block(APPLY)),
        OPENED + frame(HEADERS, END_HEADERS, 1, header_block(APPLY)),
        OPENED + b"\xff\xff\xff\x00\x00\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        bytes(1000),
        call(b"", message(b"")),
        GOOD,
    ],
)
async def test_a_client_that_breaks_off_harms_nobody(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Echo()) as (_, port):
        for _ in range(5):
            await dropped(port, sent)
        assert b"hello" in await answer(port, GOOD)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_many_calls_of_unknown_methods_leave_nothing_behind() -> None:
    async with serving(Echo()) as (_, port):
        assert b"hello" in await answer(port, GOOD)
        before = len(asyncio.all_tasks())
        for _ in range(50):
            assert status(12) in await answer(port, call(b"/\xff", message(b"")))
        async with asyncio.timeout(20):
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_header_that_is_not_text_is_no_token() -> None:
    async with serving(Echo(), KEYS) as (_, port):
        strange = call(APPLY, message(b"x"), [(b"authorization", b"Bearer \xff\xfe")])
        assert status(16) in await answer(port, strange)
        assert status(16) in await answer(port, GOOD)


async def test_a_connection_that_says_nothing_is_closed() -> None:
    # Which takes no ping to find out.
    keepalive = KeepAlive(time_s=600)
    async with serving(Echo(), limits=ServerLimits(handshake_s=0.2), keepalive=keepalive) as (_, port):
        for opening in (b"", PREFACE[:10], PREFACE):
            await answer(port, opening, until=b"never sent")
