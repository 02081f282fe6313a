"""Exchange: one request of HTTP and what goes back, be it an answer in one piece or a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11, StreamWriter

from broker.http_headers import Headers
from broker.http_status import Refusal, RefusedRequestError
from protocol.auth import Claims

CLOSE_ERROR = "X-Close-Error"


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What a client may take of us. Connections beyond the greatest number are told to come again."""

    connections_max: int = 4096
    # For a connection to send the head of a request, from its beginning or from the answer before.
    head_s: float = 8.0
    # For the next bytes of a body, and for all of one that is read whole.
    body_s: float = 8.0
    # One append is in one fragment, and stores take no larger objects in one piece.
    body_bytes_max: int = 4 << 30
    # A document is read on the event loop, which is why it is small.
    document_bytes_max: int = 128 << 10
    # For a client that does not read, such as one behind a pager.
    write_s: float = 300.0
    # For bytes of a body that was not wanted, so that its sender gets to read why.
    linger_s: float = 2.0
    # For a journal to get a primary, while nothing of an append has been read.
    primary_s: float = 4.0


class ClientGoneError(ConnectionError):
    """There is nobody to answer."""


class Exchange:
    def __init__(
        self, request: web.BaseRequest, headers: Mapping[str, str], claims: Claims, limits: GatewayLimits
    ) -> None:
        self.request = request
        self.claims = claims
        self.limits = limits
        # Of every answer.
        self._headers = dict(headers)
        self._response: web.StreamResponse | None = None
        self._writer: StreamWriter | None = None
        # What is still to be sent of the length that was announced.
        self._left: int | None = None

    @property
    def is_begun(self) -> bool:
        return self._response is not None

    def text(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
        return web.Response(status=code, text=f"{text}\n", headers={**self._headers, **(headers or {})})

    def refused(self, refusal: Refusal, headers: Mapping[str, str] | None = None) -> web.Response:
        return self.text(refusal.code, refusal.text, {**refusal.headers, **(headers or {})})

    def empty(self, code: int, headers: Mapping[str, str]) -> web.Response:
        return web.Response(status=code, headers={**self._headers, **headers})

    def document(self, code: int, document: Any, headers: Mapping[str, str] | None = None) -> web.Response:
        return web.Response(
            status=code,
            body=json_bytes(document),
            headers={**self._headers, "Content-Type": "application/json", **(headers or {})},
        )

    async def begin(self, code: int, headers: Headers, length: int | None = None) -> web.StreamResponse:
        """Send the head of an answer. Without a `length` it ends with a trailer, where the client takes one."""
        response = web.StreamResponse(status=code, headers={**self._headers, **headers})
        if length is not None:
            response.content_length = length
        elif self.request.version >= HttpVersion11 and self.request.method != "HEAD":
            response.headers["Trailer"] = CLOSE_ERROR
        writer = await response.prepare(self.request)
        assert isinstance(writer, StreamWriter)
        self._response, self._writer, self._left = response, writer, length
        return response

    async def write(self, data: bytes | memoryview) -> bool:
        """Returns when `data` is on its way, and whether more is wanted."""
        assert self._response is not None
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        try:
            async with asyncio.timeout(self.limits.write_s):
                await self._response.write(data)
        except (ConnectionError, TimeoutError) as error:
            self._cut()
            raise ClientGoneError from error
        return self._left != 0

    async def finish(self, close_error: str) -> web.StreamResponse:
        """End the stream, and say why it ends."""
        response, writer = self._response, self._writer
        assert response is not None
        assert writer is not None
        if self._left:
            # The length that was announced is how the client knows that this is not all.
            self._cut()
        elif writer.chunked:
            # aiohttp has no trailers: we write the last chunk in its place, and it has none to write.
            writer.chunked = False
            await self.write(f"0\r\n{CLOSE_ERROR}: {_header_text(close_error)}\r\n\r\n".encode())
        await response.write_eof()
        return response

    def _cut(self) -> None:
        assert self._response is not None
        self._response.force_close()
        if self.request.transport is not None:
            self.request.transport.close()

    async def body_piece(self, timeout_s: float) -> bytes:
        """What has come of the body, or comes next; nothing at its end. A body that is cut off has no end."""
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                return await self.request.content.readany()
        except TimeoutError:
            raise RefusedRequestError(Refusal(408, "the body does not come: send it faster", CLOSE)) from None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # Of what aiohttp says about it there are many kinds, and none that we would treat in another way.
            raise RefusedRequestError(Refusal(400, "the body is malformed, or was cut off", CLOSE)) from error

    async def body(self) -> bytes:
        """All of a small one."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                while piece := await self.body_piece(self.limits.body_s):
                    body += piece
                    if len(body) > self.limits.document_bytes_max:
                        raise RefusedRequestError(Refusal(413, "the body is too large", CLOSE))
        except TimeoutError:
            raise RefusedRequestError(Refusal(408, "the body does not come: send it faster", CLOSE)) from None
        return bytes(body)


CLOSE = {"Connection": "close"}


def json_bytes(document: Any) -> bytes:
    """As Gazette writes JSON: compact, and without what could end a script."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").encode()


def _header_text(text: str) -> str:
    return "".join(character if " " <= character <= "~" else " " for character in text[:512])
