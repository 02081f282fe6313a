"""A checker that never failed is not to be trusted: each is given a history that is good and some that are not."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from tests.simulation.checkers import Final, FinalJournal, Violation, check
from tests.simulation.history import Append, Fence, History
from tests.simulation.spans import Span
from tests.simulation.store import StoredFragment

J = "acme/orders"


class Run:
    """A history under the hand of a test. Appends go to the head, unless they are told to go elsewhere."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.content = b""
        self.journal = FinalJournal()
        self.final = Final()

    def append(self, client: str = "c1", fence: Fence | None = None, length: int = 0) -> Append:
        """One that is answered with ok."""
        append = self.history.append(client, J, length, fence)
        return self.ok(append)

    def ok(self, append: Append) -> Append:
        begin = self.written(append)
        self.history.ok(append, begin, begin + len(append.content))
        return append

    def written(self, append: Append) -> int:
        """Its bytes are in the journal, whatever its client will be told."""
        begin = len(self.content)
        self.content += append.content
        return begin

    def read(self, begin: int = 0, end: int | None = None, reader: str = "r1", broker: str = "b1") -> None:
        end = len(self.content) if end is None else end
        self.history.chunk(reader, J, begin, self.content[begin:end], broker)

    def stored(self, begin: int, content: bytes, name_of: bytes | None = None) -> None:
        digest = hashlib.sha1(content if name_of is None else name_of).digest()
        held = StoredFragment(Fragment(J, begin, begin + len(content), digest, CompressionCodec.NONE), content)
        self.journal = replace(self.journal, objects=[*self.journal.objects, held])

    def finish(self) -> None:
        """Two brokers are read from the first offset to the last."""
        for broker in ("b1", "b2"):
            if self.content:
                self.read(reader=f"final {broker}", broker=broker)
        self.journal = replace(self.journal, head=len(self.content), readers=("final b1", "final b2"))

    def violations(self, *, over_budget: bool = False) -> list[Violation]:
        return check(self.history, replace(self.final, journals={J: self.journal}), over_budget=over_budget)

    def found(self, *, over_budget: bool = False) -> set[tuple[str, str]]:
        return {(violation.check, violation.name) for violation in self.violations(over_budget=over_budget)}


@pytest.fixture
def run() -> Run:
    return Run()


LOST_ACK = ("C1", "lost-ack")
INCONSISTENT = ("C2", "inconsistent-offset")
DUPLICATE = ("C3", "duplicate")
ABORTED = ("C4", "aborted-read")
TIME_TRAVEL = ("C5", "time-travel")
NON_MONOTONIC = ("C6", "non-monotonic send")
SKIP, BACKWARDS = ("C7", "skip"), ("C7", "backwards")
CHANGED, VANISHED = ("C8", "read-then-changed"), ("C8", "read-then-vanished")
TORN = ("C9", "torn append")
SPLIT = ("C10", "split fence")
REGRESS = ("C11", "head regress")
SCRUB = ("C13", "scrub")
STUCK = ("C14", "stuck")


def test_a_good_history_has_no_violation(run: Run) -> None:
    history = run.history
    run.append("c1")
    # Two at once; the answer of the first comes last.
    first, second = history.append("c1", J), history.append("c2", J, 100)
    run.read(0, 10)
    begin = run.written(first)
    run.ok(second)
    history.ok(first, begin, begin + len(first.content))
    unknown = history.append("c2", J)
    run.written(unknown)
    history.unknown(unknown)
    history.failed(history.append("c2", J), "REGISTER_MISMATCH")
    run.ok(history.repeat(unknown))
    barrier = history.barrier("c1", J)
    history.ok(barrier, len(run.content), len(run.content))
    run.read(10)
    history.head_is(history.head("b1/0/1", J), 5)
    history.head_is(history.head("b1/0/1", J), 5)
    history.head_is(history.head("b1/1/1", J), 0)
    history.append("c3", J)
    run.stored(0, run.content[:30])
    run.stored(20, run.content[20:])
    healed = history.moment()
    run.append("c1")
    run.stored(len(run.content) - 18, run.content[-18:])
    run.finish()
    run.journal = replace(run.journal, stored_through=len(run.content))
    run.final = Final(healed=healed, recovery_s=10.0, clients=("c1",))
    assert run.violations() == []


def test_an_empty_history_has_no_violation(run: Run) -> None:
    assert check(run.history, Final()) == []


# C1, C2 and C8


def test_acknowledged_bytes_that_read_differently_later_are_lost(run: Run) -> None:
    append = run.append()
    other = run.history.append("c2", J)
    run.history.chunk("r1", J, append.begin, other.content, "b2")
    assert {LOST_ACK, INCONSISTENT} <= run.found()
    assert {LOST_ACK, INCONSISTENT} <= run.found(over_budget=True)


