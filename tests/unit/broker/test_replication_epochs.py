"""Replication in epochs: what takes part in a synchronisation, and what is retired first (DH-5, DH-8)."""

from __future__ import annotations

from broker.durable_head import Claim, CutAt, DurableHead, Epoch, EpochTerms
from broker.replication import Replication
from broker.replication_message import Answer, Content, Propose
from fragment.spool import CopyEnd, EpochMark, Proposal
from protocol.errors import Status, UnavailableError
from protocol.fragment import Fragment
from tests.support.broker_cores import NOW_NS, B, Host, MemorySpool, fragment, header_of, labels, spool_id_of
from tests.support.driven_replication import ROUTE, Port, Stream, opening

E1, E2 = EpochMark(4, 1), EpochMark(4, 2)
X = labels(x="1")
CLOSED_AT_3 = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),), end=3), Epoch(2, 3, (spool_id_of(B),))))


def in_epoch(mark: EpochMark, content: bytes = b"hello") -> MemorySpool:
    held = MemorySpool()
    held.content(content, 0)
    held.propose(Proposal(fragment(0, content), X, NOW_NS, mark, 0), lambda _: None)
    return held


def work_off(held: MemorySpool) -> None:
    while held.has_work:
        held.work()


class EpochStream(Stream):
    def __init__(self, held: MemorySpool | None = None) -> None:
        super().__init__(held)
        self.host = Host(spool_id=spool_id_of(B))
        self.replica.host = self.host

    def open(self, told: EpochTerms, held: Fragment | None = None, revision: int = 10) -> list[Answer]:
        first = Propose(held or fragment(0), X, header=header_of(ROUTE, B, revision), epoch=told, acked_through=0)
        self.replication.open(first)
        return self.port.answers


def test_a_live_copy_of_the_last_open_epoch_takes_part_as_it_is() -> None:
    """DH-5."""
    stream = EpochStream(in_epoch(E1))
    (answer,) = stream.open(EpochTerms(E1), fragment(0, b"hello"))
    assert answer.status is Status.OK
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))
    assert stream.held.fates == []
    assert stream.port.heads_read == 0


def test_a_copy_of_an_earlier_epoch_is_retired_before_its_owner_joins_empty() -> None:
    """DH-5, DH-8."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = CLOSED_AT_3
    (answer,) = stream.open(EpochTerms(E2, 3), fragment(3))
    assert stream.held.fates == [CutAt(3)]
    assert stream.held.completed == [fragment(0, b"hello")]
    assert answer.status is Status.OK
    assert answer.claim == Claim(spool_id_of(B), None)
    assert stream.held.spool.fragment == fragment(3)


def test_a_copy_of_the_last_epoch_is_retired_once_that_is_closed() -> None:
    """DH-5: only of the open one."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),), end=3),))
    stream.open(EpochTerms(E1, is_closed=True), fragment(3))
    assert stream.held.fates == [CutAt(3)]


def test_a_synchronisation_that_names_an_older_epoch_is_refused_and_nothing_is_retired() -> None:
    """DH-5."""
    stream = EpochStream(in_epoch(E2))
    (answer,) = stream.open(EpochTerms(E1), fragment(90))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E2, 5, X))
    assert answer.fragment == fragment(0, b"hello")
    assert stream.held.fates == []
    assert stream.held.spool.fragment == fragment(0, b"hello")


def test_a_copy_whose_epoch_is_open_after_all_is_answered_for_as_it_is() -> None:
    """The record has changed since the primary read it."""
    stream = EpochStream(in_epoch(E1))
    stream.port.head = DurableHead(4, (Epoch(1, 0, (spool_id_of(B),)),))
    (answer,) = stream.open(EpochTerms(E2, 5), fragment(5))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))
    assert stream.held.fates == []


def test_a_record_that_cannot_be_read_ends_the_stream_and_nothing_is_retired() -> None:
    stream = EpochStream(in_epoch(E1))
    stream.port.head = UnavailableError("etcd did not answer")
    assert stream.open(EpochTerms(E2, 5), fragment(5)) == []
    assert stream.port.ends == [stream.port.head]
    assert stream.held.fates == []
    assert stream.is_free


