"""JournalSpec: what an operator asks of a journal.

A spec may be partial, as the nodes of a tree of specs are: there a field at its zero value is not set.
``union``, ``intersect`` and ``subtract`` build and flatten such trees (see ``protocol.spec_algebra``). Labels
go by name, and a spec's own name stays what it is. `suspend` belongs to the brokers and to one journal alone:
nothing of it is ever inherited or shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter

from protocol import duration, spec_algebra
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet


class Flag(IntEnum):
    """Exactly one of them, never a mask."""

    NOT_SPECIFIED = 0
    O_RDONLY = 1
    O_WRONLY = 2
    O_RDWR = 4


class SuspendLevel(IntEnum):
    NONE = 0
    PARTIAL = 1
    FULL = 2


class SuspendMode(IntEnum):
    """What an append does about a suspended journal, or does to one that is not; the numbers are those of the wire."""

    RESUME = 0
    NO_RESUME = 1
    IF_FLUSHED = 2
    NOW = 3
    KEEP = 4


_READABLE = frozenset((Flag.NOT_SPECIFIED, Flag.O_RDONLY, Flag.O_RDWR))
_WRITABLE = frozenset((Flag.NOT_SPECIFIED, Flag.O_WRONLY, Flag.O_RDWR))
_CODECS = {codec.value: codec for codec in CompressionCodec}

_NO_LABELS = LabelSet()

# A hundred thousand journals have a handful of policies, and of label sets unless each has labels of its own.
# So these parts of specs are kept and shared, but for long ones: they come from outside, and keeping them
# would be a way to fill our memory.
_SHARED_MAX = 1024
_SHARED_BYTES_MAX = 2048


@dataclass(frozen=True, slots=True)
class FragmentPolicy:
    """How a journal's content is cut into fragments and kept: the ``JournalSpec.Fragment`` of the wire."""

    # Uncompressed bytes at which a fragment is closed.
    length: int = 0
    compression_codec: CompressionCodec = CompressionCodec.INVALID
    # New fragments go to the first; history is the union of all; none means nothing is persisted.
    stores: tuple[str, ...] = ()
    refresh_interval_ns: int = 0
    # Zero or less keeps fragments forever.
    retention_ns: int = 0
    # Zero never closes a fragment for its age.
    flush_interval_ns: int = 0
    path_postfix_template: str = ""

    @classmethod
    def from_proto(cls, message: pb.JournalSpec.Fragment) -> FragmentPolicy:
        encoded = message.SerializeToString()
        return _shared_policy(encoded) if len(encoded) <= _SHARED_BYTES_MAX else _policy(message)

    def to_proto(self) -> pb.JournalSpec.Fragment:
        return pb.JournalSpec.Fragment(
            length=self.length,
            compression_codec=pb.CompressionCodec.ValueType(self.compression_codec),
            stores=self.stores,
            refresh_interval=duration.to_proto(self.refresh_interval_ns),
            retention=duration.to_proto(self.retention_ns),
            flush_interval=duration.to_proto(self.flush_interval_ns),
            path_postfix_template=self.path_postfix_template,
        )

    def union(self, other: FragmentPolicy) -> FragmentPolicy:
        """Without stores of our own we take theirs. Who means to have none sets them afterwards."""
        return FragmentPolicy(*spec_algebra.union(_policy_fields(self), _policy_fields(other)))

    def intersect(self, other: FragmentPolicy) -> FragmentPolicy:
        if self is other:
            return self
        return FragmentPolicy(*spec_algebra.intersect(_policy_fields(self), _policy_fields(other), _NO_POLICY))

    def subtract(self, other: FragmentPolicy) -> FragmentPolicy:
        return FragmentPolicy(*spec_algebra.subtract(_policy_fields(self), _policy_fields(other), _NO_POLICY))


_policy_fields = attrgetter(*FragmentPolicy.__match_args__)
_NO_POLICY = _policy_fields(FragmentPolicy())


def _policy(message: pb.JournalSpec.Fragment) -> FragmentPolicy:
    codec = _CODECS.get(message.compression_codec)
    if codec is None:
        raise ValidationError(f"no codec has the number {message.compression_codec}", "Fragment", "CompressionCodec")
    return FragmentPolicy(
        message.length,
        codec,
        tuple(message.stores),
        duration.from_proto(message.refresh_interval),
        duration.from_proto(message.retention),
        duration.from_proto(message.flush_interval),
        message.path_postfix_template,
    )


@lru_cache(maxsize=_SHARED_MAX)
def _shared_policy(encoded: bytes) -> FragmentPolicy:
    return _policy(pb.JournalSpec.Fragment.FromString(encoded))