def test_acknowledged_bytes_that_the_store_has_differently_are_lost(run: Run) -> None:
    append = run.append()
    other = run.history.append("c2", J)
    run.stored(append.begin, other.content)
    run.finish()
    assert {LOST_ACK, INCONSISTENT} <= run.found()


def test_acknowledged_bytes_that_are_missing_at_the_end_are_lost(run: Run) -> None:
    run.append()
    last = run.append()
    run.read(0, last.begin, "final b1")
    run.read(0, None, "final b2", "b2")
    run.journal = replace(run.journal, readers=("final b1", "final b2"))
    (violation,) = run.violations()
    assert (violation.check, violation.name) == LOST_ACK
    assert "final b1" in violation.text
    assert run.found(over_budget=True) == set(), "that something is missing was to be expected"


def test_two_acknowledgements_of_one_offset_are_inconsistent(run: Run) -> None:
    first, second = run.history.append("c1", J), run.history.append("c2", J)
    run.history.ok(first, 0, 18)
    run.history.ok(second, 0, 18)
    assert INCONSISTENT in run.found()


def test_two_readers_who_differ_are_inconsistent(run: Run) -> None:
    first, second = run.history.append("c1", J), run.history.append("c2", J)
    run.history.chunk("r1", J, 0, first.content, "b1")
    run.history.chunk("r2", J, 0, second.content, "b2")
    assert {INCONSISTENT, CHANGED} <= run.found()
    assert LOST_ACK not in run.found()


def test_the_middle_of_a_chunk_is_compared_too(run: Run) -> None:
    run.append()
    run.append()
    spoilt = bytearray(run.content)
    spoilt[20] ^= 1
    run.history.chunk("r1", J, 0, bytes(spoilt), "b1")
    (violation,) = (found for found in run.violations() if found.check == "C1")
    assert "append 2" in violation.text


def test_bytes_of_an_unknown_append_that_were_read_may_not_vanish(run: Run) -> None:
    unknown = run.history.append("c1", J)
    run.written(unknown)
    run.read()
    run.history.unknown(unknown)
    run.content = b""
    run.finish()
    assert run.found() == {VANISHED}


def test_the_loss_of_the_only_copy_of_an_unacknowledged_tail_is_beyond_what_was_promised(run: Run) -> None:
    run.append()
    unknown = run.history.append("c1", J)
    begin = run.written(unknown)
    run.read()
    end = len(run.content)
    run.content = run.content[:begin]
    run.finish()
    run.journal = replace(run.journal, lost_tails=(Span(begin, end),))
    assert run.found() == set()
    run.journal = replace(run.journal, lost_tails=(Span(begin, end - 1),))
    assert run.found() == {VANISHED}


def test_no_loss_excuses_that_acknowledged_bytes_are_gone(run: Run) -> None:
    append = run.append()
    run.read()
    run.content = b""
    run.finish()
    run.journal = replace(run.journal, lost_tails=(Span(append.begin, append.end),))
    assert LOST_ACK in run.found()


# C3


def test_a_value_may_not_stand_twice(run: Run) -> None:
    append = run.append()
    run.content += append.content
    run.read()
    assert run.found() == {DUPLICATE}


def test_a_value_may_stand_as_often_as_it_was_sent(run: Run) -> None:
    first = run.history.append("c1", J)
    run.written(first)
    run.history.unknown(first)
    run.ok(run.history.repeat(first))
    run.finish()
    assert run.found() == set()
    run.content += first.content
    run.read(36, None, "r2")
    assert run.found() >= {DUPLICATE}


def test_a_repetition_that_was_refused_does_not_excuse_a_second_copy(run: Run) -> None:
    first = run.history.append("c1", J)
    run.written(first)
    run.history.unknown(first)
    run.history.failed(run.history.repeat(first))
    run.content += first.content
    run.read()
    assert run.found() == {DUPLICATE}


# C4


@pytest.mark.parametrize("where", ["reader", "store"])
def test_what_was_refused_is_never_seen(run: Run, where: str) -> None:
    append = run.history.append("c1", J)
    run.history.failed(append, "NOT_ALLOWED")
    run.written(append)
    if where == "reader":
        run.read()
    else:
        run.stored(0, run.content)
    assert run.found() == {ABORTED}
    assert run.found(over_budget=True) == {ABORTED}


# C5


def test_an_append_does_not_end_up_before_one_that_had_ended_when_it_began(run: Run) -> None:
    first = run.history.append("c1", J)
    run.history.ok(first, 100, 118)
    second = run.history.append("c2", J)
    run.history.ok(second, 0, 18)
    assert run.found() == {TIME_TRAVEL}


def test_concurrent_appends_may_end_up_in_any_order(run: Run) -> None:
    first, second = run.history.append("c1", J), run.history.append("c2", J)
    run.history.ok(first, 100, 118)
    run.history.ok(second, 0, 18)
    assert run.found() == set()


