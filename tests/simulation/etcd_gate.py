"""What a schedule does to a single broker's talk with etcd: hold back what it wants to change, lose what it is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from allocator.etcd_client import Committed
from allocator.etcd_errors import EtcdError, EtcdUnavailableError
from allocator.key_event import StoredKey
from allocator.transaction import Put, Transaction
from tests.simulation.broker_node import BrokerNode

Answered = Callable[[Committed | EtcdError], None]


class HeadGate:
    """Where the transactions of one life of a broker pass that change the head of a journal.

    They wait here until they are let go, one and all, or get lost: on the way to etcd, or the answer on the way back.
    """

    def __init__(self, broker: BrokerNode, key: str) -> None:
        self._key = key
        # Who gets between a broker and etcd has to reach into it.
        access: Any = broker._access  # noqa: SLF001
        self._access = access
        self._commit: Callable[[Transaction, Answered], None] = self._access.commit
        self._get: Callable[[str, Callable[[StoredKey | EtcdError | None], None]], None] = self._access.get
        self._waiting: list[tuple[Transaction, Answered]] = []
        # How often the record was read since something was lost.
        self.reads = 0
        self._access.commit, self._access.get = self._held, self._read

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits here."""
        return bool(self._waiting)

    def _held(self, transaction: Transaction, answered: Answered) -> None:
        if any(isinstance(put, Put) and put.key == self._key for put in transaction.operations):
            self._waiting.append((transaction, answered))
        else:
            self._commit(transaction, answered)

    def _read(self, key: str, answered: Callable[[StoredKey | EtcdError | None], None]) -> None:
        self.reads += key == self._key
        self._get(key, answered)

    def let_go(self) -> None:
        for transaction, answered in self._opened():
            self._commit(transaction, answered)

    def lose_answers(self) -> None:
        """What waits is done, and nobody hears of it."""
        for transaction, answered in self._opened():
            self._commit(transaction, partial(_lost, answered))

    def lose_requests(self) -> None:
        """What waits is not done, and nobody hears of that either."""
        for _, answered in self._opened():
            answered(_silence())

    def _opened(self) -> list[tuple[Transaction, Answered]]:
        self._access.commit, self.reads = self._commit, 0
        waiting, self._waiting = self._waiting, []
        return waiting


class Deafness:
    """A watch that brings nothing for a while, on a connection that is well otherwise."""

    def __init__(self, broker: BrokerNode) -> None:
        stream: Any = broker._mirror._stream  # noqa: SLF001 -- as above
        self._stream = stream
        self._on_message: Callable[[Any], None] = self._stream.on_message
        self._unheard: list[Any] = []
        self._stream.on_message = self._unheard.append

    def end(self) -> None:
        self._stream.on_message = self._on_message
        for message in self._unheard:
            self._on_message(message)


def _lost(answered: Answered, _: Committed | EtcdError) -> None:
    answered(_silence())


def _silence() -> EtcdUnavailableError:
    return EtcdUnavailableError("etcd did not answer", maybe_applied=True)
