"""Any bag of fragments gives exactly the rows of a reader that knows every byte."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from spark_readers.fragment_task import FragmentTask
from spark_readers.scan_plan import JournalState, TaskPacker, cut, plan_journal
from tests.support.coding import CODECS
from tests.support.fragment_bag import LINES, options_of, put, rows_of_tasks

JOURNAL = "acme/orders"
# Of lines, blank ones too.
APPENDS = st.lists(
    st.lists(st.binary(max_size=60).map(lambda raw: raw.hex().encode() + b"\n"), min_size=1, max_size=5).map(b"".join),
    min_size=1,
    max_size=12,
)


@dataclass
class Cut:
    """Which appends a fragment has, and how it is kept."""

    begin: int
    end: int
    codec: CompressionCodec
    store: str


CUTS = st.lists(
    st.builds(Cut, st.integers(0, 11), st.integers(1, 12), st.sampled_from(CODECS), st.sampled_from(["one", "two"])),
    max_size=8,
)


def lines_of(content: bytes, at: int) -> list[tuple[int, str]]:
    found = []
    for line in content.split(b"\n")[:-1]:
        found.append((at, line.decode()))
        at += len(line) + 1
    return found


@settings(max_examples=60)
@given(APPENDS, CUTS, st.sampled_from(["1k", "128m"]), st.integers(1, 2000))
def test_a_bag_of_fragments_is_read_once_and_gaps_are_told(
    appends: list[bytes], cuts: list[Cut], split: str, open_bytes: int
) -> None:
    offsets = [0]
    for append in appends:
        offsets.append(offsets[-1] + len(append))
    with tempfile.TemporaryDirectory() as folder:
        fragments: list[Fragment] = []
        had: set[int] = set()
        for of in cuts:
            begin, end = min(of.begin, len(appends)), min(of.end, len(appends))
            if begin < end:
                store = Path(folder) / of.store
                fragments.append(put(store, JOURNAL, offsets[begin], appends[begin:end], of.codec)[0])
                had.update(range(begin, end))
        options = options_of(path=folder, journal=JOURNAL, splitSize=split, failOnDataLoss="true")
        scan = plan_journal(JournalState(JOURNAL, fragments), options)
        first, last = min(had, default=0), max(had, default=-1)
        expected = [line for at in sorted(had) for line in lines_of(appends[at], offsets[at])]
        missing = sum(len(appends[at]) for at in range(first, last + 1) if at not in had)
        assert sum(gap.end - gap.begin for gap in scan.gaps) == missing
        packer = TaskPacker(options.split_bytes, open_bytes)
        tasks = [packer.add(run) for run in cut(scan, options, open_bytes)] + [packer.end()]
        packed = [FragmentTask.unpack(task.pack()) for task in tasks if task is not None]
        assert [task for task in tasks if task is not None] == packed
        rows = rows_of_tasks(packed, options, LINES)
    assert sorted((row["_offset"], row["value"]) for row in rows) == expected
