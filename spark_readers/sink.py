"""Writing DataFrames to journals, as Spark calls it: tasks on executors, then a commit or an abort on the driver.

Where messages have UUIDs, rows count once for read-committed readers. Each attempt at a task is a producer of its own
that nobody has seen before, and acknowledges nothing. The driver acknowledges those attempts whose results Spark took.
So whatever else was appended, by attempts that failed, lost a race or belong to a run that died, stays invisible.

A producer derived from what stays the same when a task is run again would not do: its rows may come in another order,
and would be taken for duplicates of other rows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker.client.blocking import BlockingAppends, BlockingClient
from broker.client.retry import AtLeastOnce
from consumer.message.message_uuid import producer_id, ticked
from protocol.errors import GazetteError, InvariantError, PreconditionError, ValidationError
from spark_readers.broker_connection import advised, client_settings
from spark_readers.commit_log import CommitLog
from spark_readers.commit_record import BATCH_QUERY, CommitRecord
from spark_readers.proto_columns import message_class
from spark_readers.proto_stamp import ProtoStamp
from spark_readers.row_framing import JournalWrites, RowFraming, acknowledgement
from spark_readers.sink_options import SinkOptions, Transaction, check_apart

PENDING_BYTES_MAX = 32 << 20
"""Of a task's appends that are not done: the next batch waits."""

_PRODUCER_BYTES = 6
_QUERY_PROPERTY = "sql.streaming.queryId"
# What may have been appended is appended again: with UUIDs it is dropped as a duplicate, and without them rows are
# written at least once anyway.
_RETRY = AtLeastOnce()
_log = logging.getLogger(__name__)


def writer(schema: StructType, overwrite: bool, options: Mapping[str, str]) -> JournalWriter:
    """For ``DataSource.writer``. Which journals a selector means is found out here, once for all tasks."""
    if overwrite:
        raise ValidationError('a journal can only be appended to: say .mode("append")', "mode")
    judged = SinkOptions.of(options, _columns(schema))
    return JournalWriter(judged, _journals(judged))


def stream_writer(schema: StructType, overwrite: bool, options: Mapping[str, str]) -> JournalStreamWriter:
    """For ``DataSource.streamWriter``. Spark asks for each micro-batch, so new journals are found by the next."""
    if overwrite:
        raise ValidationError('a journal can only be appended to: say .outputMode("append")', "outputMode")
    judged = SinkOptions.of(options, _columns(schema), streaming=True)
    return JournalStreamWriter(judged, _journals(judged))


@dataclass(frozen=True)
class TaskWrites(WriterCommitMessage):
    """What one attempt at a task has appended, none of which counts yet if it has UUIDs."""

    producer: bytes
    journals: dict[str, JournalWrites]
    # The id of the streaming query; empty if it is none.
    query: str


class JournalWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, journals: Sequence[str]) -> None:
        self._options = options
        self._journals = journals

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrites:
        return write_task(self._options, self._journals, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        transaction = self._options.transaction
        commit_writes(self._options, _task_writes(messages), None if transaction is None else transaction.version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_writes(self._options, messages)


class JournalStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, journals: Sequence[str]) -> None:
        self._options = options
        self._journals = journals

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWrites:
        return write_task(self._options, self._journals, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_writes(self._options, _task_writes(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_writes(self._options, messages)


def write_task(options: SinkOptions, journals: Sequence[str], batches: Iterator[pa.RecordBatch]) -> TaskWrites:
    producer = producer_id(os.urandom(_PRODUCER_BYTES))
    framing = RowFraming(options, journals, producer, _stamp(options))
    with _client(options) as client:
        appends = client.append_service(retry=_RETRY, pending_bytes_max=PENDING_BYTES_MAX)
        begun: set[str] = set()
        try:
            for journal, messages in _framed(framing, batches):
                begun.add(journal)
                appends.append(journal, messages)
            appends.flush()
        except Exception:
            # Nobody has heard of this producer, so nobody is going to acknowledge it.
            written = {journal: framing.writes[journal] for journal in begun}
            _roll_back(options, appends, [TaskWrites(producer, written, "")])
            raise
    return TaskWrites(producer, framing.writes, _streaming_query())


@contextlib.contextmanager
def _client(options: SinkOptions) -> Iterator[BlockingClient]:
    """With the keys or the token that this machine has now."""
    with advised(options.broker), BlockingClient(settings=client_settings(options.broker, os.environ)) as client:
        yield client


def _framed(framing: RowFraming, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, bytes]]:
    for batch in batches:
        yield from framing.feed(batch, time.time_ns())
    yield from framing.end()


def commit_writes(options: SinkOptions, writes: Sequence[TaskWrites], version: int | None) -> None:
    if not options.has_uuids:
        return
    acks = _acks(options, writes)
    with _client(options) as client:

        def send(acks: Mapping[str, bytes]) -> None:
            appends = client.append_service(retry=_RETRY)
            for journal, messages in acks.items():
                appends.append(journal, messages)
            appends.flush()

        transaction = options.transaction
        if transaction is None:
            send(acks)
            return
        record = _record(transaction, writes, version, acks)
        if record is None:
            return
        if not CommitLog(client, transaction.commit_journal, send).commit(record):
            _log.warning("version %s of %s was committed before: these rows are dropped", version, record.app)
            _roll_back(options, client.append_service(retry=_RETRY), writes)


def abort_writes(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Nothing was acknowledged. Where that is certain to stay so, readers are told not to wait for it.

    Spark comes here when a task has failed, and then there is none of its messages; but also when a commit has, and
    then acknowledgements may be stored, and are going to be appended.
    """
    if options.has_uuids and None in messages:
        # Nothing is wrong if it fails, and why the write has failed is what people should see.
        with contextlib.suppress(GazetteError), _client(options) as client:
            done = [message for message in messages if isinstance(message, TaskWrites)]
            _roll_back(options, client.append_service(retry=_RETRY), done)


def _roll_back(options: SinkOptions, appends: BlockingAppends, writes: Sequence[TaskWrites]) -> None:
    """Spares readers the wait for an acknowledgement. Nothing is wrong if it fails."""
    if not options.has_uuids:
        return
    stamp = _stamp(options)
    for of in writes:
        for journal, written in of.journals.items():
            with contextlib.suppress(GazetteError):
                appends.append(journal, acknowledgement(options, of.producer, written.first_clock - 1, stamp))
    with contextlib.suppress(GazetteError):
        appends.flush()


def _acks(options: SinkOptions, writes: Sequence[TaskWrites]) -> dict[str, bytes]:
    """All of a journal go in one append, so that what was written to it is there at once."""
    stamp = _stamp(options)
    acks: dict[str, list[bytes]] = {}
    for of in writes:
        for journal, written in of.journals.items():
            ack = acknowledgement(options, of.producer, ticked(written.last_clock), stamp)
            acks.setdefault(journal, []).append(ack)
    return {journal: b"".join(messages) for journal, messages in sorted(acks.items())}


def _record(
    transaction: Transaction, writes: Sequence[TaskWrites], version: int | None, acks: Mapping[str, bytes]
) -> CommitRecord | None:
    """None if there is nothing to commit, and no name to look under."""
    if version is None:
        raise InvariantError("a write with a commit journal has no version")
    if transaction.version is not None:
        return CommitRecord(transaction.app or "", version, BATCH_QUERY, acks)
    query = next((of.query for of in writes if of.query), "")
    if query:
        return CommitRecord(transaction.app or query, version, query, acks)
    if acks:
        raise PreconditionError(
            f"this Spark does not tell tasks the id of their query ({_QUERY_PROPERTY}): write by foreachBatch, "
            "with the id of the batch as txnVersion"
        )
    return None


def _task_writes(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWrites]:
    writes = [message for message in messages if isinstance(message, TaskWrites)]
    if len(writes) != len(messages):
        raise InvariantError("Spark commits a write without the result of one of its tasks")
    return writes


def _streaming_query() -> str:
    context = TaskContext.get()
    return (context and context.getLocalProperty(_QUERY_PROPERTY)) or ""


def _columns(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.typeName() for field in schema.fields}


def _stamp(options: SinkOptions) -> ProtoStamp | None:
    """Of messages that a descriptor set tells of."""
    if not options.descriptor_file:
        return None
    return ProtoStamp(message_class(options.descriptor_file, options.message_name), options.uuid_path)


def _journals(options: SinkOptions) -> tuple[str, ...]:
    # What is wrong with a descriptor set, its message or the field in it shows here, before anything is written.
    _stamp(options)
    # A driver without its token would find out when all rows are written and it is to acknowledge them.
    client_settings(options.broker, os.environ)
    if not options.selector:
        return options.journals
    with _client(options) as client:
        journals = tuple(client.list(options.selector).names)
    if not journals:
        raise ValidationError(f"no journal matches {options.selector!r}: create some first", "selector")
    if options.transaction is not None:
        check_apart(options.transaction.commit_journal, journals)
    return journals
