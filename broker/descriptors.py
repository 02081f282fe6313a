"""Descriptors: a broker has two files open for each journal that it writes, and a connection for each client."""

from __future__ import annotations

import resource
from contextlib import suppress

_WANTED = 1 << 20


def raise_descriptor_limit() -> None:
    """As far as this process may by itself. Many systems start processes with 1024, for the sake of old programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where even that is forbidden, a broker with fewer journals still runs.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
