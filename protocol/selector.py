"""LabelSelector: which label sets are meant; its text form, parsed and printed; and fast matching.

A selector includes and excludes. It matches a set when no excluded label matches and every included *name*
does; several values of one name are alternatives. An empty value matches any, a prefix label matches
every value that begins with its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from protocol.alphabet import PATH, TOKEN
from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.label import Label, LabelSet

Matcher = Callable[[str, LabelSet], bool]
"""Takes the value of the meta-label (a journal's name, a shard's id) and the labels of its spec."""

# Each piece consumes through its comma. `\Z`, because `$` would also match before a final newline.
_TOKEN = rf" ?((?:{TOKEN}){{2,}}(?::prefix)?)"
_PATH = rf" ?((?:{PATH})*)"
_SET = r" ?\(([^)]+)\)"
_END = r" ?(?:,|\Z)"

_EQUAL = re.compile(rf"{_TOKEN} ?=?={_PATH}{_END}")
_NOT_EQUAL = re.compile(rf"{_TOKEN} ?!={_PATH}{_END}")
_IN = re.compile(rf"{_TOKEN} in{_SET}{_END}")
_NOT_IN = re.compile(rf"{_TOKEN} not ?in{_SET}{_END}")
_EXISTS = re.compile(rf"{_TOKEN}{_END}")
_NOT_EXISTS = re.compile(rf" ?!{_TOKEN}{_END}")
_SET_ELEMENT = re.compile(rf"{_PATH}{_END}")

_GRAMMAR = (
    "expected a comma-separated list of: name, !name, name=value, name!=value, "
    "name in (a, b), name notin (a, b); a name has two characters or more, and may end in :prefix"
)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """
    >>> gold = LabelSelector.parse("tier in (gold, blue), !retired")
    >>> gold.matches(LabelSet.of(("tier", "gold")))
    True
    >>> str(gold)
    'tier in (blue,gold),!retired'
    """

    include: LabelSet = LabelSet()
    exclude: LabelSet = LabelSet()

    @classmethod
    def from_proto(cls, message: pb.LabelSelector) -> LabelSelector:
        return cls(LabelSet.from_proto(message.include), LabelSet.from_proto(message.exclude))

    def to_proto(self) -> pb.LabelSelector:
        return pb.LabelSelector(include=self.include.to_proto(), exclude=self.exclude.to_proto())

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """The selector of a text such as ``app=web, tier in (gold, blue), !retired``.

        Raises a ``ValidationError`` that says where the text leaves the grammar, or which label is at fault.
        """
        include: set[Label] = set()
        exclude: set[Label] = set()
        at = 0
        while at < len(text):
            included, name, values, at = _piece(text, at)
            (include if included else exclude).update(Label.named(name, value) for value in values)
        selector = cls(LabelSet(tuple(sorted(include))), LabelSet(tuple(sorted(exclude))))
        checked("LabelSelector", selector.check)
        return selector

    def check(self) -> None:
        checked("Include", self.include.check_in_selector)
        checked("Exclude", self.exclude.check_in_selector)

    def __str__(self) -> str:
        """The canonical text. A value that begins with ``=`` does not survive being parsed again."""
        return ",".join([*_printed(self.include, "", "=", " in "), *_printed(self.exclude, "!", "!=", " notin ")])

    def matches(self, labels: LabelSet) -> bool:
        return self.matcher("")("", labels)

    def matcher(self, meta: str) -> Matcher:
        """A function that matches many specs: `meta` names the label whose value is given beside the set.

        The meta-label wins over labels of that name in the set. List runs this over every journal of a
        cluster, so all that can be decided is decided here, once.
        """
        excluded = [_any_of(group, meta) for group in _groups(self.exclude)]
        included = [_any_of(group, meta) for group in _groups(self.include)]

        def match(meta_value: str, labels: LabelSet) -> bool:
            held = labels.labels
            for found in excluded:
                if found(meta_value, held):
                    return False
            for found in included:  # noqa: SIM110, all() with a generator costs a third more
                if not found(meta_value, held):
                    return False
            return True

        return match

    def with_prefix_label_expanded(self) -> LabelSelector:
        """With the legacy journal label ``prefix=a/b/`` written as what it means, ``name:prefix=a/b/``."""
        return LabelSelector(_expanded(self.include), _expanded(self.exclude))


_PIECES = (
    (_EQUAL, True, False),
    (_NOT_EQUAL, False, False),
    (_IN, True, True),
    (_NOT_IN, False, True),
    (_EXISTS, True, False),
    (_NOT_EXISTS, False, False),
)
"""Pattern, whether it includes, whether it names a set of values. The order is part of the grammar."""


def _piece(text: str, at: int) -> tuple[bool, str, Iterable[str], int]:
    """Whether the piece at `at` includes, its name and values, and where the next begins."""
    for pattern, included, many in _PIECES:
        if found := pattern.match(text, at):
            return included, found[1], _values(found, many), found.end()
    raise ValidationError(f"cannot be understood from {_excerpt(text, at)} on: {_GRAMMAR}", "LabelSelector")


def _excerpt(text: str, at: int) -> str:
    return repr(text[at : at + 64])


def _values(found: re.Match[str], many: bool) -> Iterable[str]:
    if not many:
        return [found[2] if found.re.groups > 1 else ""]
    values, text, at = [], found[2], 0
    while at < len(text):
        element = _SET_ELEMENT.match(text, at)
        if element is None:
            raise ValidationError(
                f"holds a set that cannot be understood from {_excerpt(text, at)} on", "LabelSelector"
            )
        values.append(element[1])
        at = element.end()
    return values


def _printed(labels: LabelSet, exists: str, equal: str, among: str) -> Iterable[str]:
    named = sorted((f"{name}:prefix" if prefix else name, value) for name, value, prefix in labels)
    for name, group in groupby(named, key=lambda label: label[0]):
        values = [value for _, value in group]
        if values == [""]:
            yield f"{exists}{name}"
        elif len(values) == 1:
            yield f"{name}{equal}{values[0]}"
        else:
            yield f"{name}{among}({','.join(values)})"


def _groups(labels: LabelSet) -> list[tuple[Label, ...]]:
    return [tuple(group) for _, group in groupby(labels, key=lambda label: label.name)]


_Found = Callable[[str, tuple[Label, ...]], bool]


def _any_of(group: tuple[Label, ...], meta: str) -> _Found:
    """A test whether any of these labels, which share a name, is matched."""
    name = group[0].name
    exact = frozenset(label.value for label in group if not label.prefix and label.value)
    prefixes = tuple(label.value for label in group if label.prefix or not label.value)
    if name == meta:
        return lambda meta_value, _: meta_value in exact or meta_value.startswith(prefixes)

    first = (name,)

    def found(_: str, labels: tuple[Label, ...]) -> bool:
        at = bisect_left(labels, first)
        while at < len(labels):
            name_here, value, _prefix = labels[at]
            if name_here != name:
                return False
            if value in exact or value.startswith(prefixes):
                return True
            at += 1
        return False

    return found


def _expanded(labels: LabelSet) -> LabelSet:
    expanded = labels.remove("prefix")
    for value in labels.values_of("prefix"):
        expanded = expanded.add("name:prefix", value)
    return expanded
