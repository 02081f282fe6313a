"""The Journal service: its RPCs, each handed to its own ``*_api`` on the terms that a client is owed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.append_api import append
from broker.journal_broker import JournalBroker
from broker.metrics import BrokerCollector
from broker.replicate_api import replicate
from protocol.auth import Capability
from protocol.rpc.method import AtExpiry, Call, RpcMethod, Rules, stream_stream, stream_unary

SERVICE = "protocol.Journal"

_APPENDS = Rules(Capability.APPEND)
# A stream between brokers outlives the token it began with.
_REPLICATES = Rules(Capability.REPLICATE, AtExpiry.GO_ON)


class JournalService:
    """Made before there is a broker to serve: a process has to know its port before it can be a member."""

    def __init__(self) -> None:
        self._broker: JournalBroker | None = None

    def begin(self, broker: JournalBroker) -> None:
        self._broker = broker

    @property
    def broker(self) -> JournalBroker:
        assert self._broker is not None
        return self._broker

    def collector(self) -> BrokerCollector:
        return BrokerCollector(
            lambda: self._broker.heads() if self._broker else (),
            lambda: self._broker.persister.oldest_s if self._broker else 0.0,
            lambda: self._broker.replica_counts() if self._broker else (0, 0),
        )

    def methods(self) -> Sequence[RpcMethod[Any, Any]]:
        return (
            stream_unary("Append", _as_it_is, _as_it_is, self._append, _APPENDS),
            stream_stream("Replicate", _as_it_is, _as_it_is, self._replicate, _REPLICATES),
        )

    async def _append(self, call: Call[bytes, bytes]) -> bytes:
        return await append(self.broker, call)

    async def _replicate(self, call: Call[bytes, bytes]) -> None:
        await replicate(self.broker.resolver, call, self.broker.now_ns)


def _as_it_is(message: bytes) -> bytes:
    return message
