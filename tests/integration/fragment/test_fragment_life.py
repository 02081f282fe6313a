"""The whole life of fragments on a real file system and a real S3 server: written, persisted, listed, read, removed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fragment import retention
from fragment.cover_set import CoverSet, Slice
from fragment.fragment_reader import StoredObject, read
from fragment.index import Found
from fragment.index_refresh import list_cover, list_journal
from fragment.live_index import LiveIndex
from fragment.persist_destination import CurrentSpec
from fragment.persist_ledger import PersistLedger
from fragment.persister import Persister
from fragment.spool import EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_compression import SpoolCompression
from fragment.spool_directory import FsyncMode, SpoolDirectory
from fragment.spool_file import SpoolFile
from fragment.spool_writer import Performed, SpoolWriter
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.codec import CompressionCodec
from protocol.fragment import NO_SUM, Fragment
from protocol.journal import FragmentPolicy, JournalSpec
from tests.support.object_servers import BUCKET

EPOCH = EpochMark(9, 1)
CODECS = [codec for codec in CompressionCodec if codec is not CompressionCodec.INVALID]
DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def s3_url(s3_endpoint: str) -> str:
    return f"s3://{BUCKET}/fragment-life/?endpoint={s3_endpoint}&region=us-east-1"


@pytest.fixture(params=["file", "s3"])
def store_url(request: pytest.FixtureRequest) -> str:
    if request.param == "file":
        return "file:///lake/"
    url: str = request.getfixturevalue("s3_url")
    return url


class Journal:
    """A journal at one broker: what a replica does, without the network."""

    def __init__(self, name: str, store_url: str, codec: CompressionCodec, folder: Path) -> None:
        (folder / "root" / "lake").mkdir(parents=True, exist_ok=True)
        policy = FragmentPolicy(1 << 20, codec, (store_url,), retention_ns=DAY_NS)
        self.spec = JournalSpec(name, 1, fragment=policy)
        self.stores = OpenStores(StoreSettings(file_root=folder / "root"))
        self.directory = SpoolDirectory(folder / "spools", FsyncMode(), b"\1" * 16, SpoolBudget())
        self.clock = asyncio.get_running_loop().time
        self.index: LiveIndex[SpoolFile] = LiveIndex(name, lambda: 0.0, random.Random(2))
        self.compression = SpoolCompression()
        self.ledger: PersistLedger[SpoolFile] = PersistLedger(
            lambda _: CurrentSpec(self.spec, EPOCH.create_revision), self.clock, random.Random(1)
        )
        self.persister = Persister(self.ledger, self.stores.open, self.compression)
        self.writer = SpoolWriter(name, self.directory, lambda: self.spec.to_proto().SerializeToString())
        self.content = bytearray()

    async def append(self, data: bytes) -> None:
        await asyncio.to_thread(self.writer.content, data, 0)
        self._told(await asyncio.to_thread(self._propose, self.writer.spool.next()))
        self.content += data

    async def roll(self) -> None:
        held = self.writer.spool.fragment
        codec = self.spec.fragment.compression_codec
        self._told(await asyncio.to_thread(self._propose, replace(held, begin=held.end, sum=NO_SUM, codec=codec)))

    def _propose(self, fragment: Fragment) -> Performed:
        return self.writer.propose(Proposal(fragment, self.writer.spool.registers, 1, EPOCH))

    def _told(self, performed: Performed) -> None:
        for local in performed.visible:
            self.index.commit(local.fragment, local.file)
            self.compression.grew(local)
        if performed.completed:
            self.ledger.complete(performed.completed, EPOCH.create_revision, primary=True)

    async def refresh(self) -> None:
        await self.index.refresh(self.listed)

    async def listed(self) -> CoverSet:
        (url,) = self.spec.fragment.stores
        return await list_cover(self.spec.name, {url: await self.stores.open(url)}, lambda: [self.spec.name])

    async def read(self) -> bytes:
        """Everything, as a reader gets it: from local files or from the store, whatever the index says."""
        offset, got = 0, b""
        while isinstance(found := await self.index.query(offset), Found):
            fragment = found.fragment
            if found.file is not None:
                got += found.file.read(offset - fragment.begin, fragment.end - offset)
            else:
                source = StoredObject(await self.stores.open(fragment.backing_store), fragment.content_path)
                got += b"".join([piece async for piece in read(fragment, source, offset, fragment.end)])
            offset = fragment.end
        return got


@asynccontextmanager
async def running(name: str, store_url: str, codec: CompressionCodec, folder: Path) -> AsyncIterator[Journal]:
    journal = Journal(name, store_url, codec, folder)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(journal.persister.run()), group.create_task(journal.compression.run())]
        await journal.roll()
        yield journal
        for task in tasks:
            task.cancel()
    await journal.stores.close()
    journal.directory.close()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
async def test_every_byte_stays_readable_from_append_to_store(
    tmp_path: Path, store_url: str, codec: CompressionCodec
) -> None:
    if codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION and store_url.startswith("file"):
        pytest.skip("a spec with this codec and a file store is refused")
    chance = random.Random(5)
    async with running(f"acme/{codec.name.lower()}", store_url, codec, tmp_path) as journal:
        for _ in range(3):
            for _ in range(4):
                await journal.append(b"%d\n" % chance.getrandbits(64) * chance.randrange(1, 4000))
            assert await journal.read() == journal.content
            await journal.roll()
        await journal.append(b"the last append is in no store yet\n")
        await journal.persister.finish()
        assert await journal.read() == journal.content, "from files that are unlinked but still open"
        await journal.refresh()
        assert await journal.read() == journal.content, "three fragments from the store, the last one local"
        cover = await journal.listed()
        assert [type(part) for part in cover.walk(0, cover.end)] == [Slice, Slice, Slice]
        kept = [path for path in journal.directory.path.iterdir() if path.suffix in (".content", ".commits")]
        assert len(kept) == 2, "of the last fragment"
        assert journal.directory.budget.held_bytes == sum(path.stat().st_size for path in kept)


async def test_retention_removes_the_oldest_from_a_real_store(tmp_path: Path, store_url: str) -> None:
    async with running("acme/old", store_url, CompressionCodec.GZIP, tmp_path) as journal:
        for at in range(3):
            await journal.append(b"line %d\n" % at)
            await journal.roll()
        await journal.persister.finish()
        store = await journal.stores.open(store_url)
        listed = (await list_journal("acme/old", {store_url: store}, lambda: ["acme/old"])).fragments
        now_s = max(fragment.mod_time for fragment in listed) + 2 * 86_400

        async def current_spec(_: str) -> JournalSpec:
            return journal.spec

        announced: list[int] = []

        async def announce(through: int) -> None:
            assert len(await journal.listed()) == 3, "nothing is gone yet"
            announced.append(through)

        expired = await retention.enforce(
            "acme/old",
            listed,
            now_s,
            current_spec=current_spec,
            open_store=journal.stores.open,
            announce=announce,
        )
        assert len(expired.fragments) == 2
        assert announced == [14]
        assert [(held.begin, held.end) for held in await journal.listed()] == [(14, 21)]
