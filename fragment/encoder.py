"""Streaming encoders, one for each CompressionCodec: content in, the bytes of an object out.

They do no input or output, and one is not for several threads at once. Where frames end follows from the content
and the append boundaries alone, not from how the content was cut into pieces on the way in.

Levels were chosen by measurement (``make bench ARGS=codec``; `docs/fragments.md` has numbers): an append must
not wait for a processor that compresses, so the fastest level that still packs well is taken.
"""

from __future__ import annotations

from typing import Protocol, assert_never

import cramjam
import zstandard
from isal import isal_zlib

from fragment.zstd_frames import FRAME_BYTES_MAX, FRAME_BYTES_MIN, Frame, seek_tail
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError

ZSTD_LEVEL = 1
GZIP_LEVEL = 2
"""Of isal, which packs like zlib's 1 to 3 at about four times its speed."""
GZIP_WINDOW_BITS = 31
"""As zlib has it: a window of 32 KiB, within a gzip header and trailer."""
SNAPPY_BLOCK_BYTES = 1 << 16
SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


class Encoder(Protocol):
    """Each call returns what can be written to the object next; often nothing."""

    def feed(self, data: bytes | memoryview) -> bytes: ...
    def cut(self) -> bytes:
        """An append ends with what was fed so far. Where the codec has frames, one may end here."""
        ...

    def finish(self) -> bytes:
        """The content is complete. This encoder is spent."""
        ...


def encoder_of(codec: CompressionCodec) -> Encoder:
    match codec:
        case CompressionCodec.NONE:
            return IdentityEncoder()
        case CompressionCodec.GZIP:
            return GzipEncoder(one_member=False)
        case CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return GzipEncoder(one_member=True)
        case CompressionCodec.ZSTANDARD:
            return ZstdEncoder()
        case CompressionCodec.SNAPPY:
            return SnappyEncoder()
        case CompressionCodec.INVALID:
            raise ValidationError("a fragment needs a codec to be written with", "CompressionCodec")
        case _:
            assert_never(codec)


class IdentityEncoder:
    def feed(self, data: bytes | memoryview) -> bytes:
        return bytes(data)

    def cut(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return b""


class GzipEncoder:
    """Members of at least 1 MiB, so that between them no compression state has to be kept; or one member only.

    A store that decompresses on its own (GZIP_OFFLOAD_DECOMPRESSION) may stop after the first member.
    """

    def __init__(self, *, one_member: bool) -> None:
        self._one_member = one_member
        self._member: isal_zlib.Compress | None = None
        self._member_bytes = 0
        self._begun = False

    def feed(self, data: bytes | memoryview) -> bytes:
        if not data:
            return b""
        self._member_bytes += len(data)
        return self._open_member().compress(data)

    def cut(self) -> bytes:
        if self._one_member or self._member_bytes < FRAME_BYTES_MIN:
            return b""
        return self._end_member()

    def finish(self) -> bytes:
        # Even of no content at all: an empty file is not gzip.
        return self._end_member() if self._member is not None or not self._begun else b""

    def _open_member(self) -> isal_zlib.Compress:
        if self._member is None:
            self._member = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, GZIP_WINDOW_BITS)
            self._begun = True
        return self._member

    def _end_member(self) -> bytes:
        rest = self._open_member().flush()
        self._member, self._member_bytes = None, 0
        return rest


class ZstdEncoder:
    """Independent frames with checksums and content sizes, and a seek table after them.

    A frame is held until it is complete: compressing it in one call is faster than streaming it, and tells its
    size in its header. Between frames no compression state is kept.
    """

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._held = bytearray()
        self._held_begins_append = True
        # How much of what is held ends with an append.
        self._boundary = 0

    def feed(self, data: bytes | memoryview) -> bytes:
        view = memoryview(data)
        produced = []
        while len(self._held) + len(view) > FRAME_BYTES_MAX:
            if not self._boundary:
                # This append alone is longer than a frame may be.
                room = FRAME_BYTES_MAX - len(self._held)
                self._held += view[:room]
                view = view[room:]
            produced.append(self._end_frame(self._boundary or FRAME_BYTES_MAX))
        self._held += view
        return b"".join(produced)

    def cut(self) -> bytes:
        self._boundary = len(self._held)
        return self._end_frame(self._boundary) if self._boundary >= FRAME_BYTES_MIN else b""

    def finish(self) -> bytes:
        # Even of no content at all: some readers want a first frame.
        last = self._end_frame(len(self._held)) if self._held or not self._frames else b""
        return last + seek_tail(self._frames)

    def _end_frame(self, length: int) -> bytes:
        with memoryview(self._held) as held:
            packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(held[:length])
        packed_at, at = (self._frames[-1].packed_end, self._frames[-1].end) if self._frames else (0, 0)
        self._frames.append(Frame(packed_at, packed_at + len(packed), at, at + length, self._held_begins_append))
        del self._held[:length]
        self._held_begins_append = length == self._boundary
        self._boundary = 0
        return packed


class SnappyEncoder:
    """The framing format. Its blocks are independent, so nothing is kept but the beginning of the next one."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = False

    def feed(self, data: bytes | memoryview) -> bytes:
        view = memoryview(data)
        if self._held:
            missing = SNAPPY_BLOCK_BYTES - len(self._held)
            self._held += view[:missing]
            view = view[missing:]
        first = self._blocks(self._held) if len(self._held) == SNAPPY_BLOCK_BYTES else b""
        if first:
            self._held = bytearray()
        whole = len(view) - len(view) % SNAPPY_BLOCK_BYTES
        self._held += view[whole:]
        return first + self._blocks(view[:whole]) if whole else first

    def cut(self) -> bytes:
        return b""

    def finish(self) -> bytes:
        return self._blocks(self._held) if self._held or not self._begun else b""

    def _blocks(self, data: bytearray | memoryview) -> bytes:
        packed = memoryview(cramjam.snappy.compress(data))
        begun, self._begun = self._begun, True
        # Only the first block of a stream needs to say what it is.
        return bytes(packed[len(SNAPPY_IDENTIFIER) :]) if begun else bytes(packed)
