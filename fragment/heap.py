"""Heap: memory that content has left is kept for the next.

By default glibc gives large blocks back to the system as soon as they are freed, and gets them back page by page, each
with a fault: a broker that takes in content by the quarter of a MiB spends a tenth of its time on that, and who unpacks
fragments by the MiB a third.
"""

from __future__ import annotations

import ctypes

# Numbers of glibc, for `mallopt`.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

KEPT_BYTES = 64 << 20
"""What may lie free at the end of a heap. There is one for each of a few threads."""
GROWTH_BYTES = 4 << 20


def keep_freed_memory(block_bytes_max: int) -> None:
    """Of blocks up to that size, for the rest of this process. Where malloc is another one than glibc's, nothing
    happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, block_bytes_max)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, GROWTH_BYTES)
