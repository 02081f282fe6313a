from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

import cramjam
import pytest
import zstandard
from google.protobuf import json_format

from fragment.cover_set import CoverSet, Slice
from fragment.index_refresh import CHUNK_OBJECTS, NamedStore, list_cover, list_journal
from fragment.remote_listing import FOREIGN_SAMPLE_MAX, RemoteListing
from fragment.stores.blob_store import Batch, ListedObject
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError
from protocol.fragment import Fragment
from protocol.fragment_store import FragmentStore
from protocol.gen import journal_pb2 as pb
from tests.support.golden import GOLDEN, Case

LIVE = GOLDEN / "live" / "fragments"
EXPECTED: dict[str, Case] = json.loads((LIVE / "expected.json").read_text(encoding="utf-8"))
MTIMES: dict[str, int] = json.loads((LIVE / "mtimes.json").read_text(encoding="utf-8"))
STORE = "s3://bucket/prefix/"


def listed(path: str, mod_time: int = 1_700_000_000) -> ListedObject:
    return ListedObject(path, mod_time, size=1)


def name(begin: int, end: int, suffix: str = ".raw") -> str:
    return f"{begin:016x}-{end:016x}-{'ab' * 20}{suffix}"


def listing(journal: str, paths: Iterable[str], journals: Iterable[str] = ()) -> RemoteListing:
    found = RemoteListing(journal)
    found.take(STORE, [listed(path) for path in paths], sorted(journals))
    return found


def spans(fragments: Iterable[Fragment]) -> list[tuple[int, int, str]]:
    return [(each.begin, each.end, each.path_postfix) for each in fragments]


class TestAttribution:
    def test_a_fragment_knows_its_store_and_its_time(self) -> None:
        found = RemoteListing("acme/orders")
        found.take(STORE, [listed(f"date=2026-01-02/{name(0, 5, '.gz')}", 77)], ())
        assert found.fragments == [
            Fragment("acme/orders", 0, 5, b"\xab" * 20, CompressionCodec.GZIP, STORE, 77, "date=2026-01-02")
        ]

    def test_an_object_belongs_to_the_longest_journal_name_it_lies_in(self) -> None:
        journals = ["acme/orders", "acme/orders/late", "acme/orders/late/night", "acme/orders/x=1"]
        paths = [
            name(0, 1),
            f"x=1/{name(1, 2)}",
            f"x=2/{name(2, 3)}",
            f"lat/{name(7, 8)}",
            f"late/{name(3, 4)}",
            f"late/hour=3/{name(4, 5)}",
            f"late/night/{name(5, 6)}",
            f"later/{name(6, 7)}",
        ]
        found = listing("acme/orders", paths, journals)
        assert spans(found.fragments) == [(0, 1, ""), (2, 3, "x=2"), (7, 8, "lat"), (6, 7, "later")]
        assert found.foreign_count == 0
        below = [path.removeprefix("late/") for path in paths if path.startswith("late/")]
        assert spans(listing("acme/orders/late", below, journals).fragments) == [(3, 4, ""), (4, 5, "hour=3")]

    def test_names_that_only_look_alike_do_not_take_anything(self) -> None:
        journals = ["acme/order", "acme/orders", "acme/orders-late", "acme/orders.x", "acme/orders0", "acme/ordersx/a"]
        assert len(listing("acme/orders", [name(0, 1), f"a/{name(1, 2)}"], journals).fragments) == 2

    def test_the_listed_journal_need_not_be_among_the_named_ones(self) -> None:
        """It may have been deleted a moment ago, and Spark may name just one."""
        assert spans(listing("acme/orders", [f"a/b/{name(0, 1)}"]).fragments) == [(0, 1, "a/b")]

    def test_one_of_a_hundred_thousand_names_is_found(self) -> None:
        journals = [f"acme/orders/part-{at:06d}" for at in range(100_000)]
        paths = [f"part-{at:06d}/{name(0, 1)}" for at in (0, 77_777, 99_999, 100_000)]
        assert spans(listing("acme/orders", paths, journals).fragments) == [(0, 1, "part-100000")]

    def test_names_may_come_into_being_between_batches(self) -> None:
        found = RemoteListing("acme/orders")
        found.take(STORE, [listed(f"late/{name(0, 1)}")], ["acme/orders"])
        found.take(STORE, [listed(f"late/{name(1, 2)}")], ["acme/orders", "acme/orders/late"])
        assert spans(found.fragments) == [(0, 1, "late")]

    def test_what_is_no_fragment_is_counted_and_a_few_are_shown(self) -> None:
        odd = ["_SUCCESS", f".partial-{name(0, 1)}", f"/{name(0, 1)}", f"bad path/{name(0, 1)}", name(5, 4), "", "/"]
        odd += ["x" * 5000] * 20
        found = listing("acme/orders", [*odd, name(0, 1)])
        assert len(found.fragments) == 1
        assert found.foreign_count == len(odd)
        assert len(found.foreign_sample) == FOREIGN_SAMPLE_MAX
        assert found.foreign_sample[0] == "_SUCCESS"
        assert max(map(len, found.foreign_sample)) < 200

    @pytest.mark.parametrize("mod_time", [0, -5])
    def test_a_stored_object_without_a_time_is_not_taken_for_a_local_one(self, mod_time: int) -> None:
        found = RemoteListing("acme/orders")
        found.take(STORE, [listed(name(0, 1), mod_time)], ())
        assert found.fragments[0].mod_time == 1

    def test_fragments_of_a_folder_share_its_text(self) -> None:
        found = RemoteListing("acme/orders")
        for at in range(3):
            found.take(STORE, [listed(f"date=2026-01-02/{name(at, at + 1)}")], ())
        assert len({id(each.path_postfix) for each in found.fragments}) == 1


