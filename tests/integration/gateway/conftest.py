"""Three real brokers with their gateways, which tests share if they leave them as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.etcd_server import EtcdServer

NAMES = ("broker-0", "broker-1", "broker-2")
FLAGS = ("--broker.allow-origin", "https://ui.example")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def cluster(shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("gateways")
    async with broker_cluster(folder, shared_etcd.endpoint, "/gateways", *NAMES, flags=FLAGS) as cluster:
        yield cluster
