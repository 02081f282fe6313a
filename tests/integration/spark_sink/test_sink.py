"""The writer as Spark calls it, but without Spark: attempts, reruns and drivers that die, at brokers that are real."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from broker.client.blocking import BlockingClient
from consumer.message.message_uuid import Flags
from consumer.message.sequencer import Outcome
from protocol.errors import RefusedError, ValidationError
from spark_readers.row_framing import PIECE_BYTES
from spark_readers.sink import JournalWriter, TaskWrites, stream_writer, writer
from tests.support.planted_stop import POINTS, wait_stopped
from tests.support.read_committed import committed, messages, sequenced

SCHEMA = StructType([StructField("key", StringType()), StructField("n", LongType())])

Create = Callable[..., list[str]]


def batches(numbers: range) -> Iterator[pa.RecordBatch]:
    """Two of them, so that there is a time between."""
    for half in (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]):
        yield pa.RecordBatch.from_pylist(
            [{"key": f"k{n}", "n": n} for n in half], pa.schema([("key", pa.string()), ("n", pa.int64())])
        )


def failing(numbers: range) -> Iterator[pa.RecordBatch]:
    """Enough for an append comes before it fails."""
    yield pa.RecordBatch.from_pylist([{"key": "k" * PIECE_BYTES, "n": n} for n in numbers])
    raise OSError("an executor's disk is gone")


def numbers(client: BlockingClient, *journals: str) -> list[int]:
    return sorted(document["n"] for journal in journals for document in committed(client, journal))


def one(broker: str, journal: str, **options: str) -> JournalWriter:
    return writer(SCHEMA, False, {"broker": broker, "journal": journal, **options})


def sent(made: Any) -> Any:
    """As it arrives in the process that uses it."""
    return pickle.loads(pickle.dumps(made))


def test_rows_count_when_the_driver_has_committed(broker: str, client: BlockingClient, create: Create) -> None:
    (journal,) = create("orders")
    made = one(broker, journal)
    results = [sent(made).write(batches(range(at, at + 10))) for at in (0, 10)]
    assert numbers(client, journal) == []
    sent(made).commit([sent(result) for result in results])
    assert numbers(client, journal) == list(range(20))
    assert [result.journals[journal].rows for result in results] == [10, 10]
    assert results[0].producer != results[1].producer


def test_keys_are_mapped_to_the_journals_of_a_selector(broker: str, client: BlockingClient, create: Create) -> None:
    journals = create("part-000", "part-001", "part-002")
    prefix = journals[0].removesuffix("000")
    made = writer(SCHEMA, False, {"broker": broker, "selector": f"name:prefix={prefix}", "keyColumn": "key"})
    made.commit([made.write(batches(range(50)))])
    assert all(committed(client, journal) for journal in journals)
    assert numbers(client, *journals) == list(range(50))


def test_an_attempt_that_fails_is_rolled_back_and_the_next_one_counts(
    broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("orders")
    made = one(broker, journal)
    with pytest.raises(OSError, match="disk is gone"):
        made.write(failing(range(2)))
    made.commit([made.write(batches(range(10)))])
    documents, outcomes = sequenced(messages(client, journal))
    assert sorted(document["n"] for document in documents) == list(range(10))
    assert outcomes[Outcome.ACK_ROLLBACK] == 1
    assert sum(outcomes.values()) == 2 + 1 + 10 + 1


def test_of_two_attempts_at_one_task_one_counts(broker: str, client: BlockingClient, create: Create) -> None:
    """As speculation has it: both run to their end, and Spark takes the result of one."""
    (journal,) = create("orders")
    made = one(broker, journal)
    made.write(batches(range(10)))
    winner = made.write(batches(range(9, -1, -1)))
    made.commit([winner])
    assert len(messages(client, journal)) == 21
    assert numbers(client, journal) == list(range(10))


def test_what_may_have_been_appended_is_appended_again_and_dropped_as_a_duplicate(
    broker: str, client: BlockingClient, create: Create
) -> None:
    """An append of unknown outcome was done, and is repeated: also late, when others have come after it."""
    (journal,) = create("orders")
    made = one(broker, journal)
    result = made.write(batches(range(10)))
    end = client.append(journal).end
    with client.read(journal, 0, end=end) as reader:
        content = reader.read()
    client.append(journal, content)
    made.commit([result])
    client.append(journal, content)
    documents, outcomes = sequenced(messages(client, journal))
    assert [document["n"] for document in documents] == list(range(10))
    assert (outcomes[Outcome.CONTINUE_DUPLICATE], outcomes[Outcome.CONTINUE_ACKED]) == (10, 10)


def test_a_rerun_repeats_what_was_stored_and_drops_its_own(broker: str, client: BlockingClient, create: Create) -> None:
    journal, commits = create("orders", "commits")
    options = {"txnAppId": "daily", "commitJournal": commits}
    for version, counted in ((1, 20), (1, 20), (2, 30), (1, 30), (2, 30)):
        made = one(broker, journal, txnVersion=str(version), **options)
        made.commit([made.write(batches(range(version * 10, version * 10 + 10)))])
        assert numbers(client, journal) == list(range(10, counted))
    _, outcomes = sequenced(messages(client, journal))
    # Those of the three reruns, so that readers do not wait for them.
    assert outcomes[Outcome.ACK_ROLLBACK] == 3


def test_an_abort_rolls_back_unless_a_commit_may_have_begun(
    broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("orders")
    made = one(broker, journal)
    result = made.write(batches(range(10)))
    made.abort([result])
    assert [message.uuid.flags for message in messages(client, journal)] == [Flags.CONTINUE_TXN] * 10
    made.abort([result, None])
    assert sequenced(messages(client, journal))[1][Outcome.ACK_ROLLBACK] == 1
    assert numbers(client, journal) == []


def test_without_uuids_rows_are_there_at_once_and_a_second_attempt_writes_them_twice(
    broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("lines")
    made = writer(
        StructType([StructField("value", StringType())]),
        False,
        {"broker": broker, "journal": journal, "framing": "lines"},
    )
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
    made.write(iter([batch]))
    made.commit([made.write(iter([batch]))])
    with client.read_lines(journal, block=False) as lines:
        assert list(lines) == [b"a", b"b", b"a", b"b"]


def test_a_journal_that_is_not_there_fails_the_task_with_its_name(broker: str, create: Create) -> None:
    made = one(broker, "sink/no-such-journal")
    with pytest.raises(RefusedError, match="JOURNAL_NOT_FOUND"):
        made.write(batches(range(10)))


def test_mistakes_are_found_before_anything_is_written(broker: str, create: Create) -> None:
    (journal,) = create("orders")
    options = {"broker": broker, "journal": journal}
    with pytest.raises(ValidationError, match=r'mode: .*mode\("append"\)'):
        writer(SCHEMA, True, options)
    with pytest.raises(ValidationError, match="outputMode"):
        stream_writer(SCHEMA, True, options)
    with pytest.raises(ValidationError, match="selector: no journal matches"):
        writer(SCHEMA, False, {"broker": broker, "selector": "name=sink/nope", "keyColumn": "key"})
    prefix = journal.removesuffix("orders")
    transaction = {"txnAppId": "daily", "txnVersion": "1", "commitJournal": journal}
    with pytest.raises(ValidationError, match="a journal of its own"):
        writer(
            SCHEMA, False, {"broker": broker, "selector": f"name:prefix={prefix}", "keyColumn": "key", **transaction}
        )


def _options(broker: str, first: str, second: str, commits: str) -> dict[str, str]:
    mapped = {"broker": broker, "journals": f"{first},{second}", "keyColumn": "key"}
    return mapped | {"txnAppId": "daily", "commitJournal": commits}


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_between_its_steps_and_is_run_again_has_written_once(
    point: str, broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    first, second, commits = create("part-0", "part-1", "commits")
    options = _options(broker, first, second, commits) | {"txnVersion": "1"}
    marker = tmp_path / "stopped"
    command = [sys.executable, "-m", "tests.support.planted_stop", point, str(marker), repr(options)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as driver:
        wait_stopped(driver, marker)
        driver.send_signal(signal.SIGKILL)
    visible = [len(committed(client, journal)) for journal in (first, second)]
    assert [count > 0 for count in visible] == [point == "between-acks", False]

    made = writer(SCHEMA, False, options)
    made.commit([made.write(batches(range(20))), made.write(batches(range(20, 40)))])
    assert numbers(client, first, second) == list(range(40))


def test_the_next_version_finishes_what_a_dead_driver_left(
    broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    first, second, commits = create("part-0", "part-1", "commits")
    options = _options(broker, first, second, commits)
    marker = tmp_path / "stopped"
    died = {**options, "txnVersion": "1"}
    command = [sys.executable, "-m", "tests.support.planted_stop", "between-acks", str(marker), repr(died)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as driver:
        wait_stopped(driver, marker)
        driver.send_signal(signal.SIGKILL)
    made = writer(SCHEMA, False, {**options, "txnVersion": "2"})
    made.commit([made.write(batches(range(40, 50)))])
    assert numbers(client, first, second) == list(range(50))


def test_a_result_says_what_was_written(broker: str, create: Create) -> None:
    (journal,) = create("orders")
    result = one(broker, journal).write(batches(range(10)))
    assert isinstance(result, TaskWrites)
    writes = result.journals[journal]
    assert writes.rows == 10
    assert writes.bytes > 10 * 40
    assert writes.first_clock < writes.last_clock
