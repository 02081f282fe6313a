"""A streaming query over a store, called as Spark calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from consumer.message.message_uuid import Flags, build
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from spark_readers.journal_listing import JournalListing
from spark_readers.scan_plan import DataLossError
from spark_readers.stream_backlog import GAP_GRACE_S
from tests.support.fragment_bag import LINES, options_of, put
from tests.support.stream_query import StreamQuery

JOURNAL = "acme/orders"
NUMBERS = pa.schema([("n", pa.int64())])
PRODUCER = b"\x01aaaaa"


def grow(store: Path, journal: str, begin: int, *lines: bytes, codec: CompressionCodec = CompressionCodec.NONE) -> int:
    return put(store, journal, begin, [line + b"\n" for line in lines], codec)[0].end


def values(rows: list[dict[str, object]] | None) -> list[object]:
    assert rows is not None
    return [row["value"] for row in rows]


def message(n: int, clock: int, flags: Flags, producer: bytes = PRODUCER) -> bytes:
    return json.dumps({"UUID": str(build(producer, clock, flags)), "n": n}).encode()


def test_a_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 0, b"one", b"two")
    query = StreamQuery(LINES, path=tmp_path, journal=JOURNAL)
    assert query.offsets == {JOURNAL: 0}
    assert values(query.batch()) == ["one", "two"]
    assert query.batch() is None
    grow(tmp_path, JOURNAL, end, b"three")
    assert values(query.batch()) == ["three"]


def test_a_stream_begins_where_it_was_told_to(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 10, b"one", b"two")
    latest = StreamQuery(LINES, path=tmp_path, startingOffsets="latest")
    third = StreamQuery(LINES, path=tmp_path, startingOffsets=json.dumps({JOURNAL: 14}))
    assert latest.offsets == {JOURNAL: end}
    assert latest.batch() is None
    assert values(third.batch()) == ["two"]
    grow(tmp_path, JOURNAL, end, b"three")
    assert values(latest.batch()) == ["three"]
    for options in ({"endingOffsets": json.dumps({JOURNAL: 4})}, {"endingTimestamp": "2026-11-16T04:00:00Z"}):
        with pytest.raises(ValidationError, match="a stream has no end"):
            StreamQuery(LINES, path=tmp_path, **options)
    with pytest.raises(ValidationError, match="check its name"):
        StreamQuery(LINES, path=tmp_path, journal="acme/nobody")


def test_a_new_journal_is_read_from_its_first_offset_even_if_others_began_at_their_latest(tmp_path: Path) -> None:
    grow(tmp_path, JOURNAL, 0, b"one")
    query = StreamQuery(LINES, path=tmp_path, startingOffsets="latest")
    grow(tmp_path, "acme/new", 5000, b"two")
    end = query.look()
    # Should the first fragment be removed meanwhile, the batch is what it was.
    assert json.loads(end)["begins"] == {"acme/new": 5000}
    assert [row["_offset"] for row in query.rows(end)] == [5000]
    query.at = end
    grow(tmp_path, "acme/new", 5004, b"three")
    assert values(query.batch()) == ["three"]
    assert "begins" not in json.loads(query.at)


def test_a_transaction_is_delivered_with_its_acknowledgement_and_not_before(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 0, message(0, 1, Flags.OUTSIDE_TXN), message(1, 2, Flags.CONTINUE_TXN))
    query = StreamQuery(NUMBERS, path=tmp_path, framing="json")
    assert query.batch() == [{"n": 0}]
    end = grow(tmp_path, JOURNAL, end, message(2, 3, Flags.CONTINUE_TXN), message(2, 3, Flags.CONTINUE_TXN))
    assert query.batch() == []
    # The oldest message that is pending is in the offset.
    [[last_ack, max_clock, begin]] = json.loads(query.at)["producers"][JOURNAL].values()
    assert (last_ack, max_clock, begin) == (1, 3, len(message(0, 1, Flags.OUTSIDE_TXN)) + 1)
    # By a process that knows no more than that.
    query = StreamQuery(NUMBERS, query.at, path=tmp_path, framing="json")
    grow(tmp_path, JOURNAL, end, message(3, 4, Flags.ACK_TXN), message(4, 5, Flags.OUTSIDE_TXN))
    assert query.batch() == [{"n": 1}, {"n": 2}, {"n": 4}]
    assert query.batch() is None


def test_what_one_producer_committed_since_another_began_is_not_delivered_again(tmp_path: Path) -> None:
    """Both have a transaction open where the batch ends. It is read again from where the older of them began."""
    other = b"\x03bbbbb"
    first = [
        message(0, 100, Flags.CONTINUE_TXN),
        message(1, 9, Flags.CONTINUE_TXN, other),
        message(2, 10, Flags.ACK_TXN, other),
        message(3, 11, Flags.CONTINUE_TXN, other),
        message(4, 12, Flags.CONTINUE_TXN, other),
        message(5, 13, Flags.ACK_TXN, other),
        message(6, 21, Flags.CONTINUE_TXN, other),
    ]
    end = grow(tmp_path, JOURNAL, 0, *first)
    query = StreamQuery(NUMBERS, path=tmp_path, framing="json")
    assert query.batch() == [{"n": 1}, {"n": 3}, {"n": 4}]
    grow(tmp_path, JOURNAL, end, message(7, 101, Flags.ACK_TXN), message(8, 30, Flags.ACK_TXN, other))
    assert query.batch() == [{"n": 0}, {"n": 6}]


def test_a_batch_is_limited_and_has_a_part_of_every_journal(tmp_path: Path) -> None:
    line = b"x" * 1023
    for name, count in (("acme/a", 30), ("acme/b", 10)):
        for at in range(count):
            grow(tmp_path, name, at * 1024, line)
    query = StreamQuery(LINES, path=tmp_path, maxBytesPerTrigger="4k")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(4096)
    assert len(query.batch() or ()) == 4
    assert query.offsets == {"acme/a": 3 << 10, "acme/b": 1 << 10}
    assert [len(rows) for rows in query.batches()] == [4] * 9
    few = StreamQuery(LINES, path=tmp_path, maxFilesPerTrigger="7")
    assert [len(rows) for rows in few.batches()] == [7, 7, 7, 7, 7, 5]
    # Trigger.Once wants it all, whatever the options say.
    once = StreamQuery(LINES, path=tmp_path, maxFilesPerTrigger="7")
    assert [len(rows) for rows in once.batches(ReadAllAvailable())] == [40]


def test_a_long_fragment_is_cut_at_its_frames(tmp_path: Path) -> None:
    lines = [(b"%06d" % at) * 20 for at in range(60_000)]
    # Each append is large enough for frames of its own.
    appends = [b"".join(line + b"\n" for line in lines[at : at + 10_000]) for at in range(0, 60_000, 10_000)]
    of, _ = put(tmp_path, JOURNAL, 0, appends, CompressionCodec.ZSTANDARD)
    query = StreamQuery(LINES, path=tmp_path, maxBytesPerTrigger="1500k")
    found = []
    for rows in query.batches():
        assert sum(len(str(row["value"])) + 1 for row in rows) < 3 << 20
        found.append(values(rows))
    assert len(found) > 2
    assert [value for rows in found for value in rows] == [line.decode() for line in lines]
    assert query.offsets == {JOURNAL: of.end}


def test_available_now_ends_where_journals_ended_when_it_began(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 0, b"one")
    end = grow(tmp_path, JOURNAL, end, b"two")
    query = StreamQuery(LINES, path=tmp_path, maxFilesPerTrigger="1")
    query.reader.prepareForTriggerAvailableNow()
    grow(tmp_path, JOURNAL, end, b"later")
    # Another broker stored the last two as one.
    put(tmp_path, JOURNAL, 4, [b"two\n", b"later\n"])
    grow(tmp_path, "acme/new", 0, b"later")
    assert [values(rows) for rows in query.batches()] == [["one"], ["two"]]


def test_listings_are_as_rare_as_asked_for_and_rarer_where_they_take_long(tmp_path: Path) -> None:
    grow(tmp_path, JOURNAL, 0, b"one")
    now_s = 100.0
    took_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += took_s
        return now_s

    listing = JournalListing(options_of(path=tmp_path, listingIntervalMs=1000), clock)
    for _ in range(10):
        listing.refresh({})
    assert listing.count == 1
    now_s += 1.0
    took_s = 1.0
    listing.refresh({})
    assert listing.count == 2
    # It took two seconds, as this clock goes.
    took_s = 0.0
    now_s += 8.9
    listing.refresh({})
    assert listing.count == 2
    now_s += 0.2
    listing.refresh({})
    assert listing.count == 3


def test_an_idle_query_looks_at_its_last_listing(tmp_path: Path) -> None:
    grow(tmp_path, JOURNAL, 0, b"one")
    query = StreamQuery(LINES, path=tmp_path, listingIntervalMs=100_000_000)
    query.at = query.poll()
    for _ in range(1000):
        assert query.poll() == query.at
    assert query.reader.listing.count == 1
    assert query.reader.reportLatestOffset() == json.loads(query.at)


def test_an_idle_query_does_not_look_into_an_offset_that_it_knows(tmp_path: Path) -> None:
    class Unread(dict[str, object]):
        """It can be compared, and no more."""

        def __getitem__(self, name: str) -> object:
            raise AssertionError(name)

        get = __getitem__  # type: ignore[assignment]

    grow(tmp_path, JOURNAL, 0, message(0, 1, Flags.OUTSIDE_TXN))
    query = StreamQuery(NUMBERS, path=tmp_path, framing="json", listingIntervalMs=100_000_000)
    query.at = query.poll()
    assert query.poll() == query.at
    assert "closed" in json.loads(query.at)
    unread = Unread(json.loads(query.at))
    assert query.reader.latestOffset(unread, ReadAllAvailable()) is unread


def test_a_gap_is_waited_for_and_then_fails_or_is_told(tmp_path: Path) -> None:
    grow(tmp_path, JOURNAL, 0, b"one")
    query = StreamQuery(LINES, path=tmp_path)
    assert query.batch()
    young = int(tmp_path.stat().st_mtime)
    _, path = put(tmp_path, JOURNAL, 8, [b"three\n"], mod_time=young)
    # It was stored just now, so what is before it may be on its way.
    assert query.batch() is None
    put(tmp_path, JOURNAL, 8, [b"three\n"], mod_time=young - GAP_GRACE_S - 60)
    with pytest.raises(DataLossError, match=r"no fragment has \[4, 8\)"):
        query.batch()
    lossy = StreamQuery(LINES, query.at, path=tmp_path, failOnDataLoss="false")
    assert values(lossy.batch()) == ["three"]
    assert path.exists()
    grow(tmp_path, JOURNAL, 4, b"two")
    assert values(query.batch()) == ["two", "three"]


def test_a_journal_that_was_made_anew_fails_or_is_read_as_a_new_one(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 0, b"one", b"two")
    query = StreamQuery(LINES, path=tmp_path, listingIntervalMs=1)
    assert query.batch()
    for path in tmp_path.rglob("0*"):
        path.unlink()
    # Retention may have removed what was read.
    assert query.batch() is None
    grow(tmp_path, JOURNAL, 0, b"1")
    with pytest.raises(DataLossError, match=f"ends at 2, and was read up to {end}"):
        query.batch()
    lossy = StreamQuery(LINES, query.at, path=tmp_path, listingIntervalMs=1, failOnDataLoss="false")
    assert values(lossy.batch()) == ["1"]
    assert lossy.offsets == {JOURNAL: 2}


def test_a_corrupt_fragment_fails_by_name_or_is_passed_over(tmp_path: Path) -> None:
    end = grow(tmp_path, JOURNAL, 0, message(0, 1, Flags.CONTINUE_TXN))
    of, path = put(tmp_path, JOURNAL, end, [message(1, 2, Flags.CONTINUE_TXN) + b"\n"], CompressionCodec.SNAPPY)
    path.write_bytes(path.read_bytes()[:-3])
    grow(tmp_path, JOURNAL, of.end, message(2, 3, Flags.ACK_TXN), message(3, 4, Flags.OUTSIDE_TXN))
    with pytest.raises(Exception, match=path.name):
        StreamQuery(NUMBERS, path=tmp_path, framing="json").batch()
    lossy = StreamQuery(NUMBERS, path=tmp_path, framing="json", failOnDataLoss="false")
    assert lossy.batch() == [{"n": 0}, {"n": 3}]


def test_what_is_narrowed_down_is_passed_by(tmp_path: Path) -> None:
    of, _ = put(tmp_path, JOURNAL, 0, [b"one\n"], postfix="date=2026-11-15")
    of, _ = put(tmp_path, JOURNAL, of.end, [b"two\n"], postfix="date=2026-11-16")
    put(tmp_path, JOURNAL, of.end, [b"three\n"], postfix="date=2026-11-17")
    query = StreamQuery(LINES, path=tmp_path, where=json.dumps({"date": "2026-11-16"}))
    assert values(query.batch()) == ["two"]
    assert query.batch() is None


def test_a_message_that_was_cut_off_follows_the_mode(tmp_path: Path) -> None:
    put(tmp_path, JOURNAL, 0, [message(0, 1, Flags.OUTSIDE_TXN) + b"\n", b'{"n":'])
    with pytest.raises(Exception, match="no newline"):
        StreamQuery(NUMBERS, path=tmp_path, framing="json").batch()
    assert StreamQuery(NUMBERS, path=tmp_path, framing="json", mode="DROPMALFORMED").batch() == [{"n": 0}]
