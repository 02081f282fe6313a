"""HeadOpening: how an append gets a new pipeline to where its journal goes on, and that on record.

What is read of the record, what the members' answers say of where the journal ends, and the change that opens an epoch
there. It remembers and decides; what is done about it, and in which state, is up to the AppendFSM that it is of.
"""

from __future__ import annotations

from broker.append_effect import Acknowledge, Effects, EpochOpened, HeadChange, Synchronise, Voided
from broker.append_event import HeadRead
from broker.durable_head import (
    CutAt,
    DurableHead,
    EpochTerms,
    Fate,
    Outdated,
    Start,
    Unproven,
    closed,
    fate,
    least_start,
    opened,
    start_of,
    takes_part,
    terms,
    voided,
)
from broker.pipeline import Ask, Pipeline
from broker.proposal import Agreed, Diverged, Overtaken, RollTo, Verdict, judged, judged_by, refusal, rolled
from broker.resolution import Resolution
from fragment.spool import CopyEnd, EpochMark
from protocol.errors import Status, UnavailableError
from protocol.label import LabelSet

SYNC_ROUNDS_MAX = 8
"""Two are usual, and each further one needs a peer that is further still. Peers of which no two agree end here."""

RECORD_TRIES_MAX = 8
"""Each that fails tells of somebody else who changed the head, or of changes that etcd has yet to tell."""

LOOK_THERE = "Try again; if it goes on, look at the log of that broker"


class HeadOpening:
    def __init__(self) -> None:
        # The change of the record that is under way.
        self.change: HeadChange | None = None
        # What is on record, as of when, and what the store has.
        self._read = HeadRead(None, 0)
        # The record as it was when it could not be changed, and what was known of etcd then.
        self._failed_at: tuple[int, int] | None = None
        self._record_tries = 0
        # Where all are to go on, once that is known.
        self._start: Start | None = None
        self._is_first_sync = False
        self._sync_rounds = 0

    # What is on record.

    def read(self, read: HeadRead, resolution: Resolution) -> bool:
        """Whether it can be gone by. If it could not be changed, and is as it was then, it was not the record that had
        changed, but something that etcd has yet to tell."""
        self._read = read
        failed_at, self._failed_at = self._failed_at, None
        return failed_at != (read.mod_revision, resolution.revision)

    def terms(self, resolution: Resolution) -> EpochTerms | None:
        return terms(self._head(resolution), resolution.create_revision) if resolution.keeps_epochs else None

    def fate_of(self, copy: CopyEnd, resolution: Resolution) -> Fate | None:
        """Of our own copy, if it does not take part."""
        told = self.terms(resolution)
        if told is not None and takes_part(told, copy):
            return None
        known = fate(self._head(resolution), copy.epoch)
        # By Gazette's rules every live spool takes part, unless it is known to have been overtaken.
        is_overtaken = isinstance(known, CutAt) and known.end < copy.end
        return known if told is not None or is_overtaken else None

    def _head(self, resolution: Resolution) -> DurableHead | None:
        """Of this incarnation."""
        head = self._read.head
        return None if head is None else head.of(resolution.create_revision)

    # Where all go on.

    def begin(self, pipeline: Pipeline, resolution: Resolution) -> None:
        """With a pipeline that was built by what is on record."""
        self._start, self._is_first_sync, self._sync_rounds = None, True, 0
        pipeline.record, pipeline.record_revision = self._head(resolution), self._read.mod_revision

    def go_on_at(self, start: Start, pipeline: Pipeline, resolution: Resolution) -> None:
        """Somewhere else. That ends the epoch, unless it is where all are anyhow."""
        self._sync_rounds = 0
        is_elsewhere = start.offset != pipeline.head.end or not pipeline.is_open
        self._start = start if is_elsewhere and resolution.keeps_epochs else None

    def proposal(
        self, pipeline: Pipeline, resolution: Resolution, roll_to: int | None, labels: LabelSet, now_ns: int
    ) -> Synchronise:
        fragment = rolled(pipeline.head, roll_to, resolution.spec.fragment, now_ns)
        is_first, self._is_first_sync = self._is_first_sync, False
        return Synchronise(pipeline, fragment, labels, is_first)

    def judged(
        self, pipeline: Pipeline, resolution: Resolution, ask: Ask
    ) -> Agreed | RollTo | Overtaken | Unproven | Outdated | UnavailableError:
        """What the answers of all members come to. With an error, nothing comes of this pipeline."""
        verdict = self._verdict(pipeline, resolution, ask)
        match verdict:
            case RollTo():
                self._sync_rounds += 1
                if self._sync_rounds < SYNC_ROUNDS_MAX:
                    return verdict
                return UnavailableError(
                    f"no agreement with all peers after {self._sync_rounds} rounds: try again; if it goes on, look at "
                    "the logs of the journal's brokers"
                )
            case Diverged(peer, reason):
                return UnavailableError(
                    f"{peer.zone}/{peer.suffix} cannot be synchronised with: {reason}. {LOOK_THERE}"
                )
            case _:
                return verdict

    def _verdict(self, pipeline: Pipeline, resolution: Resolution, ask: Ask) -> Verdict | Unproven | Outdated:
        head, route, revision = pipeline.head, pipeline.header.route, pipeline.header.etcd.revision
        told = pipeline.terms
        if self._start is None and (told is None or told.is_void or pipeline.is_open):
            verdict, least = judged(head, route, revision, ask.answers), least_start(pipeline.record)
            is_behind = least is not None and not pipeline.is_open and head.end < least.offset
            return RollTo(least.offset, least.registers) if least and is_behind and verdict == Agreed() else verdict
        if (refused := refusal(head, route, revision, ask.answers)) is not None:
            return refused
        if self._start is None:
            claims = [answer.claim for answer in ask.answers.values() if answer.claim is not None]
            start = start_of(self._head(resolution), resolution.create_revision, [pipeline.claim, *claims])
            if not isinstance(start, Start):
                return start
            self._start = start
        return judged_by(head, self._start, route, revision, ask.answers)

    # What is to be on record.

    def agreed(self, pipeline: Pipeline, resolution: Resolution) -> HeadChange | Status | None:
        """All hold the same: what has to be on record before anything is acknowledged (DH-1), None if it is already or
        has not to be; or why there can be no epoch for now."""
        start, self._start = self._start, None
        is_opening = resolution.keeps_epochs and (start is not None or not pipeline.is_open)
        if is_opening and _are_too_few(resolution):
            # Nothing can be acknowledged by so few. An epoch of theirs would be lost with fewer directories than the
            # journal is to survive, and the one before it is with more of them.
            return Status.INSUFFICIENT_JOURNAL_BROKERS
        if is_opening:
            begun = start or Start(pipeline.head.end, pipeline.head.registers)
            holders = list(resolution.spool_ids.values())
            head = opened(pipeline.record, resolution.create_revision, begun, holders, self._read.stored)
            return HeadChange(head, pipeline.record_revision)
        if pipeline.is_open:
            return None
        head_without = voided(pipeline.record, resolution.create_revision)
        return None if head_without is None else HeadChange(head_without, pipeline.record_revision)

    def transacted(self, revision: int | None, resolution: Resolution) -> HeadChange | None:
        """The change that was under way, if there was one. It is on record now, unless `revision` is None."""
        change, self.change = self.change, None
        if change is not None and revision is None:
            self._failed_at = change.mod_revision, resolution.revision
        return change

    def may_read_again(self) -> bool:
        """Somebody else has changed the record, or something of the journal. Not without end."""
        self._record_tries += 1
        return self._record_tries < RECORD_TRIES_MAX


