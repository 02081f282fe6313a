"""RunSummaries: a run without what cannot be read of it, and what the rest does to its producers.

The driver and the tasks must agree on what was read. So under failOnDataLoss=false a piece that cannot be summarised
is taken out of its run, and no task is given it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from protocol.errors import CorruptError
from spark_readers.clock_summary import Carry, ProducerCarry, Summary, stretches
from spark_readers.fragment_access import FragmentAccess
from spark_readers.fragment_task import Piece, Run
from spark_readers.message_batches import PartialMessageError
from spark_readers.piece_messages import summarise_run
from spark_readers.read_options import ReadOptions
from spark_readers.uuid_extract import Extractor

log = logging.getLogger(__name__)


class RunSummaries(NamedTuple):
    run: Run
    # In order, and together all of the run.
    summaries: Sequence[Summary]
    # What was taken out of it.
    skipped: Sequence[Piece] = ()


def run_summaries(access: FragmentAccess, run: Run, options: ReadOptions, extract: Extractor) -> RunSummaries:
    """An outage is no loss of data: it fails the scan, whatever is to be passed over."""
    try:
        return RunSummaries(run, (summarise_run(access, run, options, extract),))
    except PartialMessageError:
        # Its bytes are what was written, and no task passes them over either.
        raise
    except CorruptError:
        if options.fail_on_data_loss:
            raise
    # What a bad piece told before it failed must not count, so each is summarised by itself.
    pieces: list[Piece] = []
    summaries: list[Summary] = []
    skipped: list[Piece] = []
    for piece in run.pieces:
        try:
            summary = summarise_run(access, replace(run, pieces=(piece,)), options, extract)
        except PartialMessageError:
            raise
        except CorruptError as error:
            log.warning("a piece of a fragment is skipped, as failOnDataLoss is false: %s", error)
            skipped.append(piece)
            continue
        pieces.append(piece)
        summaries.append(summary)
    return RunSummaries(replace(run, pieces=tuple(pieces)), summaries, skipped)


def tell_skipped(pieces: Sequence[Piece]) -> None:
    """On the driver and in tasks alike: what one has skipped the other is not given."""
    if pieces:
        log.warning(
            "failOnDataLoss is false: %d pieces of fragments were skipped, with up to %d bytes",
            len(pieces),
            sum(piece.end - piece.begin for piece in pieces),
        )


def sequenced_from(carry: Carry, found: Sequence[RunSummaries]) -> tuple[list[Run], dict[bytes, ProducerCarry]]:
    """The runs, which follow each other from where the carry is, each with what its task must know of the others; and
    the carry at the end of the last."""
    told, after = stretches(carry, [of.summaries for of in found])
    return [replace(of.run, stretch=stretch) for of, stretch in zip(found, told, strict=True)], after
