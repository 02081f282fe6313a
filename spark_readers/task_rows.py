"""The rows of a task, as batches of Arrow: what an executor does.

The way that is taken depends on what is asked for: whole fragments of JSON without metadata are read by DuckDB from
files that are verified before, or that it verifies; all else is unpacked and verified by our own decoder. Memory is
bounded: by the batches under way, and by what waits for its acknowledgement, of which there is a limit.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa
from pyspark import TaskContext

from fragment.heap import keep_freed_memory
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, GazetteError
from protocol.fragment import Fragment
from spark_readers.commit_sieve import CommitSieve
from spark_readers.foresight import Foresight
from spark_readers.fragment_access import FragmentAccess, fragment_access, object_name
from spark_readers.fragment_task import FragmentTask, Piece, Run
from spark_readers.line_columns import line_columns
from spark_readers.local_copy import local_copy
from spark_readers.message_batches import MessageBatch, PartialMessageError
from spark_readers.packed_shape import checks_itself
from spark_readers.parse_columns import CORRUPT_RECORD, check_value_schema, read_json_file
from spark_readers.path_keys import path_keys
from spark_readers.piece_messages import (
    expect_piece,
    extractor_of,
    piece_begins,
    piece_lines,
    piece_messages,
    run_uuids,
)
from spark_readers.read_options import Framing, Mode, ReadOptions
from spark_readers.row_buffer import MANY, METADATA, Message, Place, RowBuffer, gathered, slices
from spark_readers.run_summaries import tell_skipped
from spark_readers.uuid_extract import Extractor

log = logging.getLogger(__name__)

_T = TypeVar("_T")

WAITING_BYTES_MAX = 64 << 20
"""Of messages whose acknowledgement was not met yet. Beyond it, the rest of the run is looked through for it, once."""
MESSAGE_BYTES = 200
"""What a message that waits takes besides its payload."""
FILE_BYTES_MIN = 256 << 10
"""Smaller fragments are read sooner with others than each as a file of its own."""
BLOCK_BYTES_MAX = 16 << 20
"""Larger than what is made of content on the way, unless its lines are very short."""


def task_rows(task: FragmentTask, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    _begin_process()
    reader = _TaskReader(schema, options, [piece for run in task.runs for piece in run.pieces])
    try:
        rows = reader.rows(task)
        yield from gathered(rows) if options.framing is Framing.LINES else rows
    finally:
        reader.close()
    reader.tell()


@cache
def _begin_process() -> None:
    """Once for all tasks of it. A worker of Spark's collects garbage after each, and what modules have, which is never
    any, takes a third of the time from one task to the next."""
    keep_freed_memory(BLOCK_BYTES_MAX)
    if TaskContext.get() is not None:
        gc.freeze()


class _TaskReader:
    def __init__(self, schema: pa.Schema, options: ReadOptions, pieces: Iterable[Piece]) -> None:
        """`pieces` are all there are, in the order of the runs."""
        # Those that were not expected yet.
        self._following = iter(pieces)
        self._schema = schema
        self._skipped: list[Piece] = []
        # Of the run under way: which pieces can be read, as far as that was found out.
        self._readable: dict[Piece, bool] = {}
        self._options = options
        self._access: FragmentAccess = fragment_access(options)
        self._extract: Extractor = extractor_of(options)
        self._buffer = RowBuffer(schema, options)
        self._wants_uuids = "_timestamp" in schema.names
        if options.framing in (Framing.BYTES, Framing.LINES) or (
            options.framing is Framing.FIXED and not options.descriptor_file
        ):
            data = pa.schema([field for field in schema if field.name not in METADATA and not _is_of_many(field)])
            check_value_schema(data, options.framing)

    def rows(self, task: FragmentTask) -> Iterator[pa.RecordBatch]:
        self.expect_next()
        for run in task.runs:
            yield from self.run(run)
        yield from self.rest()

    def run(self, run: Run) -> Iterator[pa.RecordBatch]:
        self._readable = {}
        if self._options.sequences:
            yield from self._committed(run)
            return
        for piece in self._in_turn(run):
            if self._is_for_duckdb(piece):
                yield from self.rest()
                yield from self._from_file(piece)
                continue
            place = _place(run, piece)
            if self._options.framing is Framing.LINES:
                yield from self._lines(run, piece, place)
                continue
            for batch in self._messages(run, piece):
                uuids = self._extract(batch.payloads).to_list() if self._wants_uuids else ()
                self._buffer.add(batch.payloads, batch.begins, uuids, place)
                yield from self._full()

    def close(self) -> None:
        self._access.expect_nothing()

    def _in_turn(self, run: Run) -> Iterator[Piece]:
        """The pieces of a run. While one is read, the next one's object is opened."""
        for piece in run.pieces:
            self.expect_next()
            yield piece

    def expect_next(self) -> None:
        piece = next(self._following, None)
        of = piece and piece.fragment
        if piece is None or of is None:
            return
        if not self._options.sequences and self._is_for_duckdb(piece) and of.codec is CompressionCodec.ZSTANDARD:
            self._access.expect_packed(of)
        else:
            expect_piece(self._access, piece, self._options.framing)

    def rest(self) -> Iterator[pa.RecordBatch]:
        batch = self._buffer.flush()
        if batch is not None and batch.num_rows:
            yield batch

    def tell(self) -> None:
        """What there are no rows of."""
        tell_skipped(self._skipped)
        if self._buffer.dropped:
            log.warning("mode is DROPMALFORMED: %d malformed records were dropped", self._buffer.dropped)

    def _full(self) -> Iterator[pa.RecordBatch]:
        if self._buffer.is_full:
            yield from self.rest()

    def _committed(self, run: Run) -> Iterator[pa.RecordBatch]:
        sieve = CommitSieve[Message](run.stretch.carry, run.stretch.settlement, run.replays)
        take = sieve.take
        delivered: list[Message] = []
        for piece in self._in_turn(run):
            place = _place(run, piece)
            for batch in self._messages(run, piece):
                uuids = self._extract(batch.payloads).to_list()
                for begin, payload, uuid in zip(batch.begins, batch.payloads, uuids, strict=True):
                    take(begin, uuid, (begin, payload, uuid, place), delivered, len(payload) + MESSAGE_BYTES)
                if sieve.waiting_size > WAITING_BYTES_MAX:
                    self._look_ahead(run, batch.end, sieve, delivered)
                yield from self._delivered(delivered)
        sieve.end(delivered)
        yield from self._delivered(delivered)

    def _delivered(self, delivered: list[Message]) -> Iterator[pa.RecordBatch]:
        for _, part in groupby(delivered, key=_identity_of_place):
            begins, payloads, uuids, (place, *_) = zip(*part, strict=True)
            if not place.emits:
                continue
            for first, last in slices(payloads):
                times = uuids[first:last] if self._wants_uuids else ()
                self._buffer.add(payloads[first:last], begins[first:last], times, place)
                yield from self._full()
        delivered.clear()

    def _look_ahead(self, run: Run, begin: int, sieve: CommitSieve[Message], delivered: list[Message]) -> None:
        foresight = Foresight(sieve.carry())
        readable = replace(run, pieces=tuple(piece for piece in run.pieces if self._is_readable(run, piece)))
        for at, uuid, size in run_uuids(self._access, readable, self._options, self._extract, begin):
            foresight.take(at, uuid, size + MESSAGE_BYTES)
        foresight.end(run.stretch.settlement)
        sieve.foresee(foresight, delivered)

    def _lines(self, run: Run, piece: Piece, place: Place) -> Iterator[pa.RecordBatch]:
        kind = next((_value_type(field) for field in self._schema if field.name in ("value", MANY["value"])), None)
        if kind is None:
            for begins in self._whole(run, piece, lambda: piece_begins(self._access, run.journal, piece)):
                yield from self._buffer.placed(begins, None, place)
            return
        for block in self._whole(run, piece, lambda: piece_lines(self._access, run.journal, piece)):
            lines = line_columns(block, kind)
            yield from self._buffer.placed(lines.begins, lines.values, place)

    def _messages(self, run: Run, piece: Piece) -> Iterator[MessageBatch]:
        return self._whole(run, piece, lambda: piece_messages(self._access, run.journal, piece, self._options.framing))

    def _whole(self, run: Run, piece: Piece, read: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        """What is read of a piece, if all of it can be, or up to where a message is not whole."""
        if not self._is_readable(run, piece):
            return
        try:
            yield from read()
        except PartialMessageError as error:
            self._drop_rest(error)

    def _drop_rest(self, error: PartialMessageError) -> None:
        if self._options.mode is not Mode.DROPMALFORMED:
            raise error
        log.warning("the rest of a piece of a fragment is dropped, as mode is DROPMALFORMED: %s", error)

    def _is_readable(self, run: Run, piece: Piece) -> bool:
        """Whether all of it can be read, which is known only when it was: so no row of it is given before.

        Only if failOnDataLoss is false: else whoever reads it finds out. An outage is no loss, and fails the task.
        """
        if self._options.fail_on_data_loss:
            return True
        if piece not in self._readable:
            try:
                for _ in piece_messages(self._access, run.journal, piece, Framing.BYTES):
                    pass
            except CorruptError as error:
                self._skipped.append(piece)
                log.warning("a piece of a fragment is skipped, as failOnDataLoss is false: %s", error)
                self._readable[piece] = False
            else:
                self._readable[piece] = True
        return self._readable[piece]

    def _is_for_duckdb(self, piece: Piece) -> bool:
        options, names = self._options, self._schema.names
        return (
            options.framing is Framing.JSON
            and options.mode is Mode.PERMISSIVE
            and options.fail_on_data_loss
            and not options.verify_sha1
            and piece.is_whole_fragment
            and piece.end - piece.begin >= FILE_BYTES_MIN
            and piece.fragment is not None
            and piece.fragment.codec in _DUCKDB_CODECS
            and bool(names)
            and not any(name in METADATA or name == CORRUPT_RECORD for name in names)
            and not any(pa.types.is_binary(field.type) for field in self._schema)
        )

    def _from_file(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        of = piece.fragment
        assert of is not None
        with ExitStack() as stack:
            try:
                file = self._verified_file(of, stack)
            except (OSError, GazetteError):
                file = None
            if file is not None:
                path, suffix = file
                try:
                    yield from read_json_file(str(path), suffix, self._schema, self._options.time_zone)
                except duckdb.Error as error:
                    raise CorruptError(f"{object_name(of)} could not be read: {str(error)[:200]}") from error
                return
        # Our own decoder knows what is wrong, or that it is right after all.
        place = _place(Run(of.journal, (piece,)), piece)
        for batch in piece_messages(self._access, of.journal, piece, self._options.framing):
            self._buffer.add(batch.payloads, batch.begins, (), place)
            yield from self._full()

    def _verified_file(self, of: Fragment, stack: ExitStack) -> tuple[Path, str] | None:
        """A file of which DuckDB cannot read wrong rows, and its suffix; None if there is something wrong with it.

        DuckDB verifies the checksums of zstandard frames, but neither those of gzip nor raw bytes. To unpack gzip here,
        which verifies its SHA-1, and have it read raw takes about as long as to have DuckDB unpack it. And it makes a
        row of a last line that no newline ends, which is an error.
        """
        path = self._access.local_path(of)
        if of.codec is CompressionCodec.ZSTANDARD:
            packed = path or stack.enter_context(local_copy(self._access.packed(of)))
            if checks_itself(of, packed):
                return packed, of.codec.suffix
        if of.codec is CompressionCodec.NONE and path is not None:
            with path.open("rb") as file:
                is_right = hashlib.file_digest(file, "sha1").digest() == of.sum
        else:
            path = stack.enter_context(local_copy(self._access.content(of, of.begin, of.end)))
            is_right = True
        return (path, CompressionCodec.NONE.suffix) if is_right and _ends_a_line(path) else None


_DUCKDB_CODECS = (CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _is_of_many(field: pa.Field) -> bool:
    return field.name in MANY.values() and pa.types.is_list(field.type)


def _value_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_list(field.type) else field.type


def _identity_of_place(message: Message) -> int:
    return id(message[3])


def _place(run: Run, piece: Piece) -> Place:
    of = piece.fragment
    postfix = of.path_postfix if of is not None else ""
    keys = path_keys(f"{run.journal}/{postfix}")
    name = of.content_name if of is not None else ""
    return Place(run.journal, name, tuple(run.labels.items()), tuple(keys.items()), piece.emits)
