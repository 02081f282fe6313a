from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from spark_readers.java_home import JavaNotFoundError, find_java_home, java_version


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return home


def test_a_new_enough_java_home_is_taken(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.8")
    assert find_java_home({"JAVA_HOME": str(home)}, tmp_path / "cache") == home


def test_java_on_path_is_taken_where_java_home_is_too_old(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "new", "17.0.1")
    found = find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, tmp_path / "cache")
    assert found == new
    assert java_version(old) == 8


def test_the_wheel_stands_in_and_spark_s_launch_flags_do_not_stop_it(tmp_path: Path) -> None:
    home = find_java_home({}, tmp_path / "cache")
    version = java_version(home)
    assert version is not None
    assert version >= 17
    ran = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dspace=a b", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in ran.stderr
    assert find_java_home({}, tmp_path / "cache") == home


def test_without_any_java_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME"):
        find_java_home({}, tmp_path)


def test_this_machine_has_a_java_for_spark(tmp_path: Path) -> None:
    assert (java_version(find_java_home(os.environ, tmp_path / "cache")) or 0) >= 17
