"""PeerMethod: a method of other brokers as this one calls it, and what is counted of its calls.

Messages are bytes, and are counted where gRPC would have them serialised: an interceptor would put a call of its own
between us and each of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from protocol.rpc.method import Kind
from protocol.rpc.metrics import CLIENT, MethodMetrics

SERVICE = "protocol.Journal"

Result = TypeVar("Result")
CallT = TypeVar("CallT", bound="grpc.aio.Call")


class PeerMethod:
    def __init__(self, name: str, kind: Kind) -> None:
        self.path = f"/{SERVICE}/{name}"
        self._metrics = MethodMetrics(SERVICE, name, kind, CLIENT)

    def sent(self, message: bytes) -> bytes:
        self._metrics.sent.inc()
        return message

    def received(self, message: bytes) -> bytes:
        self._metrics.received.inc()
        return message

    def counted(self, call: CallT) -> CallT:
        """`call`, which has just begun, counted now and when it ends."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        self._metrics.started.inc()
        call.add_done_callback(lambda ended: self._metrics.ended(_at_once(ended.code()), clock() - began_s))
        return call


def _at_once(told: Coroutine[Any, Any, Result]) -> Result:
    """What is known by now. gRPC has a coroutine for it, for those who ask before."""
    try:
        told.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    told.close()
    raise AssertionError("a call that is done has a code")
