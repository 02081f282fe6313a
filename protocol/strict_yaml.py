"""Strict YAML: a document whose every key is known, given once, and of the type that is asked for.

``load`` turns a text into nodes that know their line, and a ``Record`` reads a mapping by the types of its
fields. What it refuses, it refuses with the line and the key. A null leaves a field unset, and where a text is
wanted a plain scalar keeps its source (``yes``, ``1.50``), as in Gazette's tools.

A tag must agree with what it is given to, and only the tags of nulls, truth values, numbers, texts, lists and
mappings are known: Gazette's tools decode some others, so that a file would mean two things.

Aliases stand for what they name. Merge keys (``<<``) are refused: Gazette's tools merge into sub-mappings too,
which is not what YAML says, and a spec must not mean two things. Trees of specs have inheritance of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite
from typing import TypeVar

import yaml

from protocol import duration
from protocol.errors import ValidationError
from protocol.yaml_scalar import Resolved, resolve

try:
    from yaml import CSafeLoader as Parser
except ImportError:  # PyYAML without libyaml parses the same, only slower.
    from yaml import SafeLoader as Parser  # type: ignore[assignment]

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
UINT32 = (0, (1 << 32) - 1)

# A journal's name has room for 256 directories, each of which takes two levels.
DEPTH_MAX = 1000
# How many nodes the aliases of a document may stand for in all. A bomb would stand for billions.
ALIASED_MAX = 100_000

_STANDARD = "tag:yaml.org,2002:"
_MAP, _SEQ, _NULL = f"{_STANDARD}map", f"{_STANDARD}seq", f"{_STANDARD}null"
_TEXT_TAGS = ("!", f"{_STANDARD}str")
# What a scalar with one of these tags has to read as. A tag does not convert, except that quotes do not count.
_KINDS: dict[str, tuple[type, ...]] = {
    _NULL: (type(None),),
    f"{_STANDARD}bool": (bool,),
    f"{_STANDARD}int": (int,),
    f"{_STANDARD}float": (float, int),
}

E = TypeVar("E", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str
    # Neither quoted nor tagged as a text, so that it may stand for a null, a truth value or a number.
    plain: bool
    line: int
    size: int = 1

    @property
    def resolved(self) -> Resolved:
        return resolve(self.text) if self.plain else self.text


@dataclass(frozen=True, slots=True)
class Collected:
    """A mapping, whose nodes are keys and values in turn, or a list."""

    nodes: tuple[Node, ...]
    is_mapping: bool
    line: int
    # Nodes in it and below, those behind aliases counted each time.
    size: int


Node = Scalar | Collected


def load(text: str) -> Node:
    """The first document of `text`. An empty text is a null."""
    try:
        builder = _Builder()
        for event in yaml.parse(text, Loader=Parser):
            if isinstance(event, yaml.DocumentEndEvent):
                break
            builder.take(event)
        return builder.root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = (error.problem or error.context or "")[:200]
        raise ValidationError(f"{place}cannot be read as YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        raise _forbidden(text, text.find(chr(int(error.character)))) from None
    except UnicodeEncodeError as error:
        raise _forbidden(text, error.start) from None


def _forbidden(text: str, at: int) -> ValidationError:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return ValidationError(f"line {line}, column {column}: YAML forbids the character {text[at]!r}")


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been met yet."""

    is_mapping: bool
    line: int
    anchor: str | None
    nodes: list[Node] = field(default_factory=list)

    def closed(self) -> Collected:
        return Collected(tuple(self.nodes), self.is_mapping, self.line, 1 + sum(node.size for node in self.nodes))


