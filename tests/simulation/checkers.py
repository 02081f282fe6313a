"""Checkers: a history and what was found at its end go in, violations come out. Each is a pure function.

The numbers and names are those of the table in the reliability reference. C12 is for consumers and C15 for logs; both
are elsewhere. A run that lost more copies than was promised to be survived is checked for one thing only: that nothing
*different* was ever served.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.simulation.content import Account, Conflict, Content, Placement, Source, Torn
from tests.simulation.history import Append, Chunk, History, Moment, Outcome
from tests.simulation.spans import Span, common, joined, without
from tests.simulation.store import StoredFragment


@dataclass(frozen=True, slots=True)
class Violation:
    check: str
    name: str
    journal: str
    text: str

    def __str__(self) -> str:
        return f"{self.check} {self.name} in {self.journal or 'the cluster'}: {self.text}"


@dataclass(frozen=True, slots=True)
class FinalJournal:
    """What a journal is after everything was healed."""

    head: int = 0
    # Readers of the history who, after that, read all there is from the first offset on: one per broker.
    readers: tuple[str, ...] = ()
    objects: Sequence[StoredFragment] = ()
    # Up to where the store must have everything; None if that was not waited for.
    stored_through: int | None = None
    # Offsets that hold nothing by the word of an operator, or because a fresh fragment was begun above them.
    holes: tuple[Span, ...] = ()
    # Decided tails that were never acknowledged and of which the run destroyed the only copy: beyond what was promised.
    lost_tails: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Final:
    journals: Mapping[str, FinalJournal] = field(default_factory=dict)
    # From when on nothing was broken any more, and how long everyone had to recover.
    healed: Moment | None = None
    recovery_s: float = 0.0
    # Who must have succeeded since.
    clients: tuple[str, ...] = ()
    # What is left that should not be: streams, leases, spools that wait to be uploaded.
    leaks: tuple[str, ...] = ()


class JournalCase:
    """All that concerns one journal, with what several checkers derive from it."""

    def __init__(self, journal: str, history: History, final: FinalJournal) -> None:
        self.journal = journal
        self.final = final
        self.appends = [append for append in history.appends if append.journal == journal]
        self.chunks = [chunk for chunk in history.chunks if chunk.journal == journal]
        self.heads = [head for head in history.heads if head.journal == journal]
        # By the number that stands in their content; from all journals, so that one that went astray is known.
        self.values = {append.number: append for append in history.appends if append.content and not append.repeats}
        self.repeats: dict[int, list[Append]] = defaultdict(list)
        for append in history.appends:
            if append.repeats:
                self.repeats[append.repeats.number].append(append)

    @cached_property
    def acked(self) -> list[Append]:
        return [append for append in self.appends if append.outcome is Outcome.OK]

    @cached_property
    def acked_spans(self) -> list[Span]:
        return joined((append.begin, append.end) for append in self.acked)

    @cached_property
    def content(self) -> Content:
        answers = [
            Account(append.begin, append.content, Source.ANSWER, str(append.number), _number(append.completed))
            for append in self.acked
        ]
        reads = [
            Account(chunk.offset, chunk.content, Source.READER, chunk.reader, chunk.read.number)
            for chunk in self.chunks
        ]
        stored = [
            Account(held.fragment.begin, held.content, Source.STORE, held.fragment.content_name)
            for held in self.final.objects
        ]
        return Content.of([*answers, *reads, *stored])

    @cached_property
    def parsed(self) -> tuple[list[Placement], list[Torn]]:
        return self.content.parsed(self.values)

    def attempts(self, number: int) -> list[Append]:
        """All appends that sent this value."""
        return [self.values[number], *self.repeats.get(number, [])]

    def covered_by(self, reader: str) -> list[Span]:
        return joined((chunk.offset, chunk.end) for chunk in self.chunks if chunk.reader == reader)

    def violation(self, check: str, name: str, text: str) -> Violation:
        return Violation(check, name, self.journal, text)


Checker = Callable[[JournalCase], Iterable[Violation]]


# C1


def lost_ack_by_content(case: JournalCase) -> Iterator[Violation]:
    """Somebody was later given other bytes than those that were acknowledged."""
    for conflict in case.content.conflicts:
        for append in case.acked:
            if append.begin <= conflict.offset < append.end and (other := _contradicting(append, conflict)):
                yield case.violation(
                    "C1", "lost-ack", f"append {append.number} is at {append.begin}, but {_told(conflict, other)}"
                )


def lost_ack_at_the_end(case: JournalCase) -> Iterator[Violation]:
    """Somebody who read everything at the end did not get bytes that were acknowledged."""
    for reader in case.final.readers:
        for span in without(case.acked_spans, case.covered_by(reader)):
            numbers = [append.number for append in case.acked if append.begin < span.end and span.begin < append.end]
            yield case.violation("C1", "lost-ack", f"{reader} did not get {span} of appends {numbers[:8]}")


def _contradicting(append: Append, conflict: Conflict) -> Account | None:
    """The account that says something else than the append, later than its answer."""
    expected = append.content[conflict.offset - append.begin]
    for account in (conflict.one, conflict.other):
        at = conflict.offset - account.offset
        later = account.moment == 0 or account.moment > _number(append.completed)
        if later and account.source is not Source.ANSWER and account.content[at] != expected:
            return account
    return None


# C2


def inconsistent_offset(case: JournalCase) -> Iterator[Violation]:
    for conflict in case.content.conflicts:
        yield case.violation("C2", "inconsistent-offset", _told(conflict, conflict.other))


# C3


def duplicate(case: JournalCase) -> Iterator[Violation]:
    placements, _ = case.parsed
    counts = Counter(placement.number for placement in placements)
    for number, count in sorted(counts.items()):
        sent = [append for append in case.attempts(number) if append.outcome is not Outcome.FAILED]
        if count > max(1, len(sent)):
            offsets = [placement.offset for placement in placements if placement.number == number]
            yield case.violation(
                "C3", "duplicate", f"value {number} stands at {offsets}, and was sent {len(sent)} times"
            )


# C4


def aborted_read(case: JournalCase) -> Iterator[Violation]:
    placements, _ = case.parsed
    for placement in placements:
        if all(append.outcome is Outcome.FAILED for append in case.attempts(placement.number)):
            yield case.violation(
                "C4", "aborted-read", f"value {placement.number}, which was refused, stands at {placement.offset}"
            )


# C5


def time_travel(case: JournalCase) -> Iterator[Violation]:
    """Barriers count: theirs is the word on where the head is."""
    moments: list[tuple[int, Append, bool]] = []
    for append in case.acked:
        moments.append((append.invoked.number, append, False))
        moments.append((_number(append.completed), append, True))
    floor, floor_of = 0, 0
    floors: dict[int, tuple[int, int]] = {}
    for _, append, is_answer in sorted(moments, key=lambda moment: moment[0]):
        if not is_answer:
            floors[append.number] = (floor, floor_of)
            continue
        least, of = floors[append.number]
        if append.begin < least:
            yield case.violation(
                "C5",
                "time-travel",
                f"append {append.number} is at {append.begin}, though {of} had ended at {least} before it began",
            )
        if append.end > floor:
            floor, floor_of = append.end, append.number


# C6


def non_monotonic_send(case: JournalCase) -> Iterator[Violation]:
    """By where the values stand, and not only by what the answers said."""
    placements, _ = case.parsed
    first: dict[int, int] = {}
    for placement in placements:
        first.setdefault(placement.number, placement.offset)
    last: dict[str, tuple[Append, int]] = {}
    for append in case.acked:
        if not append.content:
            continue
        stands = append.begin if append.repeats else first.get(append.number, append.begin)
        before, offset = last.get(append.client, (append, -1))
        if _number(before.completed) < append.invoked.number and stands <= offset:
            yield case.violation(
                "C6",
                "non-monotonic send",
                f"{append.client} sent {append.number}, now at {stands}, after {before.number}, now at {offset}",
            )
        last[append.client] = (append, stands)


# C7


def skip_or_backwards(case: JournalCase) -> Iterator[Violation]:
    ends: dict[str, int] = {}
    for chunk in case.chunks:
        # Who is told of a jump at once was to begin at the beginning.
        at = ends.get(chunk.reader, 0 if chunk.is_jump else chunk.offset)
        ends[chunk.reader] = chunk.end
        if chunk.offset == at:
            continue
        if chunk.offset < at:
            yield case.violation("C7", "backwards", f"{chunk.reader} was at {at} and was given {chunk.offset}")
            continue
        if not chunk.is_jump:
            yield case.violation("C7", "skip", f"{chunk.reader} was at {at} and was given {chunk.offset}, untold")
        for append in _acked_in(case, Span(at, chunk.offset), chunk):
            yield case.violation(
                "C7", "skip", f"{chunk.reader} went from {at} to {chunk.offset} over append {append.number}"
            )


def _acked_in(case: JournalCase, span: Span, chunk: Chunk) -> Iterator[Append]:
    """Appends with content: where a barrier found the head, there need not be any."""
    for append in case.acked:
        touches = append.content and append.begin < span.end and span.begin < append.end
        if touches and _number(append.completed) < chunk.read.number:
            yield append


# C8


def read_then_changed(case: JournalCase) -> Iterator[Violation]:
    """Both accounts are of readers, or the later one is the store's."""
    for conflict in case.content.conflicts:
        sources = {conflict.one.source, conflict.other.source}
        if Source.READER in sources and Source.ANSWER not in sources:
            yield case.violation("C8", "read-then-changed", _told(conflict, conflict.other))


