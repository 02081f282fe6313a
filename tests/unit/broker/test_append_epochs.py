"""AppendFSM where all members keep epochs: what is on record before anything is acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.keys import item_key
from allocator.transaction import Compare, Put, Target
from broker.append_effect import (
    Acknowledge,
    Advertise,
    AwaitReady,
    Commit,
    Effects,
    EpochOpened,
    Fail,
    GiveBack,
    HeadChange,
    NextChunk,
    Open,
    Prepare,
    ReadHead,
    Release,
    Resolve,
    SetSuspend,
    ShutDown,
    Synchronise,
    TakeSpool,
    Voided,
)
from broker.append_event import (
    Answered,
    AppendOpening,
    Chunk,
    End,
    Failed,
    HeadRead,
    Intent,
    PipelineTaken,
    Prepared,
    Ready,
    SpoolTaken,
    Transacted,
)
from broker.append_state import State
from broker.durable_head import (
    Claim,
    CutAt,
    DurableHead,
    Epoch,
    EpochTerms,
    Extents,
    Fate,
    Start,
    Stored,
    Unknown,
    closed,
    head_key,
    opened,
    terms,
    voided,
)
from broker.head_opening import RECORD_TRIES_MAX
from broker.journal_transaction import advertise, record, set_suspend
from broker.replication_message import Answer
from fragment.index import Summary
from fragment.spool import CopyEnd, EpochMark, Proposal
from protocol.errors import Status, UnavailableError
from protocol.journal import SuspendLevel, SuspendMode
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import (
    JOURNAL,
    NOW_NS,
    OK,
    ROOT,
    A,
    B,
    C,
    D,
    MemorySpool,
    fragment,
    labels,
    resolution_of,
    spool_id_of,
)
from tests.support.driven_append import EMPTY, ROUTE, Driven, refused

X = labels(x="1")
IDS = [spool_id_of(member) for member in ROUTE.members]
FIRST = opened(None, 4, Start(0), IDS)
FIRST_MARK, SECOND_MARK = EpochMark(4, 1), EpochMark(4, 2)
LOST = DurableHead(4, (Epoch(1, 0, (spool_id_of(D),)),))
"""Its only holder is not in the Route."""


def spool_with(content: bytes, mark: EpochMark, registers: LabelSet = X) -> MemorySpool:
    """That committed `content` in an epoch."""
    held = MemorySpool()
    held.content(content, 0)
    held.propose(Proposal(fragment(0, content), registers, NOW_NS, mark, 0), lambda _: None)
    assert held.spool.copy == CopyEnd(mark, len(content), registers)
    return held


def epochal(
    head: DurableHead | None = None,
    *,
    mod_revision: int = 0,
    stored: Extents = (),
    fate: Fate | None = None,
    opening: AppendOpening | None = None,
    held: MemorySpool | None = None,
    is_consistent: bool = True,
) -> Driven:
    """With the record as it is, up to the answers to the first synchronisation."""
    driven = Driven(opening, held=held, is_consistent=is_consistent)
    driven.spool_ids = {member: spool_id_of(member) for member in ROUTE.members}
    driven.resolve()
    assert driven.step(PipelineTaken(None)) == (TakeSpool(),)
    return read(driven, HeadRead(head, mod_revision, stored), fate)


def read(driven: Driven, head: HeadRead, fate: Fate | None = None) -> Driven:
    assert driven.step(SpoolTaken(driven.held)) == (ReadHead(),)
    assert driven.step(head) == (Prepare(driven.held, fate),)
    (synchronise,) = driven.prepared()
    assert isinstance(synchronise, Synchronise)
    assert synchronise.is_first
    return driven


def answered(driven: Driven, copies: dict[ProcessId, CopyEnd] | None = None, status: Status = Status.OK) -> Effects:
    """All peers answer, with what they have of the epoch."""
    for peer in driven.pipe.pipeline.peers:
        copy = (copies or {}).get(peer)
        held = None if status is Status.OK else fragment(0)
        driven.pipe.pipeline.answered(peer, Answer(status, fragment=held, claim=Claim(spool_id_of(peer), copy)))
    return driven.step(Answered(driven.asks.pop()))


def change_of(effects: Effects) -> HeadChange:
    advertised = effects[-1]
    assert isinstance(advertised, Advertise)
    assert advertised.change is not None
    return advertised.change


def validating(driven: Driven | None = None) -> Driven:
    """With an epoch of its own."""
    driven = driven or epochal()
    answered(driven)
    assert driven.step(Transacted(12))[-1] == AwaitReady()
    return driven


# Open before acknowledging (DH-1).


def test_an_epoch_is_opened_by_the_transaction_that_advertises_the_route() -> None:
    """DH-1."""
    driven = epochal(is_consistent=False)
    pipeline = driven.pipe.pipeline
    (advertised,) = answered(driven)
    assert advertised == Advertise(driven.resolution_held, HeadChange(FIRST, 0))
    with pytest.raises(AssertionError, match="before the epoch is open"):
        pipeline.content(b"x", 0)
    told = EpochTerms(FIRST_MARK)
    assert driven.step(Transacted(12)) == (EpochOpened(pipeline, told, None), Acknowledge(pipeline, 0), Resolve(12))
    assert pipeline.is_open
    assert (pipeline.record, pipeline.record_revision) == (FIRST, 12)


def test_a_change_of_the_head_alone_waits_for_no_revision() -> None:
    """DH-1: the key space does not see it."""
    driven = epochal()
    assert change_of(answered(driven)) == HeadChange(FIRST, 0)
    assert driven.step(Transacted(12))[-1] == AwaitReady()


def test_the_transaction_compares_the_record_and_the_incarnation() -> None:
    """DH-1."""
    resolution = resolution_of(ROUTE, is_consistent=False)
    key = head_key(ROOT, JOURNAL)
    assert resolution.item is not None
    for made in (
        advertise(resolution, HeadChange(FIRST, 8)),
        set_suspend(resolution, SuspendLevel.FULL, 0, HeadChange(FIRST, 8)),
    ):
        assert Compare(key, Target.MOD, 8) in made.compares
        assert Put(key, FIRST.encoded()) in made.operations
        assert Compare(item_key(ROOT, JOURNAL), Target.CREATE, 4) in made.compares
    alone = record(ROOT, JOURNAL, HeadChange(FIRST, 8))
    assert alone.compares == (Compare(key, Target.MOD, 8),)
    assert alone.operations == (Put(key, FIRST.encoded()),)
    assert all("heads" not in operation.key for operation in advertise(resolution).operations)


def test_the_previous_epoch_is_closed_in_the_same_change_and_what_the_store_has_goes() -> None:
    """DH-1, DH-12."""
    held = spool_with(b"hello", FIRST_MARK)
    driven = epochal(FIRST, mod_revision=8, held=held)
    copies = {peer: CopyEnd(FIRST_MARK, 5, X) for peer in (B, C)}
    assert change_of(answered(driven, copies)) == HeadChange(opened(FIRST, 4, Start(5, X), IDS), 8)
    effects = driven.step(Transacted(12))
    pipeline = driven.pipe.pipeline
    told = EpochTerms(SECOND_MARK, 5)
    assert effects[:2] == (EpochOpened(pipeline, told, FIRST_MARK), Acknowledge(pipeline, 5))
    driven = epochal(FIRST, mod_revision=8, held=spool_with(b"hello", FIRST_MARK), stored=[(0, 5)])
    assert [epoch.number for epoch in change_of(answered(driven, copies)).head.epochs] == [2]


def test_a_broken_pipeline_is_followed_by_another_epoch_though_the_route_is_the_same() -> None:
    """DH-1: a new pipeline is always a new epoch."""
    first = validating()
    first.pipe.pipeline.failed(B, UnavailableError("the stream broke"))
    driven = Driven(held=MemorySpool())
    driven.spool_ids = first.spool_ids
    driven.resolve()
    assert driven.step(PipelineTaken(first.pipe.pipeline)) == (ShutDown(first.pipe.pipeline), TakeSpool())
    read(driven, HeadRead(FIRST, 12))
    assert change_of(answered(driven)).head.last == Epoch(2, 0, tuple(sorted(IDS)))


def test_a_pipeline_with_an_epoch_is_used_again_without_another() -> None:
    first = validating()
    driven = Driven(held=first.held)
    driven.spool_ids = first.spool_ids
    driven.resolve()
    assert driven.step(PipelineTaken(first.pipe.pipeline)) == (AwaitReady(),)


def test_who_may_have_lost_its_lease_opens_nothing() -> None:
    """DH-11."""
    driven = epochal()
    for peer in (B, C):
        driven.pipe.pipeline.answered(peer, Answer(Status.OK, claim=Claim(spool_id_of(peer))))
    effects = driven.step(Answered(driven.asks.pop(), is_certain=False))
    assert [type(effect) for effect in effects] == [ShutDown, GiveBack, Fail]


# What comes of the transaction.


def test_an_answer_of_etcd_that_is_lost_costs_the_pipeline() -> None:
    """DH-1: whether the epoch is open, only the record can tell."""
    driven = epochal()
    answered(driven)
    lost = UnavailableError("etcd did not answer")
    assert driven.step(Failed(lost)) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Fail(lost))


def test_a_record_that_was_changed_by_others_is_read_again() -> None:
    """DH-1."""
    driven = epochal()
    answered(driven)
    assert driven.step(Transacted(None)) == (ShutDown(driven.pipe.pipeline), TakeSpool())
    read(driven, HeadRead(FIRST, 11))
    assert change_of(answered(driven)) == HeadChange(opened(FIRST, 4, Start(0), IDS), 11)


def test_a_record_that_was_not_changed_means_that_etcd_has_more_to_tell() -> None:
    driven = epochal(FIRST, mod_revision=8)
    answered(driven)
    driven.step(Transacted(None))
    driven.step(SpoolTaken(driven.held))
    assert driven.step(HeadRead(FIRST, 8)) == (Release(driven.held), Resolve(11))


def test_what_is_known_by_now_is_not_waited_for() -> None:
    """What the transaction failed on came with a later Resolution already."""
    driven = epochal(FIRST, mod_revision=8)
    answered(driven)
    driven.step(Transacted(None))
    driven.fsm.resolution = replace(driven.resolution(revision=11), spool_ids=driven.spool_ids)
    driven.step(SpoolTaken(driven.held))
    assert driven.step(HeadRead(FIRST, 8)) == (Prepare(driven.held, None),)


def test_a_record_that_others_keep_changing_is_not_read_for_ever() -> None:
    driven = epochal()
    for turn in range(1, RECORD_TRIES_MAX):
        answered(driven)
        driven.step(Transacted(None))
        read(driven, HeadRead(None, turn))
    answered(driven)
    assert isinstance(driven.step(Transacted(None))[-1], Fail)


def test_a_record_that_cannot_be_read_gives_the_spool_back() -> None:
    driven = Driven()
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    failure = UnavailableError("etcd did not answer")
    assert driven.step(Failed(failure)) == (Release(driven.held), GiveBack(None), Fail(failure))
    assert driven.held.releases == 1


# Where the journal goes on (DH-5, DH-6).


def test_the_furthest_copy_that_takes_part_decides_and_not_where_a_spool_is() -> None:
    """DH-5."""
    driven = epochal(FIRST, mod_revision=8)
    far = {B: CopyEnd(FIRST_MARK, 9, X), C: CopyEnd(FIRST_MARK, 7, LabelSet())}
    assert answered(driven, far) == (Synchronise(driven.pipe.pipeline, fragment(9), X, False),)
    assert change_of(answered(driven, far)) == HeadChange(opened(FIRST, 4, Start(9, X), IDS), 8)


def test_a_peer_that_has_gone_somewhere_without_commits_does_not_decide() -> None:
    """DH-5: by Gazette's rules all would follow it."""
    driven = epochal(FIRST, mod_revision=8)
    elsewhere = Answer(Status.PROPOSAL_MISMATCH, fragment=fragment(70), registers=X, claim=Claim(spool_id_of(B)))
    driven.pipe.pipeline.answered(B, elsewhere)
    driven.pipe.pipeline.answered(C, Answer(Status.OK, claim=Claim(spool_id_of(C), CopyEnd(FIRST_MARK, 9, X))))
    (synchronise,) = driven.step(Answered(driven.asks.pop()))
    assert synchronise == Synchronise(driven.pipe.pipeline, fragment(9), X, False)


