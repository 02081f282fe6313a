"""Which fragment a primary proposes, and what its peers' answers to that mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.durable_head import Start
from broker.replication_message import Answer
from fragment.index import Summary
from protocol.errors import Status
from protocol.fragment import HEAD_MAX, NO_SUM, Fragment
from protocol.journal import FragmentPolicy
from protocol.label import LabelSet
from protocol.route import ProcessId, Route

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Head:
    """What is committed in a spool, as its primary sees it: what it has proposed and nobody has refused."""

    fragment: Fragment
    registers: LabelSet
    # Unix nanoseconds of the fragment's first commit; None before it.
    first_append_ns: int | None = None

    @property
    def begin(self) -> int:
        return self.fragment.begin

    @property
    def end(self) -> int:
        return self.fragment.end

    def proposed(self, fragment: Fragment, registers: LabelSet, now_ns: int) -> Head:
        """After `fragment` was proposed in place of this one."""
        if not fragment.content_length:
            return Head(fragment, registers)
        begun = self.first_append_ns if fragment.begin == self.begin else None
        return Head(fragment, registers, now_ns if begun is None else begun)


def rolled(head: Head, roll_to: int | None, policy: FragmentPolicy, now_ns: int) -> Fragment:
    """The fragment to go on with: the present one, or a new and empty one behind it.

    A fragment is closed once it is longer than asked for, when its window of the flush interval is over (windows are
    counted from the Unix epoch, so that all journals share them), or when it has to go on at another offset.
    """
    held = head.fragment
    if held.content_length and not _is_due(head, roll_to, policy, now_ns):
        return held
    end = held.end if roll_to is None else roll_to
    assert end >= held.end, "a spool never goes back"
    return replace(held, begin=end, end=end, sum=NO_SUM, codec=policy.compression_codec)


def _is_due(head: Head, roll_to: int | None, policy: FragmentPolicy, now_ns: int) -> bool:
    if head.fragment.content_length > policy.length:
        return True
    if roll_to is not None and roll_to != head.begin:
        return True
    interval_s = policy.flush_interval_ns // NS_PER_S
    if interval_s <= 0 or head.first_append_ns is None:
        return False
    return head.first_append_ns // NS_PER_S // interval_s != now_ns // NS_PER_S // interval_s


def extent(summary: Summary, held: Fragment) -> Summary:
    """The extent of a journal: of its index, and of what the spool holds but readers were not shown yet."""
    if not held.content_length or held.end <= summary.end:
        return summary
    begin = held.begin if summary.begin == summary.end else min(summary.begin, held.begin)
    return Summary(begin, held.end, 0)


@dataclass(frozen=True, slots=True)
class Agreed:
    """All peers hold what was proposed."""


@dataclass(frozen=True, slots=True)
class RollTo:
    """Propose again, from this offset on and with these registers."""

    offset: int
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A peer knows of a later Route, at this revision of etcd."""

    revision: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """A peer cannot be synchronised with."""

    peer: ProcessId
    reason: str


Verdict = Agreed | RollTo | Overtaken | Diverged


def judged(head: Head, route: Route, revision: int, answers: Mapping[ProcessId, Answer]) -> Verdict:
    """What the answers to a synchronising proposal come to, once it is applied here too: `head` is what we hold.

    A peer that is further decides, and the one that is furthest decides for all: it may have bytes that were
    acknowledged, we cannot. A peer that is further outweighs a later Route: whoever is primary there finds the same.
    """
    verdicts = [_judged(head, route, revision, peer, answers[peer]) for peer in sorted(answers)]
    weightiest: Verdict = Agreed()
    for verdict in verdicts:
        weightiest = _weightier(weightiest, verdict)
    return weightiest


def judged_by(head: Head, start: Start, route: Route, revision: int, answers: Mapping[ProcessId, Answer]) -> Verdict:
    """As ``judged``, where epochs say at which `start` all have to be, and not who is furthest."""
    refused = refusal(head, route, revision, answers)
    if refused is not None:
        return refused
    is_here = head.end == start.offset and head.registers == start.registers
    is_agreed = is_here and all(answer.status is Status.OK for answer in answers.values())
    return Agreed() if is_agreed else RollTo(start.offset, start.registers)


def refusal(
    head: Head, route: Route, revision: int, answers: Mapping[ProcessId, Answer]
) -> Overtaken | Diverged | None:
    """What a peer says who will not be synchronised with, wherever it is."""
    weightiest: Verdict = Agreed()
    for peer in sorted(answers):
        if answers[peer].status not in (Status.OK, Status.PROPOSAL_MISMATCH):
            weightiest = _weightier(weightiest, _judged(head, route, revision, peer, answers[peer]))
    return weightiest if isinstance(weightiest, Overtaken | Diverged) else None


def _judged(head: Head, route: Route, revision: int, peer: ProcessId, answer: Answer) -> Verdict:
    match answer.status:
        case Status.OK:
            return Agreed()
        case Status.WRONG_ROUTE:
            seen = answer.header
            if seen is not None and not seen.route.equivalent(route) and seen.etcd.revision > revision:
                return Overtaken(seen.etcd.revision)
            return Diverged(peer, "it refuses the Route but knows of no later one")
        case Status.PROPOSAL_MISMATCH:
            return _judged_mismatch(head, peer, answer)
        case _:
            return Diverged(peer, f"it answered {answer.status.name} to a proposal")


def _judged_mismatch(head: Head, peer: ProcessId, answer: Answer) -> Verdict:
    held = answer.fragment
    if held is None:
        return Diverged(peer, "it does not say what it holds instead of what was proposed")
    registers = answer.registers or LabelSet()
    if held.end > HEAD_MAX:
        return Diverged(peer, f"it claims to end at {held.end}, which no journal reaches")
    if held.end > head.end:
        return RollTo(held.end, registers)
    if held.end == head.end and not held.content_length:
        return RollTo(head.end, head.registers)
    return Diverged(
        peer,
        f"it holds [{held.begin}, {held.end}) with SHA-1 {held.sum.hex()}, and here it is [{head.begin}, {head.end}) "
        f"with {head.fragment.sum.hex()}",
    )


def _weightier(one: Verdict, other: Verdict) -> Verdict:
    match one, other:
        case (Diverged(), _) | (_, Agreed()):
            return one
        case (_, Diverged()) | (Agreed(), _):
            return other
        case RollTo(), RollTo():
            return one if one.offset >= other.offset else other
        case RollTo(), _:
            return one
        case _, RollTo():
            return other
        case Overtaken(ours), Overtaken(theirs):
            return Overtaken(max(ours, theirs))
    raise AssertionError((one, other))