def test_a_barrier_tells_no_less_than_what_was_acknowledged(run: Run) -> None:
    append = run.append()
    barrier = run.history.barrier("c2", J)
    run.history.ok(barrier, append.begin, append.begin)
    assert run.found() == {TIME_TRAVEL}


# C6


def test_the_appends_of_one_client_keep_their_order_in_the_content(run: Run) -> None:
    """The answers are in order; what stands there is not."""
    first, second = run.append(), run.append()
    run.history.chunk("r1", J, 0, second.content + first.content, "b1")
    violations = run.found()
    assert {LOST_ACK, INCONSISTENT} <= violations
    third = Run()
    one = third.history.append("c1", J)
    third.history.ok(one, 50, 68)
    two = third.history.append("c1", J)
    third.history.ok(two, 0, 18)
    assert third.found() == {TIME_TRAVEL, NON_MONOTONIC}


# C7


def test_a_reader_never_goes_backwards(run: Run) -> None:
    run.append()
    run.read(0, 18)
    run.read(10, 18)
    assert run.found() == {BACKWARDS}


def test_a_jump_must_be_told(run: Run) -> None:
    run.written(run.history.append("c1", J))
    run.append()
    run.read(0, 4)
    run.read(18)
    assert SKIP in run.found()


def test_a_jump_never_goes_over_acknowledged_bytes(run: Run) -> None:
    run.append()
    run.append()
    run.append()
    run.read(0, 18)
    run.history.chunk("r1", J, 36, run.content[36:], "b1", is_jump=True)
    (violation,) = run.violations()
    assert "append 2" in violation.text
    assert (violation.check, violation.name) == SKIP


def test_a_jump_over_a_hole_is_fine(run: Run) -> None:
    run.append()
    run.read(0, 18)
    later = run.history.append("c1", J)
    run.history.ok(later, 100, 118)
    run.history.chunk("r1", J, 100, later.content, "b1", is_jump=True)
    assert run.found() == set()


def test_what_is_acknowledged_after_a_jump_was_not_jumped_over(run: Run) -> None:
    slow = run.history.append("c1", J)
    run.append("c2")
    run.history.chunk("r1", J, 100, b"", "b1")
    run.read(0, 18)
    run.history.chunk("r1", J, 136, b"", "b1", is_jump=True)
    run.history.ok(slow, 18, 36)
    assert SKIP not in run.found()


# C9


def test_half_an_append_is_not_all_there_is(run: Run) -> None:
    run.append()
    unknown = run.history.append("c1", J)
    run.content += unknown.content[:10]
    run.read()
    assert run.found() == set(), "whoever reads on may find the rest"
    run.finish()
    assert run.found() == {TORN}


def test_half_an_append_followed_by_another_is_torn(run: Run) -> None:
    unknown = run.history.append("c1", J)
    run.content += unknown.content[:10]
    run.append("c2")
    run.read()
    assert run.found() == {TORN}


def test_the_second_half_of_an_append_is_torn_off_if_nobody_finds_the_first(run: Run) -> None:
    append = run.history.append("c1", J)
    run.history.chunk("final b1", J, 8, append.content[8:], "b1")
    assert run.found() == set()
    run.journal = replace(run.journal, readers=("final b1",))
    assert run.found() == {TORN}


@pytest.mark.parametrize("junk", [b"junk", b"[99:20:1c735305||99]", b"[1:"], ids=["bytes", "value", "stub"])
def test_bytes_that_nobody_appended_are_noticed(run: Run, junk: bytes) -> None:
    run.append()
    run.content += junk
    run.append()
    run.read()
    assert run.found() == {TORN}


def test_two_interleaved_appends_are_torn(run: Run) -> None:
    one, other = run.history.append("c1", J, 60), run.history.append("c2", J, 60)
    run.content = one.content[:30] + other.content[:30] + one.content[30:] + other.content[30:]
    run.read()
    assert TORN in run.found()


def test_a_value_of_another_journal_does_not_belong_here(run: Run) -> None:
    stray = run.history.append("c1", "acme/payments")
    run.written(stray)
    run.read()
    assert run.found() == {TORN}


def test_a_value_may_land_in_a_later_incarnation(run: Run) -> None:
    append = run.history.append("c1", J)
    run.history.ok(append, 0, 18, journal=f"{J}@17")
    run.history.chunk("r1", f"{J}@17", 0, append.content, "b1")
    stray = run.history.append("c1", J)
    run.history.chunk("r1", f"{J}@17", 18, stray.content, "b1")
    assert run.found() == set()


@pytest.mark.parametrize("begin", range(1, 36))
@pytest.mark.parametrize("length", [1, 5, 17, 30])
def test_a_reader_may_begin_and_end_anywhere(run: Run, begin: int, length: int) -> None:
    for _ in range(4):
        run.written(run.history.append("c1", J))
    run.read(begin, begin + length)
    assert run.found() == set()


