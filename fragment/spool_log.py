"""The log of commit records beside a spool's content: written append-only, read back after a crash.

A frame is a header (length of the payload, and a CRC of that length), the payload, and a CRC of the payload.
The header has a CRC of its own so that a damaged length cannot pass for a record that was cut short: only the
latter is what a crash leaves behind, and only the latter may be forgotten.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar
from zlib import crc32

from google.protobuf.message import DecodeError

from fragment.spool import NO_EPOCH, EpochMark, Spool
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import NO_SUM
from protocol.gen import journal_pb2, spool_pb2
from protocol.label import LabelSet

T = TypeVar("T")

VERSION = 1
RECORD_BYTES_MAX = 1 << 20
"""More than any spec and any registers take; a greater length is damage, whatever its CRC says."""

_HEADER = struct.Struct("<II")
_TRAILER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit: what the spool was, when, and under which start of the machine."""

    journal: str
    # The incarnation of the journal, of which `epoch` says nothing where none is kept.
    create_revision: int
    epoch: EpochMark
    begin: int
    end: int
    sum: bytes
    codec: CompressionCodec
    registers: LabelSet
    acked_through: int | None
    first_append_ns: int | None
    boot_id: bytes
    synced: bool
    # The last spec seen, as protobuf; empty where none was given.
    spec: bytes
    # The bytes are in a store, and need not be here.
    persisted: bool


class LogEncoder:
    """Makes the frames of one log. What its records share is encoded once: a commit should cost little more
    than the write of its record."""

    def __init__(self, boot_id: bytes, synced: bool, create_revision: int = 0, last_spec: bytes | None = None) -> None:
        """`create_revision` is that of the journal; `last_spec` that of the log's last record, where there is one."""
        self.synced = synced
        self._boot_id = boot_id
        self._create_revision = create_revision
        self._shared_key: object = None
        self._shared = b""
        self._last_spec = last_spec

    @property
    def last_spec(self) -> bytes:
        return self._last_spec or b""

    def encode(self, spool: Spool, spec: bytes, *, persisted: bool = False) -> bytes:
        """The frame of a commit record of `spool`, whose journal's spec is now `spec`."""
        fragment = spool.fragment
        key = (fragment.begin, fragment.codec, spool.epoch)
        if key != self._shared_key:
            self._shared, self._shared_key = self._encode_shared(spool), key
        message = spool_pb2.SpoolRecord(
            end=fragment.end,
            sum=fragment.sum if fragment.end > fragment.begin else b"",
            # One more than it is, so that zero says that it is not known.
            acked_through=0 if spool.acked_through is None else spool.acked_through + 1,
            first_append_ns=spool.first_append_ns or 0,
            persisted=persisted,
        )
        if spool.registers.labels:
            message.registers.CopyFrom(spool.registers.to_proto())
        if spec != self._last_spec:
            message.spec.ParseFromString(spec)
        # Encoded messages that follow each other read as one.
        payload = self._shared + message.SerializeToString()
        if len(payload) > RECORD_BYTES_MAX:
            raise ValidationError(
                f"the registers and the spec of {fragment.journal} take {len(payload)} bytes in a commit record, "
                f"which holds {RECORD_BYTES_MAX}: remove registers"
            )
        length = len(payload).to_bytes(4, "little")
        return b"".join((length, _TRAILER.pack(crc32(length)), payload, _TRAILER.pack(crc32(payload))))

    def written(self, spec: bytes) -> None:
        """The last frame is in the log, so the next one may leave its spec out where it is the same."""
        self._last_spec = spec

    def _encode_shared(self, spool: Spool) -> bytes:
        return spool_pb2.SpoolRecord(
            version=VERSION,
            journal=spool.fragment.journal,
            create_revision=spool.epoch.create_revision or self._create_revision,
            epoch=spool.epoch.number,
            begin=spool.fragment.begin,
            codec=journal_pb2.CompressionCodec.ValueType(spool.fragment.codec),
            boot_id=self._boot_id,
            synced=self.synced,
        ).SerializeToString()


class Tail(Enum):
    """How a log ends."""

    WHOLE = "the last record is whole"
    TORN = "the last record was cut short, as by a crash while it was written"
    DAMAGED = "a record does not hold up against its checksum"


@dataclass(frozen=True, slots=True)
class Log:
    """The whole records of a log, and how it ends. `length` is where the last whole one does."""

    records: tuple[CommitRecord, ...]
    tail: Tail
    length: int


def decode(data: bytes) -> Log:
    """Read a log as far as it can be believed. Nothing behind the first doubt is."""
    records: list[CommitRecord] = []
    at = 0
    while at < len(data):
        framed = _frame(data, at)
        if isinstance(framed, Tail):
            return Log(tuple(records), framed, at)
        payload, end = framed
        record = _record(payload, records[-1] if records else None)
        if record is None:
            return Log(tuple(records), Tail.DAMAGED, at)
        records.append(record)
        at = end
    return Log(tuple(records), Tail.WHOLE, at)


def _frame(data: bytes, at: int) -> tuple[bytes, int] | Tail:
    """The payload of the frame at `at` and where the next begins, or how the log ends here."""
    if len(data) - at < _HEADER.size:
        return Tail.TORN
    length, check = _HEADER.unpack_from(data, at)
    if check != crc32(data[at : at + 4]) or length > RECORD_BYTES_MAX:
        return Tail.DAMAGED
    begin, end = at + _HEADER.size, at + _HEADER.size + length
    if end + _TRAILER.size > len(data):
        return Tail.TORN
    payload = data[begin:end]
    if _TRAILER.unpack_from(data, end)[0] != crc32(payload):
        return Tail.DAMAGED
    return payload, end + _TRAILER.size


def _record(payload: bytes, before: CommitRecord | None) -> CommitRecord | None:
    """A record that says what it should, or None: the checksum held, so whoever wrote it was not us."""
    try:
        message = spool_pb2.SpoolRecord.FromString(payload)
        codec = CompressionCodec(message.codec)
    except (DecodeError, ValueError):
        return None
    if message.version != VERSION or not 0 <= message.begin <= message.end:
        return None
    spec = message.spec.SerializeToString() if message.HasField("spec") else None
    record = CommitRecord(
        _shared(message.journal, before.journal if before else None),
        message.create_revision,
        _shared(_mark(message), before.epoch if before else None),
        message.begin,
        message.end,
        message.sum or NO_SUM,
        codec,
        _shared(LabelSet.from_proto(message.registers), before.registers if before else None),
        message.acked_through - 1 if message.acked_through else None,
        message.first_append_ns or None,
        _shared(message.boot_id, before.boot_id if before else None),
        message.synced,
        spec if spec is not None else (before.spec if before else b""),
        message.persisted,
    )
    if before and (record.journal, record.begin) != (before.journal, before.begin):
        return None
    return record if before is None or record.end >= before.end else None


def _mark(message: spool_pb2.SpoolRecord) -> EpochMark:
    return EpochMark(message.create_revision, message.epoch) if message.epoch else NO_EPOCH


def _shared(value: T, before: T | None) -> T:
    """The same object as in the record before, where it is equal: a log may have a million records."""
    return before if before is not None and before == value else value
