from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fragment.spool import CopyEnd, EpochMark, Proposal, Spool
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import (
    DirectoryLockedError,
    FsyncMode,
    RecoveredSpool,
    SpoolDirectory,
    machine_boot_id,
)
from fragment.spool_file import CONTENT_SUFFIX, LOG_SUFFIX, SpoolEndedError
from fragment.spool_recovery import Copy, Worth, spool_of
from fragment.spool_syncing import sync_forever
from fragment.spool_writer import Performed, SpoolWriter
from protocol.errors import Status, UnavailableError, ValidationError
from protocol.fragment import NO_SUM
from protocol.gen import journal_pb2
from protocol.label import LabelSet

BOOT, NEXT_BOOT = b"\1" * 16, b"\2" * 16
NEVER, COMMIT = FsyncMode(), FsyncMode(commit=True)
SPEC = journal_pb2.JournalSpec(name="a/b", replication=3).SerializeToString()
EPOCH = EpochMark(4, 2)


def opened(path: Path, fsync: FsyncMode = NEVER, boot_id: bytes = BOOT) -> SpoolDirectory:
    return SpoolDirectory(path / "spools", fsync, boot_id, SpoolBudget())


def writer_in(directory: SpoolDirectory) -> SpoolWriter:
    return SpoolWriter("a/b", directory, lambda: SPEC)


def append(writer: SpoolWriter, data: bytes, registers: LabelSet | None = None, acked: int | None = None) -> Performed:
    writer.content(data, 0)
    held = writer.spool.registers if registers is None else registers
    return writer.propose(Proposal(writer.spool.next(), held, 77, EPOCH, acked))


def recovered(path: Path, fsync: FsyncMode = NEVER, boot_id: bytes = BOOT) -> list[Copy]:
    directory = opened(path, fsync, boot_id)
    try:
        return [spool.copy for spool in directory.recover()]
    finally:
        directory.close()


def test_what_was_committed_comes_back_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello", LabelSet.of(("author", "x")), acked=0)
    append(writer, b" world", acked=5)
    writer.content(b"never committed", 0)
    directory.close()

    (copy,) = recovered(tmp_path)
    assert copy.worth is Worth.CUT
    assert copy.fragment == writer.spool.fragment
    assert copy.last is not None
    assert (copy.last.epoch, copy.last.acked_through, copy.last.first_append_ns) == (EPOCH, 5, 77)
    assert copy.last.registers == LabelSet.of(("author", "x"))
    assert [record.spec for record in copy.records] == [SPEC, SPEC]
    cut = copy.cut_at(7)
    assert cut is not None
    assert cut.end == 5


def test_a_killed_process_leaves_whole_copies_behind(tmp_path: Path) -> None:
    """A real process, killed without warning right after its commits were answered."""
    program = f"""
import os, signal
from pathlib import Path
from tests.unit.fragment.test_spool_directory import append, opened, writer_in
writer = writer_in(opened(Path({str(tmp_path)!r})))
for at in range(50):
    append(writer, b"line %d\\n" % at)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=False)
    assert ran.returncode == -9
    (copy,) = recovered(tmp_path)
    assert copy.worth is Worth.WHOLE
    assert copy.fragment is not None
    assert copy.fragment.end == sum(len(b"line %d\n" % at) for at in range(50))
    assert len(copy.records) == 50


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(DirectoryLockedError, match=r"--broker\.spool-dir"):
        opened(tmp_path)
    first.close()
    second = opened(tmp_path)
    assert second.spool_id == first.spool_id
    assert not second.renewed
    second.close()


@pytest.mark.parametrize(("fsync", "survives"), [(NEVER, False), (COMMIT, True), (FsyncMode(interval_s=0.1), False)])
def test_after_a_power_loss_only_what_was_synced_is_believed(tmp_path: Path, fsync: FsyncMode, survives: bool) -> None:
    directory = opened(tmp_path, fsync)
    append(writer_in(directory), b"hello")
    directory.close()

    after = opened(tmp_path, fsync, NEXT_BOOT)
    assert (after.spool_id == directory.spool_id) is survives
    assert after.renewed is not survives
    (spool,) = after.recover()
    assert spool.copy.worth is (Worth.WHOLE if survives else Worth.DAMAGED)
    after.close()


def test_commits_of_a_laxer_time_are_not_vouched_for_by_a_stricter_one(tmp_path: Path) -> None:
    lax = opened(tmp_path, NEVER)
    append(writer_in(lax), b"hello")
    lax.close()
    opened(tmp_path, COMMIT).close()
    (copy,) = recovered(tmp_path, COMMIT, NEXT_BOOT)
    assert copy.worth is Worth.DAMAGED
    assert "started anew" in copy.reason


def test_files_without_an_identity_give_the_directory_a_new_one(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    append(writer_in(directory), b"hello")
    directory.close()
    (tmp_path / "spools" / "identity.json").unlink()
    after = opened(tmp_path)
    assert after.renewed
    assert after.spool_id != directory.spool_id
    after.close()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2, "spool_id": "", "boot_id": "", "synced": true}'])
def test_an_identity_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    opened(tmp_path).close()
    (tmp_path / "spools" / "identity.json").write_text(text)
    with pytest.raises(ValidationError, match=r"broker\.spool-dir"):
        opened(tmp_path)
    (tmp_path / "spools" / "identity.json").unlink()
    opened(tmp_path).close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file grows past 4 KiB: what fits is written, and then the disk is full, as the kernel has it."""
    pwrite = os.pwrite

    def limited(descriptor: int, data: bytes | memoryview, position: int) -> int:
        room = max(0, 4096 - position)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, memoryview(data)[:room], position)

    monkeypatch.setattr(os, "pwrite", limited)