def test_a_closed_epoch_says_where_to_go_on() -> None:
    """DH-6."""
    head = closed(FIRST, IDS[0], CopyEnd(FIRST_MARK, 30, X))
    driven = epochal(head, mod_revision=8)
    assert answered(driven) == (Synchronise(driven.pipe.pipeline, fragment(30), X, False),)
    assert change_of(answered(driven)).head.last == Epoch(2, 30, tuple(sorted(IDS)), X)


def test_a_peer_that_is_ahead_of_the_record_has_it_read_again() -> None:
    """DH-5."""
    driven = epochal(FIRST, mod_revision=8)
    assert answered(driven, {B: CopyEnd(SECOND_MARK, 9, X)}) == (ShutDown(driven.pipe.pipeline), TakeSpool())


def test_a_record_of_an_earlier_incarnation_is_ignored_and_replaced() -> None:
    """DH-13."""
    driven = epochal(DurableHead(3, (Epoch(8, 500, (spool_id_of(D),)),)), mod_revision=8)
    assert change_of(answered(driven)) == HeadChange(FIRST, 8)


@pytest.mark.parametrize(
    ("head", "mark", "fate"),
    [
        (closed(FIRST, IDS[0], CopyEnd(FIRST_MARK, 3, X)), FIRST_MARK, CutAt(3)),
        (DurableHead(4, (Epoch(2, 5, tuple(IDS)),)), FIRST_MARK, Stored()),
        (None, FIRST_MARK, Unknown()),
        (FIRST, FIRST_MARK, None),
    ],
)
def test_our_own_copy_is_retired_unless_it_takes_part(
    head: DurableHead | None, mark: EpochMark, fate: Fate | None
) -> None:
    """DH-5, DH-8."""
    driven = epochal(head, mod_revision=8, held=spool_with(b"hello", mark), fate=fate)
    assert driven.pipe.pipeline.terms == terms(head, 4)
    assert driven.pipe.pipeline.claim.copy == (CopyEnd(mark, 5, X) if fate is None else None)


