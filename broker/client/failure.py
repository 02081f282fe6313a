"""The only place where errors of gRPC become ours."""

from __future__ import annotations

import grpc

from broker.client.outcome import REFUSED_MARK, FailedCallError
from protocol.errors import (
    CorruptError,
    GazetteError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)

_DETAILS_MAX = 512
# What gRPC puts in place of the true status when a call ends while a message is being written.
_MASKED = "Internal error from Core"

_OF_CODES: dict[grpc.StatusCode, type[GazetteError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    # Not by us: that would be a CancelledError.
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.ABORTED: UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.INVALID_ARGUMENT: ValidationError,
    grpc.StatusCode.DATA_LOSS: CorruptError,
}


def failure_of(error: grpc.aio.AioRpcError, endpoint: str) -> GazetteError:
    """`error` in our terms, with the broker that it is about."""
    code, details = error.code(), (error.details() or "")[:_DETAILS_MAX]
    kind = _OF_CODES.get(code, FailedCallError)
    if code is grpc.StatusCode.INTERNAL and details == _MASKED:
        kind = UnavailableError
    if kind is ValidationError:
        return ValidationError(details)
    return kind(f"{endpoint}: {details or 'no reason was given'} ({code.name})")


def is_marked(error: grpc.aio.AioRpcError) -> bool:
    """Whether the broker has said of an append that it surely was not done."""
    return REFUSED_MARK in tuple(error.trailing_metadata() or ())