def test_a_write_that_does_not_fit_leaves_the_committed_extent(tmp_path: Path, full_disk: None) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"x" * 3000)
    before = writer.spool
    with pytest.raises(UnavailableError, match=r"could not write the spool .* No space left .* free space"):
        append(writer, b"y" * 3000)
    writer.roll_back()
    assert writer.spool.fragment == before.fragment
    append(writer, b"z" * 100)
    directory.close()
    (copy,) = recovered(tmp_path)
    assert copy.worth in (Worth.WHOLE, Worth.CUT)
    assert copy.fragment == writer.spool.fragment


def test_a_record_that_does_not_fit_is_taken_back(tmp_path: Path, full_disk: None) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    with pytest.raises(UnavailableError, match="could not write the spool"):
        _append_many(writer, 4096)
    (log,) = (tmp_path / "spools").glob(f"*{LOG_SUFFIX}")
    assert log.stat().st_size < 4096, "the half record was cut off again"
    directory.close()
    (copy,) = recovered(tmp_path)
    assert copy.worth is Worth.CUT
    assert copy.fragment == writer.spool.fragment
    assert len(copy.records) == writer.spool.fragment.end > 10


def _append_many(writer: SpoolWriter, count: int) -> None:
    for _ in range(count):
        append(writer, b"x")


def test_a_failed_sync_ends_the_spool_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path, COMMIT)
    writer = writer_in(directory)
    append(writer, b"hello")

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(SpoolEndedError, match="could not be synced"):
            append(writer, b"world")
    # What is committed is handed on as it is, and whatever comes next goes to another file.
    completed = writer.roll_back().completed
    assert completed is not None
    assert completed.spool.fragment.end == 5
    assert completed.file.has_ended
    append(writer, b"again")
    assert (writer.spool.fragment.begin, writer.spool.fragment.end) == (5, 10)
    directory.close()


async def test_an_interval_syncs_what_was_written_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path, FsyncMode(interval_s=5.0))
    good, bad = writer_in(directory), writer_in(directory)
    files = [append(writer, b"hello").visible[0].file for writer in (good, bad)]
    synced: list[int] = []

    def fdatasync(descriptor: int) -> None:
        if descriptor == files[1].content_fileno():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await sync_forever(directory, 5.0, pause)
    assert pauses == [5.0, 5.0, 5.0]
    assert len(synced) == 2, "content and log, once: the second time nothing was new"
    append(good, b"again")
    with pytest.raises(SpoolEndedError):
        append(bad, b"again")
    directory.close()


