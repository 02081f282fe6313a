"""HeadChecker: looks at every change of what is on record of journals' heads, as it happens.

An epoch that was closed stays so, at the same end; and none is closed below what was acknowledged by then, unless an
operator said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from allocator.key_event import StoredKey
from broker.durable_head import DurableHead, Epoch, heads_prefix
from tests.simulation.checkers import Violation
from tests.simulation.client import journal_key
from tests.simulation.etcd import Etcd
from tests.simulation.history import History, Outcome


class HeadChecker:
    def __init__(self, etcd: Etcd, root: str, history: History, found: Callable[[Violation], None]) -> None:
        self._etcd = etcd
        self._prefix = heads_prefix(root)
        self._history = history
        self._found = found
        self._known: dict[str, DurableHead] = {}
        etcd.observers.append(self._look)

    def _look(self) -> None:
        revision = self._etcd.revision
        for _, events in self._etcd.history(self._prefix, revision, revision):
            for event in events:
                if isinstance(event, StoredKey):
                    journal, head = event.key.decode()[len(self._prefix) :], DurableHead.decoded(event.raw)
                    for violation in self._changed(journal_key(journal, head.create_revision), head):
                        self._found(violation)

    def _changed(self, key: str, head: DurableHead) -> Iterator[Violation]:
        before = {epoch.number: epoch for epoch in self._known[key].epochs} if key in self._known else {}
        self._known[key] = head
        if before and head.epochs and head.epochs[-1].number < max(before):
            yield Violation("DH-1", "epochs go back", key, f"{head.epochs[-1].number} after {max(before)}")
        for epoch in head.epochs:
            known = before.get(epoch.number)
            if known is None or known.end == epoch.end:
                continue
            if known.end is not None:
                yield Violation("DH-7", "closed twice", key, f"{epoch.number} at {known.end} and at {epoch.end}")
            elif not epoch.is_forced and not epoch.is_voided:
                yield from self._closed(key, epoch)

    def _closed(self, key: str, epoch: Epoch) -> Iterator[Violation]:
        acked = [append for append in self._history.appends if append.outcome is Outcome.OK and append.journal == key]
        last = max(acked, key=lambda append: append.end, default=None)
        if last is not None and epoch.end is not None and last.end > epoch.end:
            what = f"{epoch.number} at {epoch.end}, though append {last.number} ends at {last.end}"
            yield Violation("DH-7", "closed below what was acknowledged", key, what)
