"""A cluster of three real brokers that tests share if they leave it as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.client.client import Client
from broker.client.settings import ClientSettings
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.etcd_server import EtcdServer

NAMES = ("broker-0", "broker-1", "broker-2")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def cluster(shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    async with broker_cluster(folder, shared_etcd.endpoint, "/client-brokers", *NAMES) as cluster:
        yield cluster


@pytest.fixture
def settings(cluster: BrokerCluster) -> ClientSettings:
    """One address is enough: it leads to all brokers."""
    return ClientSettings.of(cluster.brokers[NAMES[0]].address, file_root=cluster.fragments)


@pytest.fixture
async def client(settings: ClientSettings) -> AsyncIterator[Client]:
    async with Client(settings=settings) as client:
        yield client
