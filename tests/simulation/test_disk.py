from __future__ import annotations

from dataclasses import dataclass

import pytest

from fragment.spool import EpochMark, Proposal
from fragment.spool_directory import FsyncMode
from fragment.spool_file import SpoolEndedError, SpoolFile
from fragment.spool_recovery import Worth
from fragment.spool_writer import Performed, SpoolWriter
from protocol.errors import Status, UnavailableError
from protocol.fragment import NO_SUM, Fragment
from protocol.label import LabelSet
from tests.simulation.disk import RecoveredCopy, SimulatedDirectory, SimulatedDisk, SimulatedSpoolFile, SpoolFilePort
from tests.simulation.world import CrashError, World

JOURNAL = "acme/orders"
COMMIT, NEVER = FsyncMode(commit=True), FsyncMode()
EPOCH = EpochMark(5, 1)


def shipped(file: SpoolFile) -> SpoolFilePort:
    """Never called: that it type-checks says that what is simulated is what there is."""
    return file


def simulated(file: SimulatedSpoolFile) -> SpoolFilePort:
    return file


@dataclass
class Machine:
    world: World
    disk: SimulatedDisk
    directory: SimulatedDirectory
    writer: SpoolWriter


def machine(fsync: FsyncMode = COMMIT, seed: int = 0) -> Machine:
    world = World(seed)
    disk = SimulatedDisk(world.node("b0"))
    directory = disk.open(fsync)
    return Machine(world, disk, directory, directory.writer(JOURNAL, lambda: b""))


def append(writer: SpoolWriter, data: bytes, acked: int | None = None) -> Performed:
    writer.content(data, 0)
    return writer.propose(Proposal(writer.spool.next(), LabelSet(), 1, EPOCH, acked))


def roll(writer: SpoolWriter) -> Performed:
    held = writer.spool.fragment
    empty = Fragment(JOURNAL, held.end, held.end, NO_SUM, held.codec)
    return writer.propose(Proposal(empty, writer.spool.registers, 1, EPOCH))


def restarted(it: Machine, fsync: FsyncMode = COMMIT, *, power_lost: bool = False) -> list[RecoveredCopy]:
    it.world.crash(it.disk.node, power_lost=power_lost)
    it.world.restart(it.disk.node)
    it.directory = it.disk.open(fsync)
    return list(it.directory.recover())


def test_the_shipped_writer_commits_rolls_and_reads() -> None:
    it = machine()
    done = append(it.writer, b"one")
    assert done.reply is not None
    assert done.reply.status is Status.OK
    (shown,) = done.visible
    assert shown.file.read(0, 99) == b"one"
    append(it.writer, b"two")
    rolled = roll(it.writer)
    assert rolled.completed is not None
    assert rolled.completed.file.read(0, 6) == b"onetwo"
    append(it.writer, b"three")
    assert len(it.disk.names) == 2
    rolled.completed.file.remove()
    assert len(it.disk.names) == 1
    assert rolled.completed.file.read(0, 6) == b"onetwo", "whoever holds an unlinked file may read it"


@pytest.mark.parametrize("fsync", [COMMIT, NEVER], ids=["synced", "not synced"])
def test_a_killed_process_leaves_all_it_wrote(fsync: FsyncMode) -> None:
    it = machine(fsync)
    append(it.writer, b"one")
    append(it.writer, b"two")
    it.writer.content(b"never committed", 0)
    spool_id = it.directory.spool_id
    (found,) = restarted(it, fsync)
    assert found.copy.worth is Worth.CUT
    assert found.copy.last is not None
    assert (found.copy.last.end, found.content[:6]) == (6, b"onetwo")
    assert (it.directory.spool_id, it.directory.renewed) == (spool_id, False)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_synced_survives_a_loss_of_power(seed: int) -> None:
    it = machine(COMMIT, seed)
    append(it.writer, b"one")
    it.writer.content(b"never committed", 0)
    (found,) = restarted(it, power_lost=True)
    assert found.copy.worth in (Worth.WHOLE, Worth.CUT)
    assert found.copy.last is not None
    assert (found.copy.last.end, found.content[:3]) == (3, b"one")


def test_what_is_not_synced_is_not_believed_after_a_loss_of_power() -> None:
    worths: set[Worth] = set()
    files: set[int] = set()
    lengths: set[int] = set()
    for seed in range(60):
        it = machine(NEVER, seed)
        before = it.directory.spool_id
        append(it.writer, b"one")
        append(it.writer, b"two")
        found = restarted(it, NEVER, power_lost=True)
        files.add(len(found))
        worths |= {copy.copy.worth for copy in found}
        lengths |= {len(copy.content) for copy in found}
        assert it.directory.renewed
        assert it.directory.spool_id != before
    assert worths == {Worth.DAMAGED, Worth.EMPTY}
    assert {0, 3, 6} < lengths, "of the last write that reached the disk there may be a part only"
    assert files == {0, 1}, "a file whose entry was not synced may be gone as a whole"