# Nobody can prove where it ends.


def test_an_unproven_head_is_refused_and_the_pipeline_is_not_kept() -> None:
    """DH-6."""
    driven = epochal(LOST, mod_revision=8)
    shut_down, given_back, verdict = answered(driven)
    assert (shut_down, given_back) == (ShutDown(driven.pipe.pipeline), GiveBack(None))
    assert refused(verdict).status is Status.INDEX_HAS_GREATER_OFFSET


def test_members_of_an_unproven_journal_are_in_step_all_the_same() -> None:
    driven = epochal(LOST, mod_revision=8, is_consistent=False)
    assert answered(driven) == (ShutDown(driven.pipe.pipeline), Advertise(driven.resolution_held))
    assert driven.step(Transacted(12)) == (Resolve(12),)


AT_FIVE = AppendOpening(JOURNAL, offset=5)


def confirming(head: DurableHead = LOST, opening: AppendOpening = AT_FIVE) -> Driven:
    driven = epochal(head, mod_revision=8, opening=opening)
    assert answered(driven) == (NextChunk(),)
    return driven


def listing(head: DurableHead = LOST, opening: AppendOpening = AT_FIVE) -> Driven:
    driven = confirming(head, opening)
    driven.step(Intent())
    assert driven.step(End()) == (AwaitReady(is_fresh=True),)
    return driven


