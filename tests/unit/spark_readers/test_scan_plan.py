from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from fragment.cover_set import Gap
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from spark_readers.fragment_table import FragmentTable
from spark_readers.fragment_task import FragmentTask, Piece, Run
from spark_readers.read_options import ReadOptions
from spark_readers.scan_plan import JournalScan, JournalState, TaskPacker, cut, loss_of, plan_journal
from tests.support.fragment_bag import options_of

JOURNAL = "acme/orders"
NONE, ZSTD, GZIP = CompressionCodec.NONE, CompressionCodec.ZSTANDARD, CompressionCodec.GZIP


def fragment(
    begin: int, end: int, codec: CompressionCodec = NONE, postfix: str = "", mod_time: int = 100, digest: int = 0
) -> Fragment:
    return Fragment(JOURNAL, begin, end, bytes([digest]) * 20, codec, "s3://b/", mod_time, postfix)


def stored(**given: object) -> ReadOptions:
    return options_of(path="s3://b/", **given)


def served(**given: object) -> ReadOptions:
    return options_of(broker="b:80", journal=JOURNAL, **given)


def ranges(scan: JournalScan) -> list[tuple[int, int]]:
    return [(piece.begin, piece.end) for piece in scan.pieces]


def test_overlaps_are_read_once_from_the_cheapest_copy() -> None:
    bag = [fragment(0, 10), fragment(0, 10, GZIP), fragment(5, 20, ZSTD), fragment(8, 12), fragment(20, 20)]
    scan = plan_journal(JournalState(JOURNAL, bag), stored())
    assert ranges(scan) == [(0, 10), (10, 20)]
    assert [piece.fragment.codec for piece in scan.pieces if piece.fragment] == [NONE, ZSTD]


def test_gaps_and_divergences_are_told_by_name() -> None:
    bag = [fragment(0, 10, digest=1), fragment(0, 10, GZIP, digest=2), fragment(30, 40)]
    scan = plan_journal(JournalState(JOURNAL, bag), stored())
    assert scan.gaps == [Gap(10, 30)]
    loss = loss_of([scan])
    assert loss is not None
    for told in (r"acme/orders: no fragment has [10, 30)", "hold different bytes", "failOnDataLoss"):
        assert told in str(loss)


def test_what_is_not_stored_yet_is_read_from_brokers_up_to_the_write_head() -> None:
    bag = [fragment(0, 10), fragment(20, 30)]
    fresh = [Fragment(JOURNAL, 10, 25, bytes(20), NONE), Fragment(JOURNAL, 30, 35, bytes(20), NONE)]
    scan = plan_journal(JournalState(JOURNAL, bag, fresh, 50), served())
    assert [(piece.begin, piece.end, piece.fragment is None) for piece in scan.pieces] == [
        (0, 10, False),
        (10, 20, True),
        (20, 30, False),
        (30, 35, True),
        (35, 50, True),
    ]
    assert not scan.gaps
    scan = plan_journal(JournalState(JOURNAL, bag, fresh, 50), served(tail="false"))
    assert (scan.end, scan.gaps) == (30, [Gap(10, 20)])


def test_a_gap_that_brokers_do_not_fill_stays_one() -> None:
    fresh = [Fragment(JOURNAL, 40, 50, bytes(20), NONE)]
    scan = plan_journal(JournalState(JOURNAL, [fragment(0, 10)], fresh, 50), served())
    assert scan.gaps == [Gap(10, 40)]


def test_offsets_are_kept_to() -> None:
    state = JournalState(JOURNAL, [fragment(0, 10), fragment(10, 30)], (), 30)
    starting, ending = json.dumps({JOURNAL: 5}), json.dumps({JOURNAL: 12})
    scan = plan_journal(state, served(startingOffsets=starting, endingOffsets=ending))
    assert (scan.begin, scan.end, ranges(scan)) == (5, 12, [(5, 10), (10, 12)])
    assert plan_journal(state, served(startingOffsets="latest")).pieces == []
    with pytest.raises(ValidationError, match="ends at 30"):
        plan_journal(state, served(endingOffsets=json.dumps({JOURNAL: 31})))
    with pytest.raises(ValidationError, match="before it begins"):
        plan_journal(state, served(startingOffsets=ending, endingOffsets=starting))


