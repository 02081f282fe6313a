"""Copies that an earlier process left, and the records in a real etcd that they are measured by (DH-7, DH-8)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdError, EtcdFullError
from allocator.keys import item_key
from allocator.transaction import Delete, Transaction
from broker import copy_keeping
from broker.append_event import HeadRead
from broker.copy_keeping import CopyKeeping
from broker.durable_head import DurableHead, Epoch, head_key
from fragment.persist_item import CommitAt
from fragment.persist_ledger import PersistLedger
from fragment.spool import CopyEnd, EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory
from fragment.spool_file import SpoolFile
from fragment.spool_writer import SpoolWriter
from protocol.errors import UnavailableError
from protocol.label import LabelSet
from tests.support.etcd_server import free_port
from tests.support.eventually import eventually

JOURNAL = "acme/orders"
FIRST = EpochMark(7, 1)
X = LabelSet.of(("x", "1"))
BOOT = b"\1" * 16


@dataclass
class Started:
    """A broker that is about to announce itself."""

    directory: SpoolDirectory
    ledger: PersistLedger[SpoolFile]
    keeping: CopyKeeping
    # Journals of which it has a live one.
    replicas: set[str]


class Machine:
    """Spool directories, each of one process at a time."""

    def __init__(self, etcd: EtcdClient, root: str, path: Path, stack: ExitStack) -> None:
        self.etcd = etcd
        self.root = root
        self._path = path
        self._stack = stack
        self._open: dict[str, SpoolDirectory] = {}

    def directory(self, name: str) -> SpoolDirectory:
        """By a process that comes after the one before."""
        if name in self._open:
            self._open[name].close()
        self._open[name] = SpoolDirectory(self._path / name, FsyncMode(), BOOT, SpoolBudget())
        self._stack.callback(self._open[name].close)
        return self._open[name]

    def commit(self, name: str, *appends: bytes, mark: EpochMark = FIRST, acked: int = 0, begin: int = 0) -> bytes:
        """Have a process commit and die; the id of its directory."""
        directory = self.directory(name)
        writer = SpoolWriter(JOURNAL, directory, lambda: b"", mark.create_revision)
        writer.propose(Proposal(replace(writer.spool.fragment, begin=begin, end=begin), X, 1, mark, acked))
        for data in appends:
            writer.content(data, 0)
            writer.propose(Proposal(writer.spool.next(), X, 1, mark, acked))
        return directory.spool_id

    def start(self, name: str) -> Started:
        directory = self.directory(name)
        loop = asyncio.get_running_loop()
        ledger: PersistLedger[SpoolFile] = PersistLedger(lambda _: None, loop.time, random.Random(1))
        replicas: set[str] = set()
        keeping = CopyKeeping(self.etcd, self.root, directory, ledger, replicas.__contains__)
        return Started(directory, ledger, keeping, replicas)

    async def recovered(self, name: str) -> Started:
        started = self.start(name)
        await started.keeping.recover()
        return started

    async def put(self, head: DurableHead) -> None:
        await self.etcd.put(head_key(self.root, JOURNAL), head.encoded())

    async def create(self) -> int:
        """The journal's item; its CreateRevision."""
        key = item_key(self.root, JOURNAL)
        await self.etcd.put(key, b"a spec")
        stored = await self.etcd.get(key)
        assert stored is not None
        return stored.create_revision

    async def head(self) -> DurableHead:
        stored = await self.etcd.get(head_key(self.root, JOURNAL))
        assert stored is not None
        return DurableHead.decoded(stored.raw)


