"""Fragment: the bytes [begin, end) of a journal as an immutable, content-addressed file.

A fragment's object path is all there is to know about it: journal, postfix, range, digest and codec. So the
name is the index, and a listing of the store is the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError, checked
from protocol.gen import journal_pb2 as pb
from protocol.identifier import POSTFIX_BYTES, check_journal, check_path_component, clean_path

OFFSET_MAX = (1 << 63) - 1
HEAD_MAX = 1 << 62
"""No journal ends beyond: whoever says so is not believed, as with one more append offsets would not fit the wire."""
NO_SUM = bytes(20)
"""The digest of an empty fragment: zeros, not the SHA-1 of nothing."""

_CONTENT_NAME = re.compile(r"\+?([0-9a-fA-F]+)-\+?([0-9a-fA-F]+)-([0-9a-fA-F]{40})(\.[^.]*)?").fullmatch


@dataclass(frozen=True, slots=True)
class Fragment:
    """
    >>> Fragment("acme/orders", 0, 6, bytes.fromhex("8843d7f92416211de9ebb963ff4ce28125932878"),
    ...          CompressionCodec.SNAPPY).content_path
    'acme/orders/0000000000000000-0000000000000006-8843d7f92416211de9ebb963ff4ce28125932878.sz'
    """

    journal: str
    begin: int
    end: int
    sum: bytes
    codec: CompressionCodec
    # The store's URL exactly as the spec has it; empty while the fragment is only on a broker's disk.
    backing_store: str = ""
    # Unix seconds, as the store tells; zero while the fragment is only on a broker's disk.
    mod_time: int = 0
    path_postfix: str = ""

    @property
    def content_length(self) -> int:
        return self.end - self.begin

    @property
    def content_name(self) -> str:
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{self.codec.suffix}"

    @property
    def content_path(self) -> str:
        """Journal, postfix and name, cleaned: a postfix that begins with ``..`` leads out of the journal's folder."""
        return clean_path(f"{self.journal}/{self.path_postfix}/{self.content_name}")

    @classmethod
    def parse(cls, journal: str, path: str) -> Fragment:
        """The fragment that a file at `path` below the journal's folder holds.

        Raises a ``ValidationError`` for whatever else lies there: markers, temporary files, foreign objects.
        """
        folder, slash, name = path.rpartition("/")
        if slash and folder in ("", "."):
            raise ValidationError("a listed path must not begin with a slash or a dot", "Fragment.PathPostfix")
        _check_place(journal, folder)
        found = _CONTENT_NAME(name)
        if found is None:
            raise ValidationError(f"not the name of a fragment: {name[:128]!r}", "Fragment")
        begin, end = int(found[1], 16), int(found[2], 16)
        if end > OFFSET_MAX or begin > end:
            raise ValidationError(f"expected 0 <= begin <= end < 2^63 (got {begin}, {end})", "Fragment")
        codec = CompressionCodec.of_suffix(found[4] or "")
        return cls(journal, begin, end, bytes.fromhex(found[3]), codec, path_postfix=folder)

    @classmethod
    def from_proto(cls, message: pb.Fragment) -> Fragment:
        """The fragment of a message that was judged: one with a codec that does not exist raises."""
        return cls(
            message.journal,
            message.begin,
            message.end,
            sum_from_proto(message.sum),
            CompressionCodec.of_number(message.compression_codec),
            message.backing_store,
            message.mod_time,
            message.path_postfix,
        )

    def to_proto(self) -> pb.Fragment:
        return pb.Fragment(
            journal=self.journal,
            begin=self.begin,
            end=self.end,
            sum=sum_to_proto(self.sum),
            compression_codec=pb.CompressionCodec.ValueType(self.codec),
            backing_store=self.backing_store,
            mod_time=self.mod_time,
            path_postfix=self.path_postfix,
        )


# A listing has thousands of fragments in a folder. Names are short, so the cache is small.
@lru_cache(maxsize=1024)
def _check_place(journal: str, folder: str) -> None:
    checked("Fragment.PathPostfix", check_path_component, folder, *POSTFIX_BYTES)
    checked("Fragment.Journal", check_journal, journal)


def sum_from_proto(message: pb.SHA1Sum) -> bytes:
    """A digest from the three big-endian integers of the wire."""
    return (message.part1 << 96 | message.part2 << 32 | message.part3).to_bytes(20, "big")


def sum_to_proto(digest: bytes) -> pb.SHA1Sum:
    return pb.SHA1Sum(
        part1=int.from_bytes(digest[:8], "big"),
        part2=int.from_bytes(digest[8:16], "big"),
        part3=int.from_bytes(digest[16:], "big"),
    )
