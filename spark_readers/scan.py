"""A scan on the driver: catalogue, plan, and what tasks must know of each other under read committed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from spark_readers.catalogue import catalogue
from spark_readers.fragment_access import FragmentAccess, fragment_access
from spark_readers.fragment_task import FragmentTask, Run
from spark_readers.json_schema import infer
from spark_readers.loop_thread import loop_thread
from spark_readers.message_batches import Garbage, PartialMessageError
from spark_readers.parse_columns import CORRUPT_RECORD
from spark_readers.piece_messages import piece_messages
from spark_readers.read_options import Mode, ReadOptions
from spark_readers.run_summaries import sequenced_from
from spark_readers.scan_plan import JournalScan, TaskPacker, cut, loss_of, open_bytes_of, plan_journal
from spark_readers.summary_pool import SummaryPool

log = logging.getLogger(__name__)

SAMPLE_RECORDS = 1000
SAMPLE_JOURNALS = 16
JOURNALS_LOGGED_MAX = 100


def journal_scans(options: ReadOptions, most: int | None = None) -> Iterator[JournalScan]:
    """What is read of each journal, or of so many, with its end fixed. Gaps and divergences fail, or are logged."""
    for journal in catalogue(options, loop_thread(), dict(os.environ), most):
        scan = plan_journal(journal.state, options)
        loss = loss_of([scan])
        if loss is not None:
            if options.fail_on_data_loss:
                raise loss
            log.warning("failOnDataLoss is false, so these are passed over: %s", loss)
        yield scan


def resolve(options: ReadOptions) -> dict[str, tuple[int, int]]:
    """The offsets [begin, end) of every journal, as a scan that was planned now would read them."""
    return {scan.journal: (scan.begin, scan.end) for scan in journal_scans(options)}


def plan_tasks(options: ReadOptions) -> list[bytes]:
    """The tasks of a scan, packed."""
    open_bytes = open_bytes_of(options)
    packer = TaskPacker(options, open_bytes)
    tasks: list[bytes] = []
    ends: dict[str, int] = {}

    def keep(full: Iterable[FragmentTask]) -> None:
        tasks.extend(task.pack() for task in full)

    def journals() -> Iterator[tuple[Sequence[Run], Sequence[Run]]]:
        """Of each those that tasks take as they are, and those that have to be summarised."""
        for scan in journal_scans(options):
            if len(ends) < JOURNALS_LOGGED_MAX:
                ends[scan.journal] = scan.end
            runs = cut(scan, options, open_bytes)
            # A journal that is read by one task is sequenced there. Of others each task has to be told of the rest.
            yield ((), runs) if options.sequences and len(runs) > 1 else (runs, ())

    with SummaryPool(options) as pool:
        for runs, found in pool.in_order(journals()):
            for run in (*runs, *sequenced_from({}, found)[0]):
                keep(packer.add(run))
    keep(packer.end())
    log.info("a scan of %d tasks ends at %s", len(tasks), json.dumps(ends))
    return tasks


def inferred_schema(options: ReadOptions) -> dict[str, Any]:
    """Of the first records of the first journals, in the JSON form of Spark's schemas.

    With a column for malformed ones if there are any among them and the mode keeps them, as of Spark's own readers.
    """
    return infer(_sample(options), CORRUPT_RECORD if options.mode is Mode.PERMISSIVE else "")


def sample_columns(options: ReadOptions) -> bytes | None:
    """The first record there is, which tells how many columns CSV has."""
    return next((record for record in _sample(options) if type(record) is not Garbage), None)


def _sample(options: ReadOptions) -> Iterator[bytes]:
    access = fragment_access(options)
    # Others are not even listed, where that can be told beforehand.
    for scan in islice(journal_scans(options, SAMPLE_JOURNALS), SAMPLE_JOURNALS):
        yield from islice(_records(access, scan, options), SAMPLE_RECORDS)


def _records(access: FragmentAccess, scan: JournalScan, options: ReadOptions) -> Iterator[bytes]:
    try:
        for piece in scan.pieces:
            for batch in piece_messages(access, scan.journal, piece, options.framing):
                yield from batch.payloads
    except PartialMessageError as error:
        log.warning("a sample ends early: %s", error)
