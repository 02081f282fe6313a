from __future__ import annotations

import pytest

from broker.pipeline import Ask
from broker.replication_message import Acked, Answer, Content, Propose
from protocol.errors import Status, UnavailableError
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import (
    FIRST_EPOCH,
    NOW_NS,
    OK,
    A,
    B,
    Built,
    C,
    MemorySpool,
    built,
    committed_spool,
    fragment,
    header_of,
    labels,
    route_of,
)

X = labels(x="1")
BROKEN = UnavailableError("it broke")


def synchronised(held: MemorySpool | None = None, kin: frozenset[ProcessId] = frozenset((B, C))) -> Built:
    """A pipeline that an append has, with nothing under way."""
    made = built(held=held, kin=kin)
    pipeline = made.pipeline
    pipeline.is_owned = True
    pipeline.synchronise(pipeline.head.fragment, pipeline.head.registers, NOW_NS, lambda _: None)
    made.answer_all(OK)
    pipeline.acknowledge(pipeline.head.end)
    for stream in made.streams.values():
        stream.take()
    return made


def commit(made: Built, content: bytes, asked: list[Ask]) -> None:
    """What an append sends; the pipeline is given back afterwards."""
    pipeline = made.pipeline
    pipeline.is_owned = True
    pipeline.content(content, 0)
    pipeline.ask(made.held.spool.next(), pipeline.head.registers, NOW_NS, asked.append)
    pipeline.is_owned = False


def test_the_head_of_a_pipeline_is_what_the_spool_holds() -> None:
    made = built(held=committed_spool(b"abc", 5, X, acked=6))
    assert made.pipeline.head.fragment == fragment(5, b"abc")
    assert made.pipeline.head.registers == X
    assert made.pipeline.head.first_append_ns == NOW_NS
    assert made.pipeline.acked_through == 6
    assert made.pipeline.peers == [B, C]


def test_the_first_proposal_tells_each_peer_for_which_route_it_is_and_the_next_does_not() -> None:
    made = built()
    asked: list[Ask] = []
    made.pipeline.synchronise(fragment(0), LabelSet(), NOW_NS, asked.append)
    for peer, stream in made.streams.items():
        (proposal,) = stream.proposals
        assert proposal.header == header_of(route_of(A, B, C), peer)
        assert proposal.acknowledge
        assert (proposal.fragment, proposal.registers) == (fragment(0), LabelSet())
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, asked.append)
    assert [stream.proposals[-1].header for stream in made.streams.values()] == [None, None]


def test_a_question_is_settled_when_all_have_answered_the_own_spool_among_them() -> None:
    held = MemorySpool(deferred=True)
    made = built(held=held)
    asked: list[Ask] = []
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, asked.append)
    made.pipeline.answered(B, OK)
    made.pipeline.answered(C, OK)
    assert asked == []
    assert not made.pipeline.is_idle
    held.work()
    (ask,) = asked
    assert ask.failure is None
    assert ask.refusal is None
    assert set(ask.answers) == {A, B, C}
    assert made.pipeline.is_idle


def test_a_pipeline_without_peers_asks_its_spool_alone() -> None:
    made = built(route_of(A))
    asked: list[Ask] = []
    made.pipeline.synchronise(fragment(0), LabelSet(), NOW_NS, asked.append)
    assert asked[0].failure is None


def test_answers_belong_to_questions_in_the_order_of_both() -> None:
    made = synchronised()
    asked: list[Ask] = []
    commit(made, b"one", asked)
    commit(made, b"two", asked)
    pipeline = made.pipeline
    pipeline.answered(B, OK)
    pipeline.answered(B, Answer(Status.PROPOSAL_MISMATCH))
    assert asked == []
    pipeline.answered(C, OK)
    (first,) = asked
    assert first.refusal is None
    assert first.fragment == fragment(0, b"one")
    pipeline.answered(C, OK)
    assert asked[1].refusal == B


def test_a_later_question_is_not_settled_before_an_earlier_one() -> None:
    made = built(route_of(A, B))
    asked: list[Ask] = []
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, asked.append)
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, asked.append)
    made.pipeline.failed(B, BROKEN)
    assert len(asked) == 2
    assert [ask.failure is not None for ask in asked] == [True, True]


