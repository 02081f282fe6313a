"""Where gRPC's errors and etcd's texts become errors of ours.

What servers say is cut to a length; no password and no token ever comes this way.
"""

from __future__ import annotations

import grpc

from allocator.etcd_errors import (
    AnswerTooLargeError,
    AuthDisabledError,
    CompactedError,
    EtcdDeniedError,
    EtcdError,
    EtcdFullError,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseNotFoundError,
    StaleTokenError,
)

_TEXT_MAX = 200
# Said by a member before it did anything.
_NOT_STARTED = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
    "etcdserver: not capable",
)
_STALE_TOKEN = (
    "etcdserver: invalid auth token",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
)
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ALREADY_EXISTS,
)
_DENIALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


def error_of(error: grpc.aio.AioRpcError, endpoint: str) -> EtcdError:
    """What a failed call means to us."""
    code, details = error.code(), error.details() or ""
    text = f"{endpoint}: {details[:_TEXT_MAX] or code.name}"
    if known := _known(details, text):
        return known
    if code in _DENIALS or details.startswith("etcdserver: authentication failed"):
        return EtcdDeniedError(text)
    if code in _REFUSALS:
        return EtcdRefusedError(text)
    # Whatever else there is, a deadline above all, leaves open whether it happened.
    return EtcdUnavailableError(text, maybe_applied=True)


def cancellation_of(reason: str, endpoint: str) -> EtcdError:
    """Why a member ended a watch of its own accord."""
    text = f"{endpoint}: {reason[:_TEXT_MAX] or 'the watch was cancelled without a reason'}"
    if known := _known(reason, text):
        return known
    if "permission denied" in reason:
        return EtcdDeniedError(text)
    return EtcdUnavailableError(text, maybe_applied=False)


def _known(details: str, text: str) -> EtcdError | None:
    """By the words of etcd and of gRPC, which say more than the code. A cancelled watch has nothing else."""
    if any(words in details for words in _STALE_TOKEN):
        return StaleTokenError(text)
    if "required revision has been compacted" in details:
        return CompactedError()
    if "requested lease not found" in details:
        return LeaseNotFoundError(text)
    if "authentication is not enabled" in details:
        return AuthDisabledError(text)
    if "larger than max" in details:
        return AnswerTooLargeError(text)
    if "database space exceeded" in details:
        return EtcdFullError(text)
    # The connection was never made.
    if details.startswith("failed to connect to all addresses") or any(words in details for words in _NOT_STARTED):
        return EtcdUnavailableError(text, maybe_applied=False)
    return None
