"""The tasks of a micro-batch, on the driver, and under read committed where producers stand at its end.

A batch is determined by its two offsets: one that is planned again after a restart has the same rows, whatever
fragments hold them then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from protocol.errors import CorruptError, UnavailableError
from spark_readers.catalogue import CataloguedJournal
from spark_readers.clock_summary import DROPPED, Carry, Stretch, Summary, settlement, stretches
from spark_readers.fragment_access import fragment_access
from spark_readers.fragment_task import FragmentTask, Piece, Run
from spark_readers.piece_messages import extractor_of, summarise_run
from spark_readers.read_options import ReadOptions
from spark_readers.scan import SUMMARIES_AT_ONCE_MAX
from spark_readers.scan_plan import DataLossError, JournalScan, TaskPacker, cut, loss_of, open_bytes_of
from spark_readers.stream_backlog import stretch_scan
from spark_readers.stream_offset import StreamOffset, batch_begin, remembered

log = logging.getLogger(__name__)


class StreamBatch(NamedTuple):
    # Packed.
    tasks: list[bytes]
    # Where the batch ends, with the states of producers there.
    end: StreamOffset


def plan_batch(
    start: StreamOffset, end: StreamOffset, journals: Mapping[str, CataloguedJournal], options: ReadOptions
) -> StreamBatch:
    """What is read from `start` to the offsets of `end`."""
    open_bytes = open_bytes_of(options)
    packer = TaskPacker(options.split_bytes, open_bytes)
    tasks: list[bytes] = []
    carries = {name: carry for name, carry in start.carries.items() if name in end.offsets and name not in end.begins}

    def keep(task: FragmentTask | None) -> None:
        if task is not None:
            tasks.append(task.pack())

    for name, last in end.offsets.items():
        begin, carry = batch_begin(start, end, name)
        if begin >= last:
            continue
        found = journals.get(name)
        if found is None:
            tell_loss(DataLossError(f"{name} is gone, and with it [{begin}, {last}). {NEXT_STEP}"), options)
            continue
        oldest = min((of.begin for of in carry.values() if of.begin is not None), default=begin)
        state = found.since(min(begin, oldest))
        scan = stretch_scan(state, begin, last, options)
        check_losses(scan, options)
        runs = cut(scan, options, open_bytes)
        if options.sequences:
            runs, owed, after = _sequenced(runs, carry, options)
            carries[name] = remembered(after)
            if owed:
                first = min(carry[producer].begin or 0 for producer in owed)
                again = stretch_scan(state, first, begin, options)
                check_losses(again, options)
                # In one run, because only whoever reads all of a transaction knows which of its messages are repeated.
                stretch = Stretch({producer: carry[producer] for producer in owed}, owed)
                keep(packer.add(Run(name, tuple(again.pieces), again.labels, stretch, replays=True)))
        for run in runs:
            keep(packer.add(run))
    keep(packer.end())
    return StreamBatch(tasks, replace(end, carries=carries))


def _sequenced(runs: Sequence[Run], carry: Carry, options: ReadOptions) -> tuple[list[Run], dict[bytes, int], Carry]:
    """The runs, with what each must know; what the batch commits of transactions that were open before it, by producer;
    and the carry at its end."""
    summarised = _summaries([Run(run.journal, (piece,)) for run in runs for piece in run.pieces], options)
    kept: list[Run] = []
    summaries: list[Summary] = []
    bounds: list[tuple[int, int]] = []
    of_pieces = iter(summarised)
    for run in runs:
        first = len(summaries)
        pieces: list[Piece] = []
        for piece in run.pieces:
            summary = next(of_pieces)
            if summary is not None:
                pieces.append(piece)
                summaries.append(summary)
        if pieces:
            kept.append(replace(run, pieces=tuple(pieces)))
            bounds.append((first, len(summaries) - 1))
    found, after = stretches(carry, summaries)
    told = [
        replace(run, stretch=Stretch(found[first].carry, found[last].settlement))
        for run, (first, last) in zip(kept, bounds, strict=True)
    ]
    owed = {producer: fate for producer, fate in settlement(carry, summaries).items() if fate != DROPPED}
    return told, owed, after


def _summaries(runs: Sequence[Run], options: ReadOptions) -> list[Summary | None]:
    """None for what cannot be read, if that is to be passed over: by the tasks as well, so that they agree."""
    access = fragment_access(options)
    extract = extractor_of(options)

    def one(run: Run) -> Summary | None:
        try:
            return summarise_run(access, run, options, extract)
        except (CorruptError, UnavailableError) as error:
            if options.fail_on_data_loss:
                raise
            log.warning("a piece of a fragment is skipped, as failOnDataLoss is false: %s", error)
            return None

    with ThreadPoolExecutor(SUMMARIES_AT_ONCE_MAX, thread_name_prefix="summaries") as threads:
        return list(threads.map(one, runs))


NEXT_STEP = (
    "Set failOnDataLoss to false to go on with what there is: once the query has passed this, it can be true again"
)


def check_losses(scan: JournalScan, options: ReadOptions) -> None:
    loss = loss_of([scan])
    if loss is not None:
        tell_loss(loss, options)


def tell_loss(loss: DataLossError, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise loss
    log.warning("failOnDataLoss is false, so this is passed over: %s", loss)
