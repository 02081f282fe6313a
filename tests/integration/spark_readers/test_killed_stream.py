"""A driver that is killed in the midst of a batch, and another one that goes on from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from consumer.message.message_uuid import Flags, build
from tests.support.fragment_bag import put
from tests.support.planted_stop import wait_stopped
from tests.support.sink_source import uncounted
from tests.support.spark_driver import driver_process, read_stream

PRODUCER = b"\x01aaaaa"


def message(n: int, flags: Flags = Flags.OUTSIDE_TXN, producer: bytes = b"\x03bbbbb") -> bytes:
    return json.dumps({"UUID": str(build(producer, 1 + n, flags)), "n": n, "pad": "x" * 100}).encode() + b"\n"


def fill(store: Path) -> None:
    """Six fragments with ten rows each, and a transaction from the second to the third."""
    begin = 0
    for at in range(6):
        messages = [message(n) for n in range(10 * at, 10 * at + 10)]
        if at == 1:
            messages += [message(n, Flags.CONTINUE_TXN, PRODUCER) for n in (100, 101)]
        if at == 2:
            messages.append(message(102, Flags.ACK_TXN, PRODUCER))
        begin = put(store, "acme/orders", begin, messages)[0].end


def test_a_driver_that_is_killed_within_a_batch_and_started_again_has_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "store")
    options = {"path": str(tmp_path / "store"), "framing": "json", "maxFilesPerTrigger": "2", "splitSize": "1k"}
    stopping = options | {"stopNumber": "35", "stopFolder": str(tmp_path / "rows")}
    # Java and Python's workers are killed with it, none of which may write anything any more.
    with driver_process("read", str(tmp_path / "spark"), repr(stopping), str(tmp_path)) as driver:
        wait_stopped(driver, tmp_path / "stopped")
        commits = [path.name for path in (tmp_path / "checkpoint/commits").iterdir() if path.name.isdigit()]
    assert commits == ["0"]
    assert (tmp_path / "checkpoint/offsets/1").exists()
    # The batch has left a file that counts for nothing.
    assert uncounted(tmp_path / "rows")
    read_stream(spark, str(tmp_path), options)
    rows = spark.read.schema("n long").parquet(str(tmp_path / "rows")).collect()
    assert sorted(row["n"] for row in rows) == [*range(60), 100, 101]
