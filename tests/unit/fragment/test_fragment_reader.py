from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import struct
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import cache

import pytest
import zstandard

from fragment.fragment_reader import (
    BARREN_BYTES_MAX,
    BATCH_BYTES,
    STEP_BYTES_MAX,
    FragmentContent,
    StoredObject,
    read,
    read_blocking,
    seek_table,
    seek_table_blocking,
)
from fragment.stores.blob_store import BlobNotFoundError
from fragment.stores.bucket_store import BucketStore
from fragment.zstd_frames import parse_tail
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, UnavailableError
from protocol.fragment import NO_SUM, Fragment
from protocol.fragment_store import FragmentStore
from tests.support.coding import (
    CODECS,
    MemoryBlockingSource,
    MemorySource,
    encoded,
    fragment_of,
    json_lines,
)
from tests.support.golden import GOLDEN
from tests.support.memory_bucket import MemoryBucket

MIB = 1 << 20
BEGIN = 10**12
SMALL = json_lines(300_000)
NONE, ZSTD, GZIP = CompressionCodec.NONE, CompressionCodec.ZSTANDARD, CompressionCodec.GZIP
SNAPPY, OFFLOAD = CompressionCodec.SNAPPY, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION

any_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


async def whole(fragment: Fragment, packed: bytes, begin: int | None = None, end: int | None = None) -> bytes:
    """What both readers find, who must agree."""
    begin = fragment.begin if begin is None else begin
    end = fragment.end if end is None else end
    pieces = [piece async for piece in read(fragment, MemorySource(packed), begin, end)]
    assert all(0 < len(piece) <= MIB for piece in pieces)
    blocking = list(read_blocking(fragment, MemoryBlockingSource(packed), begin, end))
    assert all(0 < len(piece) <= MIB for piece in blocking)
    large = list(read_blocking(fragment, MemoryBlockingSource(packed), begin, end, 2 * MIB))
    assert all(0 < len(piece) <= 2 * MIB for piece in large)
    assert b"".join(large) == b"".join(blocking) == b"".join(pieces)
    return b"".join(blocking)


async def failure(fragment: Fragment, packed: bytes, begin: int | None = None, end: int | None = None) -> str:
    """How both readers fail, who must agree."""
    begin = fragment.begin if begin is None else begin
    end = fragment.end if end is None else end
    with pytest.raises(CorruptError) as failed:
        async for _ in read(fragment, MemorySource(packed), begin, end):
            pass
    with pytest.raises(CorruptError) as failed_blocking:
        list(read_blocking(fragment, MemoryBlockingSource(packed), begin, end))
    assert str(failed.value) == str(failed_blocking.value)
    return str(failed.value)


LIVE = GOLDEN / "live" / "fragments"
EXPECTED = json.loads((LIVE / "expected.json").read_text(encoding="utf-8"))
# Journals whose store keeps them elsewhere than under their name.
FOLDERS = {
    "golden/rewritten": LIVE / "store" / "moved" / "written",
    "golden/offload": LIVE / "store-offload/golden/offload",
}


def live_fragments() -> list[tuple[Fragment, bytes]]:
    found = []
    for journal in EXPECTED:
        folder = FOLDERS.get(journal, LIVE / "store" / journal)
        for path in sorted(folder.rglob("*-*-*")):
            relative = path.relative_to(folder).as_posix()
            if path.is_file() and not relative.startswith("deeper/"):
                found.append((Fragment.parse(journal, relative), path.read_bytes()))
    return found


