"""The messages of a piece: its fragment's content, by its framing, from the right place to the right place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from consumer.message.csv_framing import CsvDecoder
from consumer.message.fixed_framing import FixedDecoder
from consumer.message.message_uuid import MessageUUID
from fragment.decoder import UNIT_BYTES_MAX
from fragment.zstd_frames import SeekTable
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from spark_readers.clock_summary import Summary, summarise
from spark_readers.fragment_access import FragmentAccess, object_name
from spark_readers.fragment_task import Piece, Run
from spark_readers.message_batches import (
    LineBlock,
    MessageBatch,
    PartialMessageError,
    frame_batches,
    line_batches,
    line_begins,
    line_blocks,
)
from spark_readers.proto_columns import proto_extractor
from spark_readers.read_options import Framing, Mode, ReadOptions
from spark_readers.uuid_extract import Extractor, Int64s, JsonUuids, UuidColumns, csv_uuids, no_uuids

_T = TypeVar("_T")

LINES_BYTES = 2 << 20
"""Of content at once, where no object is made for each line: as much as most frames of zstandard have, which then need
not be cut."""


def extractor_of(options: ReadOptions) -> Extractor:
    match options.framing:
        case Framing.JSON:
            return JsonUuids(options.uuid_field)
        case Framing.CSV:
            return csv_uuids
        case Framing.FIXED if options.descriptor_file:
            return proto_extractor(options.descriptor_file, options.message_name, options.uuid_field)
        case _:
            return no_uuids


def piece_messages(
    access: FragmentAccess, journal: str, piece: Piece, framing: Framing, begin: int | None = None
) -> Iterator[MessageBatch]:
    """From `begin`, where a message begins, or from that of the piece."""
    return _of_piece(access, journal, piece, framing, begin, partial(_batches, framing))


def piece_begins(access: FragmentAccess, journal: str, piece: Piece) -> Iterator[pa.Array]:
    """Where its lines begin."""
    return _of_piece(access, journal, piece, Framing.LINES, None, _begins, LINES_BYTES)


def piece_lines(access: FragmentAccess, journal: str, piece: Piece) -> Iterator[LineBlock]:
    """Its lines, many at once."""
    return _of_piece(access, journal, piece, Framing.LINES, None, _blocks, LINES_BYTES)


def _of_piece(
    access: FragmentAccess,
    journal: str,
    piece: Piece,
    framing: Framing,
    begin: int | None,
    made: Callable[[Iterator[bytes], int, int, bool], Iterator[_T]],
    piece_bytes: int = UNIT_BYTES_MAX,
) -> Iterator[_T]:
    of = piece.fragment
    found, end = piece_bounds(access, piece)
    at = found if begin is None else begin
    aligned = begin is not None or _is_aligned(piece)
    if at >= end:
        return
    first, last = _content_range(piece, framing, at, end, aligned)
    source = access.fresh(journal, first, last) if of is None else access.content(of, first, last, piece_bytes)
    try:
        yield from made(source, at, end, aligned)
    except CorruptError as error:
        if journal in str(error):
            raise
        place = f"{journal} in {object_name(of)}" if of is not None else journal
        raise type(error)(f"{place}: {error}") from error


def _is_aligned(piece: Piece) -> bool:
    return _is_cut_at_frames(piece) or piece.begin == piece.first


def _content_range(piece: Piece, framing: Framing, at: int, end: int, aligned: bool) -> tuple[int, int]:
    # To look for where a message begins, the byte before is needed; bytes are cut anywhere.
    if framing is Framing.BYTES:
        return at, end
    return at if aligned else at - 1, end if _is_cut_at_frames(piece) else piece.last


def expect_piece(access: FragmentAccess, piece: Piece, framing: Framing) -> None:
    """It is the next to be read. Where it is cut at frames, of which nobody knows yet where they are, it can wait."""
    of = piece.fragment
    if of is not None and not _is_cut_at_frames(piece) and piece.begin < piece.end:
        access.expect(of, *_content_range(piece, framing, piece.begin, piece.end, _is_aligned(piece)))


def _batches(framing: Framing, source: Iterator[bytes], at: int, end: int, aligned: bool) -> Iterator[MessageBatch]:
    match framing:
        case Framing.BYTES:
            return _chunks(source, at)
        case Framing.CSV:
            return frame_batches(source, at, CsvDecoder(at))
        case Framing.FIXED:
            return frame_batches(source, at, FixedDecoder(at))
        case Framing.LINES | Framing.JSON:
            return line_batches(source, at, end, aligned=aligned)


def _blocks(source: Iterator[bytes], at: int, end: int, aligned: bool) -> Iterator[LineBlock]:
    return line_blocks(source, at, end, aligned=aligned)


def _begins(source: Iterator[bytes], at: int, end: int, aligned: bool) -> Iterator[pa.Array]:
    return line_begins(source, at, end, aligned=aligned)


def _chunks(source: Iterator[bytes], at: int) -> Iterator[MessageBatch]:
    for chunk in source:
        yield MessageBatch((chunk,), (at,), at + len(chunk))
        at += len(chunk)


def piece_bounds(access: FragmentAccess, piece: Piece) -> tuple[int, int]:
    """Where it begins and ends. Cuts of a zstandard fragment are moved on to the next frame that begins an append,
    which may be far beyond the piece as it was planned."""
    of = piece.fragment
    if of is None or not _is_cut_at_frames(piece):
        return piece.begin, piece.end
    table = access.seek_table(of)
    return _snapped(table, of.begin, piece.begin, piece), _snapped(table, of.begin, piece.end, piece)


def _is_cut_at_frames(piece: Piece) -> bool:
    of = piece.fragment
    return of is not None and not piece.is_whole_slice and of.codec is CompressionCodec.ZSTANDARD


def _snapped(table: SeekTable | None, base: int, offset: int, piece: Piece) -> int:
    """The first frame at or after `offset` that begins an append. Without a table the first piece has it all."""
    if offset <= piece.first or offset >= piece.last:
        return offset
    if table is not None:
        for frame in table.covering(offset - base, piece.last - base):
            if frame.begins_append and frame.begin + base >= offset:
                return frame.begin + base
    return piece.last


def run_uuids(
    access: FragmentAccess, run: Run, options: ReadOptions, extract: Extractor, begin: int | None = None
) -> Iterator[tuple[int, MessageUUID, int]]:
    """Where each message begins, its UUID and its size: from `begin`, where one begins, or all of the run."""
    for piece in run.pieces:
        from_begin = None
        if begin is not None:
            at, end = piece_bounds(access, piece)
            if end <= begin:
                continue
            from_begin = begin if at < begin else None
        try:
            for batch in piece_messages(access, run.journal, piece, options.framing, from_begin):
                uuids = extract(batch.payloads).to_list()
                for at, uuid, payload in zip(batch.begins, uuids, batch.payloads, strict=True):
                    if uuid is not None:
                        yield at, uuid, len(payload)
        except PartialMessageError:
            # As the task that reads it.
            if options.mode is not Mode.DROPMALFORMED:
                raise


def summarise_run(access: FragmentAccess, run: Run, options: ReadOptions, extract: Extractor) -> Summary:
    """What the run does to its producers."""

    def batches() -> Iterator[tuple[Int64s, UuidColumns]]:
        for piece in run.pieces:
            try:
                yield from _piece_uuids(access, run.journal, piece, options.framing, extract)
            except PartialMessageError:
                # As the task that reads it.
                if options.mode is not Mode.DROPMALFORMED:
                    raise

    return summarise(batches())


def _piece_uuids(
    access: FragmentAccess, journal: str, piece: Piece, framing: Framing, extract: Extractor
) -> Iterator[tuple[Int64s, UuidColumns]]:
    """Where its messages begin, and their UUIDs. Of JSON without an object for each line."""
    if isinstance(extract, JsonUuids):
        for block in _of_piece(access, journal, piece, framing, None, _blocks):
            uuids, begins = extract.of_lines(block.data)
            yield begins + block.begin, uuids
    else:
        for batch in piece_messages(access, journal, piece, framing):
            yield np.array(batch.begins, np.int64), extract(batch.payloads)
