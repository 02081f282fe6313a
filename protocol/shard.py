"""ShardSpec: what an operator asks of a shard of a consumer application; and how its replicas fare.

As with journals, a spec may be partial, and then a field at its zero value is not set: see
``protocol.journal`` and ``protocol.spec_algebra``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter

from protocol import duration, spec_algebra
from protocol.errors import ValidationError
from protocol.gen import shard_pb2 as pb
from protocol.label import LabelSet

_NO_LABELS = LabelSet()


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A journal the shard reads (``ShardSpec.Source`` on the wire)."""

    journal: str = ""
    # The shard has no use for what is below it, whatever its checkpoint says.
    min_offset: int = 0


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """
    >>> spec = ShardSpec("shard-000", recovery_log_prefix="logs", hint_prefix="/hints", hint_backups=1)
    >>> spec.recovery_log, spec.hint_primary_key, spec.hint_backup_keys
    ('logs/shard-000', '/hints/shard-000.primary', ['/hints/shard-000.backup.0'])
    """

    id: str = ""
    # Strictly ascending on journal.
    sources: tuple[ShardSource, ...] = ()
    # Empty for a shard that keeps its state elsewhere.
    recovery_log_prefix: str = ""
    hint_prefix: str = ""
    hint_backups: int = 0
    max_txn_duration_ns: int = 0
    min_txn_duration_ns: int = 0
    disable: bool = False
    hot_standbys: int = 0
    labels: LabelSet = _NO_LABELS
    disable_wait_for_ack: bool = False
    # Zero leaves the size of either to the consumer.
    ring_buffer_size: int = 0
    read_channel_size: int = 0

    @classmethod
    def from_proto(cls, message: pb.ShardSpec) -> ShardSpec:
        return cls(
            id=message.id,
            sources=tuple(ShardSource(source.journal, source.min_offset) for source in message.sources),
            recovery_log_prefix=message.recovery_log_prefix,
            hint_prefix=message.hint_prefix,
            hint_backups=message.hint_backups,
            max_txn_duration_ns=duration.from_proto(message.max_txn_duration),
            min_txn_duration_ns=duration.from_proto(message.min_txn_duration),
            disable=message.disable,
            hot_standbys=message.hot_standbys,
            labels=LabelSet.from_proto(message.labels),
            disable_wait_for_ack=message.disable_wait_for_ack,
            ring_buffer_size=message.ring_buffer_size,
            read_channel_size=message.read_channel_size,
        )

    def to_proto(self) -> pb.ShardSpec:
        """A message in which all that Go always writes is present, so that both write the same bytes."""
        return pb.ShardSpec(
            id=self.id,
            sources=[pb.ShardSpec.Source(journal=s.journal, min_offset=s.min_offset) for s in self.sources],
            recovery_log_prefix=self.recovery_log_prefix,
            hint_prefix=self.hint_prefix,
            hint_backups=self.hint_backups,
            max_txn_duration=duration.to_proto(self.max_txn_duration_ns),
            min_txn_duration=duration.to_proto(self.min_txn_duration_ns),
            disable=self.disable,
            hot_standbys=self.hot_standbys,
            labels=self.labels.to_proto(),
            disable_wait_for_ack=self.disable_wait_for_ack,
            ring_buffer_size=self.ring_buffer_size,
            read_channel_size=self.read_channel_size,
        )

    @property
    def recovery_log(self) -> str:
        """The journal that holds the shard's recovery log; empty if there is none."""
        return f"{self.recovery_log_prefix}/{self.id}" if self.recovery_log_prefix else ""

    @property
    def hint_primary_key(self) -> str:
        """The etcd key of the hints that the primary has recorded last."""
        return f"{self.hint_prefix}/{self.id}.primary"

    @property
    def hint_backup_keys(self) -> list[str]:
        """The etcd keys of hints that a later recovery has proven, newest first."""
        return [f"{self.hint_prefix}/{self.id}.backup.{at}" for at in range(self.hint_backups)]

    def desired_replication(self, max_hot_standbys: int) -> int:
        """How many consumers are to hold the shard: a primary and its standbys, or none if it is disabled."""
        return 0 if self.disable else 1 + min(self.hot_standbys, max_hot_standbys)

    def union(self, other: ShardSpec) -> ShardSpec:
        """Our fields, and theirs where ours are not set: of two flags, the one that is true."""
        return self._with(spec_algebra.union(_fields(self), _fields(other)), self.labels.union(other.labels))

    def intersect(self, other: ShardSpec) -> ShardSpec:
        """The fields that are the same in both."""
        fields = spec_algebra.intersect(_fields(self), _fields(other), _NO_FIELDS)
        return self._with(fields, self.labels.intersect(other.labels))

    def subtract(self, other: ShardSpec) -> ShardSpec:
        """Our fields, but for those that are the same in both."""
        fields = spec_algebra.subtract(_fields(self), _fields(other), _NO_FIELDS)
        return self._with(fields, self.labels.subtract(other.labels))

    def _with(self, fields: spec_algebra.Fields, labels: LabelSet) -> ShardSpec:
        return ShardSpec(**dict(zip(_FIELDS, fields, strict=True)), id=self.id, labels=labels)


_FIELDS = tuple(name for name in ShardSpec.__match_args__ if name not in ("id", "labels"))
_fields = attrgetter(*_FIELDS)
_NO_FIELDS = _fields(ShardSpec())


class ReplicaCode(IntEnum):
    """How far a replica of a shard has come. The order is that of progress; failure comes last and stays."""

    IDLE = 0
    BACKFILL = 100
    STANDBY = 200
    PRIMARY = 300
    FAILED = 400


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    code: ReplicaCode = ReplicaCode.IDLE
    errors: tuple[str, ...] = ()

    @classmethod
    def from_proto(cls, message: pb.ReplicaStatus) -> ReplicaStatus:
        code = _CODES.get(message.code)
        if code is None:
            raise ValidationError(f"no replica status has the number {message.code}", "Code")
        return cls(code, tuple(message.errors))

    def to_proto(self) -> pb.ReplicaStatus:
        return pb.ReplicaStatus(code=pb.ReplicaStatus.Code.ValueType(self.code.value), errors=self.errors)

    def reduce(self, update: ReplicaStatus) -> ReplicaStatus:
        """This status after `update`: a status never goes down, and no error is forgotten."""
        return ReplicaStatus(max(self.code, update.code), self.errors + update.errors)


_CODES = {code.value: code for code in ReplicaCode}
