"""StreamBacklog: what of a journal a streaming query has not read yet, as far as it may be read now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fragment.cover_set import Gap
from protocol.fragment import OFFSET_MAX
from spark_readers.fragment_task import Piece
from spark_readers.read_options import ReadOptions
from spark_readers.scan_plan import JournalScan, JournalState, plan_journal

GAP_GRACE_S = 60
"""Fragments are not always stored in their order. For so long after what follows a gap was stored, a query waits for
the gap to be filled before it takes it for a loss."""


def backlog(state: JournalState, begin: int, end: int, options: ReadOptions, now_s: float) -> JournalScan:
    """Of [begin, end) what can be read up to the first gap that may still be filled, in pieces of whole slices."""
    # What `where` leaves out is passed by as well.
    scan = stretch_scan(state, begin, end, replace(options, split_bytes=OFFSET_MAX, where=()))
    for gap in scan.gaps:
        if _may_be_filled(gap, scan.pieces, now_s):
            pieces = [piece for piece in scan.pieces if piece.end <= gap.begin]
            gaps = [before for before in scan.gaps if before.begin < gap.begin]
            return replace(scan, end=gap.begin, pieces=pieces, gaps=gaps)
    return scan


def stretch_scan(state: JournalState, begin: int, end: int, options: ReadOptions) -> JournalScan:
    """[begin, end) of a journal, which was there when `end` was chosen, and is lost where it is not now."""
    journal = state.journal
    bounds = replace(options, starting={journal: begin}, ending={journal: end}, starting_s=None, ending_s=None)
    return plan_journal(replace(state, write_head=max(state.write_head or 0, end)), bounds)


def _may_be_filled(gap: Gap, pieces: Sequence[Piece], now_s: float) -> bool:
    following = next((piece for piece in pieces if piece.begin >= gap.end), None)
    if following is None or following.fragment is None:
        return True
    return following.fragment.mod_time > now_s - GAP_GRACE_S
