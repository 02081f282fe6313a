from __future__ import annotations

import asyncio
import gc
import gzip
import os
import random
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from fragment.persist_destination import CurrentSpec
from fragment.persist_ledger import PersistLedger
from fragment.persister import Persister
from fragment.spool import EpochMark, Proposal
from fragment.spool_budget import SpoolBudget
from fragment.spool_compression import SpoolCompression
from fragment.spool_directory import FsyncMode, RecoveredSpool, SpoolDirectory
from fragment.spool_file import SpoolEndedError, SpoolFile
from fragment.spool_recovery import Worth, spool_of
from fragment.spool_writer import CompletedSpool, LocalFragment, SpoolWriter
from fragment.stores.blob_store import BlobStore, StoreDeniedError
from fragment.stores.open_stores import OpenStores, StoreSettings
from protocol.codec import CompressionCodec
from protocol.errors import UnavailableError
from protocol.fragment import NO_SUM, Fragment
from protocol.journal import JournalSpec
from tests.support.completed_spools import APPENDED_NS, EPOCH, JOURNAL, NO_STORES, encoded, spec
from tests.support.eventually import eventually
from tests.support.journal_cluster import settled

HIVE = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'


@dataclass
class World:
    """A broker's disk and stores, for one journal."""

    folder: Path
    directory: SpoolDirectory
    stores: OpenStores
    compression: SpoolCompression
    ledger: PersistLedger[SpoolFile]
    persister: Persister
    current: CurrentSpec | None
    # Errors that opening a store raises, by its URL.
    denied: dict[str, Exception] = field(default_factory=dict)
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    joined: list[tuple[Fragment, SpoolFile, int]] = field(default_factory=list)
    has_lease: bool = True
    # A store that stands before the real one.
    instead: BlobStore | None = None

    def spool(
        self, *appends: bytes, codec: CompressionCodec = CompressionCodec.NONE, acked: int | None = None
    ) -> CompletedSpool:
        last_spec = encoded(self.current.spec) if self.current else b""
        writer = SpoolWriter(JOURNAL, self.directory, lambda: last_spec)
        writer.propose(Proposal(replace(writer.spool.fragment, codec=codec), writer.spool.registers, 0))
        for data in appends:
            writer.content(data, 0)
            writer.propose(Proposal(writer.spool.next(), writer.spool.registers, APPENDED_NS, EPOCH, acked))
        completed = writer.complete().completed
        assert completed is not None
        return completed

    def objects(self) -> dict[str, bytes]:
        root = self.folder / "stores"
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def spool_files(self) -> list[str]:
        kept = ("identity.json", "lock")
        return sorted(path.suffix for path in self.directory.path.iterdir() if path.name not in kept)


@asynccontextmanager
async def world(tmp_path: Path, current: JournalSpec | None, *, discard_deleted: bool = False) -> AsyncIterator[World]:
    for name in ("one", "two"):
        (tmp_path / "stores" / name).mkdir(parents=True)
    stores = OpenStores(StoreSettings(file_root=tmp_path / "stores"))
    directory = SpoolDirectory(tmp_path / "spools", FsyncMode(), b"\1" * 16, SpoolBudget())

    async def open_store(url: str) -> BlobStore:
        if error := made.denied.get(url):
            made.refused.set()
            raise error
        if made.instead is not None:
            return made.instead
        return await stores.open(url)

    loop = asyncio.get_running_loop()
    compression = SpoolCompression()
    ledger: PersistLedger[SpoolFile] = PersistLedger(
        lambda _: made.current, loop.time, random.Random(3),
        may_upload=lambda: made.has_lease,
        discard_deleted=discard_deleted,
    )  # fmt: skip
    joined: list[tuple[Fragment, SpoolFile, int]] = []
    persister = Persister(ledger, open_store, compression, lambda *told: joined.append(told))
    held = CurrentSpec(current, EPOCH.create_revision) if current else None
    made = World(tmp_path, directory, stores, compression, ledger, persister, held, joined=joined)
    async with asyncio.TaskGroup() as running:
        tasks = [running.create_task(persister.run()), running.create_task(compression.run())]
        yield made
        for task in tasks:
            task.cancel()
    await stores.close()
    directory.close()


