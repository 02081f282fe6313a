"""SinkOptions: what a user says of a write, judged once, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from protocol.errors import ValidationError, checked
from protocol.identifier import check_journal, check_token
from protocol.selector import LabelSelector
from spark_readers.broker_access import SECURITY_OPTIONS, BrokerAccess, refuse_secret

UUID_FIELD = "UUID"
VALUE_COLUMN = "value"
# As much as fits into the name of a register beside its prefix.
APP_BYTES = (2, 60)

_TRANSACTION = ("txnAppId", "txnVersion", "commitJournal")
_KNOWN = (
    *("broker", "journal", "journals", "selector", "journalColumn", "keyColumn", "mapping"),
    *("framing", "uuidField", "jsonColumn", "descriptorFile", "messageName", *_TRANSACTION, *SECURITY_OPTIONS),
)
# Spark's own, and those that come along where a DataFrame was made of our tables with the same options.
_PASSED_OVER = ("path", "checkpointLocation", "queryName", "outputMode")
_TEXTS = ("string", "char", "varchar")
_VERSION_MAX = (1 << 63) - 1
_WITH_UUIDS = "json and csv have UUIDs, and so has fixed with a descriptorFile and a messageName"

E = TypeVar("E", bound=Enum)


class SinkFraming(Enum):
    """How rows become bytes."""

    JSON = "json"
    LINES = "lines"
    CSV = "csv"
    FIXED = "fixed"
    BYTES = "bytes"


class KeyMapping(Enum):
    """How a row's key chooses among journals."""

    MODULO = "modulo"
    RENDEZVOUS = "rendezvous"
    # The key is the journal's name.
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Under which name a write is remembered, so that its rerun is not a second one."""

    commit_journal: str
    # None: the id of the streaming query.
    app: str | None
    # None: the id of the micro-batch.
    version: int | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """
    >>> SinkOptions.of({"broker": "localhost:8080", "journal": "acme/orders"}, {"order": "long"}).uuid_path
    ('UUID',)
    """

    broker: BrokerAccess
    framing: SinkFraming
    # Only a message with a UUID can wait for an acknowledgement, or be known for a duplicate.
    has_uuids: bool
    # Where in a message it is; empty for CSV, whose first field it is.
    uuid_path: tuple[str, ...]
    # A file with a FileDescriptorSet, and which of its messages the frames hold; empty if nobody has to know.
    descriptor_file: str
    message_name: str
    # One of these three says where rows go.
    journals: tuple[str, ...]
    selector: str
    journal_column: str
    key_column: str
    mapping: KeyMapping
    # The one column that is written, as it is; empty if all are, each as a field.
    content_column: str
    # How many columns are written.
    column_count: int
    transaction: Transaction | None

    @classmethod
    def of(cls, given: Mapping[str, str], columns: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
        """`columns` are the names and types of the DataFrame, as Spark has them."""
        options = _Options(given)
        framing = options.one_of("framing", SinkFraming, SinkFraming.JSON)
        descriptor_file, message_name = _descriptor(options, framing)
        has_uuids = framing in (SinkFraming.JSON, SinkFraming.CSV) or bool(descriptor_file)
        journals, selector, journal_column = _target(options, columns)
        if not has_uuids:
            _check_without_uuids(options, framing)
        transaction = _transaction(options, streaming) if has_uuids else None
        if transaction is not None:
            check_apart(transaction.commit_journal, journals)
        written = set(columns) - {journal_column}
        if not written:
            raise ValidationError(
                "there is no column besides the journal's: select what is to be written", "journalColumn"
            )
        key_column = options.column("keyColumn", columns)
        if (len(journals) > 1 or selector) and not key_column:
            raise ValidationError("several journals need a column that says which: give keyColumn", "keyColumn")
        if key_column and (len(journals) == 1 or journal_column):
            raise ValidationError(
                "a key chooses among the journals of `journals` or `selector`: leave it out, or give those", "keyColumn"
            )
        return cls(
            BrokerAccess.of({name: options.text(name) for name in ("broker", *SECURITY_OPTIONS)}),
            framing,
            has_uuids,
            _uuid_path(options, framing, columns) if has_uuids else (),
            descriptor_file,
            message_name,
            journals,
            selector,
            journal_column,
            key_column,
            _mapping(options, journal_column),
            _content_column(options, framing, columns),
            len(written),
            transaction,
        )


def check_apart(commit_journal: str, journals: Sequence[str]) -> None:
    """Rows and the records of commits must not meet in one journal."""
    if commit_journal in journals:
        raise ValidationError(f"rows go to {commit_journal} as well: give a journal of its own", "commitJournal")


class _Options:
    """Names as users write them; Spark does not tell upper case from lower."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}
        known = {name.lower() for name in (*_KNOWN, *_PASSED_OVER)}
        for name in given:
            refuse_secret(name)
        for name in self._given:
            if name not in known:
                raise ValidationError(f"no such option of a write: the ones there are: {', '.join(_KNOWN)}", name)

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), "")

    def one_of(self, name: str, kind: type[E], default: E) -> E:
        text = self.text(name)
        try:
            return kind(text.lower()) if text else default
        except ValueError:
            raise ValidationError(f"expected {_listed(kind)} (got {text[:64]!r})", name) from None

    def column(self, name: str, columns: Mapping[str, str]) -> str:
        """The name of a column that exists and holds something like a key."""
        text = self.text(name)
        if text and text not in columns:
            raise ValidationError(f"there is no column {text!r}: the ones there are: {', '.join(columns)}", name)
        if text and columns[text] in ("array", "map", "struct"):
            raise ValidationError(f"column {text!r} is of type {columns[text]}: cast it to string", name)
        return text


