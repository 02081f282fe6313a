"""What can go wrong, and what to do about it.

A refusal is a value inside the broker and travels in-band as a Status; only a client turns it into a
``RefusedError``. A new exception class needs a caller that acts differently on it: detail belongs into
the message.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import ParamSpec

P = ParamSpec("P")


class Status(IntEnum):
    """How a broker answered; the numbers are those of the wire."""

    OK = 0
    JOURNAL_NOT_FOUND = 1
    NO_JOURNAL_PRIMARY_BROKER = 2
    NOT_JOURNAL_PRIMARY_BROKER = 3
    INSUFFICIENT_JOURNAL_BROKERS = 4
    NOT_JOURNAL_BROKER = 5
    OFFSET_NOT_YET_AVAILABLE = 6
    WRONG_ROUTE = 7
    PROPOSAL_MISMATCH = 8
    ETCD_TRANSACTION_FAILED = 9
    NOT_ALLOWED = 10
    WRONG_APPEND_OFFSET = 11
    INDEX_HAS_GREATER_OFFSET = 12
    REGISTER_MISMATCH = 13
    SUSPENDED = 14
    FRAGMENT_STORE_UNHEALTHY = 15


class Remedy(Enum):
    """What a caller does about a refusal."""

    RETRY = "try again after a pause: the cluster is changing"
    REROUTE = "ask again without a cached route"
    AMEND = "change the request: the same one will be refused again"
    YIELD = "stop: another writer has taken over"
    OPERATOR = "an operator has to act before this can succeed"


REMEDIES: dict[Status, Remedy] = {
    Status.JOURNAL_NOT_FOUND: Remedy.AMEND,
    Status.NO_JOURNAL_PRIMARY_BROKER: Remedy.RETRY,
    Status.NOT_JOURNAL_PRIMARY_BROKER: Remedy.REROUTE,
    Status.INSUFFICIENT_JOURNAL_BROKERS: Remedy.RETRY,
    Status.NOT_JOURNAL_BROKER: Remedy.REROUTE,
    Status.OFFSET_NOT_YET_AVAILABLE: Remedy.RETRY,
    Status.WRONG_ROUTE: Remedy.RETRY,
    Status.PROPOSAL_MISMATCH: Remedy.RETRY,
    Status.ETCD_TRANSACTION_FAILED: Remedy.AMEND,
    Status.NOT_ALLOWED: Remedy.AMEND,
    Status.WRONG_APPEND_OFFSET: Remedy.AMEND,
    Status.INDEX_HAS_GREATER_OFFSET: Remedy.OPERATOR,
    Status.REGISTER_MISMATCH: Remedy.YIELD,
    Status.SUSPENDED: Remedy.AMEND,
    Status.FRAGMENT_STORE_UNHEALTHY: Remedy.OPERATOR,
}
"""Every Status but OK has one."""


class GazetteError(Exception):
    """Root of every error a caller of this project is expected to handle."""


class ValidationError(GazetteError):
    """Input that breaks a rule, with the path of the offending field.

    The path grows from the inside out: the check that fails knows the field, each enclosing message adds
    its own name while the error passes through (see ``checked``).
    """

    def __init__(self, rule: str, *path: str) -> None:
        super().__init__(rule, *path)
        self.rule = rule
        self.path = path

    def within(self, field: str) -> ValidationError:
        """The same error, seen from the message that holds it in `field`."""
        return ValidationError(self.rule, field, *self.path)

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.rule}" if self.path else self.rule


def checked(field: str, check: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a check of the value held in `field`, so that what it raises names the field."""
    try:
        check(*args, **kwargs)
    except ValidationError as error:
        raise error.within(field) from None


class RefusedError(GazetteError):
    """A broker understood the request and declined it."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(status, detail)
        self.status = status
        self.remedy = REMEDIES[status]
        self.detail = detail

    def __str__(self) -> str:
        what = f"{self.status.name}: {self.detail}" if self.detail else self.status.name
        return f"{what} ({self.remedy.value})"


class UnauthenticatedError(GazetteError):
    """No token, or one that cannot be believed. A fresh token may help."""


class PermissionDeniedError(GazetteError):
    """A token that is believed, but does not grant what was asked."""


class PreconditionError(GazetteError):
    """What was asked does not fit how things are. The same request would fail again."""


class UnavailableError(GazetteError):
    """A broker, etcd or a store is out of reach. Retrying may help."""


class CorruptError(GazetteError):
    """Bytes that do not hold up against their checksum, length or framing."""


class InvariantError(AssertionError):
    """Our own bug. Never caught: a process that has broken an invariant must not go on."""