def test_what_was_deleted_before_the_starting_offset_is_a_loss() -> None:
    scan = plan_journal(
        JournalState(JOURNAL, [fragment(20, 30)], (), 30), served(startingOffsets=json.dumps({JOURNAL: 5}))
    )
    assert scan.gaps == [Gap(5, 20)]


def test_times_prune_by_modification_and_by_path() -> None:
    bag = [
        fragment(0, 10, postfix="date=1970-01-01/hour=00", mod_time=5000),
        fragment(10, 20, postfix="date=1970-01-01/hour=01", mod_time=9000),
        fragment(20, 30, postfix="date=1970-01-01/hour=02", mod_time=11000),
    ]
    state = JournalState(JOURNAL, bag)
    assert plan_journal(state, stored(startingTimestamp="6000000")).begin == 10
    assert plan_journal(state, stored(endingTimestamp="9000000")).end == 10
    assert plan_journal(state, stored(startingTimestamp="12000000")).pieces == []
    # A copy of a store has the times of copying; its paths still tell.
    copied = [fragment(of.begin, of.end, postfix=of.path_postfix, mod_time=99_999) for of in bag]
    assert plan_journal(JournalState(JOURNAL, copied), stored(startingTimestamp="7200000")).begin == 10


def test_what_is_not_stored_yet_is_newer_than_any_time() -> None:
    fresh = [Fragment(JOURNAL, 100, 150, bytes(20), NONE)]
    state = JournalState(JOURNAL, [fragment(0, 50, mod_time=100), fragment(50, 100, mod_time=200)], fresh, 200)
    since = plan_journal(state, served(startingTimestamp="1000000"))
    assert (since.begin, since.end, ranges(since)) == (100, 200, [(100, 150), (150, 200)])
    assert plan_journal(state, served(startingTimestamp="1000000", tail="false")).pieces == []
    # Of a journal without stored fragments all is new.
    unstored = plan_journal(JournalState(JOURNAL, [], fresh, 200), served(startingTimestamp="1000000"))
    assert ranges(unstored) == [(100, 150), (150, 200)]
    # What brokers have between stored fragments was stored by none of them.
    between = JournalState(JOURNAL, [fragment(0, 100, mod_time=100), fragment(150, 200, mod_time=2000)], fresh, 200)
    assert ranges(plan_journal(between, served(startingTimestamp="1000000"))) == [(100, 150), (150, 200)]


@pytest.mark.parametrize("time_s", [1, 3600, 5001, 7200, 9000, 9001, 10_800, 11_001, 99_999, 100_000])
@pytest.mark.parametrize("copied_at", [None, 99_999])
def test_what_ends_at_a_time_and_what_begins_then_are_all_and_share_nothing(time_s: int, copied_at: int | None) -> None:
    bag = [
        fragment(0, 10, postfix="date=1970-01-01/hour=00", mod_time=copied_at or 5000),
        fragment(10, 20, postfix="date=1970-01-01/hour=01", mod_time=copied_at or 9000),
        fragment(20, 30, postfix="date=1970-01-01/hour=02", mod_time=copied_at or 11_000),
    ]
    state = JournalState(JOURNAL, bag, (), 40)
    before = plan_journal(state, served(endingTimestamp=time_s * 1000))
    since = plan_journal(state, served(startingTimestamp=time_s * 1000))
    assert (before.begin, before.end, since.end) == (0, since.begin, 40)


def test_large_fragments_are_split_where_their_codec_and_framing_allow() -> None:
    length = 4 << 20
    for codec, framing, count in (
        (NONE, "lines", 4),
        (NONE, "csv", 1),
        (NONE, "fixed", 1),
        (ZSTD, "csv", 4),
        (GZIP, "lines", 1),
    ):
        scan = plan_journal(
            JournalState(JOURNAL, [fragment(0, length, codec)]), stored(framing=framing, splitSize="1m")
        )
        assert len(scan.pieces) == count, (codec, framing)
        assert scan.pieces[0].begin == 0
        assert scan.pieces[-1].end == length


def test_what_is_little_longer_than_a_split_is_whole() -> None:
    """Else its two pieces would be one task's, which then has no SHA-1 to verify."""
    for mib, count in ((257, 1), (383, 1), (384, 2), (639, 2), (640, 3)):
        scan = plan_journal(JournalState(JOURNAL, [fragment(0, mib << 20, ZSTD)]), stored())
        assert len(scan.pieces) == count, mib
        assert len(packed(TaskPacker(stored(), 0), cut(scan, stored(), 0))) == count, mib


