"""A cluster that a test fills, closed when it is done; a spool over files; and the event loop that brokers run on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop

from fragment.spool_budget import SpoolBudget
from fragment.spool_directory import FsyncMode, SpoolDirectory
from tests.support.driven_spool_worker import Held
from tests.support.journal_cluster import A, B, C, JournalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[JournalCluster]:
    made = JournalCluster(tmp_path, A, B, C)
    yield made
    await made.close()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[SpoolDirectory]:
    made = SpoolDirectory(tmp_path / "spools", FsyncMode(), b"\1" * 16, SpoolBudget())
    yield made
    made.close()


@pytest.fixture
async def held(directory: SpoolDirectory, executor: ThreadPoolExecutor) -> Held:
    return Held(directory, executor)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A broker runs on uvloop; in a process of somebody else's it runs on what there is."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_patience.py":
        factories["asyncio"] = asyncio.new_event_loop
    return factories
