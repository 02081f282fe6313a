"""PUT of a journal: the body is one append, committed as a whole or not at all."""

from __future__ import annotations

import asyncio

import grpc
from aiohttp import web

from broker.append_api import UNDERFLOW
from broker.client.append_request import COMMIT, AppendRequest, content_message
from broker.client.outcome import REFUSED_MARK
from broker.http_exchange import CLOSE, ClientGoneError, Exchange
from broker.http_headers import Headers, commit_headers
from broker.http_read import routing_headers
from broker.http_status import OK_APPEND, Refusal, RefusedRequestError, failure_refusal, refusal_of
from broker.http_terms import EXPIRED, Terms
from broker.journals import Journals
from protocol.auth import Claims
from protocol.errors import InvariantError, Status
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from protocol.rpc.failure import cause_of, failure_of
from protocol.rpc.redaction import redacted
from protocol.selector import LabelSelector

_PAUSE_S = 0.1
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNKNOWN = (
    "the append may be committed or not: look at what the journal ends with before you send it again, or make appends "
    "conditional with offset or check-registers"
)
_SOON_OVER = (pb.NO_JOURNAL_PRIMARY_BROKER, pb.INSUFFICIENT_JOURNAL_BROKERS)
_EXPIRED = Refusal(401, EXPIRED, {"WWW-Authenticate": "Bearer", **CLOSE})


class _Upload:
    """An AppendCall of a request's body."""

    def __init__(self, exchange: Exchange, opening: bytes, terms: Terms) -> None:
        self._exchange = exchange
        self._opening: bytes | None = opening
        self._terms = terms
        self._received = 0
        # Whether any of the body was asked for; whether all of it was given away, and its commit asked for.
        self.is_touched = False
        self.is_complete = False
        # Whether it failed in a way that says that nothing was committed.
        self.is_refused = False

    @property
    def claims(self) -> Claims:
        return self._exchange.claims

    def again(self, opening: bytes) -> None:
        """Begin anew, which is possible while the body is not touched."""
        self._opening = opening

    def tell_at_end(self, name: str, value: str) -> None:
        self.is_refused = self.is_refused or (name, value) == REFUSED_MARK

    async def receive(self) -> bytes | None:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            return opening
        if self.is_complete:
            return None
        piece = await self._piece()
        if piece:
            return content_message(piece)
        self.is_complete = True
        return COMMIT

    async def _piece(self) -> bytes:
        exchange = self._exchange
        limits, request = exchange.limits, exchange.request
        if not self.is_touched:
            self.is_touched = True
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(_CONTINUE)
        remaining_s = self._terms.remaining_s(exchange.claims)
        if remaining_s is not None and remaining_s <= 0:
            raise RefusedRequestError(_EXPIRED)
        try:
            piece = await exchange.body_piece(limits.body_s if remaining_s is None else min(limits.body_s, remaining_s))
        except RefusedRequestError:
            if remaining_s is not None and (self._terms.remaining_s(exchange.claims) or 0) <= 0:
                raise RefusedRequestError(_EXPIRED) from None
            raise
        self._received += len(piece)
        if self._received > limits.body_bytes_max:
            raise RefusedRequestError(_too_large(limits.body_bytes_max))
        if not piece and request.content_length not in (None, self._received):
            raise RefusedRequestError(Refusal(400, "the body was cut off", CLOSE))
        return piece


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(413, f"an append has at most {bytes_max} bytes: send several", CLOSE)


def check_body(request: web.BaseRequest, bytes_max: int) -> None:
    """Refuse what is announced and will not be taken."""
    headers = request.headers
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        text = "a journal holds bytes as they are sent: send them without Content-Encoding"
        raise RefusedRequestError(Refusal(415, text, CLOSE))
    if "Content-Range" in headers:
        text = "a journal is appended to at its end only: send no Content-Range"
        raise RefusedRequestError(Refusal(400, text, CLOSE))
    if headers.get("Expect", "100-continue").lower() != "100-continue":
        raise RefusedRequestError(Refusal(417, "of expectations only 100-continue is known", CLOSE))
    if (request.content_length or 0) > bytes_max:
        raise RefusedRequestError(_too_large(bytes_max))


async def serve_append(exchange: Exchange, journals: Journals, wanted: AppendRequest, terms: Terms) -> web.Response:
    check_body(exchange.request, exchange.limits.body_bytes_max)
    opening = wanted.message(may_proxy=True).SerializeToString()
    upload = _Upload(exchange, opening, terms)
    clock_s = asyncio.get_running_loop().time
    until_s = clock_s() + exchange.limits.primary_s
    while True:
        response = await _appended(exchange, journals, upload)
        if response.status not in _SOON_OVER or upload.is_touched or clock_s() >= until_s:
            break
        # As when the append has just woken up a suspended journal, which gets its brokers in a moment.
        await asyncio.sleep(_PAUSE_S)
        upload.again(opening)
    about = routing_headers(response.header, wanted.journal, journals.gateway_of)
    if response.status != pb.OK:
        return exchange.refused(_refusal(response), about)
    return exchange.empty(OK_APPEND, {**about, **commit_headers(response.commit)})


async def _appended(exchange: Exchange, journals: Journals, upload: _Upload) -> pb.AppendResponse:
    try:
        return pb.AppendResponse.FromString(await journals.append(upload))
    except Exception as raised:
        error = cause_of(raised)
        if isinstance(error, RefusedRequestError | ClientGoneError | InvariantError):
            raise error from None
        if _is_underflow(error):
            text = "the body comes more slowly than appends may: send it faster, or in smaller appends"
            raise RefusedRequestError(Refusal(408, text, CLOSE)) from error
        failure = failure_of(error, exchange.request.method)
        refusal = failure_refusal(failure.code, failure.details)
        if upload.is_complete and not upload.is_refused and refusal.code >= 500:
            # Not 503: many clients repeat a PUT by themselves that is answered so.
            refusal = Refusal(500, f"{failure.details}; {_UNKNOWN}")
        raise RefusedRequestError(refusal) from error


def _is_underflow(error: Exception) -> bool:
    """Whether the body was too slow for the primary, be that here or elsewhere."""
    return (error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)) == UNDERFLOW


def _refusal(response: pb.AppendResponse) -> Refusal:
    status = Status(response.status)
    detail = redacted(response.store_health_error)[:256]
    if status is Status.REGISTER_MISMATCH:
        detail = f"they are {LabelSelector(LabelSet.from_proto(response.registers))}"
    refusal = refusal_of(status, detail)
    headers: Headers = dict(refusal.headers)
    if status is Status.NOT_ALLOWED:
        headers["Allow"] = "GET, HEAD, OPTIONS"
    return Refusal(refusal.code, refusal.text, headers)
