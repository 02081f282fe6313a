"""BrokerMember: a broker as the others see it in etcd: where it is, how much it takes, whether it is about to go."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId
from protocol.validation import validate

KIN = 1 << 2
"""The capability of a broker of our own kind: it takes our keep-alive pings, says through where bytes are acknowledged,
and wants to be told. Bit 1 is for batched appends."""

EPOCHS = 1 << 0
"""The capability of a broker that keeps epochs: what it has acknowledged outlives its process."""


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """The ``BrokerSpec`` of the wire.

    To leave, a broker puts the same with `exiting` set, and its limit as it was: one of zero would have the leader take
    everything away at once, be there somebody to take it or not.
    """

    id: ProcessId
    endpoint: str
    # How many journals it takes, be it as primary or not.
    limit: int
    exiting: bool = False
    # Those of Gazette have none of these.
    capabilities: int = 0
    spool_id: bytes = b""
    http_endpoint: str = ""

    @classmethod
    def decoded(cls, zone: str, suffix: str, raw: bytes) -> BrokerMember:
        """The broker `suffix` of `zone` as it is in etcd. Raises unless its spec is valid, and that broker's."""
        message = pb.BrokerSpec.FromString(raw)
        validate(message)
        named = ProcessId.from_proto(message.process_spec.id)
        if named != (zone, suffix):
            raise ValidationError("the spec names another broker than its key", "BrokerSpec", "Id")
        return cls(
            named,
            message.process_spec.endpoint,
            message.journal_limit,
            message.exiting,
            message.capabilities,
            message.spool_id,
            message.http_endpoint,
        )

    def encoded(self) -> bytes:
        message = pb.BrokerSpec(
            process_spec=pb.ProcessSpec(id=self.id.to_proto(), endpoint=self.endpoint),
            journal_limit=self.limit,
            exiting=self.exiting,
            capabilities=self.capabilities,
            spool_id=self.spool_id,
            http_endpoint=self.http_endpoint,
        )
        return message.SerializeToString(deterministic=True)
