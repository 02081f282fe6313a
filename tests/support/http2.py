"""HTTP/2 by hand: to send what no gRPC client would, and to count the pings between two that talk to each other."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *extra,
    )
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    """A literal of HPACK, not Huffman coded."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, b"\x7f"
    while rest >= 128:
        length += bytes([rest % 128 + 128])
        rest //= 128
    return length + bytes([rest]) + text


def message(payload: bytes, *, is_compressed: bool = False) -> bytes:
    return bytes([is_compressed]) + struct.pack(">I", len(payload)) + payload


def call(path: bytes, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """All that a client sends for one call on a new connection."""
    opening = PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS, 1, header_block(path, extra))
    return opening + frame(DATA, END_STREAM, 1, body)


async def answer(port: int, sent: bytes, until: bytes = b"grpc-status") -> bytes:
    """What comes back until the other side ends the connection or `until` was seen."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    with suppress(ConnectionError):
        writer.write(sent)
        async with asyncio.timeout(20):
            while until not in received and (more := await reader.read(1 << 16)):
                received += more
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return received


async def dropped(port: int, sent: bytes) -> None:
    """Send and go away, without regard to what comes back."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(sent)
        await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class PingCounter:
    """Counts, in both directions, the frames that a relay passes on."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.open_connections = 0
        self.client_frames: Counter[int] = Counter()
        self.server_frames: Counter[int] = Counter()

    async def passed(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_relay(reader, server_writer, self.client_frames, len(PREFACE)))
                tasks.create_task(_relay(server_reader, writer, self.server_frames, 0))
        finally:
            self.open_connections -= 1


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Counter[int], skipped: int
) -> None:
    try:
        writer.write(await reader.readexactly(skipped))
        while True:
            head = await reader.readexactly(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            if not (kind == PING and flags & ACK):
                frames[kind] += 1
            writer.write(head + await reader.readexactly(length))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def ping_counter(target: int) -> AsyncIterator[PingCounter]:
    """A relay to `target` on this machine."""
    counter = PingCounter()
    server = await asyncio.start_server(lambda r, w: counter.passed(target, r, w), "127.0.0.1", 0)
    counter.port = server.sockets[0].getsockname()[1]
    async with server:
        yield counter
