"""FragmentTask: what one task of a scan reads, as it travels from the driver to an executor.

A plan may hold a hundred thousand fragments, so tasks are kept packed: some eighty bytes a fragment, with stores and
path postfixes written once a task. URLs are not in it: they are made where they are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

from protocol.codec import CompressionCodec
from protocol.fragment import NO_SUM, Fragment
from spark_readers.clock_summary import Stretch, carry_from_json, carry_to_json


class Piece(NamedTuple):
    """The messages of a journal that begin within [begin, end), from one fragment."""

    # None: the bytes are with brokers only.
    fragment: Fragment | None
    begin: int
    end: int
    # What of the fragment is read in all, by this piece and those beside it: where it was cut, it may have to look
    # for the next message, or for the next frame, and read the last message to its end.
    first: int
    last: int
    # False for what is read for its acknowledgements only.
    emits: bool = True

    @property
    def is_whole_fragment(self) -> bool:
        of = self.fragment
        return of is not None and (self.begin, self.end) == (of.begin, of.end) and self.is_whole_slice

    @property
    def is_whole_slice(self) -> bool:
        return self.begin == self.first and self.end == self.last


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces of one journal in the order of offsets, and what is known of its producers around them."""

    journal: str
    pieces: Sequence[Piece]
    labels: Mapping[str, str] = field(default_factory=dict)
    stretch: Stretch = field(default_factory=Stretch)
    # Deliver only what was still open at the end of the run. For streams, which have read it before.
    replays: bool = False

    @property
    def content_bytes(self) -> int:
        return sum(piece.end - piece.begin for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class FragmentTask:
    runs: Sequence[Run]

    @property
    def content_bytes(self) -> int:
        return sum(run.content_bytes for run in self.runs)

    def pack(self) -> bytes:
        texts: dict[str, int] = {}
        head = []
        body = bytearray()
        for run in self.runs:
            head.append(
                [
                    run.journal,
                    len(run.pieces),
                    dict(run.labels),
                    carry_to_json(run.stretch.carry),
                    {producer.hex(): clock for producer, clock in run.stretch.settlement.items()},
                    run.replays,
                ]
            )
            for piece in run.pieces:
                body += _packed(piece, texts)
        table = json.dumps([head, list(texts)], separators=(",", ":")).encode()
        return _LENGTH.pack(len(table)) + table + body

    @classmethod
    def unpack(cls, packed: bytes) -> FragmentTask:
        (length,) = _LENGTH.unpack_from(packed)
        head, texts = json.loads(packed[_LENGTH.size : _LENGTH.size + length])
        at = _LENGTH.size + length
        runs = []
        for journal, count, labels, carry, settlement, replays in head:
            pieces = []
            for _ in range(count):
                pieces.append(_unpacked(journal, _PIECE.unpack_from(packed, at), texts))
                at += _PIECE.size
            settled = {bytes.fromhex(producer): clock for producer, clock in settlement.items()}
            runs.append(Run(journal, tuple(pieces), labels, Stretch(carry_from_json(carry), settled), replays))
        return cls(tuple(runs))


_LENGTH = Struct("<I")
_PIECE = Struct("<qqqqqq20sBBqII")


def _packed(piece: Piece, texts: dict[str, int]) -> bytes:
    of = piece.fragment
    if of is None:
        bounds = (piece.begin, piece.end, piece.first, piece.last)
        return _PIECE.pack(0, 0, *bounds, NO_SUM, 0, piece.emits, 0, 0, 0)
    return _PIECE.pack(
        of.begin,
        of.end,
        piece.begin,
        piece.end,
        piece.first,
        piece.last,
        of.sum,
        of.codec,
        piece.emits,
        of.mod_time,
        texts.setdefault(of.backing_store, len(texts)),
        texts.setdefault(of.path_postfix, len(texts)),
    )


def _unpacked(journal: str, fields: tuple[Any, ...], texts: Sequence[str]) -> Piece:
    of_begin, of_end, begin, end, first, last, digest, codec, emits, mod_time, store, postfix = fields
    fragment = None
    if codec:
        kind = CompressionCodec(codec)
        fragment = Fragment(journal, of_begin, of_end, digest, kind, texts[store], mod_time, texts[postfix])
    return Piece(fragment, begin, end, first, last, bool(emits))
