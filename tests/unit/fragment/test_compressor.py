from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncGenerator, Callable
from itertools import accumulate
from pathlib import Path

import pytest

from fragment.compressor import Compressor
from fragment.fragment_reader import read
from fragment.zstd_frames import parse_tail
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, InvariantError, UnavailableError
from protocol.fragment import Fragment
from tests.support.coding import CODECS, decoded, encoded, json_lines

MIB = 1 << 20
BEGIN = 10**12
ZSTD, GZIP = CompressionCodec.ZSTANDARD, CompressionCodec.GZIP
CONTENT = json_lines(6 * MIB)
END = BEGIN + len(CONTENT)
ENDS = [*range(BEGIN + 1000, END, 1000), END]

any_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


class SpoolContent:
    """A spool's content file, which says how far it was read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.read_through = 0
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def read(self, position: int, length: int) -> bytes:
        self.waiting.set()
        assert self.gate.wait(10)
        data = self.content[position : position + length]
        self.read_through = max(self.read_through, position + len(data))
        return data


def compressor(codec: CompressionCodec, content: bytes, path: Path) -> tuple[Compressor, SpoolContent]:
    spool = SpoolContent(content)
    return Compressor(codec, spool, BEGIN, path), spool


@any_codec
class TestAnyCompressor:
    async def test_makes_the_object_while_the_spool_grows(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, spool = compressor(codec, CONTENT, tmp_path / "object")
        for at in range(0, len(ENDS), 100):
            acked = ENDS[at]
            await making.advance(acked, ENDS[: at + 50])
            assert making.compressed_through <= acked
            assert spool.read_through <= acked - BEGIN
            # What is left to do never grows beyond one frame.
            assert acked - making.compressed_through <= MIB + 50_000
        length = await making.finish(END, ENDS)
        assert making.compressed_through == END
        assert making.path.stat().st_size == length
        assert decoded(codec, making.path.read_bytes()) == CONTENT

    async def test_makes_it_in_one_go_as_well(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, _ = compressor(codec, CONTENT, tmp_path / "object")
        await making.finish(END, ENDS)
        assert decoded(codec, making.path.read_bytes()) == CONTENT

    async def test_stops_at_what_is_acknowledged(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, spool = compressor(codec, CONTENT, tmp_path / "object")
        await making.finish(ENDS[1500], ENDS)
        assert spool.read_through == ENDS[1500] - BEGIN
        assert decoded(codec, making.path.read_bytes()) == CONTENT[: ENDS[1500] - BEGIN]

    async def test_is_finished_once(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, _ = compressor(codec, CONTENT, tmp_path / "object")
        length = await making.finish(END, ENDS)
        assert await making.finish(END, ENDS) == length == making.path.stat().st_size
        with pytest.raises(InvariantError):
            await making.advance(END, ENDS)
        with pytest.raises(InvariantError):
            await making.finish(END + 1000, [*ENDS, END + 1000])

    async def test_begins_anew_where_the_spool_was_cut(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, spool = compressor(codec, CONTENT, tmp_path / "object")
        await making.advance(END, ENDS)
        cut = ENDS[1499]
        assert making.compressed_through > cut
        with pytest.raises(InvariantError, match="rebuild"):
            await making.finish(cut, ENDS)
        making.rebuild()
        assert making.compressed_through == BEGIN
        spool.content = spool.content[: cut - BEGIN]
        await making.finish(cut, ENDS[:1500])
        assert decoded(codec, making.path.read_bytes()) == CONTENT[: cut - BEGIN]

    async def test_a_failed_write_leaves_nothing_to_be_trusted(self, codec: CompressionCodec, tmp_path: Path) -> None:
        folder = tmp_path / "not there yet"
        making, _ = compressor(codec, CONTENT, folder / "object")
        for attempt in (making.advance(END, ENDS), making.finish(END, ENDS)):
            with pytest.raises(UnavailableError, match="cannot compress into object: No such file"):
                await attempt
            assert making.compressed_through == BEGIN
        folder.mkdir()
        await making.advance(BEGIN + 3 * MIB, ENDS)
        # What was made of it until then is not added to, but overwritten.
        making.path.write_bytes(os.urandom(20 * MIB))
        making.rebuild()
        await making.finish(END, ENDS)
        assert decoded(codec, making.path.read_bytes()) == CONTENT

    async def test_content_that_is_missing_is_noticed(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, spool = compressor(codec, CONTENT[:-1], tmp_path / "object")
        with pytest.raises(CorruptError, match="before what was acknowledged"):
            await making.finish(END, ENDS)
        assert making.compressed_through == BEGIN
        spool.content = CONTENT
        await making.finish(END, ENDS)
        assert decoded(codec, making.path.read_bytes()) == CONTENT

    async def test_when_cancelled_nothing_is_written_any_more(self, codec: CompressionCodec, tmp_path: Path) -> None:
        making, spool = compressor(codec, CONTENT, tmp_path / "object")
        spool.gate.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(making.advance(END, ENDS))
            await asyncio.to_thread(spool.waiting.wait, 10)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
                assert not task.done()
            spool.gate.set()
        assert task.cancelled()
        # What the step did before it ended counts, and one can go on from there.
        assert BEGIN < making.compressed_through < END
        await making.finish(END, ENDS)
        assert decoded(codec, making.path.read_bytes()) == CONTENT


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), MemoryError()], ids=["disk", "memory"])
async def test_a_failure_after_cancellation_is_not_lost(failure: Exception, tmp_path: Path) -> None:
    class Failing(SpoolContent):
        def read(self, position: int, length: int) -> bytes:
            super().read(position, length)
            if position > 2 * MIB:
                raise failure
            return super().read(position, length)

    spool = Failing(CONTENT)
    making = Compressor(ZSTD, spool, BEGIN, tmp_path / "object")
    spool.gate.clear()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(making.advance(END, ENDS))
        await asyncio.to_thread(spool.waiting.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        spool.gate.set()
    assert task.cancelled()
    assert making.compressed_through == BEGIN


@pytest.mark.parametrize(
    "sizes",
    [[256] * 20_000, [MIB] * 5, [5 * MIB], [100, 4 * MIB + 1, 5], [10, 9 * MIB, 7, 300_000, 2 * MIB], [MIB - 1, 1] * 3],
    ids=["small", "1 MiB", "too long", "small and too long", "mixed", "just enough"],
)
async def test_zstandard_frames_are_those_of_an_encoder_that_is_told_every_append(
    sizes: list[int], tmp_path: Path
) -> None:
    content = json_lines(sum(sizes))
    ends = list(accumulate(sizes))
    making, _ = compressor(ZSTD, content, tmp_path / "object")
    for acked in ends[:: max(len(ends) // 10, 1)]:
        await making.advance(BEGIN + acked, [BEGIN + end for end in ends])
    await making.finish(BEGIN + ends[-1], [BEGIN + end for end in ends])
    packed = making.path.read_bytes()
    appends = [content[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    assert packed == encoded(ZSTD, appends)
    table = parse_tail(packed, len(packed))
    assert table is not None
    assert all(frame.begin in (0, *ends) for frame in table.frames if frame.begins_append)


async def test_less_than_a_frame_is_left_for_later_and_touches_no_file(tmp_path: Path) -> None:
    making, spool = compressor(ZSTD, CONTENT, tmp_path / "object")
    await making.advance(BEGIN + MIB - 1, ENDS)
    assert making.compressed_through == BEGIN
    assert spool.read_through == 0
    assert not making.path.exists()


class HugeContent:
    """More content than anybody wants to hold, made up as it is read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._block = json_lines(8 * MIB)

    def read(self, position: int, length: int) -> bytes:
        at = position % len(self._block)
        return self._block[at : at + min(length, self.length - position)]

    def sum(self) -> bytes:
        running = hashlib.sha1()
        for position in range(0, self.length, len(self._block)):
            running.update(self.read(position, len(self._block)))
        return running.digest()


class FileSource:
    def __init__(self, path: Path) -> None:
        self.path = path

    async def size(self) -> int:
        return await asyncio.to_thread(os.path.getsize, self.path)

    async def open(self, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        assert (offset, length) == (0, None)
        with await asyncio.to_thread(self.path.open, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, 1 << 18):
                yield chunk


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@any_codec
async def test_memory_stays_flat_while_2_gib_pass_through(
    codec: CompressionCodec, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    content = HugeContent(2 << 30)
    ends = range(64 << 10, content.length + 1, 64 << 10)
    fragment = Fragment("acme/orders", 0, content.length, content.sum(), codec)
    making = Compressor(codec, content, 0, tmp_path / "object")
    before = peak = resident_bytes()
    for through in range(16 * MIB, content.length + 1, 16 * MIB):
        await making.advance(through, ends)
        peak = max(peak, resident_bytes())
    await making.finish(content.length, ends)
    async for _ in read(fragment, FileSource(making.path), 0, fragment.end):
        peak = max(peak, resident_bytes())
    record_property("resident growth in MiB", (peak - before) / MIB)
    print(f"{codec.name}: resident memory grew by {(peak - before) / MIB:.0f} MiB")
    assert peak - before < 64 * MIB