def test_a_roll_that_cannot_begin_its_file_changes_nothing(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello")
    before = writer.spool
    empty = replace(before.fragment, begin=5, sum=NO_SUM)
    (tmp_path / "spools").rename(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="could not create"):
        writer.propose(Proposal(empty, before.registers, 1, EPOCH))
    (tmp_path / "elsewhere").rename(tmp_path / "spools")
    assert writer.spool == before
    performed = writer.propose(Proposal(empty, before.registers, 1, EPOCH))
    assert performed.completed is not None
    directory.close()


def test_readers_keep_their_file_after_it_is_removed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    performed = append(writer_in(directory), b"hello")
    (local,) = performed.visible
    local.file.remove()
    assert local.file.read(0, 100) == b"hello"
    assert directory.budget.held_bytes == 0
    assert not list((tmp_path / "spools").glob(f"*{CONTENT_SUFFIX}"))
    directory.close()


def test_content_without_a_commit_is_worth_nothing(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer_in(directory).content(b"never committed", 0)
    directory.close()
    (copy,) = recovered(tmp_path)
    assert (copy.worth, copy.fragment, copy.verified) == (Worth.EMPTY, None, None)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("never", NEVER), ("commit", COMMIT), ("100ms", FsyncMode(interval_s=0.1)), ("2s", FsyncMode(interval_s=2.0))],
)
def test_fsync_modes_are_read_from_their_flag(text: str, mode: FsyncMode) -> None:
    assert FsyncMode.parse(text) == mode


@pytest.mark.parametrize("text", ["", "always", "0s", "-1s", "5"])
def test_other_fsync_modes_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"broker\.spool-fsync: expected never, commit"):
        FsyncMode.parse(text)


def test_a_stored_spool_leaves_its_last_word_and_needs_no_content(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello")
    completed = writer.complete().completed
    assert completed is not None
    completed.file.remove_content(completed.spool)
    log_bytes = completed.file.log_path.stat().st_size
    assert directory.budget.held_bytes == log_bytes
    directory.close()
    after = opened(tmp_path)
    (spool,) = after.recover()
    assert (spool.copy.worth, spool.copy.fragment) == (Worth.STORED, None)
    assert spool.copy.last is not None
    assert (spool.copy.last.epoch, spool.copy.last.end) == (EPOCH, 5)
    assert after.budget.held_bytes == log_bytes
    spool.remove()
    assert after.budget.held_bytes == 0
    after.close()


def test_files_that_nobody_uploads_stay_though_nobody_reads_them(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    (local,) = append(writer_in(directory), b"hello").visible
    local.file.keep_for_good()
    assert directory.budget.held_bytes == 0
    assert local.file.read(0, 5) == b"hello"
    path = local.file.content_path
    assert path.exists()
    del local
    assert path.exists()
    directory.close()


def test_registers_that_do_not_fit_a_record_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello")
    many = LabelSet.of(*((f"register-{at:05d}", "x" * 1000) for at in range(1200)))
    writer.content(b"world", 0)
    with pytest.raises(ValidationError, match="remove registers"):
        writer.propose(Proposal(writer.spool.next(), many, 1, EPOCH))
    writer.roll_back()
    append(writer, b"world")
    directory.close()
    assert [copy.worth for copy in recovered(tmp_path)] == [Worth.WHOLE]


def test_a_directory_that_cannot_be_synced_fails_the_append_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path, COMMIT)

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(UnavailableError, match="could not sync the spool directory"):
            append(writer_in(directory), b"hello")
    assert {path.name for path in (tmp_path / "spools").iterdir()} == {"identity.json", "lock"}
    directory.close()


def test_new_entries_reach_the_disk_before_a_commit_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path, COMMIT)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append("entries"))
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append("data"))
    append(writer_in(directory), b"hello")
    assert synced == ["entries", "data", "data"], "the directory, the content, and then the record"
    directory.close()


def test_this_machine_tells_its_starts_apart() -> None:
    assert machine_boot_id() == machine_boot_id()
    assert len(machine_boot_id()) == 16


async def test_appends_wait_for_room_and_go_on_when_there_is_some() -> None:
    budget = SpoolBudget(limit_bytes=100)
    budget.grow(100)
    waiting = [asyncio.ensure_future(budget.wait_for_room(60)) for _ in range(3)]  # noqa: TID251
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiting)
    await asyncio.to_thread(budget.shrink, 1)
    await asyncio.gather(*waiting)


async def test_without_room_in_time_the_error_says_what_to_do() -> None:
    budget = SpoolBudget(limit_bytes=100)
    budget.grow(150)
    with pytest.raises(UnavailableError, match=r"150 bytes .* budget is 100.*--broker\.spool-budget"):
        await budget.wait_for_room(0)
    budget.shrink(51)
    await budget.wait_for_room(0)


