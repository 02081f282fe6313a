from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from gazctl.local_cluster import Folder, LocalClusterError, Ports
from gazctl.offsets_file import read_offsets, write_offsets
from gazctl.supervised import EndedError, Supervised
from protocol.errors import ValidationError
from tests.support.etcd_server import free_port
from tests.support.eventually import eventually

# Says that it is there, and stays until it is told to go.
STAYS = "import signal, sys; print('here', flush=True); signal.pause()"
WAIT_S = 30


def test_ports_are_the_same_again_where_they_are_free() -> None:
    first = free_port()
    chosen = Ports.chosen(first, 1, {})
    assert chosen.brokers == (first,)
    assert Ports.chosen(first, 1, chosen.remembered()) == chosen


def test_another_port_is_found_for_what_is_not_asked_for_by_number() -> None:
    first = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        chosen = Ports.chosen(first, 1, {"first": first, "gateways": [port], "etcd": port})
    assert port not in (*chosen.gateways, chosen.etcd)


def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LocalClusterError, match="in use: stop what listens there, or give another one with --port"):
            Ports.chosen(taken.getsockname()[1], 1, {})


@pytest.mark.parametrize("remembered", [{"etcd": "x", "gateways": 7}, {"etcd": -1}, {"gateways": [None]}])
def test_nonsense_that_is_remembered_does_no_harm(remembered: dict[str, object]) -> None:
    assert Ports.chosen(free_port(), 1, remembered).etcd > 0


def test_ports_end() -> None:
    with pytest.raises(LocalClusterError, match="smaller"):
        Ports.chosen(65535, 2, {})


def test_a_folder_is_of_one_cluster(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.make()
    with folder.locked(), pytest.raises(LocalClusterError, match=f"process {os.getpid()}"), folder.locked():
        pass
    with folder.locked():
        pass


class Heard(list[str]):
    """What a supervisor says, and a way to wait for more of it."""

    def __init__(self) -> None:
        self._spoke = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self._spoke.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self) < count:
                self._spoke.clear()
                await self._spoke.wait()


async def test_a_process_that_dies_is_started_again_with_a_word(tmp_path: Path) -> None:
    heard = Heard()
    process = Supervised("sleeper", [sys.executable, "-c", STAYS], tmp_path / "log", heard)
    await process.spawn()
    first = process.pid
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(process.supervise())
        os.kill(first, signal.SIGKILL)
        await heard.wait(2)
        assert "was ended by SIGKILL" in heard[0]
        assert "runs again" in heard[1]
        assert process.pid != first
        assert await process.stop(WAIT_S)
    assert process.has_ended


async def test_a_process_that_does_not_stop_is_ended(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); signal.pause()"
    process = Supervised("deaf", [sys.executable, "-c", deaf], tmp_path / "log", print)
    await process.spawn()
    await eventually(lambda: bool((tmp_path / "log").read_text()), "the process to be there")
    assert not await process.stop(0.05)


async def test_one_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Supervised("hasty", [sys.executable, "-c", "import sys; sys.exit('no disk')"], tmp_path / "log", print)
    await process.spawn()
    await eventually(lambda: process.has_ended, "the process to end")
    with pytest.raises(EndedError, match="no disk"):
        process.check()


def test_offsets_are_replaced_whole_and_the_former_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "at.json"
    write_offsets(path, {"b": 2, "a": 1}, is_also_input=False)
    assert path.read_text() == '{"a":1,"b":2}\n'
    write_offsets(path, {"a": 5}, is_also_input=True)
    assert read_offsets(path) == {"a": 5}
    assert read_offsets(tmp_path / "at.json.previous") == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["", "[]", '{"a":"1"}', '{"a":-1}', '{"a":true}', "not json"])
def test_what_is_no_offsets_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "at.json").write_text(text)
    with pytest.raises(ValidationError, match=r"at\.json"):
        read_offsets(tmp_path / "at.json")