def recorded(pipeline: Pipeline, resolution: Resolution, head: DurableHead, revision: int) -> Effects:
    """The head is on record, for this pipeline."""
    before = pipeline.record.open_epoch if pipeline.record is not None else None
    is_void = pipeline.record is not None and pipeline.record.is_void
    pipeline.record, pipeline.record_revision = head, revision
    last = head.open_epoch
    if not resolution.keeps_epochs or last is None:
        return without_epoch(pipeline, resolution)
    mark = EpochMark(head.create_revision, before.number) if before is not None and not is_void else None
    told = EpochTerms(head.mark(last), last.begin, oldest_begin=head.oldest_begin)
    # What lies below was decided with it, and may be read.
    return (EpochOpened(pipeline, told, mark), Acknowledge(pipeline, last.begin))


def without_epoch(pipeline: Pipeline, resolution: Resolution) -> Effects:
    """Without epochs, what all hold is decided if there are as many of them as there should be: before, it could be
    lost with fewer brokers than the journal is to survive."""
    pipeline.opened(None)
    return (Voided(),) if _are_too_few(resolution) else (Voided(), Acknowledge(pipeline, pipeline.head.end))


def closing(pipeline: Pipeline) -> HeadChange | None:
    """Where the journal ends, for the record, when nobody is to have it any more."""
    record, head = pipeline.record, pipeline.head
    last = record.open_epoch if record is not None else None
    if record is None or last is None:
        return None
    copy = CopyEnd(record.mark(last), head.end, head.registers)
    ended = closed(record, pipeline.claim.spool_id, copy)
    return None if ended is None else HeadChange(ended, pipeline.record_revision)


def _are_too_few(resolution: Resolution) -> bool:
    return len(resolution.header.route.members) < resolution.desired_replication
