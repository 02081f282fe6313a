"""ReadOptions: what a reader was asked for, judged once and before anything is read.

Spark hands over texts whose names know no case. Each error names the option, the rule and what to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

from protocol.errors import ValidationError
from protocol.fragment import OFFSET_MAX
from protocol.identifier import check_journal
from protocol.selector import LabelSelector
from spark_readers.broker_access import SECURITY_OPTIONS, BrokerAccess, refuse_secret

SPLIT_BYTES = 256 << 20
"""Of content to a task. Spark itself takes 128 MiB of a file, which is more content than this where it is packed."""
SPLIT_BYTES_MIN = 1 << 10
LISTING_INTERVAL_MS = 1000

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.I).fullmatch
_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")


class Framing(Enum):
    BYTES = "bytes"
    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    FIXED = "fixed"


class Isolation(Enum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Mode(Enum):
    PERMISSIVE = "PERMISSIVE"
    DROPMALFORMED = "DROPMALFORMED"
    FAILFAST = "FAILFAST"


class Bound(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


Offsets = Bound | Mapping[str, int]
"""Of each journal. One that a map does not name is read from its earliest, or to its latest offset."""


@dataclass(frozen=True, slots=True)
class JournalChoice:
    """Which journals are read: exactly one of these is given, or none, which is all of them."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    selector: str = ""

    def matches(self, name: str) -> bool:
        """By name or pattern. What a selector matches only a broker can tell, or a spec."""
        if self.names:
            return name in self.names
        return not self.pattern or re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    # Exactly one of these two is given.
    broker: BrokerAccess | None = None
    path: str = ""
    journals: JournalChoice = JournalChoice()
    starting: Offsets = Bound.EARLIEST
    ending: Offsets = Bound.LATEST
    # Unix seconds: what was stored from, and until then. Files know no more than seconds.
    starting_s: int | None = None
    ending_s: int | None = None
    framing: Framing = Framing.LINES
    isolation: Isolation = Isolation.READ_COMMITTED
    # Where in a JSON record its UUID is.
    uuid_field: tuple[str, ...] = ("UUID",)
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True
    include_metadata: bool = False
    mode: Mode = Mode.PERMISSIVE
    # Whether bytes that are not in any store yet are read through brokers.
    tail: bool = True
    verify_sha1: bool = False
    # Where ``file:///`` stores of brokers are on the executors; empty if they cannot open them.
    file_root: str = ""
    # A file with a FileDescriptorSet, and which of its messages the frames hold.
    descriptor_file: str = ""
    message_name: str = ""
    # Of times that do not tell theirs; empty for that of the session.
    time_zone: str = ""
    # Path keys, and the values to which fragments are narrowed down.
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # Of streams: what a batch may hold, of which at most one is given; and how often journals are listed.
    bytes_per_trigger: int | None = None
    files_per_trigger: int | None = None
    listing_interval_s: float = LISTING_INTERVAL_MS / 1000

    @property
    def sequences(self) -> bool:
        """Whether messages are passed on by their UUIDs, which lines and bytes have not."""
        return self.isolation is Isolation.READ_COMMITTED and self.framing not in (Framing.BYTES, Framing.LINES)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = {}
        for name, text in options.items():
            refuse_secret(name)
            known = _KNOWN.get(name.lower())
            if known is None:
                near = get_close_matches(name.lower(), _KNOWN, 1)
                hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"known are {', '.join(sorted(_KNOWN.values()))}"
                raise ValidationError(f"there is no such option: {hint}", name)
            given[known] = text
        return _parsed(given)


