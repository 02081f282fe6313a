"""Any bag of fragments gives exactly the rows of a reader that knows every byte."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumer.message.message_uuid import MessageUUID, build
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from spark_readers.fragment_task import FragmentTask
from spark_readers.scan import plan_tasks
from spark_readers.scan_plan import DataLossError, JournalState, TaskPacker, cut, plan_journal
from tests.support.coding import CODECS
from tests.support.fragment_bag import LINES, options_of, put, rows_of, rows_of_tasks
from tests.support.object_servers import BUCKET, put_s3_object
from tests.support.uuid_histories import sequenced, uuid_histories

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
        packer = TaskPacker(options, open_bytes)
        tasks = [task for run in cut(scan, options, open_bytes) for task in packer.add(run)] + [*packer.end()]
        packed = [FragmentTask.unpack(task.pack()) for task in tasks]
        assert tasks == packed
        rows = rows_of_tasks(packed, options, LINES)
    assert sorted((row["_offset"], row["value"]) for row in rows) == expected


RECORDS = pa.schema([("n", pa.int64()), ("_offset", pa.int64())])
_NUMBERS = itertools.count()


@dataclass
class Messages:
    """Of a journal, in appends of so many each."""

    uuids: list[MessageUUID | None]
    sizes: list[int]

    def appends(self) -> list[list[bytes]]:
        lines = []
        for n, uuid in enumerate(self.uuids):
            document = {"n": n} if uuid is None else {"UUID": str(build(*uuid)), "n": n}
            # Of lengths that differ, so that cuts are at all kinds of places.
            lines.append(json.dumps({**document, "pad": "x" * (37 * n % 251)}).encode() + b"\n")
        found, at = [], 0
        for size in self.sizes:
            found.append(lines[at : at + size])
            at += size
        return [append for append in [*found, lines[at:]] if append]

    def delivered(self, read: Sequence[int]) -> list[int]:
        """Of those that are read, what a reader in order is given: records without UUIDs are delivered as they are."""
        history = [(n, uuid) for n in read if (uuid := self.uuids[n]) is not None]
        counted = sequenced([uuid for _, uuid in history])
        plain = [n for n in read if self.uuids[n] is None]
        return sorted(plain + [n for at, (n, _) in enumerate(history) if at in counted])


def _some_plain(uuids: list[MessageUUID]) -> list[MessageUUID | None]:
    return [None if n % 7 == 3 else uuid for n, uuid in enumerate(uuids)]


MESSAGES = st.builds(
    Messages, uuid_histories(max_size=30).map(_some_plain), st.lists(st.integers(1, 6), min_size=1, max_size=11)
)


def check_scan(messages: Messages, cuts: list[Cut], framing: str, split: str, share: Callable[[Path], str]) -> None:
    """`share` takes a folder of fragments and gives the path of a store that has them."""
    appends = messages.appends()
    offsets = [0, *itertools.accumulate(len(b"".join(append)) for append in appends)]
    firsts = [0, *itertools.accumulate(map(len, appends))]
    with tempfile.TemporaryDirectory() as folder:
        had: set[int] = set()
        for of in cuts:
            begin, end = min(of.begin, len(appends)), min(of.end, len(appends))
            if begin < end:
                put(
                    Path(folder), JOURNAL, offsets[begin], [b"".join(append) for append in appends[begin:end]], of.codec
                )
                had.update(range(begin, end))
        given = {"path": share(Path(folder)), "framing": framing, "splitSize": split}
        # One that has no fragments is no journal of the store.
        given |= {"journal": JOURNAL} if had else {}
        if had and had != {*range(min(had), max(had) + 1)}:
            with pytest.raises(DataLossError):
                plan_tasks(options_of(**given))
        rows = rows_of(options_of(**given, failOnDataLoss="false"), RECORDS if framing == "json" else LINES)
    read = [n for at in sorted(had) for n in range(firsts[at], firsts[at + 1])]
    if framing == "json":
        assert sorted(row["n"] for row in rows) == messages.delivered(read)
        read = messages.delivered(read)
    lines = [line for append in appends for line in append]
    begins = [0, *itertools.accumulate(map(len, lines))]
    assert sorted(row["_offset"] for row in rows) == [begins[n] for n in read]
    if framing == "lines":
        assert sorted((row["_offset"], row["value"]) for row in rows) == [
            (begins[n], lines[n].decode().removesuffix("\n")) for n in read
        ]


BAGS = given(MESSAGES, CUTS, st.sampled_from(["lines", "json"]), st.sampled_from(["1k", "128m"]))


@settings(max_examples=60)
@BAGS
def test_a_folder_of_fragments_is_read_by_its_path(
    messages: Messages, cuts: list[Cut], framing: str, split: str
) -> None:
    check_scan(messages, cuts, framing, split, str)


@settings(max_examples=25)
@BAGS
def test_a_bucket_of_fragments_is_read_by_its_url(
    s3_endpoint: str, messages: Messages, cuts: list[Cut], framing: str, split: str
) -> None:
    def share(folder: Path) -> str:
        prefix = f"bag-{next(_NUMBERS)}"
        for path in folder.rglob("*"):
            if path.is_file():
                put_s3_object(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}/?endpoint={s3_endpoint}"

    check_scan(messages, cuts, framing, split, share)