def test_a_node_may_die_between_any_two_operations() -> None:
    """Whatever is recovered was committed; a commit that was answered is recovered."""
    ends: set[int] = set()
    for operations in range(12):
        it = machine()
        answered: list[int] = []

        def step(it: Machine = it, answered: list[int] = answered) -> None:
            for data in (b"one", b"two"):
                append(it.writer, data)
                answered.append(it.writer.spool.fragment.end)

        it.disk.crash_after(operations)
        it.disk.node.after(0.0, step)
        it.world.run(1.0)
        found = restarted(it) if not it.disk.node.is_up else list(it.directory.recover())
        end = max((copy.copy.last.end for copy in found if copy.copy.last), default=0)
        assert end >= max(answered, default=0)
        assert all(copy.copy.worth is not Worth.DAMAGED for copy in found)
        ends.add(end)
    assert ends == {0, 3, 6}


def test_a_dead_process_changes_nothing_any_more() -> None:
    """Not even by the clean-up that its death passes through on its way out."""
    it = machine()
    append(it.writer, b"one")
    # The record of the roll is the last thing it does not get to: the file that was begun is cleaned up, or would be.
    it.disk.crash_after(1)
    it.disk.node.after(0.0, roll, it.writer)
    it.world.run(1.0)
    assert not it.disk.node.is_up
    assert len(it.disk.names) == 2
    with pytest.raises(CrashError):
        append(it.writer, b"two")


def test_an_error_leaves_the_spool_as_it_was() -> None:
    it = machine(NEVER)
    append(it.writer, b"one")
    it.disk.faults.is_full = True
    with pytest.raises(UnavailableError, match="No space left"):
        append(it.writer, b"two")
    it.disk.heal()
    it.writer.roll_back()
    append(it.writer, b"two")
    it.disk.faults.error_rate = 1.0
    with pytest.raises(UnavailableError, match="Input/output"):
        append(it.writer, b"three")
    it.disk.heal()
    (found,) = restarted(it, NEVER)
    assert found.content == b"onetwo"


def test_a_sync_that_fails_is_the_end_of_its_spool() -> None:
    it = machine()
    append(it.writer, b"one")
    it.writer.content(b"two", 0)
    it.disk.faults.error_rate = 1.0
    proposal = Proposal(it.writer.spool.next(), LabelSet(), 1, EPOCH)
    with pytest.raises(SpoolEndedError):
        it.writer.propose(proposal)
    it.disk.heal()
    with pytest.raises(SpoolEndedError):
        it.writer.propose(proposal)


def test_a_flipped_bit_is_noticed() -> None:
    worths = set()
    for seed in range(20):
        it = machine(seed=seed)
        append(it.writer, b"some content")
        assert it.disk.corrupt() is not None
        (found,) = restarted(it)
        worths.add(found.copy.worth)
    assert worths == {Worth.DAMAGED}


def test_a_lost_directory_comes_back_as_another_one() -> None:
    it = machine()
    append(it.writer, b"one")
    before = it.directory.spool_id
    it.world.crash(it.disk.node)
    it.disk.wipe()
    it.directory = it.disk.open(COMMIT)
    assert list(it.directory.recover()) == []
    assert it.directory.spool_id != before


def test_a_directory_that_is_moved_keeps_its_identity() -> None:
    it = machine()
    append(it.writer, b"one")
    before = it.directory.spool_id
    it.world.crash(it.disk.node)
    it.disk.move_to(it.world.node("b1"))
    directory = it.disk.open(COMMIT)
    assert directory.spool_id == before
    (found,) = directory.recover()
    assert found.copy.worth is Worth.WHOLE
    found.remove()
    assert it.disk.names == []


def test_a_stored_spool_leaves_its_last_word() -> None:
    it = machine()
    append(it.writer, b"one")
    completed = it.writer.complete().completed
    assert completed is not None
    completed.file.remove_content(completed.spool)
    (found,) = restarted(it)
    assert found.copy.worth is Worth.STORED


def test_a_periodic_sync_reaches_every_spool() -> None:
    it = machine(FsyncMode(interval_s=1.0))
    append(it.writer, b"one")
    assert it.directory.sync_dirty() == []
    append(it.writer, b"two")
    it.disk.faults.error_rate = 1.0
    assert len(it.directory.sync_dirty()) == 1
    assert it.directory.sync_dirty() == [], "a spool ends once"
