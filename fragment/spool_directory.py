"""SpoolDirectory: where a broker keeps its spools, with an identity of its own and an exclusive lock.

The identity stands for the whole content: not only what the directory holds proves something, but also what it
does not hold. So a directory that may have lost files without a trace takes a new one. Everything here blocks,
and is called at start-up or on a worker thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from fragment.spool import EpochMark
from fragment.spool_budget import SpoolBudget
from fragment.spool_file import (
    CONTENT_SUFFIX,
    DOUBT_SUFFIX,
    LOG_SUFFIX,
    PACKED_SUFFIX,
    SpoolEndedError,
    SpoolFile,
    doubt_path,
)
from fragment.spool_log import Log, LogEncoder, Tail, decode
from fragment.spool_recovery import Copy, Worth, classify
from protocol import duration
from protocol.errors import GazetteError, UnavailableError, ValidationError
from protocol.fragment import Fragment

FORMAT = 1
_IDENTITY = "identity.json"
_LOCK = "lock"
_READ_BYTES = 1 << 20


class DirectoryLockedError(GazetteError):
    """Another process uses this spool directory."""


@dataclass(frozen=True, slots=True)
class FsyncMode:
    """When spools reach the disk: never by our doing, with each commit, or every so many seconds."""

    commit: bool = False
    interval_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> FsyncMode:
        """The value of ``--broker.spool-fsync``: ``never``, ``commit``, or an interval such as ``100ms``."""
        if text == "never":
            return cls()
        if text == "commit":
            return cls(commit=True)
        try:
            nanos = duration.parse(text)
        except ValidationError:
            nanos = 0
        if nanos <= 0:
            raise ValidationError("expected never, commit, or an interval such as 100ms", "broker.spool-fsync")
        return cls(interval_s=nanos / 1e9)


@dataclass(frozen=True, slots=True)
class RecoveredSpool:
    """Files that an earlier process left behind, and what they are worth."""

    stem: Path
    copy: Copy
    # Of the content, and of the log.
    lengths: tuple[int, int]
    directory: SpoolDirectory
    # Of a damaged one: through which epoch it may have commits, if an earlier process has found that out.
    doubted_through: EpochMark | None = None

    def reopened(self) -> SpoolFile:
        """Its files, to be read and uploaded. Nothing more is ever written to the content."""
        last = self.copy.last
        assert last is not None, "nothing was ever committed to it"
        directory = self.directory
        encoder = LogEncoder(directory.boot_id, directory.syncs_commits, last.create_revision, last.spec)
        lengths = (*self.lengths, self.copy.log_length)
        file = SpoolFile.reopened(self.stem, last.begin, encoder, directory.budget, lengths)
        if self.copy.worth is not Worth.DAMAGED and self.lengths[1] > self.copy.log_length:
            file.cut_log()
        return file

    def doubt(self, through: EpochMark) -> None:
        """Have later processes know through which epoch it may have commits: later ones are not in it for sure."""
        text = json.dumps({"create_revision": through.create_revision, "number": through.number})
        _replace_synced(doubt_path(self.stem), text)

    def remove(self) -> None:
        for suffix in (LOG_SUFFIX, CONTENT_SUFFIX, DOUBT_SUFFIX):
            self.stem.with_name(self.stem.name + suffix).unlink(missing_ok=True)
        self.directory.budget.shrink(sum(self.lengths))


class SpoolDirectory:
    """An open, locked spool directory.

    The lock is held until ``close`` or the end of the process, whichever way it ends.
    """

    def __init__(self, path: Path, fsync: FsyncMode, boot_id: bytes, budget: SpoolBudget) -> None:
        path.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.path = path
        self.fsync = fsync
        self.boot_id = boot_id
        self.budget = budget
        # All that are still held by somebody, for the periodic sync.
        self._files: WeakSet[SpoolFile] = WeakSet()
        self._files_lock = threading.Lock()
        self._lock = _locked(path / _LOCK)
        try:
            self.spool_id, self.renewed = self._identify()
        except BaseException:
            self.close()
            raise

    @property
    def syncs_commits(self) -> bool:
        return self.fsync.commit

    def create(self, fragment: Fragment, create_revision: int = 0) -> SpoolFile:
        """Files for a fragment that begins, of that incarnation of its journal. Their name is for people; what they
        hold is in the log."""
        journal = hashlib.sha1(fragment.journal.encode()).hexdigest()[:12]
        stem = self.path / f"{journal}-{fragment.begin:016x}-{secrets.token_hex(4)}"
        encoder = LogEncoder(self.boot_id, self.syncs_commits, create_revision)
        file = SpoolFile.created(stem, fragment.begin, encoder, self.budget)
        with self._files_lock:
            self._files.add(file)
        if self.syncs_commits:
            try:
                self._sync_entries()
            except OSError as error:
                file.remove()
                raise UnavailableError(
                    f"could not sync the spool directory {self.path}: {error.strerror}; check its disk"
                ) from error
        return file

    def recover(self) -> Iterator[RecoveredSpool]:
        """Every copy an earlier process left here, classified. Call it before the first ``create``."""
        for packed in self.path.glob(f"*{PACKED_SUFFIX}"):
            packed.unlink()
        for stem in self._stems():
            content, log = (_size(stem.with_name(stem.name + suffix)) for suffix in (CONTENT_SUFFIX, LOG_SUFFIX))
            self.budget.grow(content + log)
            yield RecoveredSpool(stem, self._classified(stem), (content, log), self, _read_doubt(stem))

    def stem_count(self) -> int:
        """How many an earlier process left."""
        return len(self._stems())

    def sync_dirty(self) -> list[SpoolEndedError]:
        """Sync every spool that was written since the last time. A spool whose sync fails has ended, and is told."""
        with self._files_lock:
            dirty = [file for file in self._files if file.is_dirty]
        ended = []
        for file in dirty:
            try:
                file.sync()
            except SpoolEndedError as error:
                ended.append(error)
        return ended

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _stems(self) -> list[Path]:
        suffixes = (CONTENT_SUFFIX, LOG_SUFFIX)
        return sorted({path.with_suffix("") for path in self.path.iterdir() if path.suffix in suffixes})

    def _classified(self, stem: Path) -> Copy:
        """A file that cannot be read is worth as much as one that reads wrong: one bad sector must not keep a broker
        from starting."""
        log_path, content_path = (stem.with_name(stem.name + suffix) for suffix in (LOG_SUFFIX, CONTENT_SUFFIX))
        log = Log((), Tail.DAMAGED, 0)
        try:
            log = decode(log_path.read_bytes() if log_path.exists() else b"")
            if not content_path.exists():
                return classify(log, (), 0, self.boot_id)
            with content_path.open("rb") as content:
                length = os.fstat(content.fileno()).st_size
                return classify(log, iter(lambda: content.read(_READ_BYTES), b""), length, self.boot_id)
        except OSError as error:
            return Copy(Worth.DAMAGED, f"it cannot be read: {error.strerror}", log.records, None, log.length)

    def _identify(self) -> tuple[bytes, bool]:
        """The directory's id, and whether it is a new one because content may have been lost."""
        held = _read_identity(self.path / _IDENTITY)
        survived = held is not None and (held["boot_id"] == self.boot_id.hex() or held["synced"])
        if held is not None and survived:
            spool_id = bytes.fromhex(held["spool_id"])
            if self.syncs_commits and not held["synced"]:
                # Whatever an earlier, laxer process left must not be vouched for by this one's promise.
                os.sync()
        else:
            spool_id = secrets.token_bytes(16)
        identity = {
            "format": FORMAT,
            "spool_id": spool_id.hex(),
            "boot_id": self.boot_id.hex(),
            "synced": self.syncs_commits,
        }
        self._write_identity(identity)
        return spool_id, not survived and bool(held or self._stems())

    def _write_identity(self, identity: dict[str, object]) -> None:
        """Synced whatever the mode: half an identity would be a lost directory."""
        _replace_synced(self.path / _IDENTITY, json.dumps(identity))
        self._sync_entries()

    def _sync_entries(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace_synced(path: Path, text: str) -> None:
    """By rename: it is there as a whole, or as it was."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_doubt(stem: Path) -> EpochMark | None:
    """What cannot be read was never found out: then it is found out again, for more epochs than need be."""
    try:
        found = json.loads(doubt_path(stem).read_text(encoding="utf-8"))
        return EpochMark(int(found["create_revision"]), int(found["number"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DirectoryLockedError(
            f"the spool directory {path.parent} is in use by another process: give each broker one of its own "
            "with --broker.spool-dir"
        ) from error
    return descriptor


def _read_identity(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    try:
        identity = json.loads(path.read_text(encoding="utf-8"))
        bytes.fromhex(identity["spool_id"]), identity["boot_id"], identity["synced"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError(
            f"{path} is not readable as the identity of a spool directory; if its content is to be given up, move "
            "the directory away and start with an empty one",
            "broker.spool-dir",
        ) from error
    if identity.get("format") != FORMAT:
        raise ValidationError(
            f"{path} is of format {identity.get('format')}, this program knows {FORMAT}: run the release that wrote it",
            "broker.spool-dir",
        )
    return dict(identity)


def machine_boot_id() -> bytes:
    """What tells one start of this machine from another."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    if boot_id.exists():
        return bytes.fromhex(boot_id.read_text().strip().replace("-", ""))
    # Without one every start of the process counts as a start of the machine: safe, and only fsync=commit survives.
    return secrets.token_bytes(16)
