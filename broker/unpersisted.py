"""Unpersisted: what of acknowledged content is in no store yet, as those who watch brokers want to know it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fragment.spool import Spool

NS_PER_S = 1_000_000_000


class Unpersisted(NamedTuple):
    content_bytes: int = 0
    # How long ago the oldest of them was appended.
    oldest_s: float = 0.0


def unpersisted(complete_bytes: int, complete_ns: int | None, open_spools: Iterable[Spool], now_ns: int) -> Unpersisted:
    """Of spools that are complete, the first of which was begun at `complete_ns`, and of those that are still written.

    The latter count: without a flush interval they may stay open for days.

    >>> unpersisted(100, 5_000_000_000, (), now_ns=8_000_000_000)
    Unpersisted(content_bytes=100, oldest_s=3.0)
    """
    spools = [spool for spool in open_spools if spool.fragment.content_length]
    begun_ns = [at_ns for at_ns in (complete_ns, *(spool.first_append_ns for spool in spools)) if at_ns is not None]
    count = complete_bytes + sum(spool.fragment.content_length for spool in spools)
    # Clocks may be set back.
    return Unpersisted(count, max(0, now_ns - min(begun_ns, default=now_ns)) / NS_PER_S)