def _parsed(given: Mapping[str, str]) -> ReadOptions:
    def read(name: str, parse: Callable[[str, str], _T], default: _T) -> _T:
        return parse(name, given[name]) if name in given else default

    broker, path = given.get("broker", "").strip(), given.get("path", "").strip()
    if bool(broker) == bool(path):
        raise ValidationError(
            "expected either the address of a broker, such as broker.example:8080, or the path of a store, such as "
            "s3://bucket/prefix/, " + ("but not both" if broker else "and got neither"),
            "broker",
        )
    for name in SECURITY_OPTIONS:
        if path and given.get(name, "").strip():
            raise ValidationError(
                "only brokers ask who is there, and a path is read without them: leave it out, or give broker", name
            )
    framing = _of(Framing, "framing", given.get("framing", "lines"))
    if framing in (Framing.BYTES, Framing.LINES) and given.get("isolation", "").strip().lower() == "read_committed":
        raise ValidationError(
            f"{framing.value} have no UUIDs to sequence by: set framing to json, csv or fixed, or leave this out",
            "isolation",
        )
    options = ReadOptions(
        BrokerAccess.of(given) if broker else None,
        path and _store_url(path),
        _journals(given, bool(broker)),
        _offsets("startingOffsets", given.get("startingOffsets", "earliest")),
        _offsets("endingOffsets", given.get("endingOffsets", "latest")),
        read("startingTimestamp", _timestamp, None),
        read("endingTimestamp", _timestamp, None),
        framing,
        read("isolation", lambda name, text: _of(Isolation, name, text), Isolation.READ_COMMITTED),
        read("uuidField", _field_path, ("UUID",)),
        read("splitSize", _size, SPLIT_BYTES),
        read("failOnDataLoss", _flag, True),
        read("includeMetadata", _flag, False),
        read("mode", lambda name, text: _of(Mode, name, text), Mode.PERMISSIVE),
        read("tail", _flag, bool(broker)),
        read("verifySha1", _flag, False),
        given.get("fileRoot", ""),
        given.get("descriptorFile", ""),
        given.get("messageName", ""),
        read("timeZone", _time_zone, ""),
        read("where", _where, ()),
        read("maxBytesPerTrigger", _size, None),
        read("maxFilesPerTrigger", _count, None),
        read("listingIntervalMs", _count, LISTING_INTERVAL_MS) / 1000,
    )
    _check_together(options, given)
    return options


def _check_together(options: ReadOptions, given: Mapping[str, str]) -> None:
    if options.tail and not options.broker:
        raise ValidationError("what is not in the store yet only a broker can read: give one, or leave it out", "tail")
    if bool(options.descriptor_file) != bool(options.message_name):
        lacking = "messageName" if options.descriptor_file else "descriptorFile"
        raise ValidationError("a descriptor set and the name of one of its messages go together", lacking)
    if options.descriptor_file and options.framing is not Framing.FIXED:
        raise ValidationError(
            "protobuf messages are in frames of fixed headers: set framing to fixed", "descriptorFile"
        )
    if "uuidField" in given and options.framing is not Framing.JSON and not options.descriptor_file:
        raise ValidationError(
            "only JSON records and protobuf messages have fields: set framing to json, or leave it out", "uuidField"
        )
    if options.bytes_per_trigger is not None and options.files_per_trigger is not None:
        raise ValidationError(
            "Spark knows one limit a source: leave this or maxBytesPerTrigger out", "maxFilesPerTrigger"
        )
    for offsets, time, name in (
        (given.get("startingOffsets"), options.starting_s, "startingTimestamp"),
        (given.get("endingOffsets"), options.ending_s, "endingTimestamp"),
    ):
        if offsets is not None and time is not None:
            raise ValidationError("a time and offsets say the same thing twice: leave one of them out", name)


_KNOWN = {
    name.lower(): name
    for name in (
        *("broker", "path", "journal", "journals", "journalPattern", "selector", *SECURITY_OPTIONS),
        *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
        *("framing", "isolation", "uuidField", "splitSize", "failOnDataLoss", "includeMetadata", "mode"),
        *("tail", "verifySha1", "fileRoot", "descriptorFile", "messageName", "timeZone", "where"),
        *("maxBytesPerTrigger", "maxFilesPerTrigger", "listingIntervalMs"),
    )
}


def _store_url(path: str) -> str:
    """A bare path is a folder of this machine; a slash at the end is not insisted on."""
    url = path if ":/" in path else f"file://{path}"
    # Spark's own way to write it.
    if url.startswith("file:/") and not url.startswith("file://"):
        url = "file://" + url.removeprefix("file:")
    base, question, query = url.partition("?")
    return base + ("" if base.endswith("/") else "/") + question + query


def _journals(given: Mapping[str, str], has_broker: bool) -> JournalChoice:
    chosen = [name for name in ("journal", "journals", "journalPattern", "selector") if given.get(name, "").strip()]
    if len(chosen) > 1:
        raise ValidationError(f"journals are chosen in one way only: leave {chosen[0]} or this out", chosen[1])
    if not chosen:
        if has_broker:
            raise ValidationError(
                "which journals? expected journal, journals, journalPattern or selector; .* is a pattern for all",
                "journal",
            )
        return JournalChoice()
    return _CHOICES[chosen[0]](chosen[0], given[chosen[0]].strip(), has_broker)


