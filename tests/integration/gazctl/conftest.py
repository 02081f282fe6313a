"""A cluster of one broker that tests share, and gazctl to use it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd_server import free_port
from tests.support.gazctl_process import Gazctl, Up


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("up") / "cluster", free_port())
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture
def gazctl(up: Up, tmp_path: Path) -> Gazctl:
    return Gazctl(up.address, tmp_path)
