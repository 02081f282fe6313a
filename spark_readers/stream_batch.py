"""The tasks of a micro-batch, on the driver, and under read committed where producers stand at its end.

A batch is determined by its two offsets: one that is planned again after a restart has the same rows, whatever
fragments hold them then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_readers.catalogue import CataloguedJournal
from spark_readers.clock_summary import DROPPED, Carry, Stretch, settlement
from spark_readers.fragment_task import FragmentTask, Run
from spark_readers.read_options import ReadOptions
from spark_readers.run_summaries import sequenced_from, summarised
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
    found = summarised(runs, options)
    told, after = sequenced_from(carry, found)
    summaries = [summary for of in found for summary in of.summaries]
    owed = {producer: fate for producer, fate in settlement(carry, summaries).items() if fate != DROPPED}
    return told, owed, after


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
