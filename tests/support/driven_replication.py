"""A Replication that a test drives message by message, with the replica whose spool it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from broker.durable_head import DurableHead, EpochTerms
from broker.replica import Replica
from broker.replication import Replication
from broker.replication_message import Answer, Message, Propose
from broker.resolution import Resolution, Wanted
from fragment.spool import EpochMark
from protocol.errors import GazetteError, Status
from protocol.fragment import Fragment
from protocol.label import LabelSet
from protocol.route import ProcessId, Route
from tests.support.broker_cores import (
    NOW_NS,
    A,
    B,
    C,
    MemorySpool,
    Withdrawal,
    fragment,
    header_of,
    replica_of,
    resolution_of,
    route_of,
)

ROUTE = route_of(A, B, C)


@dataclass(slots=True)
class Port:
    """Resolves by itself if it is told what to; else the test does."""

    resolution: Resolution | GazetteError | None = None
    wanted: list[tuple[Wanted, Callable[[Resolution | GazetteError], None], Withdrawal]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    head: DurableHead | GazetteError | None = None
    heads_read: int = 0
    heads_voided: int = 0
    void_failure: GazetteError | None = None
    ends: list[GazetteError | None] = field(default_factory=list)

    def resolve(self, wanted: Wanted, done: Callable[[Resolution | GazetteError], None]) -> Callable[[], None]:
        withdrawal = Withdrawal()
        self.wanted.append((wanted, done, withdrawal))
        if self.resolution is not None:
            done(self.resolution)
        return withdrawal

    def answer(self, answer: Answer) -> None:
        assert not self.ends, "nothing is answered after the end"
        self.answers.append(answer)

    def read_head(self, journal: str, done: Callable[[DurableHead | GazetteError | None], None]) -> None:
        self.heads_read += 1
        done(self.head)

    def void_head(self, journal: str, create_revision: int, done: Callable[[GazetteError | None], None]) -> None:
        self.heads_voided += 1
        done(self.void_failure)

    def end(self, error: GazetteError | None) -> None:
        self.ends.append(error)

    def now_ns(self) -> int:
        return NOW_NS

    @property
    def statuses(self) -> list[Status]:
        return [answer.status for answer in self.answers]


def resolved(
    replica: Replica[bytearray] | None, route: Route = ROUTE, status: Status = Status.OK, *, is_kin: bool = True
) -> Resolution:
    """As a Replicate of a peer gets it, which may be any member."""
    found = resolution_of(route, local_id=B, status=status, replica=replica)
    kin = found.kin if is_kin else frozenset[ProcessId]()
    return replace(found, header=replace(found.header, process_id=B), kin=kin)


def opening(
    held: Fragment | None = None, registers: LabelSet = LabelSet(), revision: int = 10, *, is_kin: bool = True
) -> Propose:
    """By Gazette's rules, as all of these."""
    epoch = EpochTerms(EpochMark(4, 0), is_closed=True, is_void=True) if is_kin else None
    return Propose(held or fragment(0), registers, header=header_of(ROUTE, B, revision), epoch=epoch)


class Stream:
    """A Replication over a replica of its own, and what it says."""

    def __init__(self, held: MemorySpool | None = None, *, is_kin: bool = True) -> None:
        self.held = held or MemorySpool()
        self.replica = replica_of(self.held)
        self.port = Port(resolved(self.replica, is_kin=is_kin))
        self.is_kin = is_kin
        self.replication = Replication(self.port)

    def opened(self) -> Stream:
        self.replication.open(opening(self.held.spool.fragment, self.held.spool.registers, is_kin=self.is_kin))
        assert self.port.statuses == [Status.OK]
        return self

    def send(self, *messages: Message) -> list[Answer]:
        """What is answered to these."""
        before = len(self.port.answers)
        for message in messages:
            self.replication.message(message)
        return self.port.answers[before:]

    @property
    def is_free(self) -> bool:
        return not self.replica.spool.is_taken
