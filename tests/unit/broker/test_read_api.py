from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from broker import spool_chunks
from broker.read_message import content_message
from broker.resolution import MisdirectedError
from broker.resolver import StoppedError
from broker.spool_chunks import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Pace, SpoolChunks
from fragment.index import JUMP_AGE_S
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobNotFoundError
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag, Suspend, SuspendLevel
from protocol.label import LabelSet
from protocol.route import ProcessId
from protocol.selector import LabelSelector
from protocol.validation import validate
from tests.support.coding import encoded
from tests.support.journal_cluster import (
    NOW_S,
    A,
    B,
    C,
    HeldJournal,
    JournalCluster,
    content_of,
    fragment_of,
    journal_spec,
    settled,
)

JOURNAL = "acme/orders"


def held_by_a(cluster: JournalCluster) -> HeldJournal:
    cluster.put_journal(journal_spec(JOURNAL), A, B)
    return cluster.brokers[A].held[JOURNAL]


def asked(**fields: object) -> pb.ReadRequest:
    return pb.ReadRequest(journal=JOURNAL, **fields)  # type: ignore[arg-type]


async def read(cluster: JournalCluster, at: ProcessId = A, **fields: object) -> list[pb.ReadResponse]:
    async with asyncio.timeout(10):
        messages = await cluster.brokers[at].read(asked(**fields))
    check_rules(messages)
    return messages


def check_rules(messages: list[pb.ReadResponse]) -> None:
    """What holds of every Read: RD-02 to RD-04."""
    at = None
    for number, message in enumerate(messages):
        validate(message)
        assert message.HasField("header") == (number == 0)
        if message.content:
            assert message.offset == at
        else:
            at = message.offset
        at = message.offset + len(message.content)


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 300, 2**31, 2**63 - 1])
@pytest.mark.parametrize("length", [1, 127, 128, 70_000])
def test_content_is_written_as_protobuf_writes_it(offset: int, length: int) -> None:
    content = bytes(length)
    assert content_message(offset, content) == pb.ReadResponse(offset=offset, content=content).SerializeToString()
    assert content_message(offset, memoryview(content)) == content_message(offset, content)


