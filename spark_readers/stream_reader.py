"""``spark.readStream.format("gazette")``: journals as they grow.

Spark calls all of this, but for ``read``, in one process of the driver's: ``latestOffset`` some eighty times a second
while there is nothing new. What a batch must know of producers is found when its end is chosen, and its tasks with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, UnavailableError, ValidationError
from protocol.fragment import Fragment
from spark_readers.admission import Cut, admit, refined, shares, straddled
from spark_readers.catalogue import CataloguedJournal, check_chosen
from spark_readers.fragment_access import fragment_access
from spark_readers.fragment_task import FragmentTask
from spark_readers.journal_listing import JournalListing
from spark_readers.read_options import Bound, ReadOptions
from spark_readers.scan_plan import DataLossError, JournalScan, plan_journal
from spark_readers.session_zone import zoned
from spark_readers.stream_backlog import backlog
from spark_readers.stream_batch import NEXT_STEP, StreamBatch, plan_batch, tell_loss
from spark_readers.stream_offset import StreamOffset
from spark_readers.task_rows import task_rows

log = logging.getLogger(__name__)

LOOKS_MAX = 4
"""A journal that ends before where it was read to is listed so often before that is believed: a broker that has just
become its primary may not know of the last appends yet."""
TABLES_AT_ONCE_MAX = 8
FRAMES_BYTES_MIN = 1 << 20
"""Shorter fragments are not cut at frames."""
TABLES_MAX = 256

Json = dict[str, Any]
_now_s = time.time  # noqa: TID251 -- ages of objects are told by the clock on the wall


class GazetteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.ending is not Bound.LATEST or options.ending_s is not None:
            name = "endingOffsets" if options.ending_s is None else "endingTimestamp"
            raise ValidationError("a stream has no end: leave it out, or read a batch", name)
        self._options = options
        self._schema = schema
        self.listing = JournalListing(options)
        # With Trigger.AvailableNow: where each journal ended when the query was started.
        self._targets: dict[str, int] | None = None
        # The listing, by number, and the offset after which it had nothing.
        self._idle: tuple[int, Json] | None = None
        # The offset that was given last, and what it says.
        self._start: tuple[Json, StreamOffset] | None = None
        self._planned: tuple[Json, Json, list[bytes]] | None = None
        # Where frames begin, of the fragments that were cut last.
        self._tables: dict[Fragment, Sequence[int]] = {}

    def initialOffset(self) -> Json:  # noqa: N802 -- Spark's name
        journals = self.listing.refresh({})
        check_chosen(journals.keys(), self._options)
        begins = {name: plan_journal(of.state, self._options).begin for name, of in journals.items()}
        return StreamOffset(begins).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's name
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        if self._options.files_per_trigger is not None:
            return ReadMaxFiles(self._options.files_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's name
        self.listing.expire()
        journals = self.listing.refresh({})
        self._targets = {name: self._last(of) for name, of in journals.items()}

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 -- Spark's name
        """As of the last listing: it shows how far behind a query is."""
        journals = self.listing.journals
        return StreamOffset({name: self._last(of) for name, of in journals.items()}).to_json() if journals else None

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 -- Spark's name
        began = self._parsed(start)
        self.listing.refresh(began.offsets)
        if self._idle == (self.listing.count, start):
            return start
        kept = self._without_lost(began)
        waiting = self._waiting(kept)
        if not waiting and kept is began:
            self._idle = (self.listing.count, start)
            return start
        cuts, most = self._cuts(waiting, limit)
        ends, turn = admit(cuts, most, kept.turn)
        begins = {name: waiting[name].begin for name in ends if name not in kept.offsets}
        end = StreamOffset({**kept.offsets, **ends}, kept.carries, begins, turn)
        batch = plan_batch(kept, end, self.listing.journals, self._options)
        return self._keep(start, batch)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Spark asks for those of the offset that it was told last; after a restart, for those it had not finished."""
        if self._planned is None or self._planned[:2] != (start, end):
            began = self._parsed(start)
            journals = self.listing.refresh(began.offsets)
            batch = plan_batch(began, StreamOffset.from_json(end), journals, self._options)
            self._planned = (start, end, batch.tasks)
        return [InputPartition(task) for task in self._planned[2]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return task_rows(FragmentTask.unpack(partition.value), schema, zoned(self._options))

    def _parsed(self, start: Json) -> StreamOffset:
        """Spark gives the same one again and again."""
        if self._start is None or self._start[0] != start:
            self._start = (start, StreamOffset.from_json(start))
        return self._start[1]

    def _keep(self, start: Json, batch: StreamBatch) -> Json:
        end = batch.end.to_json()
        self._planned = (start, end, batch.tasks)
        return end

    def _last(self, of: CataloguedJournal) -> int:
        """Where it can be read up to."""
        return max(of.fragments.end, of.fresh.end, of.write_head or 0) if self._options.tail else of.fragments.end

    def _waiting(self, start: StreamOffset) -> dict[str, JournalScan]:
        found = {}
        for name, of in self.listing.journals.items():
            end = self._last(of)
            if self._targets is not None:
                end = min(end, self._targets.get(name, 0))
            begin = start.offsets.get(name)
            if begin is None:
                # A new one is read from its first offset, whatever that is.
                begin = of.earliest
            if begin < end:
                scan = backlog(of.since(begin), begin, end, self._options, _now_s())
                if scan.pieces:
                    found[name] = scan
        return found

    def _cuts(self, waiting: Mapping[str, JournalScan], limit: ReadLimit) -> tuple[dict[str, list[Cut]], int | None]:
        """Where each journal may be cut, and the limit in what cuts cost."""
        match limit:
            case ReadMaxFiles(max_files=most):
                return {name: [Cut(of.end, 1) for of in scan.pieces] for name, scan in waiting.items()}, most
            case ReadMaxBytes(max_bytes=most):
                cuts = {name: [Cut(of.end, of.end - of.begin) for of in scan.pieces] for name, scan in waiting.items()}
                return self._refined(cuts, waiting, most), most
            case _:
                return {name: [Cut(scan.pieces[-1].end, 0)] for name, scan in waiting.items()}, None

    def _refined(
        self, cuts: dict[str, list[Cut]], waiting: Mapping[str, JournalScan], limit: int
    ) -> dict[str, list[Cut]]:
        """With frames where a fragment is longer than what is left of its journal's share."""
        long: dict[str, tuple[int, Fragment]] = {}
        for name, share in shares(cuts, limit).items():
            at = straddled(cuts[name], share)
            of = waiting[name].pieces[at].fragment if at < len(cuts[name]) else None
            if of is not None and of.codec is CompressionCodec.ZSTANDARD and of.end - of.begin >= FRAMES_BYTES_MIN:
                long[name] = (at, of)
        if long:
            with ThreadPoolExecutor(TABLES_AT_ONCE_MAX, thread_name_prefix="frames") as threads:
                tables = list(threads.map(self._frames, [of for _, of in long.values()]))
            for (name, (at, of)), frames in zip(long.items(), tables, strict=True):
                cuts[name] = refined(cuts[name], at, frames)
                self._tables[of] = frames
            for of in list(self._tables)[: max(0, len(self._tables) - TABLES_MAX)]:
                del self._tables[of]
        return cuts

    def _frames(self, of: Fragment) -> Sequence[int]:
        """Where frames begin that begin an append."""
        known = self._tables.get(of)
        if known is not None:
            return known
        try:
            table = fragment_access(self._options).seek_table(of)
        except (CorruptError, UnavailableError) as error:
            # Whoever reads it will tell.
            log.info("a fragment is not cut at its frames: %s", error)
            table = None
        return [of.begin + frame.begin for frame in table.frames if frame.begins_append] if table else ()

    def _without_lost(self, start: StreamOffset) -> StreamOffset:
        """Without journals that are gone, or that ended before where they were read to: those are read as new ones."""
        lost: dict[str, str] = {}
        for look in range(LOOKS_MAX):
            if look:
                time.sleep(self._options.listing_interval_s)
                self.listing.expire()
                self.listing.refresh(start.offsets)
            journals = self.listing.journals
            lost = {
                name: f"{name} ends at {self._last(of)}, and was read up to {start.offsets[name]}: it was made anew"
                for name, of in journals.items()
                if self._last(of) < start.offsets.get(name, 0) and (self._options.tail or len(of.fragments))
            }
            if not lost:
                break
        if self._options.broker:
            # A store does not tell of a journal whose fragments have all been removed, and there may be more to come.
            for name in start.offsets.keys() - self.listing.journals.keys():
                lost[name] = f"{name} is gone, with whatever was appended to it after {start.offsets[name]}"
        for told in lost.values():
            tell_loss(DataLossError(f"{told}. {NEXT_STEP}"), self._options)
        if not lost:
            return start
        kept = start.without(frozenset(lost))
        # Fragments of those that are read as new ones were not asked for.
        self.listing.expire()
        self.listing.refresh(kept.offsets)
        return kept