@pytest.fixture
def machine(etcd: EtcdClient, prefix: str, tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(etcd, prefix, tmp_path, stack)


def held_by(*spool_ids: bytes, begin: int = 0, floor: int = 0) -> DurableHead:
    return DurableHead(7, (Epoch(1, begin, spool_ids),), floor)


async def test_a_copy_that_was_left_closes_its_epoch_where_it_ends(machine: Machine) -> None:
    """DH-7, DH-8: and all of it may be read at once."""
    await machine.put(held_by(machine.commit("one", b"hello", b"world")))
    started = await machine.recovered("one")
    assert (await machine.head()).epochs == (Epoch(1, 0, (started.directory.spool_id,), X, end=10),)
    assert len(started.keeping.copies) == 0
    ((fragment, file),) = started.ledger.local(JOURNAL, 7)
    assert file.read(0, 99) == b"helloworld"
    assert fragment.end == 10


async def test_spools_are_taken_in_once_however_often_etcd_has_to_be_asked(machine: Machine) -> None:
    await machine.put(held_by(machine.commit("one", b"hello", b"world")))
    started = await machine.recovered("one")
    await started.keeping.recover()
    assert len(started.ledger.waiting) == 1


async def test_a_directory_without_a_commit_closes_where_the_epoch_begins(machine: Machine) -> None:
    """DH-7."""
    await machine.put(held_by(machine.directory("one").spool_id, begin=40))
    await machine.recovered("one")
    last = (await machine.head()).last
    assert last is not None
    assert last.end == 40


async def test_a_broker_does_not_begin_before_it_could_close_what_it_left_open(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DH-7: also of journals that it has no commit of, which nothing else would remind it of later on."""
    monkeypatch.setattr(copy_keeping, "RETRY_S", 0.0)
    await machine.put(held_by(machine.directory("one").spool_id, begin=40))
    started = machine.start("one")
    with monkeypatch.context() as patch:
        patch.setattr(machine.etcd, "commit", full_etcd)
        with pytest.raises(EtcdError, match=JOURNAL):
            await started.keeping.recover()
    assert started.keeping.copies.journals == [JOURNAL]
    await started.keeping.recover()
    last = (await machine.head()).last
    assert last is not None
    assert last.end == 40


async def full_etcd(_: Transaction) -> None:
    """It answers reads, and takes no writes."""
    raise EtcdFullError("no")


async def test_of_two_that_return_at_once_one_closes_and_the_other_is_cut_there(machine: Machine) -> None:
    """DH-7: compare-and-set."""
    await machine.put(held_by(machine.commit("one", b"hello", b"world"), machine.commit("two", b"hello")))
    one, two = machine.start("one"), machine.start("two")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.keeping.recover())
        tasks.create_task(two.keeping.recover())
    last = (await machine.head()).last
    assert last is not None
    assert last.end in (5, 10)
    assert [len(started.keeping.copies) for started in (one, two)] == [0, 0]


async def test_an_epoch_that_others_have_closed_stays_closed(machine: Machine) -> None:
    """DH-8."""
    spool_id = machine.commit("one", b"hello", b"world")
    shut = replace(held_by(spool_id), epochs=(Epoch(1, 0, (spool_id,), end=5),))
    await machine.put(shut)
    started = await machine.recovered("one")
    assert await machine.head() == shut
    assert len(started.keeping.copies) == 0
    assert started.ledger.local(JOURNAL, 7) == [], "what was cut is told later"


async def test_who_is_not_listed_leaves_it_open_and_keeps_its_copy(machine: Machine) -> None:
    """DH-7."""
    machine.commit("one", b"hello")
    await machine.put(held_by(b"another" * 2))
    started = await machine.recovered("one")
    assert await machine.head() == held_by(b"another" * 2)
    assert started.keeping.copies.has(JOURNAL, FIRST)


async def test_a_damaged_copy_raises_the_floor_and_closes_nothing(machine: Machine, tmp_path: Path) -> None:
    """Section 3."""
    spool_id = machine.commit("one", b"hello", b"world", acked=7)
    (content,) = (tmp_path / "one").glob("*.content")
    content.write_bytes(b"hello")
    await machine.put(held_by(spool_id))
    started = await machine.recovered("one")
    said = replace(held_by(spool_id, floor=7), epochs=(Epoch(1, 0, (spool_id,), damaged=(spool_id,)),))
    assert await machine.head() == said
    assert started.keeping.copies.damaged_count == 1


async def test_a_copy_without_any_record_is_kept_and_told_of(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """DH-8."""
    mark = EpochMark(await machine.create(), 1)
    machine.commit("one", b"hello", mark=mark)
    started = await machine.recovered("one")
    await started.keeping.settle()
    assert started.keeping.copies.has(JOURNAL, mark)
    told = [record for record in caplog.records if "ahead of what is on record" in record.message]
    assert [record.levelno for record in told] == [logging.ERROR]


async def test_what_was_never_committed_is_removed(machine: Machine, tmp_path: Path) -> None:
    writer = SpoolWriter(JOURNAL, machine.directory("one"), lambda: b"")
    writer.content(b"never", 0)
    await machine.recovered("one")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["identity.json", "lock"]


async def test_a_copy_that_a_live_process_gave_up_closes_its_epoch(machine: Machine) -> None:
    """DH-7, DH-14."""
    started = machine.start("one")
    await machine.put(held_by(started.directory.spool_id))
    await started.keeping.settle()
    assert (await machine.head()).open_epoch is not None, "it may be about to commit"
    started.keeping.give_up(JOURNAL, CopyEnd(FIRST, 25, X), 20)
    await started.keeping.settle()
    assert (await machine.head()).epochs == (Epoch(1, 0, (started.directory.spool_id,), X, end=25),)


async def test_a_live_process_that_gave_up_a_replica_without_a_commit_closes_where_the_epoch_begins(
    machine: Machine,
) -> None:
    """DH-7, DH-14: unless it has another one by now, which may take part."""
    started = machine.start("one")
    await machine.put(held_by(started.directory.spool_id, begin=40))
    started.replicas.add(JOURNAL)
    started.keeping.give_up(JOURNAL, None, 0)
    await started.keeping.settle()
    assert (await machine.head()).open_epoch is not None
    started.replicas.clear()
    started.keeping.give_up(JOURNAL, None, 0)
    await started.keeping.settle()
    last = (await machine.head()).last
    assert last is not None
    assert last.end == 40
    assert started.keeping.copies.journals == []


SECOND = EpochMark(7, 2)


async def test_a_bit_flip_in_a_log_costs_no_acknowledged_byte(machine: Machine, tmp_path: Path) -> None:
    """DH-5, DH-7: the log shows commits of epoch 1 only, and those of epoch 2 were acknowledged."""
    directory = machine.directory("one")
    writer = SpoolWriter(JOURNAL, directory, lambda: b"", 7)

    def commit(data: bytes, mark: EpochMark, acked: int) -> Path:
        writer.content(data, 0)
        writer.propose(Proposal(writer.spool.next(), X, 1, mark, acked))
        (log,) = (tmp_path / "one").glob("*.commits")
        return log

    first_ends = commit(b"hello", FIRST, 0).stat().st_size
    commit(b"world", SECOND, 5)
    log = commit(b"again", SECOND, 10)
    raw = bytearray(log.read_bytes())
    raw[first_ends + 20] ^= 1
    log.write_bytes(raw)
    me, other = directory.spool_id, b"o" * 16
    head = DurableHead(7, (Epoch(1, 0, (me, other), end=5), Epoch(2, 5, (me, other))))
    await machine.put(head)

    async def started_anew() -> Started:
        started = await machine.recovered("one")
        assert started.keeping.copies.has(JOURNAL, SECOND), "it must not take part as one without commits"
        last = (await machine.head()).open_epoch
        assert last is not None
        assert last.damaged == (me,), "and it says that it cannot tell"
        assert log.exists()
        return started

    await started_anew()
    started = await started_anew()
    # Another holder closes it and goes on, with this one.
    ended = Epoch(2, 5, (me, other), end=15)
    await machine.put(replace(head, epochs=(head.epochs[0], ended, Epoch(3, 15, (me, other)))))
    await started.keeping.settle()
    assert not started.keeping.copies.has(JOURNAL, SECOND)
    assert not started.keeping.copies.has(JOURNAL, EpochMark(7, 3))


async def test_a_log_of_which_nothing_can_be_read_stands_in_the_way_of_nothing_that_comes_later(
    machine: Machine, tmp_path: Path
) -> None:
    spool_id = machine.commit("one", b"hello")
    (log,) = (tmp_path / "one").glob("*.commits")
    raw = bytearray(log.read_bytes())
    raw[20] ^= 1
    log.write_bytes(raw)
    await machine.put(held_by(spool_id))
    started = await machine.recovered("one")
    assert (await machine.head()).open_epoch is not None
    assert log.exists()
    # An operator has reset the head, and the journal goes on here alone. The next process finds both.
    ended = Epoch(1, 0, (spool_id,), end=5, is_forced=True)
    second = DurableHead(7, (ended, Epoch(2, 5, (spool_id,))))
    await machine.put(second)
    sound = machine.commit("one", b"sound", mark=SECOND, begin=5)
    assert sound == started.directory.spool_id == spool_id
    await machine.recovered("one")
    last = (await machine.head()).last
    assert last is not None
    assert (last.number, last.end) == (2, 10), "it is sound in all that came since"
    assert not log.exists(), "and what cannot be read is of no more use"


async def test_spools_that_cannot_be_opened_all_at_once_are_recovered_all_the_same(
    machine: Machine, tmp_path: Path
) -> None:
    """There may be thousands, and a process has but so many descriptors."""
    directory = machine.directory("one")
    for at in range(64):
        writer = SpoolWriter(f"acme/{at}", directory, lambda: b"", 7)
        writer.content(b"hello", 0)
        writer.propose(Proposal(writer.spool.next(), X, 1, FIRST, 0))
        del writer
    started = machine.start("one")
    before = len(os.listdir("/proc/self/fd"))
    await started.keeping.recover()
    assert len(started.ledger.waiting) == 64
    assert len(os.listdir("/proc/self/fd")) < before + 16


async def test_one_file_that_cannot_be_read_does_not_keep_a_broker_from_starting(
    machine: Machine, tmp_path: Path
) -> None:
    await machine.put(held_by(machine.commit("one", b"hello")))
    (content,) = (tmp_path / "one").glob("*.content")
    content.unlink()
    # A directory opens, and then cannot be read: as a bad sector does.
    content.mkdir()
    started = await machine.recovered("one")
    assert started.keeping.copies.damaged_count == 1
    assert (await machine.head()).open_epoch is not None


async def test_an_etcd_that_falls_silent_is_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It must cost neither the process nor what is still to be uploaded."""
    monkeypatch.setattr(copy_keeping, "LOOK_S", 0.01)
    async with EtcdClient(EtcdConnections([f"127.0.0.1:{free_port()}"]), timeout_s=0.2) as nobody:
        machine.etcd = nobody
        keeping = machine.start("one").keeping
        keeping.give_up(JOURNAL, CopyEnd(FIRST, 25, X), 20)
        with pytest.raises(EtcdError):
            await keeping.settle()
        running = asyncio.get_running_loop().create_task(keeping.run())
        await eventually(lambda: "could not be looked after (will retry)" in caplog.text, "it to be told")
        assert not running.done()
        running.cancel()


async def test_the_head_of_a_deleted_journal_goes_once_nothing_of_it_is_left(machine: Machine) -> None:
    keeping = machine.start("one").keeping

    async def swept(head: DurableHead, *, exists: bool = False) -> bool:
        await machine.put(head)
        await keeping.sweep(lambda _: exists)
        return await machine.etcd.get(head_key(machine.root, JOURNAL)) is None

    shut = DurableHead(7, (Epoch(1, 0, (b"x" * 16,), end=5),))
    assert not await swept(held_by(b"x" * 16)), "somebody may still have to close it"
    assert not await swept(shut, exists=True)
    await machine.create()
    assert not await swept(shut), "the mirror lags: etcd knows better"
    await machine.etcd.commit(Transaction((), (Delete(item_key(machine.root, JOURNAL)),)))
    keeping.give_up(JOURNAL, None, 0)
    assert not await swept(shut), "it is still looked after here"
    await keeping.settle()
    assert await swept(shut)


async def test_a_copy_of_a_journal_that_is_gone_with_its_record_is_set_aside(machine: Machine) -> None:
    """DH-13."""
    machine.commit("one", b"hello")
    started = await machine.recovered("one")
    assert not started.keeping.copies.journals
    assert started.ledger.holds(JOURNAL)


async def test_the_head_is_read_as_etcd_has_it(machine: Machine) -> None:
    keeping = machine.start("one").keeping
    assert await keeping.read_head(JOURNAL) == HeadRead(None, 0)
    head = held_by(b"x" * 16)
    await machine.put(head)
    read = await keeping.read_head(JOURNAL)
    assert read.head == head
    assert read.mod_revision > 0
    await machine.etcd.put(head_key(machine.root, JOURNAL), b"\xff\xff")
    with pytest.raises(UnavailableError, match=head_key(machine.root, JOURNAL)):
        await keeping.read_head(JOURNAL)


async def test_void_is_on_record_before_a_member_without_epochs_takes_part(machine: Machine) -> None:
    """Section 6."""
    keeping = machine.start("one").keeping
    await keeping.void_head(JOURNAL, 7)
    assert await machine.head() == DurableHead(7, is_void=True)
    first = await keeping.read_head(JOURNAL)
    await keeping.void_head(JOURNAL, 7)
    assert await keeping.read_head(JOURNAL) == first, "it is written once"
    await machine.put(held_by(b"x" * 16))
    await keeping.void_head(JOURNAL, 7)
    assert await machine.head() == replace(held_by(b"x" * 16), is_void=True)
    await keeping.void_head(JOURNAL, 9)
    assert await machine.head() == DurableHead(9, is_void=True), "of the new incarnation (DH-13)"


async def test_a_record_that_cannot_be_read_is_left_alone(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.commit("one", b"hello")
    await machine.etcd.put(head_key(machine.root, JOURNAL), b"\xff\xff")
    started = await machine.recovered("one")
    assert started.keeping.copies.has(JOURNAL, FIRST)
    stored = await machine.etcd.get(head_key(machine.root, JOURNAL))
    assert stored is not None
    assert stored.raw == b"\xff\xff"
    assert "not readable" in caplog.text


async def test_the_record_of_a_deleted_journal_whose_holders_are_lost_goes_after_a_while(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, one that returns knows best where it ended."""
    await machine.put(held_by(b"lost" * 4))
    keeping = machine.start("one").keeping
    await keeping.sweep(lambda _: False)
    assert await machine.head() == held_by(b"lost" * 4)
    monkeypatch.setattr(copy_keeping, "GONE_S", 0.0)
    await keeping.sweep(lambda _: True)
    assert await machine.head() == held_by(b"lost" * 4), "it exists again"
    await keeping.sweep(lambda _: False)
    assert await machine.etcd.get(head_key(machine.root, JOURNAL)) is None


async def test_copies_of_a_deleted_journal_that_is_off_the_record_agree_on_what_is_set_aside(machine: Machine) -> None:
    """DH-13: what one of them has beyond may not have been part of the journal."""
    for name, tail in (("one", b"XXXXX"), ("two", b"YYYYY")):
        machine.commit(name, b"hello", tail, acked=5)
        started = await machine.recovered(name)
        assert started.keeping.copies.journals == []
        (item,) = started.ledger.items
        assert item.fragment.begin == 0
        assert item.decided() == CommitAt(5)
