"""Random lives of a spool on real files, cut short in every way, against a model that forgets nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fragment.spool import EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, RecoveredSpool, SpoolDirectory
from fragment.spool_file import CONTENT_SUFFIX, LOG_SUFFIX
from fragment.spool_recovery import Worth, fragment_at
from fragment.spool_writer import CompletedSpool, SpoolWriter
from protocol.errors import Status
from protocol.fragment import NO_SUM, Fragment
from protocol.label import LabelSet

BOOT = b"boot-id-of-16-by"
CHUNKS = st.binary(min_size=1, max_size=40)
SUFFIXES = st.sampled_from([CONTENT_SUFFIX, LOG_SUFFIX])
# Syncing costs nothing in memory, so that more lives fit into a run.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def recovered(folder: Path) -> dict[str, RecoveredSpool]:
    directory = SpoolDirectory(folder, FsyncMode(), BOOT, SpoolBudget())
    found = {spool.stem.name: spool for spool in directory.recover()}
    directory.close()
    return found


class SpoolLife(RuleBasedStateMachine):
    """One journal at one broker: content, commits, roll-backs, rolls, then a crash and what recovery says."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=FAST))
        # By the stem of its files: the bytes and commits of each fragment that still has files.
        self.bytes: dict[str, bytearray] = {}
        self.commits: dict[str, list[Fragment]] = {}
        self.registers = LabelSet()

    @initialize(fsync=st.sampled_from(["never", "commit", "10ms"]))
    def start(self, fsync: str) -> None:
        self.fsync = FsyncMode.parse(fsync)
        self.epoch = EpochMark(3, 1)
        self.open()

    def open(self) -> None:
        self.directory = SpoolDirectory(self.folder, self.fsync, BOOT, SpoolBudget())
        self.writer = SpoolWriter("a/journal", self.directory, lambda: b"")
        self.pending = bytearray()
        self.completed: list[CompletedSpool] = []

    def stem(self) -> str:
        file = self.writer._file  # noqa: SLF001, the model keys by file
        assert file is not None
        return file.stem.name

    @rule(data=CHUNKS)
    def content(self, data: bytes) -> None:
        self.writer.content(data, len(self.pending))
        self.pending += data

    @precondition(lambda self: self.pending)
    @rule(register=st.sampled_from(["", "1", "2"]))
    def commit(self, register: str) -> None:
        registers = LabelSet.of(("author", register)) if register else self.registers
        whole = self.writer.spool.next()
        performed = self.writer.propose(Proposal(whole, registers, 1, self.epoch, None))
        assert performed.reply is not None
        assert performed.reply.status is Status.OK
        held = self.bytes.setdefault(self.stem(), bytearray())
        held += self.pending
        assert whole.sum == hashlib.sha1(held).digest()
        self.commits.setdefault(self.stem(), []).append(whole)
        self.registers, self.pending = registers, bytearray()

    @rule()
    def roll_back(self) -> None:
        self.writer.propose(Proposal(self.writer.spool.fragment, self.registers, 1, self.epoch, None))
        self.pending = bytearray()

    @rule(ahead=st.integers(0, 3), new_epoch=st.booleans())
    def roll(self, ahead: int, new_epoch: bool) -> None:
        if new_epoch:
            self.epoch = replace(self.epoch, number=self.epoch.number + 1)
        spool = self.writer.spool
        if ahead:
            ahead += spool.pending
        at = spool.fragment.end + ahead
        empty = replace(spool.fragment, begin=at, end=at, sum=NO_SUM)
        performed = self.writer.propose(Proposal(empty, self.registers, 1, self.epoch, None))
        assert performed.reply is not None
        assert performed.reply.status is Status.OK
        if performed.completed:
            self.completed.append(performed.completed)
        self.pending = bytearray()

    @precondition(lambda self: self.completed)
    @rule()
    def uploaded(self) -> None:
        done = self.completed.pop()
        done.file.remove()
        self.bytes.pop(done.file.stem.name, None)
        self.commits.pop(done.file.stem.name, None)

    @rule()
    def crash(self) -> None:
        """The process dies: every copy is whole or cut to its last commit, and equals the model."""
        self.directory.close()
        self.check_all_sound()
        shutil.rmtree(self.folder)
        self.bytes, self.commits, self.registers = {}, {}, LabelSet()
        self.open()

    @precondition(lambda self: self.commits)
    @rule(suffix=SUFFIXES, fraction=st.floats(0, 1), data=st.data())
    def a_truncated_copy(self, suffix: str, fraction: float, data: st.DataObject) -> None:
        """What if the process died now, and a file came back shorter? The life itself goes on."""
        stem = data.draw(st.sampled_from(sorted(self.commits)))
        with self.copied() as folder:
            path = folder / (stem + suffix)
            length = int(path.stat().st_size * fraction)
            os.truncate(path, length)
            found = recovered(folder)[stem]
            if suffix == CONTENT_SUFFIX and length < len(self.bytes[stem]):
                assert found.copy.worth is Worth.DAMAGED, "committed bytes are gone"
            if suffix == LOG_SUFFIX:
                assert found.copy.worth is not Worth.DAMAGED, "a record cut short is what a crash leaves"
            self.check_a_prefix(folder, stem, found)

    @precondition(lambda self: self.commits)
    @rule(suffix=SUFFIXES, fraction=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), data=st.data())
    def a_copy_with_a_flipped_bit(self, suffix: str, fraction: float, bit: int, data: st.DataObject) -> None:
        stem = data.draw(st.sampled_from(sorted(self.commits)))
        with self.copied() as folder:
            path = folder / (stem + suffix)
            raw = bytearray(path.read_bytes())
            at = int(len(raw) * fraction)
            raw[at] ^= 1 << bit
            path.write_bytes(raw)
            found = recovered(folder)[stem]
            if suffix == LOG_SUFFIX or at < len(self.bytes[stem]):
                assert found.copy.worth is Worth.DAMAGED, "a changed bit is never accepted"
            self.check_a_prefix(folder, stem, found)

    @contextmanager
    def copied(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=FAST) as folder:
            yield Path(shutil.copytree(self.folder, Path(folder) / "copy"))

    def check_all_sound(self) -> None:
        found = recovered(self.folder)
        assert set(found) >= set(self.commits)
        for stem, spool in found.items():
            assert spool.copy.worth is not Worth.DAMAGED
            if stem in self.commits:
                assert spool.copy.fragment == self.commits[stem][-1]
                self.check_a_prefix(self.folder, stem, spool)
            else:
                assert spool.copy.last is None or spool.copy.last.end == spool.copy.last.begin

    def check_a_prefix(self, folder: Path, stem: str, found: RecoveredSpool) -> None:
        """Whatever became of the files, the commits believed are the model's first ones, bytes included."""
        believed = [fragment_at(record) for record in found.copy.records if record.end > record.begin]
        assert believed == self.commits[stem][: len(believed)]
        verified = found.copy.verified
        if verified and verified.end > verified.begin:
            content = (folder / (stem + CONTENT_SUFFIX)).read_bytes()
            length = verified.end - verified.begin
            assert content[:length] == self.bytes[stem][:length]

    @invariant()
    def the_budget_counts_what_is_on_disk(self) -> None:
        files = [*self.folder.glob(f"*{CONTENT_SUFFIX}"), *self.folder.glob(f"*{LOG_SUFFIX}")]
        on_disk = sum(path.stat().st_size for path in files)
        assert self.directory.budget.held_bytes == on_disk

    def teardown(self) -> None:
        self.directory.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestSpoolLife = SpoolLife.TestCase
TestSpoolLife.settings = settings(max_examples=60, stateful_step_count=30)
