"""The commands in ``docs/http-gateway.md`` do what it says."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_cluster import broker_cluster, journal_spec
from tests.support.etcd_server import EtcdServer

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-gateway.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```\n(.*?)^```)?", re.M | re.S)


async def test_the_examples_run(shared_etcd: EtcdServer, prefix: str, tmp_path: Path) -> None:
    blocks = _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(blocks) >= 6
    async with broker_cluster(tmp_path, shared_etcd.endpoint, prefix, "broker-0") as cluster:
        await cluster.apply(journal_spec("acme/orders", 1))
        await cluster.append("broker-0", "acme/orders")
        gateway = cluster.brokers["broker-0"].gateway
        for script, expected in blocks:
            ran = await asyncio.to_thread(
                subprocess.run,
                ["bash", "-euo", "pipefail", "-c", script],
                env={"GATEWAY": gateway, "PATH": "/usr/bin:/bin", "no_proxy": "*"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert ran.returncode == 0, f"{script} failed: {ran.stdout}{ran.stderr}"
            printed = [line.strip() for line in ran.stdout.splitlines()]
            assert [line for line in expected.splitlines() if line not in printed] == [], ran.stdout


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 408, 409, 413, 415, 416, 500, 503])
def test_every_code_is_explained(code: int) -> None:
    assert re.search(rf"^\|[ 0-9,]*{code}", DOCUMENT.read_text(encoding="utf-8"), re.M)
