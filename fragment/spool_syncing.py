"""Syncs spools to disk every so often: the mode between never and with each commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from fragment.spool_directory import SpoolDirectory

log = logging.getLogger(__name__)


async def sync_forever(
    directory: SpoolDirectory, interval_s: float, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> NoReturn:
    """Run until cancelled. The interval begins when a sync has ended: a slow disk is not pressed further."""
    while True:
        await pause(interval_s)
        for ended in await asyncio.to_thread(directory.sync_dirty):
            log.error("spool has ended: the disk refused to sync it", extra={"error": str(ended)})
