"""What files of journals and files of shards have in common: labels, durations, and lines to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from google.protobuf.message import Message

from protocol import duration
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.label import Label, LabelSet
from protocol.strict_yaml import Record
from protocol.validation import validate
from protocol.yaml_text import Value

_LABEL_KEYS = ("name", "value", "prefix")


def read_labels(spec: Record) -> LabelSet:
    """The labels in the order given, be it right or wrong: to refuse a wrong one is up to validation."""
    return LabelSet(
        tuple(
            Label(label.text("name"), label.text("value"), label.boolean("prefix") or False)
            for label in spec.records("labels", _LABEL_KEYS)
        )
    )


def written_labels(labels: LabelSet) -> list[Value]:
    return [
        {"name": name, "value": value, "prefix": True} if prefix else {"name": name, "value": value}
        for name, value, prefix in labels
    ]


def written_duration(nanoseconds: int) -> str:
    """Nothing for zero, which is a duration that is not set."""
    return duration.to_text(nanoseconds) if nanoseconds else ""


@dataclass(frozen=True)  # Without slots, which leave no room for cached properties.
class HeldLabels:
    """The labels of a parent, judged once for all of its children.

    Labels in the wrong order stay so and reach validation, which says what is wrong. The algebra of labels
    would put them in order, and then ours would accept a file that Gazette's tools refuse.
    """

    labels: LabelSet

    @cached_property
    def message(self) -> pb.LabelSet:
        return self.labels.to_proto()

    @cached_property
    def ascend(self) -> bool:
        return all(left[:2] < right[:2] for left, right in pairwise(self.labels))

    def given_to(self, own: LabelSet) -> HeldLabels:
        """A child's labels, with those of ours whose names it has not."""
        if not own:
            return self
        held = HeldLabels(own)
        if not held.ascend or not self.labels:
            return held
        return HeldLabels(own.union(self.labels)) if self.ascend else self


def validate_changes(request: Message, lines: Sequence[int]) -> None:
    """Validate an ApplyRequest. The lines are those of its changes in the file, for errors to name."""
    try:
        validate(request)
    except ValidationError as error:
        for at, line in enumerate(lines):
            if f"Changes[{at}]" in error.path[:2]:
                raise ValidationError(f"{error.rule} (line {line})", *error.path) from None
        raise
