"""POST /v1/journals/list and /v1/journals/read: requests as JSON, and their answers a line each."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar

from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import Message

from broker.http_exchange import ClientGoneError, Exchange, json_bytes
from broker.http_status import Refusal, RefusedRequestError, failure_refusal
from broker.http_terms import TermOverError, Terms
from broker.journals import Journals
from protocol.auth import Capability, Claims
from protocol.errors import InvariantError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.json_form import gateway
from protocol.rpc.failure import cause_of, failure_of

PREFIX = "/v1/"
LIST, READ = "/v1/journals/list", "/v1/journals/read"
CAPABILITIES = {LIST: Capability.LIST, READ: Capability.READ}

_DEPTH_MAX = 32
_CODE_NUMBERS: dict[int, int] = {400: 3, 401: 16, 403: 7, 404: 5, 501: 12, 503: 14}
_UNKNOWN = 2

RequestT = TypeVar("RequestT", bound=Message)


class _Lines:
    """Takes messages to the client, each as a line of JSON."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def claims(self) -> Claims:
        return self._exchange.claims

    async def send(self, message: pb.ListResponse | pb.ReadResponse | bytes) -> None:
        if isinstance(message, bytes):
            message = pb.ReadResponse.FromString(message)
        await self.send_document({"result": gateway(message)})

    async def send_document(self, document: Any) -> None:
        if not self._exchange.is_begun:
            await self._exchange.begin(200, {"Content-Type": "application/json"})
        await self._exchange.write(json_bytes(document) + b"\n")


async def serve_rest(exchange: Exchange, journals: Journals, path: str, terms: Terms) -> web.StreamResponse:
    """Of a path that is one of CAPABILITIES."""
    lines, reason = _Lines(exchange), "EOF"
    try:
        request: Message
        async with terms.during(exchange.claims):
            if path == LIST:
                request = parsed(pb.ListRequest, await exchange.body())
                await journals.list_journals(request, lines)
            else:
                request = parsed(pb.ReadRequest, await exchange.body())
                await journals.read(request, lines)
    except TermOverError as over:
        reason = str(over)
    except (ClientGoneError, RefusedRequestError, InvariantError):
        raise
    except Exception as error:
        if not exchange.is_begun:
            raise
        failure = failure_of(cause_of(error), path)
        refusal = failure_refusal(failure.code, failure.details)
        await lines.send_document(error_document(refusal))
        reason = refusal.text
    if not exchange.is_begun:
        return exchange.document(503, error_document(Refusal(503, reason)), {"Retry-After": "1"})
    return await exchange.finish(reason)


def parsed(kind: type[RequestT], body: bytes) -> RequestT:
    """Fields that are not known are left aside, as Gazette does; an empty body is a request for everything.

    >>> parsed(pb.ReadRequest, b'{"journal": "a/b", "endOffset": "20", "nope": 1}')
    journal: "a/b"
    end_offset: 20
    <BLANKLINE>
    """
    try:
        return json_format.Parse(
            body.decode() or "{}", kind(), ignore_unknown_fields=True, max_recursion_depth=_DEPTH_MAX
        )
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        text = f"the body is not a {kind.DESCRIPTOR.name} in JSON: {str(error)[:200]}"
        raise RefusedRequestError(Refusal(400, text)) from error
    except ValueError as error:
        raise ValidationError(f"the body is not a {kind.DESCRIPTOR.name} in JSON") from error


def error_document(refusal: Refusal) -> dict[str, Any]:
    """As those who read a stream expect it, in place of a result."""
    return {
        "error": {
            "grpcCode": _CODE_NUMBERS.get(refusal.code, _UNKNOWN),
            "httpCode": refusal.code,
            "message": refusal.text,
            "httpStatus": HTTPStatus(refusal.code).phrase,
            "details": [],
        }
    }


def not_implemented(exchange: Exchange) -> web.Response:
    """Of any other path or method, which is what Gazette answers to both."""
    text = f"Not Implemented: there are POST {LIST} and POST {READ}"
    return exchange.document(501, {"code": _CODE_NUMBERS[501], "message": text, "details": []})
