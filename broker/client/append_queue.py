"""AppendQueue: the appends to one journal that wait for their turn, put together into as few calls as may be."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from broker.client.append_request import AppendRequest

BATCH_BYTES_MAX = 16 << 20
"""Of the content of one call, unless one append alone has more."""
PENDING_BYTES_MAX = 64 << 20
"""Of all appends that are not done."""


@dataclass(slots=True, eq=False)
class Batch:
    """Appends that go out in one call, one after the other."""

    request: AppendRequest
    # Nothing of this is sent before these are done.
    after: frozenset[Batch]
    parts: list[bytes] = field(default_factory=list)
    length: int = 0


class AppendQueue:
    """
    >>> queue = AppendQueue()
    >>> request = AppendRequest("acme/orders")
    >>> first, at = queue.add(request, b"one")
    >>> second, at = queue.add(request, b"two")
    >>> first is second, at, queue.take().parts, queue.take()
    (True, 3, [b'one', b'two'], None)
    """

    def __init__(self, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._waiting: deque[Batch] = deque()
        # The last one that was added to, be it waiting, on its way or done.
        self.tail: Batch | None = None

    def add(self, request: AppendRequest, data: bytes, after: frozenset[Batch] = frozenset()) -> tuple[Batch, int]:
        """The batch that `data` goes with, and where in its content it begins.

        It joins those that wait already, unless they ask for something else, or it has to wait for more than they do,
        which must not hold them up.
        """
        batch = self._waiting[-1] if self._waiting else None
        if batch is None or not self._fits(batch, request, data, after):
            batch = Batch(request, after)
            self._waiting.append(batch)
        self.tail = batch
        begin = batch.length
        if data:
            batch.parts.append(data)
            batch.length += len(data)
        return batch, begin

    def take(self) -> Batch | None:
        """The next one to be sent. From now on nothing is added to it."""
        return self._waiting.popleft() if self._waiting else None

    def _fits(self, batch: Batch, request: AppendRequest, data: bytes, after: frozenset[Batch]) -> bool:
        return (
            batch.request == request
            and batch not in after
            and after <= batch.after
            and (batch.length + len(data) <= self._batch_bytes_max or not batch.length)
        )
