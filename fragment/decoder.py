"""Streaming decoders, one for each CompressionCodec: the bytes of an object in, content out, within bounds.

A decoder gives no more than it is asked for, however much its input would inflate to, so that a few bytes cannot
fill our memory. To that end the framing of each format is walked here and only whole, small units go to the
library that unpacks them; that also tells exactly where a frame ends, so an object that was cut short is
noticed even where the libraries would just stop. Every checksum that a format has is verified by its library, unless
the caller does not want those of zstandard, which are a tenth of the work of unpacking it.

Nothing here knows how much content is wanted or what it is called: see ``fragment_reader``. What does not hold up
is a ``CorruptError``, and the decoder is spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, assert_never

import cramjam
import zstandard
from isal import igzip_lib, isal_zlib

from fragment.encoder import SNAPPY_BLOCK_BYTES, SNAPPY_IDENTIFIER
from fragment.zstd_frames import SKIPPABLE_MAGIC
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, ValidationError

UNIT_BYTES_MAX = 1 << 20
"""What a decoder may unpack at once, but for a zstandard frame that tells its size, if all of it is asked for. Small
enough to hold for every reader, and large enough that threads which share the interpreter do not spend their time
handing it to and fro."""

ZSTD_WINDOW_BYTES_MAX = 128 << 20
"""What a hostile frame can make us set aside, and as much as the zstd program grants without being told to."""
ZSTD_MAGIC = 0xFD2FB528
_HAS_CHECKSUM = 4
_CHECKSUM_BYTES = 4
ZSTD_BLOCK_BYTES_MAX = 1 << 17
"""Of content. The library refuses larger ones."""

GZIP_MAGIC = b"\x1f\x8b\x08"
"""With the only method there is, to be less often mistaken about content that was stored as it is."""
GZIP_HEADER_BYTES_MAX = 1 << 17
"""Room for 64 KiB of extra fields, and for a name and a comment."""
# What lies behind the end of a member is copied each time, so input is given in slices that double within one:
# a heap of tiny members would take minutes otherwise.
_GZIP_INPUT_BYTES_FIRST = 1 << 14
_GZIP_INPUT_BYTES_MAX = 1 << 18

_SNAPPY_PACKED_BYTES_MAX = 4 + 32 + SNAPPY_BLOCK_BYTES + SNAPPY_BLOCK_BYTES // 6


class Decoder(Protocol):
    def feed(self, data: bytes | memoryview) -> None:
        """Take in the next bytes of the object. They are kept until `read` has used them."""
        ...

    def read(self, limit: int) -> bytes:
        """At most `limit` bytes of content; none if more input is needed."""
        ...

    def finish(self) -> bytes:
        """The object ends here, and `read` has given all it could. Returns what could not be told apart before."""
        ...


def decoder_of(codec: CompressionCodec, *, verifies: bool = True) -> Decoder:
    """Unless it `verifies`, whoever asks takes a sum of all content: where a format's own costs much, it is not taken
    besides."""
    match codec:
        case CompressionCodec.NONE:
            return IdentityDecoder()
        case CompressionCodec.GZIP:
            return GzipDecoder()
        case CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return OffloadDecoder()
        case CompressionCodec.ZSTANDARD:
            return ZstdDecoder(verifies)
        case CompressionCodec.SNAPPY:
            return SnappyDecoder()
        case CompressionCodec.INVALID:
            raise ValidationError("a fragment needs a codec to be read with", "CompressionCodec")
        case _:
            assert_never(codec)


class IdentityDecoder:
    """Gives what it was fed, within the limit. The others keep in one what they have unpacked."""

    def __init__(self) -> None:
        self._chunks: deque[bytes | memoryview] = deque()

    def feed(self, data: bytes | memoryview) -> None:
        if data:
            self._chunks.append(data)

    def read(self, limit: int) -> bytes:
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        if len(chunk) > limit:
            rest = memoryview(chunk)[limit:]
            self._chunks.appendleft(rest)
            chunk = memoryview(chunk)[:limit]
        return bytes(chunk)

    def finish(self) -> bytes:
        return b""


class OffloadDecoder:
    """gzip, or what a store has made of it on the way: some decompress such objects when they are read.

    The object itself tells. Content that begins like gzip and was decompressed by its store is therefore taken
    for gzip once more, and fails on its length or sum; there is no way to read it but to turn that off.
    """

    def __init__(self) -> None:
        self._first = b""
        self._decoder: Decoder | None = None

    def feed(self, data: bytes | memoryview) -> None:
        if self._decoder is not None:
            self._decoder.feed(data)
            return
        self._first += bytes(data)
        if len(self._first) >= len(GZIP_MAGIC):
            self._decide()

    def read(self, limit: int) -> bytes:
        return self._decoder.read(limit) if self._decoder is not None else b""

    def finish(self) -> bytes:
        return self._decoder.finish() if self._decoder is not None else self._first

    def _decide(self) -> None:
        self._decoder = GzipDecoder() if self._first.startswith(GZIP_MAGIC) else IdentityDecoder()
        self._decoder.feed(self._first)
        self._first = b""


class GzipDecoder:
    """Any number of members, one after the other."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._member: igzip_lib.IgzipDecompressor | None = None
        self._input_bytes = _GZIP_INPUT_BYTES_FIRST
        # How much of the input's beginning the member has been given. It stays there, since the member may end
        # within it, and that only shows when all of its content has been taken.
        self._given = 0

    def feed(self, data: bytes | memoryview) -> None:
        self._input += data

    def read(self, limit: int) -> bytes:
        while self._member is not None or self._open_member():
            piece = self._unpack(min(limit, UNIT_BYTES_MAX))
            if piece is None:
                return b""
            if piece:
                return piece
        return b""

    def finish(self) -> bytes:
        if self._member is not None or self._input:
            raise CorruptError("ends in the middle of a gzip member")
        return b""

    def _open_member(self) -> bool:
        """Step over a member's header, once all of it is there.

        The library can do that too, but not if the header comes in pieces.
        """
        length = _gzip_header_bytes(self._input)
        if length is None:
            return False
        header = self._input[:length]
        if header[3] & 2 and isal_zlib.crc32(header[:-2]) & 0xFFFF != int.from_bytes(header[-2:], "little"):
            raise CorruptError("is not gzip: the sum of a member's header is wrong")
        del self._input[:length]
        self._member = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP_NO_HDR_VER)
        self._input_bytes = _GZIP_INPUT_BYTES_FIRST
        return True

    def _unpack(self, limit: int) -> bytes | None:
        """The next content of the open member, which may be none; None if there is no input left for it."""
        assert self._member is not None
        packed = b""
        if self._member.needs_input:
            del self._input[: self._given]
            with memoryview(self._input) as held:
                packed = bytes(held[: self._input_bytes])
            self._given = len(packed)
            if not packed:
                return None
            self._input_bytes = min(2 * self._input_bytes, _GZIP_INPUT_BYTES_MAX)
        try:
            piece = self._member.decompress(packed, limit)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub declares it as an instance
            raise CorruptError(f"is not gzip: {error}") from error
        if self._member.eof:
            del self._input[: self._given - len(self._member.unused_data)]
            self._member, self._given = None, 0
        return piece


