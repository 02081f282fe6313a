from __future__ import annotations

from dataclasses import replace

import pytest

from broker.replication import Replication, ReplicationError
from broker.replication_message import Acked, Answer, Content, Propose
from broker.resolution import MisdirectedError, Resolution
from protocol.codec import CompressionCodec
from protocol.errors import GazetteError, Status, UnavailableError, ValidationError
from protocol.fragment import HEAD_MAX, Fragment
from protocol.label import LabelSet
from protocol.route import Route
from tests.support.broker_cores import (
    JOURNAL,
    A,
    B,
    C,
    MemorySpool,
    committed_spool,
    fragment,
    header_of,
    labels,
    replica_of,
    route_of,
)
from tests.support.driven_replication import ROUTE, Port, Stream, opening, resolved

X = labels(x="1")


def test_a_stream_takes_the_spool_and_its_first_answer_says_who_answers() -> None:
    stream = Stream()
    stream.replication.open(opening())
    (answer,) = stream.port.answers
    assert answer.status is Status.OK
    assert isinstance(stream.port.resolution, Resolution)
    assert answer.header == stream.port.resolution.header
    assert stream.replication.is_serving
    assert not stream.is_free
    (again,) = stream.send(Propose(fragment(0), LabelSet()))
    assert again == Answer(Status.OK)


def test_it_is_resolved_for_any_member_at_the_revision_of_the_header_and_never_elsewhere() -> None:
    stream = Stream()
    stream.replication.open(opening(revision=7))
    wanted = stream.port.wanted[0][0]
    assert (wanted.journal, wanted.may_proxy, wanted.require_primary) == (JOURNAL, False, False)
    assert wanted.revision == 7


@pytest.mark.parametrize(
    "first", [Propose(fragment(0), LabelSet()), Propose(fragment(0), LabelSet(), False, header_of(ROUTE, B))]
)
def test_a_first_message_without_header_or_question_is_refused(first: Propose) -> None:
    stream = Stream()
    stream.replication.open(first)
    assert isinstance(stream.port.ends[0], ValidationError)
    assert stream.port.wanted == []


@pytest.mark.parametrize(
    "status",
    [Status.JOURNAL_NOT_FOUND, Status.SUSPENDED, Status.INSUFFICIENT_JOURNAL_BROKERS, Status.NOT_JOURNAL_BROKER],
)
def test_who_cannot_be_served_is_told_once_with_a_header_and_the_stream_ends_in_good_order(status: Status) -> None:
    stream = Stream()
    stream.port.resolution = resolved(None, status=status)
    stream.replication.open(opening())
    assert stream.port.answers == [Answer(status, stream.port.resolution.header)]
    assert stream.port.ends == [None]
    assert stream.is_free


@pytest.mark.parametrize("route", [route_of(A, B), route_of(A, B, C, primary=B), route_of(A, B, C, primary=None)])
def test_another_route_is_refused_before_the_spool_is_waited_for(route: Route) -> None:
    stream = Stream()
    stream.replica.spool.take(lambda _: None)
    stream.port.resolution = resolved(stream.replica, route)
    stream.replication.open(opening())
    assert stream.port.answers == [Answer(Status.WRONG_ROUTE, stream.port.resolution.header)]
    assert stream.port.ends == [None]


def test_a_resolution_that_fails_ends_the_stream() -> None:
    stream = Stream()
    error = stream.port.resolution = MisdirectedError("another cluster")
    stream.replication.open(opening())
    assert stream.port.ends == [error]
    assert stream.port.answers == []


def test_a_first_proposal_that_does_not_fit_is_answered_with_what_is_held_and_the_stream_stays() -> None:
    stream = Stream(committed_spool(b"abc", registers=X))
    stream.replication.open(opening(fragment(0, b"xyz"), X))
    (answer,) = stream.port.answers
    assert (answer.status, answer.fragment, answer.registers) == (Status.PROPOSAL_MISMATCH, fragment(0, b"abc"), X)
    assert answer.header is not None
    assert stream.port.ends == []
    assert stream.send(Propose(fragment(3), X)) == [Answer(Status.OK)]
    assert stream.held.completed == [fragment(0, b"abc")]


