"""What a broker's answer or failure becomes in HTTP, with words that say what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from broker.http_headers import Headers
from protocol.errors import Status

OK_READ = 206
OK_APPEND = 204

RETRY_AFTER = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not the one hoped for."""

    code: int
    text: str
    headers: Headers = field(default_factory=dict)


class RefusedRequestError(Exception):
    """Ends a request with a Refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


_CHANGING = (503, "the cluster is changing: try again")
_REFUSALS: dict[Status, tuple[int, str]] = {
    Status.JOURNAL_NOT_FOUND: (404, "there is no such journal, or none that you may see; /v1/journals/list lists them"),
    Status.NO_JOURNAL_PRIMARY_BROKER: (503, "no broker is in charge of the journal at the moment: try again"),
    Status.NOT_JOURNAL_PRIMARY_BROKER: _CHANGING,
    Status.INSUFFICIENT_JOURNAL_BROKERS: (503, "fewer brokers hold the journal than its spec asks for: try again"),
    Status.NOT_JOURNAL_BROKER: _CHANGING,
    Status.OFFSET_NOT_YET_AVAILABLE: (416, "nothing is written there yet; with block=true the answer waits for it"),
    Status.WRONG_ROUTE: _CHANGING,
    Status.PROPOSAL_MISMATCH: _CHANGING,
    Status.ETCD_TRANSACTION_FAILED: _CHANGING,
    Status.NOT_ALLOWED: (405, "the flags of the journal's spec do not allow it"),
    Status.WRONG_APPEND_OFFSET: (409, "the journal does not end at that offset; the X-Write-Head of a HEAD is its end"),
    Status.INDEX_HAS_GREATER_OFFSET: (
        500,
        "the stores hold more of the journal than its brokers know of; an operator has to look after it, and to run "
        "gazctl journals reset-head if the rest is lost",
    ),
    Status.REGISTER_MISMATCH: (409, "the journal's registers do not match: another writer has taken over"),
    Status.SUSPENDED: (409, "the journal is suspended and holds nothing to read; an append wakes it up"),
    Status.FRAGMENT_STORE_UNHEALTHY: (503, "the journal's store cannot be used: try again, and check the store"),
}
"""Every Status but OK has one."""

_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
}


def refusal_of(status: Status, detail: str = "") -> Refusal:
    """
    >>> refusal_of(Status.NO_JOURNAL_PRIMARY_BROKER).headers
    {'Retry-After': '1'}
    """
    code, advice = _REFUSALS[status]
    text = f"{status.name}: {advice}" + (f" ({detail})" if detail else "")
    return Refusal(code, text, dict(RETRY_AFTER) if code == 503 else {})


def failure_refusal(code: grpc.StatusCode, details: str) -> Refusal:
    """Of what ``protocol.rpc.failure`` makes of an error."""
    status = _CODES.get(code, 500)
    headers = dict(RETRY_AFTER) if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Refusal(status, details, headers)
