"""A real etcd, shared by the tests that leave it as they found it, and a prefix in it for each of them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from tests.support.etcd_server import EtcdServer, etcd_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"/test-{next(_NUMBERS):04}"


@pytest.fixture
async def etcd(shared_etcd: EtcdServer) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(EtcdConnections([shared_etcd.endpoint])) as client:
        yield client
