"""GET and HEAD of a journal: a read whose answers become a head, a body and a trailer that says why it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aiohttp import web

from broker.http_exchange import ClientGoneError, Exchange
from broker.http_headers import Headers, content_range, fragment_headers, location, route_token, safe_content_type
from broker.http_status import OK_READ, RETRY_AFTER, Refusal, RefusedRequestError, failure_refusal, refusal_of
from broker.http_target import WRITE_HEAD, ReadWanted
from broker.http_terms import TermOverError, Terms
from broker.journals import Journals
from protocol.auth import Claims
from protocol.errors import InvariantError, Status
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.route import ProcessId
from protocol.rpc.failure import cause_of, failure_of
from protocol.wire_bytes import read_varint

_OFFSET, _CONTENT = 3 << 3, 7 << 3 | 2
END = "EOF"


class _EnoughError(Exception):
    """Ends a read that has more to say."""


class _Download:
    """Takes the answers of a read to the client as they come."""

    def __init__(self, exchange: Exchange, journals: Journals, wanted: ReadWanted) -> None:
        self._exchange = exchange
        self._journals = journals
        self._wanted = wanted
        self.close_error = ""
        # Of the next byte, once there was a first.
        self.offset = wanted.offset

    @property
    def claims(self) -> Claims:
        return self._exchange.claims

    async def send(self, message: pb.ReadResponse | bytes) -> None:
        if isinstance(message, bytes):
            content = content_of(message)
            if content is not None:
                await self._content(content)
                return
            message = pb.ReadResponse.FromString(message)
        if message.content:
            await self._content(memoryview(message.content))
        elif not self._exchange.is_begun:
            await self._begin(message)
        else:
            self._go_on(message)

    async def _content(self, content: memoryview) -> None:
        self.offset += len(content)
        if not await self._exchange.write(content):
            raise _EnoughError

    async def _begin(self, message: pb.ReadResponse) -> None:
        wanted = self._wanted
        about = routing_headers(message.header, wanted.journal, self._journals.gateway_of)
        status = Status(message.status)
        if status is not Status.OK:
            raise RefusedRequestError(_refused(status, message, about))
        self.offset, head = message.offset, message.write_head
        end, length = wanted.end, None
        if end is not None:
            end = end if wanted.block else min(end, head)
            if end <= self.offset:
                raise RefusedRequestError(_refused(Status.OFFSET_NOT_YET_AVAILABLE, message, about))
            length = end - self.offset if end <= head else None
        headers = {
            **about,
            **fragment_headers(message),
            "Content-Range": content_range(self.offset, end, head),
            "Content-Type": safe_content_type(self._journals.content_type_of(strip_meta(wanted.journal))),
        }
        await self._exchange.begin(OK_READ, headers, length)

    def _go_on(self, message: pb.ReadResponse) -> None:
        """A fragment after the first, or why there is none."""
        if message.status != pb.OK:
            self.close_error = Status(message.status).name
        elif message.offset != self.offset:
            # In the middle of a body nobody would notice that bytes are missing.
            self.close_error = f"there is a gap: the next bytes are at offset {message.offset}"
            raise _EnoughError


def _refused(status: Status, message: pb.ReadResponse, about: Headers) -> Refusal:
    refusal = refusal_of(status)
    headers = {**about, **refusal.headers}
    if status is Status.NOT_ALLOWED:
        headers["Allow"] = "PUT, OPTIONS"
    if refusal.code == 416:
        headers["X-Write-Head"] = str(message.write_head)
        headers["Content-Range"] = f"bytes */{message.write_head}"
    return replace(refusal, headers=headers)


def routing_headers(header: pb.Header, journal: str, gateway_of: Callable[[ProcessId], str]) -> Headers:
    """Who holds the journal, and where the gateway of its primary is."""
    route, headers = header.route, {}
    if route.members:
        headers["X-Route-Token"] = route_token(route)
        if 0 <= route.primary < len(route.members):
            gateway = gateway_of(ProcessId.from_proto(route.members[route.primary]))
            if gateway:
                headers["Location"] = location(gateway, strip_meta(journal))
    return headers


async def serve_read(exchange: Exchange, journals: Journals, wanted: ReadWanted, terms: Terms) -> web.StreamResponse:
    """Until all is sent, the client is gone, or its term is over."""
    if wanted.last is not None:
        wanted = await _from_the_end(exchange, journals, wanted, wanted.last)
    download = _Download(exchange, journals, wanted)
    request = pb.ReadRequest(
        journal=wanted.journal,
        offset=wanted.offset,
        end_offset=wanted.end or 0,
        block=wanted.block,
        metadata_only=exchange.request.method == "HEAD",
    )
    try:
        async with terms.during(exchange.claims):
            await journals.read(request, download)
    except _EnoughError:
        pass
    except TermOverError as over:
        download.close_error = str(over)
    except (ClientGoneError, RefusedRequestError, InvariantError):
        raise
    except Exception as error:
        if not exchange.is_begun:
            raise
        failure = failure_of(cause_of(error), exchange.request.method)
        download.close_error = failure_refusal(failure.code, failure.details).text
    if not exchange.is_begun:
        text = download.close_error or "this broker does not hold the journal any more: ask again"
        return exchange.text(503, text, RETRY_AFTER)
    return await exchange.finish(download.close_error or _reason(wanted, download.offset))


def _reason(wanted: ReadWanted, offset: int) -> str:
    if wanted.end is not None and offset >= wanted.end:
        return END
    return f"the broker has given up the journal: go on at offset {offset}"


class _Head:
    """Looks at the first answer only."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self.message = pb.ReadResponse()

    async def send(self, message: pb.ReadResponse | bytes) -> None:
        self.message = pb.ReadResponse.FromString(message) if isinstance(message, bytes) else message


async def _from_the_end(exchange: Exchange, journals: Journals, wanted: ReadWanted, last: int) -> ReadWanted:
    head = _Head(exchange.claims)
    request = pb.ReadRequest(journal=wanted.journal, offset=WRITE_HEAD, metadata_only=True)
    await journals.read(request, head)
    message = head.message
    status = Status(message.status)
    if status is not Status.OFFSET_NOT_YET_AVAILABLE or not message.write_head:
        about = routing_headers(message.header, wanted.journal, journals.gateway_of)
        raise RefusedRequestError(_refused(status or Status.OFFSET_NOT_YET_AVAILABLE, message, about))
    write_head = message.write_head
    return ReadWanted(wanted.journal, max(0, write_head - last), write_head)


def content_of(raw: bytes) -> memoryview | None:
    """The content of a message that has nothing else but its offset, uncopied; None of any other message.

    >>> from broker.read_message import content_message
    >>> bytes(content_of(content_message(300, b"hello")) or b"")
    b'hello'
    """
    at = 0
    try:
        if raw[0] == _OFFSET:
            _, at = read_varint(raw, 1)
        if raw[at] != _CONTENT:
            return None
        length, begin = read_varint(raw, at + 1)
    except IndexError:
        return None
    return memoryview(raw)[begin:] if length and begin + length == len(raw) else None
