"""Frames of one CSV record each, by the rules of RFC 4180 as Go reads and writes them.

Python's ``csv`` module is not used: it lets stray quotes pass, and cannot say at which byte a record ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from consumer.message.frame import FRAME_BYTES_MAX, Frame, Skipped
from consumer.message.line_framing import LineDecoder
from protocol.errors import CorruptError, ValidationError

# A leading blank is quoted, as some readers trim it; `\.` alone ends the input of Postgres.
_BLANKS = r"\t\v\f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_QUOTED = re.compile(rf'[",\r\n]|\A[{_BLANKS}]|\A\\\.\Z')
_BLANK_LINES = (b"", b"\r")


def encode(fields: Sequence[str]) -> bytes:
    """
    >>> encode(["83fc2f95-cc5f-11e9-8001-0b1122334455", "a,b", " lead"])
    b'83fc2f95-cc5f-11e9-8001-0b1122334455,"a,b"," lead"\\n'
    """
    if not any(fields) and len(fields) < 2:
        raise ValidationError("a record without content would be read as a blank line: give it a UUID")
    try:
        return ",".join(map(_quoted, fields)).encode() + b"\n"
    except UnicodeEncodeError:
        raise ValidationError("a field holds half of a surrogate pair, which UTF-8 cannot express") from None


def parse(record: bytes, columns: int | None) -> list[str]:
    """The fields of one record, with or without its newline.

    All records of a journal have the same number of `columns`: pass None for the first one read, and the
    length of what it returned from there on. By convention the first field is a UUID, which is not checked.
    """
    try:
        # A carriage return belongs to the line end, in quoted fields as well.
        text = record.decode().removesuffix("\n").removesuffix("\r").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValidationError(f"expected a CSV record in UTF-8: byte {error.start} is not") from None
    if '"' in text:
        fields = _fields(text)
    elif "\n" in text:
        raise ValidationError("a newline within a CSV record must be quoted")
    else:
        fields = text.split(",")
    if columns is not None and len(fields) != columns:
        raise ValidationError(f"expected a CSV record of {columns} columns, as those before (got {len(fields)})")
    return fields


class CsvDecoder:
    """Finds records in bytes that arrive in pieces of any size.

    A record ends with its line, unless the newline is quoted. Blank lines are passed over. Malformed records
    end with their line and are yielded like others, for ``parse`` to refuse.
    """

    def __init__(self, begin: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._lines = LineDecoder(begin, frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        # Lines of a record whose last field is still quoted, and where the record begins. They are joined at
        # once, as many short lines kept one by one would take a hundred times their size.
        self._open = bytearray()
        self._open_begin = begin

    def feed(self, data: bytes) -> list[Frame | Skipped]:
        found: list[Frame | Skipped] = []
        for line in self._lines.feed(data):
            decoded = self._on_line(line) if isinstance(line, Frame) else self._abandoned(line)
            if decoded is not None:
                found.append(decoded)
        return found

    def end(self) -> list[Frame | Skipped]:
        """To be called when the stream has ended: raises if it did so within quotes. No newline is needed."""
        rest = self._lines.rest()
        if rest is None:
            self._lines.end()
        last = None if rest is None else self._on_line(rest)
        if self._open:
            raise CorruptError(f"the stream ends within the quoted field of a record at offset {self._open_begin}")
        return [] if last is None else [last]

    def _on_line(self, line: Frame) -> Frame | Skipped | None:
        begin, end, payload = line
        is_open = bool(self._open)
        if not is_open:
            if payload in _BLANK_LINES:
                return None
            if b'"' not in payload:
                return line
            self._open_begin = begin
        self._open += payload
        if len(self._open) > self._frame_bytes_max:
            why = f"a record is over the limit of {self._frame_bytes_max} bytes"
            return self._abandoned(Skipped(begin, end, why))
        if _ends_quoted(payload, is_open):
            self._open += b"\n"
            return None
        record = Frame(self._open_begin, end, bytes(self._open))
        self._open.clear()
        return record

    def _abandoned(self, line: Skipped) -> Skipped:
        """What was gathered of a record, up to and with a line that makes it too long."""
        begin = self._open_begin if self._open else line.begin
        self._open.clear()
        return Skipped(begin, line.end, line.why)


def _quoted(field: str) -> str:
    if _QUOTED.search(field) is None:
        return field
    return '"' + field.replace('"', '""') + '"'


def _ends_quoted(line: bytes, quoted: bool) -> bool:
    """Whether the end of a line is within a quoted field, given whether its beginning is.

    False as well where a quote is out of place: the record is malformed, and must not swallow those after it.
    """
    at = 0
    while True:
        if quoted:
            at = line.find(b'"', at) + 1
            if at == 0:
                return True
            if line[at : at + 1] == b'"':
                at += 1
                continue
            if line[at : at + 1] != b",":
                return False
            at += 1
        quoted = line[at : at + 1] == b'"'
        if quoted:
            at += 1
            continue
        comma = line.find(b",", at)
        if comma < 0 or line.find(b'"', at, comma) >= 0:
            return False
        at = comma + 1


def _fields(text: str) -> list[str]:
    """The fields of a record that has quotes."""
    fields = []
    at = 0
    while True:
        if text[at : at + 1] == '"':
            field, at = _quoted_field(text, at + 1)
        else:
            comma = text.find(",", at)
            end = comma if comma >= 0 else len(text)
            field, at = text[at:end], end
            if '"' in field or "\n" in field:
                raise ValidationError("a CSV field that holds quotes or newlines must be quoted itself")
        fields.append(field)
        if at == len(text):
            return fields
        at += 1


def _quoted_field(text: str, at: int) -> tuple[str, int]:
    """The field whose content begins at `at`, and where the comma or the end after it is."""
    parts = []
    while True:
        quote = text.find('"', at)
        if quote < 0:
            raise ValidationError("a quoted CSV field is not closed")
        parts.append(text[at:quote])
        at = quote + 1
        if text[at : at + 1] != '"':
            break
        parts.append('"')
        at += 1
    if at < len(text) and text[at] != ",":
        raise ValidationError("a quoted CSV field must end at a comma or at the end of its record")
    return "".join(parts), at
