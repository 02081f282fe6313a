from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.object_servers import s3_server

# No deadline: a slow machine is not a defect. A failure prints the blob that replays it. The database is named because
# without one, which is what Hypothesis chooses where CI is set, settings look it up again through all tests before.
settings.register_profile(
    "pygazette", deadline=None, print_blob=True, database=DirectoryBasedExampleDatabase(".hypothesis/examples")
)
settings.load_profile("pygazette")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """One S3 server for all: moto keeps its buckets by process."""
    with s3_server() as endpoint:
        yield endpoint
