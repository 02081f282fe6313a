"""Index: which fragments of a journal a broker can read, on its own disk and in the stores.

It decides what a Read at an offset is answered with, and never waits: who has to wait subscribes, asks again
when told of a change, and sees to it that there is no pause between the question and the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fragment.cover_set import CoverSet, Divergence, difference
from protocol.fragment import Fragment

FileT = TypeVar("FileT")
"""How the owner of the spools gets at the content of a local fragment. The index only hands it on."""

WRITE_HEAD = -1
"""The offset that stands for the end of the index."""

JUMP_AGE_S = 6 * 60 * 60
"""After so long nobody is expected to fill a hole any more: replicas upload their copies within minutes."""


@dataclass(frozen=True, slots=True)
class Found(Generic[FileT]):
    """Read from `offset` on in this fragment: out of the file if there is one, else from its store."""

    offset: int
    write_head: int
    fragment: Fragment
    file: FileT | None


@dataclass(frozen=True, slots=True)
class NotYetAvailable:
    """Nothing to read at `offset`. Whoever waits asks for this offset, which is a definite one."""

    offset: int
    write_head: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The extent of an index, all zero if it is empty."""

    begin: int
    end: int
    # Of the last fragment: zero while that is on the broker's disk only.
    mod_time: int


@dataclass(frozen=True, slots=True)
class Page:
    fragments: Sequence[Fragment]
    # Where the next page begins, zero if this is the last.
    next_token: int


class Index(Generic[FileT]):
    """Two cover sets: the local fragments, and those with the ones of the latest listing.

    A fragment is local if its ``mod_time`` is zero. Reach decides which fragment serves an offset, not where it
    is; since local fragments go once a listing covers them, reads are local before and remote after that.
    """

    def __init__(self) -> None:
        self._all = CoverSet()
        self._local = CoverSet()
        # By begin, of which there is one in a cover set: exactly those of `_local`.
        self._files: dict[int, FileT] = {}
        self._subscribers: set[Callable[[], None]] = set()
        # Bytes of this range may be on their way to a store: until they were seen, nobody is soon sent past them.
        self._awaited: tuple[int, int] | None = None

    @property
    def divergences(self) -> Sequence[Divergence]:
        """Found since and by the latest listing."""
        return self._all.divergences

    def commit(self, fragment: Fragment, file: FileT) -> None:
        """Show a local fragment, or more of one: `fragment` ends where its visible bytes end.

        What may be seen is for the caller to know: only bytes that are acknowledged, or decided, get here.
        """
        if not self._local.add(fragment):
            return
        self._files[fragment.begin] = file
        self._forget_files()
        self._all.add(fragment)
        self._notify_seen()

    def replace_remote(self, remote: CoverSet) -> None:
        """Take over a new listing of all stores, as a set that nobody else uses. Local fragments it covers go.

        A commit that came while the listing was under way is kept: it is in the listing, or it is still local.
        """
        for fragment in self._local:
            remote.compare(fragment)
        self._local = difference(self._local, remote)
        self._forget_files()
        for fragment in self._local:
            remote.add(fragment)
        self._all = remote
        self._notify_seen()

    def await_range(self, begin: int, end: int) -> None:
        """Somebody may still bring these bytes, from an epoch before the present one."""
        self._awaited = (begin, end) if self.held_through(begin) < end else None

    def _notify_seen(self) -> None:
        if self._awaited is not None and self.held_through(self._awaited[0]) >= self._awaited[1]:
            self._awaited = None
        self._notify()

    def _forget_files(self) -> None:
        if len(self._files) != len(self._local):
            self._files = {fragment.begin: self._files[fragment.begin] for fragment in self._local}

    def query(self, offset: int, begin_mod_time: int, now_s: int) -> Found[FileT] | NotYetAvailable:
        """What a Read of `offset` gets, perhaps at a later offset.

        An offset below all fragments jumps to the first, and one in a hole jumps over it, but only to a
        persisted fragment, and over a hole only when it is old: before, a peer's upload may still fill it.
        Persisted fragments older than `begin_mod_time` are passed over.
        """
        head = self._all.end
        if offset == WRITE_HEAD:
            offset = head
        for fragment in self._all.chain(offset):
            if offset < fragment.begin:
                if not self._may_jump_to(fragment, now_s):
                    break
                offset = fragment.begin
            if 0 < fragment.mod_time < begin_mod_time:
                offset = fragment.end
                continue
            file = None if fragment.mod_time else self._files[fragment.begin]
            return Found(offset, head, fragment, file)
        return NotYetAvailable(offset, head)

    def _may_jump_to(self, fragment: Fragment, now_s: int) -> bool:
        if fragment.mod_time == 0:
            return False
        is_first = fragment.begin == self._all.begin
        is_awaited = self._awaited is not None and self._awaited[0] < fragment.begin
        return (is_first and not is_awaited) or fragment.mod_time < now_s - JUMP_AGE_S

    def summary(self) -> Summary:
        if not len(self._all):
            return Summary(0, 0, 0)
        return Summary(self._all.begin, self._all.end, self._all[len(self._all) - 1].mod_time)

    def stored_extents(self) -> list[tuple[int, int]]:
        """The ranges [begin, end) that stores have without a gap, by the latest listing, ascending."""
        extents: list[tuple[int, int]] = []
        for fragment in self._all:
            if not fragment.mod_time:
                continue
            if extents and fragment.begin <= extents[-1][1]:
                extents[-1] = (extents[-1][0], max(extents[-1][1], fragment.end))
            else:
                extents.append((fragment.begin, fragment.end))
        return extents

    def held_through(self, begin: int) -> int:
        """Up to where everything from `begin` on can be read, here or from a store; at least `begin`."""
        through = begin
        for fragment in self._all.chain(begin):
            if fragment.begin > through:
                break
            through = max(through, fragment.end)
        return through

    def page(self, token: int, limit: int, begin_mod_time: int = 0, end_mod_time: int = 0) -> Page:
        """Up to `limit` fragments that begin at `token` or later, for ListFragments.

        Both times are inclusive, whatever Gazette's own comments say of the end. Local fragments have no time
        yet: they pass any `begin_mod_time` and no `end_mod_time` but zero, which means none.
        """
        fragments: list[Fragment] = []
        for at in range(self._all.at_or_after(token), len(self._all)):
            fragment = self._all[at]
            if len(fragments) == limit:
                return Page(fragments, fragment.begin)
            if 0 < fragment.mod_time < begin_mod_time:
                continue
            if end_mod_time and not 0 < fragment.mod_time <= end_mod_time:
                continue
            fragments.append(fragment)
        return Page(fragments, 0)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, until it is unsubscribed."""
        self._subscribers.add(changed)

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.discard(changed)

    def _notify(self) -> None:
        for changed in tuple(self._subscribers):
            changed()
