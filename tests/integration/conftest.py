"""A real etcd, shared by the tests that leave it as they found it, with a prefix in it for each, and a real Spark."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from pyspark.sql import SparkSession

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.spark_session import spark_session

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


@pytest.fixture(scope="session")
def spark(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One for all. After the S3 server, whose credentials Spark's workers inherit with the environment."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
