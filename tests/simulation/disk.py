"""Disk: a simulated spool directory, so that the shipped SpoolWriter and the shipped recovery run over it unchanged.

What is written is in the page cache: it survives the end of the process, but of what was not synced a loss of power
leaves, of each file on its own, a part of the writes in their order. Operations fail, or are the last thing the node
ever does, as a run asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from fragment.spool import EpochMark, Spool
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory
from fragment.spool_file import END_SPACING_BYTES, SpoolEndedError, SpoolFile
from fragment.spool_log import LogEncoder, decode
from fragment.spool_recovery import Copy, Worth, classify, fragment_at
from fragment.spool_writer import SpoolWriter
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from tests.simulation.world import CrashError, Node


class SpoolFilePort(Protocol):
    """What is used of a SpoolFile by those who run in the simulator; the shipped one is checked against it, too."""

    stem: Path
    begin: int
    commit_ends: list[int]

    @property
    def has_ended(self) -> bool: ...
    @property
    def is_dirty(self) -> bool: ...
    @property
    def last_spec(self) -> bytes: ...
    def write(self, position: int, data: bytes | memoryview) -> None: ...
    def record(self, spool: Spool, spec: bytes, *, persisted: bool = False) -> None: ...
    def sync(self) -> None: ...
    def read(self, position: int, length: int) -> bytes: ...
    def commit_at(self, end: int) -> Fragment | None: ...
    def remove(self) -> None: ...
    def remove_content(self, spool: Spool) -> None: ...
    def keep_for_good(self) -> None: ...


@dataclass(slots=True)
class DiskFaults:
    # Of each operation, to fail with an input/output error.
    error_rate: float = 0.0
    # Everything that needs room fails.
    is_full: bool = False
    # How long an operation may take; the shell waits so long before it has the writer do it.
    slow_s: float = 0.0
    # What a thread is to do is not done for now, and nobody is told.
    is_hung: bool = False


class _Bytes:
    """One file: what is on the platter, and the writes that are not yet."""

    __slots__ = ("cached", "durable", "is_entry_durable", "pending")

    def __init__(self, is_entry_durable: bool) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        # Without its directory entry the whole file goes with the power.
        self.is_entry_durable = is_entry_durable

    def write(self, position: int, data: bytes) -> None:
        _put(self.cached, position, data)
        self.pending.append((position, data))

    def sync(self) -> None:
        for position, data in self.pending:
            _put(self.durable, position, data)
        self.pending.clear()

    def lose_power(self, kept: int, torn: int) -> None:
        """The first `kept` pending writes have reached the disk, and `torn` bytes of the next one."""
        for position, data in self.pending[:kept]:
            _put(self.durable, position, data)
        if torn and kept < len(self.pending):
            position, data = self.pending[kept]
            _put(self.durable, position, data[:torn])
        self.pending.clear()
        self.cached = bytearray(self.durable)


@dataclass(slots=True)
class _Identity:
    spool_id: bytes
    boot_id: bytes
    synced: bool


class SimulatedDisk:
    """Outlives the processes of its node. ``open`` it once in every life."""

    def __init__(self, node: Node, faults: DiskFaults | None = None) -> None:
        self.node = node
        self.faults = faults or DiskFaults()
        self._chance = node.world.chance
        self._logs: dict[str, _Bytes] = {}
        self._contents: dict[str, _Bytes] = {}
        # What was found out of damaged spools. Such files are synced.
        self.doubts: dict[str, EpochMark] = {}
        self._identity: _Identity | None = None
        self.boot_id = self._chance.randbytes(16)
        self._created = 0
        # Until the next is the node's last operation; None is never.
        self._operations_left: int | None = None
        self._crash = CrashError()
        self._is_dead = False
        # Told before the directory is lost for good.
        self.wiped: Callable[[], None] = lambda: None
        node.crash_listeners.append(self._crashed)

    @property
    def names(self) -> list[str]:
        """Of every spool that has a file."""
        return sorted(self._logs.keys() | self._contents.keys())

    def open(self, fsync: FsyncMode, budget: SpoolBudget | None = None) -> SimulatedDirectory:
        self._is_dead = False
        held = self._identity
        survived = held is not None and (held.boot_id == self.boot_id or held.synced)
        if held is not None and survived:
            spool_id = held.spool_id
            if fsync.commit and not held.synced:
                self.write_out()
        else:
            spool_id = self._chance.randbytes(16)
        self._identity = _Identity(spool_id, self.boot_id, fsync.commit)
        renewed = not survived and bool(held or self.names)
        return SimulatedDirectory(self, fsync, budget or SpoolBudget(), spool_id, renewed)

    # Faults.

    def wipe(self) -> None:
        """The directory is lost for good; another, empty one takes its place."""
        self.node.note("spool directory lost", self.names)
        self.wiped()
        self._logs.clear()
        self._contents.clear()
        self._identity = None

    def move_to(self, node: Node) -> None:
        """Carry the directory to another machine, while no process uses it."""
        self.node.crash_listeners.remove(self._crashed)
        self.node = node
        node.crash_listeners.append(self._crashed)

    def corrupt(self) -> str | None:
        """Flip a bit somewhere in what is on the disk. The name of the spool it is in, None if there is nothing."""
        held = [(name, file) for files in (self._logs, self._contents) for name, file in sorted(files.items())]
        held = [(name, file) for name, file in held if file.cached]
        if not held:
            return None
        name, file = self._chance.choice(held)
        at = self._chance.randrange(len(file.cached))
        file.sync()
        file.cached[at] ^= 1 << self._chance.randrange(8)
        file.durable[at] = file.cached[at]
        self.node.note("bit flipped", name, at)
        return name

    def flip(self, offset: int) -> None:
        """As above, in the content that a journal has there: that which begins last at or before it."""
        name, begin = max(
            ((name, begin) for name in self._contents if (begin := int(name.split("-")[1], 16)) <= offset),
            key=lambda found: found[1],
        )
        file = self._contents[name]
        file.sync()
        file.cached[offset - begin] ^= 1
        file.durable[offset - begin] = file.cached[offset - begin]

    def crash_after(self, operations: int, *, power_lost: bool = False) -> None:
        """The node dies in the middle of what it is doing: after so many more operations of its disk."""
        self._operations_left = operations
        self._crash = CrashError(power_lost=power_lost)

    def latency_s(self) -> float:
        return self._chance.random() * self.faults.slow_s

    def heal(self) -> None:
        self.faults.error_rate = self.faults.slow_s = 0.0
        self.faults.is_full = self.faults.is_hung = False
        self._operations_left = None

    # For the directory and its files.

    def operate(self, action: str, name: str, *, needs_room: bool = False) -> None:
        """Before each operation: whether it can be done at all."""
        if self._is_dead:
            # What runs while the node's death passes through it, such as a `finally`, does nothing any more.
            raise self._crash
        if self._operations_left is not None:
            self._operations_left -= 1
            if self._operations_left < 0:
                self._is_dead = True
                raise self._crash
        if needs_room and self.faults.is_full:
            raise UnavailableError(f"could not {action} the spool {name}: No space left on device")
        if self.faults.error_rate and self._chance.random() < self.faults.error_rate:
            raise UnavailableError(f"could not {action} the spool {name}: Input/output error")

    def create(self, journal: str, begin: int, is_entry_durable: bool) -> tuple[str, _Bytes, _Bytes]:
        self._created += 1
        name = f"{hashlib.sha1(journal.encode()).hexdigest()[:12]}-{begin:016x}-{self._created:08x}"
        self.operate("create", name, needs_room=True)
        log, content = _Bytes(is_entry_durable), _Bytes(is_entry_durable)
        self._logs[name], self._contents[name] = log, content
        return name, log, content

    def bytes_of(self, name: str) -> tuple[bytes, bytes | None]:
        """Log and content of a spool."""
        log, content = self._logs.get(name), self._contents.get(name)
        return bytes(log.cached) if log else b"", bytes(content.cached) if content else None

    def files_of(self, name: str) -> tuple[_Bytes, _Bytes]:
        return self._logs[name], self._contents.get(name) or _Bytes(True)

    def unlink(self, name: str, *, log: bool) -> None:
        self.operate("remove", name)
        self._contents.pop(name, None)
        if log:
            self._logs.pop(name, None)
            self.doubts.pop(name, None)

    def write_out(self) -> None:
        """All that is in the page cache, as kernels do in their own time."""
        for files in (self._logs, self._contents):
            for file in files.values():
                file.sync()
                file.is_entry_durable = True

    def _crashed(self, _: Node, power_lost: bool) -> None:
        self._is_dead = True
        self._operations_left = None
        if not power_lost:
            return
        self.boot_id = self._chance.randbytes(16)
        for files in (self._logs, self._contents):
            for name, file in list(files.items()):
                if not file.is_entry_durable and self._chance.random() < 0.5:
                    del files[name]
                    continue
                kept = self._chance.randint(0, len(file.pending))
                torn = self._chance.randint(0, len(file.pending[kept][1])) if kept < len(file.pending) else 0
                file.lose_power(kept, torn)


@dataclass(frozen=True, slots=True)
class RecoveredCopy:
    """What an earlier life left behind, as the shipped rules classify it."""

    name: str
    copy: Copy
    content: bytes
    disk: SimulatedDisk
    directory: SimulatedDirectory

    @property
    def doubted_through(self) -> EpochMark | None:
        return self.disk.doubts.get(self.name)

    def doubt(self, through: EpochMark) -> None:
        self.disk.doubts[self.name] = through

    def reopened(self) -> SpoolFile:
        return self.directory.reopened(self)

    def remove(self) -> None:
        self.disk.unlink(self.name, log=True)


class SimulatedDirectory:
    """In the place of a SpoolDirectory, for one life of a node."""

    def __init__(
        self, disk: SimulatedDisk, fsync: FsyncMode, budget: SpoolBudget, spool_id: bytes, renewed: bool
    ) -> None:
        self.disk = disk
        self.fsync = fsync
        self.budget = budget
        self.spool_id = spool_id
        self.renewed = renewed
        self.boot_id = disk.boot_id
        self._files: dict[str, SimulatedSpoolFile] = {}

    @property
    def syncs_commits(self) -> bool:
        return self.fsync.commit

    def writer(self, journal: str, spec: Callable[[], bytes], create_revision: int = 0) -> SpoolWriter:
        """The shipped one, over these files."""
        return SpoolWriter(journal, cast(SpoolDirectory, self), spec, create_revision)

    def create(self, fragment: Fragment, create_revision: int = 0) -> SpoolFile:
        name, log, content = self.disk.create(fragment.journal, fragment.begin, self.syncs_commits)
        encoder = LogEncoder(self.boot_id, self.syncs_commits, create_revision)
        file = SimulatedSpoolFile(self, name, fragment.begin, log, content, encoder)
        self._files[name] = file
        return cast(SpoolFile, file)

    def recover(self) -> Iterator[RecoveredCopy]:
        """Call it before the first ``create``."""
        for name in self.disk.names:
            log, content = self.disk.bytes_of(name)
            chunks = (content,) if content is not None else ()
            copy = classify(decode(log), chunks, len(content or b""), self.boot_id)
            yield RecoveredCopy(name, copy, content or b"", self.disk, self)

    def reopened(self, recovered: RecoveredCopy) -> SpoolFile:
        last = recovered.copy.last
        assert last is not None
        log, content = self.disk.files_of(recovered.name)
        if recovered.copy.worth is not Worth.DAMAGED:
            del log.cached[recovered.copy.log_length :]
        encoder = LogEncoder(self.boot_id, self.syncs_commits, last.create_revision, last.spec)
        file = SimulatedSpoolFile(self, recovered.name, last.begin, log, content, encoder)
        self._files[recovered.name] = file
        return cast(SpoolFile, file)

    def sync_dirty(self) -> list[SpoolEndedError]:
        ended = []
        for file in list(self._files.values()):
            try:
                if file.is_dirty:
                    file.sync()
            except SpoolEndedError as error:
                ended.append(error)
        return ended

    def forget(self, name: str) -> None:
        self._files.pop(name, None)


class SimulatedSpoolFile:
    """In the place of a SpoolFile. After its removal it is still readable, as an unlinked file is."""

    def __init__(
        self,
        directory: SimulatedDirectory,
        name: str,
        begin: int,
        log: _Bytes,
        content: _Bytes,
        encoder: LogEncoder,
    ) -> None:
        self.stem = Path(name)
        self._name = name
        self.begin = begin
        self.commit_ends: list[int] = []
        self._directory = directory
        self._encoder = encoder
        self._log = log
        self._content = content
        self._ended = False

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def is_dirty(self) -> bool:
        return not self._ended and bool(self._content.pending or self._log.pending)

    @property
    def last_spec(self) -> bytes:
        return self._encoder.last_spec

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._check_open()
        self._operate("write", needs_room=True)
        self._grow(max(0, position + len(data) - len(self._content.cached)))
        self._content.write(position, bytes(data))

    def record(self, spool: Spool, spec: bytes, *, persisted: bool = False) -> None:
        self._check_open()
        frame = self._encoder.encode(spool, spec, persisted=persisted)
        self._operate("write", needs_room=True)
        self._log.write(len(self._log.cached), frame)
        self._grow(len(frame))
        self._encoder.written(spec)
        end = spool.fragment.end
        if end >= (self.commit_ends[-1] if self.commit_ends else self.begin) + END_SPACING_BYTES:
            self.commit_ends.append(end)

    def sync(self) -> None:
        """One that fails is the last: what it was to write may be gone."""
        self._check_open()
        try:
            self._operate("sync")
        except UnavailableError as error:
            self._ended = True
            raise SpoolEndedError(f"the spool {self._name} has ended: it could not be synced") from error
        self._content.sync()
        self._log.sync()

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._content.cached[position : position + length])

    def commit_at(self, end: int) -> Fragment | None:
        records = decode(bytes(self._log.cached)).records
        return next((fragment_at(record) for record in reversed(records) if self.begin < record.end <= end), None)

    def remove(self) -> None:
        self._directory.disk.unlink(self._name, log=True)
        self._directory.forget(self._name)
        self._shrink(len(self._content.cached) + len(self._log.cached))

    def remove_content(self, spool: Spool) -> None:
        self.record(spool, self.last_spec, persisted=True)
        self._content.pending.clear()
        if self._encoder.synced:
            self.sync()
        self._directory.disk.unlink(self._name, log=False)
        self._shrink(len(self._content.cached))

    def log_only(self) -> SpoolFile:
        return cast(SpoolFile, self)

    def keep_for_good(self) -> None:
        """The files stay, and do not count as waiting for an upload any more."""
        self._shrink(len(self._content.cached) + len(self._log.cached))

    def _operate(self, action: str, *, needs_room: bool = False) -> None:
        self._directory.disk.operate(action, self._name, needs_room=needs_room)

    def _check_open(self) -> None:
        if self._ended:
            raise SpoolEndedError(f"the spool {self._name} has ended")

    def _grow(self, count: int) -> None:
        self._directory.budget.grow(count)

    def _shrink(self, count: int) -> None:
        self._directory.budget.shrink(count)


def _put(file: bytearray, position: int, data: bytes) -> None:
    if position > len(file):
        # A write that reached the disk before an earlier one leaves a hole, which reads as zeros.
        file.extend(bytes(position - len(file)))
    file[position : position + len(data)] = data