# C10


def test_a_register_has_one_winner_per_value(run: Run) -> None:
    run.append("c1", Fence(None, "a"))
    run.append("c1", Fence("a", "b"))
    run.append("c2", Fence("b", "c"))
    run.append("c2", Fence("c", None))
    assert run.found() == set()
    run.append("c1", Fence("a", "d"))
    assert run.found() == {SPLIT}


def test_two_who_were_told_that_they_won_are_noticed_wherever_they_stand(run: Run) -> None:
    """Between them lies what nobody has read, so the register cannot be followed from one to the other."""
    run.history.ok(run.history.append("c1", J, fence=Fence("a", "b")), 0, 18)
    run.history.ok(run.history.append("c2", J, fence=Fence("a", "c")), 100, 118)
    assert run.found() == {SPLIT}


def test_a_fenced_writer_never_succeeds_after_the_fence(run: Run) -> None:
    run.append("c1", Fence(None, "a"))
    run.append("c2", Fence("a", "b"))
    run.append("c1", Fence("a", None))
    run.read()
    assert run.found() == {SPLIT}


def test_an_unknown_append_that_stands_there_has_set_the_register(run: Run) -> None:
    run.append("c1", Fence(None, "a"))
    unknown = run.history.append("c2", J, fence=Fence("a", "b"))
    run.written(unknown)
    run.history.unknown(unknown)
    run.append("c1", Fence("a", "c"))
    run.read()
    assert run.found() == {SPLIT}


def test_behind_a_gap_the_register_is_not_known(run: Run) -> None:
    run.append("c1", Fence(None, "a"))
    gap = run.history.append("c2", J)
    run.history.unknown(gap)
    run.content += bytes(18)
    run.append("c1", Fence("b", None))
    run.read(0, 18)
    run.read(36, None, "r2")
    assert run.found() == set()


# C11


def test_the_head_of_a_replica_never_falls_in_one_life(run: Run) -> None:
    history = run.history
    history.head_is(history.head("b1/0/1", J), 50)
    history.head_is(history.head("b1/1/1", J), 0)
    assert run.found() == set()
    history.head_is(history.head("b1/0/1", J), 49)
    assert run.found() == {REGRESS}


def test_two_looks_at_a_head_at_once_may_be_answered_in_any_order(run: Run) -> None:
    history = run.history
    early, late = history.head("b1/0/1", J), history.head("b1/0/1", J)
    history.head_is(late, 50)
    history.head_is(early, 20)
    history.head("b1/0/1", J)
    assert run.found() == set()


# C13


def test_an_object_is_what_its_name_says(run: Run) -> None:
    run.append()
    run.stored(0, run.content, name_of=b"something else")
    assert run.found() == {SCRUB}


def test_objects_that_overlap_agree(run: Run) -> None:
    one, other = run.history.append("c1", J), run.history.append("c2", J)
    run.stored(0, one.content + other.content)
    run.stored(18, one.content)
    assert {SCRUB, INCONSISTENT} <= run.found()


def test_the_store_covers_everything_but_declared_holes(run: Run) -> None:
    run.append()
    run.append()
    run.stored(0, run.content[:18])
    assert run.found() == set()
    run.journal = replace(run.journal, stored_through=40)
    assert run.found() == {SCRUB}
    run.journal = replace(run.journal, holes=(Span(36, 40),))
    assert run.found() == {SCRUB}
    run.stored(18, run.content[18:])
    assert run.found() == set()


def test_a_hole_is_not_declared_over_acknowledged_bytes(run: Run) -> None:
    run.append()
    run.journal = replace(run.journal, stored_through=18, holes=(Span(0, 18),))
    assert run.found() == {SCRUB}


# C14


def test_everyone_succeeds_again_in_time(run: Run) -> None:
    run.append("c1")
    run.final = Final(healed=run.history.moment(), recovery_s=10.0, clients=("c1", "c2"))
    assert [violation.text.split()[0] for violation in run.violations()] == ["c1", "c2"]
    run.append("c1")
    late = run.history.append("c2", J)
    run.now_s = 10.1
    run.ok(late)
    assert [violation.text.split()[0] for violation in run.violations()] == ["c2"]
    assert run.found(over_budget=True) == set()


def test_nothing_is_left_behind(run: Run) -> None:
    run.final = Final(healed=run.history.moment(), leaks=("a lease that nobody keeps",))
    assert run.found() == {STUCK}


def test_a_violation_says_where_and_what() -> None:
    assert str(Violation("C1", "lost-ack", J, "gone")) == "C1 lost-ack in acme/orders: gone"
    assert str(Violation("C14", "stuck", "", "c1")) == "C14 stuck in the cluster: c1"