async def test_a_completed_spool_is_stored_and_its_files_go(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello ", b"world\n")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        assert held.ledger.waiting == [completed.spool.fragment]
        assert held.ledger.waiting_bytes == 12
        assert completed.spool.first_append_ns is not None
        assert held.ledger.oldest_append_ns() == completed.spool.first_append_ns
        await held.persister.finish()
        assert not held.ledger.waiting_bytes
        assert held.ledger.oldest_append_ns() is None
        name = f"one/{completed.spool.fragment.content_path}"
        assert held.objects() == {name: b"hello world\n"}
        assert held.ledger.waiting == []
        assert held.spool_files() == [".commits"], "the last word on an epoch that may be open"
        held.ledger.closed(JOURNAL, EPOCH, 12)
        await held.persister.finish()
        assert held.spool_files() == []
        assert held.directory.budget.held_bytes == 0


async def test_codecs_and_postfixes_are_those_of_the_spec(tmp_path: Path) -> None:
    async with world(tmp_path, spec(codec=CompressionCodec.GZIP, template=HIVE)) as held:
        completed = held.spool(b"hello ", b"world\n", codec=CompressionCodec.GZIP)
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        ((path, data),) = held.objects().items()
        assert path == f"one/a/b/date=2026-01-02/{completed.spool.fragment.content_name}"
        assert gzip.decompress(data) == b"hello world\n"
        assert held.spool_files() == [".commits"]


async def test_an_object_that_is_there_is_not_put_again(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello")
        path = tmp_path / "stores" / "one" / completed.spool.fragment.content_path
        path.parent.mkdir(parents=True)
        path.write_bytes(b"already here")
        held.ledger.complete(completed, EPOCH.create_revision, primary=False)
        await held.persister.finish()
        assert path.read_bytes() == b"already here"
        assert held.spool_files() == [".commits"]


async def test_a_closed_epoch_cuts_what_is_beyond_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path, spec(codec=CompressionCodec.GZIP)) as held:
        completed = held.spool(b"hello", b"world", codec=CompressionCodec.GZIP, acked=0)
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        held.ledger.closed(JOURNAL, EpochMark(6, 1), 10)
        await held.persister.finish()
        assert held.objects() == {}
        held.ledger.closed(JOURNAL, EPOCH, 5)
        await held.persister.finish()
        ((path, data),) = held.objects().items()
        assert "/0000000000000000-0000000000000005-aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d.gz" in path
        assert gzip.decompress(data) == b"hello"
        assert held.spool_files() == []
        assert "never acknowledged were cut" in caplog.text


async def test_a_failure_is_retried_and_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path, spec()) as held:
        held.denied["file:///one/"] = UnavailableError("the store is down")
        completed = held.spool(b"hello")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.refused.wait()
        assert held.spool_files() == [".commits", ".content"]
        held.denied.clear()
        await held.persister.finish()
        assert list(held.objects().values()) == [b"hello"]
        assert "will retry" in caplog.text


async def test_only_an_exiting_broker_passes_a_store_over_that_turns_it_away(tmp_path: Path) -> None:
    async with world(tmp_path, spec("file:///one/", "file:///two/")) as held:
        held.denied["file:///one/"] = StoreDeniedError("403")
        held.ledger.complete(held.spool(b"hello"), EPOCH.create_revision, primary=True)
        await held.refused.wait()
        assert held.objects() == {}
        await held.persister.finish()
        assert [path.split("/")[0] for path in held.objects()] == ["two"]


async def test_bytes_of_a_deleted_journal_are_set_aside_not_thrown_away(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello")
        held.current = None
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert held.objects() == {f"one/.deleted/5/a/b/{completed.spool.fragment.content_name}": b"hello"}


async def test_bytes_of_a_deleted_journal_go_if_the_operator_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, spec(), discard_deleted=True) as held:
        completed = held.spool(b"hello")
        held.current = None
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert (held.objects(), held.spool_files()) == ({}, [".commits"])
        assert "discarded" in caplog.text


async def test_a_template_beyond_us_stores_without_postfix_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, spec(template="a b/{{ .Spool.Begin }}")) as held:
        completed = held.spool(b"hello")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert list(held.objects()) == [f"one/{completed.spool.fragment.content_path}"]
        assert "stored without a postfix" in caplog.text


async def test_a_journal_without_stores_keeps_its_files(tmp_path: Path) -> None:
    async with world(tmp_path, NO_STORES) as held:
        completed = held.spool(b"hello")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert held.spool_files() == [".commits", ".content"]
        assert held.objects() == {}
        assert held.directory.budget.held_bytes == 0, "nobody waits for its upload"
        known = held.ledger.local(JOURNAL, EPOCH.create_revision)
        assert known == [(completed.spool.fragment, completed.file)], "for a replica that starts"
        held.ledger.revisit()
        await held.persister.finish()
        assert held.ledger.local(JOURNAL, EPOCH.create_revision) == known