def _by_names(name: str, text: str, _: bool) -> JournalChoice:
    names = (text,) if name == "journal" else _names(text)
    for one in names:
        try:
            check_journal(one)
        except ValidationError as error:
            raise ValidationError(str(error), name) from None
    return JournalChoice(names=tuple(sorted(set(names))))


def _by_pattern(name: str, text: str, _: bool) -> JournalChoice:
    try:
        re.compile(text)
    except re.error as error:
        raise ValidationError(f"expected a regular expression: {error}", name) from None
    return JournalChoice(pattern=text)


def _by_selector(name: str, text: str, has_broker: bool) -> JournalChoice:
    if not has_broker:
        raise ValidationError("labels are known to brokers alone: use journalPattern with a path", name)
    try:
        LabelSelector.parse(text)
    except ValidationError as error:
        raise ValidationError(str(error), name) from None
    return JournalChoice(selector=text)


_CHOICES = {"journal": _by_names, "journals": _by_names, "journalPattern": _by_pattern, "selector": _by_selector}


def _names(text: str) -> tuple[str, ...]:
    """A JSON list, or names with commas in between."""
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValidationError(
                'expected names with commas in between, or a JSON list such as ["a", "b"]', "journals"
            )
        return tuple(names)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _offsets(name: str, text: str) -> Offsets:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(word)
    try:
        offsets = json.loads(text)
    except ValueError:
        offsets = None
    if not isinstance(offsets, dict) or not all(
        isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= OFFSET_MAX
        for offset in offsets.values()
    ):
        raise ValidationError(
            'expected earliest, latest, or a JSON map of journals to offsets such as {"acme/orders": 4096}', name
        )
    return offsets


def _timestamp(name: str, text: str) -> int | None:
    text = text.strip()
    if re.fullmatch(r"\d+", text):
        # As Kafka's option of this name has it.
        return -(-int(text) // 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(
            "expected a time such as 2026-11-16T04:00:00Z, or milliseconds since 1970", name
        ) from None
    return -int(-(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() // 1)


def _time_zone(name: str, text: str) -> str:
    """Whether there is one of that name only those know who have a list of them."""
    if not re.fullmatch(r"[A-Za-z][\w/+:-]*|[+-]\d{1,2}(:?\d\d)?", text.strip()):
        raise ValidationError("expected a time zone such as Europe/Berlin or +02:00", name)
    return text.strip()


def _field_path(name: str, text: str) -> tuple[str, ...]:
    """``UUID``, ``_meta.uuid``, or the JSON pointer ``/_meta/uuid``, which is for names that hold a dot."""
    text = text.strip()
    if text.startswith("/"):
        parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))
    else:
        parts = tuple(text.split("."))
    if "" in parts:
        raise ValidationError("expected the name of a field, such as UUID or _meta.uuid", name)
    return parts


def _size(name: str, text: str) -> int:
    found = _SIZE(text.strip())
    size = int(found[1]) * _SIZES[found[2].lower()] if found else 0
    if size < SPLIT_BYTES_MIN:
        raise ValidationError("expected a number of bytes of at least 1024, such as 134217728 or 128m", name)
    return size


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text.strip()) or not int(text):
        raise ValidationError("expected a whole number from 1 on", name)
    return int(text)


def _flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValidationError("expected true or false", name)
    return word == "true"


def _of(kind: type[_E], name: str, text: str) -> _E:
    for one in kind:
        if str(one.value).lower() == text.strip().lower():
            return one
    raise ValidationError(f"expected one of {', '.join(str(one.value) for one in kind)}", name)


def _where(name: str, text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    try:
        keys = json.loads(text)
    except ValueError:
        keys = None
    if not isinstance(keys, dict):
        raise ValidationError('expected a JSON map of path keys to values, such as {"date": "2026-11-16"}', name)
    found = []
    for key, values in sorted(keys.items()):
        listed = values if isinstance(values, list) else [values]
        if not listed or not all(isinstance(value, str) for value in listed):
            raise ValidationError(f"expected a text, or a list of them, for {key}", name)
        found.append((key, tuple(listed)))
    return tuple(found)
