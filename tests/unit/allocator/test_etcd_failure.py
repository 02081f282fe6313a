from __future__ import annotations

import grpc
import pytest

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
from allocator.etcd_failure import cancellation_of, error_of

ENDPOINT = "http://etcd:2379"
Code = grpc.StatusCode


def failed(code: grpc.StatusCode, details: str) -> EtcdError:
    return error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details), ENDPOINT)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", CompactedError),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", EtcdRefusedError),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseNotFoundError),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", EtcdRefusedError),
        (Code.UNIMPLEMENTED, "unknown service", EtcdRefusedError),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", EtcdFullError),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (5 vs. 4)", AnswerTooLargeError),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", StaleTokenError),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", StaleTokenError),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", StaleTokenError),
        (Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", EtcdDeniedError),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", EtcdDeniedError),
        (Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", AuthDisabledError),
    ],
)
def test_what_etcd_says_has_a_meaning(code: grpc.StatusCode, details: str, kind: type[EtcdError]) -> None:
    assert type(failed(code, details)) is kind


@pytest.mark.parametrize(
    ("code", "details", "maybe_applied"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN: refused", False),
        (Code.UNAVAILABLE, "etcdserver: no leader", False),
        (Code.UNAVAILABLE, "etcdserver: rpc not supported for learner", False),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", False),
        (Code.UNAVAILABLE, "etcdserver: request timed out", True),
        (Code.UNAVAILABLE, "etcdserver: leader changed", True),
        (Code.UNAVAILABLE, "Socket closed", True),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", True),
        (Code.CANCELLED, "context canceled", True),
        (Code.UNKNOWN, "something new", True),
        (Code.DATA_LOSS, "etcdserver: corrupt cluster", True),
    ],
)
def test_in_doubt_it_may_have_happened(code: grpc.StatusCode, details: str, maybe_applied: bool) -> None:
    error = failed(code, details)
    assert type(error) is EtcdUnavailableError
    assert error.maybe_applied is maybe_applied
    assert ENDPOINT in str(error)


def test_texts_of_servers_are_cut() -> None:
    assert len(str(failed(Code.UNKNOWN, "x" * 100_000))) < 300
    assert len(str(cancellation_of("x" * 100_000, ENDPOINT))) < 300


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", EtcdDeniedError),
        ("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", StaleTokenError),
        ("etcdserver: mvcc: required revision has been compacted", CompactedError),
        ("etcdserver: no leader", EtcdUnavailableError),
        ("", EtcdUnavailableError),
    ],
)
def test_a_cancelled_watch_has_only_words(reason: str, kind: type[EtcdError]) -> None:
    assert type(cancellation_of(reason, ENDPOINT)) is kind