async def test_a_growing_spool_is_compressed_before_it_is_complete(tmp_path: Path) -> None:
    async with world(tmp_path, spec(codec=CompressionCodec.ZSTANDARD)) as held:
        writer = SpoolWriter(JOURNAL, held.directory, lambda: b"")
        empty = replace(writer.spool.fragment, codec=CompressionCodec.ZSTANDARD, sum=NO_SUM)
        writer.propose(Proposal(empty, writer.spool.registers, 0))
        chunk = random.Random(1).randbytes(1 << 20)
        for _ in range(12):
            writer.content(chunk, 0)
            performed = writer.propose(Proposal(writer.spool.next(), writer.spool.registers, 1, EPOCH))
            for local in performed.visible:
                held.compression.grew(local)
        await eventually(lambda: packed_bytes(held) > 8 << 20, "the spool to be compressed while it grows")
        assert held.spool_files() == [".commits", ".content", ".packed"]
        completed = writer.complete().completed
        assert completed is not None
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert len(held.objects()) == 1
        assert held.spool_files() == [".commits"]
        held.compression.grew(LocalFragment(completed.spool.fragment, completed.file))
        await settled()
        # Whoever works on it is waited for.
        await held.compression.take(completed.file, CompressionCodec.ZSTANDARD)
        assert held.spool_files() == [".commits"], "a commit that is shown late does not begin the object again"


def packed_bytes(held: World) -> int:
    return sum(path.stat().st_size for path in held.directory.path.glob("*.packed"))


@pytest.mark.parametrize("at", [9, -2], ids=["first record", "last record"])
async def test_a_damaged_log_costs_no_acknowledged_byte(tmp_path: Path, at: int) -> None:
    """The process that wrote the spool knows what it committed; the log is for the one after it."""
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello", b"world", b"again")
        raw = bytearray(completed.file.log_path.read_bytes())
        raw[at] ^= 1
        completed.file.log_path.write_bytes(raw)
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert list(held.objects().values()) == [b"helloworldagain"]