@cache
def live_content(journal: str) -> bytes:
    """By the rule in the recording's README; its SHA-256 is recorded too."""
    lines = []
    for at in range(EXPECTED[journal]["lines"]):
        digest = hashlib.sha1(f"{journal}:{at}".encode()).hexdigest()
        text = " ".join([digest] * (1 + int(digest[:2], 16) // 24))
        lines.append(json.dumps({"i": at, "k": digest[:8], "v": text}, separators=(",", ":")) + "\n")
    content = "".join(lines).encode()
    assert hashlib.sha256(content).hexdigest() == EXPECTED[journal]["sha256"]
    return content


LIVE_FRAGMENTS = live_fragments()


def test_the_recording_has_every_codec() -> None:
    assert {fragment.codec for fragment, _ in LIVE_FRAGMENTS} == set(CODECS)
    assert {fragment.journal for fragment, _ in LIVE_FRAGMENTS} == set(EXPECTED)


@pytest.mark.parametrize(
    ("fragment", "packed"), LIVE_FRAGMENTS, ids=[f"{each.journal}-{each.begin:x}" for each, _ in LIVE_FRAGMENTS]
)
async def test_fragments_that_gazette_wrote_hold_what_it_says(fragment: Fragment, packed: bytes) -> None:
    content = live_content(fragment.journal)
    assert await whole(fragment, packed) == content[fragment.begin : fragment.end]
    begin, end = fragment.begin + 1000, fragment.end - 1000
    assert await whole(fragment, packed, begin) == content[begin : fragment.end]
    assert await whole(fragment, packed, begin, end) == content[begin:end]


@any_codec
class TestAnyFragment:
    async def test_is_read_whole_and_in_part(self, codec: CompressionCodec) -> None:
        fragment, packed = fragment_of(SMALL, codec, BEGIN), encoded(codec, [SMALL])
        assert await whole(fragment, packed) == SMALL
        for begin, end in ((0, 1), (0, 100_000), (99_999, 200_001), (150_000, 300_000), (299_999, 300_000), (7, 7)):
            assert await whole(fragment, packed, BEGIN + begin, BEGIN + end) == SMALL[begin:end]

    async def test_that_ends_early_is_corrupt(self, codec: CompressionCodec) -> None:
        fragment = fragment_of(SMALL, codec)
        message = await failure(fragment, encoded(codec, [SMALL[:-1]]))
        assert "299999 bytes of content where 300000 were expected" in message
        assert "ends" in await failure(fragment, encoded(codec, [SMALL])[:-1])
        assert "ends" in await failure(fragment, b"")
        assert "ends" in await failure(fragment, encoded(codec, [SMALL[:-1]]), 1000)

    async def test_that_goes_on_is_corrupt(self, codec: CompressionCodec) -> None:
        fragment = fragment_of(SMALL, codec)
        for begin in (0, 200_000):
            assert "more than the 300000 bytes" in await failure(fragment, encoded(codec, [SMALL, b"!"]), begin)
            await failure(fragment, encoded(codec, [SMALL]) + b"!", begin)

    async def test_with_other_content_is_corrupt(self, codec: CompressionCodec) -> None:
        fragment = fragment_of(SMALL, codec)
        other = SMALL[:-1] + b"!"
        assert hashlib.sha1(other).hexdigest() in await failure(fragment, encoded(codec, [other]))

    async def test_in_part_is_verified_if_all_of_it_had_to_be_unpacked(self, codec: CompressionCodec) -> None:
        fragment, packed = fragment_of(SMALL, codec), encoded(codec, [b"!" + SMALL[1:]])
        if codec is NONE:
            assert await whole(fragment, packed, 1000) == SMALL[1000:]
        else:
            assert "SHA-1" in await failure(fragment, packed, 1000)

    async def test_is_named_in_an_error_without_the_secrets_of_its_store(self, codec: CompressionCodec) -> None:
        store = "s3://me:secret@bucket/prefix/?profile=secret&endpoint=https://secret/"
        message = await failure(
            replace(fragment_of(SMALL, codec), backing_store=store), b"garbage in the store" * 20_000
        )
        assert fragment_of(SMALL, codec).content_path in message
        assert "s3://bucket/prefix/" in message
        assert "secret" not in message

    async def test_does_not_have_bytes_outside_of_it(self, codec: CompressionCodec) -> None:
        with pytest.raises(InvariantError):
            FragmentContent(fragment_of(SMALL, codec, BEGIN), BEGIN, BEGIN + len(SMALL) + 1)

    async def test_whose_store_fails_is_not_corrupt(self, codec: CompressionCodec) -> None:
        class Failing(MemorySource):
            async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
                yield self.packed[:1000]
                raise UnavailableError("the store went away")

        fragment = fragment_of(SMALL, codec)
        with pytest.raises(UnavailableError):
            async for _ in read(fragment, Failing(encoded(codec, [SMALL])), 0, fragment.end):
                pass


@pytest.mark.parametrize("store", ["", "file:///", "not a url \x7f"])
async def test_a_fragment_of_no_store_is_named_too(store: str) -> None:
    message = await failure(replace(fragment_of(SMALL, GZIP), backing_store=store), b"garbage")
    assert message.startswith("fragment acme/orders/0000000000000000-")


async def test_nothing_is_asked_of_the_store_for_no_bytes() -> None:
    source = MemorySource(b"")
    empty = Fragment("acme/orders", 7, 7, NO_SUM, ZSTD)
    assert [piece async for piece in read(empty, source, 7, 7)] == []
    assert source.opened == []


async def test_an_object_in_a_store_is_a_source() -> None:
    fragment, bucket = fragment_of(LARGE, ZSTD, BEGIN), MemoryBucket()
    store = BucketStore(FragmentStore.parse("s3://bucket/prefix/"), bucket)
    bucket.objects["prefix/" + fragment.content_path] = (large_packed(ZSTD), 0)
    source = StoredObject(store, fragment.content_path)
    begin = BEGIN + 12 * MIB
    assert b"".join([piece async for piece in read(fragment, source, begin, fragment.end)]) == LARGE[12 * MIB :]
    with pytest.raises(BlobNotFoundError):
        await anext(read(fragment, StoredObject(store, "elsewhere"), begin, fragment.end))


async def test_raw_bytes_are_fetched_by_range() -> None:
    fragment, source = fragment_of(SMALL, NONE, BEGIN), MemorySource(SMALL)
    assert b"".join([piece async for piece in read(fragment, source, BEGIN + 5, BEGIN + 9)]) == SMALL[5:9]
    assert b"".join([piece async for piece in read(fragment, source, BEGIN + 5, fragment.end)]) == SMALL[5:]
    # To the fragment's end there is no limit: an object that goes on must be noticed.
    assert source.opened == [(5, 4), (5, None)]


@pytest.mark.parametrize("content", [SMALL, b"\x1f\x8b", b"\x1f"], ids=["text", "two bytes", "one byte"])
async def test_an_offload_fragment_is_read_whether_or_not_its_store_unpacked_it(content: bytes) -> None:
    fragment = fragment_of(content, OFFLOAD)
    assert await whole(fragment, content) == await whole(fragment, gzip.compress(content)) == content


LARGE = json_lines(20 * MIB)
LARGE_APPENDS = [LARGE[at : at + 200_000] for at in range(0, len(LARGE), 200_000)]


@cache
def large_packed(codec: CompressionCodec) -> bytes:
    return encoded(codec, LARGE_APPENDS)


class TestALargeZstandardFragment:
    fragment = fragment_of(LARGE, ZSTD, BEGIN)

    @pytest.mark.parametrize(
        ("begin", "end"),
        [(12 * MIB, 12 * MIB + 100), (0, 5 * MIB), (15 * MIB, 20 * MIB), (3 * MIB, 3 * MIB + 1), (9 * MIB, 14 * MIB)],
    )
    async def test_is_entered_at_a_frame(self, begin: int, end: int) -> None:
        assert await whole(self.fragment, large_packed(ZSTD), BEGIN + begin, BEGIN + end) == LARGE[begin:end]
        source = MemorySource(large_packed(ZSTD))
        async for _ in read(self.fragment, source, BEGIN + begin, BEGIN + end):
            pass
        # The tail, and the frames that hold the range and no others.
        assert len(source.opened) == source.closed == 2
        assert source.sent_bytes < len(source.packed) * (end - begin + 3 * MIB) / len(LARGE) + 2 * 65536

    async def test_is_not_asked_for_its_table_to_step_over_little(self) -> None:
        source = MemorySource(large_packed(ZSTD))
        pieces = [piece async for piece in read(self.fragment, source, BEGIN + MIB, self.fragment.end)]
        assert b"".join(pieces) == LARGE[MIB:]
        assert source.opened == [(0, None)]

    async def test_is_read_without_a_table_as_well(self) -> None:
        packed = zstandard.compress(LARGE)
        assert await seek_table(self.fragment, MemorySource(packed)) is None
        assert await whole(self.fragment, packed, BEGIN + 12 * MIB, BEGIN + 13 * MIB) == LARGE[12 * MIB : 13 * MIB]

    async def test_is_verified_by_the_checksums_of_the_frames_that_are_read(self) -> None:
        packed = bytearray(large_packed(ZSTD))
        table = parse_tail(bytes(packed), len(packed))
        assert table is not None
        frame = table.frames[12]
        packed[frame.packed_end - 1] ^= 1
        await failure(self.fragment, bytes(packed), BEGIN + frame.begin, BEGIN + frame.begin + 1)
        before = table.frames[11]
        assert (
            await whole(self.fragment, bytes(packed), BEGIN + before.begin, BEGIN + before.end)
            == LARGE[before.begin : before.end]
        )

    async def test_that_is_read_whole_to_its_end_is_verified_by_its_sum_alone(self) -> None:
        packed = bytearray(large_packed(ZSTD))
        table = parse_tail(bytes(packed), len(packed))
        assert table is not None
        packed[table.frames[12].packed_end - 1] ^= 1
        source = MemoryBlockingSource(bytes(packed))
        assert b"".join(read_blocking(self.fragment, source, BEGIN, self.fragment.end)) == LARGE
        # Who may leave before its end is told of what is wrong where it is.
        with pytest.raises(CorruptError, match="zstandard"):
            async for _ in read(self.fragment, MemorySource(bytes(packed)), BEGIN, self.fragment.end):
                pass

    async def test_tells_where_it_can_be_split(self) -> None:
        table = await seek_table(self.fragment, MemorySource(large_packed(ZSTD)))
        assert table is not None
        assert table == seek_table_blocking(self.fragment, MemoryBlockingSource(large_packed(ZSTD)))
        assert all(frame.begins_append and frame.begin % 200_000 == 0 for frame in table.frames)
        assert table.content_length == len(LARGE)

    async def test_with_a_table_longer_than_the_first_look_is_looked_at_again(self) -> None:
        frames = [zstandard.compress(b"x")] * 9000
        entries = b"".join(struct.pack("<II", len(frame), 1) for frame in frames)
        footer = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
        packed = b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(entries) + len(footer)) + entries + footer
        fragment, source = fragment_of(b"x" * 9000, ZSTD), MemorySource(packed)
        table = await seek_table(fragment, source)
        assert table is not None
        assert table == seek_table_blocking(fragment, MemoryBlockingSource(packed))
        assert len(table.frames) == 9000
        assert len(source.opened) == 2

    async def test_whose_table_is_of_other_content_is_corrupt(self) -> None:
        other = encoded(ZSTD, [LARGE[: 11 * MIB]])
        assert "seek table" in await failure(self.fragment, other, BEGIN + 9 * MIB)
        assert "seek table" in await failure(self.fragment, b"!" + large_packed(ZSTD), BEGIN + 9 * MIB)


@any_codec
async def test_a_reader_that_does_not_go_on_is_not_read_ahead_of_for_long(codec: CompressionCodec) -> None:
    source = MemorySource(large_packed(codec))
    fragment = fragment_of(LARGE, codec)
    async with aclosing(read(fragment, source, 0, fragment.end)) as pieces:
        await anext(pieces)
        for _ in range(100):
            await asyncio.sleep(0)
        assert source.sent_bytes <= 3 * BATCH_BYTES
    assert source.closed == 1


@any_codec
async def test_unpacking_happens_on_the_threads_given(codec: CompressionCodec) -> None:
    fragment = fragment_of(LARGE, codec)
    threads = set[str]()
    with ThreadPoolExecutor(1, "unpacking", lambda: threads.add(threading.current_thread().name)) as executor:
        pieces = [
            piece
            async for piece in read(fragment, MemorySource(large_packed(codec)), 0, fragment.end, executor=executor)
        ]
    assert b"".join(pieces) == LARGE
    assert threads == {"unpacking_0"}


@pytest.mark.parametrize("codec", [GZIP, ZSTD], ids=lambda codec: codec.name)
async def test_a_bomb_is_corrupt_and_not_unpacked_beyond_the_content(codec: CompressionCodec) -> None:
    packed = encoded(codec, [memoryview(bytes(256 * MIB))])
    fragment = fragment_of(bytes(2 * MIB), codec)
    content = FragmentContent(fragment, 0, fragment.end)
    with pytest.raises(CorruptError, match="more than the 2097152 bytes"):
        content.advance([packed])
    assert "more than the 2097152 bytes" in await failure(fragment, packed)


async def test_content_that_packs_well_is_unpacked_in_steps() -> None:
    zeros = bytes(20 * MIB)
    fragment, packed = fragment_of(zeros, ZSTD), encoded(ZSTD, [zeros])
    content = FragmentContent(fragment, 19 * MIB, fragment.end)
    assert content.advance([packed]) == []
    steps = 1
    pieces = []
    while content.has_more:
        pieces += content.advance(())
        steps += 1
    assert steps >= len(zeros) // STEP_BYTES_MAX
    assert b"".join(pieces + content.finish()) == bytes(MIB)
    assert await whole(fragment, packed, 0, fragment.end) == zeros


@pytest.mark.parametrize(
    ("codec", "filler"),
    [
        (GZIP, b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 100_000 + b"\0" + gzip.compress(b"")[10:]),
        (ZSTD, struct.pack("<II", 0x184D2A50, 100_000) + bytes(100_000)),
        (SNAPPY, b"\xfe\xa0\x86\x01" + bytes(100_000)),
    ],
    ids=["empty members", "frames to skip", "padding"],
)
async def test_an_object_that_goes_on_without_content_is_corrupt(codec: CompressionCodec, filler: bytes) -> None:
    content = FragmentContent(fragment_of(SMALL, codec), 0, len(SMALL))
    assert b"".join(content.advance([encoded(codec, [SMALL])])) == SMALL
    for _ in range(BARREN_BYTES_MAX // MIB):
        assert content.advance([filler * (MIB // len(filler))]) == []
    with pytest.raises(CorruptError, match="without content"):
        content.advance([filler * 10 * (MIB // len(filler))])
