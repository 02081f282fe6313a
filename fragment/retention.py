"""Retention: which fragments of a journal are old enough to go, and their removal.

Gazette leaves this to a command, which deletes everything where no retention is set. Here the primary enforces
it, and only ever removes a prefix of the journal: a hole in the middle would be read as loss.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.fragment import Fragment
from protocol.journal import JournalSpec
from protocol.label import CONTENT_TYPE

SPEC_READ_EVERY = 100
"""Removals between two looks at the spec: somebody may raise the retention while thousands of them go on."""

RECOVERY_LOG = "application/x-gazette-recoverylog"

log = logging.getLogger(__name__)


class RemovingStore(Protocol):
    async def remove(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Expired:
    """The fragments to remove, lowest offset first, and why there are not more."""

    fragments: tuple[Fragment, ...]
    kept_because: str


def plan(spec: JournalSpec, listed: Sequence[Fragment], now_s: float, *, head: int | None = None) -> Expired:
    """The prefix of `listed`, all objects of a journal's stores, that is past the journal's retention.

    `head` is the greatest end there is, where that is not in `listed`. Objects that others span count as well: they
    would come to light once the larger ones are gone.
    """
    retention_s = spec.fragment.retention_ns / 1e9
    if retention_s <= 0:
        return Expired((), "no retention is set: everything is kept")
    if spec.labels.value_of(CONTENT_TYPE) == RECOVERY_LOG:
        return Expired((), "a recovery log is pruned by its hints, never by age")
    if head is None:
        head = max((fragment.end for fragment in listed), default=0)
    expired: list[Fragment] = []
    for fragment in sorted(listed, key=lambda held: (held.end, held.begin)):
        if fragment.end == head:
            return Expired(tuple(expired), "the fragment at the head is always kept")
        if fragment.mod_time == 0 or now_s - fragment.mod_time < retention_s:
            return Expired(tuple(expired), f"{fragment.content_name} is not past the retention yet")
        expired.append(fragment)
    return Expired(tuple(expired), "nothing is left to look at")


async def enforce(
    journal: str,
    listed: Sequence[Fragment],
    now_s: float,
    *,
    current_spec: Callable[[str], Awaitable[JournalSpec | None]],
    open_store: Callable[[str], Awaitable[RemovingStore]],
    announce: Callable[[int], Awaitable[None]],
    dry_run: bool = False,
) -> Expired:
    """Remove what is past retention, oldest first, and tell what was removed, or would be.

    `current_spec` reads the spec from etcd itself: one that was just raised must not be undercut by a mirror that
    lags. A failure stops the removal where it is, so that what remains is still a suffix of the journal. `announce` is
    told through where bytes are about to go, before any does.
    """
    spec = await current_spec(journal)
    if spec is None:
        return Expired((), "the journal does not exist (any more)")
    head = max((fragment.end for fragment in listed), default=0)
    expired = plan(spec, listed, now_s, head=head)
    if expired.fragments and not dry_run:
        await announce(expired.fragments[-1].end)
    for at, fragment in enumerate(expired.fragments, start=1):
        if at % SPEC_READ_EVERY == 0:
            spec = await current_spec(journal)
            if spec is None or fragment not in plan(spec, expired.fragments[at - 1 :], now_s, head=head).fragments:
                return Expired(
                    expired.fragments[: at - 1], "the retention was raised meanwhile, or the journal deleted"
                )
        fields = {"journal": journal, "fragment": fragment.content_path, "mod_time": fragment.mod_time}
        if dry_run:
            log.info("fragment is past retention (not removed: only reporting)", extra=fields)
            continue
        store = await open_store(fragment.backing_store)
        await store.remove(fragment.content_path)
        log.info("fragment removed: past retention", extra=fields)
    return expired
