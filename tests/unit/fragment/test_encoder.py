"""What we write, read by programs that we did not write."""

from __future__ import annotations

import gzip
import importlib.util
import io
import shutil
import subprocess
import zlib
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path

import cramjam
import pytest
import zstandard

from fragment.encoder import encoder_of
from fragment.zstd_frames import FRAME_BYTES_MAX, FRAME_BYTES_MIN, SeekTable, parse_tail
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from tests.support.coding import CODECS, decoded, encoded, json_lines

MIB = 1 << 20
CONTENT = json_lines(5 * MIB)
APPENDS = [CONTENT[at : at + 100_000] for at in range(0, len(CONTENT), 100_000)]
ZSTD, GZIP, SNAPPY = CompressionCodec.ZSTANDARD, CompressionCodec.GZIP, CompressionCodec.SNAPPY
OFFLOAD = CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION


def zstandard_streaming(packed: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed), read_across_frames=True).read()


def pyarrow_streaming(packed: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not a dependency; where it is installed it reads ours")
    content: bytes = arrow.CompressedInputStream(arrow.BufferReader(packed), "zstd").read()
    return content


def tool(name: str) -> Callable[[bytes], bytes]:
    def run(packed: bytes) -> bytes:
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name} on PATH")
        return subprocess.run([name, "-dc"], input=packed, capture_output=True, check=True).stdout

    return run


READERS: list[tuple[CompressionCodec, str, Callable[[bytes], bytes]]] = [
    (ZSTD, "zstandard", zstandard_streaming),
    (ZSTD, "cramjam", lambda packed: bytes(cramjam.zstd.decompress(packed))),
    (ZSTD, "pyarrow", pyarrow_streaming),
    (ZSTD, "zstd", tool("zstd")),
    (GZIP, "python", gzip.decompress),
    (GZIP, "cramjam", lambda packed: bytes(cramjam.gzip.decompress(packed))),
    (GZIP, "gzip", tool("gzip")),
    (OFFLOAD, "python", gzip.decompress),
    (OFFLOAD, "gzip", tool("gzip")),
    (SNAPPY, "cramjam", lambda packed: bytes(cramjam.snappy.decompress(packed))),
    (SNAPPY, "snzip", tool("snzip")),
]


@pytest.mark.parametrize(
    ("codec", "name", "unpack"), READERS, ids=[f"{codec.name}-{name}" for codec, name, _ in READERS]
)
def test_others_read_what_we_write(codec: CompressionCodec, name: str, unpack: Callable[[bytes], bytes]) -> None:
    assert unpack(encoded(codec, APPENDS)) == CONTENT


UNPACK_JAVA = """
import java.io.*;

public class Unpack {
    public static void main(String[] paths) throws Exception {
        copy(new org.xerial.snappy.SnappyFramedInputStream(new FileInputStream(paths[0])), paths[1]);
        copy(new com.github.luben.zstd.ZstdInputStream(new FileInputStream(paths[2])), paths[3]);
    }

    static void copy(InputStream in, String path) throws Exception {
        try (in; OutputStream out = new FileOutputStream(path)) {
            in.transferTo(out);
        }
    }
}
"""


def test_the_libraries_that_spark_brings_read_what_we_write(tmp_path: Path) -> None:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None or shutil.which("javac") is None:
        pytest.skip("needs pyspark with its jars, and a JDK on PATH to compile a program that calls them")
    (tmp_path / "Unpack.java").write_text(UNPACK_JAVA)
    paths = [tmp_path / name for name in ("packed.sz", "from.sz", "packed.zst", "from.zst")]
    for path, codec in zip(paths[::2], (SNAPPY, ZSTD), strict=True):
        path.write_bytes(encoded(codec, APPENDS))
    folder = Path(spark.origin).parent / "jars"
    jars = ":".join(str(jar) for jar in [*folder.glob("snappy-java-*.jar"), *folder.glob("zstd-jni-*.jar")])
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars, "Unpack.java", *map(str, paths)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    for path in paths[1::2]:
        assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
class TestAnyEncoder:
    def test_of_no_content_makes_an_object_that_decodes_to_none(self, codec: CompressionCodec) -> None:
        assert decoded(codec, encoded(codec, [])) == decoded(codec, encoded(codec, [b"", b""])) == b""

    def test_takes_content_in_pieces_of_any_kind(self, codec: CompressionCodec) -> None:
        encoder = encoder_of(codec)
        packed = encoder.feed(CONTENT[:1]) + encoder.feed(memoryview(CONTENT)[1:99_999]) + encoder.feed(b"")
        packed += encoder.cut() + encoder.cut() + encoder.feed(memoryview(CONTENT)[99_999:]) + encoder.finish()
        assert decoded(codec, packed) == CONTENT