def test_a_peer_that_just_joined_goes_to_the_primarys_end_and_takes_its_registers() -> None:
    stream = Stream()
    stream.replication.open(opening(fragment(300, b"x" * 200), X))
    (answer,) = stream.port.answers
    assert (answer.status, answer.fragment, answer.registers) == (Status.PROPOSAL_MISMATCH, fragment(500), X)
    assert stream.send(Propose(fragment(500), X)) == [Answer(Status.OK)]


def test_equal_fragments_with_other_registers_do_not_fit() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    (answer,) = stream.send(Propose(fragment(0, b"abc"), labels(x="2")))
    assert (answer.status, answer.registers) == (Status.PROPOSAL_MISMATCH, X)
    assert not stream.replication.is_over


def test_content_is_not_answered_and_a_proposal_over_all_of_it_commits() -> None:
    stream = Stream().opened()
    assert stream.send(Content(b"one ", 0), Content(b"two ", 4), Content(memoryview(b"three"), 8)) == []
    assert stream.held.spool.fragment == fragment(0)
    assert stream.send(Propose(fragment(0, b"one two three"), X)) == [Answer(Status.OK)]
    assert stream.held.spool.fragment == fragment(0, b"one two three")
    assert stream.held.spool.registers == X


def test_proposals_may_come_before_others_are_answered_and_answers_come_in_order() -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X), Content(b"b", 0), Propose(fragment(0, b"ab"), X))
    stream.send(Propose(fragment(0, b"zz"), X))
    assert stream.port.answers == []
    while held.has_work:
        held.work()
    assert stream.port.statuses == [Status.OK, Status.OK, Status.OK, Status.PROPOSAL_MISMATCH]
    assert stream.port.answers[0].header is not None
    assert [answer.header for answer in stream.port.answers[1:]] == [None, None, None]


def test_the_fragment_as_it_is_drops_what_is_pending() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Content(b"undo", 0), Propose(fragment(0, b"abc"), X)) == [Answer(Status.OK)]
    assert stream.held.spool.next() == fragment(0, b"abc")
    assert stream.send(Content(b"d", 0), Propose(fragment(0, b"abcd"), X)) == [Answer(Status.OK)]


def test_a_new_fragment_drops_what_is_pending() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Content(b"gone", 0), Propose(fragment(3), X)) == [Answer(Status.OK)]
    assert stream.held.spool.next() == fragment(3)
    assert stream.held.completed == [fragment(0, b"abc")]


def test_a_codec_change_begins_a_fragment_with_it() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    gzip = fragment(3, codec=CompressionCodec.GZIP)
    assert stream.send(Propose(gzip, X, acknowledge=False), Propose(gzip, X)) == [Answer(Status.OK)]
    (answer,) = stream.send(Content(b"d", 0), Propose(fragment(3, b"d"), X))
    assert answer.status is Status.PROPOSAL_MISMATCH


@pytest.mark.parametrize(
    "proposed",
    [fragment(0, b"one"), fragment(0, b"one tw0"), fragment(1, b"one two")],
    ids=["a part", "another sum", "another begin"],
)
def test_a_commit_that_does_not_fit_is_answered_and_ends_the_stream(proposed: Fragment) -> None:
    stream = Stream().opened()
    (answer,) = stream.send(Content(b"one ", 0), Content(b"two", 4), Propose(proposed, X))
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.fragment is not None
    assert isinstance(stream.port.ends[0], ReplicationError)
    assert stream.is_free
    assert stream.held.releases == 1
    assert stream.held.spool.pending == 0


def test_nothing_is_done_about_messages_behind_the_one_that_ended_the_stream() -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"z"), X), Content(b"a", 1), Propose(fragment(0, b"aa"), X))
    while held.has_work:
        held.work()
    assert stream.port.statuses == [Status.OK, Status.PROPOSAL_MISMATCH]
    assert len(stream.port.ends) == 1
    assert held.releases == 1
    stream.send(Propose(fragment(0), X))
    assert len(stream.port.answers) == 2


def test_a_proposal_without_a_question_is_not_answered_if_it_fits() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Propose(fragment(3), X, acknowledge=False)) == []
    assert stream.held.spool.fragment == fragment(3)
    assert stream.send(Content(b"silent", 0), Propose(fragment(3, b"silent"), X, acknowledge=False)) == []
    assert stream.held.spool.fragment == fragment(3, b"silent")


def test_a_proposal_without_a_question_that_does_not_fit_ends_the_stream() -> None:
    stream = Stream(committed_spool(b"abc", registers=X)).opened()
    assert stream.send(Propose(fragment(0, b"a"), X, acknowledge=False)) == []
    assert isinstance(stream.port.ends[0], ReplicationError)
    assert stream.is_free