def _gzip_header_bytes(data: bytearray) -> int | None:
    """How long the header is that `data` begins with, by RFC 1952 §2.3; None if it is not all there."""
    if not GZIP_MAGIC.startswith(data[:3]):
        raise CorruptError("is not gzip: a member begins with the wrong bytes")
    if len(data) < 10:
        return None
    flags = data[3]
    if flags & 0xE0:
        raise CorruptError("is not gzip: a member has flags that nobody knows")
    length = 10
    if flags & 4:
        length += 2 + int.from_bytes(data[10:12], "little")
    for is_named in (flags & 8, flags & 16):
        if is_named:
            # The end of a name that is not there yet is not at 0 either: both mean to wait.
            length = data.find(0, length, GZIP_HEADER_BYTES_MAX) + 1 or GZIP_HEADER_BYTES_MAX
    length += 2 * bool(flags & 2)
    if len(data) >= length:
        return length
    if len(data) >= GZIP_HEADER_BYTES_MAX:
        raise CorruptError("is not gzip: a member's header does not end")
    return None


class ZstdDecoder:
    """Any number of frames, with skippable ones before, between and after them."""

    def __init__(self, verifies: bool) -> None:
        self._input = bytearray()
        self._unpacked = IdentityDecoder()
        self._verifies = verifies
        # Bytes of a skippable frame that are still to come.
        self._skip = 0
        self._library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        # Of a frame that is unpacked block by block, once its header was.
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._has_checksum = False
        # How many bytes of the input are known to be whole blocks of a frame that is waited for, and its header.
        self._walked = 0

    def feed(self, data: bytes | memoryview) -> None:
        self._input += data

    def read(self, limit: int) -> bytes:
        while not (piece := self._unpacked.read(limit)):
            if not (self._unpack_blocks() if self._frame is not None else self._open_frame(limit)):
                return b""
        return piece

    def finish(self) -> bytes:
        if self._frame is not None or self._input or self._skip:
            raise CorruptError("ends in the middle of a zstandard frame")
        return b""

    def _open_frame(self, limit: int) -> bool:
        """Step over a header or over something to skip, or unpack a whole frame; False if more input is needed.

        At one go, with the size known, a frame is unpacked to where it stays. Otherwise the library first unpacks it to
        memory of its own.
        """
        if self._skip:
            skipped = min(self._skip, len(self._input))
            del self._input[:skipped]
            self._skip -= skipped
            return bool(skipped)
        if len(self._input) < 8:
            return False
        magic = int.from_bytes(self._input[:4], "little")
        if magic & ~0xF == SKIPPABLE_MAGIC:
            self._skip = int.from_bytes(self._input[4:8], "little")
            del self._input[:8]
            return True
        if magic != ZSTD_MAGIC:
            raise CorruptError("is not zstandard: a frame begins with the wrong bytes")
        length, size = _zstd_header(self._input)
        if len(self._input) < length:
            return False
        if not self._walked:
            self._has_checksum = bool(self._input[4] & _HAS_CHECKSUM)
        if 0 < size <= limit:
            return self._unpack_frame(length, size)
        if not self._verifies:
            self._hide_checksum()
        self._walked = 0
        self._frame = self._library.decompressobj()
        self._take(self._frame.decompress, length, length)
        return True

    def _hide_checksum(self) -> None:
        """The library is to see a frame without one."""
        self._input[4] &= ~_HAS_CHECKSUM

    def _unpack_frame(self, header: int, size: int) -> bool:
        """Unpack the frame of `size` that the input begins with; False if it is not all there."""
        at, is_last = self._walked or header, False
        while not is_last:
            length, is_last = self._block_bytes(at)
            if not length:
                self._walked = at
                return False
            at += length
        self._walked = 0
        if not self._verifies:
            self._hide_checksum()
        self._take(self._library.decompress, at, self._shown(at, is_last))
        return True

    def _unpack_blocks(self) -> bool:
        """Unpack as many whole blocks as there are, up to what is good for one unit; False if there is none."""
        assert self._frame is not None
        at, is_last = 0, False
        for _ in range(UNIT_BYTES_MAX // ZSTD_BLOCK_BYTES_MAX):
            length, is_last = self._block_bytes(at)
            if not length:
                break
            at += length
            if is_last:
                break
        if not at:
            return False
        self._take(self._frame.decompress, at, self._shown(at, is_last))
        if self._frame.eof != is_last or self._frame.unused_data:
            raise CorruptError("is not zstandard: a frame does not end with its last block")
        if is_last:
            self._frame = None
        return True

    def _block_bytes(self, at: int) -> tuple[int, bool]:
        """How long the block at `at` is, and whether the frame ends with it; 0 if it is not all there."""
        header = int.from_bytes(self._input[at : at + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        length = 3 + (1 if kind == 1 else size) + (_CHECKSUM_BYTES if is_last and self._has_checksum else 0)
        if len(self._input) < at + 3:
            return 0, False
        return (length, is_last) if len(self._input) >= at + length else (0, False)

    def _shown(self, length: int, is_last: bool) -> int:
        """How much of that much input the library is shown: the rest is a checksum that is not to be verified."""
        return length - _CHECKSUM_BYTES if is_last and self._has_checksum and not self._verifies else length

    def _take(self, decompress: Callable[[memoryview], bytes], length: int, shown: int) -> None:
        """Have the library unpack the first `shown` bytes of the input, of which `length` are done with then."""
        try:
            with memoryview(self._input) as packed, packed[:shown] as part:
                self._unpacked.feed(decompress(part))
        except zstandard.ZstdError as error:
            # It says first that it is the decompressor, in two ways.
            raise CorruptError(f"is not zstandard: {str(error).rpartition(': ')[2]}") from error
        del self._input[:length]


def _zstd_header(data: bytearray) -> tuple[int, int]:
    """How long the header of a frame is, by RFC 8878 §3.1.1.1, and the size of the content if it tells one: else 0."""
    descriptor = data[4]
    is_single_segment = descriptor >> 5 & 1
    size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    length = 5 + (1 - is_single_segment) + dictionary_bytes + size_bytes
    size = int.from_bytes(data[length - size_bytes : length], "little")
    return length, size + 256 if size_bytes == 2 else size


class SnappyDecoder:
    """The framing format."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._unpacked = IdentityDecoder()
        self._skip = 0
        self._identified = False

    def feed(self, data: bytes | memoryview) -> None:
        self._input += data

    def read(self, limit: int) -> bytes:
        while not (piece := self._unpacked.read(limit)):
            if not (self._unpack_blocks() or self._step_over()):
                return b""
        return piece

    def finish(self) -> bytes:
        if self._input or self._skip:
            raise CorruptError("ends in the middle of a snappy chunk")
        return b""

    def _unpack_blocks(self) -> bool:
        """Unpack the blocks that come next, as many as are whole and good for one unit; False if there is none."""
        at = 0
        for _ in range(UNIT_BYTES_MAX // SNAPPY_BLOCK_BYTES):
            length = self._block_bytes(at)
            if not length:
                break
            at += length
        if not at:
            return False
        packed = SNAPPY_IDENTIFIER + self._input[:at]
        try:
            self._unpacked.feed(bytes(cramjam.snappy.decompress(packed)))
        except cramjam.DecompressionError as error:
            raise CorruptError(f"is not snappy: {error}") from error
        del self._input[:at]
        return True

    def _block_bytes(self, at: int) -> int:
        """How long the chunk of content at `at` is; 0 if it is another kind of chunk, or not all there."""
        if self._skip or len(self._input) < at + 4 or self._input[at] > 1 or not self._identified:
            return 0
        length = int.from_bytes(self._input[at + 1 : at + 4], "little")
        if not 4 <= length <= _SNAPPY_PACKED_BYTES_MAX:
            raise CorruptError("is not snappy: a chunk of a size that the format does not have")
        return 4 + length if len(self._input) >= at + 4 + length else 0

    def _step_over(self) -> bool:
        """Step over a chunk that holds no content; False if more input is needed."""
        if self._skip:
            skipped = min(self._skip, len(self._input))
            del self._input[:skipped]
            self._skip -= skipped
            return bool(skipped)
        if len(self._input) < 4:
            return False
        kind = self._input[0]
        if kind == 0xFF or not self._identified:
            return self._identify()
        if kind <= 1:
            return False
        if kind < 0x80:
            raise CorruptError("is not snappy: a chunk of a kind that nobody knows")
        self._skip = int.from_bytes(self._input[1:4], "little")
        del self._input[:4]
        return True

    def _identify(self) -> bool:
        """A stream says first what it is, and again where it was made of several."""
        if not SNAPPY_IDENTIFIER.startswith(self._input[: len(SNAPPY_IDENTIFIER)]):
            raise CorruptError("is not snappy in the framing format: a stream begins with the wrong bytes")
        if len(self._input) < len(SNAPPY_IDENTIFIER):
            return False
        del self._input[: len(SNAPPY_IDENTIFIER)]
        self._identified = True
        return True