def test_only_an_append_without_content_is_an_operators_word() -> None:
    """DH-11: clients name an offset because they know one."""
    for event in (Chunk(b"x"), End()):
        driven = confirming()
        shut_down, given_back, verdict = driven.step(event)
        assert (shut_down, given_back) == (ShutDown(driven.pipe.pipeline), GiveBack(None))
        assert refused(verdict).status is Status.INDEX_HAS_GREATER_OFFSET


def test_a_reset_is_refused_while_a_holder_is_a_member() -> None:
    """DH-11: it closes or takes part by itself."""
    driven = listing()
    effects = driven.step(Ready(EMPTY, spool_ids=frozenset((spool_id_of(A), spool_id_of(D)))))
    assert refused(effects[-1]).status is Status.INDEX_HAS_GREATER_OFFSET


def test_a_holder_that_said_it_is_damaged_does_not_keep_an_operator_from_a_reset() -> None:
    """DH-11: it cannot close by itself, and so nobody could ever do anything."""
    damaged = replace(LOST, epochs=(replace(LOST.epochs[0], damaged=(spool_id_of(D),)),))
    driven = listing(damaged)
    (synchronise,) = driven.step(Ready(EMPTY, spool_ids=frozenset((spool_id_of(A), spool_id_of(D)))))
    assert synchronise == Synchronise(driven.pipe.pipeline, fragment(5), LabelSet(), False)