def test_raw_fragments_are_whole_where_they_are_to_be_verified() -> None:
    state = JournalState(JOURNAL, [fragment(0, 4 << 20)])
    assert len(plan_journal(state, stored(splitSize="1m")).pieces) == 4
    (piece,) = plan_journal(state, stored(splitSize="1m", verifySha1="true")).pieces
    assert piece.is_whole_fragment
    # Frames of zstandard have checksums of their own.
    packed = JournalState(JOURNAL, [fragment(0, 4 << 20, ZSTD)])
    assert len(plan_journal(packed, stored(splitSize="1m", verifySha1="true")).pieces) == 4


def packed(packer: TaskPacker, runs: Iterable[Run]) -> list[FragmentTask]:
    return [task for run in runs for task in packer.add(run)] + list(packer.end())


def test_tiny_fragments_share_tasks() -> None:
    options = stored(splitSize="1m")
    scan = plan_journal(JournalState(JOURNAL, [fragment(at * 1000, at * 1000 + 1000) for at in range(500)]), options)
    (task,) = packed(TaskPacker(options, 1000), cut(scan, options, 1000))
    assert task.runs == (Run(JOURNAL, tuple(scan.pieces)),)
    options = stored(splitSize="10k")
    tasks = packed(TaskPacker(options, 1000), (Run(str(n), scan.pieces[n : n + 1]) for n in range(500)))
    assert {task.content_bytes for task in tasks} == {5000}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_tasks_are_as_close_to_the_size_of_a_split_as_fragments_allow(isolation: str) -> None:
    """Those of 43 MiB are six to a task of 256 MiB: 258 is closer than 215."""
    options = stored(framing="json", isolation=isolation)
    runs: list[Run] = []
    for journal in range(4):
        bag = [fragment(at * 43 << 20, (at + 1) * 43 << 20, GZIP) for at in range(9)]
        runs += cut(plan_journal(JournalState(f"{JOURNAL}/{journal}", bag), options), options, 0)
    tasks = packed(TaskPacker(options, 0), runs)
    sizes = [task.content_bytes // (43 << 20) for task in tasks]
    if isolation == "read_uncommitted":
        # Where a journal ends, a task goes on with the next one.
        assert sizes == [6, 6, 6, 6, 6, 6]
        assert [len(task.runs) for task in tasks] == [1, 2, 1, 1, 2, 1]
    else:
        # It begins where producers are known: at the runs that a journal was cut into.
        assert [len(run.pieces) for run in runs] == [6, 3] * 4
        assert sizes == [6, 3, 6, 3, 6, 3, 6, 3]
    assert sum(len(run.pieces) for task in tasks for run in task.runs) == 36


def test_a_task_travels_as_it_is() -> None:
    pieces = (
        Piece(fragment(0, 10, ZSTD, "date=2026-11-16"), 0, 10, 0, 10),
        Piece(None, 10, 20, 10, 20),
        Piece(fragment(20, 30), 22, 25, 20, 30, False),
    )
    task = FragmentTask((Run(JOURNAL, pieces, {"app": "web"}), Run("other", (), replays=True)))
    assert FragmentTask.unpack(task.pack()) == task
    table = FragmentTable(JOURNAL, [piece.fragment for piece in pieces if piece.fragment])
    assert list(table) == [piece.fragment for piece in pieces if piece.fragment]


def test_a_hundred_thousand_fragments_take_less_than_300_bytes_each(tmp_path: Path) -> None:
    """A tenth of them here: what each takes does not depend on how many there are."""
    count, journals = 10_000, 100
    options = stored()
    tracemalloc.start()
    try:
        tables = [
            FragmentTable(
                f"acme/part-{journal:03}",
                (
                    fragment(at << 20, at + 1 << 20, ZSTD, f"date=2026-11-{at % 28:02}")
                    for at in range(count // journals)
                ),
            )
            for journal in range(journals)
        ]
        packer = TaskPacker(options, 0)
        tasks: list[bytes] = []
        for table in tables:
            scan = plan_journal(JournalState(table.journal, list(table)), options)
            for run in cut(scan, options, 0):
                tasks.extend(task.pack() for task in packer.add(run))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tasks) == (count << 20) // options.split_bytes
    assert peak / count < 300
