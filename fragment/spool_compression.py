"""SpoolCompression: compresses spools while they grow, so that a complete one needs little more.

It follows what readers may see, never further: bytes that are cut later must not be in an object. A few workers
serve all journals of the process; a spool that grows faster than they work is finished by the persister.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from weakref import WeakSet

from fragment.compressor import STEP_BYTES, Compressor
from fragment.spool_file import SpoolFile
from fragment.spool_writer import LocalFragment
from protocol.codec import CompressionCodec

WORKERS = 2

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Growing:
    compressor: Compressor
    through: int
    # Held by whoever works on the compressor, which is for one at a time.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SpoolCompression:
    def __init__(self) -> None:
        self._growing: dict[SpoolFile, _Growing] = {}
        # Files whose compressor was handed out. Commits of a complete spool may become visible later than that.
        self._taken: WeakSet[SpoolFile] = WeakSet()
        # Files with enough new content, each once: bounded by the number of spools.
        self._due: dict[SpoolFile, None] = {}
        self._work = asyncio.Event()

    def grew(self, local: LocalFragment) -> None:
        """More of a spool may be read. Only a primary tells: its object is the one that is uploaded."""
        file, fragment = local.file, local.fragment
        if fragment.codec is CompressionCodec.NONE or file in self._taken:
            return
        growing = self._growing.get(file)
        if growing is None:
            compressor = Compressor(fragment.codec, file, file.begin, file.packed_path)
            growing = self._growing[file] = _Growing(compressor, fragment.end)
        growing.through = max(growing.through, fragment.end)
        if growing.through - growing.compressor.compressed_through >= STEP_BYTES:
            self._due[file] = None
            self._work.set()

    async def run(self) -> None:
        """Compress until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(self._serve())

    async def take(self, file: SpoolFile, codec: CompressionCodec) -> Compressor:
        """The compressor of a spool that is complete, to be finished by the caller. It is worked on no more."""
        growing = self._growing.get(file)
        self.forget(file)
        if growing is None:
            return Compressor(codec, file, file.begin, file.packed_path)
        async with growing.lock:
            return growing.compressor

    def forget(self, file: SpoolFile) -> None:
        """Nothing more will come of this spool."""
        self._taken.add(file)
        self._growing.pop(file, None)
        self._due.pop(file, None)

    async def _serve(self) -> None:
        while True:
            while not self._due:
                self._work.clear()
                await self._work.wait()
            file = next(iter(self._due))
            del self._due[file]
            if growing := self._growing.get(file):
                await self._advance(growing, file)

    async def _advance(self, growing: _Growing, file: SpoolFile) -> None:
        async with growing.lock:
            try:
                await growing.compressor.advance(growing.through, file.commit_ends)
            except Exception as error:
                # Whatever it is, it must not end the compression of all others. The persister begins again from
                # the content; nothing depends on this having worked.
                log.warning(
                    "spool could not be compressed while growing (will be when complete)",
                    extra={"spool": file.stem.name, "error": str(error)},
                )