def test_a_reset_may_change_the_registers_though_it_has_no_content() -> None:
    """DH-11: with the registers of that append."""
    driven = listing(opening=replace(AT_FIVE, union_registers=X))
    (synchronise,) = driven.step(Ready(EMPTY, spool_ids=frozenset((spool_id_of(A),))))
    assert synchronise == Synchronise(driven.pipe.pipeline, fragment(5), X, False)
    change = change_of(answered(driven))
    assert change.head.epochs[0].registers == X
    driven.step(Transacted(12))
    commit, _ = driven.step(Ready(EMPTY))
    assert commit == Commit(driven.pipe.pipeline, fragment(5), X)


def test_a_reset_is_not_below_what_is_listed() -> None:
    """DH-11."""
    driven = listing()
    effects = driven.step(Ready(Summary(0, 6, 1), spool_ids=frozenset((spool_id_of(A),))))
    assert refused(effects[-1]).status is Status.WRONG_APPEND_OFFSET
    assert GiveBack(None) in effects


def test_a_reset_closes_the_epoch_by_the_operators_word_and_opens_another() -> None:
    """DH-11."""
    driven = listing()
    pipeline = driven.pipe.pipeline
    effects = driven.step(Ready(Summary(0, 5, 1), spool_ids=frozenset((spool_id_of(A),))))
    assert effects == (Synchronise(pipeline, fragment(5), LabelSet(), False),)
    change = change_of(answered(driven))
    assert change == HeadChange(opened(LOST, 4, Start(5, is_forced=True), IDS), 8)
    assert change.head.epochs[0].is_forced
    assert driven.step(Transacted(12))[-1] == AwaitReady()
    # The client has said all it had to say.
    commit, given_back = driven.step(Ready(Summary(0, 5, 1)))
    assert commit == Commit(pipeline, fragment(5), LabelSet())
    assert given_back == GiveBack(pipeline)


def test_a_reset_whose_pipeline_broke_meanwhile_begins_again() -> None:
    driven = listing()
    driven.pipe.pipeline.failed(B, UnavailableError("the stream broke"))
    assert driven.step(Ready(EMPTY)) == (ShutDown(driven.pipe.pipeline), TakeSpool())


# Members without epochs (section 6), and suspension.


