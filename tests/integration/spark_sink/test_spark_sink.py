"""Writing with a real Spark: tasks that fail, queries that are restarted, drivers that are killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from broker.client.blocking import BlockingClient
from consumer.message.message_uuid import Flags
from tests.support.planted_stop import POINTS, wait_stopped
from tests.support.read_committed import committed, messages
from tests.support.sink_source import FailingOnceSource
from tests.support.spark_driver import ROWS, driver_process, numbered, start_stream

Create = Callable[..., list[str]]
# Should a second attempt never come.
DRIVER_WAIT_S = 300
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def numbers(client: BlockingClient, *journals: str) -> list[int]:
    return sorted(document["n"] for journal in journals for document in committed(client, journal))


def producers(client: BlockingClient, *journals: str) -> set[bytes]:
    return {
        message.uuid.producer
        for journal in journals
        for message in messages(client, journal)
        if message.uuid.flags == Flags.CONTINUE_TXN
    }


def test_a_dataframe_is_written_by_key(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    first, second = create("part-0", "part-1")
    options = {"broker": broker, "journals": f"{first},{second}", "keyColumn": "key", "mapping": "rendezvous"}
    numbered(spark).write.format("gazette").mode("append").options(**options).save()
    assert numbers(client, first, second) == list(range(ROWS))
    assert committed(client, first)
    assert committed(client, second)


def test_text_made_by_spark_is_taken_as_it_is(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("orders")
    documents = numbered(spark, 5).selectExpr("to_json(struct(*)) as document", f"'{journal}' as journal")
    options = {"broker": broker, "journalColumn": "journal", "jsonColumn": "document", "uuidField": "_meta.uuid"}
    documents.write.format("gazette").mode("append").options(**options).save()
    found = committed(client, journal, "_meta.uuid")
    assert sorted((document["key"], document["n"]) for document in found) == [(f"k{n}", n) for n in range(5)]


def test_values_are_spelled_as_to_json_spells_them(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("types")
    rows = spark.sql(
        "select 1 as n, timestamp'2026-11-16 22:05:06Z' as at, timestamp_ntz'2026-11-16 22:05:06' as local, "
        "date'2026-11-16' as day, 1.5D as ratio, double('NaN') as nan, X'00ff' as raw, array(1, null) as list, "
        "map('a', 1.5D) as map, named_struct('x', 1L, 'none', null) as nested, cast(null as string) as none, true as ok"
    )
    expected = json.loads(rows.selectExpr("to_json(struct(*)) as text").collect()[0]["text"])
    rows = rows.withColumn("price", rows["n"].cast("decimal(20, 2)"))
    rows.write.format("gazette").mode("append").options(broker=broker, journal=journal).save()
    (document,) = committed(client, journal)
    del document["UUID"]
    assert document.pop("price") == "1.00"
    # It has no more digits of a second than three, and says so even if they are zeros.
    assert (expected.pop("at"), expected.pop("local")) == ("2026-11-16T22:05:06.000Z", "2026-11-16T22:05:06.000")
    assert (document.pop("at"), document.pop("local")) == ("2026-11-16T22:05:06Z", "2026-11-16T22:05:06")
    assert document == expected


def test_a_task_that_fails_is_tried_again_and_its_rows_count_once(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("orders")
    spark.dataSource.register(FailingOnceSource)
    # A batch has ten rows, enough for an append, so that some are there when a task fails.
    spark.conf.set(BATCH_ROWS, "10")
    try:
        rows = spark.range(0, 40, 1, 2).selectExpr("repeat('k', 150000) as key", "id as n")
        rows.write.format("gazette-failing-once").mode("append").options(broker=broker, journal=journal).save()
    finally:
        spark.conf.unset(BATCH_ROWS)
    assert numbers(client, journal) == list(range(40))
    assert len(producers(client, journal)) == 4


def test_of_two_attempts_that_speculation_runs_one_counts(
    broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    """Both append all of their rows, and only when both have are their results given to Spark, which takes one."""
    (journal,) = create("orders")
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    options = {"broker": broker, "journal": journal, "meeting": str(meeting)}
    with driver_process("speculating", str(tmp_path / "spark"), repr(options)) as driver:
        assert driver.wait(DRIVER_WAIT_S) == 0
    assert numbers(client, journal) == list(range(ROWS))
    appended = Counter(of.uuid.producer for of in messages(client, journal) if of.uuid.flags == Flags.CONTINUE_TXN)
    assert list(appended.values()) == [ROWS, ROWS]


def test_a_write_that_fails_for_good_leaves_nothing_to_see(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    (journal,) = create("orders")
    rows = spark.range(0, 20, 1, 2).selectExpr("id as n", "if(id = 15, raise_error('no'), 'k') as key")
    with pytest.raises(PySparkException):
        rows.write.format("gazette").mode("append").options(broker=broker, journal=journal).save()
    assert numbers(client, journal) == []


def test_a_version_that_was_written_is_not_written_again(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create
) -> None:
    journal, commits = create("orders", "commits")
    options = {"broker": broker, "journal": journal, "txnAppId": "daily", "commitJournal": commits}
    for version in ("1", "1", "2"):
        writing = numbered(spark, 10).write.format("gazette").mode("append").options(**options)
        writing.option("txnVersion", version).save()
    assert numbers(client, journal) == sorted([*range(10)] * 2)


def test_mistakes_come_back_with_the_next_step(spark: SparkSession, broker: str, create: Create) -> None:
    (journal,) = create("orders")
    writing = numbered(spark, 1).write.format("gazette").options(broker=broker, journal=journal)
    # What is said here is Spark's own; docs/spark-writing.md explains it.
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writing.save()
    with pytest.raises(AnalysisException, match=r'say \.mode\("append"\)'):
        writing.mode("overwrite").save()
    with pytest.raises(AnalysisException, match="framing: expected json, lines, csv, fixed or bytes"):
        writing.mode("append").option("framing", "xml").save()


def json_files(folder: Path, count: int) -> str:
    """Of ten rows each."""
    folder.mkdir()
    for number in range(count):
        rows = [{"key": f"k{n}", "n": n} for n in range(number * 10, number * 10 + 10)]
        (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    journal, commits = create("orders", "commits")
    options = {"broker": broker, "journal": journal, "commitJournal": commits}
    files, checkpoint = json_files(tmp_path / "files", 2), tmp_path / "checkpoint"
    start_stream(spark, files, str(checkpoint), options)
    assert numbers(client, journal) == list(range(20))
    # Spark died before it noted that the last batch was committed: it runs it again.
    (checkpoint / "commits/1").unlink()
    for note in checkpoint.glob("commits/.1.crc"):
        note.unlink()
    (tmp_path / "files/2.json").write_text('{"key":"k20","n":20}\n')
    start_stream(spark, files, str(checkpoint), options)
    assert numbers(client, journal) == list(range(21))


@pytest.mark.slow  # its short form is in test_commit_log.py
def test_a_new_checkpoint_under_an_old_name_is_refused(
    spark: SparkSession, broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    journal, commits = create("orders", "commits")
    options = {"broker": broker, "journal": journal, "commitJournal": commits, "txnAppId": "orders-stream"}
    files = json_files(tmp_path / "files", 1)
    start_stream(spark, files, str(tmp_path / "one"), options)
    with pytest.raises(PySparkException, match="a new checkpoint needs a new txnAppId"):
        start_stream(spark, files, str(tmp_path / "two"), options)
    assert numbers(client, journal) == list(range(10))


@pytest.mark.slow  # its short form, with a driver that has no Java to start, is in test_sink.py
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_within_its_commit_and_run_again_has_written_once(
    point: str, spark: SparkSession, broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    first, second, commits = create("part-0", "part-1", "commits")
    options = {"broker": broker, "journals": f"{first},{second}", "keyColumn": "key"}
    options |= {"txnAppId": "daily", "txnVersion": "1", "commitJournal": commits}
    marker = tmp_path / "stopped"
    stopping = options | {"stopPoint": point, "stopMarker": str(marker)}
    with driver_process("batch", str(tmp_path / "spark"), repr(stopping)) as driver:
        wait_stopped(driver, marker)
    assert [len(committed(client, journal)) > 0 for journal in (first, second)] == [point == "between-acks", False]
    numbered(spark).write.format("gazette").mode("append").options(**options).save()
    assert numbers(client, first, second) == list(range(ROWS))


@pytest.mark.slow  # its short form is the restart above
@pytest.mark.parametrize("point", POINTS)
def test_a_stream_that_is_killed_within_a_commit_goes_on_from_its_checkpoint(
    point: str, spark: SparkSession, broker: str, client: BlockingClient, create: Create, tmp_path: Path
) -> None:
    first, second, commits = create("part-0", "part-1", "commits")
    options = {"broker": broker, "journals": f"{first},{second}", "keyColumn": "key", "commitJournal": commits}
    marker, checkpoint = tmp_path / "stopped", str(tmp_path / "checkpoint")
    files = json_files(tmp_path / "files", 3)
    stopping = options | {"stopPoint": point, "stopMarker": str(marker), "stopBatch": "1"}
    with driver_process("stream", str(tmp_path / "spark"), repr(stopping), files, checkpoint) as driver:
        wait_stopped(driver, marker)
    start_stream(spark, files, checkpoint, options)
    assert numbers(client, first, second) == list(range(30))
