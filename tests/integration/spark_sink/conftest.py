"""Two real brokers that the tests of writing share, and journals of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from broker.client.blocking import BlockingClient
from broker.client.journal_change import Upsert
from tests.support.broker_cluster import BrokerCluster, broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer

_NUMBERS = itertools.count()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def cluster(shared_etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("sink-brokers")
    async with broker_cluster(folder, shared_etcd.endpoint, "/sink-brokers", "broker-0", "broker-1") as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: BrokerCluster) -> str:
    """Its address: it leads to the other."""
    return cluster.brokers["broker-0"].address


@pytest.fixture
def client(broker: str) -> Iterator[BlockingClient]:
    with BlockingClient(broker) as client:
        yield client


@pytest.fixture
def create(client: BlockingClient) -> Callable[..., list[str]]:
    """Creates journals below a name that no other test has."""
    folder = f"sink/test-{next(_NUMBERS):03}"

    def created(*names: str) -> list[str]:
        journals = [f"{folder}/{name}" for name in names]
        client.apply(*(Upsert(journal_spec(journal, 2)) for journal in journals))
        return journals

    return created
