"""CountedCall: a call of one of a broker's RPCs, counted when it begins and again when it ends, however it ends."""

from __future__ import annotations

import asyncio
from functools import cache
from types import TracebackType
from typing import Self

from prometheus_client import Counter

from broker.metrics import COMPLETED, STARTED
from protocol.errors import Status

# As Gazette has them. Of all others the label is the name of the status.
OK, FAILED = "ok", "<error>"


class CountedCall:
    """Counts its body. What that raises is a failure; else it ended with `status`, which the body may set."""

    __slots__ = ("_is_open_ended", "_operation", "status")

    def __init__(self, operation: str, *, is_open_ended: bool = False) -> None:
        """`is_open_ended`: it may go on until its client has had enough, so that to be cancelled is no failure."""
        self._operation = operation
        self._is_open_ended = is_open_ended
        self.status: int = Status.OK

    def __enter__(self) -> Self:
        _started(self._operation).inc()
        return self

    def __exit__(
        self, raised: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        is_left = self._is_open_ended and raised is asyncio.CancelledError
        _completed(self._operation, _label(self.status) if raised is None or is_left else FAILED).inc()


def _label(status: int) -> str:
    if status == Status.OK:
        return OK
    try:
        return Status(status).name
    except ValueError:
        # Of a primary that knows more of them than this broker.
        return FAILED


@cache
def _started(operation: str) -> Counter:
    return STARTED.labels(operation)


@cache
def _completed(operation: str, label: str) -> Counter:
    return COMPLETED.labels(operation, label)
