"""A KeySpaceWatch that runs, with a record of all it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from allocator.etcd_client import EtcdClient
from allocator.keyspace import KeySpace
from allocator.keyspace_view import Update
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from tests.support.etcd_server import EtcdServer


def text(key: str, raw: bytes) -> str:
    if raw == b"bad":
        raise ValueError("it is bad")
    return raw.decode()


@dataclass
class RunningMirror:
    keyspace: KeySpace[str]
    watch: KeySpaceWatch[str]
    # The first is that of loading.
    updates: list[Update[str]] = field(default_factory=list)

    def check(self, server: EtcdServer) -> None:
        """The mirror is what etcd has now, nothing was told twice, and every change follows from the one before."""
        listed = server.listing(self.keyspace.prefix)
        view = self.watch.view
        assert {kv.key: (kv.raw, kv.mod_revision) for kv in view.key_values} == {
            key: stored for key, stored in listed.items() if stored[0] != b"bad"
        }
        self.check_history()

    def check_history(self) -> None:
        told: dict[str, int] = {}
        known: dict[str, object] = {}
        revision = 0
        for update in self.updates:
            assert update.view.revision >= revision
            revision = update.view.revision
            for change in update.changes:
                key, after = change.key, change.after
                assert known.pop(key, None) == change.before
                if after is not None:
                    assert after.mod_revision > told.get(key, 0), f"{key} was told twice"
                    told[key] = after.mod_revision
                    known[key] = after
            assert sorted(known) == [kv.key for kv in update.view.key_values]


@asynccontextmanager
async def mirror_of(
    etcd: EtcdClient, prefix: str, timing: WatchTiming | None = None, *, load_at: int | None = None
) -> AsyncIterator[RunningMirror]:
    keyspace = KeySpace(prefix, text)
    watch = KeySpaceWatch(etcd, keyspace, timing=timing)
    mirror = RunningMirror(keyspace, watch)
    watch.observe(mirror.updates.append)
    await watch.load(load_at)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run())
        yield mirror
        running.cancel()
