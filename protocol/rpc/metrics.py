"""Counters of calls, by the names that go-grpc-prometheus has made common: of those served, and of those made.

Labels are made when a method is registered: what a client sends, such as the name of an unknown method, makes none.
"""

from __future__ import annotations

import grpc
from prometheus_client import Counter, Histogram

from protocol.rpc.method import Kind

_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_OTHER_SPELLINGS = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


def code_name(code: grpc.StatusCode) -> str:
    """As Go spells it, such as `InvalidArgument`."""
    return _OTHER_SPELLINGS.get(code) or code.name.title().replace("_", "")


class Side:
    """All methods of the server's side, or of the client's."""

    def __init__(self, name: str) -> None:
        self.started = Counter(f"grpc_{name}_started_total", "Calls that were begun.", _LABELS)
        self.handled = Counter(
            f"grpc_{name}_handled_total", "Calls that have ended, by status.", (*_LABELS, "grpc_code")
        )
        self.received = Counter(f"grpc_{name}_msg_received_total", "Messages received.", _LABELS)
        self.sent = Counter(f"grpc_{name}_msg_sent_total", "Messages sent.", _LABELS)
        self.seconds = Histogram(f"grpc_{name}_handling_seconds", "How long calls took.", _LABELS)


SERVER, CLIENT = Side("server"), Side("client")


class MethodMetrics:
    """The counters of one method."""

    __slots__ = ("_handled", "_labels", "_side", "received", "seconds", "sent", "started")

    def __init__(self, service: str, method: str, kind: Kind, side: Side = SERVER) -> None:
        self._side = side
        self._labels = (kind.value, service, method)
        self.started = side.started.labels(*self._labels)
        self.received = side.received.labels(*self._labels)
        self.sent = side.sent.labels(*self._labels)
        self.seconds = side.seconds.labels(*self._labels)
        self._handled: dict[grpc.StatusCode, Counter] = {}

    def ended(self, code: grpc.StatusCode, seconds: float) -> None:
        if (counter := self._handled.get(code)) is None:
            counter = self._handled[code] = self._side.handled.labels(*self._labels, code_name(code))
        counter.inc()
        self.seconds.observe(seconds)