def _labels(message: pb.LabelSet) -> LabelSet:
    encoded = message.SerializeToString()
    return _shared_labels(encoded) if len(encoded) <= _SHARED_BYTES_MAX else LabelSet.from_proto(message)


@lru_cache(maxsize=_SHARED_MAX)
def _shared_labels(encoded: bytes) -> LabelSet:
    return LabelSet.from_proto(pb.LabelSet.FromString(encoded))


@dataclass(frozen=True, slots=True)
class Suspend:
    """That a journal has been idle, and where it resumes. After it has resumed, the offset stays."""

    # A SuspendLevel. A number that is none of them is kept: to refuse it is up to validation.
    level: int = SuspendLevel.NONE
    # Appends resume at this offset or above it.
    offset: int = 0

    @classmethod
    def from_proto(cls, message: pb.JournalSpec.Suspend) -> Suspend:
        return cls(message.level, message.offset)

    def to_proto(self) -> pb.JournalSpec.Suspend:
        return pb.JournalSpec.Suspend(level=pb.JournalSpec.Suspend.Level.ValueType(self.level), offset=self.offset)


@dataclass(frozen=True, slots=True)
class JournalSpec:
    """
    >>> spec = JournalSpec("acme/orders", replication=3, suspend=Suspend(SuspendLevel.PARTIAL, offset=4096))
    >>> spec.desired_replication(max_replication=9)
    1
    """

    name: str = ""
    replication: int = 0
    labels: LabelSet = _NO_LABELS
    fragment: FragmentPolicy = FragmentPolicy()
    # A Flag. A number that is none of them is kept, and permits nothing: to refuse it is up to validation.
    flags: int = Flag.NOT_SPECIFIED
    # Bytes a second; zero is unlimited.
    max_append_rate: int = 0
    suspend: Suspend | None = None

    @classmethod
    def from_proto(cls, message: pb.JournalSpec) -> JournalSpec:
        return cls(
            message.name,
            message.replication,
            _labels(message.labels),
            FragmentPolicy.from_proto(message.fragment),
            message.flags,
            message.max_append_rate,
            Suspend.from_proto(message.suspend) if message.HasField("suspend") else None,
        )

    def to_proto(self) -> pb.JournalSpec:
        """A message in which all that Go always writes is present, so that both write the same bytes."""
        return pb.JournalSpec(
            name=self.name,
            replication=self.replication,
            labels=self.labels.to_proto(),
            fragment=self.fragment.to_proto(),
            flags=self.flags,
            max_append_rate=self.max_append_rate,
            suspend=None if self.suspend is None else self.suspend.to_proto(),
        )

    @property
    def may_read(self) -> bool:
        return self.flags in _READABLE

    @property
    def may_write(self) -> bool:
        return self.flags in _WRITABLE

    def desired_replication(self, max_replication: int) -> int:
        """How many brokers are to hold the journal: as asked, unless suspended or above the cluster's cap."""
        wanted = self.replication
        if self.suspend is not None:
            if self.suspend.level == SuspendLevel.FULL:
                return 0
            if self.suspend.level == SuspendLevel.PARTIAL:
                wanted = 1
        return min(wanted, max_replication)

    def union(self, other: JournalSpec) -> JournalSpec:
        """Our fields, and theirs where ours are not set."""
        labels = self.labels.union(other.labels) if other.labels else self.labels
        fragment = self.fragment.union(other.fragment)
        replication, flags, rate = spec_algebra.union(_numbers(self), _numbers(other))
        return JournalSpec(self.name, replication, labels, fragment, flags, rate, self.suspend)

    def intersect(self, other: JournalSpec) -> JournalSpec:
        """The fields that are the same in both."""
        labels = self.labels.intersect(other.labels)
        fragment = self.fragment.intersect(other.fragment)
        replication, flags, rate = spec_algebra.intersect(_numbers(self), _numbers(other), _NO_NUMBERS)
        return JournalSpec(self.name, replication, labels, fragment, flags, rate)

    def subtract(self, other: JournalSpec) -> JournalSpec:
        """Our fields, but for those that are the same in both."""
        labels = self.labels.subtract(other.labels)
        fragment = self.fragment.subtract(other.fragment)
        replication, flags, rate = spec_algebra.subtract(_numbers(self), _numbers(other), _NO_NUMBERS)
        return JournalSpec(self.name, replication, labels, fragment, flags, rate, self.suspend)


_numbers = attrgetter("replication", "flags", "max_append_rate")
_NO_NUMBERS = _numbers(JournalSpec())
