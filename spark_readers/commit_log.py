"""CommitLog: the journal by which a write counts once, however often its driver dies.

The acknowledgements of a write are stored before any of them is appended, under the application's name and the write's
version. From then on the write is going to count: a driver that finds it appends what is stored, and drops its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from broker.client.blocking import BlockingClient
from broker.client.outcome import UnknownOutcomeError
from broker.client.retrying_read import Jump
from consumer.message.frame import Frame
from consumer.message.line_framing import LineDecoder
from protocol.errors import CorruptError, GazetteError, PreconditionError, RefusedError, Status, UnavailableError
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from spark_readers.commit_record import (
    NEVER_SET,
    RECORD_BYTES_MAX,
    REPAIR_LINE,
    RESTORED,
    CommitRecord,
    Replayed,
    Standing,
    done_line,
    parse,
    registers_of,
    unchanged,
)

SendAcks = Callable[[Mapping[str, bytes]], None]

_ATTEMPTS_MAX = 10
_log = logging.getLogger(__name__)


class CommitLog:
    def __init__(self, client: BlockingClient, journal: str, send: SendAcks) -> None:
        """`send` appends acknowledgements, and returns when all are there."""
        self._client = client
        self._journal = journal
        self._send = send

    def commit(self, record: CommitRecord) -> bool:
        """Returns once the version counts. Whether it does by this record: if not, another run's was stored before."""
        for _ in range(_ATTEMPTS_MAX):
            head, registers = self._head()
            if head and not registers:
                self._restore(head)
                continue
            standing = Standing.of(registers, record.app)
            if standing is not None:
                _check_same_query(record, standing)
                stored = self._find(record.app, standing, head)
                if not standing.is_done:
                    if stored is None:
                        self._take_back(record.app, standing, head)
                        continue
                    self._finish(stored, standing)
                if standing.version >= record.version:
                    return stored is not None and stored.acks == record.acks
                if not standing.is_done:
                    continue
            if not record.acks or self._store(record, standing, head):
                return True
        raise UnavailableError(
            f"version {record.version} of {record.app} could not be stored in {self._journal}, as others write there "
            "under the same txnAppId all the time: stop them, or use another txnAppId"
        )

    def _store(self, record: CommitRecord, standing: Standing | None, head: int) -> bool:
        """Whether it is stored and all is done; if not, one has to look again at how things are."""
        opened = Standing(record.version, head, record.query, is_done=False)
        if not self._append(record.encode(), unchanged(record.app, standing), registers_of({record.app: opened})):
            return False
        self._finish(record, opened)
        return True

    def _finish(self, record: CommitRecord, opened: Standing) -> None:
        self._send(record.acks)
        try:
            self._append(done_line(record), unchanged(record.app, opened), registers_of({record.app: opened.done()}))
        except GazetteError as error:
            # Then whoever is next sends them once more, which changes nothing.
            _log.warning("version %d of %s is not marked as done: %s", record.version, record.app, error)

    def _restore(self, head: int) -> None:
        """Registers went with all brokers of the journal. Those that follow from its records are set again."""
        standings = self._replayed(head).standings
        self._append(REPAIR_LINE, NEVER_SET, registers_of(standings).union(RESTORED))

    def _take_back(self, app: str, standing: Standing, head: int) -> None:
        """A register has moved, but the record that it came with is not there: so nobody has acted on it."""
        last = self._replayed(head).standings.get(app)
        if last is None:
            self._append(REPAIR_LINE, unchanged(app, standing), RESTORED, registers_of({app: standing}))
        else:
            self._append(REPAIR_LINE, unchanged(app, standing), registers_of({app: last}))

    def _append(self, line: bytes, check: LabelSelector, union: LabelSet, subtract: LabelSet = LabelSet()) -> bool:
        """Whether it was surely done, and not in vain."""
        try:
            self._client.append(
                self._journal, line, check_registers=check, union_registers=union, subtract_registers=subtract
            )
        except RefusedError as error:
            if error.status is Status.REGISTER_MISMATCH:
                return False
            raise
        except UnknownOutcomeError as error:
            _log.warning("whether something was stored in %s is not known yet: %s", self._journal, error)
            return False
        return True

    def _head(self) -> tuple[int, LabelSet]:
        """Where the journal ends, with all appends before this one done, and its registers."""
        barrier = self._client.append(self._journal)
        return barrier.end, barrier.registers

    def _find(self, app: str, standing: Standing, head: int) -> CommitRecord | None:
        """The record that a register speaks of."""
        jumps: list[Jump] = []
        for _, line in self._lines(standing.offset, head, jumps):
            record = parse(line)
            if record is not None and (record.app, record.version) == (app, standing.version):
                return record
        if jumps and not standing.is_done:
            raise CorruptError(
                f"version {standing.version} of {app} was not finished, and its record is gone from {self._journal}: "
                "give that journal a longer retention. Use a new txnAppId once you have looked at what was written"
            )
        return None

    def _replayed(self, head: int) -> Replayed:
        replayed = Replayed()
        for offset, line in self._lines(0, head, []):
            replayed.feed(offset, line)
        return replayed

    def _lines(self, begin: int, end: int, jumps: list[Jump]) -> Iterator[tuple[int, bytes]]:
        """Lines with the offsets at which they begin."""
        if begin >= end:
            return
        lines, at = LineDecoder(begin, RECORD_BYTES_MAX), begin
        with self._client.read(self._journal, begin, end=end, on_jump=jumps.append) as reader:
            for piece in reader:
                if reader.offset - len(piece) != at:
                    lines = LineDecoder(reader.offset - len(piece), RECORD_BYTES_MAX)
                at = reader.offset
                for frame in lines.feed(piece):
                    if isinstance(frame, Frame):
                        yield frame.begin, frame.payload


def _check_same_query(record: CommitRecord, standing: Standing) -> None:
    if standing.query != record.query:
        raise PreconditionError(
            f"txnAppId {record.app} was used by another query or kind of write ({standing.query}, this is "
            f"{record.query}), and their versions cannot be compared: a new checkpoint needs a new txnAppId"
        )