class FakeStore:
    """Gives prepared batches, and says what it was asked for."""

    def __init__(self, *batches: Batch | Exception) -> None:
        self.batches = batches
        self.asked: list[str] = []

    async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        self.asked.append(prefix)
        for batch in self.batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch


class TestListing:
    async def test_is_the_union_of_all_stores_of_which_the_last_wins(self) -> None:
        stores = {
            "s3://one/": FakeStore([listed(name(0, 10))], [], [listed(name(10, 20))]),
            "s3://two/": FakeStore([listed(name(10, 20)), listed(name(20, 30))]),
        }
        cover = await list_cover("acme/orders", stores, lambda: ())
        assert [store.asked for store in stores.values()] == [["acme/orders/"], ["acme/orders/"]]
        assert [(each.begin, each.backing_store) for each in cover] == [
            (0, "s3://one/"),
            (10, "s3://two/"),
            (20, "s3://two/"),
        ]

    async def test_fails_if_one_store_does(self) -> None:
        stores = {
            "s3://one/": FakeStore([listed(name(0, 10))]),
            "s3://two/": FakeStore([listed(name(10, 20))], UnavailableError("gone")),
        }
        with pytest.raises(UnavailableError):
            await list_cover("acme/orders", stores, lambda: ())

    async def test_names_the_store_that_fails_but_not_what_is_secret(self) -> None:
        failing = {
            "s3://two/p/?profile=mine": UnavailableError("gone"),
            "s3://three/": OSError("with a key in it"),
        }
        for url, error in failing.items():

            async def opened(asked: str, error: Exception = error) -> FakeStore:
                return FakeStore([listed(name(0, 10))], *([error] if asked in failing else []))

            stores = {each: NamedStore(each, opened) for each in ("s3://one/", url)}
            with pytest.raises(UnavailableError) as raised:
                await list_cover("acme/orders", stores, lambda: ())
            assert raised.value.__cause__ is error
            said = "gone" if isinstance(error, UnavailableError) else "it cannot be used: OSError"
            assert str(raised.value) == f"fragment store {url.partition('?')[0]} cannot be listed: {said}"

    async def test_names_a_store_that_cannot_be_opened(self) -> None:
        async def opened(_: str) -> FakeStore:
            raise UnavailableError("no credentials")

        with pytest.raises(UnavailableError, match="fragment store s3://one/ cannot be listed: no credentials"):
            await list_cover("acme/orders", {"s3://one/": NamedStore("s3://one/", opened)}, lambda: ())

    async def test_lets_others_run_between_short_steps(self) -> None:
        objects = [listed(name(at, at + 1)) for at in range(20 * CHUNK_OBJECTS)]
        done = asyncio.Event()
        turns = 0

        async def bystander() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(bystander())
            found = await list_journal("acme/orders", {STORE: FakeStore(objects)}, lambda: ())
            done.set()
        assert len(found.fragments) == len(objects)
        assert turns >= 20

    async def test_asks_for_the_existing_journals_after_each_batch(self) -> None:
        journals = ["acme/orders"]

        class Growing(FakeStore):
            async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
                yield [listed(name(0, 1))]
                journals.append("acme/orders/late")
                yield [listed(f"late/{name(0, 9)}")]

        found = await list_journal("acme/orders", {STORE: Growing()}, lambda: journals)
        assert (spans(found.fragments), found.foreign_count) == ([(0, 1, "")], 0)

    async def test_that_is_given_up_leaves_no_request_open(self) -> None:
        closed = asyncio.Event()

        class Endless(FakeStore):
            async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
                try:
                    while True:
                        yield [listed(name(0, 1))]
                finally:
                    closed.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(list_journal("acme/orders", {STORE: Endless()}, lambda: ()))
            await asyncio.sleep(0)
            task.cancel()
        assert closed.is_set()

    async def test_tells_the_log_of_what_it_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            await list_cover("acme/orders", {STORE: FakeStore([listed("_SUCCESS")])}, lambda: ())
        (record,) = caplog.records
        assert (record.__dict__["journal"], record.__dict__["sample"]) == ("acme/orders", ["_SUCCESS"])


