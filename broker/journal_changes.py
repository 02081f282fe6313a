"""JournalChanges: the latest changes of specs, for those who watch some of them.

Each change is looked at by whoever watches, at their own pace, and the mirror is spared: what it tells its observers
must not wait. Who falls too far behind is told so, and looks at everything anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from allocator.keys import Item
from allocator.keyspace_view import Change, KeySpaceView, Update
from broker.cluster_keys import BrokerEntity

KEPT_MAX = 4096


class JournalChanges:
    def __init__(self, view: KeySpaceView[BrokerEntity], *, kept_max: int = KEPT_MAX) -> None:
        self.view = view
        # How many changes there were. Those up to here are in the view.
        self.count = 0
        self._latest: deque[Change[BrokerEntity]] = deque(maxlen=kept_max)
        # Each set, and replaced by another, when there is news.
        self._changed = asyncio.Event()
        self._renewed = asyncio.Event()

    def observe(self, update: Update[BrokerEntity]) -> None:
        """To be an observer of the mirror."""
        self.view = update.view
        changes = [change for change in update.changes if _is_of_journal(change)]
        self.count += len(changes)
        self._latest.extend(changes)
        if changes:
            self._changed.set()
            self._changed = asyncio.Event()
        self._renewed.set()
        self._renewed = asyncio.Event()

    async def wait(self, after: int) -> None:
        """Until there are more than the first `after` changes."""
        while self.count <= after:
            await self._changed.wait()

    def since(self, count: int) -> Sequence[Change[BrokerEntity]] | None:
        """Those after the first `count`; None if not all of them are remembered."""
        missing = self.count - count
        if missing > len(self._latest):
            return None
        return list(islice(self._latest, len(self._latest) - missing, None))

    async def wait_revision(self, revision: int) -> None:
        """Until the view is of this revision, or of a later one."""
        while self.view.revision < revision:
            await self._renewed.wait()


def _is_of_journal(change: Change[BrokerEntity]) -> bool:
    known = change.after or change.before
    return known is not None and isinstance(known.value, Item)
