"""Valid messages with one field broken, made for a message type and lifted into every type that holds it.

A rule is written down once, where it belongs: what breaks a Route breaks each header, and each response with
a header. Which leaf fields there are is read off the descriptors, so a field of a new release is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from hypothesis import strategies as st

from protocol.errors import ValidationError
from protocol.gen import epoch_pb2, recorded_op_pb2, shard_pb2
from protocol.gen import journal_pb2 as pb
from protocol.validation import validate
from tests.support.golden import cases
from tests.support.message_types import message_class

Bad = st.SearchStrategy[Any]

_ORIGINALS = 4
_ROUTE = pb.Route(
    members=[pb.ProcessSpec.ID(zone="a", suffix="one-1"), pb.ProcessSpec.ID(zone="b", suffix="one-1")],
    primary=1,
    endpoints=["http://one", "http://two"],
)
_SEGMENT = recorded_op_pb2.Segment(author=1, first_seq_no=1, last_seq_no=2, log="acme/log")
_SHARD_SPEC = shard_pb2.ShardSpec(id="shard-1", max_txn_duration=Duration(seconds=1))
_IDLE = shard_pb2.ReplicaStatus()
_FAILED = shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.FAILED, errors=["oh"])
# Of types that no vector is of, and where no vector holds what a rule is about.
_OURS: list[Message] = [
    Duration(seconds=61),
    epoch_pb2.Epoch(create_revision=1, number=2, begin=3),
    epoch_pb2.Copy(spool_id=bytes(16), create_revision=1, number=2, end=3),
    recorded_op_pb2.FnodeSegments(fnode=1, segments=[_SEGMENT]),
    shard_pb2.ListResponse.Shard(spec=_SHARD_SPEC, mod_revision=1, route=_ROUTE, status=[_IDLE, _IDLE]),
    shard_pb2.ListResponse.Shard(spec=_SHARD_SPEC, mod_revision=1, route=_ROUTE, status=[_FAILED, _IDLE]),
    shard_pb2.UnassignResponse(),
]
# Where Gazette's errors call a field otherwise. Nothing is said of what it embeds.
_NAMES = {
    "protocol.BrokerSpec.process_spec": "",
    "consumer.ConsumerSpec.process_spec": "",
    "consumer.ShardSpec.labels": "LabelSet",
    "consumer.GetHintsResponse.primary_hints": "",
    "consumer.GetHintsResponse.backup_hints": "",
    "consumer.GetHintsResponse.ResponseHints.hints": "",
    "recoverylog.FSMHints.live_nodes": "",
    "recoverylog.FnodeSegments.segments": "Segment",
    "protocol.FragmentsRequest.signatureTTL": "SignatureTTL",
}


@dataclass(frozen=True, eq=False)
class Corruption:
    """One field of a message, and what its rule refuses."""

    kind: str
    field: str
    """A dotted path of field names; a number is the index of an element."""
    bad: Bad
    """Values for the field, or functions that break the message in another way."""
    path: str
    """Where the error must be."""
    applies: Callable[[Any], bool] = lambda _: True

    def __str__(self) -> str:
        return f"{self.kind}.{self.field}"

    @property
    def leaf(self) -> str:
        return ".".join(part for part in self.field.split(".") if not part.isdigit())

    def candidates(self) -> list[Message]:
        """Valid messages that it can be done to."""
        return [message for message in valid(self.kind) if self.applies(message)]

    def corrupt(self, message: Message, value: Any) -> None:
        if callable(value):
            value(message)
            return
        *parents, last = self.field.split(".")
        holder: Any = message
        for parent in parents:
            holder = holder[int(parent)] if parent.isdigit() else getattr(holder, parent)
        if last.isdigit():
            holder[int(last)] = value
        elif isinstance(value, Message):
            getattr(holder, last).CopyFrom(value)
        else:
            setattr(holder, last, value)


@dataclass(frozen=True, eq=False)
class Held:
    """The corruption of a message that another one holds; of a list, that of its first element."""

    kind: str
    field: FieldDescriptor
    part: Corruption | Held

    def __str__(self) -> str:
        return f"{self.kind}.{self.field.name}>{str(self.part).removeprefix(self.part.kind + '.')}"

    @property
    def leaf(self) -> str:
        return f"{self.field.name}.{self.part.leaf}"

    @property
    def bad(self) -> Bad:
        return self.part.bad

    @property
    def path(self) -> str:
        index = "[0]" if self.field.is_repeated else ""
        named = _NAMES.get(self.field.full_name, self.field.name.title().replace("_", "") + index)
        return ".".join(part for part in (named, self.part.path) if part)

    def applies(self, message: Any) -> bool:
        held = getattr(message, self.field.name)
        if self.field.is_repeated:
            return bool(held) and self.part.applies(held[0])
        return message.HasField(self.field.name) and self.part.applies(held)

    def candidates(self) -> list[Message]:
        """Vectors that hold such a part, or else vectors into which one fits."""
        found = [message for message in valid(self.kind) if self.applies(message)]
        return found[:_ORIGINALS] or list(islice(self._fitted(), _ORIGINALS))

    def _fitted(self) -> Iterator[Message]:
        for part in originals(self.part):
            for vector in valid(self.kind):
                message = copy_of(vector)
                held = getattr(message, self.field.name)
                if self.field.is_repeated:
                    del held[:]
                    held.add().CopyFrom(part)
                else:
                    held.CopyFrom(part)
                if is_valid(message):
                    yield message

    def corrupt(self, message: Message, value: Any) -> None:
        held = getattr(message, self.field.name)
        self.part.corrupt(held[0] if self.field.is_repeated else held, value)


@cache
def originals(corruption: Corruption | Held) -> list[Message]:
    return corruption.candidates()


def copy_of(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def is_valid(message: Message) -> bool:
    try:
        validate(message)
    except ValidationError:
        return False
    return True


@cache
def valid(kind: str) -> list[Message]:
    """Every valid vector of a type, and some of ours."""
    kinds = (case for case in cases("validation") if case["type"] == kind and case["ok"])
    vectors = [message_class(kind).FromString(bytes.fromhex(case["hex"])) for case in kinds]
    return vectors + [message for message in _OURS if message.DESCRIPTOR.full_name == kind]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def leaves(descriptor: Descriptor) -> Iterator[str]:
    """Dotted paths of the fields that hold values. The keys and the values of a map are two of them."""
    for field in descriptor.fields:
        if field.message_type is None:
            yield field.name
        else:
            yield from (f"{field.name}.{leaf}" for leaf in leaves(field.message_type))


def lifted(
    descriptor: Descriptor, own: Iterable[Corruption], free: Iterable[Corruption], replaced: frozenset[str]
) -> Iterator[Corruption | Held]:
    """The corruptions of a type: its own, and those of what it holds.

    The latter not where a field is free in this type, or where its rule is replaced by one of this type's own.
    """
    kind = descriptor.full_name
    yield from (corruption for corruption in own if corruption.kind == kind)
    unjudged = {corruption.leaf for corruption in free if corruption.kind == kind}
    for field in descriptor.fields:
        if field.message_type is None or is_map(field) or field.name in unjudged:
            continue
        for part in lifted(field.message_type, own, free, replaced):
            held = Held(kind, field, part)
            if held.leaf not in unjudged and f"{kind}.{held.leaf}" not in replaced:
                yield held


def free_leaves(descriptor: Descriptor, free: Iterable[Corruption]) -> Iterator[str]:
    """The leaves of a type that no rule of it looks at, nor any of what it holds."""
    unjudged = {corruption.leaf for corruption in free if corruption.kind == descriptor.full_name}
    for leaf in leaves(descriptor):
        if any(f"{leaf}.".startswith(f"{path}.") for path in unjudged):
            yield leaf
    for field in descriptor.fields:
        if field.message_type is not None and field.name not in unjudged:
            yield from (f"{field.name}.{leaf}" for leaf in free_leaves(field.message_type, free))
