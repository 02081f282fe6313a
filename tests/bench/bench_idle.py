"""Ten thousand journals that nobody uses, on one broker: what each of them costs."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.keyspace import KeySpace
from allocator.transaction import Put, Transaction
from broker.cluster_keys import broker_decoder
from broker.main import BrokerProcess, BrokerSettings, EtcdSettings
from fragment.stores.open_stores import StoreSettings
from protocol.route import ProcessId
from tests.bench.harness import Contest, benchmark
from tests.support.broker_cluster import journal_spec
from tests.support.etcd_server import etcd_server
from tests.support.eventually import eventually

JOURNALS = 10_000
ROOT = "/bench/cluster"
_BYTES_EACH_MAX = 20 << 10


async def _create(endpoint: str) -> None:
    async with EtcdClient(EtcdConnections([endpoint])) as etcd:
        for begin in range(0, JOURNALS, 100):
            specs = [
                journal_spec(f"idle/{at:06}", 1, refresh_interval_ns=600 * 10**9) for at in range(begin, begin + 100)
            ]
            puts = [Put(f"{ROOT}/items/{spec.name}", spec.to_proto().SerializeToString()) for spec in specs]
            await etcd.commit(Transaction((), tuple(puts)))


async def _hold_all(process: BrokerProcess, endpoint: str) -> None:
    """Until the broker is the primary of all, and has said so."""
    await _create(endpoint)
    async with EtcdClient(EtcdConnections([endpoint])) as etcd:

        async def are_consistent() -> bool:
            await asyncio.sleep(0.5)
            listing = await etcd.list_prefix(f"{ROOT}/assign/")
            return sum(bool(key.raw) for key in listing.keys) == JOURNALS

        await eventually(are_consistent, "all journals to be held", within_s=300)


async def _mirror(endpoint: str) -> None:
    async with EtcdClient(EtcdConnections([endpoint])) as etcd:
        keyspace = KeySpace(ROOT, broker_decoder(ROOT))
        keyspace.load(keyspace.decoded(await etcd.list_prefix(ROOT)))


@benchmark("idle: hold 10,000 journals on one broker")
def hold_idle_journals() -> Iterator[Contest]:
    with asyncio.Runner() as runner, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "etcd").mkdir()
        (folder / "fragments").mkdir()
        etcd = stack.enter_context(etcd_server(folder / "etcd"))

        async def started() -> tuple[BrokerProcess, asyncio.Task[None]]:
            process = BrokerProcess(
                BrokerSettings(
                    id=ProcessId("local", "broker-0"),
                    host="127.0.0.1",
                    spool_dir=folder / "spool",
                    listen="127.0.0.1:0",
                    etcd=EtcdSettings(endpoints=(etcd.endpoint,), prefix=ROOT),
                    limit=JOURNALS,
                    stores=StoreSettings(file_root=folder / "fragments"),
                    drain_s=0.1,
                )
            )
            running = asyncio.get_running_loop().create_task(process.run())
            await process.serving.wait()
            return process, running

        process, running = runner.run(started())
        yield Contest(
            ours=lambda: runner.run(_hold_all(process, etcd.endpoint)),
            peer=lambda: runner.run(_mirror(etcd.endpoint)),
            peer_name="mirror of etcd alone",
            work=JOURNALS,
            unit="journals",
            rounds=1,
            memory_bytes_max=JOURNALS * _BYTES_EACH_MAX,
        )

        async def stop() -> None:
            process.stop()
            await running

        runner.run(stop())
