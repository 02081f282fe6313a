"""The two files of a spool: its content, and the log of commit records beside it.

Everything here blocks and runs on a worker thread. A spool is held by one stream at a time, so only reading is
concurrent with anything: readers stop at what is visible, and what is visible is never written again.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from fragment.spool import Spool
from fragment.spool_budget import SpoolBudget
from fragment.spool_log import LogEncoder, decode
from fragment.spool_recovery import fragment_at
from protocol.errors import UnavailableError
from protocol.fragment import Fragment

CONTENT_SUFFIX = ".content"
LOG_SUFFIX = ".commits"
PACKED_SUFFIX = ".packed"
"""Of the object that is being made from the content. It is never trusted after a restart."""
DOUBT_SUFFIX = ".doubt"
"""Beside a damaged spool: what was found out about it, as of when it was found."""

END_SPACING_BYTES = 64 << 10
"""How far apart the commit ends are that are kept in memory: appends may be tiny, and there may be millions."""


class SpoolEndedError(UnavailableError):
    """This spool takes no more writes, ever: what is on disk may not be what was written. Begin another one."""


_REOPENING = threading.Lock()


class SpoolFile:
    """The files of one fragment. They close when the last who holds this lets go."""

    def __init__(self, stem: Path, begin: int, encoder: LogEncoder, budget: SpoolBudget) -> None:
        """`stem` is the path of both files without suffix; `begin` is where the fragment does."""
        self.stem = stem
        self.begin = begin
        self._encoder = encoder
        self._budget = budget
        self._content_length = 0
        self._log_length = 0
        # Bytes of these files that the budget counts.
        self._counted = 0
        # Some of the ends of commits, ascending: where the content may be cut so that no append is.
        self.commit_ends: list[int] = []
        self._ended: str | None = None
        # Set after a write and cleared before a sync, so that a write beside a periodic sync is never missed.
        self._content_dirty = False
        self._log_dirty = False
        self._log = self._content = -1

    @classmethod
    def created(cls, stem: Path, begin: int, encoder: LogEncoder, budget: SpoolBudget) -> SpoolFile:
        file = cls(stem, begin, encoder, budget)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            # The log first: content without a log was never committed, a log without content may have lost it.
            file._log = os.open(file.log_path, flags, 0o640)
            file._content = os.open(file.content_path, flags, 0o640)
        except OSError as error:
            file.remove()
            raise _unavailable("create", stem, error) from error
        return file

    @classmethod
    def reopened(
        cls, stem: Path, begin: int, encoder: LogEncoder, budget: SpoolBudget, lengths: tuple[int, int, int]
    ) -> SpoolFile:
        """What an earlier process left, which the budget counts already: so long is the content, and so long the log,
        of which so much is good. The files are opened when somebody needs them, since there may be thousands."""
        file = cls(stem, begin, encoder, budget)
        file._content_length, log_length, file._log_length = lengths
        file._counted = file._content_length + log_length
        return file

    def _reopen(self) -> None:
        with _REOPENING:
            if self._log >= 0:
                return
            flags = os.O_RDWR | os.O_CLOEXEC
            try:
                log = os.open(self.log_path, flags)
                if self.content_path.exists():
                    self._content = os.open(self.content_path, flags)
                self._log = log
            except OSError as error:
                raise _unavailable("open", self.stem, error) from error

    @property
    def content_path(self) -> Path:
        return self.stem.with_name(self.stem.name + CONTENT_SUFFIX)

    @property
    def log_path(self) -> Path:
        return self.stem.with_name(self.stem.name + LOG_SUFFIX)

    @property
    def packed_path(self) -> Path:
        return self.stem.with_name(self.stem.name + PACKED_SUFFIX)

    @property
    def has_ended(self) -> bool:
        """Whether what is on disk may not be what was written."""
        return self._ended is not None

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Put all of `data` at `position`. If that fails, nothing that was committed has changed."""
        self._check_open()
        try:
            _pwrite_all(self._content, data, position)
        except OSError as error:
            raise _unavailable("write", self.stem, error) from error
        self._content_dirty = True
        grown = position + len(data) - self._content_length
        if grown > 0:
            self._content_length += grown
            self._count(grown)

    def record(self, spool: Spool, spec: bytes, *, persisted: bool = False) -> None:
        """Append a commit record. If that fails, the log ends where it did before."""
        self._check_open()
        if self._log < 0:
            self._reopen()
        frame = self._encoder.encode(spool, spec, persisted=persisted)
        try:
            _pwrite_all(self._log, frame, self._log_length)
        except OSError as error:
            self._cut_log(error)
            raise _unavailable("write", self.stem, error) from error
        self._encoder.written(spec)
        self._log_length += len(frame)
        self._count(len(frame))
        self._log_dirty = True
        end = spool.fragment.end
        if end >= (self.commit_ends[-1] if self.commit_ends else self.begin) + END_SPACING_BYTES:
            self.commit_ends.append(end)

    def sync(self) -> None:
        """Have everything on disk that was written so far.

        A sync that fails is not tried again: the kernel forgets the pages it could not write, so a second one
        would succeed and prove nothing.
        """
        self._check_open()
        try:
            if self._content_dirty:
                self._content_dirty = False
                os.fdatasync(self._content)
            if self._log_dirty:
                self._log_dirty = False
                os.fdatasync(self._log)
        except OSError as error:
            self._ended = f"it could not be synced to disk: {error.strerror}"
            raise self._ended_error() from error

    @property
    def is_dirty(self) -> bool:
        return self._ended is None and (self._content_dirty or self._log_dirty)

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`, as many as there are."""
        if self._log < 0:
            self._reopen()
        return os.pread(self._content, length, position)

    def commit_at(self, end: int) -> Fragment | None:
        """The greatest commit at or below `end`, by the log: where the content is cut if its epoch is closed there."""
        if self._log < 0:
            self._reopen()
        records = decode(os.pread(self._log, self._log_length, 0)).records
        return next((fragment_at(record) for record in reversed(records) if self.begin < record.end <= end), None)

    def cut_log(self) -> None:
        """Without what a crash has left after the last whole record: the next one would count as damage."""
        try:
            os.truncate(self.log_path, self._log_length)
        except OSError as error:
            raise _unavailable("write", self.stem, error) from error

    def content_fileno(self) -> int:
        """For whoever sends or compresses the content. Valid while this object is held."""
        if self._log < 0:
            self._reopen()
        return self._content

    @property
    def last_spec(self) -> bytes:
        """The spec of the last record, as protobuf; empty where none was given."""
        return self._encoder.last_spec

    def remove(self) -> None:
        """Unlink the files. Open descriptors stay good for those who are still reading."""
        # The log first: should the process die in between, content without one counts as never committed.
        for path in (self.log_path, self.content_path, self.packed_path, doubt_path(self.stem)):
            path.unlink(missing_ok=True)
        self._release(self._counted)

    def remove_content(self, spool: Spool) -> None:
        """Unlink the content, which is in a store, and let the log say so: its last record is still needed."""
        self.record(spool, self.last_spec, persisted=True)
        # The content is about to go: only its last word is worth the disk's time, and only where commits are.
        self._content_dirty = False
        if self._encoder.synced:
            self.sync()
        for path in (self.content_path, self.packed_path):
            path.unlink(missing_ok=True)
        self._release(min(self._content_length, self._counted))

    def log_only(self) -> SpoolFile:
        """For whoever still needs the log, once the content was removed: that is gone with those who read it."""
        file = SpoolFile(self.stem, self.begin, self._encoder, self._budget)
        file._log_length, file._counted, file._ended = self._log_length, self._counted, self._ended
        self._counted = 0
        return file

    def keep_for_good(self) -> None:
        """The files are all there is of their bytes: nobody waits for their upload."""
        self._release(self._counted)

    def _count(self, count: int) -> None:
        self._counted += count
        self._budget.grow(count)

    def _release(self, count: int) -> None:
        self._counted -= count
        self._budget.shrink(count)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended_error()

    def _ended_error(self) -> SpoolEndedError:
        return SpoolEndedError(f"the spool {self.stem.name} has ended: {self._ended}")

    def _cut_log(self, cause: OSError) -> None:
        try:
            os.ftruncate(self._log, self._log_length)
        except OSError as error:
            # A record after a torn one would be taken for damage.
            self._ended = f"a record could not be written ({cause.strerror}) nor taken back ({error.strerror})"
            raise self._ended_error() from error

    def __del__(self) -> None:
        for descriptor in (self._log, self._content):
            if descriptor >= 0:
                os.close(descriptor)


def doubt_path(stem: Path) -> Path:
    return stem.with_name(stem.name + DOUBT_SUFFIX)


def _pwrite_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    written = os.pwrite(descriptor, data, position)
    if written == len(data):
        return
    rest = memoryview(data)[written:]
    while rest:
        position += written
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]


def _unavailable(action: str, stem: Path, error: OSError) -> UnavailableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"the disk of {stem.parent} is full: free space, or lower --broker.spool-budget"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "the process is out of file descriptors: raise its limit (ulimit -n)"
    else:
        advice = f"check the disk of {stem.parent}"
    return UnavailableError(f"could not {action} the spool {stem.name}: {error.strerror}; {advice}")
