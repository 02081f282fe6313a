"""CoverSet: of any bag of fragments, those that matter, in order.

Replicas cut and upload their copies independently, so a journal's stores hold fragments that overlap, repeat
and nest. A cover set drops every fragment that another single one wholly covers. Of what remains both begins
and ends strictly ascend, so a binary search finds the fragment that serves an offset, and one pass reads each
offset exactly once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from protocol.fragment import Fragment

DIVERGENCES_MAX = 64
"""How many a set keeps: enough to tell what happened, and a bound in front of a store gone wrong."""

_begin_of = attrgetter("begin")
_end_of = attrgetter("end")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two fragments of the same range whose contents differ: replicas that no longer agree."""

    kept: Fragment
    other: Fragment


# Named tuples rather than dataclasses: a plan over a million fragments makes one of these for each.
class Slice(NamedTuple):
    """Read [begin, end) of the journal from this fragment."""

    fragment: Fragment
    begin: int
    end: int


class Gap(NamedTuple):
    """No fragment has any byte of [begin, end)."""

    begin: int
    end: int


class CoverSet:
    """Owned by one index or one plan, which may add to it. Nobody adds while a walk is under way.

    Of fragments with the same range the one added last stays. Whoever has a preference among copies, such as
    for the cheapest codec, puts the preferred ones last.

    >>> from protocol.codec import CompressionCodec
    >>> def fragment(begin: int, end: int) -> Fragment:
    ...     return Fragment("acme/orders", begin, end, bytes(20), CompressionCodec.NONE)
    >>> cover = CoverSet([fragment(20, 30), fragment(0, 10), fragment(2, 8), fragment(5, 15)])
    >>> [(kept.begin, kept.end) for kept in cover]
    [(0, 10), (5, 15), (20, 30)]
    >>> [part[-2:] for part in cover.walk()]
    [(0, 10), (10, 15), (15, 20), (20, 30)]
    """

    __slots__ = ("_divergences", "_fragments")

    def __init__(self, bag: Iterable[Fragment] = ()) -> None:
        self._fragments: list[Fragment] = []
        self._divergences: list[Divergence] = []
        # Reversed, so that among equals the last one added leads. Listings come nearly sorted, and two stable
        # sorts by plain integers are then nearly linear, which one sort by pairs is not.
        ordered = [fragment for fragment in bag if fragment.begin < fragment.end]
        ordered.reverse()
        ordered.sort(key=_end_of, reverse=True)
        ordered.sort(key=_begin_of)
        leader: Fragment | None = None
        reach = -1
        for fragment in ordered:
            if leader is not None and fragment.begin == leader.begin and fragment.end == leader.end:
                if fragment.sum != leader.sum:
                    self._report(leader, fragment)
                continue
            leader = fragment
            if fragment.end > reach:
                self._fragments.append(fragment)
                reach = fragment.end

    def __len__(self) -> int:
        return len(self._fragments)

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self._fragments)

    def __getitem__(self, at: int) -> Fragment:
        return self._fragments[at]

    @property
    def begin(self) -> int:
        """The lowest offset, zero if there is none."""
        return self._fragments[0].begin if self._fragments else 0

    @property
    def end(self) -> int:
        """The offset after the last one, zero if there is none."""
        return self._fragments[-1].end if self._fragments else 0

    @property
    def divergences(self) -> Sequence[Divergence]:
        """Same range, different content, at most ``DIVERGENCES_MAX`` of them.

        A bag shows every such pair in it. What is added later is compared with what is in the set then.
        """
        return self._divergences

    def add(self, fragment: Fragment) -> bool:
        """Whether the set has it now: not if it is empty, or wholly covered by a larger one.

        Takes a few microseconds at the end of the set, where the current fragment grows with every commit.
        """
        if fragment.begin >= fragment.end:
            return False
        fragments = self._fragments
        # Of all that reach as far as this one, the first begins lowest: if it does not cover, none does.
        at = bisect_left(fragments, fragment.end, key=_end_of)
        if at < len(fragments) and fragments[at].begin <= fragment.begin:
            if fragments[at].begin < fragment.begin or fragments[at].end > fragment.end:
                return False
            if fragments[at].sum != fragment.sum:
                self._report(fragment, fragments[at])
            fragments[at] = fragment
            return True
        covered_begin = bisect_left(fragments, fragment.begin, key=_begin_of)
        covered_end = bisect_right(fragments, fragment.end, lo=at, key=_end_of)
        fragments[covered_begin:covered_end] = [fragment]
        return True

    def compare(self, fragment: Fragment) -> None:
        """Report a divergence if the set has this range with another content. Nothing is added."""
        at = self.at_or_after(fragment.begin)
        if at == len(self._fragments):
            return
        twin = self._fragments[at]
        if (twin.begin, twin.end) == (fragment.begin, fragment.end) and twin.sum != fragment.sum:
            self._report(twin, fragment)

    def _report(self, kept: Fragment, other: Fragment) -> None:
        if len(self._divergences) < DIVERGENCES_MAX:
            self._divergences.append(Divergence(kept, other))

    def lookup(self, offset: int) -> tuple[int, bool]:
        """Where the fragment is that covers `offset` and reaches furthest, and True.

        If none covers it: where the next one after it is (perhaps beyond the last), and False.
        """
        at = bisect_right(self._fragments, offset, key=_begin_of)
        if at > 0 and self._fragments[at - 1].end > offset:
            return at - 1, True
        return at, False

    def at_or_after(self, offset: int) -> int:
        """Where the first fragment is that begins at `offset` or later."""
        return bisect_left(self._fragments, offset, key=_begin_of)

    def chain(self, offset: int) -> Iterator[Fragment]:
        """The fragments a reader from `offset` on takes in turn: greedily, each time the one that reaches furthest.

        Where one begins beyond the end of the one before it, or beyond `offset`, there is a gap.
        """
        fragments = self._fragments
        at, _ = self.lookup(offset)
        while at < len(fragments):
            while at + 1 < len(fragments) and fragments[at + 1].begin <= offset:
                at += 1
            fragment = fragments[at]
            yield fragment
            offset = fragment.end
            at += 1

    def walk(self, begin: int = 0, end: int | None = None) -> Iterator[Slice | Gap]:
        """[begin, end) as a chain of fragments gives it, in order: each offset once, in a slice or in a gap.

        Without an `end` up to the end of the set.
        """
        end = self.end if end is None else end
        for fragment in self.chain(begin):
            if begin < fragment.begin:
                if begin < end:
                    yield Gap(begin, min(fragment.begin, end))
                begin = fragment.begin
            if begin >= end:
                return
            yield Slice(fragment, begin, min(fragment.end, end))
            begin = fragment.end
        if begin < end:
            yield Gap(begin, end)

    def covers(self, begin: int, end: int) -> bool:
        """Whether the fragments together have every byte of [begin, end)."""
        return not any(isinstance(part, Gap) for part in self.walk(begin, end))


def difference(local: CoverSet, remote: CoverSet) -> CoverSet:
    """The local fragments that are still needed: one covered by remote ones, be it by several together, is not."""
    return CoverSet(fragment for fragment in local if not remote.covers(fragment.begin, fragment.end))