class FolderStore:
    """A `file` store below a root, with the modification times that copying has lost."""

    def __init__(self, root: Path, url: str) -> None:
        self.url = url
        self.root = root

    def folder(self, prefix: str) -> Path:
        return self.root / FragmentStore.parse(self.url).object_key(prefix).lstrip("/")

    async def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        folder = self.folder(prefix)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        yield [listed(str(path.relative_to(folder)), MTIMES.get(self.key(path), 1)) for path in files]

    def key(self, path: Path) -> str:
        return str(path.relative_to(self.root)).removeprefix("store/")


def live_stores(journal: str) -> dict[str, FolderStore]:
    expected = EXPECTED[journal]
    if "spec" not in expected:
        return {"s3://golden-bucket/": FolderStore(LIVE / expected["tree"], "s3://golden-bucket/")}
    return {url: FolderStore(LIVE, url) for url in expected["spec"]["fragment"]["stores"]}


async def live_cover(journal: str) -> CoverSet:
    return await list_cover(journal, live_stores(journal), lambda: sorted(EXPECTED))


def unpacked(codec: CompressionCodec, stored: bytes) -> bytes:
    """By plain libraries: our own decoders have tests of their own."""
    match codec:
        case CompressionCodec.NONE:
            return stored
        case CompressionCodec.ZSTANDARD:
            return zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True).read()
        case CompressionCodec.SNAPPY:
            return bytes(cramjam.snappy.decompress(stored))
        case _:
            return gzip.decompress(stored)


@pytest.mark.parametrize("journal", EXPECTED)
async def test_a_store_written_by_gazette_is_covered_without_a_gap(journal: str) -> None:
    cover = await live_cover(journal)
    parts = list(cover.walk(0, EXPECTED[journal]["length"]))
    assert all(isinstance(part, Slice) for part in parts)
    assert cover.end == EXPECTED[journal]["length"]
    assert not cover.divergences
    assert {each.journal for each in cover} == {journal}
    # Fragments are cut, and overlap, only where an append ended.
    ends = {end for _, end in EXPECTED[journal]["commits"]}
    assert all(part.end in ends for part in parts)


@pytest.mark.parametrize("journal", [name for name, each in EXPECTED.items() if each.get("go_read_ok")])
async def test_a_listing_is_that_of_a_gazette_broker(journal: str) -> None:
    listed = [json_format.ParseDict(each, pb.Fragment()) for each in EXPECTED[journal]["index"]]
    assert list(await live_cover(journal)) == [Fragment.from_proto(each) for each in listed]


async def test_a_journal_does_not_swallow_one_that_lies_within_it() -> None:
    """The Gazette broker did, and served the wrong bytes."""
    found = await list_journal("golden/nest", live_stores("golden/nest"), lambda: sorted(EXPECTED))
    assert len(found.fragments) == 5
    assert {each.path_postfix for each in found.fragments} == {""}
    swallowing = await list_journal("golden/nest", live_stores("golden/nest"), lambda: ["golden/nest"])
    assert {each.path_postfix for each in swallowing.fragments} == {"", "deeper"}
    assert len(swallowing.fragments) == 10


@pytest.mark.parametrize("journal", EXPECTED)
async def test_a_walk_reads_what_was_appended(journal: str) -> None:
    stores, content = live_stores(journal), hashlib.sha256()
    for part in (await live_cover(journal)).walk():
        assert isinstance(part, Slice)
        fragment = part.fragment
        plain = unpacked(fragment.codec, stores[fragment.backing_store].folder(fragment.content_path).read_bytes())
        assert hashlib.sha1(plain).digest() == fragment.sum
        content.update(plain[part.begin - fragment.begin : part.end - fragment.begin])
    assert content.hexdigest() == EXPECTED[journal]["sha256"]
