"""LeaseFile: remembers a lease's id across a restart, so that the next process need not wait for it to run out.

Whoever reads it must know that the process which wrote it is gone, as the holder of a spool directory's lock does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


class LeaseFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def recall(self) -> int | None:
        """The lease that was held last, unless it was given up or nothing sensible is written."""
        return await asyncio.to_thread(self._read)

    async def remember(self, lease_id: int | None) -> None:
        await asyncio.to_thread(self._write, lease_id)

    def _read(self) -> int | None:
        try:
            return int(self._path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            # A file that lost its content in a crash is no loss: by the time that is over, the lease has run out.
            return None

    def _write(self, lease_id: int | None) -> None:
        if lease_id is None:
            self._path.unlink(missing_ok=True)
            return
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(f"{lease_id}\n", encoding="ascii")
        os.replace(new, self._path)
