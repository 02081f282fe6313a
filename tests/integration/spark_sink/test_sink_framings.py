"""CSV and protobuf count once as JSON does: written as Spark would, and read back read-committed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from broker.client.blocking import BlockingClient
from protocol.errors import ValidationError
from spark_readers.row_framing import PIECE_BYTES
from spark_readers.sink import JournalWriter, writer
from tests.support.broker_cluster import BrokerCluster
from tests.support.fragment_bag import options_of, rows_of
from tests.support.order_messages import MESSAGE, descriptor_file, order_class
from tests.support.planted_stop import wait_stopped

Create = Callable[..., list[str]]


class Csv:
    """The UUID is the first field, in a table of what was written the first column."""

    schema = StructType([StructField("key", StringType()), StructField("n", LongType())])

    def __init__(self, _: Path) -> None:
        self.options = {"framing": "csv"}
        self.read_options: dict[str, str] = {}
        self.columns = pa.schema([("uuid", pa.string()), ("key", pa.string()), ("n", pa.int64())])

    def batch(self, rows: Sequence[tuple[str, int]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"key": key, "n": n} for key, n in rows])


class Protobuf:
    field = "uuid"
    schema = StructType([StructField("value", BinaryType())])

    def __init__(self, folder: Path) -> None:
        self._kind = order_class(folder)
        proto = {"descriptorFile": str(descriptor_file(folder)), "messageName": MESSAGE, "uuidField": self.field}
        self.options = {"framing": "fixed", **proto}
        self.read_options = dict(proto)
        self.columns = pa.schema([("key", pa.string()), ("n", pa.int64())])

    def batch(self, rows: Sequence[tuple[str, int]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"value": self._kind(key=key, n=n).SerializeToString()} for key, n in rows])


class NestedText(Protobuf):
    """Its UUIDs are texts within another message."""

    field = "meta.uuid"


Kind = Csv | Protobuf


@pytest.fixture(params=[Csv, Protobuf, NestedText])
def kind(request: pytest.FixtureRequest, cluster: BrokerCluster, tmp_path: Path) -> Kind:
    made: Kind = request.param(tmp_path)
    # What is in the store by then is read from there.
    made.read_options["fileRoot"] = str(cluster.fragments)
    return made


def batches(kind: Kind, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    half = len(numbers) // 2
    for part in (numbers[:half], numbers[half:]):
        yield kind.batch([(f"k{n}", n) for n in part])


def failing(kind: Kind) -> Iterator[pa.RecordBatch]:
    """Enough for an append comes before it fails."""
    yield kind.batch([("x" * PIECE_BYTES, n) for n in range(2)])
    raise OSError("an executor's disk is gone")


def made(kind: Kind, broker: str, journal: str, **options: str) -> JournalWriter:
    return writer(kind.schema, False, {"broker": broker, "journal": journal, **kind.options, **options})


def read(kind: Kind, broker: str, journal: str, **options: str) -> list[dict[str, Any]]:
    given = {"broker": broker, "journal": journal, "framing": kind.options["framing"], **kind.read_options, **options}
    return rows_of(options_of(**given), kind.columns)


def numbers(kind: Kind, broker: str, journal: str) -> list[int]:
    """In the order of reading, which is that of writing."""
    rows = read(kind, broker, journal)
    assert all(row["key"] == f"k{row['n']}" for row in rows)
    return [row["n"] for row in rows]


def test_rows_count_when_the_driver_has_committed(kind: Kind, broker: str, create: Create) -> None:
    (journal,) = create("orders")
    sink = made(kind, broker, journal)
    result = sink.write(batches(kind, range(10)))
    assert numbers(kind, broker, journal) == []
    sink.commit([result])
    assert numbers(kind, broker, journal) == [*range(10)]
    # The acknowledgement is a record like others to those who do not look.
    assert len(read(kind, broker, journal, isolation="read_uncommitted", mode="FAILFAST")) == 11


def test_of_several_attempts_one_counts(kind: Kind, broker: str, create: Create) -> None:
    (journal,) = create("orders")
    sink = made(kind, broker, journal)
    with pytest.raises(OSError, match="disk is gone"):
        sink.write(failing(kind))
    sink.write(batches(kind, range(9, -1, -1)))
    sink.commit([sink.write(batches(kind, range(10)))])
    assert numbers(kind, broker, journal) == [*range(10)]
    # Two rows and what rolls them back, ten of no fate, ten and their acknowledgement.
    assert len(read(kind, broker, journal, isolation="read_uncommitted")) == 3 + 10 + 11


def test_what_was_appended_twice_counts_once(kind: Kind, broker: str, client: BlockingClient, create: Create) -> None:
    (journal,) = create("orders")
    sink = made(kind, broker, journal)
    result = sink.write(batches(kind, range(10)))
    with client.read(journal, 0, end=client.append(journal).end) as reader:
        content = reader.read()
    client.append(journal, content)
    sink.commit([result])
    client.append(journal, content)
    assert numbers(kind, broker, journal) == [*range(10)]


def test_a_driver_that_dies_and_is_run_again_has_written_once(
    kind: Kind, broker: str, create: Create, tmp_path: Path
) -> None:
    """It has stored its acknowledgements, and sent none."""
    journal, commits = create("orders", "commits")
    options = {"txnAppId": "daily", "commitJournal": commits}
    died = {"broker": broker, "journal": journal, **kind.options, **options, "txnVersion": "0"}
    marker = tmp_path / "stopped"
    command = [sys.executable, "-m", "tests.support.planted_stop", "after-intents", str(marker), repr(died)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as driver:
        wait_stopped(driver, marker)
        driver.send_signal(signal.SIGKILL)
    assert numbers(kind, broker, journal) == []
    for version, end in ((0, 40), (0, 40), (1, 80), (1, 80)):
        sink = made(kind, broker, journal, txnVersion=str(version), **options)
        sink.commit([sink.write(batches(kind, range(version * 40, version * 40 + 40)))])
        assert numbers(kind, broker, journal) == [*range(end)]


def test_mistakes_in_a_descriptor_are_found_before_anything_is_written(
    broker: str, create: Create, tmp_path: Path
) -> None:
    (journal,) = create("orders")
    kind = Protobuf(tmp_path)
    with pytest.raises(ValidationError, match=r"messageName: .*it has test\.Meta, test\.Order"):
        made(kind, broker, journal, messageName="test.Nothing")
    with pytest.raises(ValidationError, match="uuidField: UUID is no single field"):
        made(kind, broker, journal, uuidField="")
    with pytest.raises(ValidationError, match="descriptorFile: expected a file of protoc"):
        made(kind, broker, journal, descriptorFile=str(tmp_path / "nowhere.pb"))