def test_a_route_with_a_member_without_epochs_makes_the_head_void_with_its_advertisement() -> None:
    """Section 6."""
    driven = Driven(is_consistent=False)
    driven.spool_ids = {A: spool_id_of(A), B: spool_id_of(B)}
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    assert driven.step(HeadRead(FIRST, 8)) == (Open(driven.held, driven.resolution_held, None),)
    driven.open_as_it_is()
    driven.pipe.answer_all(OK)
    void = voided(FIRST, 4)
    assert void is not None
    (advertised,) = driven.step(Answered(driven.asks.pop()))
    assert advertised == Advertise(driven.resolution_held, HeadChange(void, 8))
    told, *_ = driven.step(Transacted(12))
    assert told == Voided()
    assert driven.pipe.pipeline.is_open
    assert driven.pipe.pipeline.terms is None


def test_the_first_route_of_our_own_kind_alone_opens_an_epoch_by_gazettes_rules() -> None:
    """Section 6: the head is no more void, and nobody knows where the open epoch ended."""
    void = voided(FIRST, 4)
    driven = Driven(held=spool_with(b"hello", FIRST_MARK))
    driven.spool_ids = {member: spool_id_of(member) for member in ROUTE.members}
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    assert driven.step(HeadRead(void, 8)) == (Open(driven.held, driven.resolution_held, terms(void, 4)),)
    driven.open_as_it_is(terms(void, 4))
    driven.pipe.answer_all(OK)
    head = change_of(driven.step(Answered(driven.asks.pop()))).head
    assert not head.is_void
    assert head.last == Epoch(2, 5, tuple(sorted(IDS)), X)


def test_a_full_suspension_closes_the_epoch_and_ends_the_pipeline() -> None:
    """DH-14, schedule 'suspended (full), resumed'."""
    driven = validating(epochal(opening=AppendOpening(JOURNAL, suspend=SuspendMode.NOW)))
    pipeline = driven.pipe.pipeline
    shut = closed(FIRST, spool_id_of(A), CopyEnd(FIRST_MARK, 0, LabelSet()))
    assert shut is not None
    (suspend,) = driven.step(Ready(EMPTY))
    assert suspend == SetSuspend(driven.resolution_held, SuspendLevel.FULL, 0, HeadChange(shut, 12))
    assert driven.step(Transacted(13)) == (ShutDown(pipeline), Resolve(13))


def test_a_full_suspension_that_did_not_hold_reads_the_record_again() -> None:
    driven = validating(epochal(opening=AppendOpening(JOURNAL, suspend=SuspendMode.NOW)))
    driven.step(Ready(EMPTY))
    assert driven.step(Transacted(None)) == (ShutDown(driven.pipe.pipeline), TakeSpool())


def going_on_at_five() -> Driven:
    """The store has more than any member, as of a journal that other brokers had before."""
    driven = validating(epochal(opening=AT_FIVE))
    assert driven.step(Ready(Summary(0, 5, 1))) == (NextChunk(),)
    return driven


def test_going_on_elsewhere_is_another_epoch() -> None:
    """DH-6, DH-11: by the word of an operator, and by a listing that is not from some minutes ago."""
    driven = going_on_at_five()
    driven.step(Intent())
    assert driven.step(End()) == (AwaitReady(is_fresh=True),)
    (synchronise,) = driven.step(Ready(Summary(0, 5, 1), spool_ids=frozenset(IDS)))
    assert synchronise == Synchronise(driven.pipe.pipeline, fragment(5), LabelSet(), False)
    change = change_of(answered(driven))
    assert change == HeadChange(opened(FIRST, 4, Start(5, is_forced=True), IDS), 12)
    assert driven.fsm.state is State.UPDATE_ASSIGNMENTS
    driven.step(Transacted(13))
    commit, _ = driven.step(Ready(Summary(0, 5, 1)))
    assert commit == Commit(driven.pipe.pipeline, fragment(5), LabelSet())


