from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from fragment.spool import EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory, machine_boot_id
from fragment.spool_writer import SpoolWriter
from protocol.gen import journal_pb2
from tests.bench.harness import Contest, benchmark

CHUNK = os.urandom(64 << 10)
TOTAL = 64 << 20
SPEC = journal_pb2.JournalSpec(name="acme/orders", replication=3).SerializeToString()
EPOCH = EpochMark(1, 1)


def append(writer: SpoolWriter, data: bytes) -> None:
    writer.content(data, 0)
    writer.propose(Proposal(writer.spool.next(), writer.spool.registers, 1, EPOCH))


@benchmark("spool: append 64 KiB chunks, a commit each")
def spool_append() -> Iterator[Contest]:
    with tempfile.TemporaryDirectory() as folder:
        directory = SpoolDirectory(Path(folder) / "spools", FsyncMode(), machine_boot_id(), SpoolBudget())

        def ours() -> None:
            writer = SpoolWriter("acme/orders", directory, lambda: SPEC)
            for _ in range(TOTAL // len(CHUNK)):
                append(writer, CHUNK)
            completed = writer.complete().completed
            assert completed is not None
            completed.file.remove()

        def floor() -> None:
            path = Path(folder) / "floor"
            digest = hashlib.sha1()
            with path.open("wb", buffering=0) as file:
                for _ in range(TOTAL // len(CHUNK)):
                    file.write(CHUNK)
                    digest.update(CHUNK)
            path.unlink()

        yield Contest(ours, floor, "write and SHA-1 alone", TOTAL / 1e6, "MB", ratio_min=0.7)
        directory.close()


@benchmark("spool: 16 journals, fsync=commit, 256 B commits")
def spool_fsync() -> Iterator[Contest]:
    """The peer is one journal alone doing all commits: what sharing the disk's waiting saves is the ratio."""
    journals, commits = 16, 20
    with tempfile.TemporaryDirectory(dir=".") as folder:
        mode = FsyncMode(commit=True)
        directory = SpoolDirectory(Path(folder) / "spools", mode, machine_boot_id(), SpoolBudget())

        def work(count: int) -> None:
            writer = SpoolWriter("acme/orders", directory, lambda: SPEC)
            for _ in range(count):
                append(writer, CHUNK[:256])
            completed = writer.complete().completed
            assert completed is not None
            completed.file.remove()

        def ours() -> None:
            threads = [threading.Thread(target=work, args=(commits,)) for _ in range(journals)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        yield Contest(ours, lambda: work(journals * commits), "one journal alone", journals * commits, "commits")
        directory.close()