def read_then_vanished(case: JournalCase) -> Iterator[Violation]:
    """Acknowledged bytes are C1's."""
    promised = [Span(chunk.offset, chunk.end) for chunk in case.chunks]
    promised = without(without(promised, case.acked_spans), case.final.lost_tails)
    for reader in case.final.readers:
        for span in without(promised, case.covered_by(reader)):
            whose = next(chunk for chunk in case.chunks if chunk.offset < span.end and span.begin < chunk.end)
            yield case.violation(
                "C8",
                "read-then-vanished",
                f"{span} was read by {whose.reader} of {whose.broker}, and {reader} did not find it",
            )


# C9


def torn_append(case: JournalCase) -> Iterator[Violation]:
    """Who read everything has seen every edge there is, so a part of a value is all there is of it."""
    placements, torn = case.parsed
    for piece in torn:
        if not piece.is_at_edge or case.final.readers:
            yield case.violation("C9", "torn append", f"{piece.what}, at {piece.offset}")
    for placement in placements:
        meant = case.values[placement.number].journal
        if _name(meant) != _name(case.journal):
            yield case.violation("C9", "torn append", f"value {placement.number} of {meant}, at {placement.offset}")


# C10


def split_fence(case: JournalCase) -> Iterator[Violation]:
    """The appends in the order in which they stand are replayed on a register. One that stands there though it expected
    another value got past a fence. Where something may stand that nobody read, nothing is known for a while."""
    placements, _ = case.parsed
    register: str | None = None
    is_known, at = True, 0
    for placement in placements:
        append = case.values[placement.number]
        is_known = is_known and placement.offset == at
        at = placement.offset + len(append.content)
        if append.fence is None:
            continue
        expected, sets = append.fence.expected, append.fence.sets
        if is_known and expected is not None and register is not None and register != expected:
            yield case.violation(
                "C10",
                "split fence",
                f"append {append.number} at {placement.offset} expected {expected!r} where {register!r} was set",
            )
        if sets is not None:
            register, is_known = sets, True


