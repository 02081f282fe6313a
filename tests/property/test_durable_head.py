"""Epochs by the pure rules alone, over copies that end anywhere: nothing that was acknowledged is ever closed away.

The model is told what a primary may acknowledge (what all holders have), and by the rules' own numbers what it may not
do. Holders die and come back, give up, lose everything, are reset by operators who know that they are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from broker.durable_head import (
    AckedOnly,
    Claim,
    CutAt,
    DurableHead,
    Epoch,
    Start,
    Stored,
    Undecided,
    Unknown,
    closed,
    damaged,
    fate,
    opened,
    reset_start,
    start_of,
)
from fragment.spool import CopyEnd, EpochMark
from protocol.label import LabelSet
from tests.support.broker_cores import labels

JOURNAL = 7
BROKERS = [bytes([at]) * 16 for at in range(5)]


@dataclass
class Model:
    head: DurableHead | None = None
    # What each directory has of the epoch it last committed in; and whether it may still answer in it.
    copies: dict[bytes, CopyEnd] = field(default_factory=dict)
    live: set[bytes] = field(default_factory=set)
    # How far bytes were acknowledged, in each epoch; where the store's bytes end without a gap.
    acked: dict[int, int] = field(default_factory=dict)
    stored: int = 0
    # Where epochs were closed, by their numbers.
    ends: dict[int, int] = field(default_factory=dict)
    # Epochs that an operator has closed, whose holders are gone for good.
    lost: set[bytes] = field(default_factory=set)
    forced: set[int] = field(default_factory=set)

    def last(self) -> Epoch | None:
        return None if self.head is None else self.head.open_epoch

    def record(self, head: DurableHead | None) -> None:
        if head is None:
            return
        assert DurableHead.decoded(head.encoded()) == head
        before = self.head
        self.head = head
        self.ends.update({epoch.number: epoch.end for epoch in head.epochs if epoch.end is not None})
        for epoch in head.epochs:
            if epoch.end is not None and not epoch.is_forced:
                assert epoch.end >= self.acked.get(epoch.number, epoch.begin), "closed below what was acknowledged"
            assert epoch.end is None or epoch.end >= epoch.begin
        numbers = [epoch.number for epoch in head.epochs]
        assert numbers == sorted(set(numbers))
        if before is not None and before.last is not None:
            assert head.last is not None
            assert head.last.number in (before.last.number, before.last.number + 1)
            known = {epoch.number: epoch for epoch in before.epochs}
            for epoch in head.epochs:
                was = known.get(epoch.number)
                assert was is None or was.is_open or was == epoch, "a close is never taken back"
            gone = [epoch for epoch in before.epochs if epoch.number not in numbers]
            for epoch in gone:
                # One that was closed by the same change ends where the new one begins.
                end = self.head.epochs[-1].begin if epoch.end is None else epoch.end
                assert end in (epoch.begin, min(end, self.stored)), "trimmed, though the store lacks it"

    # What happens.

    def synchronise(self, holders: list[bytes]) -> None:
        """A primary with this route. Copies that do not take part are retired, and their owners join empty."""
        claims = []
        for holder in holders:
            mine = self.copies.get(holder) if holder in self.live else None
            # Commits that only a spool has which is not live are not claimed for.
            has_more = holder in self.copies and holder not in self.live
            claims.append(Claim(b"" if has_more else holder, mine))
        start = start_of(self.head, JOURNAL, claims)
        if not isinstance(start, Start):
            event("unproven")
            return
        self.record(opened(self.head, JOURNAL, start, holders, [(0, self.stored)]))
        number = self.open_number
        self.acked[number] = start.offset
        for holder in holders:
            self.live.add(holder)
            self.copies.pop(holder, None)

    @property
    def open_number(self) -> int:
        last = self.last()
        assert last is not None
        return last.number

    def commit(self, which: int, length: int, reach: int) -> None:
        """Some of the holders get an append, and if all have it, it is acknowledged."""
        last = self.last()
        if last is None or not all(holder in self.live for holder in last.holders):
            return
        mark = EpochMark(JOURNAL, last.number)
        ends = {holder: self._end(last, holder) for holder in last.holders}
        begin = max(ends.values())
        if len(set(ends.values())) > 1:
            # The pipeline broke with the last append: nobody acknowledges anything in this epoch any more.
            return
        end, registers = begin + length, labels(at=str(begin + length))
        order = sorted(last.holders, key=lambda holder: (holder[0] + which) % 5)
        for holder in order[: 1 + reach % len(order)]:
            self.copies[holder] = CopyEnd(mark, end, registers)
        if 1 + reach % len(order) >= len(order):
            self.acked[last.number] = end

    def _end(self, last: Epoch, holder: bytes) -> int:
        copy = self.copies.get(holder)
        return copy.end if copy is not None and copy.epoch.number == last.number else last.begin

    def die(self, which: int) -> None:
        """Or give up: what it has is never offered again."""
        self.live.discard(BROKERS[which % 5])

    def keep(self, which: int) -> None:
        """A directory that is not live closes what it may, and what it has goes to its fate."""
        spool_id = BROKERS[which % 5]
        if spool_id in self.live or spool_id in self.lost or self.head is None:
            return
        self.record(closed(self.head, spool_id, self.copies.get(spool_id)))
        copy = self.copies.get(spool_id)
        if copy is None:
            return
        known = fate(self.head, copy.epoch)
        match known:
            case CutAt(end):
                assert end == self.ends[copy.epoch.number], "cut elsewhere than at its own epoch's end"
                if copy.epoch.number not in self.forced:
                    assert end >= self.acked[copy.epoch.number], "cut below what was acknowledged in that epoch"
                del self.copies[spool_id]
            case Stored():
                assert self.acked[copy.epoch.number] <= self.stored or copy.epoch.number in self.forced
                del self.copies[spool_id]
            case Undecided():
                assert spool_id not in self._open_holders(), "a holder that is not live closes its epoch"
            case AckedOnly() | Unknown():
                raise AssertionError(known)

    def _open_holders(self) -> tuple[bytes, ...]:
        last = self.last()
        return () if last is None else last.holders

    def lose(self, which: int) -> None:
        """Its directory is gone, or those of all holders; whoever comes with that name has another id."""
        for spool_id in self._open_holders() if which % 4 == 0 else (BROKERS[which % 5],):
            self.live.discard(spool_id)
            self.copies.pop(spool_id, None)
            self.lost.add(spool_id)

    def damage(self, through: int) -> None:
        last = self.last()
        if last is not None and self.head is not None:
            known = min(last.begin + through, self.acked[last.number])
            self.record(damaged(self.head, b"gone" * 4, known))

    def reset(self, above: int) -> None:
        last = self.last()
        if last is None or self.head is None or not set(last.holders) <= self.lost:
            return
        for offset in (last.begin - 1, self.head.floor - 1, self.stored - 1):
            if offset >= 0:
                assert reset_start(self.head, offset, self.stored) is None
        start = reset_start(self.head, max(self.stored, last.begin, self.head.floor) + above, self.stored)
        assert start is not None
        holders = [spool_id for spool_id in BROKERS if spool_id not in self.lost][:1]
        if holders:
            event("reset")
            self.forced.add(last.number)
            self.record(opened(self.head, JOURNAL, start, holders, [(0, self.stored)]))
            self.acked[self.open_number] = start.offset
            self.live.update(holders)
            for holder in holders:
                self.copies.pop(holder, None)

    def upload(self) -> None:
        """What is closed is in the store by and by, up to where the open epoch begins."""
        if self.head is not None and self.head.last is not None:
            last = self.head.last
            self.stored = max(self.stored, last.begin if last.is_open else (last.end or 0))


ANY = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("synchronise"), st.integers(1, 31), st.just(0), st.just(0)),
        # To all holders, as a rule.
        st.tuples(st.just("commit"), ANY, st.integers(1, 50), st.just(-1)),
        st.tuples(st.just("commit"), ANY, st.integers(1, 50), st.integers(0, 4)),
        st.tuples(st.sampled_from(("die", "keep", "keep", "lose", "damage", "upload")), ANY, st.just(0), st.just(0)),
        st.tuples(st.just("reset"), ANY, st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS)
def test_no_epoch_is_closed_and_no_copy_is_cut_below_what_was_acknowledged(
    steps: list[tuple[str, int, int, int]],
) -> None:
    model = Model()
    for what, which, length, reach in steps:
        match what:
            case "synchronise":
                holders = [spool_id for at, spool_id in enumerate(BROKERS) if which >> at & 1]
                if holders and not model.lost.intersection(holders):
                    model.synchronise(holders)
            case "commit":
                model.commit(which, length, reach)
            case "upload":
                model.upload()
            case _:
                getattr(model, what)(which)


LABELS = st.builds(
    lambda pairs: LabelSet.of(*pairs.items()), st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))
)
EPOCHS = st.lists(
    st.builds(
        Epoch,
        st.just(0),
        st.integers(0, 1 << 62),
        st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
        LABELS,
        st.integers(0, 1 << 62),
        st.booleans(),
        st.booleans(),
    ),
    max_size=5,
)


@given(st.integers(1, 1 << 62), EPOCHS, st.integers(0, 1 << 62), st.booleans(), st.booleans(), st.integers(1, 1 << 40))
def test_what_is_encoded_is_decoded(
    create_revision: int, epochs: list[Epoch], floor: int, is_void: bool, is_open: bool, first: int
) -> None:
    numbered = [
        Epoch(
            first + 3 * at,
            epoch.begin,
            epoch.holders,
            epoch.registers,
            None if is_open and at == len(epochs) - 1 else epoch.end,
            epoch.is_forced,
            epoch.is_voided,
        )
        for at, epoch in enumerate(epochs)
    ]
    head = DurableHead(create_revision, tuple(numbered), floor, is_void)
    assert DurableHead.decoded(head.encoded()) == head
