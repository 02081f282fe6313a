"""What documents tell their readers to type does what they say: each block of ``sh`` is run, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gazctl_process import WAIT_S, Gazctl, Up

ROOT = Path(__file__).parents[3]
BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
DOCUMENTS = ["docs/gazctl.md", "README.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_of_a_document_work(document: str, gazctl: Gazctl, up: Up) -> None:
    blocks = BLOCKS.findall((ROOT / document).read_text(encoding="utf-8"))
    if not blocks:
        pytest.skip(f"{document} has no commands to run")
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