def second_winner(case: JournalCase) -> Iterator[Violation]:
    """Of those who were told that they won. Each value is set once, so whoever expects it again comes too late."""
    winners: dict[str, Append] = {}
    for append in case.acked:
        fence = append.fence
        if fence is None or fence.expected is None or fence.sets is None or fence.sets == fence.expected:
            continue
        first = winners.setdefault(fence.expected, append)
        if first is not append:
            yield case.violation(
                "C10", "split fence", f"appends {first.number} and {append.number} both replaced {fence.expected!r}"
            )


# C11


def head_regress(case: JournalCase) -> Iterator[Violation]:
    """Within one life of a replica: a new one begins with what it knows."""
    highest: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for read in case.heads:
        if read.completed is None:
            continue
        earlier = [head for completed, head in highest[read.replica] if completed < read.invoked.number]
        if earlier and read.head < max(earlier):
            yield case.violation(
                "C11", "head regress", f"{read.replica} had its head at {max(earlier)}, and later at {read.head}"
            )
        highest[read.replica].append((read.completed.number, read.head))


# C13


def unsound_object(case: JournalCase) -> Iterator[Violation]:
    for held in case.final.objects:
        if not held.is_sound:
            yield case.violation("C13", "scrub", f"{held.fragment.content_name} is not what its name says")
    for conflict in case.content.conflicts:
        if conflict.one.source is conflict.other.source is Source.STORE:
            yield case.violation("C13", "scrub", _told(conflict, conflict.other))