def test_a_mismatch_says_what_is_held(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello")
    other = replace(writer.spool.fragment, sum=b"\7" * 20)
    reply = writer.propose(Proposal(other, LabelSet(), 1, EPOCH)).reply
    assert reply is not None
    assert reply.status is Status.PROPOSAL_MISMATCH
    assert reply.fragment == writer.spool.fragment
    directory.close()


def test_a_fresh_spool_has_no_files(tmp_path: Path) -> None:
    """Ten thousand idle journals must not hold twenty thousand descriptors."""
    directory = opened(tmp_path)
    writer = writer_in(directory)
    writer.propose(Proposal(replace(Spool.fresh("a/b").fragment, begin=9, end=9), LabelSet(), 1))
    assert {path.name for path in (tmp_path / "spools").iterdir()} == {"identity.json", "lock"}
    directory.close()


# Files that an earlier process left, opened again.


def left(tmp_path: Path, torn_bytes: int = 0, spec: bytes = SPEC) -> RecoveredSpool:
    """With commits that end at 5, 11 and 16, and so much of one more record as a crash has left."""
    directory = opened(tmp_path)
    writer = SpoolWriter("a/b", directory, lambda: spec)
    for data in (b"hello", b" world", b"again"):
        append(writer, data, acked=5)
    directory.close()
    (log,) = (tmp_path / "spools").glob(f"*{LOG_SUFFIX}")
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:torn_bytes])
    (recovered,) = opened(tmp_path).recover()
    return recovered


@pytest.mark.parametrize("torn_bytes", [0, 1, 9, 30])
def test_a_reopened_spool_is_cut_at_the_commit_below_whatever_its_log_ends_with(
    tmp_path: Path, torn_bytes: int
) -> None:
    """DH-8, section 3."""
    recovered = left(tmp_path, torn_bytes)
    assert recovered.copy.worth is (Worth.CUT if torn_bytes else Worth.WHOLE)
    file = recovered.reopened()
    ends = [commit.end if (commit := file.commit_at(end)) else None for end in (0, 4, 5, 10, 11, 15, 16, 99)]
    assert ends == [None, None, 5, 5, 11, 11, 16, 16]
    commit = file.commit_at(11)
    assert commit is not None
    assert commit.sum == hashlib.sha1(b"hello world").digest()
    assert file.read(0, 99) == b"hello worldagain"
    assert file.last_spec == SPEC


def test_a_record_that_follows_a_torn_one_is_no_damage(tmp_path: Path) -> None:
    # It is longer than the one that takes its place.
    spec = journal_pb2.JournalSpec(name="a/" + "b" * 2000, replication=3)
    recovered = left(tmp_path, torn_bytes=1500, spec=spec.SerializeToString())
    file = recovered.reopened()
    file.remove_content(spool_of(recovered.copy))
    recovered.directory.close()
    (copy,) = (spool.copy for spool in opened(tmp_path).recover())
    assert copy.worth is Worth.STORED
    assert copy.last is not None
    assert (copy.last.end, copy.last.epoch) == (16, EPOCH)


def test_the_log_of_a_damaged_copy_is_left_as_it_is(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    writer = writer_in(directory)
    append(writer, b"hello", acked=5)
    append(writer, b" world", acked=5)
    directory.close()
    (content,) = (tmp_path / "spools").glob(f"*{CONTENT_SUFFIX}")
    content.write_bytes(b"hello wor")
    (log,) = (tmp_path / "spools").glob(f"*{LOG_SUFFIX}")
    log.write_bytes(before := log.read_bytes() + b"\xff")
    (recovered,) = opened(tmp_path).recover()
    assert recovered.copy.worth is Worth.DAMAGED
    spool = spool_of(recovered.copy)
    assert spool.fragment.end == 5, "as far as its content bears it out"
    assert spool.copy == CopyEnd(EPOCH, 11, LabelSet())
    recovered.reopened()
    assert log.read_bytes() == before


def test_the_budget_counts_what_was_left_once_and_lets_go_of_it(tmp_path: Path) -> None:
    recovered = left(tmp_path)
    file = recovered.reopened()
    assert recovered.directory.budget.held_bytes == sum(recovered.lengths) > 16
    file.remove()
    assert recovered.directory.budget.held_bytes == 0