def test_who_has_content_does_not_go_on_elsewhere() -> None:
    """DH-11: clients name an offset because they know one."""
    driven = going_on_at_five()
    given_back, verdict = driven.step(Chunk(b"x"))
    assert given_back == GiveBack(driven.pipe.pipeline)
    assert refused(verdict).status is Status.INDEX_HAS_GREATER_OFFSET


def test_nobody_goes_on_below_what_is_listed_by_now() -> None:
    """DH-11."""
    driven = going_on_at_five()
    driven.step(Intent())
    driven.step(End())
    _, verdict = driven.step(Ready(Summary(0, 6, 1)))
    assert refused(verdict).status is Status.WRONG_APPEND_OFFSET


def test_a_journal_that_was_void_never_goes_on_below_what_is_on_record() -> None:
    """Section 6: bytes below were acknowledged before members without epochs came, and none of theirs may be left."""
    void = DurableHead(4, (Epoch(5, 5000, (spool_id_of(D),), X),), is_void=True)
    driven = Driven(is_consistent=True)
    driven.spool_ids = {member: spool_id_of(member) for member in ROUTE.members}
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    driven.step(HeadRead(void, 8))
    driven.open_as_it_is(terms(void, 4))
    (synchronise,) = answered(driven)
    assert synchronise == Synchronise(driven.pipe.pipeline, fragment(5000), X, False)
    change = change_of(answered(driven))
    assert change == HeadChange(opened(void, 4, Start(5000, X), IDS), 8)
    assert not change.head.is_void


def test_an_append_is_acknowledged_only_when_every_holder_has_it() -> None:
    """DH-3."""
    driven = validating()
    driven.step(Ready(EMPTY))
    driven.step(Chunk(b"hello"))
    driven.step(Intent())
    driven.step(End())
    driven.sealed()
    assert driven.held.spool.copy == CopyEnd(FIRST_MARK, 5, LabelSet()), "DH-2"
    driven.pipe.pipeline.answered(B, OK)
    assert driven.asks == [], "one is missing"
    driven.pipe.pipeline.failed(C, UnavailableError("the stream broke"))
    (verdict,) = driven.step(Answered(driven.asks.pop()))
    assert isinstance(verdict, Fail)
    assert driven.pipe.pipeline.acked_through == 0


def test_the_terms_that_peers_are_told_are_those_of_the_record_and_then_those_of_the_epoch() -> None:
    driven = validating()
    (stream, *_) = driven.pipe.streams.values()
    assert [proposal.epoch for proposal in stream.proposals] == [EpochTerms(EpochMark(4, 0), is_closed=True)]
    driven.step(Ready(EMPTY))
    driven.step(Chunk(b"hello"))
    driven.step(Intent())
    driven.step(End())
    driven.sealed()
    assert stream.proposals[-1].epoch == EpochTerms(FIRST_MARK)


def test_prepared_opens_for_the_terms_of_the_record() -> None:
    driven = Driven()
    driven.spool_ids = {member: spool_id_of(member) for member in ROUTE.members}
    driven.resolve()
    driven.step(PipelineTaken(None))
    driven.step(SpoolTaken(driven.held))
    driven.step(HeadRead(FIRST, 8))
    assert driven.step(Prepared()) == (Open(driven.held, driven.resolution_held, terms(FIRST, 4)),)


def test_a_pipeline_that_has_an_epoch_is_of_no_use_once_it_is_not_known_whether_that_is_over() -> None:
    """DH-1: the answer is lost of a transaction that would go on elsewhere, or suspend."""
    lost = UnavailableError("etcd did not answer")
    elsewhere = going_on_at_five()
    elsewhere.step(Intent())
    elsewhere.step(End())
    elsewhere.step(Ready(Summary(0, 5, 1)))
    answered(elsewhere)
    suspending = validating(epochal(opening=AppendOpening(JOURNAL, suspend=SuspendMode.NOW)))
    suspending.step(Ready(EMPTY))
    for driven in (elsewhere, suspending):
        assert driven.step(Failed(lost)) == (ShutDown(driven.pipe.pipeline), GiveBack(None), Fail(lost))