def uncovered(case: JournalCase) -> Iterator[Violation]:
    if case.final.stored_through is None:
        return
    stored = [Span(held.fragment.begin, held.fragment.end) for held in case.final.objects]
    excused = [*case.final.holes, *without(case.final.lost_tails, case.acked_spans)]
    for span in without([Span(0, case.final.stored_through)], [*stored, *excused]):
        yield case.violation("C13", "scrub", f"no object holds {span}")
    for span in common(case.acked_spans, case.final.holes):
        yield case.violation("C13", "scrub", f"{span} was acknowledged, and is declared a hole")


# C14


def stuck(history: History, final: Final) -> Iterator[Violation]:
    if final.healed is None:
        return
    since, until_s = final.healed.number, final.healed.time_s + final.recovery_s
    succeeded = {
        append.client
        for append in history.appends
        if append.outcome is Outcome.OK
        and append.invoked.number > since
        and append.completed
        and append.completed.time_s <= until_s
    }
    for client in final.clients:
        if client not in succeeded:
            yield Violation("C14", "stuck", "", f"{client} had no success within {final.recovery_s:g} s of the healing")
    for leak in final.leaks:
        yield Violation("C14", "stuck", "", f"left behind: {leak}")


DIFFERENCES: tuple[Checker, ...] = (
    lost_ack_by_content,
    inconsistent_offset,
    aborted_read,
    read_then_changed,
    torn_append,
    unsound_object,
)
"""That something different was served."""

ALL: tuple[Checker, ...] = (
    *DIFFERENCES,
    lost_ack_at_the_end,
    duplicate,
    time_travel,
    non_monotonic_send,
    skip_or_backwards,
    read_then_vanished,
    split_fence,
    second_winner,
    head_regress,
    uncovered,
)


def check(history: History, final: Final, *, over_budget: bool = False) -> list[Violation]:
    """Everything that was violated, nothing twice."""
    violations: list[Violation] = []
    for journal in sorted({*history.journals(), *final.journals}):
        case = JournalCase(journal, history, final.journals.get(journal, FinalJournal()))
        for checker in DIFFERENCES if over_budget else ALL:
            violations.extend(checker(case))
    if not over_budget:
        violations.extend(stuck(history, final))
    return list(dict.fromkeys(violations))


def _name(journal: str) -> str:
    """Without the incarnation: which one an append gets to is known only when it is answered."""
    return journal.partition("@")[0]


def _number(moment: Moment | None) -> int:
    assert moment is not None, "an append that was answered has a moment at which it was"
    return moment.number


def _told(conflict: Conflict, other: Account) -> str:
    one = conflict.one if other is not conflict.one else conflict.other
    accounts = " and ".join(f"{account.who} has {_excerpt(account, conflict.offset)!r}" for account in (one, other))
    return f"at {conflict.offset} {accounts}"


def _excerpt(account: Account, offset: int) -> bytes:
    at = offset - account.offset
    return account.content[max(0, at - 16) : at + 24]
