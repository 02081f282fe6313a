"""HTTP as bytes: what Gazette's gateway was recorded to send, and what ours sends over a socket of the test's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

WAIT_S = 30.0


@dataclass(frozen=True)
class RawAnswer:
    """Names of headers and trailers are in lower case, since HTTP does not care and programs differ."""

    code: int
    headers: dict[str, str]
    body: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> RawAnswer:
        head, _, rest = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = _fields(lines)
        body, trailers = _dechunked(rest) if headers.get("transfer-encoding") == "chunked" else (rest, {})
        return cls(int(status.split()[1]), headers, body, trailers)


def _fields(lines: list[str]) -> dict[str, str]:
    pairs = [line.split(": ", 1) for line in lines if line]
    return {name.lower(): value for name, value in pairs}


def _dechunked(raw: bytes) -> tuple[bytes, dict[str, str]]:
    body = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body, _fields(raw.decode("latin-1").split("\r\n"))
        body += raw[:length]
        raw = raw[length + 2 :]
    return body, {}


@dataclass
class RawConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """All that comes until the other side closes."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(mark)


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawConnection]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
    )
    try:
        yield RawConnection(reader, writer)
    finally:
        # Whatever is left is of no interest, be it to us or to the other side.
        writer.transport.abort()


async def exchange(port: int, head: str, body: bytes = b"", tls: ssl.SSLContext | None = None) -> RawAnswer:
    """Send a request, whose lines are those of `head`, and take the answer."""
    async with connected(port, tls) as connection:
        lines = head.strip().splitlines()
        if not any(line.lower().startswith("connection:") for line in lines):
            lines.append("Connection: close")
        if not any(line.lower().startswith("host:") for line in lines):
            lines.insert(1, "Host: broker.example")
        if body and not any(line.lower().startswith(("content-length:", "transfer-encoding:")) for line in lines):
            lines.append(f"Content-Length: {len(body)}")
        await connection.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return RawAnswer.parse(await connection.rest())
