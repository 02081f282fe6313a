"""A cluster that a test fills, closed when it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.journal_cluster import A, B, C, JournalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[JournalCluster]:
    made = JournalCluster(tmp_path, A, B, C)
    yield made
    await made.close()