class _Builder:
    """Builds nodes from parser events with a stack of its own: no depth of nesting exhausts that of Python."""

    def __init__(self) -> None:
        self.root: Node = Scalar("", True, 1)
        self._open: list[_Open] = []
        # None while the node is still open: an alias there would make it contain itself.
        self._anchors: dict[str, Node | None] = {}
        self._aliased = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, line), event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            own = _MAP if isinstance(event, yaml.MappingStartEvent) else _SEQ
            if event.tag not in (None, own):
                raise self._mistagged(event.tag, line)
            self._begin(_Open(isinstance(event, yaml.MappingStartEvent), line, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self._open.pop()
            self._add(done.closed(), done.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._target(event.anchor or "", line), None)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Scalar:
        if event.tag is None:
            return Scalar(event.value, event.implicit[0], line)
        if event.tag in _TEXT_TAGS:
            return Scalar(event.value, False, line)
        kinds = _KINDS.get(event.tag, ())
        if type(resolve(event.value)) not in kinds:
            raise self._mistagged(event.tag, line)
        # Only without its tag do capitals make a difference to a null.
        return Scalar("" if event.tag == _NULL else event.value, True, line)

    def _mistagged(self, tag: str, line: int) -> ValidationError:
        within = [opened.nodes[-1] for opened in self._open if opened.is_mapping and len(opened.nodes) % 2]
        key = within[-1] if within else None
        place = f"{key.text[:40]}: " if isinstance(key, Scalar) else ""
        shown = tag.replace(_STANDARD, "!!")[:40]
        return ValidationError(f"line {line}: {place}the tag {shown} does not hold here: leave it out")

    def _begin(self, opened: _Open) -> None:
        if len(self._open) == DEPTH_MAX:
            raise ValidationError(f"line {opened.line}: nested deeper than {DEPTH_MAX} levels")
        if opened.anchor is not None:
            self._anchors[opened.anchor] = None
        self._open.append(opened)

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if self._open:
            self._open[-1].nodes.append(node)
        else:
            self.root = node

    def _target(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            raise ValidationError(f"line {line}: no anchor &{anchor[:40]} comes before its alias")
        target = self._anchors[anchor]
        if target is None:
            raise ValidationError(f"line {line}: the alias *{anchor[:40]} stands inside of what it names")
        self._aliased += target.size
        if self._aliased > ALIASED_MAX:
            raise ValidationError(f"line {line}: the aliases up to here stand for over {ALIASED_MAX} nodes")
        return target


class Record:
    """A mapping with known keys. A field that is missing or null reads as its zero value.

    >>> Record(load("replication: 3"), ("name", "replication")).integer("replication", INT32)
    3
    """

    def __init__(self, node: Node, keys: Collection[str], where: str = "the document") -> None:
        self.line = node.line
        self._fields: dict[str, Node] = {}
        self._zeroed: set[str] = set()
        if isinstance(node, Scalar) and node.resolved is None:
            return
        if isinstance(node, Scalar) or not node.is_mapping:
            raise ValidationError(f"line {node.line}: expected {where} to be a mapping with {_list(keys)}")
        seen = set()
        for key, value in zip(node.nodes[::2], node.nodes[1::2], strict=True):
            name = _key(key)
            if name not in keys:
                raise ValidationError(f"line {key.line}: unknown key {name[:40]!r} in {where}: expected {_list(keys)}")
            if name in seen:
                raise ValidationError(f"line {key.line}: the key {name!r} is given twice in {where}")
            seen.add(name)
            if not (isinstance(value, Scalar) and value.resolved is None):
                self._fields[name] = value
            elif value.text in ("Null", "NULL"):
                self._zeroed.add(name)

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def is_zeroed(self, key: str) -> bool:
        """Whether the field is a null in capitals: where Gazette tells unset from zero, that one is zero."""
        return key in self._zeroed

    def text(self, key: str) -> str:
        return _text(key, self._fields[key]) if key in self._fields else ""

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(_text(key, item) for item in self.items(key))

    def items(self, key: str) -> tuple[Node, ...]:
        """The nodes of a list."""
        node = self._fields.get(key)
        if node is None:
            return ()
        if isinstance(node, Scalar) or node.is_mapping:
            raise _refused(key, node, "a list")
        return node.nodes

    def record(self, key: str, keys: Collection[str]) -> Record:
        return Record(self._fields.get(key, Scalar("", True, self.line)), keys, key)

    def records(self, key: str, keys: Collection[str]) -> list[Record]:
        return [Record(item, keys, f"an item of {key}") for item in self.items(key)]

    def boolean(self, key: str) -> bool | None:
        node = self._fields.get(key)
        if node is None:
            return None
        value = node.resolved if isinstance(node, Scalar) else None
        if not isinstance(value, bool):
            raise _refused(key, node, "true or false")
        return value

    def integer(self, key: str, bounds: tuple[int, int]) -> int:
        """A whole number. Of one with a fraction, the fraction is cut off, as Gazette's tools do."""
        node = self._fields.get(key)
        number = _number(node)
        if node is not None and (number is None or not bounds[0] <= number <= bounds[1]):
            raise _refused(key, node, f"a whole number from {bounds[0]} to {bounds[1]}")
        return number or 0

    def duration_ns(self, key: str) -> int:
        """A text such as ``5m``, or a number of nanoseconds."""
        node = self._fields.get(key)
        if isinstance(node, Scalar) and isinstance(node.resolved, str):
            try:
                return duration.parse(node.text)
            except ValidationError as error:
                raise ValidationError(f"line {node.line}: {key}: {error.rule}") from None
        return self.integer(key, INT64)

    def member(self, key: str, choices: type[E]) -> E | None:
        """The one of `choices` that is named. Its number will not do."""
        node = self._fields.get(key)
        if node is None:
            return None
        name = node.text if isinstance(node, Scalar) else ""
        if name not in choices.__members__:
            raise _refused(key, node, _list(choices.__members__))
        return choices[name]

    def member_or_number(self, key: str, choices: type[E], bounds: tuple[int, int]) -> int:
        """The number of the one of `choices` that is named, or any number: to refuse that is up to validation."""
        if _number(self._fields.get(key)) is not None:
            return self.integer(key, bounds)
        return self.member(key, choices) or 0


def _key(node: Node) -> str:
    if not isinstance(node, Scalar):
        raise ValidationError(f"line {node.line}: a key must be a word, not a list or a mapping")
    if node.text == "<<" and node.plain:
        raise ValidationError(
            f"line {node.line}: the merge key << is not supported: give what is shared to the parent, it is inherited"
        )
    return node.text


def _text(key: str, node: Node) -> str:
    if not isinstance(node, Scalar):
        raise _refused(key, node, "a text")
    return "" if node.resolved is None else node.text


def _number(node: Node | None) -> int | None:
    value = node.resolved if isinstance(node, Scalar) else None
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    return int(value) if isinstance(value, float) and isfinite(value) else None


def _refused(key: str, node: Node, expected: str) -> ValidationError:
    if isinstance(node, Scalar):
        got = repr(node.text[:40]) if node.plain else f"the text {node.text[:40]!r}"
    else:
        got = "a mapping" if node.is_mapping else "a list"
    return ValidationError(f"line {node.line}: {key}: expected {expected} (got {got})")


def _list(names: Iterable[str]) -> str:
    return "one of " + ", ".join(names)
