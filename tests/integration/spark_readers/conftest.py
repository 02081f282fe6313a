from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_session import spark_session


@pytest.fixture(scope="session")
def spark(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """After the S3 server, whose credentials Spark's workers inherit with the environment."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session