async def test_an_error_nobody_thought_of_is_retried_like_any_other(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        held.denied["file:///one/"] = RuntimeError("a library's own")
        held.ledger.complete(held.spool(b"hello"), EPOCH.create_revision, primary=True)
        await held.refused.wait()
        held.denied.clear()
        await held.persister.finish()
        assert list(held.objects().values()) == [b"hello"]


async def test_a_spool_that_the_disk_has_spoiled_is_not_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello")

        def failing(_: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", failing)
            with pytest.raises(SpoolEndedError):
                completed.file.sync()
        completed.file.content_path.write_bytes(b"hellO")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert held.objects() == {}
        assert held.spool_files() == [".commits", ".content"]
        assert "damaged" in caplog.text


async def test_an_ended_spool_that_is_sound_is_uploaded_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello")

        def failing(_: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", failing)
            with pytest.raises(SpoolEndedError):
                completed.file.sync()
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert list(held.objects().values()) == [b"hello"]
        assert held.spool_files() == [".commits", ".content"], "it takes no record that would stand in for it"
        held.ledger.closed(JOURNAL, EPOCH, 5)
        await held.persister.finish()
        assert held.spool_files() == []


class Forgetful:
    """A store that takes everything and shows nothing, until it is told to."""

    def __init__(self, store: BlobStore) -> None:
        self.store, self.remembers, self.asked_after = store, False, 0
        self.put_once = asyncio.Event()

    async def exists(self, path: str) -> bool:
        return self.remembers and await self.store.exists(path)

    async def put(self, path: str, source: Path | int, *, size: int, content_encoding: str | None = None) -> None:
        await self.store.put(path, source, size=size, content_encoding=content_encoding)
        self.put_once.set()


async def test_files_go_only_when_the_store_shows_the_object(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        forgetful = Forgetful(await held.stores.open("file:///one/"))
        held.instead = forgetful  # type: ignore[assignment]
        held.ledger.complete(held.spool(b"hello"), EPOCH.create_revision, primary=True)
        await forgetful.put_once.wait()
        assert held.spool_files() == [".commits", ".content"]
        forgetful.remembers = True
        await held.persister.finish()
        assert held.spool_files() == [".commits"]


async def test_an_object_that_ran_ahead_of_a_cut_is_made_anew(tmp_path: Path) -> None:
    async with world(tmp_path, spec(codec=CompressionCodec.GZIP)) as held:
        chunk = random.Random(1).randbytes(3 << 20)
        completed = held.spool(chunk, chunk, chunk, codec=CompressionCodec.GZIP, acked=0)
        held.compression.grew(LocalFragment(completed.spool.fragment, completed.file))
        await eventually(lambda: packed_bytes(held) > 4 << 20, "the spool to be compressed")
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        held.ledger.closed(JOURNAL, EPOCH, 3 << 20)
        await held.persister.finish()
        ((_, data),) = held.objects().items()
        assert gzip.decompress(data) == chunk


async def test_a_cut_between_two_commits_is_made_at_the_one_below(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        held.ledger.complete(held.spool(b"hello", b"world", acked=0), EPOCH.create_revision, primary=True)
        held.ledger.closed(JOURNAL, EPOCH, 7)
        await held.persister.finish()
        assert list(held.objects().values()) == [b"hello"], "an append counts as a whole"
        ((fragment, _, create_revision),) = held.joined
        assert (fragment.end, create_revision) == (5, EPOCH.create_revision)


async def test_who_may_have_lost_its_lease_uploads_only_what_is_closed(tmp_path: Path) -> None:
    """DH-11."""
    async with world(tmp_path, spec()) as held:
        held.has_lease = False
        held.ledger.complete(held.spool(b"hello", acked=5), EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert held.objects() == {}
        held.ledger.closed(JOURNAL, EPOCH, 5)
        await held.persister.finish()
        assert list(held.objects().values()) == [b"hello"]


async def test_a_lease_that_is_lost_while_an_upload_is_prepared_stops_it(tmp_path: Path) -> None:
    """DH-11: it starts no upload."""
    async with world(tmp_path, spec()) as held:
        store = await held.stores.open("file:///one/")
        held.instead = cast(BlobStore, Losing(store, held))
        held.ledger.complete(held.spool(b"hello", acked=5), EPOCH.create_revision, primary=True)
        await held.persister.finish()
        assert held.objects() == {}
        assert held.spool_files() == [".commits", ".content"]


class Losing:
    """A store that is asked whether it has an object, while the lease runs out."""

    def __init__(self, store: BlobStore, held: World) -> None:
        self._store = store
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def exists(self, path: str) -> bool:
        self._held.has_lease = False
        return await self._store.exists(path)


async def test_the_content_of_what_is_stored_is_let_go_of_though_its_log_stays(tmp_path: Path) -> None:
    """Else each such file would take up its room on disk until the process ends."""
    async with world(tmp_path, spec()) as held:
        completed = held.spool(b"hello", acked=5)
        file = weakref.ref(completed.file)
        held.ledger.complete(completed, EPOCH.create_revision, primary=True)
        del completed
        await held.persister.finish()
        assert held.spool_files() == [".commits"]

        def is_gone() -> bool:
            gc.collect()
            return file() is None

        # A thread that had it tells its result before it lets go of it.
        await eventually(is_gone, "the file is let go of")
        held.ledger.closed(JOURNAL, EPOCH, 5)
        await held.persister.finish()
        assert held.spool_files() == []


def adopted(held: World, recovered: RecoveredSpool) -> CompletedSpool:
    copy = recovered.copy
    completed = CompletedSpool(spool_of(copy), recovered.reopened())
    held.ledger.adopt(completed, copy)
    return completed


async def test_the_log_of_what_is_stored_stays_until_its_epoch_is_closed_also_over_a_restart(tmp_path: Path) -> None:
    """Section 3."""
    async with world(tmp_path, spec()) as held:
        again = await stored_and_adopted(held)
        assert again.file.log_path.exists()
        held.ledger.closed(JOURNAL, EPOCH, 5)
        await held.persister.finish()
        assert not again.file.log_path.exists()
        assert list(held.objects().values()) == [b"hello"]


async def has_finished(held: World) -> bool:
    """Whether ``finish`` comes to an end. It takes no time, or for ever."""
    try:
        async with asyncio.timeout(1.0):
            await held.persister.finish()
    except TimeoutError:
        return False
    return True


async def test_the_log_of_what_was_stored_goes_though_the_object_is_pruned_by_now(tmp_path: Path) -> None:
    async with world(tmp_path, spec()) as held:
        again = await stored_and_adopted(held)
        for path in (tmp_path / "stores").rglob("*-*"):
            path.unlink()
        held.ledger.closed(JOURNAL, EPOCH, 5)
        finished = await has_finished(held)
    assert finished
    assert not again.file.log_path.exists()


async def stored_and_adopted(held: World) -> CompletedSpool:
    """By an earlier process, of which there is the log alone."""
    async with world(held.folder / "earlier", spec()) as earlier:
        earlier.ledger.complete(earlier.spool(b"hello", acked=5), EPOCH.create_revision, primary=True)
        await earlier.persister.finish()
        (recovered,) = earlier.directory.recover()
        assert recovered.copy.worth is Worth.STORED
    for path, content in earlier.objects().items():
        (held.folder / "stores" / path).parent.mkdir(parents=True, exist_ok=True)
        (held.folder / "stores" / path).write_bytes(content)
    again = adopted(held, recovered)
    await held.persister.finish()
    return again