def _listed(kind: type[Enum]) -> str:
    *names, last = [str(member.value) for member in kind]
    return f"{', '.join(names)} or {last}"


def _target(options: _Options, columns: Mapping[str, str]) -> tuple[tuple[str, ...], str, str]:
    named = [name for name in ("journal", "journals", "selector", "journalColumn") if options.text(name)]
    if len(named) != 1:
        raise ValidationError(
            "say where rows go by exactly one of: journal, journals (names with commas), selector, journalColumn"
            + (f" (got {' and '.join(named)})" if named else ""),
            "journal",
        )
    journals = tuple(sorted({part.strip() for part in options.text(named[0]).split(",")}))
    match named[0]:
        case "journal" | "journals":
            if named[0] == "journal" and len(journals) > 1:
                raise ValidationError("expected one journal: to name several, use journals with a keyColumn", "journal")
            for journal in journals:
                checked(named[0], check_journal, journal)
            return journals, "", ""
        case "selector":
            _within("selector", LabelSelector.parse, options.text("selector"))
            return (), options.text("selector"), ""
        case _:
            return (), "", options.column("journalColumn", columns)


def _within(field: str, parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except ValidationError as error:
        raise error.within(field) from None


def _mapping(options: _Options, journal_column: str) -> KeyMapping:
    mapping = options.one_of("mapping", KeyMapping, KeyMapping.DIRECT if journal_column else KeyMapping.MODULO)
    if mapping is KeyMapping.DIRECT and not journal_column:
        raise ValidationError(
            "direct takes the names of journals from a column: give journalColumn and no other target", "mapping"
        )
    if journal_column and mapping is not KeyMapping.DIRECT:
        raise ValidationError(
            f"{mapping.value} chooses among the journals of `journals` or `selector`, by keyColumn; journalColumn is "
            "direct: leave one of them out",
            "mapping",
        )
    return mapping


def _descriptor(options: _Options, framing: SinkFraming) -> tuple[str, str]:
    """The file of a descriptor set and the name of a message in it, or nothing."""
    file, message = options.text("descriptorFile"), options.text("messageName")
    if bool(file) != bool(message):
        lacking = "messageName" if file else "descriptorFile"
        raise ValidationError("a descriptor set and the name of one of its messages go together", lacking)
    if file and framing is not SinkFraming.FIXED:
        raise ValidationError(
            "protobuf messages are in frames of fixed headers: set framing to fixed", "descriptorFile"
        )
    return file, message


def _uuid_path(options: _Options, framing: SinkFraming, columns: Mapping[str, str]) -> tuple[str, ...]:
    if framing is SinkFraming.CSV:
        if options.text("uuidField"):
            raise ValidationError("the UUID of a CSV record is its first field: leave this out", "uuidField")
        return ()
    path = tuple((options.text("uuidField") or UUID_FIELD).split("."))
    if not all(path):
        raise ValidationError("expected the names of nested fields with dots between, such as _meta.uuid", "uuidField")
    is_row = framing is SinkFraming.JSON and not options.text("jsonColumn")
    if len(path) > 1 and is_row and columns.get(path[0], "struct") != "struct":
        raise ValidationError(
            f"column {path[0]!r} is of type {columns[path[0]]}, so no field can be put into it: drop or rename it",
            "uuidField",
        )
    return path


def _content_column(options: _Options, framing: SinkFraming, columns: Mapping[str, str]) -> str:
    """The one column that is written, if it is one."""
    if framing is SinkFraming.JSON:
        column = options.column("jsonColumn", columns)
        if column and columns[column] not in _TEXTS:
            raise ValidationError(f"column {column!r} is no text: make one of it by to_json", "jsonColumn")
        return column
    if options.text("jsonColumn"):
        raise ValidationError("only framing json has it", "jsonColumn")
    if framing is SinkFraming.CSV:
        return ""
    accepted = ("binary",) if framing is SinkFraming.FIXED else (*_TEXTS, "binary")
    if columns.get(VALUE_COLUMN) not in accepted:
        raise ValidationError(
            f"framing {framing.value} writes the column {VALUE_COLUMN!r}, of type {' or '.join(accepted)}: "
            f"select one under that name (the columns are {', '.join(columns)})",
            "framing",
        )
    return VALUE_COLUMN


def _check_without_uuids(options: _Options, framing: SinkFraming) -> None:
    if options.text("uuidField"):
        raise ValidationError(f"framing {framing.value} has no place for a UUID: {_WITH_UUIDS}", "uuidField")
    for name in _TRANSACTION:
        if options.text(name):
            raise ValidationError(
                f"framing {framing.value} has no UUIDs, so rows are written at least once and no write can be told "
                f"from its rerun: leave this out, or choose another ({_WITH_UUIDS})",
                name,
            )


def _transaction(options: _Options, streaming: bool) -> Transaction | None:
    if not streaming and not any(map(options.text, _TRANSACTION)):
        return None
    _check_transaction(options, streaming)
    app, journal = options.text("txnAppId"), options.text("commitJournal")
    checked("commitJournal", check_journal, journal)
    if app:
        checked("txnAppId", check_token, app, *APP_BYTES)
    return Transaction(journal, app or None, None if streaming else _version(options.text("txnVersion")))


def _check_transaction(options: _Options, streaming: bool) -> None:
    """That of its options those are given which are needed."""
    if streaming:
        if options.text("txnVersion"):
            raise ValidationError("the version of a micro-batch is its id: leave this out", "txnVersion")
        if not options.text("commitJournal"):
            raise ValidationError(
                "a micro-batch that Spark runs again must find what was committed of it: give the name of a journal "
                "that keeps this, and create it first",
                "commitJournal",
            )
        return
    for name in _TRANSACTION:
        if not options.text(name):
            raise ValidationError(
                "a write that may be run again needs all three of txnAppId, txnVersion and commitJournal: give this "
                "too, or none of them",
                name,
            )


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _VERSION_MAX):
        raise ValidationError(
            f"expected a whole number from 0 on, larger with each write (got {text[:64]!r})", "txnVersion"
        )
    return int(text)