def test_of_no_content_is_read_by_tools() -> None:
    assert tool("gzip")(encoded(GZIP, [])) == tool("zstd")(encoded(ZSTD, [])) == b""


def test_nothing_is_written_without_a_codec() -> None:
    with pytest.raises(ValidationError):
        encoder_of(CompressionCodec.INVALID)


def members(packed: bytes) -> list[int]:
    """The content length of each gzip member."""
    lengths = []
    while packed:
        member = zlib.decompressobj(31)
        lengths.append(len(member.decompress(packed)))
        packed = member.unused_data
    return lengths


def test_gzip_members_end_with_the_first_append_past_1_mib() -> None:
    sizes = [400_000, 700_000, 100, MIB, 5 * MIB, 10]
    assert members(encoded(GZIP, [bytes(size) for size in sizes])) == [1_100_000, 100 + MIB, 5 * MIB, 10]


def test_gzip_that_a_store_unpacks_is_one_member() -> None:
    assert members(encoded(OFFLOAD, APPENDS)) == [len(CONTENT)]


def seek_table(sizes: list[int]) -> SeekTable:
    packed = encoded(ZSTD, [memoryview(bytes(size)) for size in sizes])
    found = parse_tail(packed, len(packed))
    assert found is not None
    return found


def frame_sizes(sizes: list[int]) -> list[tuple[int, bool]]:
    return [(frame.end - frame.begin, frame.begins_append) for frame in seek_table(sizes).frames]


@pytest.mark.parametrize(
    ("appends", "frames"),
    [
        ([10], [(10, True)]),
        ([MIB - 1, 1], [(MIB, True)]),
        ([MIB - 1, 2, 5], [(MIB + 1, True), (5, True)]),
        ([MIB, MIB, 1], [(MIB, True), (MIB, True), (1, True)]),
        ([FRAME_BYTES_MAX], [(FRAME_BYTES_MAX, True)]),
        ([FRAME_BYTES_MAX + 1], [(FRAME_BYTES_MAX, True), (1, False)]),
        ([FRAME_BYTES_MAX + 1, 7, 8], [(FRAME_BYTES_MAX, True), (16, False)]),
        ([9 * MIB, 3], [(4 * MIB, True), (4 * MIB, False), (MIB, False), (3, True)]),
        # A long append does not share a frame with what came before it if it does not fit.
        ([100, 4 * MIB, 5], [(100, True), (4 * MIB, True), (5, True)]),
        ([100, 4 * MIB + 1, 5], [(100, True), (4 * MIB, True), (6, False)]),
        ([MIB - 1, 3 * MIB + 1], [(4 * MIB, True)]),
    ],
    ids=str,
)
def test_zstandard_frames_end_with_appends_unless_one_append_is_too_long(
    appends: list[int], frames: list[tuple[int, bool]]
) -> None:
    assert frame_sizes(appends) == frames


def test_zstandard_frames_do_not_depend_on_how_content_comes_in() -> None:
    sizes = [10, 300_000, 900_000, 6 * MIB, 5, 2 * MIB]
    content = json_lines(sum(sizes))
    bounds = [0, *accumulate(sizes)]
    encoder = encoder_of(ZSTD)
    packed = b""
    for begin, end in pairwise(bounds):
        for at in range(begin, end, 77_777):
            packed += encoder.feed(content[at : min(at + 77_777, end)])
        packed += encoder.cut()
    assert packed + encoder.finish() == encoded(ZSTD, [content[begin:end] for begin, end in pairwise(bounds)])


def test_each_zstandard_frame_stands_alone_with_its_size_and_checksum() -> None:
    packed = encoded(ZSTD, APPENDS)
    table = parse_tail(packed, len(packed))
    assert table is not None
    assert len(table.frames) == 5
    for frame in table.frames:
        alone = packed[frame.packed_begin : frame.packed_end]
        assert zstandard.get_frame_parameters(alone).has_checksum
        assert zstandard.get_frame_parameters(alone).content_size == frame.end - frame.begin >= 260_000
        assert zstandard.ZstdDecompressor().decompress(alone) == CONTENT[frame.begin : frame.end]
        assert frame.end - frame.begin >= FRAME_BYTES_MIN or frame is table.frames[-1]


def test_snappy_says_what_it_is_once() -> None:
    packed = encoded(SNAPPY, APPENDS)
    assert packed.startswith(b"\xff\x06\x00\x00sNaPpY")
    assert packed.count(b"\xff\x06\x00\x00sNaPpY") == 1