def test_what_one_does_when_it_is_settled_may_settle_the_next() -> None:
    made = synchronised()
    settled: list[str] = []

    def refused(ask: Ask) -> None:
        settled.append("first")
        made.pipeline.failed(B, BROKEN)
        settled.append("first is done")

    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, refused)
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, lambda ask: settled.append(f"second: {ask.failure}"))
    made.pipeline.answered(C, OK)
    made.pipeline.answered(C, OK)
    made.pipeline.answered(B, OK)
    assert settled[:2] == ["first", "first is done"]
    assert "zone/broker-b" in settled[2]


def test_an_answer_that_nobody_asked_for_breaks_the_pipeline() -> None:
    made = synchronised()
    made.pipeline.answered(B, OK)
    assert made.pipeline.is_broken
    assert set(made.pipeline.failures) == {B}


def test_the_first_failure_of_a_member_stays_and_all_that_follows_fails_with_it() -> None:
    made = synchronised()
    asked: list[Ask] = []
    commit(made, b"one", asked)
    made.pipeline.answered(C, OK)
    made.pipeline.failed(B, BROKEN)
    made.pipeline.failed(B, UnavailableError("another"))
    assert "it broke" in str(asked[0].failure)
    made.streams[B].take()
    made.pipeline.ask(fragment(0, b"one"), LabelSet(), NOW_NS, asked.append)
    assert made.streams[B].sent == [], "nothing more is sent to who failed"
    made.pipeline.answered(C, OK)
    assert "it broke" in str(asked[1].failure)
    assert made.streams[C].proposals, "the others still hear of it"


def test_a_member_that_answered_before_it_failed_has_answered() -> None:
    made = synchronised()
    asked: list[Ask] = []
    commit(made, b"one", asked)
    made.pipeline.answered(B, OK)
    made.pipeline.failed(B, BROKEN)
    made.pipeline.answered(C, OK)
    assert asked[0].failure is None
    assert made.pipeline.is_broken


def test_a_stream_that_ends_in_good_order_before_it_shall_has_failed() -> None:
    made = synchronised()
    made.pipeline.ended(B)
    assert made.pipeline.is_broken


def test_a_stream_that_ends_with_answers_missing_has_failed_even_after_the_half_close() -> None:
    made = synchronised()
    asked: list[Ask] = []
    commit(made, b"one", asked)
    made.pipeline.close()
    made.pipeline.answered(B, OK)
    made.pipeline.ended(B)
    assert made.pipeline.failures == {}
    made.pipeline.ended(C)
    assert asked[0].failure is not None


def test_to_close_is_to_half_close_all_and_give_the_spool_back_once() -> None:
    made = synchronised()
    made.pipeline.content(b"pending", 0)
    made.pipeline.close()
    made.pipeline.close()
    assert made.held.releases == 1
    assert made.held.spool.pending == 0
    assert all(stream.is_half_closed for stream in made.streams.values())
    assert made.pipeline.is_broken


def test_who_failed_is_not_half_closed() -> None:
    made = synchronised()
    made.pipeline.failed(B, BROKEN)
    made.pipeline.close()
    assert not made.streams[B].is_half_closed
    assert made.streams[C].is_half_closed


def test_what_was_asked_before_the_close_is_still_answered() -> None:
    made = synchronised()
    asked: list[Ask] = []
    commit(made, b"one", asked)
    made.pipeline.close()
    made.answer_all(OK)
    assert asked[0].failure is None


def test_an_own_spool_that_fails_fails_what_is_asked_and_all_that_will_be() -> None:
    made = synchronised()
    made.held.fault = OSError("disk full")
    asked: list[Ask] = []
    commit(made, b"one", asked)
    assert made.pipeline.failures.keys() == {A}
    made.answer_all(OK)
    assert "disk full" in str(asked[0].failure)
    made.pipeline.ask(fragment(0), LabelSet(), NOW_NS, asked.append)
    made.answer_all(OK)
    assert "disk full" in str(asked[1].failure)


def test_an_own_spool_that_cannot_begin_a_fragment_breaks_the_pipeline() -> None:
    made = synchronised(committed_spool(b"abc", acked=3))
    made.held.fault = OSError("disk full")
    made.pipeline.begin(fragment(3), LabelSet(), NOW_NS)
    assert set(made.pipeline.failures) == {A}


