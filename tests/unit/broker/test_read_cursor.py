"""What a reader of a replica gets next, or has to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.read_cursor import AwaitAcks, AwaitChange, Over, ReadCursor
from fragment.index import WRITE_HEAD, Found, Index, NotYetAvailable
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment


@dataclass
class Held:
    """A ReadReplica."""

    index: Index[str] = field(default_factory=Index)
    is_stopped: bool = False
    acked_end: int = 0
    applied_end: int = 0

    def query(self, offset: int, begin_mod_time: int) -> Found[str] | NotYetAvailable:
        return self.index.query(offset, begin_mod_time, 0)

    def show(self, begin: int, end: int) -> None:
        self.index.commit(Fragment("a/journal", begin, end, b"s" * 20, CompressionCodec.NONE), "file")


def test_a_fragment_that_is_there_is_found_wherever_the_reader_is_in_it() -> None:
    held = Held()
    held.show(0, 100)
    found = ReadCursor(held, 30, block=True).step()
    assert isinstance(found, Found)
    assert (found.offset, found.write_head, found.file) == (30, 100, "file")


def test_who_blocks_waits_for_a_change_until_the_broker_gives_up_the_journal() -> None:
    held = Held()
    cursor = ReadCursor(held, 0, block=True)
    assert cursor.step() == AwaitChange()
    assert cursor.step() == AwaitChange()
    held.is_stopped = True
    assert cursor.step() == Over()


def test_who_does_not_block_waits_once_for_what_is_committed_and_not_acknowledged() -> None:
    held = Held(applied_end=50)
    cursor = ReadCursor(held, 0, block=False)
    assert cursor.step() == AwaitAcks(50)
    assert not cursor.has_reached(50)
    held.applied_end = 80
    assert cursor.step() == NotYetAvailable(0, 0)


def test_what_was_waited_for_is_found() -> None:
    held = Held(applied_end=50)
    cursor = ReadCursor(held, 0, block=False)
    assert cursor.step() == AwaitAcks(50)
    held.show(0, 50)
    assert cursor.has_reached(50)
    assert isinstance(cursor.step(), Found)


def test_a_broker_that_gives_up_the_journal_is_not_waited_for() -> None:
    held = Held(applied_end=50)
    cursor = ReadCursor(held, 0, block=False)
    assert cursor.step() == AwaitAcks(50)
    held.is_stopped = True
    assert cursor.has_reached(50)


def test_the_head_is_where_it_stands_once_that_is_settled() -> None:
    held = Held(applied_end=50)
    cursor = ReadCursor(held, WRITE_HEAD, block=True)
    assert cursor.step() == AwaitAcks(50)
    held.show(0, 50)
    assert cursor.step() == AwaitChange()
    assert cursor.offset == 50
    held.show(0, 70)
    found = cursor.step()
    assert isinstance(found, Found)
    assert found.offset == 50


def test_who_asks_for_metadata_waits_for_the_head_though_the_offset_is_there() -> None:
    held = Held(applied_end=50)
    held.show(0, 20)
    assert isinstance(ReadCursor(held, 0, block=False).step(), Found)
    cursor = ReadCursor(held, 0, block=False, metadata_only=True)
    assert cursor.step() == AwaitAcks(50)
    assert isinstance(cursor.step(), Found)


def test_bytes_that_are_acknowledged_and_not_here_count_for_the_head() -> None:
    held = Held(acked_end=90)
    held.show(0, 20)
    cursor = ReadCursor(held, WRITE_HEAD, block=False)
    assert cursor.step() == NotYetAvailable(90, 90)
    found = ReadCursor(held, 0, block=False).step()
    assert found.write_head == 90 if isinstance(found, Found) else False