async def test_all_is_read_from_the_beginning_and_then_nothing_is_there_yet(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    held.append(b"one,")
    held.roll()
    held.append(b"two,")
    held.append(b"three")
    messages = await read(cluster)
    assert content_of(messages) == b"one,two,three"
    assert [(m.fragment.begin, m.fragment.end) for m in messages if m.HasField("fragment")] == [(0, 4), (4, 13)]
    last = messages[-1]
    assert (last.status, last.offset, last.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 13, 13)
    assert not last.HasField("fragment")


async def test_what_is_handed_to_readers_is_counted_where_it_is_read(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec(JOURNAL), A)
    cluster.brokers[A].held[JOURNAL].append(b"0123456789" * CHUNK_BYTES_MIN)
    await read(cluster, offset=300, end_offset=CHUNK_BYTES_MIN * 3)
    await read(cluster, at=C, offset=0, end_offset=7)
    assert cluster.brokers[A].reads.served.of(JOURNAL) == CHUNK_BYTES_MIN * 3 - 300 + 7
    assert cluster.brokers[C].reads.served.of(JOURNAL) == 0, "it was only passed on"


async def test_content_longer_than_a_message_comes_in_several(cluster: JournalCluster) -> None:
    content = bytes(range(256)) * (3 * CHUNK_BYTES_MAX // 256) + b"rest"
    held_by_a(cluster).append(content)
    messages = await read(cluster, offset=100)
    assert content_of(messages) == content[100:]
    sizes = [len(message.content) for message in messages if message.content]
    assert sizes[0] == CHUNK_BYTES_MIN - 100
    assert max(sizes) == CHUNK_BYTES_MAX


@pytest.mark.parametrize(("offset", "end"), [(0, 3), (2, 9), (3, 4), (0, CHUNK_BYTES_MAX + 1)])
async def test_a_read_ends_at_its_end_offset(cluster: JournalCluster, offset: int, end: int) -> None:
    held = held_by_a(cluster)
    content = b"0123456789" * CHUNK_BYTES_MAX
    held.append(content[:4])
    held.roll()
    held.append(content[4:])
    messages = await read(cluster, offset=offset, end_offset=end)
    assert content_of(messages) == content[offset:end]
    assert all(message.status == pb.OK for message in messages)


async def test_an_end_offset_that_is_the_offset_gives_the_fragment_and_no_content(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    (only,) = await read(cluster, offset=2, end_offset=2)
    assert (only.offset, only.fragment.end) == (2, 5)


async def test_a_blocking_read_goes_up_to_an_end_offset_that_is_not_there_yet(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cluster, end_offset=7, block=True))
        for part in (b"one", b"two", b"three"):
            held.append(part)
            await settled()
    assert content_of(reading.result()) == b"onetwot"


async def test_metadata_only_gives_no_content(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    (only,) = await read(cluster, metadata_only=True)
    assert (only.offset, only.write_head, only.fragment.end) == (0, 5, 5)


async def test_the_write_head_is_fixed_when_the_reader_comes(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    held.append(b"before")
    (last,) = await read(cluster, offset=-1)
    assert (last.status, last.offset, last.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 6, 6)

    async with aclosing(cluster.brokers[A].reads.read(asked(offset=-1, block=True))) as messages:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(anext(messages))
            await settled()
            held.append(b"one")
        metadata = first.result()
        assert isinstance(metadata, pb.ReadResponse)
        assert (metadata.offset, metadata.write_head, metadata.fragment.end) == (6, 9, 9)
        assert await anext(messages) == content_message(6, b"one")
        held.append(b"two")
        metadata = await anext(messages)
        assert isinstance(metadata, pb.ReadResponse)
        assert (metadata.offset, metadata.fragment.end) == (9, 12)
        assert await anext(messages) == content_message(9, b"two")


async def test_reading_past_the_head_waits_or_says_so(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    (last,) = await read(cluster, offset=1_000)
    assert (last.status, last.offset, last.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 1_000, 5)


async def test_a_non_blocking_read_waits_a_moment_for_what_is_written_to_be_acknowledged(
    cluster: JournalCluster,
) -> None:
    held = held_by_a(cluster)
    held.append(b"seen", acked=4)
    held.append(b"unseen", acked=4)
    api = replace(cluster.brokers[A].reads, ack_wait_s=60)
    async with asyncio.TaskGroup() as tasks:
        reading = [
            tasks.create_task(_collected(api.read(asked(offset=offset, metadata_only=only))))
            for offset, only in ((4, False), (-1, False), (0, True))
        ]
        await settled()
        assert not any(task.done() for task in reading)
        held.ack(10)
    at_end, at_head, metadata = [task.result() for task in reading]
    assert content_of(at_end) == b"unseen"
    assert (at_head[0].status, at_head[0].offset) == (pb.OFFSET_NOT_YET_AVAILABLE, 10)
    assert metadata[0].write_head == 10


async def test_an_acknowledgement_that_does_not_come_is_not_waited_for_long(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    held.append(b"seen", acked=4)
    held.append(b"unseen", acked=4)
    messages = await read(cluster)
    assert content_of(messages) == b"seen"
    assert (messages[-1].status, messages[-1].write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 4)


async def _collected(messages: AsyncGenerator[pb.ReadResponse | bytes, None]) -> list[pb.ReadResponse]:
    return [pb.ReadResponse.FromString(m) if isinstance(m, bytes) else m async for m in messages]


# Stores.


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD])
async def test_a_persisted_fragment_is_read_from_its_store(cluster: JournalCluster, codec: CompressionCodec) -> None:
    held = held_by_a(cluster)
    content = b"0123456789" * CHUNK_BYTES_MAX
    fragment = fragment_of(JOURNAL, 0, content, codec)
    cluster.put_object(fragment, encoded(codec, [content]))
    await held.refresh(fragment)
    messages = await read(cluster, offset=7)
    assert content_of(messages) == content[7:]
    assert all(len(message.content) <= CHUNK_BYTES_MAX for message in messages)
    assert messages[0].fragment_url == f"file:///store/{fragment.content_path}"
    assert content_of(await read(cluster, offset=5, end_offset=20)) == content[5:20]


async def test_a_client_that_wants_no_proxy_is_given_the_url_of_a_persisted_fragment(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    fragment = fragment_of(JOURNAL, 0, b"hello")
    await held.refresh(fragment)
    (only,) = await read(cluster, offset=2, do_not_proxy=True)
    assert (only.offset, only.fragment_url) == (2, f"file:///store/{fragment.content_path}")
    (only,) = await read(cluster, metadata_only=True)
    assert only.fragment_url


async def test_a_client_that_wants_no_proxy_reads_what_is_local(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    assert content_of(await read(cluster, do_not_proxy=True)) == b"hello"


async def test_reads_go_on_from_the_store_to_what_is_local(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    old = fragment_of(JOURNAL, 0, b"old,")
    cluster.put_object(old, b"old,")
    held.commit(replace(fragment_of(JOURNAL, 4, b"new"), backing_store="", mod_time=0), b"new")
    await held.refresh(old)
    messages = await read(cluster)
    assert content_of(messages) == b"old,new"
    assert [bool(m.fragment_url) for m in messages if m.HasField("fragment")] == [True, False]


async def test_an_object_that_is_gone_or_spoilt_fails_the_read(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    fragment = fragment_of(JOURNAL, 0, b"hello")
    await held.refresh(fragment)
    with pytest.raises(BlobNotFoundError):
        await read(cluster)
    cluster.put_object(fragment, b"jello")
    with pytest.raises(CorruptError):
        await read(cluster)


async def test_an_offset_below_the_first_persisted_fragment_jumps_to_it(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    fragment = fragment_of(JOURNAL, 100, b"hello")
    cluster.put_object(fragment, b"hello")
    await held.refresh(fragment)
    messages = await read(cluster, offset=3)
    assert messages[0].offset == 100
    assert content_of(messages) == b"hello"
    (past_the_end,) = await read(cluster, offset=3, end_offset=50)
    assert past_the_end.offset == 100


@pytest.mark.parametrize("age_s", [JUMP_AGE_S - 1, JUMP_AGE_S + 1])
async def test_a_hole_is_passed_over_once_it_is_old(cluster: JournalCluster, age_s: int) -> None:
    held = held_by_a(cluster)
    before = fragment_of(JOURNAL, 0, b"before")
    after = fragment_of(JOURNAL, 50, b"after", mod_time=NOW_S - age_s)
    for fragment, content in ((before, b"before"), (after, b"after")):
        cluster.put_object(fragment, content)
    await held.refresh(before, after)
    assert content_of(await read(cluster)) == (b"beforeafter" if age_s > JUMP_AGE_S else b"before")


async def test_persisted_fragments_before_begin_mod_time_are_passed_over(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    old, new = fragment_of(JOURNAL, 0, b"old", mod_time=10), fragment_of(JOURNAL, 3, b"new", mod_time=20)
    cluster.put_object(new, b"new")
    await held.refresh(old, new)
    assert content_of(await read(cluster, begin_mod_time=20)) == b"new"
    (none,) = await read(cluster, begin_mod_time=21)
    assert (none.status, none.offset) == (pb.OFFSET_NOT_YET_AVAILABLE, 6)


# Who serves.


async def test_a_journal_that_is_held_elsewhere_is_read_there(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    held.append(b"hello")
    messages = await read(cluster, at=C)
    assert content_of(messages) == b"hello"
    assert messages[0].header.process_id.suffix == A.suffix


async def test_without_a_proxy_one_who_does_not_hold_the_journal_says_so(cluster: JournalCluster) -> None:
    held_by_a(cluster)
    (only,) = await read(cluster, at=C, do_not_proxy=True)
    assert only.status == pb.NOT_JOURNAL_BROKER
    assert (only.header.process_id.suffix, len(only.header.route.endpoints)) == (C.suffix, 2)


async def test_what_may_not_be_seen_does_not_exist(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    others = LabelSelector(include=LabelSet.of(("name", "acme/other")))
    (only,) = await _collected(cluster.brokers[A].reads.read(asked(), others))
    assert only.status == pb.JOURNAL_NOT_FOUND
    assert not only.header.route.members


@pytest.mark.parametrize("at", [A, C])
async def test_a_journal_that_may_only_be_written_is_not_read(cluster: JournalCluster, at: ProcessId) -> None:
    cluster.put_journal(journal_spec(JOURNAL, flags=Flag.O_WRONLY), A)
    (only,) = await read(cluster, at=at)
    assert only.status == pb.NOT_ALLOWED
    assert only.header.process_id.suffix == at.suffix


async def test_a_journal_that_is_suspended_has_no_bytes(cluster: JournalCluster) -> None:
    cluster.put_journal(replace(journal_spec(JOURNAL), suspend=Suspend(SuspendLevel.FULL)))
    (only,) = await read(cluster)
    assert only.status == pb.SUSPENDED


async def test_a_member_that_cannot_be_reached_is_not_told_of(cluster: JournalCluster) -> None:
    """A Go client ends its process over a member without an endpoint."""
    cluster.put_journal(journal_spec(JOURNAL), ProcessId("zone-x", "nobody"), A)
    cluster.brokers[A].held[JOURNAL].append(b"hello")
    messages = await read(cluster)
    route = messages[0].header.route
    assert ([member.suffix for member in route.members], route.primary) == ([A.suffix], -1)


async def test_a_request_for_another_broker_or_cluster_is_refused(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    (first, *_) = await read(cluster)
    forwarded = asked(header=first.header)
    assert content_of(await cluster.brokers[A].read(forwarded)) == b"hello"
    forwarded.header.process_id.suffix = B.suffix
    with pytest.raises(MisdirectedError):
        await cluster.brokers[A].read(forwarded)


# Ends.


async def test_a_blocked_reader_ends_without_an_error_when_the_journal_moves_away(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cluster, block=True))
        await settled()
        cluster.unassign(JOURNAL, A, 0)
    assert content_of(reading.result()) == b"hello"
    assert reading.result()[-1].status == pb.OK


async def test_a_blocked_reader_stays_when_only_the_other_members_change(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cluster, block=True, end_offset=5))
        await settled()
        cluster.unassign(JOURNAL, B, 1)
        await settled()
        assert not reading.done()
        held.append(b"hello")
    assert content_of(reading.result()) == b"hello"


async def test_blocked_readers_end_when_the_broker_goes(cluster: JournalCluster) -> None:
    held_by_a(cluster)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cluster, block=True))
        await settled()
        cluster.brokers[A].resolver.stop()
    assert reading.result() == []
    with pytest.raises(StoppedError):
        await read(cluster)


async def test_relayed_reads_end_when_the_relaying_broker_goes(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(b"hello")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(cluster, at=C, block=True))
        await settled()
        cluster.brokers[C].stop_proxying.fire()
    assert content_of(reading.result()) in (b"", b"hello")
    assert await read(cluster, at=C) == []


async def test_a_reader_that_is_cancelled_leaves_nothing_behind(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    reading = asyncio.get_running_loop().create_task(read(cluster, block=True))
    await settled()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not held.replica.index._subscribers  # noqa: SLF001
    assert not held.replica.stopped._listeners  # noqa: SLF001


# What readers share, and what they cost.


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What was read of files."""
    found: list[tuple[int, int]] = []
    really = spool_chunks.read_chunk

    def counted(file: SpoolFile, begin: int, end: int) -> bytes:
        found.append((begin, end))
        return really(file, begin, end)

    monkeypatch.setattr(spool_chunks, "read_chunk", counted)
    return found


async def test_what_a_reader_does_not_take_is_not_read_for_it(
    cluster: JournalCluster, reads: list[tuple[int, int]]
) -> None:
    held_by_a(cluster).append(bytes(20 * CHUNK_BYTES_MAX))
    taken = -1
    async for message in cluster.brokers[A].reading(asked()):
        await settled()
        assert len(reads) <= taken + 2
        taken += 1
        assert len(message.content) <= CHUNK_BYTES_MAX
    assert taken == len(reads) + 1


async def test_readers_of_the_same_bytes_share_one_read_of_the_file(
    cluster: JournalCluster, reads: list[tuple[int, int]]
) -> None:
    held = held_by_a(cluster)
    content = bytes(2 * CHUNK_BYTES_MAX)
    async with asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(read(cluster, block=True, end_offset=len(content) + 3)) for _ in range(20)]
        await settled()
        held.append(content)
        await settled()
        held.append(b"end")
    assert all(content_of(task.result()) == content + b"end" for task in reading)
    assert len(reads) == len(set(reads))
    assert len(reads) < len(reading)


async def test_a_slow_reader_costs_two_chunks_and_no_more(cluster: JournalCluster) -> None:
    held_by_a(cluster).append(bytes(40 * CHUNK_BYTES_MAX))
    chunks = SpoolChunks(cluster.executor, kept_bytes_max=CHUNK_BYTES_MAX)
    api = replace(cluster.brokers[A].reads, chunks=chunks)
    tracemalloc.start()
    try:
        async with aclosing(api.read(asked())) as messages:
            before, _ = tracemalloc.get_traced_memory()
            message: pb.ReadResponse | bytes = b""
            for _ in range(10):
                message = await anext(messages)
            assert isinstance(message, bytes)
            # The one that is being sent stands still, and the one that is read ahead is there.
            await asyncio.gather(*chunks._kept.values())  # noqa: SLF001
            now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now - before < 2 * CHUNK_BYTES_MAX + (64 << 10)
    # A piece is in memory twice while it is made a message.
    assert peak - before < 6 * CHUNK_BYTES_MAX


async def test_what_is_kept_for_readers_is_bounded_and_holds_no_file(cluster: JournalCluster) -> None:
    held = held_by_a(cluster)
    held.append(bytes(8 * CHUNK_BYTES_MAX))
    chunks = SpoolChunks(cluster.executor, kept_bytes_max=3 * CHUNK_BYTES_MAX)
    file = held.replica.index._files[0]  # noqa: SLF001
    async for _ in chunks.messages(file, 0, 8 * CHUNK_BYTES_MAX, Pace()):
        assert chunks.kept_bytes <= 3 * CHUNK_BYTES_MAX
    gone = weakref.ref(file)
    cluster.unassign(JOURNAL, A, 0)
    del file
    cluster.brokers[A].held.clear()
    del held
    assert chunks.kept_bytes > CHUNK_BYTES_MAX
    await _until_given_up(gone)


async def _until_given_up(gone: weakref.ref[SpoolFile]) -> None:
    for _ in range(500):
        gc.collect()
        if gone() is None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something still holds the file")


async def test_a_spool_that_has_lost_bytes_fails_the_read_and_is_read_anew_the_next_time(
    cluster: JournalCluster,
) -> None:
    held = held_by_a(cluster)
    held.append(b"hello")
    path = held.replica.index._files[0].content_path  # noqa: SLF001
    path.write_bytes(b"hel")
    with pytest.raises(CorruptError, match="ends after 3 bytes"):
        await read(cluster)
    path.write_bytes(b"hello")
    assert content_of(await read(cluster)) == b"hello"
