"""The tasks of a micro-batch, on the driver, and under read committed where producers stand at its end.

A batch is determined by its two offsets: one that is planned again after a restart has the same rows, whatever
fragments hold them then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_readers.catalogue import CataloguedJournal
from spark_readers.clock_summary import DROPPED, Carry, Stretch, settlement
from spark_readers.fragment_task import FragmentTask, Run
from spark_readers.read_options import ReadOptions
from spark_readers.run_summaries import RunSummaries, sequenced_from
from spark_readers.scan_plan import DataLossError, JournalScan, JournalState, TaskPacker, cut, loss_of, open_bytes_of
from spark_readers.stream_backlog import stretch_scan
from spark_readers.stream_offset import StreamOffset, batch_begin, remembered
from spark_readers.summary_pool import SummaryPool

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
    packer = TaskPacker(options, open_bytes_of(options))
    tasks: list[bytes] = []
    carries = {name: carry for name, carry in start.carries.items() if name in end.offsets and name not in end.begins}

    def keep(full: Iterable[FragmentTask]) -> None:
        tasks.extend(task.pack() for task in full)

    with SummaryPool(options) as pool:
        for of, found in pool.in_order(_stretches(start, end, journals, options)):
            runs = of.runs
            if options.sequences:
                runs, after = sequenced_from(of.carry, found)
                carries[of.state.journal] = after
                again = _owed(of, found, options)
                if again is not None:
                    keep(packer.add(again))
            for run in runs:
                keep(packer.add(run))
    keep(packer.end())
    return StreamBatch(tasks, replace(end, carries=remembered(carries)))


class _Stretch(NamedTuple):
    """Of a journal, what a batch reads, and the states of producers where it begins."""

    state: JournalState
    begin: int
    carry: Carry
    runs: Sequence[Run]


def _stretches(
    start: StreamOffset, end: StreamOffset, journals: Mapping[str, CataloguedJournal], options: ReadOptions
) -> Iterator[tuple[_Stretch, Sequence[Run]]]:
    """With the runs that have to be summarised."""
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
        runs = cut(scan, options, open_bytes_of(options))
        yield _Stretch(state, begin, carry, runs), runs if options.sequences else ()


def _owed(of: _Stretch, found: Sequence[RunSummaries], options: ReadOptions) -> Run | None:
    """What has to be read again, because the batch commits transactions that were open before it."""
    summaries = [summary for one in found for summary in one.summaries]
    owed = {producer: fate for producer, fate in settlement(of.carry, summaries).items() if fate != DROPPED}
    if not owed:
        return None
    first = min(of.carry[producer].begin or 0 for producer in owed)
    again = stretch_scan(of.state, first, of.begin, options)
    check_losses(again, options)
    # In one run, because only whoever reads all of a transaction knows which of its messages are repeated.
    stretch = Stretch({producer: of.carry[producer] for producer in owed}, owed)
    return Run(of.state.journal, tuple(again.pieces), again.labels, stretch, replays=True)


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
