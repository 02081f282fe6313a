"""The client against real brokers: what a program does with journals in ordinary times."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from broker.client.client import Client
from broker.client.journal_change import ANY_REVISION, Delete, Upsert
from broker.client.retry import NEVER
from broker.client.retrying_read import WRITE_HEAD, Jump
from protocol.codec import CompressionCodec
from protocol.errors import RefusedError, Remedy, Status, ValidationError
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.broker_cluster import BrokerCluster, journal_spec
from tests.support.eventually import eventually

_NUMBERS = itertools.count()


@pytest.fixture
async def journal(client: Client) -> str:
    name = f"client/journal-{next(_NUMBERS):03}"
    await client.apply(Upsert(journal_spec(name)))
    return name


async def test_what_is_appended_is_read_back(client: Client, journal: str) -> None:
    first = await client.append(journal, b"hello ")
    second = await client.append(journal, [b"wor", b"ld\n", b"bye\n"])
    assert (first.begin, first.end, second.begin, second.end) == (0, 6, 6, 16)
    async with client.read(journal, block=False) as reader:
        assert await reader.read() == b"hello world\nbye\n"
        assert (reader.offset, reader.write_head) == (16, 16)
    assert [line async for line in client.read_lines(journal, block=False)] == [b"hello world", b"bye"]


async def test_large_content_of_many_chunks_goes_through_whole(client: Client, journal: str) -> None:
    content = b"".join(b"%07d\n" % at for at in range(600_000))

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 70_000):
            yield content[at : at + 70_000]

    appended = await client.append(journal, chunks())
    assert appended.end - appended.begin == len(content)
    assert await client.read(journal, end=appended.end).read() == content


async def test_a_blocking_reader_gets_what_is_written_later(client: Client, journal: str) -> None:
    await client.append(journal, b"before\n")
    got: list[bytes] = []

    async def tail() -> None:
        async with client.read_lines(journal, WRITE_HEAD) as lines:
            async for line in lines:
                got.append(line)
                if len(got) == 3:
                    assert lines.offset == 7 + 6
                    return

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tailing = tasks.create_task(tail())
        # Which offset the head is, the reader finds out in its own time.
        while not tailing.done():
            await client.append(journal, b"x\n")
            await asyncio.sleep(0)
    assert got == [b"x", b"x", b"x"]


async def test_a_reader_seeks_and_reads_in_parts(client: Client, journal: str) -> None:
    await client.append(journal, b"0123456789")
    async with client.read(journal, block=False) as reader:
        assert await reader.read(4) == b"0123"
        assert reader.offset == 4
        await reader.seek(6)
        assert await reader.read(2) == b"67"
        await reader.seek(1)
        assert await reader.read(100) == b"123456789"
        assert await reader.read(100) == b""
        await client.append(journal, b"abc")
        await reader.seek(reader.offset)
        assert await reader.read(100) == b"abc"


async def test_a_range_ends_where_it_says(client: Client, journal: str) -> None:
    await client.append(journal, b"0123456789")
    assert await client.read(journal, 2, end=5).read() == b"234"
    assert await client.read(journal, 5, end=5).read() == b""
    assert await client.read(journal, 0, end=0).read() == b""
    # Beyond the head, without waiting, is the end.
    assert await client.read(journal, 100, block=False).read() == b""


async def test_refusals_say_what_to_do_and_nothing_was_written(client: Client, journal: str) -> None:
    await client.append(journal, b"one\n")
    with pytest.raises(RefusedError) as refused:
        await client.append(journal, b"two\n", offset=3)
    assert (refused.value.status, refused.value.remedy) == (Status.WRONG_APPEND_OFFSET, Remedy.AMEND)
    with pytest.raises(RefusedError) as refused:
        await client.append("client/no-such-journal", b"two\n")
    assert refused.value.status is Status.JOURNAL_NOT_FOUND
    with pytest.raises(RefusedError) as refused:
        await client.read("client/no-such-journal", block=False).read()
    assert refused.value.status is Status.JOURNAL_NOT_FOUND
    with pytest.raises(ValidationError):
        await client.append("not a name", b"two\n")
    assert (await client.append(journal, offset=4)).end == 4


async def test_registers_fence_a_writer(client: Client, journal: str) -> None:
    appended = await client.append(journal, b"one\n", union_registers=LabelSet.of(("author", "first")))
    assert appended.registers == LabelSet.of(("author", "first"))
    await client.append(journal, b"two\n", union_registers=LabelSet.of(("author", "other")))
    with pytest.raises(RefusedError, match="author=other") as refused:
        await client.append(journal, b"three\n", check_registers=LabelSelector.parse("author=first"))
    assert refused.value.remedy is Remedy.YIELD
    assert await client.read(journal, block=False).read() == b"one\ntwo\n"


async def test_content_that_fails_is_not_appended(client: Client, journal: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a part of it"
        raise LookupError("the rest is not there")

    with pytest.raises(LookupError):
        await client.append(journal, chunks())
    assert (await client.append(journal)).end == 0


async def test_journals_are_listed_changed_watched_and_deleted(client: Client) -> None:
    selector = "name:prefix=client/listed/"
    async with asyncio.timeout(30), aclosing(client.watch(selector)) as listings:
        assert (await anext(listings)).names == []
        names = [f"client/listed/{at:02}" for at in range(30)]
        await client.apply(*[Upsert(journal_spec(name)) for name in names], changes_max=20)
        listed = await client.list(selector)
        assert listed.names == names
        while (seen := await anext(listings)).names != names:
            pass
        assert seen.revision <= listed.revision
        with pytest.raises(RefusedError) as refused:
            await client.apply(Upsert(journal_spec(names[0])))
        assert refused.value.status is Status.ETCD_TRANSACTION_FAILED
        await client.apply(*[Delete(journal.spec.name, journal.mod_revision) for journal in listed])
        while (await anext(listings)).names:
            pass


async def test_stored_fragments_are_listed_and_read_from_their_store(client: Client, cluster: BrokerCluster) -> None:
    name = f"client/stored-{next(_NUMBERS):03}"
    await client.apply(Upsert(journal_spec(name, codec=CompressionCodec.ZSTANDARD, length=1 << 12)))
    content = b""
    for at in range(40):
        piece = b"%05d\n" % at * 200
        content += piece
        await client.append(name, piece)

    async def are_stored() -> bool:
        listed = [one async for one in client.fragments(name, page_limit=7)]
        assert [one.fragment.begin for one in listed] == sorted(one.fragment.begin for one in listed)
        return sum(bool(one.fragment.backing_store) for one in listed) >= 8

    await eventually(are_stored, "fragments in the store")
    signed = [one async for one in client.fragments(name, signature_ttl_s=60, end_mod_time_s=1 << 40)]
    assert all(one.signed_url.startswith("file:///") for one in signed)
    for reads_stores in (True, False):
        assert await client.read(name, block=False, reads_stores=reads_stores).read() == content
    # A read from the middle begins there, wherever the byte is.
    assert await client.read(name, 12_345, end=34_567).read() == content[12_345:34_567]


async def test_gone_bytes_are_passed_over_and_reported(client: Client, cluster: BrokerCluster) -> None:
    name = f"client/pruned-{next(_NUMBERS):03}"
    await client.apply(Upsert(journal_spec(name, length=1 << 10)))
    for at in range(8):
        await client.append(name, b"%01023d\n" % at)

    async def are_stored() -> bool:
        listed = [one async for one in client.fragments(name)]
        return sum(bool(one.fragment.backing_store) for one in listed) >= 3

    await eventually(are_stored, "fragments in the store")
    first = (await anext(client.fragments(name))).fragment
    (cluster.fragments / first.content_path).unlink()

    async def is_forgotten() -> bool:
        return (await anext(client.fragments(name))).fragment.begin > 0

    await eventually(is_forgotten, "the brokers to notice")
    jumps: list[Jump] = []
    lines = [line async for line in client.read_lines(name, block=False, on_jump=jumps.append)]
    assert jumps == [Jump(name, 0, first.end)]
    assert lines == [b"%01023d" % at for at in range(first.end >> 10, 8)]


async def test_a_suspended_journal_resumes_with_an_append(client: Client, journal: str) -> None:
    await client.append(journal, b"one\n")
    with pytest.raises(RefusedError):
        await client.append(journal, b"two\n", suspend=SuspendMode.NOW, retry=NEVER)
    await client.append(journal, b"two\n")
    assert await client.read(journal, block=False).read() == b"one\ntwo\n"


async def test_a_store_that_brokers_cannot_use_is_told(client: Client) -> None:
    await client.store_health("file:///")
    with pytest.raises(RefusedError) as refused:
        await client.store_health("file:///there-is/no-such-folder/")
    assert refused.value.status is Status.FRAGMENT_STORE_UNHEALTHY
    assert refused.value.detail


async def test_any_revision_changes_whatever_there_is(client: Client, journal: str) -> None:
    await client.apply(Upsert(journal_spec(journal, replication=2), ANY_REVISION))
    (listed,) = await client.list(f"name={journal}")
    assert listed.spec.replication == 2
