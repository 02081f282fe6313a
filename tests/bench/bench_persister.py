"""Compress and upload, as the persister does it, against the codec's own speed."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from fragment.encoder import encoder_of
from fragment.persist_destination import CurrentSpec
from fragment.persist_ledger import PersistLedger
from fragment.persister import Persister
from fragment.spool import EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_compression import SpoolCompression
from fragment.spool_directory import FsyncMode, SpoolDirectory, machine_boot_id
from fragment.spool_file import SpoolFile
from fragment.spool_writer import CompletedSpool, SpoolWriter
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.journal import FragmentPolicy, JournalSpec
from tests.bench.bench_codecs import APPENDS, CONTENT, PEERS, AtOnce
from tests.bench.harness import Contest, benchmark

EPOCH = EpochMark(1, 1)


def uploading(peer: AtOnce) -> Iterator[Contest]:
    """The spools are written beforehand, one for each round: only their way to the store is timed."""
    spec = JournalSpec("a/b", 1, fragment=FragmentPolicy(1 << 30, peer.codec, ("file:///",)))
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        folder = Path(name)
        (folder / "store").mkdir()
        directory = SpoolDirectory(folder / "spools", FsyncMode(), machine_boot_id(), SpoolBudget())
        begins = itertools.count(0, len(CONTENT))
        spools = [written(directory, peer, spec, next(begins)) for _ in range(9)]

        def ours() -> None:
            runner.run(uploaded(spools.pop(), folder / "store", spec))

        yield Contest(ours, lambda: peer.pack(CONTENT), "codec in one call, in memory", 32, "MiB", ratio_min=0.8)
        directory.close()


def written(directory: SpoolDirectory, peer: AtOnce, spec: JournalSpec, begin: int, times: int = 1) -> CompletedSpool:
    encoded = spec.to_proto().SerializeToString()
    writer = SpoolWriter("a/b", directory, lambda: encoded)
    empty = replace(writer.spool.fragment, begin=begin, end=begin, codec=peer.codec)
    writer.propose(Proposal(empty, writer.spool.registers, 0))
    for _ in range(times):
        for data in APPENDS:
            writer.content(data, 0)
            writer.propose(Proposal(writer.spool.next(), writer.spool.registers, 1, EPOCH))
    completed = writer.complete().completed
    assert completed is not None
    return completed


async def uploaded(completed: CompletedSpool, root: Path, spec: JournalSpec) -> None:
    stores = OpenStores(StoreSettings(file_root=root))
    current = CurrentSpec(spec, EPOCH.create_revision)
    loop = asyncio.get_running_loop()
    ledger: PersistLedger[SpoolFile] = PersistLedger(lambda _: current, loop.time, random.Random(1))
    persister = Persister(ledger, stores.open, SpoolCompression())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(persister.run())
        ledger.complete(completed, EPOCH.create_revision, primary=True)
        await persister.finish()
        running.cancel()
    await stores.close()


@benchmark("persister zstandard: 2 GiB through spool, compression and upload")
def two_gib() -> Iterator[Contest]:
    """Memory must not grow with the fragment. The peer only compresses, in memory, piece by piece."""
    peer, times = PEERS[0], (2 << 30) // len(CONTENT)
    spec = JournalSpec("a/b", 1, fragment=FragmentPolicy(1 << 34, peer.codec, ("file:///",)))
    with tempfile.TemporaryDirectory(dir=".") as name, asyncio.Runner() as runner:
        folder = Path(name)
        (folder / "store").mkdir()
        directory = SpoolDirectory(folder / "spools", FsyncMode(), machine_boot_id(), SpoolBudget())

        def ours() -> None:
            completed = written(directory, peer, spec, 0, times)
            runner.run(uploaded(completed, folder / "store", spec))

        def floor() -> None:
            encoder = encoder_of(peer.codec)
            for _ in range(times):
                for data in APPENDS:
                    encoder.feed(data)
                    encoder.cut()

        yield Contest(ours, floor, "compress alone", 2048, "MiB", memory_bytes_max=64 << 20, rounds=1)
        directory.close()


for _peer in PEERS:
    benchmark(f"persister {_peer.codec.name.lower()}: compress and upload 32 MiB to file://")(partial(uploading, _peer))
