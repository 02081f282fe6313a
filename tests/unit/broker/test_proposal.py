from __future__ import annotations

from dataclasses import replace

import pytest

from broker.proposal import Agreed, Diverged, Head, Overtaken, RollTo, Verdict, extent, judged, rolled
from broker.replication_message import Answer
from fragment.index import Summary
from protocol.codec import CompressionCodec
from protocol.errors import Status
from protocol.fragment import Fragment
from protocol.journal import FragmentPolicy
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import JOURNAL, NOW_NS, OK, POLICY, A, B, C, D, fragment, header_of, labels, route_of
from tests.support.golden import Case, case_id, cases

NS = 1_000_000_000
X = labels(x="1")


def golden_fragment(case: Case) -> Fragment:
    return Fragment(
        case["journal"], case["begin"], case["end"], bytes.fromhex(case["sum"]), CompressionCodec[case["codec"]]
    )


@pytest.mark.parametrize("case", cases("fragments", "roll"), ids=case_id)
def test_gazettes_rolls(case: Case) -> None:
    first = case["first_append"]
    head = Head(golden_fragment(case["spool"]), LabelSet(), first * NS if first else None)
    policy = FragmentPolicy(
        case["spec_length"],
        CompressionCodec[case["spec_codec"]],
        flush_interval_ns=case["flush_interval_seconds"] * NS,
    )
    proposal = rolled(head, case["roll_to_offset"] or None, policy, case["now"] * NS)
    assert proposal == golden_fragment(case["proposal"])


def head_of(content: bytes, begin: int = 0, first_s: int | None = None) -> Head:
    return Head(fragment(begin, content), X, None if first_s is None else first_s * NS)


def test_a_fragment_is_closed_once_it_is_longer_than_asked_for_and_not_when_it_is_as_long() -> None:
    policy = replace(POLICY, length=4)
    assert rolled(head_of(b"1234"), None, policy, NOW_NS) == fragment(0, b"1234")
    assert rolled(head_of(b"12345"), None, policy, NOW_NS) == fragment(5)


def test_windows_of_the_flush_interval_are_counted_from_the_epoch() -> None:
    policy = replace(POLICY, flush_interval_ns=60 * NS)
    head = head_of(b"1", first_s=119)
    assert rolled(head, None, policy, 119 * NS + NS - 1) == head.fragment
    assert rolled(head, None, policy, 120 * NS) == fragment(1)
    assert rolled(head_of(b"1", first_s=60), None, policy, 119 * NS) == head.fragment


def test_a_fragment_that_was_rolled_there_already_stays() -> None:
    assert rolled(head_of(b"123", 10), 10, POLICY, NOW_NS) == fragment(10, b"123")


def test_another_codec_waits_for_the_next_fragment() -> None:
    policy = replace(POLICY, compression_codec=CompressionCodec.GZIP)
    assert rolled(head_of(b"1"), None, policy, NOW_NS).codec is CompressionCodec.NONE
    assert rolled(head_of(b"1"), 1, policy, NOW_NS) == fragment(1, codec=CompressionCodec.GZIP)
    assert rolled(head_of(b""), None, policy, NOW_NS) == fragment(0, codec=CompressionCodec.GZIP)


def test_a_spool_does_not_go_back() -> None:
    with pytest.raises(AssertionError):
        rolled(head_of(b"12345"), 4, POLICY, NOW_NS)


def test_the_head_remembers_when_its_fragment_had_its_first_commit() -> None:
    head = head_of(b"")
    first = head.proposed(fragment(0, b"1"), X, 7)
    assert first.first_append_ns == 7
    assert first.proposed(fragment(0, b"12"), X, 9).first_append_ns == 7
    assert first.proposed(fragment(1), X, 9).first_append_ns is None
    assert first.proposed(fragment(1), X, 9).proposed(fragment(1, b"2"), X, 11).first_append_ns == 11
    assert first.proposed(fragment(0, b"1"), X, 12).first_append_ns == 7


def test_the_extent_is_that_of_the_index_and_of_what_the_spool_holds_beyond_it() -> None:
    indexed = Summary(5, 20, 99)
    assert extent(indexed, fragment(20)) == indexed
    assert extent(indexed, fragment(30)) == indexed
    assert extent(indexed, fragment(10, b"x" * 10)) == indexed
    assert extent(indexed, fragment(20, b"x")) == Summary(5, 21, 0)
    assert extent(indexed, fragment(0, b"x" * 25)) == Summary(0, 25, 0)
    assert extent(Summary(0, 0, 0), fragment(7, b"x")) == Summary(7, 8, 0)
    assert extent(Summary(0, 0, 0), fragment(7)) == Summary(0, 0, 0)


# What answers mean. The head is [0, 10).

HEAD = Head(fragment(0, b"x" * 10), X)
ROUTE = route_of(A, B, C)


