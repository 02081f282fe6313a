"""The target of an HTTP request: a path that names a journal, and the arguments of a read or an append.

Whatever is not understood is refused: a mistyped precondition that is ignored would append where it should not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from broker.client.append_request import AppendRequest
from protocol.errors import ValidationError, checked
from protocol.identifier import check_journal
from protocol.label import LabelSet
from protocol.selector import LabelSelector

Value = TypeVar("Value")

OFFSET_MAX = (1 << 63) - 1
WRITE_HEAD = -1

_ARGUMENTS_MAX = 16
_IS_OFFSET = re.compile(r"-?[0-9]{1,19}", re.ASCII).fullmatch
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_IS_RANGE = re.compile(r"bytes=(?:([0-9]{1,19})-([0-9]{1,19})?|-([0-9]{1,19}))", re.ASCII).fullmatch
# Percent signs that do not begin an escape, which decoders would each treat in their own way.
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})").search


@dataclass(frozen=True, slots=True)
class Target:
    """The path, decoded once, and the arguments after the question mark."""

    path: str
    arguments: Mapping[str, str]

    @classmethod
    def parse(cls, raw: str) -> Target:
        """
        >>> Target.parse("/acme/orders?offset=12&block=true")
        Target(path='/acme/orders', arguments={'offset': '12', 'block': 'true'})
        """
        path, _, query = raw.partition("?")
        if not path.startswith("/") or "#" in raw:
            raise ValidationError("expected a path, such as /acme/orders", "URL")
        if _BAD_ESCAPE(path):
            raise ValidationError("a percent sign of a path is written as %25", "URL")
        try:
            decoded = unquote_to_bytes(path).decode()
            pairs = (
                parse_qsl(
                    query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_ARGUMENTS_MAX
                )
                if query
                else []
            )
        except ValueError as error:
            raise ValidationError("neither the path nor the arguments may hold anything but UTF-8", "URL") from error
        arguments = dict(pairs)
        if len(arguments) < len(pairs):
            raise ValidationError("every argument may be given once", "URL")
        return cls(decoded, arguments)

    @property
    def journal(self) -> str:
        """Raises unless the path is the name of a journal. It is not decoded again, here or later."""
        name = self.path.removeprefix("/")
        # A name that begins so is clean, to Gazette, and yet nobody's.
        if ".." in name.split("/"):
            raise ValidationError("a journal's name does not go upwards", "Journal")
        checked("Journal", check_journal, name)
        return name


@dataclass(frozen=True, slots=True)
class ReadWanted:
    """Which bytes of a journal."""

    journal: str
    offset: int = 0
    # Where to stop; None is not at all.
    end: int | None = None
    block: bool = False
    # So many bytes before the write head, in place of an offset.
    last: int | None = None

    @classmethod
    def of(cls, target: Target, range_header: str | None) -> ReadWanted:
        """
        >>> ReadWanted.of(Target.parse("/acme/orders"), "bytes=10-19")
        ReadWanted(journal='acme/orders', offset=10, end=20, block=False, last=None)
        """
        given = _Given(target.arguments)
        offset, end = given.take("offset", _offset), given.take("end_offset", _offset)
        block = given.take("block", _boolean) or False
        given.check_all_taken()
        if range_header is not None and range_header.lower().startswith("bytes"):
            if offset is not None or end is not None:
                raise ValidationError("give either a Range header or offset and end_offset", "Range")
            return cls(target.journal, *_range(range_header.replace(" ", "").lower(), block))
        wanted = cls(target.journal, offset or 0, end, block)
        if wanted.offset < WRITE_HEAD:
            raise ValidationError("expected an offset, or -1 for the write head", "offset")
        if end is not None and end <= wanted.offset:
            raise ValidationError("expected an offset after the one to begin at", "end_offset")
        return wanted


def _range(header: str, block: bool) -> tuple[int, int | None, bool, int | None]:
    found = _IS_RANGE(header)
    if found is None:
        raise ValidationError("expected a single range such as bytes=0-99, bytes=100- or bytes=-50", "Range")
    first, inclusive, last = (None if part is None else min(int(part), OFFSET_MAX - 1) for part in found.groups())
    if first is None:
        if not last:
            raise ValidationError("a range of no bytes cannot be sent", "Range")
        return 0, None, block, last
    if inclusive is not None and inclusive < first:
        raise ValidationError("a range ends where it begins or later", "Range")
    return first, None if inclusive is None else inclusive + 1, block, None


def append_wanted(target: Target) -> AppendRequest:
    """What the arguments of an append demand."""
    given = _Given(target.arguments)
    offset = given.take("offset", _offset)
    check = given.take("check-registers", LabelSelector.parse)
    union = given.take("union-registers", _registers) or LabelSet()
    subtract = given.take("subtract-registers", _registers) or LabelSet()
    given.check_all_taken()
    return AppendRequest(target.journal, offset, check, union, subtract)


class _Given:
    """The arguments of a request, each to be taken by whoever knows it."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        self._left = dict(arguments)
        self._known: list[str] = []

    def take(self, name: str, parse: Callable[[str], Value]) -> Value | None:
        self._known.append(name)
        text = self._left.pop(name, None)
        if text is None:
            return None
        try:
            if not text:
                # Such as a variable that a script did not set: as if there were no precondition.
                raise ValidationError("expected a value")
            return parse(text)
        except ValidationError as error:
            raise error.within(name) from None

    def check_all_taken(self) -> None:
        if self._left:
            raise ValidationError(f"there is an argument that is not known here: known are {', '.join(self._known)}")


def _offset(text: str) -> int:
    if not _IS_OFFSET(text) or int(text) > OFFSET_MAX:
        raise ValidationError("expected a whole number of bytes")
    return int(text)


def _boolean(text: str) -> bool:
    known = _BOOLEANS.get(text.lower())
    if known is None:
        raise ValidationError("expected true or false")
    return known


def _registers(text: str) -> LabelSet:
    selector = LabelSelector.parse(text)
    if selector.exclude or any(label.prefix for label in selector.include):
        raise ValidationError("expected labels such as author=me,epoch=7")
    return selector.include
