"""``gazctl up``: a cluster that comes up, keeps its brokers alive, goes away, and comes back with its data."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd_server import free_port
from tests.support.eventually import eventually_blocking
from tests.support.gazctl_process import GAZCTL, WAIT_S, Gazctl, Up


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path / "cluster", free_port(), brokers=2)
    try:
        started.start()
        yield started
    finally:
        started.close()


def test_a_cluster_lives_through_a_death_and_a_restart(two: Up, tmp_path: Path) -> None:
    cluster = two.cluster()
    assert [broker["id"] for broker in cluster["brokers"]] == ["broker-1", "broker-2"]
    assert cluster["pid"] == (two.process.pid if two.process else 0)
    assert cluster["file_root"] == str(two.folder / "fragments")
    assert "gazctl journals append" in two.said(), "it prints what to try"

    gazctl = Gazctl(two.address, tmp_path)
    gazctl.create("my/journal", replication=2)
    gazctl.ok("journals", "append", "-l", "name=my/journal", stdin="before\n")
    victim = cluster["brokers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    eventually_blocking(lambda: two.cluster()["brokers"][1]["pid"] != victim, lambda: f"another process: {two.said()}")
    assert f"broker-2 (process {victim}) was ended by SIGKILL" in two.said()
    # What a broker that has just died took with it may be an answer: then nobody knows whether it was done.
    gazctl.ok("journals", "append", "-l", "name=my/journal", "--at-least-once", stdin="after\n")

    pids = [broker["pid"] for broker in two.cluster()["brokers"]]
    assert two.stop() == 0
    assert not (two.folder / "cluster.json").exists()
    assert not any(map(is_running, pids))

    again = two.start()
    assert [broker["id"] for broker in again["brokers"]] == ["broker-1", "broker-2"]
    read = gazctl.ok("journals", "read", "-l", "name=my/journal")
    assert read in ("before\nafter\n", "before\nafter\nafter\n")


def test_what_it_prints_can_be_pasted(up: Up, gazctl: Gazctl) -> None:
    """As it stands there, with its indentation."""
    _, _, after = up.said().partition("and read it:\n\n")
    commands, _, _ = after.partition("\n\n")
    assert "gazctl journals append" in commands
    own = "gazctl() { " + shlex.join(GAZCTL) + ' "$@"; }\n'
    environ = gazctl.environ(PYTHONPATH=os.getcwd(), no_proxy="*")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=own + commands,
        env=environ,
        cwd=gazctl.folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran
    assert ran.stdout.count("hello\n") >= 2, "gazctl has read it, and curl"
    # Others share the cluster, and may want to create it.
    gazctl.ok("journals", "apply", stdin="{name: my/journal, revision: -1, delete: true}")


def test_a_folder_and_a_port_have_one_cluster_at_a_time(up: Up, gazctl: Gazctl) -> None:
    same = gazctl("up", "--dir", str(up.folder), "--port", str(free_port()))
    assert (same.code, "give another folder with --dir" in same.stderr) == (1, True)
    taken = gazctl("up", "--dir", str(gazctl.folder / "other"), "--port", str(up.port))
    assert (taken.code, "give another one with --port" in taken.stderr) == (1, True)
    assert (up.folder / "cluster.json").exists()


def test_when_it_is_killed_nothing_of_it_is_left(tmp_path: Path) -> None:
    started = Up(tmp_path / "cluster", free_port())
    pids = [broker["pid"] for broker in started.start()["brokers"]]
    assert started.process is not None
    started.process.kill()
    started.process.wait()
    eventually_blocking(lambda: not any(map(is_running, pids)), lambda: f"all processes to end: {started.said()}")
    # What it has left behind does not keep the next one from starting.
    try:
        assert started.start()["brokers"][0]["pid"] not in pids
    finally:
        started.close()
