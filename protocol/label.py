"""Label and LabelSet: the tags of journals and shards, and the algebra over them.

A set's labels are in strictly ascending order of (name, value), so every question is one bisection. One
name may have several values; the algebra moves a name's values together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.identifier import LABEL_NAME_BYTES, LABEL_VALUE_BYTES, check_path_symbols, check_token

CONTENT_TYPE = "content-type"
MESSAGE_TYPE = "app.gazette.dev/message-type"
MESSAGE_SUBTYPE = "app.gazette.dev/message-subtype"
TAG = "app.gazette.dev/tag"
MANAGED_BY = "app.gazette.dev/managed-by"
INSTANCE = "app.gazette.dev/instance"
REGION = "app.gazette.dev/region"

SINGLE_VALUED = (CONTENT_TYPE, INSTANCE, MANAGED_BY, MESSAGE_SUBTYPE, MESSAGE_TYPE, REGION)
"""Names that a JournalSpec or ShardSpec may give one value only."""

_PREFIX_SUFFIX = ":prefix"
_name_of = itemgetter(0)


class Label(NamedTuple):
    name: str
    value: str = ""
    # The value stands for all that begin with it. Only a selector's labels set this.
    prefix: bool = False

    @classmethod
    def named(cls, name: str, value: str = "") -> Label:
        """A label whose name may end in ``:prefix``, as it does in texts."""
        if name.endswith(_PREFIX_SUFFIX):
            return cls(name.removesuffix(_PREFIX_SUFFIX), value, prefix=True)
        return cls(name, value)

    def check(self) -> None:
        _check_label(self.name, self.value)


# The labels of a cluster's specs repeat. Valid ones are short, so the cache is small.
@lru_cache(maxsize=8192)
def _check_label(name: str, value: str) -> None:
    checked("Name", check_token, name, *LABEL_NAME_BYTES)
    checked("Value", check_path_symbols, value, *LABEL_VALUE_BYTES)


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels in strictly ascending order. The constructor trusts its argument; ``of`` sorts and dedups.

    >>> LabelSet.of(("tier", "gold"), ("region", "eu"), ("tier", "blue")).values_of("tier")
    ['blue', 'gold']
    """

    labels: tuple[Label, ...] = ()

    @classmethod
    def of(cls, *pairs: tuple[str, str]) -> LabelSet:
        return cls(tuple(sorted({Label(name, value) for name, value in pairs})))

    @classmethod
    def from_proto(cls, message: pb.LabelSet) -> LabelSet:
        return cls(tuple(Label(label.name, label.value, label.prefix) for label in message.labels))

    def to_proto(self) -> pb.LabelSet:
        return pb.LabelSet(labels=[pb.Label(name=n, value=v, prefix=p) for n, v, p in self.labels])

    def check(self) -> None:
        """Raise unless this is a valid set of a spec or of registers, which hold no prefix labels."""
        for at, label in enumerate(self.labels):
            if label.prefix:
                raise ValidationError("only a selector may hold a prefix label", f"Labels[{at}]")
        self.check_in_selector()

    def check_in_selector(self) -> None:
        """Raise unless every label is valid, they ascend, and an empty value stands alone under its name."""
        last = ("", "")
        for at, (name, value, _) in enumerate(self.labels):
            try:
                _check_label(name, value)
            except ValidationError as error:
                raise error.within(f"Labels[{at}]") from None
            this = (name, value)
            if this <= last:
                raise ValidationError(f"labels must ascend without duplicates: {this} follows {last}")
            if name == last[0] and not last[1]:
                raise ValidationError(f"label {name!r} has an empty value, so it can have no other")
            last = this

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def values_of(self, name: str) -> list[str]:
        at = bisect_left(self.labels, (name,))
        values = []
        while at < len(self.labels) and self.labels[at].name == name:
            values.append(self.labels[at].value)
            at += 1
        return values

    def value_of(self, name: str) -> str:
        """The first value of `name`, or an empty text: a missing label and an empty one read the same."""
        at = bisect_left(self.labels, (name,))
        return self.labels[at].value if at < len(self.labels) and self.labels[at].name == name else ""

    def add(self, name: str, value: str) -> LabelSet:
        """With one more value of `name`. A name ending in ``:prefix`` adds a prefix label."""
        return _inserted(self.labels, Label.named(name, value))

    def assign(self, name: str, value: str) -> LabelSet:
        """With `value` in place of every value of `name`."""
        label = Label.named(name, value)
        return _inserted(self.remove(label.name).labels, label)

    def remove(self, name: str) -> LabelSet:
        """Without any value of `name`."""
        return LabelSet(tuple(label for label in self.labels if label.name != name))

    def union(self, other: LabelSet) -> LabelSet:
        """Names of either; where both have one, our values and none of theirs."""
        ours = {label.name for label in self.labels}
        return _merged(self.labels, (label for label in other.labels if label.name not in ours))

    def intersect(self, other: LabelSet) -> LabelSet:
        """Names whose whole list of values is the same in both."""
        theirs = other._by_name()
        return _joined(group for name, group in self._by_name().items() if theirs.get(name) == group)

    def subtract(self, other: LabelSet) -> LabelSet:
        """Our names, but for those whose whole list of values is the same in both."""
        theirs = other._by_name()
        return _joined(group for name, group in self._by_name().items() if theirs.get(name) != group)

    def _by_name(self) -> dict[str, tuple[Label, ...]]:
        return {name: tuple(group) for name, group in groupby(self.labels, key=_name_of)}


def _inserted(labels: tuple[Label, ...], label: Label) -> LabelSet:
    at = bisect_left(labels, label)
    if at < len(labels) and labels[at] == label:
        return LabelSet(labels)
    return LabelSet((*labels[:at], label, *labels[at:]))


def _merged(left: Iterable[Label], right: Iterable[Label]) -> LabelSet:
    return LabelSet(tuple(sorted([*left, *right])))


def _joined(groups: Iterable[tuple[Label, ...]]) -> LabelSet:
    return LabelSet(tuple(label for group in groups for label in group))
