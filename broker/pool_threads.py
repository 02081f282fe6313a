"""PoolThreads: the end of a process whose threads may hang, which the interpreter would wait for without a limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

END_S = 10.0
"""How long threads have to finish what they were given."""
TELL_S = 2.0
"""How long a process that ends regardless has to say why it ends."""


class PoolThreads:
    def __init__(self, pools: Sequence[ThreadPoolExecutor]) -> None:
        self._pools = pools

    async def end(self, timeout_s: float) -> bool:
        """Whether all of them came to their end in time. They are given nothing more."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def wait() -> None:
            for pool in self._pools:
                pool.shutdown(wait=True)
            # The loop may be closed by then, and nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        for pool in self._pools:
            pool.shutdown(wait=False)
        threading.Thread(target=wait, name="end of pools", daemon=True).start()
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return False
        return True


def end_process_soon(tell_s: float = TELL_S) -> None:
    """With code 1, whatever its threads do. The interpreter joins them before it exits."""
    log.error("threads still wait for the disk: ending without them")

    def end() -> None:
        logging.shutdown()
        os._exit(1)

    timer = threading.Timer(tell_s, end)
    timer.daemon = True
    timer.start()
