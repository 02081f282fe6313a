"""A cluster that a test fills, closed when it is done; and the event loop that brokers run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support.journal_cluster import A, B, C, JournalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[JournalCluster]:
    made = JournalCluster(tmp_path, A, B, C)
    yield made
    await made.close()


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A broker runs on uvloop; in a process of somebody else's it runs on what there is."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_patience.py":
        factories["asyncio"] = asyncio.new_event_loop
    return factories