def test_whoever_is_listed_and_has_committed_nothing_says_who_it_is() -> None:
    """DH-5."""
    stream = EpochStream()
    (answer,) = stream.open(EpochTerms(E1))
    assert answer.claim == Claim(spool_id_of(B), None)


def test_who_has_commits_of_the_epoch_that_are_not_in_the_spool_does_not() -> None:
    """DH-5, DH-7."""
    stream = EpochStream()
    stream.host.copies = {E1}
    (answer,) = stream.open(EpochTerms(E1))
    assert answer.claim == Claim(b"", None)


def test_a_spool_that_a_failed_synchronisation_has_moved_has_no_place() -> None:
    """DH-5: a roll forward without content does not count."""
    held = in_epoch(E1)
    held.propose(Proposal(fragment(70), X, NOW_NS, E2, 0), lambda _: None)
    stream = EpochStream(held)
    (answer,) = stream.open(EpochTerms(E1), fragment(5))
    assert answer.status is Status.OK, "it goes on where the others are, below where it was"
    assert answer.claim == Claim(spool_id_of(B), CopyEnd(E1, 5, X))


def test_an_epoch_is_adopted_from_the_first_proposal_that_names_it_and_commits_carry_it() -> None:
    """DH-2."""
    stream = EpochStream(in_epoch(E1))
    stream.open(EpochTerms(E1), fragment(0, b"hello"))
    assert stream.host.epochs == []
    told = EpochTerms(E2, 5)
    (rolled,) = stream.send(Propose(fragment(5), X, epoch=told, acked_through=5))
    assert stream.host.epochs == [(told, E1)]
    assert rolled == Answer(Status.OK), "no claim, once it is synchronised"
    stream.send(Content(b"abc", 0, 5), Propose(fragment(5, b"abc"), X, epoch=told, acked_through=5))
    assert stream.held.spool.copy == CopyEnd(E2, 8, X)
    assert len(stream.host.epochs) == 1


def test_a_synchronisation_alone_moves_no_copy_into_another_epoch() -> None:
    """DH-2."""
    stream = EpochStream(in_epoch(E1))
    stream.open(EpochTerms(E1), fragment(9))
    assert stream.held.spool.copy == CopyEnd(E1, 5, X)


def test_who_synchronises_without_an_epoch_makes_the_head_void_before_it_is_answered() -> None:
    """Section 6."""
    stream = EpochStream()
    stream.replication.open(opening(is_kin=False))
    assert stream.port.heads_voided == 1
    assert stream.port.statuses == [Status.OK]
    refusing = EpochStream()
    failure = UnavailableError("etcd did not answer")
    refusing.port.void_failure = failure
    refusing.replication.open(opening(is_kin=False))
    assert refusing.port.answers == []
    assert refusing.port.ends == [failure]
    assert refusing.is_free


def test_a_primary_that_was_overtaken_gets_the_spool_no_more() -> None:
    """DH-4."""
    stream = EpochStream()
    stream.replica.taken_revision = 11
    (answer,) = stream.open(EpochTerms(E1), revision=10)
    assert answer.status is Status.WRONG_ROUTE
    assert stream.is_free


def test_a_stream_whose_spool_was_taken_gets_no_more_answers() -> None:
    """DH-4: not even to what it asked before."""
    held = MemorySpool(deferred=True)
    stream = EpochStream(held)
    stream.open(EpochTerms(E1))
    work_off(held)
    assert len(stream.port.answers) == 1
    stream.replication.message(Content(b"abc", 0, 0))
    stream.replication.message(Propose(fragment(0, b"abc"), X, epoch=EpochTerms(E1), acked_through=0))
    later = Replication(Port(stream.port.resolution))
    stream.host.members = {}
    later.open(Propose(fragment(0), X, header=header_of(ROUTE, B, 12), epoch=EpochTerms(E1)))
    work_off(held)
    assert len(stream.port.answers) == 1
    assert isinstance(stream.port.ends[0], UnavailableError)
    assert later.is_serving