def mismatch(held: Fragment, registers: LabelSet | None = None) -> Answer:
    return Answer(Status.PROPOSAL_MISMATCH, fragment=held, registers=registers)


def wrong_route(revision: int, *members: ProcessId) -> Answer:
    return Answer(Status.WRONG_ROUTE, header_of(route_of(*members), B, revision))


def judge(*answers: Answer, head: Head = HEAD) -> Verdict:
    return judged(head, ROUTE, 10, dict(zip((B, C, D), answers, strict=False)))


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (OK, Agreed()),
        (wrong_route(11, A, B), Overtaken(11)),
        (mismatch(fragment(0, b"y" * 15), labels(y="2")), RollTo(15, labels(y="2"))),
        (mismatch(fragment(15), labels(y="2")), RollTo(15, labels(y="2"))),
        (mismatch(fragment(15)), RollTo(15, LabelSet())),
        (mismatch(fragment(10), labels(y="2")), RollTo(10, X)),
    ],
)
def test_an_answer_that_can_be_gone_on_with(answer: Answer, verdict: Verdict) -> None:
    assert judge(answer) == verdict


@pytest.mark.parametrize(
    "answer",
    [
        wrong_route(10, A, B),
        wrong_route(11, A, B, C),
        Answer(Status.WRONG_ROUTE),
        mismatch(fragment(0, b"y" * 10)),
        mismatch(fragment(5, b"x" * 5)),
        mismatch(fragment(0, b"x" * 9)),
        mismatch(fragment(9)),
        Answer(Status.PROPOSAL_MISMATCH),
        *(
            Answer(status)
            for status in Status
            if status not in (Status.OK, Status.WRONG_ROUTE, Status.PROPOSAL_MISMATCH)
        ),
    ],
)
def test_an_answer_that_ends_it(answer: Answer) -> None:
    verdict = judge(OK, answer, OK)
    assert isinstance(verdict, Diverged)
    assert verdict.peer == C


def test_another_primary_of_the_same_members_is_another_route() -> None:
    later = Answer(Status.WRONG_ROUTE, header_of(route_of(A, B, C, primary=B), B, 11))
    assert judge(later) == Overtaken(11)


def test_who_is_furthest_decides_for_all_and_its_registers_are_taken() -> None:
    far, further = mismatch(fragment(0, b"y" * 12), labels(y="2")), mismatch(fragment(20), labels(z="3"))
    for answers in ((far, further, OK), (further, OK, far), (OK, far, further)):
        assert judge(*answers) == RollTo(20, labels(z="3"))


def test_a_peer_that_is_further_outweighs_one_that_just_joined_and_a_later_route() -> None:
    far, joined = mismatch(fragment(0, b"y" * 12), labels(y="2")), mismatch(fragment(10), X)
    assert judge(joined, far) == RollTo(12, labels(y="2"))
    assert judge(far, wrong_route(11, A, B)) == RollTo(12, labels(y="2"))
    assert judge(wrong_route(11, A, B), joined) == RollTo(10, X)


def test_of_later_routes_the_latest_is_waited_for() -> None:
    assert judge(wrong_route(11, A, B), wrong_route(14, A, B), wrong_route(12, A, B)) == Overtaken(14)


def test_a_peer_that_cannot_be_synchronised_with_outweighs_everything() -> None:
    bad = mismatch(fragment(0, b"y" * 10))
    for other in (OK, wrong_route(11, A, B), mismatch(fragment(15))):
        assert isinstance(judge(bad, other), Diverged)
        assert isinstance(judge(other, bad), Diverged)


def test_all_agree_where_there_is_nobody_to_ask() -> None:
    assert judged(HEAD, route_of(A), 10, {}) == Agreed()


# The worked examples.


def test_a_fresh_cluster_agrees_at_once() -> None:
    head = Head(fragment(0), LabelSet())
    assert rolled(head, None, POLICY, NOW_NS) == fragment(0)
    assert judge(OK, OK, head=head) == Agreed()


def test_a_member_that_joins_at_500_closes_the_fragment_of_all() -> None:
    head = Head(Fragment(JOURNAL, 300, 500, b"s" * 20, CompressionCodec.NONE), X)
    assert rolled(head, None, POLICY, NOW_NS) == head.fragment
    verdict = judge(OK, mismatch(fragment(500), X), head=head)
    assert verdict == RollTo(500, X)
    assert rolled(head, 500, POLICY, NOW_NS) == fragment(500)


def test_a_new_primary_that_is_behind_follows_the_one_who_has_more() -> None:
    head = head_of(b"x" * 100)
    verdict = judge(mismatch(fragment(0, b"x" * 150), labels(y="2")), OK, head=head)
    assert verdict == RollTo(150, labels(y="2"))
    assert rolled(head, 150, POLICY, NOW_NS) == fragment(150)
