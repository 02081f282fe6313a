"""CommitRecord and Standing: what a commit journal remembers of a write, as a record and as a register.

The records are what counts. A register only says where the last one of an application is, and lets but one of several
drivers write the next: registers may be lost with all brokers of a journal, and may move without the bytes they came
with.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from consumer.message import json_framing
from protocol.errors import CorruptError, ValidationError
from protocol.label import LabelSet
from protocol.selector import LabelSelector

RECORD_BYTES_MAX = 32 << 20
REGISTER_PREFIX = "txn/"
BATCH_QUERY = "batch"

RESTORED = LabelSet.of(("txn-registers", "restored"))
"""Set with registers that were made anew, so that there is one in any case."""
REPAIR_LINE = json_framing.encode({"repaired": "registers"})
# No journal of ours has it, so it is passed by an empty set of registers alone.
NEVER_SET = LabelSelector(include=LabelSet.of(("txn-registers", "never-set")))

_REGISTER = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})\.([0-9A-Za-z-]+)\.(open|done)", re.ASCII)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The acknowledgements that make a write visible. Once this is stored it is going to be, whatever happens."""

    app: str
    version: int
    # Of a stream its id, which a new checkpoint changes.
    query: str
    # Framed messages, by journal.
    acks: Mapping[str, bytes]

    def encode(self) -> bytes:
        line = json_framing.encode(
            {"app": self.app, "version": self.version, "query": self.query, "acks": _spelled(self.acks)}
        )
        if len(line) > RECORD_BYTES_MAX:
            raise ValidationError(
                f"the acknowledgements of a write have {len(line)} bytes, {RECORD_BYTES_MAX} are the most: write by "
                "fewer tasks (coalesce), or to fewer journals from each (repartition by the key)"
            )
        return line


@dataclass(frozen=True, slots=True)
class Standing:
    """The last version of an application, and whether all of its acknowledgements are known to be appended."""

    version: int
    # The record is there, or a little after it.
    offset: int
    query: str
    is_done: bool

    @classmethod
    def of(cls, registers: LabelSet, app: str) -> Standing | None:
        value = registers.value_of(register_name(app))
        if not value:
            return None
        found = _REGISTER.fullmatch(value)
        if found is None:
            raise ValidationError(
                f"the register {register_name(app)} of the commit journal holds {value[:64]!r}, which no writer of "
                "ours has set: give a commitJournal that is used for nothing else"
            )
        return cls(int(found[1]), int(found[2]), found[3], found[4] == "done")

    def done(self) -> Standing:
        return replace(self, is_done=True)

    def __str__(self) -> str:
        return f"{self.version}.{self.offset}.{self.query}.{'done' if self.is_done else 'open'}"


def done_line(record: CommitRecord) -> bytes:
    """That goes with a register which says so: a register needs some content to change with."""
    return json_framing.encode({"app": record.app, "version": record.version, "query": record.query, "done": True})


def register_name(app: str) -> str:
    return f"{REGISTER_PREFIX}{app}"


def unchanged(app: str, standing: Standing | None) -> LabelSelector:
    """Matches as long as the application stands where it did. As all selectors, also while there are no registers."""
    name = register_name(app)
    if standing is None:
        return LabelSelector(exclude=LabelSet.of((name, "")))
    return LabelSelector(include=LabelSet.of((name, str(standing))))


def registers_of(standings: Mapping[str, Standing]) -> LabelSet:
    return LabelSet.of(*((register_name(app), str(standing)) for app, standing in standings.items()))


class Replayed:
    """A commit journal read from its beginning: where each application stands, and the record that says so."""

    def __init__(self) -> None:
        self.standings: dict[str, Standing] = {}
        self.records: dict[str, CommitRecord] = {}

    def feed(self, offset: int, line: bytes) -> None:
        document = _document(line)
        record = _record(document)
        if record is not None:
            self.standings[record.app] = Standing(record.version, offset, record.query, is_done=False)
            self.records[record.app] = record
        elif document.get("done") is True:
            standing = self.standings.get(str(document.get("app")))
            if standing is not None and standing.version == document.get("version"):
                self.standings[str(document["app"])] = standing.done()


def parse(line: bytes) -> CommitRecord | None:
    """The record of one line; None if it is something else, which is passed over."""
    return _record(_document(line))


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json_framing.parse(line)
    except ValidationError:
        return {}
    return document if isinstance(document, dict) else {}


def _record(document: dict[str, Any]) -> CommitRecord | None:
    match document:
        case {"app": str(app), "version": int(version), "query": str(query), "acks": dict(acks)}:
            return CommitRecord(app, version, query, {journal: _read(held) for journal, held in acks.items()})
        case _:
            return None


def _spelled(acks: Mapping[str, bytes]) -> dict[str, str | dict[str, str]]:
    """Messages of JSON and CSV stay readable; those of protobuf are no text."""
    spelled: dict[str, str | dict[str, str]] = {}
    for journal, messages in acks.items():
        try:
            spelled[journal] = messages.decode()
        except UnicodeDecodeError:
            spelled[journal] = {"base64": base64.b64encode(messages).decode()}
    return spelled


def _read(held: object) -> bytes:
    match held:
        case str():
            return held.encode()
        case {"base64": str(digits)}:
            return base64.b64decode(digits)
        case _:
            raise CorruptError(f"a record of the commit journal holds acknowledgements as {str(held)[:64]!r}")
