"""LastSpec: what a journal's spec was when it was last there, for the commit records of its spools.

An append may still be under way when its journal is deleted, or created again. What it commits belongs to the journal
as it was, and whoever uploads it later has to know where that one was kept.
"""

from __future__ import annotations

from collections.abc import Callable

from allocator.keys import item_key
from allocator.keyspace_view import KeySpaceView
from broker.cluster_keys import BrokerEntity


class LastSpec:
    """Of one incarnation of a journal. Call it, on any thread, for the spec as protobuf."""

    __slots__ = ("_create_revision", "_key", "_last", "_view")

    def __init__(
        self, view: Callable[[], KeySpaceView[BrokerEntity]], root: str, journal: str, create_revision: int
    ) -> None:
        self._view = view
        self._key = item_key(root, journal)
        self._create_revision = create_revision
        self._last = b""
        # Nothing may be committed before it is gone.
        self()

    def __call__(self) -> bytes:
        kv = self._view().get(self._key)
        if kv is not None and kv.create_revision == self._create_revision:
            self._last = kv.raw
        return self._last
