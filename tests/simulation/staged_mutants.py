"""Mistakes that need a situation of their own to do harm: each is planted while the schedules are acted out that are
about it, and has to break them."""

from __future__ import annotations

import pytest

from broker.replication import Replication

Patch = pytest.MonkeyPatch


def answer_the_older_stream(patch: Patch) -> None:
    """A stream whose spool was taken by a later synchronisation goes on to write to it, and to answer."""
    deposed: set[Replication] = set()
    original = Replication.close

    def depose(stream: Replication) -> None:
        held, replica = stream._held, stream._replica  # noqa: SLF001
        assert held is not None
        assert replica is not None
        deposed.add(stream)
        replica.held_by(None)
        held.release()

    def close(stream: Replication) -> None:
        if stream in deposed:
            # The spool was given back before, and somebody else has it.
            stream._held = None  # noqa: SLF001
        original(stream)

    patch.setattr(Replication, "depose", depose)
    patch.setattr(Replication, "close", close)
