"""Copies that an earlier process left, and the records in a real etcd that they are measured by (DH-7, DH-8)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from allocator.etcd_client import EtcdClient
from broker.append_event import HeadRead
from broker.copy_keeping import CopyKeeping
from broker.durable_head import DurableHead, Epoch, head_key
from fragment.persister import Persister
from fragment.spool import CopyEnd, EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_compression import SpoolCompression
from fragment.spool_directory import FsyncMode, SpoolDirectory
from fragment.spool_writer import SpoolWriter
from fragment.stores.blob_store import BlobStore
from protocol.errors import UnavailableError
from protocol.label import LabelSet

JOURNAL = "acme/orders"
FIRST = EpochMark(7, 1)
X = LabelSet.of(("x", "1"))
BOOT = b"\1" * 16


async def no_store(url: str) -> BlobStore:
    raise UnavailableError("nothing is uploaded here")


@dataclass
class Started:
    """A broker that is about to announce itself."""

    directory: SpoolDirectory
    persister: Persister
    keeping: CopyKeeping


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

    def commit(self, name: str, *appends: bytes, mark: EpochMark = FIRST, acked: int = 0) -> bytes:
        """Have a process commit and die; the id of its directory."""
        directory = self.directory(name)
        writer = SpoolWriter(JOURNAL, directory, lambda: b"")
        for data in appends:
            writer.content(data, 0)
            writer.propose(Proposal(writer.spool.next(), X, 1, mark, acked))
        return directory.spool_id

    def start(self, name: str) -> Started:
        directory = self.directory(name)
        loop = asyncio.get_running_loop()
        persister = Persister(no_store, SpoolCompression(), lambda _: None, loop.time, random.Random(1))
        return Started(directory, persister, CopyKeeping(self.etcd, self.root, directory, persister))

    async def recovered(self, name: str) -> Started:
        started = self.start(name)
        await started.keeping.recover()
        return started

    async def put(self, head: DurableHead) -> None:
        await self.etcd.put(head_key(self.root, JOURNAL), head.encoded())

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
    ((fragment, file),) = started.persister.local(JOURNAL, 7)
    assert file.read(0, 99) == b"helloworld"
    assert fragment.end == 10


async def test_spools_are_taken_in_once_however_often_etcd_has_to_be_asked(machine: Machine) -> None:
    await machine.put(held_by(machine.commit("one", b"hello", b"world")))
    started = await machine.recovered("one")
    await started.keeping.recover()
    assert len(started.persister.waiting) == 1


async def test_a_directory_without_a_commit_closes_where_the_epoch_begins(machine: Machine) -> None:
    """DH-7."""
    await machine.put(held_by(machine.directory("one").spool_id, begin=40))
    await machine.recovered("one")
    last = (await machine.head()).last
    assert last is not None
    assert last.end == 40


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
    assert started.persister.local(JOURNAL, 7) == [], "what was cut is told later"


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
    assert await machine.head() == held_by(spool_id, floor=7)
    assert started.keeping.copies.damaged_count == 1


async def test_a_copy_without_any_record_is_kept_and_told_of(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """DH-8."""
    machine.commit("one", b"hello")
    started = await machine.recovered("one")
    await started.keeping.settle()
    assert started.keeping.copies.has(JOURNAL, FIRST)
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
    started.keeping.give_up(JOURNAL, CopyEnd(FIRST, 25, X))
    await started.keeping.settle()
    assert (await machine.head()).epochs == (Epoch(1, 0, (started.directory.spool_id,), X, end=25),)


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
