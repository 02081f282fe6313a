"""LeaseFile: remembers a lease's id across a restart, so that the next process need not wait for it to run out.

Whoever reads it must know that the process which wrote it is gone, as the holder of a spool directory's lock does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)

# The largest that etcd has.
_ID_MAX = (1 << 63) - 1
_is_number = re.compile(rb"[0-9]{1,19}\n?").fullmatch
_BYTES_MAX = 64


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
            with self._path.open("rb") as file:
                content = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return None
        lease_id = int(content) if _is_number(content) else 0
        if not 0 < lease_id <= _ID_MAX:
            # One that lost its content in a crash is no loss: by the time that is over, the lease has run out.
            log.warning("lease file holds no lease's id (it is ignored)", extra={"path": str(self._path)})
            return None
        return lease_id

    def _write(self, lease_id: int | None) -> None:
        if lease_id is None:
            self._path.unlink(missing_ok=True)
            return
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(f"{lease_id}\n", encoding="ascii")
        os.replace(new, self._path)