def test_the_failure_that_is_named_is_the_same_whichever_came_first() -> None:
    for order in ((B, C), (C, B)):
        made = synchronised()
        asked: list[Ask] = []
        commit(made, b"one", asked)
        for peer in order:
            made.pipeline.failed(peer, BROKEN)
        assert "zone/broker-b" in str(asked[0].failure)


def test_a_fragment_that_is_begun_is_proposed_without_a_question() -> None:
    made = synchronised(committed_spool(b"abc", registers=X, acked=3))
    made.pipeline.begin(fragment(3), X, NOW_NS)
    assert made.streams[B].sent == [Propose(fragment(3), X, acknowledge=False, epoch=FIRST_EPOCH, acked_through=3)]
    assert made.pipeline.is_idle
    assert made.pipeline.head.fragment == fragment(3)
    assert made.held.spool.fragment == fragment(3)


# Through where bytes are acknowledged.


def test_peers_of_our_kind_are_told_with_every_message_and_others_never() -> None:
    made = synchronised(committed_spool(b"abc", acked=3), kin=frozenset((B,)))
    pipeline = made.pipeline
    pipeline.content(b"def", 0)
    pipeline.ask(made.held.spool.next(), LabelSet(), NOW_NS, lambda _: None)
    content, proposal = made.streams[B].take()
    assert isinstance(content, Content)
    assert isinstance(proposal, Propose)
    assert (content.acked_through, proposal.acked_through) == (3, 3)
    content, proposal = made.streams[C].take()
    assert isinstance(content, Content)
    assert isinstance(proposal, Propose)
    assert (content.acked_through, proposal.acked_through) == (None, None)


def test_the_first_message_tells_what_was_acknowledged_before_the_pipeline() -> None:
    made = built(held=committed_spool(b"abc", acked=2))
    made.pipeline.synchronise(fragment(0, b"abc"), LabelSet(), NOW_NS, lambda _: None)
    assert made.streams[B].proposals[0].acked_through == 2


def test_nothing_goes_out_alone_while_an_append_may_say_it() -> None:
    made = synchronised(committed_spool(b"abc", acked=3))
    asked: list[Ask] = []
    commit(made, b"def", asked)
    made.pipeline.is_owned = True
    made.pipeline.acknowledge(6)
    assert made.streams[B].lone_acks == []
    made.pipeline.content(b"ghi", 0)
    content = made.streams[B].contents[-1]
    assert content.acked_through == 6
    made.pipeline.acknowledge(6)
    made.pipeline.tell_acked()
    assert made.streams[B].lone_acks == []


def test_it_goes_out_alone_to_our_kind_when_nobody_has_the_pipeline() -> None:
    made = synchronised(committed_spool(b"abc", acked=3), kin=frozenset((B,)))
    asked: list[Ask] = []
    commit(made, b"def", asked)
    made.streams[B].take()
    made.streams[C].take()
    made.pipeline.acknowledge(6)
    assert made.streams[B].take() == [Acked(6)]
    assert made.streams[C].take() == []


def test_it_goes_out_alone_once_and_never_as_a_proposal() -> None:
    made = synchronised()
    made.pipeline.is_owned = False
    made.pipeline.acknowledge(7)
    made.pipeline.acknowledge(7)
    made.pipeline.acknowledge(5)
    assert made.pipeline.acked_through == 7
    made.pipeline.tell_acked()
    assert made.streams[B].take() == [Acked(7)]


def test_it_does_not_go_out_to_who_failed_nor_after_the_close() -> None:
    made = synchronised()
    made.pipeline.is_owned = False
    made.pipeline.failed(B, BROKEN)
    made.pipeline.acknowledge(7)
    assert made.streams[B].sent == []
    assert made.streams[C].take() == [Acked(7)]
    made.pipeline.close()
    made.pipeline.acknowledge(9)
    assert made.streams[C].sent == []


def test_nothing_is_told_that_every_peer_assumes_anyway() -> None:
    made = synchronised()
    made.pipeline.is_owned = False
    made.pipeline.tell_acked()
    assert made.streams[B].sent == []


@pytest.mark.parametrize("content", [b"def", memoryview(b"def")])
def test_content_is_the_same_object_for_all_peers(content: bytes | memoryview) -> None:
    made = synchronised()
    made.pipeline.content(content, 0)
    assert made.streams[B].contents[0] is made.streams[C].contents[0]
    assert made.streams[B].contents[0].data is content
