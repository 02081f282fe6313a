"""CompressionCodec: how a fragment's bytes are packed at rest, and the file suffix that says so."""

from __future__ import annotations

from enum import IntEnum

from protocol.errors import ValidationError


class CompressionCodec(IntEnum):
    INVALID = 0
    NONE = 1
    GZIP = 2
    ZSTANDARD = 3
    SNAPPY = 4
    GZIP_OFFLOAD_DECOMPRESSION = 5

    @property
    def suffix(self) -> str:
        """What the names of such fragments end in. Gazette plans to write ``.gzod`` one day; nobody does yet."""
        return _SUFFIXES[self]

    @classmethod
    def of_number(cls, number: int) -> CompressionCodec:
        try:
            return cls(number)
        except ValueError:
            raise ValidationError(f"no codec has the number {number}", "CompressionCodec") from None

    @classmethod
    def of_suffix(cls, suffix: str) -> CompressionCodec:
        """The codec of a file name that ends in `suffix`, which is empty or begins with a dot."""
        codec = _BY_SUFFIX.get(suffix.lower())
        if codec is None:
            raise ValidationError(f"no codec writes files that end in {suffix[:16]!r}")
        return codec


_SUFFIXES = {
    CompressionCodec.NONE: ".raw",
    CompressionCodec.GZIP: ".gz",
    CompressionCodec.ZSTANDARD: ".zst",
    CompressionCodec.SNAPPY: ".sz",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: "",
}
_BY_SUFFIX = {suffix: codec for codec, suffix in _SUFFIXES.items()} | {
    ".gzip": CompressionCodec.GZIP,
    ".zstandard": CompressionCodec.ZSTANDARD,
    ".snappy": CompressionCodec.SNAPPY,
    ".gzod": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
}
