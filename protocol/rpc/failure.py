"""What a handler has raised, as the status its client gets. This is the only place that decides so.

A client learns of its own mistakes in words. Of ours it learns an id, under which the log has the rest: the text of an
exception nobody has thought of may hold anything.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

import grpc

from protocol.errors import (
    CorruptError,
    GazetteError,
    PermissionDeniedError,
    PreconditionError,
    RefusedError,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)

_LOG = logging.getLogger(__name__)

# Trailers share the 8 KiB that clients take for metadata, where a letter beyond ASCII may take up 12 bytes.
_DETAILS_MAX = 512

_CODES: dict[type[Exception], grpc.StatusCode] = {
    ValidationError: grpc.StatusCode.INVALID_ARGUMENT,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    PreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    CorruptError: grpc.StatusCode.DATA_LOSS,
    # All others that somebody has thought of, and has found words for.
    GazetteError: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Failure:
    code: grpc.StatusCode
    details: str


class StatusError(Exception):
    """Ends a call with a status that none of our own errors stands for."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.failure = Failure(code, details)


def failure_of(error: Exception, method: str) -> Failure:
    """The status for what a handler of `method` raised."""
    if isinstance(error, StatusError):
        return error.failure
    if isinstance(error, grpc.aio.AioRpcError):
        return _relayed(error, method)
    for kind, code in _CODES.items():
        # A refusal is an answer: one that gets here was forgotten on its way.
        if isinstance(error, kind) and not isinstance(error, RefusedError):
            return Failure(code, str(error)[:_DETAILS_MAX])
    return _ours(error, method)


def cause_of(error: Exception) -> Exception:
    """What is to be answered where several tasks of a handler failed together: our own fault before any other."""
    if not isinstance(error, ExceptionGroup):
        return error
    causes = [cause_of(inner) for inner in error.exceptions]
    expected = (StatusError, grpc.aio.AioRpcError, grpc.aio.BaseError, *_CODES)
    return next((cause for cause in causes if not isinstance(cause, expected)), causes[0])


def _relayed(error: grpc.aio.AioRpcError, method: str) -> Failure:
    """The call was proxied to a peer, and its failure is the client's to hear, unless it is about us."""
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            _LOG.error("a peer refused our token: do all processes have the same auth keys?", extra={"method": method})
            return Failure(grpc.StatusCode.UNAVAILABLE, "the peer that this call was passed on to refused us")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return Failure(grpc.StatusCode.UNAVAILABLE, "the peer that this call was passed on to is out of reach")
        case code:
            return Failure(code, (error.details() or "")[:_DETAILS_MAX])


def _ours(error: Exception, method: str) -> Failure:
    error_id = secrets.token_hex(6)
    _LOG.error("a call failed by our own fault", exc_info=error, extra={"method": method, "error_id": error_id})
    return Failure(grpc.StatusCode.INTERNAL, f"internal error {error_id}: the log of this process says more")