def test_content_out_of_order_ends_the_stream() -> None:
    stream = Stream().opened()
    stream.send(Content(b"abc", 0), Content(b"def", 5))
    assert isinstance(stream.port.ends[0], GazetteError)
    assert stream.is_free
    assert stream.held.spool.pending == 0


def test_a_spool_that_cannot_be_written_ends_the_stream_and_is_given_back_rolled_back() -> None:
    stream = Stream(committed_spool(b"abc")).opened()
    stream.send(Content(b"def", 0))
    stream.held.fault = OSError("disk full")
    assert stream.send(Propose(fragment(0, b"abcdef"), LabelSet())) == []
    assert "disk full" in str(stream.port.ends[0])
    assert stream.is_free
    assert stream.held.spool.next() == fragment(0, b"abc")


# Waiting for the spool.


def test_a_second_stream_waits_until_the_first_has_ended() -> None:
    first = Stream().opened()
    first.send(Content(b"pending", 0))
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    assert port.answers == []
    first.send(Propose(fragment(0, b"pending"), LabelSet()), Content(b"tail", 0))
    first.replication.close()
    assert second.is_serving
    (answer,) = port.answers
    assert answer.status is Status.PROPOSAL_MISMATCH
    assert answer.fragment == fragment(0, b"pending")
    second.close()
    assert first.held.releases == 2


def test_a_stream_that_waits_is_told_when_its_route_is_out_of_date() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    port.resolution = resolved(first.replica, route_of(A, B))
    first.replica.invalidate()
    assert port.statuses == [Status.WRONG_ROUTE]
    first.replication.close()
    assert first.is_free, "who was refused does not get the spool"


def test_a_stream_that_waits_goes_on_waiting_if_its_route_is_still_the_same() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    for _ in range(3):
        first.replica.invalidate()
    assert len(port.wanted) == 4
    first.replication.close()
    assert second.is_serving
    second.close()
    assert first.is_free


def test_a_stream_that_waits_for_a_spool_whose_disk_hangs_ends_and_so_does_one_that_comes_later() -> None:
    hung = UnavailableError("the disk hangs")
    first = Stream().opened()
    waits = [Port(first.port.resolution), Port(first.port.resolution)]
    Replication(waits[0]).open(opening())
    first.replica.stalled(hung)
    Replication(waits[1]).open(opening())
    assert [port.ends for port in waits] == [[hung], [hung]]
    first.replica.stalled(None)
    first.replication.close()
    assert first.is_free, "who was told does not get the spool"


def test_a_failure_of_the_spool_while_another_stream_waits_does_not_reach_that_one() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    first.held.fault = UnavailableError("disk full")
    first.send(Content(b"abc", 0))
    assert str(first.port.ends[0]) == "disk full"
    assert second.is_serving
    assert port.statuses == [Status.OK]
    assert port.ends == []


def test_a_stream_that_has_the_spool_is_not_bothered_by_a_later_route() -> None:
    stream = Stream().opened()
    stream.port.resolution = resolved(None, status=Status.JOURNAL_NOT_FOUND)
    stream.replica.invalidate()
    assert stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X)) == [Answer(Status.OK)]


def test_a_stream_that_waited_for_a_replica_that_stops_goes_to_the_new_one() -> None:
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    fresh = replica_of()
    port.resolution = resolved(fresh)
    first.replica.stop()
    assert second.is_serving
    assert fresh.spool.is_taken
    first.replication.close()
    assert first.held.is_handed_on
    second.close()
    assert not fresh.spool.is_taken


def test_a_resolution_that_is_out_of_date_when_it_comes_is_asked_for_again() -> None:
    """Of a replica that has stopped, nothing may be taken."""
    stopped, fresh = replica_of(), replica_of()
    port = Port()
    replication = Replication(port)
    replication.open(opening())
    stopped.stop()
    port.resolution = resolved(fresh)
    port.wanted[0][1](resolved(stopped))
    assert replication.is_serving
    assert fresh.spool.is_taken
    replication.close()
    assert not fresh.spool.is_taken


