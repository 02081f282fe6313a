"""ScanPlan: which bytes of which journals a scan reads, each exactly once, and how they are dealt out to tasks.

End offsets are fixed here, once: whatever is appended, uploaded or compacted later, the rows stay the same. What no
fragment has is reported as a gap, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fragment.cover_set import CoverSet, Divergence, Gap
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError, ValidationError
from protocol.fragment import Fragment
from spark_readers.fragment_task import FragmentTask, Piece, Run
from spark_readers.path_keys import Period, admits, path_keys, period
from spark_readers.read_options import Bound, Framing, Offsets, ReadOptions

LOCAL_OPEN_BYTES = 32 << 10
REMOTE_OPEN_BYTES = 1 << 20
"""What to open a fragment costs, as content that could have been read meanwhile: from a disk, and over a network."""

LOSSES_SHOWN_MAX = 8

# By what they cost to unpack, dearest first: among copies of one range, CoverSet keeps the last.
_BY_COST = {
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: 0,
    CompressionCodec.GZIP: 1,
    CompressionCodec.SNAPPY: 2,
    CompressionCodec.ZSTANDARD: 3,
    CompressionCodec.NONE: 4,
}


class DataLossError(CorruptError):
    """Bytes that were asked for are nowhere to be found."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """What is known of one journal when a scan is planned."""

    journal: str
    # In stores.
    fragments: Sequence[Fragment]
    # On brokers' disks.
    fresh: Sequence[Fragment] = ()
    # Where the journal ends, if a broker told.
    write_head: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JournalScan:
    journal: str
    begin: int
    end: int
    pieces: Sequence[Piece]
    gaps: Sequence[Gap] = ()
    divergences: Sequence[Divergence] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def losses(self) -> list[str]:
        """What is wrong with it, in words."""
        told = [f"{self.journal}: no fragment has [{gap.begin}, {gap.end})" for gap in self.gaps]
        for of in self.divergences:
            told.append(f"{of.kept.content_path} and {of.other.content_path} hold different bytes of the same range")
        return told


def plan_journal(state: JournalState, options: ReadOptions) -> JournalScan:
    """What is read of one journal. Raises a ``ValidationError`` for offsets that cannot be."""
    cover = CoverSet(sorted(state.fragments, key=lambda of: _BY_COST.get(of.codec, 0)))
    fresh = CoverSet(state.fresh)
    begin, end = _bounds(state.journal, cover, fresh, state.write_head, options)
    gaps: list[Gap] = []
    pieces: list[Piece] = []
    if begin < end:
        for part in cover.walk(begin, end):
            if not isinstance(part, Gap):
                pieces.extend(_split(part.fragment, part.begin, part.end, options))
            elif not options.tail:
                gaps.append(part)
            else:
                for filled in _fill(part, fresh, max(cover.end, fresh.end), state.write_head or 0):
                    gaps.append(filled) if isinstance(filled, Gap) else pieces.append(filled)
    pieces = _narrowed(state.journal, pieces, options)
    divergences = [of for of in cover.divergences if of.kept.begin < end and of.kept.end > begin]
    return JournalScan(state.journal, begin, end, pieces, gaps, divergences, state.labels)


def _bounds(
    journal: str, cover: CoverSet, fresh: CoverSet, write_head: int | None, options: ReadOptions
) -> tuple[int, int]:
    earliest = min((of.begin for of in (cover, fresh) if len(of)), default=write_head or 0)
    latest = cover.end
    if options.tail:
        latest = max(latest, fresh.end, write_head or 0)
    begin = _offset(journal, options.starting, earliest, latest, earliest)
    end = _offset(journal, options.ending, earliest, latest, latest)
    if options.starting_s is not None:
        begin = _frontier(cover, options.starting_s, earliest)
    if options.ending_s is not None:
        end = _frontier(cover, options.ending_s, earliest)
    known = max(latest, fresh.end, write_head or 0)
    for name, offset in (("startingOffsets", begin), ("endingOffsets", end)):
        if offset > known:
            raise ValidationError(f"{journal} ends at {known}, before {offset}: give an offset up to there", name)
    if begin > end and isinstance(options.ending, Mapping) and journal in options.ending:
        raise ValidationError(f"{journal} would end at {end} before it begins at {begin}", "endingOffsets")
    return begin, max(begin, end)


def _offset(journal: str, offsets: Offsets, earliest: int, latest: int, default: int) -> int:
    if isinstance(offsets, Mapping):
        return offsets.get(journal, default)
    return earliest if offsets is Bound.EARLIEST else latest


def _frontier(cover: CoverSet, time_s: int, earliest: int) -> int:
    """Up to where all was appended before that time, as far as that can be told: what is read until then ends there,
    and what is read from then on begins there, so that two such scans have each byte once.

    A fragment is stored after its last append; and its last append is before the first one of the next, of which
    the path may tell the hour. That also holds for copies of a store, whose modification times tell nothing. What is
    not stored yet, or stored at no known time, may be as new as can be.
    """
    following: Period | None = None
    for of in reversed(list(cover)):
        own = period(path_keys(of.path_postfix))
        is_old = 0 < of.mod_time < time_s and (own is None or own.begin < time_s)
        if is_old or (following is not None and following.end <= time_s):
            return of.end
        following = own
    return earliest


def _fill(gap: Gap, fresh: CoverSet, tail_begin: int, tail_end: int) -> Iterator[Piece | Gap]:
    """What stores lack brokers may still have: what they have listed, and all after it up to the write head."""
    for part in fresh.walk(gap.begin, gap.end):
        if not isinstance(part, Gap):
            yield _fresh(part.begin, part.end)
        elif part.begin < tail_begin or part.begin >= tail_end:
            yield part
        else:
            yield _fresh(part.begin, min(part.end, tail_end))
            if part.end > tail_end:
                yield Gap(tail_end, part.end)


def _fresh(begin: int, end: int) -> Piece:
    return Piece(None, begin, end, begin, end)


def _split(of: Fragment, begin: int, end: int, options: ReadOptions) -> Iterator[Piece]:
    """Raw fragments are cut anywhere and zstandard ones near where frames begin: whoever reads a piece looks for the
    next message or frame, and those who read the pieces beside it find the same."""
    # As many as come closest to the size of a split: more would be packed together again.
    count = (end - begin + options.split_bytes // 2) // options.split_bytes
    if count <= 1 or not _can_split(of.codec, options):
        yield Piece(of, begin, end, begin, end)
        return
    cuts = [begin + (end - begin) * at // count for at in range(count + 1)]
    for at in range(count):
        yield Piece(of, cuts[at], cuts[at + 1], begin, end)


def _can_split(codec: CompressionCodec, options: ReadOptions) -> bool:
    if codec is CompressionCodec.NONE:
        # Of a part of raw bytes there is no sum. A newline may be within a quoted field, and the magic word of a frame
        # within another's payload.
        return not options.verify_sha1 and options.framing in (Framing.BYTES, Framing.LINES, Framing.JSON)
    return codec is CompressionCodec.ZSTANDARD


def _narrowed(journal: str, pieces: list[Piece], options: ReadOptions) -> list[Piece]:
    if not options.where:
        return pieces
    if not admits(options.where, path_keys(journal)):
        return []
    kept = []
    for piece in pieces:
        if piece.fragment is None or admits(options.where, path_keys(piece.fragment.path_postfix)):
            kept.append(piece)
        elif options.sequences:
            # It may hold what commits, or repeats, messages of others.
            kept.append(piece._replace(emits=False))
    return kept


def cut(scan: JournalScan, options: ReadOptions, open_bytes: int) -> list[Run]:
    """A journal's pieces in runs. Under read committed each is enough for a task, or all there is, as its producers
    have to be known where it begins. Otherwise it is one, of which every task takes what it has room for."""
    if not options.sequences:
        return [Run(scan.journal, scan.pieces, scan.labels)] if scan.pieces else []
    runs: list[list[Piece]] = []
    weight = 0
    for piece in scan.pieces:
        own = piece.end - piece.begin + open_bytes
        if not runs or _is_full(weight, own, options.split_bytes):
            runs.append([])
            weight = 0
        runs[-1].append(piece)
        weight += own
    return [Run(scan.journal, tuple(pieces), scan.labels) for pieces in runs]


class TaskPacker:
    """Runs in, tasks out: each as close to the size of a split as its pieces allow."""

    def __init__(self, options: ReadOptions, open_bytes: int) -> None:
        self._options = options
        self._open_bytes = open_bytes
        self._runs: list[Run] = []
        self._weight = 0

    def add(self, run: Run) -> Iterator[FragmentTask]:
        """The tasks that are full, and have no room for the rest of this run."""
        taken: list[Piece] = []
        for pieces in [run.pieces] if self._options.sequences else zip(run.pieces):
            own = sum(piece.end - piece.begin + self._open_bytes for piece in pieces)
            if self._weight and _is_full(self._weight, own, self._options.split_bytes):
                self._take(run, taken)
                taken = []
                yield from self.end()
            taken.extend(pieces)
            self._weight += own
        self._take(run, taken)

    def _take(self, run: Run, pieces: Sequence[Piece]) -> None:
        if pieces:
            self._runs.append(replace(run, pieces=tuple(pieces)))

    def end(self) -> Iterator[FragmentTask]:
        """The last one, if there is any."""
        runs, self._runs, self._weight = self._runs, [], 0
        if runs:
            yield FragmentTask(tuple(runs))


def _is_full(weight: int, more: int, split_bytes: int) -> bool:
    """Whether it is closer to the size of a split without `more`."""
    return 2 * (split_bytes - weight) < more


def open_bytes_of(options: ReadOptions) -> int:
    is_local = options.path.startswith("file:") or bool(options.file_root)
    return LOCAL_OPEN_BYTES if is_local else REMOTE_OPEN_BYTES


def loss_of(scans: Iterable[JournalScan]) -> DataLossError | None:
    """One error that tells of all that is lost, up to a length that can be read."""
    losses = [loss for scan in scans for loss in scan.losses]
    if not losses:
        return None
    shown = "; ".join(losses[:LOSSES_SHOWN_MAX])
    more = f"; and {len(losses) - LOSSES_SHOWN_MAX} more" if len(losses) > LOSSES_SHOWN_MAX else ""
    return DataLossError(
        f"{shown}{more}. Restore what is missing, begin after it with startingOffsets, "
        "or set failOnDataLoss to false to read what there is"
    )
