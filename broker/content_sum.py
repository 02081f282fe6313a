"""ContentSum: the SHA-1 of what one append sends, taken beside the writing of it.

A fragment has a running sum of its own, so content is hashed twice. With two threads it takes as long as once, and the
client of a large append waits for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from concurrent.futures import Executor, Future

BESIDE_BYTES_MIN = 64 << 10
"""To hand less than this to another thread takes longer than to hash it."""
WAITING_BYTES_MAX = 1 << 20
"""Of content that is written and not yet summed."""


class ContentSum:
    """Updated by one thread at a time. The other is one of the executor's, if it has one to spare."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._digest = hashlib.sha1()
        # What the other thread has to do, and its word on it; both threads change them.
        self._lock = threading.Lock()
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._summing: Future[None] | None = None

    def update(self, data: bytes | memoryview) -> None:
        with self._lock:
            is_beside = self._summing is not None or len(data) >= BESIDE_BYTES_MIN
            if is_beside:
                self._waiting.append(data)
                self._waiting_bytes += len(data)
            if is_beside and self._summing is None:
                self._summing = self._executor.submit(self._sum)
            is_far_behind = self._waiting_bytes > WAITING_BYTES_MAX
        if not is_beside:
            self._digest.update(data)
        elif is_far_behind:
            self._catch_up()

    @property
    def is_behind(self) -> bool:
        """Whether `digest` may have to wait."""
        return self._summing is not None

    def digest(self) -> bytes:
        self._catch_up()
        return self._digest.digest()

    def _catch_up(self) -> None:
        with self._lock:
            summing = self._summing
        if summing is None:
            return
        if summing.cancel():
            # All threads are busy, perhaps with a disk that hangs: nobody is to wait for them.
            self._sum()
        else:
            summing.result()

    def _sum(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._summing = None
                    return
                data = self._waiting.popleft()
            self._digest.update(data)
            with self._lock:
                self._waiting_bytes -= len(data)