def test_a_stream_that_ends_while_it_is_resolved_or_waits_leaves_nothing_behind() -> None:
    port = Port()
    replication = Replication(port)
    replication.open(opening())
    replication.close()
    assert port.wanted[0][2].is_withdrawn
    first = Stream().opened()
    waiting = Replication(Port(first.port.resolution))
    waiting.open(opening())
    waiting.close()
    first.replication.close()
    assert first.is_free
    assert first.held.releases == 1


def test_to_end_twice_gives_the_spool_back_once() -> None:
    stream = Stream().opened()
    stream.replication.close()
    stream.replication.close()
    assert stream.held.releases == 1
    assert stream.port.ends == []


# The primary has said that nothing more will come.


def test_a_stream_that_is_finished_ends_at_once_if_nothing_is_to_be_answered() -> None:
    stream = Stream().opened()
    stream.send(Content(b"pending", 0))
    stream.replication.finish()
    assert stream.port.ends == [None]
    assert stream.is_free
    assert stream.held.spool.pending == 0


@pytest.mark.parametrize("last", [Propose(fragment(0, b"a"), LabelSet()), Propose(fragment(0), X)])
def test_a_stream_that_is_finished_answers_what_it_was_asked_whatever_the_answer(last: Propose) -> None:
    held = MemorySpool(deferred=True)
    stream = Stream(held)
    stream.replication.open(opening())
    held.work()
    if last.fragment.content_length:
        stream.send(Content(b"a", 0))
    stream.send(last)
    stream.replication.finish()
    assert stream.port.ends == []
    while held.has_work:
        held.work()
    assert len(stream.port.answers) == 2
    assert stream.port.ends == [None]
    assert stream.is_free


def test_a_stream_that_is_finished_before_it_got_the_spool_gives_its_place_up() -> None:
    """What it proposes would be out of date by then."""
    first = Stream().opened()
    port = Port(first.port.resolution)
    second = Replication(port)
    second.open(opening())
    second.finish()
    assert port.ends == [None]
    first.replication.close()
    assert port.answers == []
    assert first.is_free
    assert first.held.releases == 1


def test_a_primary_of_the_journal_that_was_deleted_is_refused_by_the_one_that_was_created_again() -> None:
    stream = Stream()
    assert stream.replica.create_revision == 4
    stream.replication.open(opening(fragment(0, b"old"), X, revision=3))
    assert stream.port.statuses == [Status.WRONG_ROUTE]
    assert stream.port.answers[0].header is not None
    assert stream.port.ends == [None]
    assert stream.is_free
    assert stream.held.spool.fragment == fragment(0)


# What is acknowledged, and so may be shown.


def test_of_a_primary_of_our_kind_nothing_is_shown_before_all_have_it() -> None:
    stream = Stream()
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0))
    assert stream.held.visible == []
    stream.send(Acked(1))
    assert stream.held.visible == [fragment(0, b"a")]
    stream.send(Content(b"b", 0, 1), Propose(fragment(0, b"ab"), X, acked_through=1), Content(b"c", 0, 2))
    assert stream.held.visible == [fragment(0, b"a"), fragment(0, b"ab")]


def test_an_older_word_takes_nothing_back() -> None:
    stream = Stream()
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0), Acked(1), Acked(0))
    assert stream.held.spool.acked_through == 1


def test_what_a_forged_acknowledgement_says_is_not_shown_and_the_journal_stays_writable() -> None:
    it = Stream().opened()
    it.replication.message(Content(b"one", 0, 1000))
    it.replication.message(Propose(fragment(0, b"one"), X, acked_through=1000))
    it.replication.message(Acked(HEAD_MAX))
    assert (it.held.visible, it.held.spool.acked_through) == ([], 0)
    it.replication.message(Content(b"two", 0, 3))
    it.replication.message(Propose(fragment(0, b"onetwo"), X, acked_through=3))
    assert it.port.statuses == [Status.OK] * 3


def test_of_another_primary_everything_is_shown_where_it_is_committed() -> None:
    stream = Stream(is_kin=False)
    stream.replication.open(opening())
    stream.send(Content(b"a", 0), Propose(fragment(0, b"a"), X))
    assert stream.held.visible == [fragment(0, b"a")]


def test_what_a_primary_that_is_not_of_our_kind_says_of_it_is_not_believed() -> None:
    stream = Stream(is_kin=False)
    stream.replication.open(replace(opening(), acked_through=0))
    stream.send(Content(b"a", 0, 0), Propose(fragment(0, b"a"), X, acked_through=0), Acked(0))
    assert stream.held.visible == [fragment(0, b"a")]
