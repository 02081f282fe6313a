from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.key_event import EtcdHeader, Listing, StoredKey, WatchEvents
from allocator.keyspace import KeySpace
from allocator.keyspace_watch import KeySpaceWatch
from allocator.transaction import Put, Transaction
from broker.cluster_keys import broker_decoder
from protocol.codec import CompressionCodec
from protocol.journal import FragmentPolicy, JournalSpec
from protocol.label import LabelSet
from tests.bench.harness import Contest, benchmark
from tests.support.etcd_server import EtcdServer, etcd_server

KEYS = 100_000
OVERHEAD_BYTES_MAX = 1024
HEADER = EtcdHeader(1, 1, 1000, 1)
# As large as the spec of a journal.
VALUE = bytes(300)
LABELS = LabelSet.of(("app.gazette.dev/message-type", "Order"), ("content-type", "application/x-ndjson"))
FRAGMENTS = FragmentPolicy(1 << 29, CompressionCodec.GZIP, ("s3://bucket/prefix/",), refresh_interval_ns=300 * 10**9)
NAMES = [f"/gazette/cluster/items/acme/orders/part-{at:06}" for at in range(KEYS)]


def raw(key: str, value: bytes) -> bytes:
    """What a value costs to decode is not the mirror's to answer for."""
    return value


def listing() -> Listing:
    """Nothing in it is shared, as in an answer of etcd."""
    return Listing(
        HEADER,
        [
            StoredKey(name.encode(), VALUE + str(at).encode(), 10**6 + at, 10**6 + at, 1, 10**12 + at)
            for at, name in enumerate(NAMES)
        ],
    )


def journal_puts(replication: int) -> list[Put]:
    specs = [
        JournalSpec(name.removeprefix("/gazette/cluster/items/"), replication, LABELS, FRAGMENTS) for name in NAMES
    ]
    return [Put(name, spec.to_proto().SerializeToString()) for name, spec in zip(NAMES, specs, strict=True)]


async def put_all(server: EtcdServer, puts: list[Put]) -> int:
    """The revision of the last."""
    async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
        batches = [tuple(puts[at : at + 100]) for at in range(0, len(puts), 100)]
        return [(await etcd.commit(Transaction((), batch))).header.revision for batch in batches][-1]


@benchmark("keyspace: load 100,000 journals from etcd")
def keyspace_load() -> Iterator[Contest]:
    """Decoded and judged, as a broker does."""
    decode = broker_decoder("/gazette/cluster")
    with tempfile.TemporaryDirectory() as folder, etcd_server(Path(folder)) as server:

        async def load() -> int:
            async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
                return len((await KeySpaceWatch(etcd, KeySpace("/gazette/cluster", decode)).load()).key_values)

        async def pages() -> int:
            async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
                return len((await etcd.list_prefix("/gazette/cluster")).keys)

        asyncio.run(put_all(server, journal_puts(3)))
        assert asyncio.run(load()) == KEYS
        yield Contest(
            lambda: asyncio.run(load()), lambda: asyncio.run(pages()), "list them only", KEYS, "keys", seconds_max=3
        )


@benchmark("keyspace: catch up with 10,000 events on 100,000 journals")
def keyspace_catch_up() -> Iterator[Contest]:
    """As after a while without etcd. The loop has other things to do, such as to keep the lease: for how long it was
    held up at most is printed."""
    decode = broker_decoder("/gazette/cluster")
    held_up_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder, etcd_server(Path(folder)) as server:
        loaded_at = asyncio.run(put_all(server, journal_puts(3)))
        latest = asyncio.run(put_all(server, journal_puts(2)[:: KEYS // 10_000]))

        async def tick(worst: list[float]) -> None:
            clock = asyncio.get_running_loop().time
            while True:
                begun_s = clock()
                await asyncio.sleep(0.001)
                worst[0] = max(worst[0], clock() - begun_s - 0.001)

        async def follow() -> None:
            async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
                watch, worst = KeySpaceWatch(etcd, KeySpace("/gazette/cluster", decode)), [0.0]
                await watch.load(loaded_at)
                async with asyncio.TaskGroup() as tasks:
                    children = [tasks.create_task(watch.run()), tasks.create_task(tick(worst))]
                    await watch.wait_revision(latest, 60)
                    for child in children:
                        child.cancel()
                held_up_s.append(worst[0])

        async def load() -> None:
            async with EtcdClient(EtcdConnections([server.endpoint])) as etcd:
                await KeySpaceWatch(etcd, KeySpace("/gazette/cluster", decode)).load(loaded_at)

        yield Contest(
            lambda: asyncio.run(follow()),
            lambda: asyncio.run(load()),
            "load only",
            KEYS,
            "keys",
            seconds_max=5,
            rounds=3,
        )
    print(json.dumps({"keyspace catch-up, loop held up, ms": [round(seconds * 1000) for seconds in held_up_s]}))


@benchmark("keyspace: apply one event to 100,000 keys")
def keyspace_apply() -> Iterator[Contest]:
    """That reads on go on meanwhile has a price: a list of 100,000 pointers is copied."""
    keyspace = KeySpace("/gazette/cluster", raw)
    keyspace.load(keyspace.decoded(listing()))
    revision = 10**6 + KEYS

    def ours() -> None:
        nonlocal revision
        for at in range(0, KEYS, KEYS // 100):
            revision += 1
            event = StoredKey(NAMES[at].encode(), VALUE, 10**6 + at, revision, 2, 7)
            keyspace.apply([WatchEvents(HEADER._replace(revision=revision), [event])])

    def floor() -> None:
        for _ in range(100):
            list(keyspace.view.key_values)

    yield Contest(ours, floor, "copy the list", 100, "updates", seconds_max=0.2)


@benchmark("keyspace: slices of 100,000 keys by prefix")
def keyspace_slice() -> Iterator[Contest]:
    keyspace = KeySpace("/gazette/cluster", raw)
    keyspace.load(keyspace.decoded(listing()))
    view = keyspace.view
    prefixes = [f"/gazette/cluster/items/acme/orders/part-{at:05}" for at in range(10_000)]
    by_prefix = {prefix: view.prefixed(prefix) for prefix in prefixes}
    assert sum(map(len, by_prefix.values())) == KEYS

    yield Contest(
        lambda: [view.prefixed(prefix) for prefix in prefixes],
        lambda: [by_prefix[prefix] for prefix in prefixes],
        "look them up in a dict",
        len(prefixes),
        "slices",
        seconds_max=0.5,
    )


@benchmark("keyspace: memory of 100,000 keys")
def keyspace_memory() -> Iterator[Contest]:
    """Beyond the bytes of keys and values themselves, which anybody has to hold."""

    def ours() -> float:
        tracemalloc.start()
        keyspace = KeySpace("/gazette/cluster", raw)
        keyspace.load(keyspace.decoded(listing()))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        content = sum(len(kv.key) + len(kv.raw) for kv in keyspace.view.key_values)
        return (held - content) / KEYS

    overhead = ours()
    assert overhead < OVERHEAD_BYTES_MAX, f"{overhead:.0f} bytes per key"
    print(json.dumps({"keyspace overhead, bytes per key": round(overhead)}))
    yield Contest(ours, listing, "the listing alone", KEYS, "keys")
