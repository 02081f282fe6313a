"""Counters of served calls, by the names that go-grpc-prometheus has made common.

Labels are made when a method is registered: what a client sends, such as the name of an unknown method, makes none.
"""

from __future__ import annotations

import grpc
from prometheus_client import Counter, Histogram

from protocol.rpc.method import Kind

_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_STARTED = Counter("grpc_server_started_total", "Calls that were begun.", _LABELS)
_HANDLED = Counter("grpc_server_handled_total", "Calls that have ended, by status.", (*_LABELS, "grpc_code"))
_RECEIVED = Counter("grpc_server_msg_received_total", "Messages received.", _LABELS)
_SENT = Counter("grpc_server_msg_sent_total", "Messages sent.", _LABELS)
_SECONDS = Histogram("grpc_server_handling_seconds", "How long calls took.", _LABELS)

_OTHER_SPELLINGS = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def code_name(code: grpc.StatusCode) -> str:
    """As Go spells it, such as `InvalidArgument`."""
    return _OTHER_SPELLINGS.get(code) or code.name.title().replace("_", "")


class MethodMetrics:
    """The counters of one method."""

    __slots__ = ("_handled", "_labels", "received", "seconds", "sent", "started")

    def __init__(self, service: str, method: str, kind: Kind) -> None:
        self._labels = (kind.value, service, method)
        self.started = _STARTED.labels(*self._labels)
        self.received = _RECEIVED.labels(*self._labels)
        self.sent = _SENT.labels(*self._labels)
        self.seconds = _SECONDS.labels(*self._labels)
        self._handled: dict[grpc.StatusCode, Counter] = {}

    def ended(self, code: grpc.StatusCode, seconds: float) -> None:
        if (counter := self._handled.get(code)) is None:
            counter = self._handled[code] = _HANDLED.labels(*self._labels, code_name(code))
        counter.inc()
        self.seconds.observe(seconds)
