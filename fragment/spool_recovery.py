"""What the files of a spool are worth after the process that wrote them has ended.

Recovery classifies and never guesses. It offers nothing to anyone: what a copy may be used for is decided by
the epochs of its journal, not here.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from fragment.spool import NO_EPOCH, CopyEnd, Spool
from fragment.spool_log import CommitRecord, Log, Tail
from protocol.fragment import NO_SUM, Fragment


class Worth(Enum):
    WHOLE = "content and log end at the last commit"
    CUT = "what follows the last commit was never committed, and is cut"
    DAMAGED = "committed bytes are missing or wrong: it proves no end"
    STORED = "its bytes are in a store; it tells where this directory's commits of an epoch ended"
    EMPTY = "nothing was ever committed"


@dataclass(frozen=True, slots=True)
class Copy:
    """The classified copy of one fragment."""

    worth: Worth
    # Why, where it is damaged.
    reason: str
    # The whole records of the log, oldest first. The first may be the mere beginning of a fragment.
    records: tuple[CommitRecord, ...]
    # The greatest commit whose bytes are all there and match its sum.
    verified: CommitRecord | None
    # Where the last whole record of the log ends.
    log_length: int = 0

    @property
    def last(self) -> CommitRecord | None:
        return self.records[-1] if self.records else None

    @property
    def fragment(self) -> Fragment | None:
        """What an undamaged copy holds."""
        last = self.last
        return fragment_at(last) if last and self.worth in (Worth.WHOLE, Worth.CUT) else None

    @property
    def sound_through(self) -> int | None:
        """Up to where the content of a damaged copy is as it was written; None where nothing is damaged."""
        if self.worth is not Worth.DAMAGED or self.last is None:
            return None
        return self.verified.end if self.verified is not None else self.last.begin

    def cut_at(self, end: int) -> CommitRecord | None:
        """The greatest verified commit at or below `end`: where this copy is cut when its epoch closes there."""
        if self.verified is None:
            return None
        fitting = [record for record in self.records if record.end <= min(end, self.verified.end)]
        return fitting[-1] if fitting else None


def spool_of(copy: Copy) -> Spool:
    """As it was at its last commit, or at the last that its content bears out."""
    last = copy.last
    assert last is not None, "nothing was ever committed to it"
    held = last if copy.worth is not Worth.DAMAGED else (copy.verified or copy.records[0])
    mark = last.epoch
    end = None if mark == NO_EPOCH else CopyEnd(mark, last.end, last.registers)
    return Spool(
        fragment_at(held),
        held.registers,
        first_append_ns=held.first_append_ns,
        copy=end,
        acked_through=last.acked_through,
    )


def fragment_at(record: CommitRecord) -> Fragment:
    """The fragment as it was at that commit."""
    return Fragment(record.journal, record.begin, record.end, record.sum, record.codec)


def classify(log: Log, content: Iterable[bytes], content_length: int, boot_id: bytes) -> Copy:
    """Judge a copy by its log and its content, which is read once, in order, as far as the last commit."""
    if not log.records:
        if log.tail is Tail.DAMAGED:
            return Copy(Worth.DAMAGED, "the first record of the log is damaged", (), None)
        return Copy(Worth.EMPTY, "", (), None)
    last = log.records[-1]
    if last.persisted and log.tail is not Tail.DAMAGED:
        return Copy(Worth.STORED, "", log.records, None, log.length)
    verified = _verified(log.records, content)
    reason = _damage(log, last, content_length, verified, boot_id)
    if reason:
        return Copy(Worth.DAMAGED, reason, log.records, verified, log.length)
    exact = log.tail is Tail.WHOLE and content_length == last.end - last.begin
    return Copy(Worth.WHOLE if exact else Worth.CUT, "", log.records, verified, log.length)


def _damage(log: Log, last: CommitRecord, content_length: int, verified: CommitRecord | None, boot_id: bytes) -> str:
    if log.tail is Tail.DAMAGED:
        return f"the log is damaged after its record of offset {last.end}"
    if content_length < last.end - last.begin:
        return f"{last.end - last.begin} bytes were committed, {content_length} are there"
    if verified != last:
        return f"the bytes of [{last.begin}, {last.end}) do not match their SHA-1"
    # What was not synced may be gone although nothing shows it: pages reach the disk in any order.
    unsynced = [record for record in log.records if not record.synced and record.boot_id != boot_id]
    if unsynced:
        return "the machine was started anew since, and the commits had not been synced to disk"
    return ""


def _verified(records: tuple[CommitRecord, ...], content: Iterable[bytes]) -> CommitRecord | None:
    """The greatest commit that the content bears out. A wrong byte spoils all commits after it, too."""
    verified: CommitRecord | None = None
    digest, at, due = hashlib.sha1(), records[0].begin, deque(records)
    for chunk in _chunks_and_end(content):
        while due and due[0].end <= at + len(chunk):
            upto = due[0].end - at
            digest.update(chunk[:upto])
            chunk, at = chunk[upto:], at + upto
            record = due.popleft()
            expected = NO_SUM if record.end == record.begin else digest.digest()
            if record.sum != expected:
                return verified
            verified = record
        digest.update(chunk)
        at += len(chunk)
        if not due:
            break
    return verified


def _chunks_and_end(content: Iterable[bytes]) -> Iterable[memoryview]:
    """Every chunk, and an empty one: commits that end where the content does are judged even if it has none."""
    for chunk in content:
        yield memoryview(chunk)
    yield memoryview(b"")
