"""RunSummaries: a run without what cannot be read of it, and what the rest does to its producers.

The driver and the tasks must agree on what was read. So under failOnDataLoss=false a piece that cannot be summarised
is taken out of its run, and no task is given it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from protocol.errors import CorruptError, UnavailableError
from spark_readers.clock_summary import Carry, ProducerCarry, Summary, stretches
from spark_readers.fragment_access import FragmentAccess, fragment_access
from spark_readers.fragment_task import Piece, Run
from spark_readers.piece_messages import Extractor, extractor_of, summarise_run
from spark_readers.read_options import ReadOptions

log = logging.getLogger(__name__)

SUMMARIES_AT_ONCE_MAX = 4


class RunSummaries(NamedTuple):
    run: Run
    # In order, and together all of the run.
    summaries: Sequence[Summary]


def run_summaries(
    access: FragmentAccess, run: Run, options: ReadOptions, extract: Extractor, begin: int | None = None
) -> RunSummaries:
    """From `begin`, where a message begins, or all of it."""
    try:
        return RunSummaries(run, (summarise_run(access, run, options, extract, begin),))
    except (CorruptError, UnavailableError):
        if options.fail_on_data_loss:
            raise
    # What a bad piece told before it failed must not count, so each is summarised by itself.
    pieces: list[Piece] = []
    summaries: list[Summary] = []
    for piece in run.pieces:
        try:
            summary = summarise_run(access, replace(run, pieces=(piece,)), options, extract, begin)
        except (CorruptError, UnavailableError) as error:
            log.warning("a piece of a fragment is skipped, as failOnDataLoss is false: %s", error)
            continue
        pieces.append(piece)
        summaries.append(summary)
    return RunSummaries(replace(run, pieces=tuple(pieces)), summaries)


def summarised(runs: Sequence[Run], options: ReadOptions) -> list[RunSummaries]:
    """Several at once, in the order of the runs. Those of which nothing can be read are left out."""
    access = fragment_access(options)
    extract = extractor_of(options)
    with ThreadPoolExecutor(SUMMARIES_AT_ONCE_MAX, thread_name_prefix="summaries") as threads:
        found = threads.map(lambda run: run_summaries(access, run, options, extract), runs)
        return [of for of in found if of.run.pieces]


def sequenced_from(carry: Carry, found: Sequence[RunSummaries]) -> tuple[list[Run], dict[bytes, ProducerCarry]]:
    """The runs, which follow each other from where the carry is, each with what its task must know of the others; and
    the carry at the end of the last."""
    told, after = stretches(carry, [of.summaries for of in found])
    return [replace(of.run, stretch=stretch) for of, stretch in zip(found, told, strict=True)], after
