from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from fragment.stores.bucket_store import BucketStore
from fragment.stores.filesystem import Folder
from protocol.fragment_store import FragmentStore
from tests.bench.harness import Contest, benchmark

PUT_BYTES = 256 << 20
LISTED = 100_000


def opened(root: str) -> BucketStore:
    return BucketStore(FragmentStore.parse("file:///"), Folder(Path(root), "/"))


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@benchmark("stores: put 256 MiB to file://")
def file_put() -> Iterator[Contest]:
    """The floor is a copy that is as safe: synced, given its name afterwards, and the name synced too."""
    with tempfile.TemporaryDirectory() as root:
        source, copy = Path(root, "source"), Path(root, "copy")
        block = os.urandom(1 << 20)
        with source.open("wb") as file:
            for _ in range(PUT_BYTES >> 20):
                file.write(block)

        def ours() -> None:
            async def put() -> None:
                store = opened(root)
                await store.put("acme/orders/fragment", source, size=PUT_BYTES)
                await store.close()

            asyncio.run(put())

        def floor() -> None:
            shutil.copyfile(source, f"{copy}.partial")
            sync(f"{copy}.partial")
            os.rename(f"{copy}.partial", copy)
            sync(root)

        yield Contest(ours, floor, "copy, fsync, rename, fsync", PUT_BYTES / 1e6, "MB", ratio_min=0.8)


@benchmark("stores: list 100,000 files")
def file_list() -> Iterator[Contest]:
    with tempfile.TemporaryDirectory() as root:
        for at in range(LISTED):
            folder = Path(root, "acme", f"part-{at % 100:03d}")
            if at < 100:
                folder.mkdir(parents=True)
            os.close(os.open(folder / f"{at:016x}-{at + 1:016x}-{'0' * 40}.gz", os.O_CREAT | os.O_WRONLY))

        def ours() -> int:
            async def count() -> int:
                async with aclosing(opened(root).list("acme/")) as batches:
                    return sum([len(batch) async for batch in batches])

            return asyncio.run(count())

        def floor() -> int:
            found = 0
            for folder in os.scandir(f"{root}/acme"):
                with os.scandir(folder) as entries:
                    found += sum(1 for entry in entries if entry.stat().st_mtime)
            return found

        assert ours() == floor() == LISTED
        yield Contest(ours, floor, "scan and stat", LISTED, "files", seconds_max=5)
