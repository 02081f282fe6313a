"""What documents tell their readers to type does what they say: each block of ``sh`` is run, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd_server import free_port
from tests.support.gazctl_process import WAIT_S, Gazctl, Up

ROOT = Path(__file__).parents[3]
BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Up]:
    """As `gazctl up` runs it."""
    started = Up(tmp_path / "cluster", free_port(), brokers=3)
    try:
        started.start()
        yield started
    finally:
        started.close()


def test_the_commands_about_gazctl_work(gazctl: Gazctl, up: Up) -> None:
    run_blocks("docs/gazctl.md", gazctl, up)


def test_the_commands_of_the_readme_work(three: Up, tmp_path: Path) -> None:
    run_blocks("README.md", Gazctl(three.address, tmp_path), three)


def run_blocks(document: str, gazctl: Gazctl, up: Up) -> None:
    blocks = BLOCKS.findall((ROOT / document).read_text(encoding="utf-8"))
    assert blocks
    script = "set -euo pipefail\n" + "\n".join(blocks)
    script = script.replace("http://localhost:9080", up.cluster()["gateway"])
    (gazctl.folder / "examples").symlink_to(ROOT / "examples")
    environ = gazctl.environ(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
    )
    ran = subprocess.run(
        ["bash", "-c", script], cwd=gazctl.folder, env=environ, capture_output=True, text=True, timeout=3 * WAIT_S
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
